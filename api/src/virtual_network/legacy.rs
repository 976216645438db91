//! The form that networks had before: kind `onapNetwork`, whose `spec.config` is JSON inside a string. It knows one kind of
//! network, which every pod may use and which reaches the outside.

use serde::Deserialize;

use super::check::check_name;
use super::spec::{Reach, Scope, SpecError, VirtualNetworkSpec};
use crate::quote::quoted;

/// Kind of the object.
pub const KIND: &str = "onapNetwork";
/// What `cnitype` may be: the programs that can make a network.
pub const KNOWN_TYPES: [&str; 1] = ["ovn"];
const FIELD: &str = "spec.config";

/// The JSON of `spec.config`. Values may have blanks around them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    cnitype: Option<String>,
    name: Option<String>,
    subnet: String,
    gateway: Option<String>,
}

/// An object without a usable `spec.config`.
#[cfg(feature = "kubernetes")]
pub(crate) fn no_config(problem: &str) -> SpecError {
    SpecError::new(FIELD, problem)
}

/// The network that an object named `name` with this `spec.config` describes.
///
/// # Errors
/// The text is not the JSON that it should be, another program is asked for, or the names differ.
pub fn convert(name: &str, config: &str) -> Result<VirtualNetworkSpec, SpecError> {
    let mut json = serde_json::Deserializer::from_str(config);
    let read: Config = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let field = match quoted(error.path()) {
            whole if matches!(whole.as_str(), "." | "?") => FIELD.to_owned(),
            field => format!("{FIELD}.{field}"),
        };
        SpecError::new(field, quoted(error.inner()))
    })?;
    json.end().map_err(|error| SpecError::new(FIELD, error.to_string()))?;
    let kind = read.cnitype.as_deref().map_or(KNOWN_TYPES[0], str::trim);
    if !KNOWN_TYPES.contains(&kind) {
        let known = KNOWN_TYPES.join(", ");
        let problem = format!("`{}` is not known; what can make a network: {known}", quoted(kind));
        return Err(SpecError::new(format!("{FIELD}.cnitype"), problem));
    }
    check_name(name)?;
    if let Some(inner) = read.name.as_deref().map(str::trim)
        && inner != name
    {
        let problem =
            format!("`{}` is not the object's name, `{name}`; both must be the same", quoted(inner));
        return Err(SpecError::new(format!("{FIELD}.name"), problem));
    }
    Ok(VirtualNetworkSpec {
        scope: Scope::Cluster,
        subnets: vec![read.subnet.trim().to_owned()],
        gateways: read.gateway.iter().map(|ip| ip.trim().to_owned()).collect(),
        excluded_ranges: Vec::new(),
        reach: Reach::Outside,
        localnet: None,
        peers: Vec::new(),
        mtu: None,
        mac_prefix: None,
        ipam: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::check::Limits;
    use super::*;
    use crate::addr::Family;

    /// A configuration as it was published, with its blanks.
    const PUBLISHED: &str = r#"{
"cnitype" : "ovn",
"name": " ovn-ls-24",
"subnet": " 172.16.24.0/24",
"gateway": " 172.16.24.1"
}"#;

    #[test]
    fn the_published_example_is_a_network_that_reaches_the_outside() {
        let spec = convert("ovn-ls-24", PUBLISHED).unwrap();
        assert_eq!(
            serde_json::to_value(&spec).unwrap(),
            serde_json::json!({"scope": "Cluster", "subnets": ["172.16.24.0/24"], "gateways": ["172.16.24.1"],
                "reach": "Outside"})
        );
        let limits = Limits { own: Vec::new(), node_prefixes: vec![(Family::V4, 24)], mtu: 1400 };
        assert_eq!(spec.check(&limits).unwrap().subnets[0].gateway.to_string(), "172.16.24.1");
    }

    #[test]
    fn without_a_type_it_is_ovn_and_another_is_refused_with_the_known_ones() {
        let without = PUBLISHED.replace(r#""cnitype" : "ovn","#, "");
        assert_eq!(convert("ovn-ls-24", &without), convert("ovn-ls-24", PUBLISHED));
        let error = convert("ovn-ls-24", &PUBLISHED.replace(r#""ovn""#, r#""sriov""#)).unwrap_err();
        assert_eq!(error.field, "spec.config.cnitype");
        assert!(error.problem.contains("`sriov`") && error.problem.ends_with(": ovn"), "{error}");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (name, config, field) in [
            ("ovn-ls-24", "{", "spec.config"),
            ("ovn-ls-24", r#"{"subnet":"172.16.24.0/24"} x"#, "spec.config"),
            ("ovn-ls-24", r#"{"subnet":7}"#, "spec.config.subnet"),
            ("ovn-ls-24", "{}", "spec.config"),
            ("other", PUBLISHED, "spec.config.name"),
            ("a.b", r#"{"subnet":"172.16.24.0/24"}"#, "metadata.name"),
        ] {
            let error = convert(name, config).unwrap_err();
            assert_eq!(error.field, field, "{config}: {error}");
        }
    }
}
