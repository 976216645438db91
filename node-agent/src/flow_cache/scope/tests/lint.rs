//! Tests of the lint: flows that it refuses.

use super::wire::*;
use super::*;

const IP: [u8; 4] = [10, 0, 0, 5];

/// Whether a flow is refused, and everything is accepted again a while after it went.
fn refused(flow: &Flow) -> Option<String> {
    let mut table = Table::new();
    let impact = table.add(flow);
    let text = table.classifier.lint().map(str::to_owned)?;
    assert_eq!(impact.everything, Some(impact.everything.unwrap_or(Why::Lint)));
    let other = Flow::new(50, &[dst(IP)], &[]);
    assert_eq!(table.add(&other).everything, Some(Why::Lint));
    table.remove(flow);
    table.wait(61);
    table.add(&other);
    assert_eq!(table.classifier.lint(), None);
    Some(text)
}

#[test]
fn fields_are_written_by_whom_the_rules_assume() {
    let tcp = || vec![metadata(SWITCH), eth_type(0x0800), proto(6)];
    for (fields, action) in [
        (tcp(), set(&dst(IP))),
        (tcp(), set(&tcp_dst(80))),
        (tcp(), set(&field(1, 29, &[64]))),
        (tcp(), set(&metadata(4))),
        (tcp(), set(&nxm_reg(14, 4))),
        (tcp(), copy((1, 13), (1, 15))),
        (tcp(), set(&dl_dst([2, 0, 0, 0, 0, 1]))),
        (tcp(), copy((0x8000, 11), (1, 4))),
        (vec![metadata(ROUTER)], copy((0x8000, 11), (1, 0))),
        (vec![metadata(ROUTER)], set(&masked(1, 0, &[0, 0, 0, 1], &[0, 0, 0, 1]))),
    ] {
        let flow = Flow::new(50, &fields, std::slice::from_ref(&action));
        assert!(refused(&flow).is_some(), "{fields:?} {action:?}");
        let icmp = [fields, vec![proto(1)]].concat();
        assert_eq!(refused(&Flow::new(50, &icmp, &[action])), None);
    }
    // Flags of a switch, and packets that go back to their port.
    let flags = set(&masked(1, 0, &[0, 0, 0, 1], &[0, 0, 0, 1]));
    assert_eq!(refused(&Flow::new(50, &[metadata(SWITCH)], &[flags])), None);
    let returns = [copy((0x8000, 3), (0x8000, 4)), copy((1, 14), (1, 15))];
    assert_eq!(refused(&Flow::new(50, &[metadata(SWITCH)], &returns)), None);
}

#[test]
fn what_leads_to_a_datapath_clears_its_registers() {
    let actions = clone(&[set(&metadata(ROUTER)), set(&nxm_reg(14, 30))]);
    let text = refused(&Flow::new(65, &[reg(15, 31), metadata(OTHER)], &[actions])).unwrap();
    assert!(text.contains("keeps registers"), "{text}");
}

#[test]
fn a_router_lowers_the_ttl_once_and_before_it_chooses() {
    let early = Flow::new(19, &[metadata(ROUTER)], &[set(&nxm_reg(15, 4))]);
    assert!(refused(&early).unwrap().contains("without lowering"));
    let later = Flow::new(21, &[metadata(ROUTER)], &[set(&nxm_reg(15, 4))]);
    assert_eq!(refused(&later), None);
    let twice = Flow::new(21, &[metadata(ROUTER)], &[dec_ttl()]);
    assert!(refused(&twice).unwrap().contains("several tables"));
}

/// OVN has a gateway router learn a client of a service with affinity: the endpoint's port goes to the lower half of register 2.
#[test]
fn a_router_remembers_clients_before_it_routes() {
    let port = set(&masked(1, 2, &[0, 0, 0x1f, 0x90], &[0, 0, 0xff, 0xff]));
    let writes =
        |table| Flow::new(table, &[metadata(ROUTER), src(IP), proto(17)], std::slice::from_ref(&port));
    let learned = writes(78);
    assert!(refused(&writes(200)).is_some(), "who calls such a table is not known");
    let asks =
        |table| Flow::new(table, &[metadata(ROUTER), dst(IP), proto(17)], &[resubmit(78), resubmit(21)]);
    let mut table = Table::new();
    table.add(&asks(16));
    let impact = table.add(&learned);
    assert_eq!((table.classifier.lint(), impact.everything), (None, None));
    assert_eq!(impact.scopes, [Scope::Address(IP.into())].into());
    // After routing the next hop would be another.
    table.add(&asks(25));
    assert!(table.classifier.lint().unwrap().contains("next hop"));
    table.remove(&asks(25));
    table.wait(61);
    table.add(&asks(16));
    assert_eq!(table.classifier.lint(), None);
}

#[test]
fn addresses_are_translated_by_switches_and_once() {
    let near = Flow::new(14, &[metadata(ROUTER), dst(IP)], &[group(1)]);
    assert!(refused(&near).unwrap().contains("router next to"));
    let mut table = Table::new();
    table.add(&Flow::new(14, &[metadata(SWITCH), dst(IP)], &[group(1)]));
    assert_eq!(table.classifier.lint(), None);
    table.add(&Flow::new(16, &[metadata(SWITCH), dst(IP)], &[group(1)]));
    assert!(table.classifier.lint().unwrap().contains("several tables"));
}

#[test]
fn switches_are_joined_by_routers_and_may_have_a_provider() {
    let joined = Flow::new(65, &[reg(15, 31), metadata(SWITCH)], &[patch(OTHER, 4)]);
    assert!(refused(&joined).unwrap().contains("without a router"));
    let vlan = masked(0x8000, 6, &[0, 0], &[0x10, 0]);
    let provider = Flow::new(0, &[in_port(40), vlan], &[set(&metadata(SWITCH)), set(&nxm_reg(14, 9))]);
    assert_eq!(refused(&provider), None);
}
