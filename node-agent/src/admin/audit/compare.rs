//! Converts the verdicts of cache and OVS to one form and compares them.

use std::collections::BTreeMap;

use super::actions::{Output, Packet};
use super::question::TTL;
use super::trace::Traced;
use crate::admin::naming::Naming;
use crate::flow_cache::{Action, Flow};
use api::admin::{Outcome, Verdict};

/// Parses names of datapath ports by number from `dpif/show` (ovs-vswitchd(8)): lines `NAME OPENFLOW/DATAPATH: (…)`.
pub(super) fn ports(text: &str) -> BTreeMap<String, String> {
    let mut ports = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(numbers)) = (words.next(), words.next())
            && let Some((_, number)) = numbers.trim_end_matches(':').split_once('/')
        {
            ports.insert(number.to_owned(), name.to_owned());
        }
    }
    ports
}

/// Verdict in the cache.
pub(super) fn remembered(flow: &Flow, naming: &Naming) -> Outcome {
    let pod = |container: &str| naming.pod(container).unwrap_or_else(|| container.to_owned());
    let outcome = Outcome {
        ttl_step: Some(flow.ttl_step),
        destination_mac: Some(flow.delivered_destination_mac.to_string()),
        source_mac: Some(flow.delivered_source_mac.to_string()),
        ..Outcome::default()
    };
    match &flow.action {
        Action::Tunnel { remote, vni, option } => Outcome {
            kind: "tunnel".to_owned(),
            to: Some(remote.to_string()),
            vni: Some(*vni),
            option: Some(*option),
            ..outcome
        },
        Action::Local { to } => Outcome { kind: "local".to_owned(), to: Some(pod(to)), ..outcome },
        Action::Deliver { .. } => {
            Outcome { kind: "deliver".to_owned(), to: Some(pod(&flow.endpoint)), ..outcome }
        }
    }
}

/// Verdict of OVS. `before`: source and destination MAC at the ingress. `from_tunnel`: the ingress is a tunnel.
pub(super) fn answered(
    traced: &Traced,
    ports: &BTreeMap<String, String>,
    naming: &Naming,
    before: (String, String),
    from_tunnel: bool,
) -> Outcome {
    match traced.outputs.as_slice() {
        [] => Outcome { kind: "drop".to_owned(), ..Outcome::default() },
        [one] => output(one, ports, naming, before, from_tunnel),
        many => {
            let to: Vec<_> = many.iter().map(|output| name(&output.port, ports, naming)).collect();
            Outcome { kind: "other".to_owned(), to: Some(to.join(", ")), ..Outcome::default() }
        }
    }
}

fn output(
    output: &Output,
    ports: &BTreeMap<String, String>,
    naming: &Naming,
    before: (String, String),
    from_tunnel: bool,
) -> Outcome {
    let Packet { source_mac, destination_mac, ttl, tunnel } = output.packet.clone();
    let common = Outcome {
        source_mac: Some(source_mac.unwrap_or(before.0)),
        destination_mac: Some(destination_mac.unwrap_or(before.1)),
        ttl_step: Some(TTL.wrapping_sub(ttl.unwrap_or(TTL))),
        ..Outcome::default()
    };
    match tunnel {
        Some(tunnel) => Outcome {
            kind: "tunnel".to_owned(),
            to: tunnel.remote.map(|ip| ip.to_string()),
            vni: tunnel.vni,
            option: tunnel.option,
            ..common
        },
        None => Outcome {
            kind: if from_tunnel { "deliver" } else { "local" }.to_owned(),
            to: Some(name(&output.port, ports, naming)),
            ..common
        },
    }
}

/// Name of the pod at a datapath port, or the name of the port.
fn name(port: &str, ports: &BTreeMap<String, String>, naming: &Naming) -> String {
    let port = ports.get(port).map_or(port, String::as_str);
    let pod = naming.pods.values().find(|named| named.port == port);
    pod.map_or_else(|| format!("port {port}"), |named| named.pod.clone())
}

/// Compares two verdicts and describes each difference with both values. Fields unknown to one side are not compared, except kind
/// and target.
pub(super) fn compare(remembered: &Outcome, ovs: &Outcome, remarks: &[String]) -> (Verdict, Vec<String>) {
    let mut why = Vec::new();
    if remembered.kind != ovs.kind {
        why.push(format!("the cache would {}, OVS would {}", verb(remembered), verb(ovs)));
        return (Verdict::Different, why);
    }
    let number = |n: Option<u32>| n.map(|n| format!("{n:#x}"));
    let must = [
        ("target", remembered.to.clone(), ovs.to.clone()),
        ("VNI", number(remembered.vni), number(ovs.vni)),
        ("option", number(remembered.option), number(ovs.option)),
    ];
    for (what, ours, theirs) in must {
        if let Some(ours) = ours
            && Some(&ours) != theirs.as_ref()
        {
            let theirs = theirs.as_deref().unwrap_or("none");
            why.push(format!("{what}: the cache has {ours}, OVS {theirs}"));
        }
    }
    let may = [
        ("destination MAC", remembered.destination_mac.clone(), ovs.destination_mac.clone()),
        ("source MAC", remembered.source_mac.clone(), ovs.source_mac.clone()),
        ("TTL", remembered.ttl_step.map(|t| format!("-{t}")), ovs.ttl_step.map(|t| format!("-{t}"))),
    ];
    for (what, ours, theirs) in may {
        if let (Some(ours), Some(theirs)) = (ours, theirs)
            && ours != theirs
        {
            why.push(format!("{what}: the cache has {ours}, OVS {theirs}"));
        }
    }
    if !why.is_empty() {
        return (Verdict::Different, why);
    }
    if !remarks.is_empty() {
        why.extend(remarks.iter().map(|remark| format!("action of OVS that is not modelled: {remark}")));
        return (Verdict::Undecided, why);
    }
    (Verdict::Same, why)
}

fn verb(outcome: &Outcome) -> String {
    let to = outcome.to.as_deref().unwrap_or("nowhere");
    match outcome.kind.as_str() {
        "drop" => "drop it".to_owned(),
        "tunnel" => format!("send it through the tunnel to {to}"),
        "local" | "deliver" => format!("deliver it to {to}"),
        _ => format!("send it to {to}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::naming::tests::naming;
    use crate::flow_cache::fake;

    fn tunnel() -> Outcome {
        remembered(&fake::flows()[0], &naming())
    }

    /// The outcome of OVS when it agrees with the cache.
    fn same() -> Outcome {
        tunnel()
    }

    #[test]
    fn the_same_answer_is_the_same_and_a_remark_keeps_it_from_being_called_so() {
        assert_eq!(compare(&tunnel(), &same(), &[]), (Verdict::Same, Vec::new()));
        let (verdict, why) = compare(&tunnel(), &same(), &["userspace(pid=0)".to_owned()]);
        assert_eq!(verdict, Verdict::Undecided);
        assert!(why[0].contains("userspace(pid=0)"), "{why:?}");
    }

    #[test]
    fn each_part_that_differs_is_told_with_both_values() {
        type Change = fn(&mut Outcome);
        let changes: [(Change, &str); 7] = [
            (
                |o| o.destination_mac = Some("0a:58:0a:f4:01:05".to_owned()),
                "destination MAC: the cache has 0a:58:0a:f4:01:04, OVS 0a:58:0a:f4:01:05",
            ),
            (|o| o.to = Some("172.18.0.4".to_owned()), "target: the cache has 172.18.0.3, OVS 172.18.0.4"),
            (|o| o.vni = Some(6), "VNI: the cache has 0x5, OVS 0x6"),
            (|o| o.option = None, "option: the cache has 0x30002, OVS none"),
            (|o| o.ttl_step = Some(0), "TTL: the cache has -1, OVS -0"),
            (
                |o| *o = Outcome { kind: "drop".to_owned(), ..Outcome::default() },
                "to 172.18.0.3, OVS would drop it",
            ),
            (
                |o| (o.kind, o.to) = ("local".to_owned(), Some("port breth0".to_owned())),
                "OVS would deliver it to port breth0",
            ),
        ];
        for (change, part) in changes {
            let mut ovs = same();
            change(&mut ovs);
            let (verdict, why) = compare(&tunnel(), &ovs, &[]);
            assert!(verdict == Verdict::Different && why.join("; ").contains(part), "{part}: {why:?}");
        }
    }

    #[test]
    fn delivery_compares_pod_and_macs() {
        let mut flow = fake::flows().remove(1);
        (flow.delivered_destination_mac, flow.delivered_source_mac) = (flow.destination_mac, flow.source_mac);
        let ours = remembered(&flow, &naming());
        let output = Output { port: "7".to_owned(), packet: Packet::default() };
        let traced = Traced {
            passes: Vec::new(),
            outputs: vec![output],
            remarks: Vec::new(),
            doubts: Vec::new(),
            zones: Vec::new(),
        };
        let ports = ports(
            "netdev@ovs-netdev: hit:1 missed:2\n  br-int:\n    br-int 65534/1: (tap)\n    soc0ffee01 5/7: (system)\n    patch 3/none: (patch)\n",
        );
        let before = (flow.source_mac.to_string(), flow.destination_mac.to_string());
        let theirs = answered(&traced, &ports, &naming(), before, true);
        assert_eq!(theirs.to.as_deref(), Some("default/web-1"));
        // The flow of the fake lowers the TTL, which delivery does not.
        let (verdict, why) = compare(&ours, &theirs, &[]);
        assert_eq!((verdict, why.len()), (Verdict::Different, 1), "{why:?}");
        let ours = Outcome { ttl_step: Some(0), ..ours };
        assert_eq!(compare(&ours, &theirs, &[]).0, Verdict::Same);
        let before = ("02:00:00:00:00:01".to_owned(), flow.destination_mac.to_string());
        let theirs = answered(&traced, &ports, &naming(), before, true);
        assert!(compare(&ours, &theirs, &[]).1[0].starts_with("source MAC"));
    }

    #[test]
    fn no_output_is_a_drop_and_several_are_neither() {
        let traced = |n: usize| Traced {
            passes: Vec::new(),
            outputs: vec![Output { port: "9".to_owned(), packet: Packet::default() }; n],
            remarks: Vec::new(),
            doubts: Vec::new(),
            zones: Vec::new(),
        };
        let kind = |n| answered(&traced(n), &BTreeMap::new(), &naming(), Default::default(), false).kind;
        assert_eq!([0, 1, 2].map(kind), ["drop", "local", "other"]);
    }
}
