//! Flow table of the second uplink's bridge: that of the gateway bridge without services and without the paths between node and OVN, which
//! are the gateway bridge's. Pure.

use std::net::IpAddr;

use api::addr::Family;

use super::{BASE_COOKIE, FlowSet, Inputs, Words};

/// Inputs of the flow table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Second {
    /// Inputs as for the gateway bridge, with addresses, MAC and ports of this one.
    pub inputs: Inputs,
    /// The node's addresses on the gateway bridge, which OVN gives as source to what pods send.
    pub node: Vec<IpAddr>,
}

/// Flow table of the bridge. Without OVN's patch port it is that of a learning switch.
pub fn compute(second: &Second) -> FlowSet {
    let inputs = &second.inputs;
    let mut set = super::switching();
    let Some(patch) = &inputs.patch else { return set };
    super::by_mac(&mut set, inputs, patch);
    super::forged(&mut set, inputs, patch);
    for family in &inputs.families {
        let of = Family::of_net(&family.node);
        let words = Words::of(of);
        super::outside(&mut set, inputs, family, &words, patch);
        super::replies(&mut set, inputs, &words, patch);
        for node in second.node.iter().filter(|node| Family::of(**node) == of) {
            translated(&mut set, inputs, *node, family.node.addr(), patch);
        }
    }
    if inputs.families.iter().any(|family| family.node.addr().is_ipv6()) {
        super::discovery(&mut set);
    }
    set
}

/// What has the node's address on the gateway bridge as source gets the one on this bridge: otherwise the answers would come by the
/// gateway bridge, or not at all.
fn translated(set: &mut FlowSet, inputs: &Inputs, node: IpAddr, own: IpAddr, patch: &str) {
    let Words { ip, source, .. } = Words::of(Family::of(node));
    let Inputs { uplink, mac, .. } = inputs;
    set.add(
        BASE_COOKIE,
        0,
        104,
        format!("{ip},in_port={patch},dl_src={mac},{source}={node}"),
        format!("ct(commit,zone=64000,nat(src={own}),exec(load:0x1->NXM_NX_CT_MARK[])),output:{uplink}"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::flows::tests::inputs;

    fn second() -> Second {
        let first = inputs();
        let node = first.families.iter().map(|family| family.node.addr()).collect();
        let mut families = first.families.clone();
        for family in &mut families {
            family.node =
                if family.node.addr().is_ipv4() { "172.19.0.2/16" } else { "fd00:19::2/64" }.parse().unwrap();
        }
        Second { inputs: Inputs { families, ..first }, node }
    }

    #[test]
    fn pods_leave_with_the_address_of_this_bridge_and_services_are_not_here() {
        let text = compute(&second()).to_string();
        assert!(
            text.contains(",nw_src=172.18.0.2,actions=ct(commit,zone=64000,nat(src=172.19.0.2)"),
            "{text}"
        );
        for not_here in ["table=2", "table=3", "table=4", "table=5", "zone=64001", "zone=64002"] {
            assert!(!text.contains(not_here), "{not_here}: {text}");
        }
        // An address of a service that OVN does not know must not leave.
        assert!(text.contains("priority=115"), "{text}");
    }

    #[test]
    fn without_ovns_port_the_bridge_is_a_switch() {
        let mut second = second();
        second.inputs.patch = None;
        assert_eq!(compute(&second), super::super::switching());
    }
}
