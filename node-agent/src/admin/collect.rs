//! Converts data of the flow cache to types of [`api::admin`], adding names of pods and nodes. Pure.

use api::admin as wire;
use std::collections::BTreeSet;

use super::naming::Naming;
use super::{flow_spec, services};
use crate::flow_cache::{Action, EndpointAmounts, Flow, InterfaceAmounts, Pressure, Tunnel};
use api::admin::{ByPath, Counters, EndpointCounters, InterfaceCounters, MapUse, TunnelCounters, TunnelEnd};

/// Ids of endpoints that diverged in `epoch`; their entries are not used.
pub fn diverged(endpoints: &[EndpointAmounts], epoch: u32) -> BTreeSet<String> {
    let now = endpoints.iter().filter(|e| e.diverged == Some(epoch));
    now.map(|e| e.endpoint.clone()).collect()
}

/// Converts at most `limit` flows, of endpoint `only` if given, keeping their order. `diverged`: the result of
/// [`diverged`].
pub fn flows(
    list: Vec<Flow>,
    diverged: &BTreeSet<String>,
    only: Option<&str>,
    limit: usize,
    naming: &Naming,
) -> Vec<wire::Flow> {
    let wanted = list.into_iter().filter(|flow| only.is_none_or(|id| flow.endpoint == id));
    wanted.filter_map(|flow| show(flow, diverged, naming)).take(limit).collect()
}

fn show(flow: Flow, diverged: &BTreeSet<String>, naming: &Naming) -> Option<wire::Flow> {
    let off = diverged.contains(&flow.endpoint);
    Some(wire::Flow {
        flow: flow_spec::spec(&flow)?,
        pod: naming.pod(&flow.endpoint),
        translated: flow
            .translated
            .map(|to| wire::Translated { source: to.source, destination: to.destination }),
        service: services::name(&flow, naming),
        action: action(flow.action, naming),
        endpoint: flow.endpoint,
        ttl_step: flow.ttl_step,
        epoch: flow.epoch,
        waiting: !flow.valid && !flow.closing && !flow.slow && flow.current,
        slow: flow.slow && flow.current,
        sensitive: flow.sensitive,
        valid: flow.valid && !off,
        diverged: flow.valid && off,
        probing: flow.probing,
        age_ms: flow.age_ms,
        refresh_in_ms: flow.refresh_in_ms,
        packets: flow.packets,
        bytes: flow.bytes,
    })
}

fn action(action: Action, naming: &Naming) -> wire::Action {
    let end = |remote: std::net::Ipv4Addr, vni, option| TunnelEnd {
        remote: remote.into(),
        node: naming.node(remote.into()),
        vni,
        option,
    };
    match action {
        Action::Tunnel { remote, vni, option } => wire::Action::Tunnel(end(remote, vni, option)),
        Action::Deliver { remote, vni, option } => wire::Action::Deliver(end(remote, vni, option)),
        Action::Local { to } => wire::Action::Local { pod: naming.pod(&to), to },
    }
}

/// Converts counters and adds names; tunnels sorted by node and VNI, endpoints by pod. `at_ms`: time of the reading.
pub fn counters(
    at_ms: u64,
    tunnels: Vec<Tunnel>,
    endpoints: Vec<EndpointAmounts>,
    interfaces: Vec<InterfaceAmounts>,
    naming: &Naming,
) -> Counters {
    let mut tunnels: Vec<TunnelCounters> = tunnels
        .into_iter()
        .map(|t| TunnelCounters {
            remote: t.remote,
            node: naming.node(t.remote),
            vni: t.vni,
            received: ByPath::new(t.fast_in, t.slow_in),
            sent: ByPath::new(t.fast_out, t.slow_out),
        })
        .collect();
    tunnels.sort_by(|a, b| (&a.node, a.remote, a.vni).cmp(&(&b.node, b.remote, b.vni)));
    let mut endpoints: Vec<EndpointCounters> = endpoints
        .into_iter()
        .map(|e| {
            let named = naming.pods.get(&e.endpoint);
            EndpointCounters {
                pod: named.map(|named| named.pod.clone()),
                network: named.and_then(|named| named.network.as_ref()).map(ToString::to_string),
                received: ByPath::new(e.fast_to, e.slow_to),
                sent: ByPath::new(e.fast_from, e.slow_from),
                id: e.endpoint,
            }
        })
        .collect();
    endpoints.sort_by(|a, b| (&a.pod, &a.id).cmp(&(&b.pod, &b.id)));
    let interfaces = interfaces
        .into_iter()
        .map(|i| InterfaceCounters {
            interface: i.interface.to_owned(),
            received: ByPath::new(i.fast_in, i.slow_in),
            sent: ByPath::new(i.fast_out, i.slow_out),
        })
        .collect();
    Counters { at_ms, tunnels, endpoints, interfaces }
}

/// Converts fill levels of maps.
pub fn maps(list: &[Pressure]) -> Vec<MapUse> {
    let show = |p: &Pressure| MapUse { map: p.map.to_owned(), entries: p.entries, capacity: p.capacity };
    list.iter().map(show).collect()
}

#[cfg(test)]
mod tests {
    use super::super::naming::tests::naming;
    use super::*;
    use crate::flow_cache::fake;
    use api::admin::Amount;

    #[test]
    fn flows_get_the_names_of_pods_and_nodes() {
        let list = flows(fake::flows(), &BTreeSet::new(), None, 10, &naming());
        let shown: Vec<_> = list
            .iter()
            .map(|f| {
                let to = match &f.action {
                    wire::Action::Tunnel(end) => format!("tunnel {:?}", end.node),
                    wire::Action::Deliver(end) => format!("deliver {:?}", end.node),
                    wire::Action::Local { pod, .. } => format!("local {pod:?}"),
                };
                format!("{} {:?} {to}", f.flow, f.pod)
            })
            .collect();
        assert_eq!(
            shown,
            [
                r#"tcp 10.244.0.3:40000 10.244.1.4:80 Some("default/web-1") tunnel Some("n2")"#,
                r#"tcp 10.244.1.4:80 10.244.0.3:40000 Some("default/web-1") deliver Some("n2")"#,
                r#"udp 10.244.0.4:5000 10.244.0.3:53 Some("default/web-2") local Some("default/web-1")"#,
            ]
        );
    }

    #[test]
    fn an_entry_that_is_current_and_not_used_waits_and_one_that_has_ended_does_not() {
        let mut list = fake::flows();
        (list[1].valid, list[2].valid, list[2].current) = (false, false, false);
        let list = flows(list, &BTreeSet::new(), None, 10, &naming());
        assert_eq!(list.iter().map(|f| f.waiting).collect::<Vec<_>>(), [false, true, false]);
        let mut list = fake::flows();
        (list[1].valid, list[1].slow) = (false, true);
        let list = flows(list, &BTreeSet::new(), None, 10, &naming());
        assert_eq!((list[1].waiting, list[1].slow), (false, true), "its service is kept off");
    }

    #[test]
    fn entries_of_a_container_that_diverged_in_this_epoch_are_not_valid() {
        let amounts = |id: &str, diverged| EndpointAmounts {
            endpoint: id.to_owned(),
            fast_from: Amount::default(),
            slow_from: Amount::default(),
            fast_to: Amount::default(),
            slow_to: Amount::default(),
            diverged,
        };
        let off = diverged(&[amounts("c0ffee01", Some(7)), amounts("c0ffee02", Some(6))], 7);
        let list = flows(fake::flows(), &off, None, 10, &naming());
        let states: Vec<_> = list.iter().map(|f| (f.valid, f.diverged, f.waiting)).collect();
        assert_eq!(states, [(false, true, false), (false, true, false), (true, false, false)]);
    }

    #[test]
    fn the_limit_counts_flows_of_the_endpoint_that_was_asked_for() {
        let of = |only, limit| flows(fake::flows(), &BTreeSet::new(), only, limit, &naming()).len();
        assert_eq!((of(None, 2), of(Some("c0ffee02"), 2), of(Some("c0ffee01"), 2)), (2, 1, 2));
    }

    #[test]
    fn counters_are_sorted_by_name_and_have_their_ratio() {
        let amount = |packets| Amount { packets, bytes: packets * 100 };
        let tunnel = |remote: &str, vni| Tunnel {
            remote: remote.parse().unwrap(),
            vni,
            fast_in: amount(3),
            slow_in: amount(1),
            fast_out: amount(0),
            slow_out: amount(0),
        };
        let list = vec![tunnel("172.18.0.3", 7), tunnel("172.18.0.3", 5), tunnel("172.18.0.9", 1)];
        let counters = counters(1, list, Vec::new(), Vec::new(), &naming());
        let order: Vec<_> = counters.tunnels.iter().map(|t| (t.node.as_deref(), t.vni)).collect();
        assert_eq!(order, [(None, 1), (Some("n2"), 5), (Some("n2"), 7)]);
        let first = &counters.tunnels[0];
        assert_eq!((first.received.hit_ratio, first.sent.hit_ratio), (Some(0.75), None));
    }
}
