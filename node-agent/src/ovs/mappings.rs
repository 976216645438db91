//! `ovn-bridge-mappings` of the Open_vSwitch row: which physical network a bridge of the node leads to (ovn-controller(8)). The entry of
//! the gateway bridge and that of the second uplink are the agent's, all others are the administrator's.

use api::annotation::MAX_PHYSICAL_NETWORKS;
use api::ovn_name::{INTEGRATION_BRIDGE, PHYSICAL_NETWORK, SECOND_PHYSICAL_NETWORK};
use ovsdb_client::vswitch::{Bridge, OpenVSwitch};

use super::Ovs;

/// Key of `external_ids`.
pub const KEY: &str = "ovn-bridge-mappings";

/// Physical network and bridge of each entry, without those that are neither.
fn entries(value: &str) -> impl Iterator<Item = (&str, &str)> {
    value.split(',').filter_map(|entry| entry.trim().split_once(':'))
}

fn value(row: &OpenVSwitch) -> &str {
    row.external_ids.get(KEY).map_or("", String::as_str)
}

/// The bridge of a physical network.
pub fn bridge_of<'a>(row: &'a OpenVSwitch, physical_network: &str) -> Option<&'a str> {
    entries(value(row)).find(|(name, _)| *name == physical_network).map(|(_, bridge)| bridge)
}

fn is_own(physical_network: &str) -> bool {
    [PHYSICAL_NETWORK, SECOND_PHYSICAL_NETWORK].contains(&physical_network)
}

/// The value with the gateway bridge in it, and that of the second uplink (`second`); entries of other physical networks stay as they are.
pub fn with_own(row: &OpenVSwitch, bridge: &str, second: Option<&str>) -> String {
    let wanted = [Some((PHYSICAL_NETWORK, bridge)), second.map(|second| (SECOND_PHYSICAL_NETWORK, second))];
    let wanted = wanted.into_iter().flatten();
    let is_right = entries(value(row)).filter(|(name, _)| is_own(name)).eq(wanted.clone());
    let own: Vec<String> = wanted.map(|(name, bridge)| format!("{name}:{bridge}")).collect();
    let own = own.join(",");
    match of_others(row) {
        None => own,
        // Wherever it is among the others.
        Some(_) if is_right => value(row).to_owned(),
        Some(others) => format!("{own},{others}"),
    }
}

/// The value without the agent's entries; none if nothing is left.
pub fn of_others(row: &OpenVSwitch) -> Option<String> {
    let others = value(row).split(',').filter(|entry| {
        let entry = entry.trim();
        !entry.is_empty() && !entry.split(':').next().is_some_and(is_own)
    });
    let others: Vec<&str> = others.collect();
    (!others.is_empty()).then(|| others.join(","))
}

/// The physical networks that virtual networks can be on here, and why others cannot.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PhysicalNetworks {
    /// Names in order.
    pub names: Vec<String>,
    /// Names of their bridges in order.
    pub bridges: Vec<String>,
    /// Warnings about entries that lead nowhere.
    pub warnings: Vec<String>,
}

/// The physical networks of the node beside those of its gateway and its second uplink.
pub fn physical_networks(ovs: &Ovs, gateway: &str) -> PhysicalNetworks {
    let Some(row) = ovs.system() else { return PhysicalNetworks::default() };
    let datapath = ovs.datapath_type();
    usable(&row, gateway, &datapath, |name| ovs.bridge(name).map(|bridge| (*bridge).clone()))
}

fn usable(
    row: &OpenVSwitch,
    gateway: &str,
    datapath: &str,
    bridge: impl Fn(&str) -> Option<Bridge>,
) -> PhysicalNetworks {
    let mut found = PhysicalNetworks::default();
    let second =
        entries(value(row)).find(|(name, _)| *name == SECOND_PHYSICAL_NETWORK).map(|(_, bridge)| bridge);
    for (name, leads_to) in entries(value(row)).filter(|(name, _)| !is_own(name)) {
        let why = match bridge(leads_to) {
            _ if leads_to == gateway => Some("is the gateway bridge, whose flows are the agent's".to_owned()),
            _ if Some(leads_to) == second => {
                Some("is the second uplink's bridge, whose flows are the agent's".to_owned())
            }
            _ if leads_to == INTEGRATION_BRIDGE => Some("is OVN's own bridge".to_owned()),
            None => Some("does not exist".to_owned()),
            Some(bridge) => {
                let kind = Some(bridge.datapath_type.as_str()).filter(|kind| !kind.is_empty());
                let kind = kind.unwrap_or("system");
                (kind != datapath).then(|| format!("has datapath type {kind}; {datapath} is needed"))
            }
        };
        match why {
            Some(why) => found.warnings.push(format!(
                "{KEY} in Open_vSwitch: physical network {name} leads to bridge {leads_to}, which {why}; virtual networks cannot be on it"
            )),
            None => {
                found.names.push(name.to_owned());
                found.bridges.push(leads_to.to_owned());
            }
        }
    }
    found.names.sort();
    found.names.dedup();
    found.bridges.sort();
    found.bridges.dedup();
    found.bridges.truncate(MAX_PHYSICAL_NETWORKS);
    if found.names.len() > MAX_PHYSICAL_NETWORKS {
        found.warnings.push(format!(
            "{KEY} in Open_vSwitch has {} physical networks; the first {MAX_PHYSICAL_NETWORKS} are used",
            found.names.len()
        ));
        found.names.truncate(MAX_PHYSICAL_NETWORKS);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mappings: &str) -> OpenVSwitch {
        let external_ids = [(KEY.to_owned(), mappings.to_owned())].into_iter().collect();
        OpenVSwitch { external_ids, ..OpenVSwitch::default() }
    }

    #[test]
    fn the_gateways_entry_is_put_right_and_others_stay_as_they_are() {
        for (before, after, others) in [
            ("", "physnet:breth0", None),
            ("physnet:breth0", "physnet:breth0", None),
            ("physnet:other", "physnet:breth0", None),
            ("dc:br-dc", "physnet:breth0,dc:br-dc", Some("dc:br-dc")),
            ("dc:br-dc,physnet:breth0", "dc:br-dc,physnet:breth0", Some("dc:br-dc")),
            ("dc:br-dc,physnet:other,a:b", "physnet:breth0,dc:br-dc,a:b", Some("dc:br-dc,a:b")),
            ("physnet:breth0,dc:br-dc,physnet:other", "physnet:breth0,dc:br-dc", Some("dc:br-dc")),
            ("nonsense,", "physnet:breth0,nonsense", Some("nonsense")),
        ] {
            assert_eq!(with_own(&row(before), "breth0", None), after, "{before}");
            assert_eq!(with_own(&row(after), "breth0", None), after, "once more: {before}");
            assert_eq!(of_others(&row(before)).as_deref(), others, "{before}");
        }
        assert_eq!(with_own(&OpenVSwitch::default(), "breth0", None), "physnet:breth0");
        assert_eq!(bridge_of(&row("dc:br-dc,physnet:breth0"), PHYSICAL_NETWORK), Some("breth0"));
    }

    #[test]
    fn the_second_uplinks_entry_comes_and_goes_with_its_bridge() {
        let own = |before: &str, second| with_own(&row(before), "breth0", second);
        let both = "physnet:breth0,exgwphysnet:breth1";
        for before in ["", "physnet:breth0", both, "exgwphysnet:other"] {
            assert_eq!(own(before, Some("breth1")), both, "{before}");
        }
        assert_eq!(own(both, None), "physnet:breth0");
        let beside = format!("dc:br-dc,{both}");
        assert_eq!(own(&beside, Some("breth1")), beside);
        assert_eq!(own(&beside, None), "physnet:breth0,dc:br-dc");
        let kind = |_: &str| Some(Bridge { datapath_type: "netdev".to_owned(), ..Bridge::default() });
        let found = usable(&row(&format!("{both},z:breth1")), "breth0", "netdev", kind);
        assert!(found.names.is_empty() && found.warnings[0].contains("second uplink"), "{found:?}");
    }

    #[test]
    fn a_physical_network_needs_a_bridge_of_its_own_on_the_same_datapath() {
        let kind = |kind: &str| Some(Bridge { datapath_type: kind.to_owned(), ..Bridge::default() });
        let bridge = |name: &str| match name {
            "br-a" | "breth0" | "br-int" => kind("netdev"),
            "br-kernel" => kind(""),
            _ => None,
        };
        let row = row(
            "physnet:breth0,z:br-a,b:br-a,z:br-a,own:breth0,int:br-int,gone:br-x,kernel:br-kernel,nonsense",
        );
        let found = usable(&row, "breth0", "netdev", bridge);
        assert_eq!(found.names, ["b", "z"]);
        assert_eq!(found.bridges, ["br-a"]);
        let told = |name: &str, why: &str| {
            found.warnings.iter().any(|text| text.contains(name) && text.contains(why))
        };
        for (name, why) in [
            ("network own leads to bridge breth0", "the agent's"),
            ("network int ", "OVN's own"),
            ("network gone leads to bridge br-x", "does not exist"),
            ("network kernel ", "has datapath type system; netdev is needed"),
        ] {
            assert!(told(name, why), "{name}: {:?}", found.warnings);
        }
        assert_eq!(found.warnings.len(), 4);
        assert_eq!(usable(&row, "breth0", "system", bridge).names, ["kernel"]);
    }

    #[test]
    fn there_is_an_end_to_their_number() {
        let many: Vec<String> = (0..100).map(|number| format!("n{number:02}:br-a")).collect();
        let found = usable(&row(&many.join(",")), "breth0", "system", |_| Some(Bridge::default()));
        assert_eq!((found.names.len(), found.warnings.len()), (MAX_PHYSICAL_NETWORKS, 1));
    }
}
