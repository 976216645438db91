//! IPAMClaims (`k8s.cni.cncf.io/v1alpha1`): objects that keep a pod's addresses on a virtual network when the pod is gone, for the next pod
//! that names the claim. Source: the kind's definition, <https://github.com/k8snetworkplumbingwg/ipamclaims>.

#[cfg(feature = "kubernetes")]
mod object;

#[cfg(feature = "kubernetes")]
pub use object::IpamClaim;

use ipnet::IpNet;
use serde_json::Value;

use crate::hash::fnv1a;
use crate::pod_attachments::{NetworkRef, is_subdomain};
use crate::quote::quoted;
use crate::virtual_network::check_name;

/// API group of the resource.
pub const GROUP: &str = "k8s.cni.cncf.io";
/// Version of the resource.
pub const VERSION: &str = "v1alpha1";
/// Group and version, as objects name them.
pub const API_VERSION: &str = "k8s.cni.cncf.io/v1alpha1";
/// Kind of the resource.
pub const KIND: &str = "IPAMClaim";
/// Name of the resource in URLs.
pub const PLURAL: &str = "ipamclaims";
/// Characters that the name of an object may have.
const MAX_NAME: usize = 253;

/// What a claim says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The virtual network; without a namespace it is found as a pod of the claim's namespace finds it.
    pub network: NetworkRef,
    /// The addresses that it keeps (`status.ips`), at most one of each family; none before a pod has used it.
    pub ips: Vec<IpNet>,
    /// The addresses that it is to keep (`spec.ipRequests`), at most one of each family.
    pub requests: Vec<IpNet>,
    /// The pod that has the addresses, or had them last (`status.ownerPod`).
    pub pod: String,
}

impl Claim {
    /// Reads `spec` and `status` of a claim.
    ///
    /// # Errors
    /// A field is missing or has another form; the error names it.
    pub fn read(spec: &Value, status: &Value) -> Result<Self, String> {
        let network = match spec.get("network") {
            Some(Value::String(text)) => text.trim(),
            Some(other) => return Err(format!("spec.network is {}; must be a string", quoted(other))),
            None => return Err("spec.network is missing; must be the name of a virtual network".to_owned()),
        };
        let network = NetworkRef::parse(network, |label| check_name(label).is_ok()).ok_or_else(|| {
            format!(
                "spec.network is `{}`, which is no name of a virtual network; must be NAME or NAMESPACE/NAME",
                quoted(network)
            )
        })?;
        Ok(Self {
            network,
            ips: addresses("status.ips", status.get("ips"))?,
            requests: addresses("spec.ipRequests", spec.get("ipRequests"))?,
            pod: status.get("ownerPod").and_then(Value::as_str).unwrap_or_default().to_owned(),
        })
    }
}

fn addresses(field: &str, value: Option<&Value>) -> Result<Vec<IpNet>, String> {
    let all = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(all)) => all,
        Some(other) => return Err(format!("{field} is {}; must be a list of strings", quoted(other))),
    };
    let mut found: Vec<IpNet> = Vec::new();
    for one in all {
        let net: IpNet = one.as_str().and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
            format!("{field}: {} is no address with a prefix length, such as 172.16.24.2/24", quoted(one))
        })?;
        if found.iter().any(|other| other.addr().is_ipv4() == net.addr().is_ipv4()) {
            return Err(format!("{field}: two addresses of one family; use only one of each"));
        }
        found.push(net);
    }
    Ok(found)
}

/// Name of the claim that is made for an interface of a StatefulSet's pod: the pod's name, a dot, and the interface's, in lower case. What
/// would not be unique or too long then ends in a hash.
pub fn name_of(pod: &str, interface: &str) -> String {
    let lower = interface.to_ascii_lowercase();
    let plain = format!("{pod}.{lower}");
    if lower == interface && plain.len() <= MAX_NAME && is_subdomain(&plain) {
        return plain;
    }
    let hash = format!("-{:016x}", fnv1a(format!("{pod}.{interface}").as_bytes()));
    // What no name may have, and what no label of one may end with, says the hash.
    let fit = |one: char| if one.is_ascii_alphanumeric() || one == '.' { one } else { '-' };
    let kept: String = plain.chars().map(fit).take(MAX_NAME - hash.len()).collect();
    format!("{}{hash}", kept.trim_end_matches(['.', '-']))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_names_its_network_and_keeps_addresses() {
        let spec = json!({"network": "infra/blue", "interface": "net1", "ipRequests": ["172.16.24.7/24"]});
        let status = json!({"ips": ["172.16.24.9/24", "fd01::9/64"], "ownerPod": "web-0"});
        let claim = Claim::read(&spec, &status).unwrap();
        assert_eq!((claim.network.to_string().as_str(), claim.ips.len()), ("infra/blue", 2));
        assert_eq!((claim.requests.len(), claim.pod.as_str()), (1, "web-0"));
        let fresh = Claim::read(&json!({"network": "blue", "interface": "net1"}), &Value::Null).unwrap();
        assert_eq!((fresh.network.to_string().as_str(), fresh.ips.len()), ("blue", 0));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field() {
        for (spec, status, words) in [
            (json!({}), json!({}), "spec.network is missing"),
            (json!({"network": 7}), json!({}), "spec.network is 7"),
            (json!({"network": "a/b/c"}), json!({}), "`a/b/c`, which is no name"),
            (json!({"network": "blue"}), json!({"ips": 7}), "status.ips is 7"),
            (
                json!({"network": "blue"}),
                json!({"ips": ["172.16.24.9"]}),
                "status.ips: \"172.16.24.9\" is no address",
            ),
            (
                json!({"network": "blue"}),
                json!({"ips": ["10.0.0.1/8", "10.0.0.2/8"]}),
                "two addresses of one family",
            ),
            (json!({"network": "blue", "ipRequests": [1]}), json!({}), "spec.ipRequests: 1 is no address"),
        ] {
            let error = Claim::read(&spec, &status).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn each_interface_of_each_pod_has_a_claim_of_its_own() {
        assert_eq!(name_of("web-0", "net1"), "web-0.net1");
        let capital = name_of("web-0", "Net1");
        assert!(capital.starts_with("web-0.net1-") && is_subdomain(&capital), "{capital}");
        let long = name_of(&"w".repeat(253), "net1");
        assert_eq!(long.len(), MAX_NAME);
        assert!(is_subdomain(&long) && long != name_of(&"w".repeat(253), "net2"));
        // Cut off at the dot between both.
        for length in 230..240 {
            let name = name_of(&"w".repeat(length), "aVeryLongName1");
            assert!(is_subdomain(&name) && name.len() <= MAX_NAME, "{name}");
        }
        let strange = name_of("web-0", &"ö_".repeat(200));
        assert!(is_subdomain(&strange), "{strange}");
    }
}
