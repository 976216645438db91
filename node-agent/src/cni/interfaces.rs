//! The interfaces that an ADD makes, from the pod's annotation. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use api::NamespacedName;
use api::annotation::{DEFAULT_NETWORK, POD_NETWORKS, PodNetwork, PodNetworks};
use api::ovn_name::{network_pod_port, pod_port};

use super::CniError;
use super::request::bad_interface;
use crate::attach::{self, Attach, MOST_FURTHER, Names};
use crate::kube::pods::PodAddresses;
use crate::ovs::ports::PodPort;
use crate::pod::pod_netns::gateways;

/// Least and most MTU of an interface in bytes: `ETH_MIN_MTU` of linux/if_ether.h, and `ETH_MAX_MTU`, which a veth takes.
const MTU: std::ops::RangeInclusive<u32> = 68..=65_535;
/// Least MTU of an interface with IPv6 in bytes (RFC 8200, section 5).
const MTU_IPV6: u32 = 1280;

/// An interface that ADD makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Id of the interface on the node ([`attach::interface_id`]).
    pub id: String,
    /// Names of its links on the node.
    pub names: Names,
    /// Key of its entry in the annotation.
    pub key: String,
    /// Name of the interface in the pod.
    pub ifname: String,
    /// Logical port.
    pub iface_id: String,
    /// Addresses and routes.
    pub network: PodNetwork,
    /// MTU in bytes.
    pub mtu: u32,
}

/// The interfaces of a pod that an ADD makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interfaces {
    /// UID of the pod in the API.
    pub uid: String,
    /// The one on the cluster network; none in a call for another one.
    pub first: Option<Wanted>,
    /// Interfaces on other networks, in the order of their keys.
    pub further: Vec<Wanted>,
    /// The addresses that the pod had when this was read, on all networks.
    read: PodAddresses,
}

/// Which interfaces of a pod an ADD makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The first one, and all others but these, for which there are calls of their own.
    First {
        /// Names in the pod of those that are left.
        without: BTreeSet<String>,
    },
    /// The one that the call names.
    Further,
}

/// Container and pod of an ADD.
#[derive(Debug, Clone, Copy)]
pub struct Who<'a> {
    /// Container id.
    pub container: &'a str,
    /// `CNI_IFNAME`: name in the pod of the interface that the call is for.
    pub ifname: &'a str,
    /// The pod.
    pub pod: &'a NamespacedName,
    /// MTU of the cluster network in bytes.
    pub mtu: u32,
}

impl Interfaces {
    /// The interfaces of a pod with these addresses that are in `part`.
    ///
    /// # Errors
    /// An entry of the annotation that cannot be used, with its key and field; or there is none for the call.
    pub fn of(who: Who<'_>, part: &Part, addresses: PodAddresses) -> Result<Self, CniError> {
        let Who { container, ifname, pod, mtu } = who;
        let read = addresses.clone();
        let PodAddresses { uid, default, others } = addresses;
        let first = default.map(|network| Wanted {
            id: container.to_owned(),
            names: Names::of(container),
            key: DEFAULT_NETWORK.to_owned(),
            ifname: ifname.to_owned(),
            iface_id: pod_port(&pod.namespace, &pod.name),
            network,
            mtu,
        });
        let mut further = Vec::new();
        for (number, (key, network)) in (1..).zip(others) {
            let id = attach::interface_id(container, number);
            further.push(Wanted {
                names: Names::of(&id),
                id,
                ifname: network.interface.clone().unwrap_or_default(),
                iface_id: network_pod_port(&key, &pod.namespace, &pod.name),
                mtu: network.mtu.unwrap_or(mtu),
                key,
                network,
            });
        }
        let mut all = Self { uid, first, further, read };
        let bad =
            |problem: String| CniError::failure(format!("pod {pod}: annotation {POD_NETWORKS}: {problem}"));
        match part {
            Part::First { .. } if all.first.is_none() => {
                return Err(bad(
                    "no entry `default`, so the pod has no address on the cluster's network".to_owned()
                ));
            }
            Part::First { without } => {
                all.problem(Some(ifname)).map_or(Ok(()), |problem| Err(bad(problem)))?;
                all.further.retain(|one| !without.contains(&one.ifname));
            }
            Part::Further => {
                all.problem(None).map_or(Ok(()), |problem| Err(bad(problem)))?;
                let has: Vec<String> = all.further.iter().map(|one| one.ifname.clone()).collect();
                all.further.retain(|one| one.ifname == ifname);
                all.first = None;
                if all.further.is_empty() {
                    return Err(unknown(ifname, &has));
                }
            }
        }
        Ok(all)
    }

    /// The first interface, if it is one of them, and the others.
    pub fn all(&self) -> impl Iterator<Item = &Wanted> + Clone {
        self.first.iter().chain(&self.further)
    }

    /// Whether the annotation has the same addresses as when it was read.
    pub fn are_in(&self, annotation: &str) -> bool {
        let of = |network: &PodNetwork| (network.ip_addresses.clone(), network.mac_address);
        let Ok((default, others)) = PodNetworks::read(annotation) else { return false };
        let PodAddresses { default: default_then, others: others_then, uid: _ } = &self.read;
        default.as_ref().map(of) == default_then.as_ref().map(of)
            && others.len() == others_then.len()
            && others.iter().all(|(key, now)| others_then.get(key).is_some_and(|then| of(then) == of(now)))
    }

    /// What is wrong with the entries. `first`: the name of the first interface, if the call is for that one.
    fn problem(&self, first: Option<&str>) -> Option<String> {
        let count = self.further.len();
        if count > MOST_FURTHER {
            return Some(format!("{count} entries beside `default`; at most {MOST_FURTHER} are possible"));
        }
        let mut names: BTreeMap<&str, Option<&str>> = first.into_iter().map(|name| (name, None)).collect();
        // The entry that has the default route of an address family.
        let mut defaults: BTreeMap<bool, &str> = BTreeMap::new();
        defaults.extend(self.first.iter().flat_map(families).map(|family| (family, DEFAULT_NETWORK)));
        for one in &self.further {
            let (key, name) = (one.key.as_str(), one.ifname.as_str());
            let reserved = ["lo", "all", "default"].contains(&name).then_some("is reserved; choose another");
            if let Some(why) = bad_interface(name).or(reserved) {
                return Some(format!("`{key}.interface`: `{name}` {why}"));
            }
            match names.insert(name, Some(key)) {
                None => {}
                Some(None) => {
                    return Some(format!(
                        "`{key}.interface`: `{name}` is the name that the container runtime gives the interface of the cluster \
                         network (CNI_IFNAME); choose another"
                    ));
                }
                Some(Some(other)) => {
                    return Some(format!(
                        "`{key}.interface`: `{name}` is the interface of `{other}` already; choose another"
                    ));
                }
            }
            if let Some(why) = bad_mtu(one) {
                return Some(format!("`{key}.mtu`: {} {why}", one.mtu));
            }
            for family in families(one) {
                if let Some(other) = defaults.insert(family, key) {
                    let family = if family { "IPv4" } else { "IPv6" };
                    return Some(format!(
                        "`{key}.gateway_ips`: the default route for {family} is that of `{other}` already; only one entry may \
                         have it"
                    ));
                }
            }
        }
        None
    }
}

/// The call is for an interface that the pod does not have; it has these on virtual networks.
pub(super) fn unknown(ifname: &str, has: &[String]) -> CniError {
    let mut has: Vec<&str> = has.iter().map(String::as_str).collect();
    has.sort_unstable();
    let has = if has.is_empty() { "none".to_owned() } else { has.join(", ") };
    CniError::failure(format!(
        "CNI_IFNAME `{ifname}`: the pod has no such interface on a virtual network; it has {has}. A pod names its interfaces in annotation \
         k8s.v1.cni.cncf.io/networks (the second of that list is net2 where the pod gives no name) or ovnNetwork when it is made. \
         Nothing was changed"
    ))
}

/// Address families of the interface's default routes, each once: true for IPv4.
fn families(of: &Wanted) -> impl Iterator<Item = bool> {
    let all = gateways(&of.network);
    [true, false].into_iter().filter(move |family| all.iter().any(|gateway| gateway.is_ipv4() == *family))
}

fn bad_mtu(of: &Wanted) -> Option<String> {
    let six = of.network.ip_addresses.iter().any(|address| address.addr().is_ipv6());
    if !MTU.contains(&of.mtu) {
        Some(format!("is no MTU; must be from {} to {}", MTU.start(), MTU.end()))
    } else if six && of.mtu < MTU_IPV6 {
        Some(format!("is too small for the interface's IPv6 address; must be at least {MTU_IPV6}"))
    } else {
        None
    }
}

impl Wanted {
    /// The OVS port of the interface, in sandbox `container` of the pod with UID `uid`.
    pub fn port(&self, attach: Attach, container: &str, uid: &str) -> PodPort {
        let addresses = self.network.ip_addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        PodPort {
            name: self.names.ovs_port(attach).to_owned(),
            iface_id: self.iface_id.clone(),
            iface_id_ver: uid.to_owned(),
            sandbox: container.to_owned(),
            pod_interface: self.ifname.clone(),
            mac: self.network.mac_address.to_string(),
            addresses: addresses.join(","),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn entry(n: u8, more: Value) -> Value {
        let mut entry = json!({
            "ip_addresses": [format!("172.16.{n}.3/24")], "mac_address": format!("0a:58:ac:10:{n:02x}:03"),
        });
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry
    }

    fn annotation(entries: &[(&str, Value)]) -> String {
        let mut all = json!({ "default": entry(0, json!({})) });
        for (key, value) in entries {
            all[*key] = value.clone();
        }
        all.to_string()
    }

    fn of(annotation: &str) -> Result<Interfaces, CniError> {
        let (default, others) = PodNetworks::all_of(annotation).unwrap();
        let pod = NamespacedName::new("red", "a");
        let who = Who { container: "c1", ifname: "eth0", pod: &pod, mtu: 1400 };
        let all = Part::First { without: BTreeSet::new() };
        Interfaces::of(who, &all, PodAddresses { uid: "u1".to_owned(), default: Some(default), others })
    }

    #[test]
    fn each_entry_becomes_an_interface_with_a_logical_port_and_names_of_its_own() {
        let text = annotation(&[
            ("shop/blue", entry(1, json!({ "interface": "net1", "mtu": 1500 }))),
            ("shop/blue/net2", entry(2, json!({ "interface": "net2" }))),
        ]);
        let all = of(&text).unwrap();
        let shown: Vec<_> =
            all.all().map(|w| (w.ifname.as_str(), w.iface_id.as_str(), w.mtu, w.key.as_str())).collect();
        assert_eq!(
            shown,
            [
                ("eth0", "red_a", 1400, "default"),
                ("net1", "shop.blue_red_a", 1500, "shop/blue"),
                ("net2", "shop.blue.net2_red_a", 1400, "shop/blue/net2"),
            ]
        );
        let ports: Vec<PodPort> = all.all().map(|w| w.port(Attach::Interposed, "c1", "u1")).collect();
        assert!(ports.iter().zip(all.all()).all(|(port, wanted)| port.id() == wanted.id));
        assert_eq!(ports[2].pod().unwrap().to_string(), "red/a");
        let networks: Vec<_> = ports.iter().map(PodPort::network).collect();
        let blue = Some(NamespacedName::new("shop", "blue"));
        assert_eq!(networks, [None, blue.clone(), blue]);
    }

    #[test]
    fn a_pod_on_the_cluster_network_alone_is_as_it_always_was() {
        let all = of(&annotation(&[])).unwrap();
        let first = all.first.as_ref().unwrap();
        assert_eq!((first.id.as_str(), first.names.clone()), ("c1", Names::of("c1")));
        assert!(all.further.is_empty());
        let port = first.port(Attach::Direct, "c1", "u1");
        assert_eq!((port.name.as_str(), port.iface_id.as_str()), ("c1", "red_a"));
    }

    #[test]
    fn an_entry_that_cannot_be_used_is_refused_by_key_and_field() {
        let gateway = json!({ "interface": "net1", "gateway_ips": ["172.16.1.1"] });
        let second = json!({ "interface": "net2", "gateway_ips": ["172.16.2.1"] });
        let six = json!({ "interface": "net1", "mtu": 1000, "ip_addresses": ["fd00::3/64"] });
        let one = |interface: &str| vec![("b/x", entry(1, json!({ "interface": interface })))];
        for (entries, parts) in [
            (one("eth0"), "`b/x.interface`: `eth0` CNI_IFNAME"),
            (one("lo"), "`b/x.interface`: `lo` is reserved"),
            (one("default"), "`b/x.interface`: `default` is reserved"),
            (one("sixteen-bytes-00"), "`b/x.interface`: `sixteen-bytes-00` at most 15 bytes"),
            (one("a/b"), "`b/x.interface`: `a/b` must not contain `/`"),
            (one("a b"), "`b/x.interface`: `a b` white space"),
            (
                vec![one("net1")[0].clone(), ("b/y", one("net1")[0].1.clone())],
                "`b/y.interface`: `net1` `b/x` already",
            ),
            (
                vec![("b/x", entry(1, json!({ "interface": "net1", "mtu": 60 })))],
                "`b/x.mtu`: 60 from 68 to 65535",
            ),
            (vec![("b/x", entry(1, six))], "`b/x.mtu`: 1000 at least 1280"),
            (
                vec![("b/x", entry(1, gateway)), ("b/y", entry(2, second))],
                "`b/y.gateway_ips`: IPv4 `b/x` only one entry",
            ),
        ] {
            let error = of(&annotation(&entries)).unwrap_err().to_string();
            assert!(error.starts_with("pod red/a: annotation k8s.ovn.org/pod-networks: `"), "{error}");
            // Words in their order.
            let mut rest = error.as_str();
            for part in parts.split(' ') {
                rest = rest.split_once(part).unwrap_or_else(|| panic!("{part} of {parts} in {error}")).1;
            }
        }
    }

    #[test]
    fn each_address_family_may_have_its_default_route_elsewhere() {
        let four = entry(1, json!({ "interface": "net1", "gateway_ips": ["172.16.1.1"] }));
        let six = entry(2, json!({ "interface": "net2", "gateway_ips": ["fd00::1"] }));
        assert!(of(&annotation(&[("b/x", four), ("b/y", six)])).is_ok());
    }

    #[test]
    fn more_interfaces_than_can_be_numbered_are_refused() {
        let keys: Vec<String> = (0..=MOST_FURTHER).map(|n| format!("b/n{n:03}")).collect();
        let entries: Vec<(&str, Value)> = keys
            .iter()
            .zip(0_u8..)
            .map(|(key, n)| (key.as_str(), entry(n, json!({ "interface": format!("net{n}") }))))
            .collect();
        assert!(of(&annotation(&entries)).unwrap_err().msg.contains("at most 99"));
        assert_eq!(of(&annotation(&entries[1..])).unwrap().further.len(), MOST_FURTHER);
    }

    #[test]
    fn a_part_of_a_pods_interfaces_is_as_it_is_in_the_whole() {
        let text = annotation(&[
            ("b/x", entry(1, json!({ "interface": "net1" }))),
            ("b/y", entry(2, json!({ "interface": "net2" }))),
        ]);
        let whole = of(&text).unwrap();
        let pod = NamespacedName::new("red", "a");
        let part = |ifname: &str, part: &Part, default: bool| {
            let (first, others) = PodNetworks::read(&text).unwrap();
            let who = Who { container: "c1", ifname, pod: &pod, mtu: 1400 };
            let default = first.filter(|_| default);
            Interfaces::of(who, part, PodAddresses { uid: "u1".to_owned(), default, others })
        };
        let without = Part::First { without: ["net2", "net7"].map(str::to_owned).into() };
        let first = part("eth0", &without, true).unwrap();
        assert_eq!((&first.first, first.further.as_slice()), (&whole.first, &whole.further[..1]));
        for default in [true, false] {
            let one = part("net2", &Part::Further, default).unwrap();
            assert_eq!((one.first.as_ref(), one.further.as_slice()), (None, &whole.further[1..]));
        }
        assert!(first.are_in(&text) && !first.are_in(&text.replace("172.16.2.3", "172.16.2.4")));
        let said = part("net3", &Part::Further, true).unwrap_err().msg;
        assert!(said.contains("`net3`") && said.contains("it has net1, net2"), "{said}");
        let said = part("eth0", &without, false).unwrap_err().msg;
        assert!(said.contains("no entry `default`"), "{said}");
    }

    #[test]
    fn any_change_of_addresses_is_noticed() {
        let blue = entry(1, json!({ "interface": "net1" }));
        let text = annotation(&[("b/x", blue.clone())]);
        let all = of(&text).unwrap();
        assert!(all.are_in(&text));
        assert!(!all.are_in(&text.replace("172.16.1.3", "172.16.1.4")));
        assert!(!all.are_in(&text.replace("0a:58:ac:10:00:03", "0a:58:ac:10:00:04")));
        assert!(!all.are_in(&annotation(&[])) && !all.are_in("{"));
        assert!(
            !all.are_in(&annotation(&[("b/x", blue), ("b/y", entry(2, json!({ "interface": "net2" })))]))
        );
    }
}
