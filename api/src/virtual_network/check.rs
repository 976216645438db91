//! Whether a network's fields make sense, by themselves and beside the cluster's own ranges.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::spec::{Localnet, Reach, SpecError, VirtualNetworkSpec};
use crate::addr::{self, Family};
use crate::ovn_name;
use crate::quote::quoted;
use crate::{MacAddr, NamespacedName};

/// Ranges that no network may have a part of: addresses in them mean something of their own to every host.
const SPECIAL: [(&str, &str); 6] = [
    ("0.0.0.0/8", "the range of this host"),
    ("127.0.0.0/8", "the loopback range"),
    ("169.254.0.0/16", "the link-local range"),
    ("224.0.0.0/3", "the range of multicast and reserved addresses"),
    ("fe80::/10", "the link-local range"),
    ("ff00::/8", "the multicast range"),
];
/// The shortest prefixes, IPv4 and IPv6.
const SHORTEST: (u8, u8) = (8, 16);
/// The least MTU of an interface, bytes: for IPv4, and where the network has IPv6.
const LEAST_MTU: (u32, u32) = (576, 1280);

/// IDs of VLANs that networks may have (IEEE 802.1Q: 0 is no VLAN, 4095 is reserved).
const VLANS: RangeInclusive<u16> = 1..=4094;
/// The most characters of a physical network's name.
const PHYSICAL_NETWORK_LENGTH: usize = 63;

/// The most peers of a network.
const MAX_PEERS: usize = 16;

/// What a network's fields are compared with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// The cluster's own ranges, each with what it is, such as `cluster subnet`.
    pub own: Vec<(String, IpNet)>,
    /// The longest prefix of a node's range, for each family that the cluster's pods have.
    pub node_prefixes: Vec<(Family, u8)>,
    /// MTU of the cluster's network, bytes.
    pub mtu: u32,
}

/// A subnet of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subnet {
    /// The range.
    pub net: IpNet,
    /// The gateway's address.
    pub gateway: IpAddr,
    /// Ranges inside that are not given to pods.
    pub excluded: Vec<IpNet>,
}

/// The fields of a network, once they are found to be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// One or two subnets, in the order of the spec.
    pub subnets: Vec<Subnet>,
    /// The physical network, exactly with reach `Localnet`.
    pub localnet: Option<Localnet>,
    /// MTU of the pods' interfaces, bytes.
    pub mtu: u32,
    /// First bytes of MAC addresses that follow from pods' addresses.
    pub mac_prefix: [u8; 2],
}

/// Whether two ranges have an address in common.
pub fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(&b.network()) || b.contains(&a.network())
}

/// Whether a network may have this name. It becomes a part of names that are joined with dots, so it has none itself.
///
/// # Errors
/// It is not a DNS label.
pub fn check_name(name: &str) -> Result<(), SpecError> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let good = (1..=63).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if good {
        return Ok(());
    }
    Err(SpecError::new(
        "metadata.name",
        format!(
            "`{}` cannot be the name of a network: must be at most 63 lower-case letters, digits and `-`, with a letter or \
             digit at both ends and without dots",
            quoted(name)
        ),
    ))
}

/// Whether a network may name this physical network. `ovn-bridge-mappings` separates names by `:` and `,`.
fn check_physical_network(name: &str) -> Result<(), String> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !(starts && name.len() <= PHYSICAL_NETWORK_LENGTH && name.bytes().all(inner)) {
        return Err(format!(
            "`{}` is no name of a physical network; at most {PHYSICAL_NETWORK_LENGTH} letters, digits, `-`, `_` and `.` are needed, with \
             a letter or digit first",
            quoted(name)
        ));
    }
    if name == ovn_name::PHYSICAL_NETWORK {
        return Err(format!(
            "{name} is the physical network of the nodes' own gateways; another name in `ovn-bridge-mappings` is needed, of another \
             bridge"
        ));
    }
    Ok(())
}

impl VirtualNetworkSpec {
    /// Checks the fields.
    ///
    /// # Errors
    /// The first field that cannot be used.
    pub fn check(&self, limits: &Limits) -> Result<Checked, SpecError> {
        let localnet = self.checked_localnet()?;
        let mut subnets = self.subnets(limits)?;
        self.set_gateways(&mut subnets)?;
        self.set_excluded(&mut subnets)?;
        let mtu = self.mtu(&subnets, limits)?;
        Ok(Checked { subnets, localnet, mtu, mac_prefix: self.mac_prefix()? })
    }

    fn checked_localnet(&self) -> Result<Option<Localnet>, SpecError> {
        let (localnet, is_wanted) = (self.localnet.as_ref(), self.reach == Reach::Localnet);
        let localnet = match (localnet, is_wanted) {
            (None, false) => return Ok(None),
            (None, true) => {
                let problem = "with reach Localnet the physical network is needed, such as {physicalNetwork: dc, vlan: 100}";
                return Err(SpecError::new("spec.localnet", problem));
            }
            (Some(_), false) => {
                let problem =
                    format!("only a network with reach Localnet has it; the reach is {}", self.reach);
                return Err(SpecError::new("spec.localnet", problem));
            }
            (Some(localnet), true) => localnet,
        };
        check_physical_network(&localnet.physical_network)
            .map_err(|problem| SpecError::new("spec.localnet.physicalNetwork", problem))?;
        if let Some(vlan) = localnet.vlan.filter(|vlan| !VLANS.contains(vlan)) {
            let (first, last) = (VLANS.start(), VLANS.end());
            let problem = format!("{vlan} is not in {first}–{last}; without the field packets have no tag");
            return Err(SpecError::new("spec.localnet.vlan", problem));
        }
        Ok(Some(localnet.clone()))
    }

    /// The networks that `spec.peers` of network `own` names; a name without a namespace is in the network's own.
    ///
    /// # Errors
    /// A name is none, names the network itself, or is there twice; the network has no router that could lead to peers.
    pub fn peers_of(&self, own: &NamespacedName) -> Result<Vec<NamespacedName>, SpecError> {
        if self.reach == Reach::Localnet && !self.peers.is_empty() {
            let problem =
                "a network with reach Localnet has none; its physical network's routers lead to others";
            return Err(SpecError::new("spec.peers", problem));
        }
        if self.peers.len() > MAX_PEERS {
            let problem = format!("{} are given; at most {MAX_PEERS} are possible", self.peers.len());
            return Err(SpecError::new("spec.peers", problem));
        }
        let mut found: Vec<NamespacedName> = Vec::new();
        for (at, text) in self.peers.iter().enumerate() {
            let error = |problem: String| SpecError::new(format!("spec.peers[{at}]"), problem);
            let (namespace, name) = text.split_once('/').unwrap_or((&own.namespace, text));
            if check_name(namespace).is_err() || check_name(name).is_err() {
                return Err(error(format!(
                    "`{}` is no name of a network; the form is NAME or NAMESPACE/NAME",
                    quoted(text)
                )));
            }
            let peer = NamespacedName::new(namespace, name);
            if peer == *own {
                return Err(error(format!("{peer} is the network itself")));
            }
            if found.contains(&peer) {
                return Err(error(format!("{peer} is there twice")));
            }
            found.push(peer);
        }
        Ok(found)
    }

    fn mac_prefix(&self) -> Result<[u8; 2], SpecError> {
        let Some(text) = &self.mac_prefix else { return Ok(MacAddr::PREFIX) };
        let error = |problem: &str| SpecError::new("spec.macPrefix", format!("`{}` {problem}", quoted(text)));
        // Whatever is right before four more bytes is a prefix.
        let whole: MacAddr = format!("{}:00:00:00:00", text.trim())
            .parse()
            .map_err(|_bad| error("is not two bytes of a MAC address; the form is 0a:11"))?;
        let MacAddr([first, second, ..]) = whole;
        if first % 2 == 1 {
            return Err(error("begins as a group address does; the first byte must be even, such as 0a"));
        }
        Ok([first, second])
    }

    fn subnets(&self, limits: &Limits) -> Result<Vec<Subnet>, SpecError> {
        if !(1..=2).contains(&self.subnets.len()) {
            let problem = format!("{} are given; must be one, or one of each family", self.subnets.len());
            return Err(SpecError::new("spec.subnets", problem));
        }
        let mut found: Vec<Subnet> = Vec::new();
        for (at, text) in self.subnets.iter().enumerate() {
            let error = |problem: String| SpecError::new(format!("spec.subnets[{at}]"), problem);
            let net: IpNet = text.trim().parse().map_err(|_bad| {
                error(format!("`{}` is no CIDR; the form is 172.16.24.0/24", quoted(text)))
            })?;
            self.subnet(net, limits).map_err(error)?;
            if found.iter().any(|other| Family::of_net(&other.net) == Family::of_net(&net)) {
                return Err(error(format!(
                    "{net} is a second {} range; use only one of each family",
                    Family::of_net(&net).name()
                )));
            }
            // Every prefix that is allowed has a first address.
            let gateway = addr::gateway_of(&net).unwrap_or_else(|| net.network());
            found.push(Subnet { net, gateway, excluded: Vec::new() });
        }
        Ok(found)
    }

    /// What is wrong with a subnet.
    fn subnet(&self, net: IpNet, limits: &Limits) -> Result<(), String> {
        let family = Family::of_net(&net);
        if net != net.trunc() {
            return Err(format!("{net} has bits beyond its prefix; {} would be right", net.trunc()));
        }
        let longest = net.max_prefix_len() - 2;
        if net.prefix_len() > longest {
            return Err(format!("{net} has no room for a gateway and a pod; must be at most /{longest}"));
        }
        let shortest = if family == Family::V4 { SHORTEST.0 } else { SHORTEST.1 };
        if net.prefix_len() < shortest {
            return Err(format!("{net} is larger than a network may be; must be at least /{shortest}"));
        }
        for (range, what) in SPECIAL {
            if range.parse().is_ok_and(|range| overlap(&range, &net)) {
                return Err(format!("{net} has addresses of {range}, {what}"));
            }
        }
        if let Some((what, own)) = limits.own.iter().find(|(_, own)| overlap(own, &net)) {
            return Err(format!(
                "{net} overlaps {what} {own}; must be a range that the cluster does not use"
            ));
        }
        if !self.reach.is_routed() {
            return Ok(());
        }
        match limits.node_prefixes.iter().find(|(of, _)| *of == family) {
            None => Err(format!(
                "{net}: reach {} needs {} in the cluster's network, which has none; Isolated does not",
                self.reach,
                family.name()
            )),
            // The cluster router sends what a node's pods send to their gateway router, by a route that is as long as the node's
            // range; only routes that are at least as long go before it.
            Some((_, node)) if net.prefix_len() < *node => Err(format!(
                "{net}: with reach {} must be at least /{node}, the length of a node's range; Isolated allows any",
                self.reach
            )),
            Some(_) => Ok(()),
        }
    }

    fn set_gateways(&self, subnets: &mut [Subnet]) -> Result<(), SpecError> {
        let mut given: Vec<IpAddr> = Vec::new();
        for (at, text) in self.gateways.iter().enumerate() {
            let error = |problem: String| SpecError::new(format!("spec.gateways[{at}]"), problem);
            let gateway: IpAddr = text.trim().parse().map_err(|_bad| {
                error(format!("`{}` is no address; the form is 172.16.24.1", quoted(text)))
            })?;
            let ranges = list(subnets.iter().map(|subnet| subnet.net));
            let subnet = subnets.iter_mut().find(|subnet| subnet.net.contains(&gateway));
            let subnet = subnet.ok_or_else(|| error(format!("{gateway} is not in {ranges}")))?;
            if !is_host(&subnet.net, gateway) {
                return Err(error(format!(
                    "{gateway} is the first or last address of {}, which no host has",
                    subnet.net
                )));
            }
            if given.iter().any(|other| subnet.net.contains(other)) {
                return Err(error(format!("{gateway} is a second gateway of {}; use only one", subnet.net)));
            }
            given.push(gateway);
            subnet.gateway = gateway;
        }
        Ok(())
    }

    fn set_excluded(&self, subnets: &mut [Subnet]) -> Result<(), SpecError> {
        for (at, text) in self.excluded_ranges.iter().enumerate() {
            let error = |problem: String| SpecError::new(format!("spec.excludedRanges[{at}]"), problem);
            let text = text.trim();
            let read = text.parse::<IpNet>().or_else(|_no_net| text.parse::<IpAddr>().map(IpNet::from));
            let range = read.map_err(|_bad| {
                error(format!(
                    "`{}` is neither a CIDR nor an address; the form is 172.16.24.128/25",
                    quoted(text)
                ))
            })?;
            let range = range.trunc();
            let ranges = list(subnets.iter().map(|subnet| subnet.net));
            let subnet = subnets.iter_mut().find(|subnet| subnet.net.contains(&range));
            let subnet = subnet.ok_or_else(|| error(format!("{range} is not in {ranges}")))?;
            subnet.excluded.push(range);
        }
        Ok(())
    }

    fn mtu(&self, subnets: &[Subnet], limits: &Limits) -> Result<u32, SpecError> {
        let Some(mtu) = self.mtu else { return Ok(limits.mtu) };
        let has_v6 = subnets.iter().any(|subnet| Family::of_net(&subnet.net) == Family::V6);
        let least = if has_v6 { LEAST_MTU.1 } else { LEAST_MTU.0 };
        if (least..=limits.mtu).contains(&mtu) {
            return Ok(mtu);
        }
        Err(SpecError::new(
            "spec.mtu",
            format!("{mtu} is not in {least}–{}; tunnels between nodes carry no longer packets", limits.mtu),
        ))
    }
}

/// Whether a host may have the address: neither the network's own nor the broadcast address.
fn is_host(net: &IpNet, ip: IpAddr) -> bool {
    ip != net.network() && (ip.is_ipv6() || ip != net.broadcast())
}

fn list(nets: impl Iterator<Item = IpNet>) -> String {
    nets.map(|net| net.to_string()).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        let own = [
            ("cluster subnet", "10.244.0.0/16"),
            ("service range", "10.96.0.0/12"),
            ("join subnet", "100.64.0.0/16"),
        ];
        Limits {
            own: own.into_iter().map(|(what, net)| (what.to_owned(), net.parse().unwrap())).collect(),
            node_prefixes: vec![(Family::V4, 24)],
            mtu: 1400,
        }
    }

    fn spec(subnets: &[&str]) -> VirtualNetworkSpec {
        let subnets = subnets.iter().map(|net| (*net).to_owned()).collect();
        VirtualNetworkSpec { subnets, ..VirtualNetworkSpec::default() }
    }

    fn error(spec: &VirtualNetworkSpec) -> String {
        spec.check(&limits()).unwrap_err().to_string()
    }

    #[test]
    fn the_gateway_is_the_first_address_and_the_mtu_the_clusters_where_none_is_given() {
        let checked = spec(&["172.16.24.0/24", "fd00:24::/64"]).check(&limits()).unwrap();
        let gateways: Vec<_> = checked.subnets.iter().map(|subnet| subnet.gateway.to_string()).collect();
        assert_eq!((gateways, checked.mtu), (vec!["172.16.24.1".to_owned(), "fd00:24::1".to_owned()], 1400));
        let given = VirtualNetworkSpec {
            gateways: vec!["172.16.24.254".to_owned()],
            excluded_ranges: vec!["172.16.24.200/29".to_owned(), "172.16.24.9".to_owned()],
            mtu: Some(1300),
            ..spec(&["172.16.24.0/24"])
        };
        let checked = given.check(&limits()).unwrap();
        assert_eq!(checked.subnets[0].gateway.to_string(), "172.16.24.254");
        let excluded: Vec<_> = checked.subnets[0].excluded.iter().map(ToString::to_string).collect();
        assert_eq!((excluded, checked.mtu), (vec!["172.16.24.200/29".into(), "172.16.24.9/32".into()], 1300));
    }

    #[test]
    fn a_wrong_subnet_is_named_with_what_would_be_right() {
        for (subnets, field, words) in [
            (&[][..], "spec.subnets: ", "must be one"),
            (&["10.1.0.0/24", "10.2.0.0/24", "fd00::/64"], "spec.subnets: ", "3 are given"),
            (&["x"], "spec.subnets[0]: ", "`x` is no CIDR; the form is 172.16.24.0/24"),
            (&["172.16.24.0"], "spec.subnets[0]: ", "is no CIDR"),
            (&["172.16.24.0/33"], "spec.subnets[0]: ", "is no CIDR"),
            (&["172.16.24.7/24"], "spec.subnets[0]: ", "172.16.24.0/24 would be right"),
            (&["172.16.24.0/31"], "spec.subnets[0]: ", "at most /30"),
            (&["fd00::/127"], "spec.subnets[0]: ", "at most /126"),
            (&["64.0.0.0/2"], "spec.subnets[0]: ", "at least /8"),
            (&["10.1.0.0/24", "10.2.0.0/24"], "spec.subnets[1]: ", "a second IPv4 range"),
            (&["169.254.7.0/24"], "spec.subnets[0]: ", "link-local"),
            (&["239.0.0.0/24"], "spec.subnets[0]: ", "multicast"),
            (&["10.244.7.0/24"], "spec.subnets[0]: ", "overlaps cluster subnet 10.244.0.0/16"),
            (&["10.0.0.0/8"], "spec.subnets[0]: ", "overlaps cluster subnet"),
            (&["10.100.0.0/24"], "spec.subnets[0]: ", "overlaps service range 10.96.0.0/12"),
            (&["100.64.9.0/24"], "spec.subnets[0]: ", "overlaps join subnet"),
        ] {
            let text = error(&spec(subnets));
            assert!(text.starts_with(field) && text.contains(words), "{subnets:?}: {text}");
        }
    }

    #[test]
    fn a_wrong_gateway_range_or_mtu_is_named() {
        let base = || spec(&["172.16.24.0/24", "fd00:24::/64"]);
        let gateways = |all: &[&str]| VirtualNetworkSpec {
            gateways: all.iter().map(|ip| (*ip).to_owned()).collect(),
            ..base()
        };
        for (spec, words) in [
            (gateways(&["one"]), "spec.gateways[0]: `one` is no address"),
            (
                gateways(&["172.16.25.1"]),
                "spec.gateways[0]: 172.16.25.1 is not in 172.16.24.0/24 or fd00:24::/64",
            ),
            (gateways(&["172.16.24.0"]), "which no host has"),
            (gateways(&["172.16.24.255"]), "which no host has"),
            (gateways(&["172.16.24.1", "172.16.24.2"]), "spec.gateways[1]: 172.16.24.2 is a second gateway"),
            (
                VirtualNetworkSpec { excluded_ranges: vec!["10.0.0.0/8".to_owned()], ..base() },
                "spec.excludedRanges[0]: 10.0.0.0/8 is not in",
            ),
            (
                VirtualNetworkSpec { excluded_ranges: vec!["1-2".to_owned()], ..base() },
                "neither a CIDR nor an address",
            ),
            (
                VirtualNetworkSpec { mac_prefix: Some("0a".to_owned()), ..base() },
                "spec.macPrefix: `0a` is not two bytes",
            ),
            (
                VirtualNetworkSpec { mac_prefix: Some("01:00".to_owned()), ..base() },
                "spec.macPrefix: `01:00` begins as a group address does",
            ),
            (VirtualNetworkSpec { mtu: Some(9000), ..base() }, "spec.mtu: 9000 is not in 1280–1400"),
            (VirtualNetworkSpec { mtu: Some(1000), ..base() }, "spec.mtu: 1000 is not in 1280–1400"),
        ] {
            let text = error(&spec);
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn a_mac_prefix_is_two_bytes_and_ours_where_none_is_given() {
        let checked = |prefix: Option<&str>| {
            let mac_prefix = prefix.map(str::to_owned);
            let spec = VirtualNetworkSpec { mac_prefix, ..spec(&["172.16.24.0/24"]) };
            spec.check(&limits()).unwrap().mac_prefix
        };
        assert_eq!((checked(None), checked(Some(" 02:1F"))), ([0x0a, 0x58], [0x02, 0x1f]));
    }

    #[test]
    fn a_routed_network_has_a_family_of_the_cluster_and_a_prefix_as_long_as_a_nodes() {
        for reach in [Reach::ClusterRouter, Reach::Outside] {
            let routed = |net: &str| VirtualNetworkSpec { reach, ..spec(&[net]) };
            assert!(routed("172.16.24.0/24").check(&limits()).is_ok());
            assert!(routed("172.16.24.0/28").check(&limits()).is_ok());
            assert!(error(&routed("172.16.0.0/16")).contains("must be at least /24"));
            assert!(error(&routed("fd00:24::/64")).contains("needs IPv6 in the cluster's network"));
        }
        assert!(spec(&["172.16.0.0/16", "fd00:24::/64"]).check(&limits()).is_ok(), "isolated ones are free");
    }

    #[test]
    fn a_physical_network_belongs_to_reach_localnet_alone() {
        let with = |reach, physical_network: &str, vlan| {
            let localnet = Some(Localnet { physical_network: physical_network.to_owned(), vlan });
            VirtualNetworkSpec { reach, localnet, ..spec(&["172.16.0.0/16", "fd00:24::/64"]) }
        };
        let good = with(Reach::Localnet, "dc-1.storage_a", Some(4094));
        assert_eq!(good.check(&limits()).unwrap().localnet, good.localnet);
        assert!(with(Reach::Localnet, "dc", None).check(&limits()).is_ok(), "without a tag");
        for (spec, field, part) in [
            (VirtualNetworkSpec { localnet: None, ..good.clone() }, "spec.localnet: ", "is needed, such as"),
            (with(Reach::Isolated, "dc", None), "spec.localnet: ", "the reach is Isolated"),
            (with(Reach::Localnet, "dc", Some(0)), "spec.localnet.vlan: ", "0 is not in 1–4094"),
            (with(Reach::Localnet, "dc", Some(4095)), "spec.localnet.vlan: ", "without the field"),
            (with(Reach::Localnet, "physnet", None), "spec.localnet.physicalNetwork: ", "of another bridge"),
            (
                with(Reach::Localnet, "a:b", None),
                "spec.localnet.physicalNetwork: ",
                "no name of a physical network",
            ),
            (with(Reach::Localnet, "", None), "spec.localnet.physicalNetwork: ", "a letter or digit first"),
            (with(Reach::Localnet, &"a".repeat(64), None), "spec.localnet.physicalNetwork: ", "at most 63"),
        ] {
            let text = error(&spec);
            assert!(text.starts_with(field) && text.contains(part), "{text}");
        }
    }

    #[test]
    fn peers_are_other_networks_each_once() {
        let own = NamespacedName::new("shop", "blue");
        let peers = |list: &[&str]| {
            let peers = list.iter().map(|name| (*name).to_owned()).collect();
            VirtualNetworkSpec { peers, ..spec(&["172.16.24.0/24"]) }
        };
        let found = peers(&["red", "other/blue"]).peers_of(&own).unwrap();
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), ["shop/red", "other/blue"]);
        let many: Vec<String> = (0..17).map(|number| format!("n{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (list, field, part) in [
            (&["blue"][..], "spec.peers[0]: ", "the network itself"),
            (&["red", "shop/red"], "spec.peers[1]: ", "twice"),
            (&["a/b/c"], "spec.peers[0]: ", "NAME or NAMESPACE/NAME"),
            (&["/red"], "spec.peers[0]: ", "no name of a network"),
            (&many, "spec.peers: ", "at most 16"),
        ] {
            let text = peers(list).peers_of(&own).unwrap_err().to_string();
            assert!(text.starts_with(field) && text.contains(part), "{text}");
        }
        let localnet = VirtualNetworkSpec { reach: Reach::Localnet, ..peers(&["red"]) };
        assert!(localnet.peers_of(&own).unwrap_err().to_string().contains("reach Localnet has none"));
    }

    #[test]
    fn names_are_dns_labels() {
        for good in ["ovn-ls-24", "a", "7"] {
            assert_eq!(check_name(good), Ok(()), "{good}");
        }
        for bad in ["", "a.b", "-a", "a-", "A", "a_b", "a/b", &"a".repeat(64)] {
            let text = check_name(bad).unwrap_err().to_string();
            assert!(text.starts_with("metadata.name: ") && text.contains("without dots"), "{text}");
        }
    }
}
