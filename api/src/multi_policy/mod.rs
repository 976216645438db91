//! MultiNetworkPolicies (`k8s.cni.cncf.io/v1beta1`): network policies of further networks. `spec` is that of a NetworkPolicy; an annotation
//! names the networks. Source: <https://github.com/k8snetworkplumbingwg/multi-networkpolicy>.

#[cfg(feature = "kubernetes")]
mod object;

#[cfg(feature = "kubernetes")]
pub use object::MultiNetworkPolicy;

use crate::pod_attachments::{MAX_SELECTIONS, NetworkRef, is_subdomain};
use crate::quote::quoted;

/// API group of the resource.
pub const GROUP: &str = "k8s.cni.cncf.io";
/// Version of the resource.
pub const VERSION: &str = "v1beta1";
/// Group and version, as objects name them.
pub const API_VERSION: &str = "k8s.cni.cncf.io/v1beta1";
/// Kind of the resource.
pub const KIND: &str = "MultiNetworkPolicy";
/// Name of the resource in URLs.
pub const PLURAL: &str = "multi-networkpolicies";
/// Key of the annotation that names the networks: NetworkAttachmentDefinitions, separated by commas.
pub const POLICY_FOR: &str = "k8s.v1.cni.cncf.io/policy-for";

/// Reads the annotation: names, each with its namespace or without.
///
/// # Errors
/// A part is no name.
pub fn networks(text: &str) -> Result<Vec<NetworkRef>, String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() || parts.len() > MAX_SELECTIONS {
        return Err(format!(
            "annotation {POLICY_FOR}: {} names; from 1 to {MAX_SELECTIONS} are possible",
            parts.len()
        ));
    }
    let read = |part: &&str| {
        NetworkRef::parse(part, is_subdomain).ok_or_else(|| {
            format!(
                "annotation {POLICY_FOR}: `{}` is no name of a network; must be NAME or NAMESPACE/NAME",
                quoted(part)
            )
        })
    };
    parts.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_named_with_commas_between_them() {
        let all = networks(" blue, infra/red ,").unwrap();
        assert_eq!(all.iter().map(ToString::to_string).collect::<Vec<_>>(), ["blue", "infra/red"]);
        for (text, words) in
            [("", "0 names"), (" , ", "0 names"), ("a/b/c", "`a/b/c` is no name"), ("A", "`A` is no name")]
        {
            let error = networks(text).unwrap_err();
            assert!(error.contains(words) && error.contains(POLICY_FOR), "{error}");
        }
        assert!(networks(&"a,".repeat(MAX_SELECTIONS + 1)).is_err());
    }
}
