//! Objects of the API server that are read even if a part that is not used here is invalid.
//!
//! `status.conditions` of a Service may hold `lastTransitionTime: null`: the API server accepts a condition without it, and
//! the generated types require it. One such object would end every list and every watch of its kind.

use std::fmt::Debug;

use k8s_openapi::{Metadata, Resource};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// An object of kind `K`, without `status.conditions` when these cannot be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lenient<K>(pub K);

impl<K: Resource> Resource for Lenient<K> {
    const API_VERSION: &'static str = K::API_VERSION;
    const GROUP: &'static str = K::GROUP;
    const KIND: &'static str = K::KIND;
    const VERSION: &'static str = K::VERSION;
    const URL_PATH_SEGMENT: &'static str = K::URL_PATH_SEGMENT;
    type Scope = K::Scope;
}

impl<K: Metadata> Metadata for Lenient<K> {
    type Ty = K::Ty;

    fn metadata(&self) -> &Self::Ty {
        self.0.metadata()
    }

    fn metadata_mut(&mut self) -> &mut Self::Ty {
        self.0.metadata_mut()
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lenient<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        let error = match K::deserialize(&value) {
            Ok(object) => return Ok(Self(object)),
            Err(error) => error,
        };
        let conditions = value
            .get_mut("status")
            .and_then(Value::as_object_mut)
            .and_then(|status| status.remove("conditions"));
        match conditions {
            Some(_) => K::deserialize(&value).map(Self).map_err(D::Error::custom),
            None => Err(D::Error::custom(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    fn service(status: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n"},
            "spec": {"clusterIP": "10.96.0.9"}, "status": status})
    }

    #[test]
    fn a_condition_without_a_time_costs_only_the_conditions() {
        let object = service(&json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]},
            "conditions": [{"type": "T", "status": "True", "reason": "R", "message": "", "lastTransitionTime": null}]}));
        assert!(
            serde_json::from_value::<Service>(object.clone()).is_err(),
            "else this module is not needed any more"
        );
        let Lenient(read) = serde_json::from_value::<Lenient<Service>>(object).unwrap();
        let status = read.status.unwrap();
        assert_eq!(status.conditions, None);
        assert_eq!(status.load_balancer.unwrap().ingress.unwrap()[0].ip.as_deref(), Some("203.0.113.1"));
        assert_eq!(read.spec.unwrap().cluster_ip.as_deref(), Some("10.96.0.9"));
    }

    #[test]
    fn what_can_be_read_is_read_whole_and_nonsense_is_refused() {
        let object =
            service(&json!({"conditions": [{"type": "T", "status": "True", "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}));
        let Lenient(read) = serde_json::from_value::<Lenient<Service>>(object).unwrap();
        assert_eq!(read.status.unwrap().conditions.unwrap().len(), 1);
        assert!(serde_json::from_value::<Lenient<Service>>(json!({"metadata": 3})).is_err());
        assert!(serde_json::from_value::<Lenient<Service>>(json!("x")).is_err());
    }

    #[test]
    fn it_is_found_where_the_kind_is_found() {
        assert_eq!((Lenient::<Service>::KIND, Lenient::<Service>::URL_PATH_SEGMENT), ("Service", "services"));
    }
}
