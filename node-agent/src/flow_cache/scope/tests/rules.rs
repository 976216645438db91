//! Tests of the classifier's rules, each by itself.

use api::MacAddr;

use super::wire::*;
use super::*;

const MAC: [u8; 6] = [0x0a, 0, 0, 0, 0, 5];
const IP: [u8; 4] = [10, 0, 0, 5];
const VIRTUAL: [u8; 4] = [10, 96, 0, 1];

#[test]
fn what_no_entry_is_concerns_nothing() {
    let mut table = Table::new();
    for fields in [
        vec![eth_type(0x0806), metadata(SWITCH)],
        vec![eth_type(0x0800), proto(1), dst(IP)],
        vec![dl_dst([0xff; 6])],
        vec![dst([224, 0, 0, 1])],
        vec![dst6("ff02::1")],
        vec![field(1, 26, &[3])],
    ] {
        assert_eq!(table.matching(&fields), nothing(), "{fields:?}");
    }
}

#[test]
fn a_tag_is_that_of_a_physical_network_whose_entries_any_change_concerns() {
    let impact = Table::new().matching(&[masked(0x8000, 6, &[0x10, 0], &[0x10, 0])]);
    assert!(!impact.is_nothing() && impact.everything.is_some(), "{impact:?}");
}

#[test]
fn an_address_is_its_entries_and_of_two_the_one_that_is_no_load_balancers() {
    let mut table = Table::new();
    assert_eq!(table.matching(&[dst(IP), metadata(SWITCH)]), scopes([address("10.0.0.5")]));
    assert_eq!(table.matching(&[src(IP)]), scopes([address("10.0.0.5")]));
    assert_eq!(table.matching(&[dst6("fd00::5")]), scopes([address("fd00::5")]));
    assert_eq!(table.matching(&[src(IP), dst(IP)]), scopes([address("10.0.0.5")]), "hairpin");
    let balancer = Flow::new(14, &[metadata(SWITCH), dst(VIRTUAL), tcp_dst(80)], &[group(3)]);
    assert_eq!(table.add(&balancer), scopes([address("10.96.0.1")]));
    let both = [src(IP), dst(VIRTUAL), metadata(SWITCH)];
    assert_eq!(table.matching(&both), scopes([address("10.0.0.5")]));
    assert_eq!(table.matching(&[src(VIRTUAL), dst(IP)]), scopes([address("10.0.0.5")]));
}

#[test]
fn a_prefix_is_everything() {
    let mut table = Table::new();
    let route = [dst_prefix([10, 1, 0, 0], [255, 255, 0, 0]), metadata(ROUTER)];
    assert_eq!(everything(&table.matching(&route)), Some(Why::Prefix));
    assert_eq!(table.matching(&[dst_prefix(IP, [255; 4])]), scopes([address("10.0.0.5")]));
}

#[test]
fn a_local_port_is_its_entries_on_either_side() {
    let mut table = Table::new();
    let expected = scopes([Scope::Port(12), key(SWITCH, 2)]);
    assert_eq!(table.matching(&[reg(14, 2), metadata(SWITCH)]), expected);
    assert_eq!(table.matching(&[reg(15, 2), metadata(SWITCH), tcp_dst(80)]), expected);
    assert_eq!(table.matching(&[in_port(12)]), scopes([Scope::Port(12)]));
    assert_eq!(everything(&table.matching(&[in_port(13)])), Some(Why::UnknownPort));
    assert_eq!(everything(&table.matching(&[reg(14, 2)])), Some(Why::Bridge), "a number of any datapath");
}

#[test]
fn a_port_that_went_stays_known_for_a_while() {
    let mut table = Table::new();
    let flows = base();
    let impact = table.updates(&[flows[1].removed(), flows[3].removed()]);
    assert_eq!(impact.everything, None);
    let fields = [reg(15, 2), metadata(SWITCH)];
    assert_eq!(table.matching(&fields), scopes([Scope::Port(12), key(SWITCH, 2)]));
    table.wait(61);
    // The key may be another node's by now.
    assert_eq!(table.matching(&fields), scopes([key(SWITCH, 2)]));
}

#[test]
fn a_new_port_is_known_by_its_own_flow() {
    let mut table = Table::new();
    let origin = Flow::new(0, &[in_port(15)], &[set(&metadata(SWITCH)), set(&nxm_reg(14, 5))]);
    assert_eq!(table.add(&origin), scopes([Scope::Port(15)]));
    assert_eq!(table.matching(&[reg(14, 5), metadata(SWITCH)]), scopes([Scope::Port(15), key(SWITCH, 5)]));
}

#[test]
fn a_group_is_what_is_sent_to_it() {
    let mut table = Table::new();
    let fields = [reg(15, 0x8004), metadata(SWITCH)];
    let sends = Flow::new(36, &[metadata(SWITCH), dl_dst([0xff; 6])], &[set(&nxm_reg(15, 0x8004))]);
    table.add(&sends);
    assert_eq!(table.matching(&fields), scopes([key(SWITCH, 0x8004)]));
    let sends = Flow::new(36, &[metadata(SWITCH), dst(IP)], &[set(&nxm_reg(15, 0x8004))]);
    table.add(&sends);
    assert_eq!(table.matching(&fields), scopes([key(SWITCH, 0x8004), address("10.0.0.5")]));
    let sends = Flow::new(37, &[metadata(SWITCH), reg(15, 0)], &[set(&nxm_reg(15, 0x8004))]);
    table.add(&sends);
    assert_eq!(everything(&table.matching(&fields)), Some(Why::Datapath), "whatever was not found");
}

#[test]
fn a_next_hop_is_an_address_and_what_is_sent_to_it() {
    let mut table = Table::new();
    let hop = u32::from_be_bytes(IP);
    let fields = [reg(0, hop), reg(15, TO_SWITCH), metadata(ROUTER)];
    assert_eq!(table.matching(&fields), scopes([address("10.0.0.5")]));
    let of_one = Flow::new(25, &[metadata(ROUTER), src([10, 0, 0, 9])], &[set(&nxm_reg(0, hop))]);
    table.add(&of_one);
    assert_eq!(table.matching(&fields), scopes([address("10.0.0.5"), address("10.0.0.9")]));
    table.remove(&of_one);
    assert_eq!(table.matching(&fields).scopes.len(), 2, "entries that were sent there may be left");
    let route = [metadata(ROUTER), dst_prefix([10, 0, 0, 0], [255, 0, 0, 0])];
    table.add(&Flow::new(20, &route, &[dec_ttl(), set(&nxm_reg(0, hop))]));
    assert_eq!(everything(&table.matching(&fields)), Some(Why::Datapath));
    // In a switch these are flags; bits say nothing.
    assert_eq!(everything(&table.matching(&[reg(0, hop), metadata(SWITCH)])), Some(Why::Datapath));
    let bits = masked(0x8001, 0, &[10, 0, 0, 5, 0, 0, 0, 0], &[255, 255, 255, 0, 0, 0, 0, 0]);
    assert_eq!(everything(&table.matching(&[bits, metadata(ROUTER)])), Some(Why::Datapath));
}

#[test]
fn a_next_hop_of_ipv6_is_in_four_registers() {
    let mut table = Table::new();
    let fields = [xxreg(0, "fd00::5"), metadata(ROUTER), eth_type(0x86dd)];
    assert_eq!(table.matching(&fields), scopes([address("fd00::5")]));
    let begins = [reg(0, 0xfd00_0000), metadata(ROUTER)];
    assert_eq!(everything(&table.matching(&begins)), Some(Why::Datapath), "the beginning of many");
    let writer = Flow::new(25, &[metadata(ROUTER), dst6("fd00::9")], &[set(&xxreg(0, "fd00::5"))]);
    table.add(&writer);
    assert_eq!(table.matching(&fields), scopes([address("fd00::5"), address("fd00::9")]));
}

#[test]
fn an_original_destination_is_an_address_and_what_gets_it() {
    let mut table = Table::new();
    let fields = [reg(4, u32::from_be_bytes(VIRTUAL)), metadata(SWITCH), tcp_dst(8080)];
    assert_eq!(table.matching(&fields), scopes([address("10.96.0.1")]));
    // Of any datapath.
    assert_eq!(table.matching(&fields[..1]), scopes([address("10.96.0.1")]));
    table.add(&Flow::new(21, &[metadata(FAR), dst(IP)], &[set(&nxm_reg(4, u32::from_be_bytes(VIRTUAL)))]));
    assert_eq!(table.matching(&fields[..1]), scopes([address("10.96.0.1"), address("10.0.0.5")]));
    assert_eq!(table.matching(&fields), scopes([address("10.96.0.1")]));
    let v6 = [xxreg(1, "fd00:96::1"), metadata(SWITCH), eth_type(0x86dd)];
    assert_eq!(table.matching(&v6), scopes([address("fd00:96::1")]));
}

#[test]
fn a_mac_address_is_its_entries_unless_it_is_a_routers() {
    let mut table = Table::new();
    assert_eq!(table.matching(&[dl_dst(MAC), metadata(SWITCH)]), scopes([Scope::Mac(MacAddr(MAC))]));
    assert_eq!(table.matching(&[dl_src(MAC)]), scopes([Scope::Mac(MacAddr(MAC))]));
    assert_eq!(everything(&table.matching(&[dl_src(ROUTER_MAC), metadata(SWITCH)])), Some(Why::Datapath));
    assert_eq!(everything(&table.matching(&[dl_dst([0; 6]), metadata(ROUTER)])), Some(Why::Datapath));
    // The MAC address of a router's port that admits nothing here.
    let sends = [0x0a, 0, 0, 0, 0, 2];
    table.add(&Flow::new(20, &[metadata(ROUTER), dst(IP)], &[dec_ttl(), set(&dl_src(sends))]));
    assert_eq!(everything(&table.matching(&[dl_src(sends), metadata(SWITCH)])), Some(Why::Datapath));
}

#[test]
fn a_port_of_another_node_is_the_key_of_a_tunnel() {
    let mut table = Table::new();
    assert_eq!(table.matching(&[reg(15, 33), metadata(OTHER)]), scopes([key(OTHER, 33)]));
    assert_eq!(table.matching(&[reg(14, 33), metadata(SWITCH)]), scopes([key(SWITCH, 33)]));
    let patch_port = [reg(14, TO_ROUTER), metadata(SWITCH)];
    assert_eq!(everything(&table.matching(&patch_port)), Some(Why::Datapath));
    assert_eq!(everything(&table.matching(&[reg(15, 33), metadata(ROUTER)])), Some(Why::Datapath));
}

#[test]
fn a_datapath_is_the_network_of_a_tunnel_unless_it_is_near() {
    let mut table = Table::new();
    assert_eq!(table.matching(&[metadata(FAR)]), scopes([Scope::Datapath { vni: 9 }]));
    assert_eq!(table.matching(&[metadata(OTHER)]), scopes([Scope::Datapath { vni: 3 }]), "two steps away");
    for near in [SWITCH, ROUTER] {
        assert_eq!(everything(&table.matching(&[metadata(near)])), Some(Why::Datapath));
    }
    assert_eq!(everything(&table.matching(&[tcp_dst(80)])), Some(Why::Bridge));
    // Without its ports a switch stays near for a while.
    let flows = base();
    table.updates(&flows[..4].iter().map(Flow::removed).collect::<Vec<_>>());
    assert_eq!(everything(&table.matching(&[metadata(SWITCH)])), Some(Why::Datapath));
}

#[test]
fn a_clause_concerns_what_the_other_dimension_does() {
    let mut table = Table::new();
    let clause = |fields: &[Vec<u8>], number| Flow::new(51, fields, &[conjunction(7, number)]);
    let wide = clause(&[metadata(SWITCH), tcp_dst(80)], 1);
    assert_eq!(table.add(&wide), nothing(), "it takes two");
    let first = clause(&[metadata(SWITCH), src(IP)], 0);
    assert_eq!(table.add(&first), scopes([address("10.0.0.5")]));
    assert_eq!(table.remove(&wide), scopes([address("10.0.0.5")]));
    assert_eq!(table.add(&wide), scopes([address("10.0.0.5")]));
    let acts = Flow::new(51, &[conj_id(7), metadata(SWITCH)], &[]);
    assert_eq!(table.add(&acts), scopes([address("10.0.0.5")]));
    // What went in the same burst counts.
    let impact = table.updates(&[first.removed(), acts.removed()]);
    assert_eq!(impact.scopes, scopes([address("10.0.0.5")]).scopes);
    let other = Flow::new(51, &[conj_id(8), metadata(SWITCH)], &[]);
    assert_eq!(table.add(&other), nothing(), "no clause");
}

#[test]
fn what_was_no_clause_or_is_none_any_more_acts_by_itself() {
    let mut table = Table::new();
    let wide = [metadata(SWITCH), tcp_dst(80)];
    let (clause, plain) = (Flow::new(51, &wide, &[conjunction(7, 1)]), Flow::new(51, &wide, &[]));
    table.add(&Flow::new(51, &[metadata(SWITCH), src(IP)], &[conjunction(7, 0)]));
    assert_eq!(table.add(&clause), scopes([address("10.0.0.5")]));
    assert_eq!(everything(&table.add(&plain)), Some(Why::Datapath));
    assert_eq!(everything(&table.add(&clause)), Some(Why::Datapath));
    assert_eq!(table.remove(&clause), scopes([address("10.0.0.5")]));
    assert_eq!(table.add(&clause), scopes([address("10.0.0.5")]), "there was none");
}

#[test]
fn a_clause_whose_conjunction_changes_concerns_both() {
    let mut table = Table::new();
    let clause = |id, fields: &[Vec<u8>], number| Flow::new(51, fields, &[conjunction(id, number)]);
    table.add(&clause(7, &[metadata(SWITCH), src(IP)], 0));
    table.add(&clause(8, &[metadata(SWITCH), src(VIRTUAL)], 0));
    let wide = [metadata(SWITCH), tcp_dst(80)];
    table.add(&clause(7, &wide, 1));
    let impact = table.add(&clause(8, &wide, 1));
    assert_eq!(impact, scopes([address("10.0.0.5"), address("10.96.0.1")]));
    // Of a dimension with something wide the other one is taken; of two, neither.
    table.add(&clause(8, &[metadata(SWITCH), tcp_dst(81)], 0));
    let acts = Flow::new(51, &[conj_id(8), metadata(SWITCH)], &[]);
    assert_eq!(everything(&table.add(&acts)), Some(Why::Datapath));
}

#[test]
fn what_is_too_much_or_unknown_is_everything() {
    let mut table = Table::new();
    let flow = Flow::new(50, &[dst(IP)], &[]);
    assert_eq!(table.updates(&vec![flow.present(); 1_000]).everything, None);
    assert_eq!(table.updates(&vec![flow.present(); 1_001]).everything, Some(Why::ManyUpdates));
    let many: Vec<_> = (0..=512_u16)
        .map(|n| Flow::new(50, &[dst([10, 9, n.to_be_bytes()[0], n.to_be_bytes()[1]])], &[]))
        .collect();
    let updates: Vec<_> = many.iter().map(Flow::present).collect();
    assert_eq!(table.updates(&updates[..512]).everything, None);
    assert_eq!(table.updates(&updates).everything, Some(Why::ManyScopes));
    assert_eq!(table.updates(&[Update::Paused(true)]).everything, Some(Why::Paused));
    assert_eq!(table.updates(&[Update::Paused(false)]).everything, Some(Why::Paused));
    assert!(table.updates(&[]).is_nothing());
    assert_eq!(table.updates(&[Update::Unknown]).everything, Some(Why::Unreadable));
    assert_eq!(table.add(&flow).everything, Some(Why::Unreadable), "the ledger may lack something");
}
