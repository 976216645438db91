//! The flow cache manager against real OVS: its calls to the cache when flows change, when OVS restarts, and when an operator
//! requests another path. The cache itself is a recording stand-in. Needs root, and OVS in the project's cache.

#![allow(clippy::unwrap_used, reason = "a test")]

mod bed;
#[path = "../common/mod.rs"]
mod common;
mod gateway;
#[path = "../common/ovs.rs"]
mod ovs;
mod revalidation;

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use api::NamespacedName;
use api::admin::{CacheStatus, MonitorHealth, NodePath, Path};
use bed::{Bed, Call, SOON};
use common::on_a_node;
use node_agent::attach;
use node_agent::flow_cache::FaultInjection;
use node_agent::flow_cache::Gate;
use node_agent::kube::pods::PodInfo;
use ovs::OvsNode;

/// A Geneve tunnel of br-int, with a remote_ip.
fn tunnel(ovs: &OvsNode, name: &str, remote: &str) {
    let remote = format!("options:remote_ip={remote}");
    let row = ["set", "interface", name, "type=geneve", "options:key=flow", &remote];
    ovs.vsctl(&[&["add-port", "br-int", name, "--"], row.as_slice()].concat());
}

#[expect(clippy::disallowed_methods, reason = "the test plays an operator")]
fn tc(arguments: &str) {
    let status = std::process::Command::new("tc").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "tc {arguments}");
}

fn gates(calls: &[Call]) -> Vec<Gate> {
    let gate = |call: &Call| match call {
        Call::Gate(gate) => Some(*gate),
        _ => None,
    };
    calls.iter().filter_map(gate).collect()
}

/// Calls to the cache as text: what becomes of learning, and whether scopes are closed or opened.
fn told(bed: &Bed) -> Vec<&'static str> {
    let text = |call: &Call| match call {
        Call::Gate(gate) if gate.learn => "learn",
        Call::Gate(_) => "do not learn",
        Call::Invalidate => "everything",
        Call::Scopes(change) if change.buckets.iter().all(|(_, closed)| *closed) => "scopes close",
        Call::Scopes(change) if change.closing => "some scopes",
        Call::Scopes(_) => "scopes open",
        _ => "something else",
    };
    bed.cache.all().iter().map(text).collect()
}

async fn until_told(bed: &Bed, count: usize) -> Vec<&'static str> {
    let wait = Instant::now();
    while told(bed).len() < count {
        assert!(wait.elapsed() < SOON, "{:?}", bed.cache.all());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    told(bed)
}

#[test]
fn a_changed_flow_stops_learning_until_it_is_read_and_what_it_concerns_is_closed_until_the_burst_is_over() {
    on_a_node(|| async {
        let mut bed = Bed::open().await;
        bed.cache.forget();
        // Of one address.
        let flow = "table=5,priority=9,ip,nw_dst=10.244.0.3,actions=drop";
        let closed = ["do not learn", "scopes close", "learn", "scopes open", "scopes open"];
        for command in [
            ("add-flow", flow),
            ("mod-flows", "table=5,ip,nw_dst=10.244.0.3,actions=output:1"),
            ("del-flows", "table=5"),
        ] {
            bed.ovs.ofctl(command.0, command.1);
            let told = until_told(&bed, closed.len()).await;
            assert_eq!(told[..closed.len()], closed, "{command:?}");
            bed.rest().await;
        }
        // Of which nothing is said that would leave anything out.
        let flow = "table=5,priority=9,ip,actions=drop";
        let all = ["do not learn", "everything", "everything", "learn", "everything"];
        for command in
            [("add-flow", flow), ("mod-flows", "table=5,ip,actions=output:1"), ("del-flows", "table=5")]
        {
            bed.ovs.ofctl(command.0, command.1);
            let told = until_told(&bed, all.len()).await;
            assert_eq!(told[..all.len()], all, "{command:?}");
            bed.rest().await;
        }
    });
}

/// Not a limit but a figure to read: `--nocapture` shows it.
#[test]
fn the_thread_that_watches_flows_goes_before_ordinary_work() {
    on_a_node(|| async {
        let _bed = Bed::open().await;
        // proc(5): the scheduling policy is the 41st field of `stat`; the second is the name. 1 is SCHED_FIFO.
        let policies: Vec<String> = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok())
            .filter(|stat| stat.contains("(flow-monitor)"))
            .map(|stat| stat.rsplit_once(") ").unwrap().1.split(' ').nth(38).unwrap().to_owned())
            .collect();
        assert!(!policies.is_empty() && policies.iter().all(|policy| policy == "1"), "{policies:?}");
    });
}

#[test]
fn the_delay_from_a_flow_change_to_the_bump_is_measured() {
    on_a_node(|| async {
        let bed = Bed::open().await;
        let mut delays = Vec::new();
        for n in 0..30 {
            bed.cache.forget();
            let began = Instant::now();
            bed.ovs.ofctl("add-flow", &format!("table=7,priority={},actions=drop", n + 1));
            let returned = Instant::now();
            tokio::time::sleep(Duration::from_millis(60)).await;
            let bump = bed.cache.first_invalidation().expect("a bump");
            assert!(bump >= began);
            delays.push((bump.saturating_duration_since(began), returned - began));
        }
        delays.sort();
        let text = bed.node.metrics.encode().unwrap();
        let sum = text.lines().find(|l| l.contains("invalidation_seconds_sum")).unwrap();
        println!("start of ovs-ofctl to bump, median {:?}, longest {:?}; {sum}", delays[15], delays[29]);
        assert!(text.contains("slipstream_node_fastpath_bumps_total{source=\"flows\"}"), "{text}");
    });
}

#[test]
fn the_cache_is_told_the_other_ends_of_ovs_s_tunnels_and_of_one_that_goes_before_it_is_made_invalid() {
    on_a_node(|| async {
        let set =
            |addresses: &[[u8; 4]]| addresses.iter().copied().map(Ipv4Addr::from).collect::<BTreeSet<_>>();
        let ovs = OvsNode::start();
        ovs.ofctl("add-flow", "table=0,priority=0,actions=drop");
        tunnel(&ovs, "t3", "172.18.0.3");
        tunnel(&ovs, "t6", "fd00::6");
        let mut bed = Bed::start(ovs, FaultInjection::default()).await;
        let told = |bed: &Bed| {
            let all = bed.cache.all();
            all.into_iter()
                .filter_map(|call| match call {
                    Call::Remotes(remotes) => Some(remotes),
                    _ => None,
                })
                .collect::<Vec<_>>()
        };
        let until = async |bed: &Bed, wanted: &BTreeSet<Ipv4Addr>| {
            let wait = Instant::now();
            while told(bed).last() != Some(wanted) {
                assert!(wait.elapsed() < SOON, "{:?}", bed.cache.all());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // A starting agent sets all remotes, whatever is in the map, and before anything may be learned.
        until(&bed, &set(&[[172, 18, 0, 3]])).await;
        bed.until("an open gate", |s| s.cache.gate.learn).await;
        let calls = bed.cache.all();
        let first = calls.iter().position(|call| matches!(call, Call::Remotes(_))).unwrap();
        let open = calls.iter().position(|call| matches!(call, Call::Gate(gate) if gate.learn)).unwrap();
        assert!(first < open, "{calls:?}");
        bed.rest().await;
        tunnel(&bed.ovs, "t4", "172.18.0.4");
        until(&bed, &set(&[[172, 18, 0, 3], [172, 18, 0, 4]])).await;
        bed.ovs.vsctl(&["set", "interface", "t4", "options:remote_ip=172.18.0.5"]);
        until(&bed, &set(&[[172, 18, 0, 3], [172, 18, 0, 5]])).await;
        bed.rest().await;
        bed.ovs.vsctl(&["del-port", "br-int", "t3"]);
        let left = set(&[[172, 18, 0, 5]]);
        until(&bed, &left).await;
        bed.until("a bump", |_| bed.cache.invalidations() > 0).await;
        let calls = bed.cache.all();
        let bump = calls.iter().position(|call| *call == Call::Invalidate).unwrap();
        assert!(
            calls.iter().position(|call| *call == Call::Remotes(left.clone())).unwrap() < bump,
            "{calls:?}"
        );
        // The session with the database comes back, and nothing is missed.
        bed.rest().await;
        bed.ovs.kill_database();
        bed.until("a hold", |s| s.cache.monitor == MonitorHealth::GracePeriod).await;
        bed.ovs.start_database();
        bed.until("sight", |s| s.cache.monitor == MonitorHealth::Synced).await;
        bed.ovs.vsctl(&["del-port", "br-int", "t4"]);
        until(&bed, &set(&[])).await;
        // A tunnel that accepts packets from any address cannot tell which node sent them.
        tunnel(&bed.ovs, "t7", "flow");
        bed.until("a slow tunnel", |s| s.cache.tunnel.reason.contains("no fixed remote_ip")).await;
    });
}

#[test]
fn cached_flows_are_held_through_a_restart_of_vswitchd_until_it_has_flows_and_no_sequence_check() {
    on_a_node(|| async {
        let mut bed = Bed::open().await;
        assert!(bed.ovs.appctl(&["dpctl/ct-get-tcp-seq-chk", "netdev@ovs-netdev"]).contains("disabled"));
        bed.ovs.kill_switch();
        bed.until("a hold", |s| s.cache.monitor == MonitorHealth::GracePeriod).await;
        let hold = Gate { forward: true, learn: false, tcp: true, hold: true };
        assert_eq!(gates(&bed.cache.all()), [hold]);
        assert_eq!(bed.cache.invalidations(), 0, "a restart of OVS cuts nobody off: {:?}", bed.cache.all());
        bed.ovs.start_switch();
        bed.until("the new ovs-vswitchd", |s| s.cache.unsynced_reason.contains("no flows yet")).await;
        assert!(bed.status().cache.gate.hold && bed.cache.invalidations() == 0, "{:?}", bed.cache.all());
        bed.ovs.ofctl("add-flow", "table=0,priority=0,actions=drop");
        bed.until("an open gate", |s| s.cache.monitor == MonitorHealth::Synced && s.cache.gate.learn).await;
        let seq = bed.ovs.appctl(&["dpctl/ct-get-tcp-seq-chk", "netdev@ovs-netdev"]);
        assert!(seq.contains("disabled"), "{seq}");
        let calls = bed.cache.all();
        let bump = calls.iter().position(|call| *call == Call::Invalidate).unwrap();
        let open = calls.iter().position(|c| matches!(c, Call::Gate(g) if !g.hold)).unwrap();
        assert!(bump < open, "what was held is invalid before the gate opens: {calls:?}");
    });
}

#[test]
fn without_ovs_the_gate_closes_after_the_hold_and_the_heartbeat_goes_on() {
    on_a_node(|| async {
        let mut bed = Bed::open().await;
        bed.ovs.kill_switch();
        bed.until("a hold", |s| s.cache.monitor == MonitorHealth::GracePeriod).await;
        let (began, beats) = (Instant::now(), *bed.cache.beats.lock().unwrap());
        bed.until("a closed gate", |s| s.cache.monitor == MonitorHealth::Stale).await;
        let held = began.elapsed();
        assert!(held > Duration::from_secs(9) && held < Duration::from_secs(12), "{held:?}");
        assert_eq!(gates(&bed.cache.all()).last(), Some(&Gate::default()));
        assert!(*bed.cache.beats.lock().unwrap() - beats >= 8);
    });
}

#[test]
fn the_nodes_path_is_switched_live_and_kept_for_the_next_agent() {
    on_a_node(|| async {
        let mut bed = Bed::open().await;
        assert_eq!(bed.status().node.path, Path::Ebpf);
        let path = bed.node.flow_cache.set_node_path(NodePath::Ovs).unwrap();
        assert_eq!(
            (path.path, path.reason.as_str()),
            (Path::Ovs, "requested for the node (slipctl path node ovs)")
        );
        assert_eq!(gates(&bed.cache.all()).last(), Some(&Gate::default()));
        bed.until("the decision", |s| s.node.path == Path::Ovs).await;
        let again = bed.node.datapath.manager(&bed.ovs.path("state")).unwrap();
        assert_eq!(again.wanted(), NodePath::Ovs);
        bed.node.flow_cache.set_node_path(NodePath::Auto).unwrap();
        bed.until("the fast path", |s| s.node.path == Path::Ebpf && s.cache.gate.forward).await;
        bed.rest().await;
    });
}

#[test]
fn without_a_switched_off_sequence_check_udp_is_cached_and_tcp_is_not() {
    on_a_node(|| async {
        let ovs = OvsNode::start();
        ovs.ofctl("add-flow", "table=0,priority=0,actions=drop");
        let bed =
            Bed::start(ovs, FaultInjection { keep_sequence_check: true, ..FaultInjection::default() }).await;
        bed.until("an open gate", |s| s.cache.gate.forward && s.cache.gate.learn).await;
        let status = bed.status();
        assert!(!status.cache.gate.tcp && status.cache.tcp.path == Path::Ovs, "{status:?}");
        assert!(status.cache.tcp.reason.contains("sequence check"), "{}", status.cache.tcp.reason);
        assert!(bed.ovs.appctl(&["dpctl/ct-get-tcp-seq-chk", "netdev@ovs-netdev"]).contains("enabled"));
    });
}

/// Shows that the other tests can fail.
#[test]
fn an_agent_made_blind_for_flows_makes_nothing_invalid_when_they_change() {
    on_a_node(|| async {
        let ovs = OvsNode::start();
        ovs.ofctl("add-flow", "table=0,priority=0,actions=drop");
        let mut bed =
            Bed::start(ovs, FaultInjection { ignore_flows: true, ..FaultInjection::default() }).await;
        bed.rest().await;
        bed.ovs.ofctl("add-flow", "table=5,priority=9,ip,nw_dst=10.244.0.3,actions=drop");
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(bed.cache.all(), []);
    });
}

/// A port of pod `ns/NAME` in container NAME.
fn plug(ovs: &OvsNode, name: &str) {
    plug_as(ovs, name, &format!("ns_{name}"), name);
}

/// A port called `name` with a logical port, in container `sandbox`.
fn plug_as(ovs: &OvsNode, name: &str, iface_id: &str, sandbox: &str) {
    let id = |key: &str, value: &str| format!("external_ids:{key}={value}");
    let ids = [id("iface-id", iface_id), id("iface-id-ver", "u"), id("sandbox", sandbox)];
    let mut args = vec!["add-port", "br-int", name, "--", "set", "interface", name, "type=internal"];
    args.extend(ids.iter().map(String::as_str));
    ovs.vsctl(&args);
}

#[test]
fn each_interface_of_a_pod_is_an_endpoint_of_its_own() {
    on_a_node(|| async {
        let mut bed = Bed::open().await;
        let net1 = attach::interface_id("a", 1);
        let host = attach::Names::of(&net1).host;
        plug(&bed.ovs, "a");
        plug_as(&bed.ovs, &host, "shop.blue_ns_a", "a");
        let paths = |s: &CacheStatus| {
            let path =
                |id: &str| s.endpoints.iter().find(|e| e.id == id).map(|e| (e.port.clone(), e.path.path));
            (path("a"), path(&net1))
        };
        let until = async |first, second| {
            let port = |name: &str, path| Some((name.to_owned(), path));
            let wanted = (port("ns_a", first), port("shop.blue_ns_a", second));
            bed.until(&format!("{wanted:?}"), |s| paths(s) == wanted).await;
            let fast = |path| Some(path == Path::Ebpf);
            assert_eq!((bed.cache.endpoint("a"), bed.cache.endpoint(&net1)), (fast(first), fast(second)));
        };
        until(Path::Ebpf, Path::Ebpf).await;
        tc(&format!("qdisc add dev {host} root tbf rate 1mbit burst 10kb latency 50ms"));
        until(Path::Ebpf, Path::Ovs).await;
        tc(&format!("qdisc del dev {host} root"));
        until(Path::Ebpf, Path::Ebpf).await;
        let key = NamespacedName { namespace: "ns".to_owned(), name: "a".to_owned() };
        let info = PodInfo { uid: "u".to_owned(), path: Some("ovs".to_owned()), ..PodInfo::default() };
        bed.node.pods.apply(key.clone(), info.clone());
        until(Path::Ovs, Path::Ovs).await;
        bed.node.pods.apply(key, PodInfo { path: None, ..info });
        until(Path::Ebpf, Path::Ebpf).await;
        bed.rest().await;
        bed.node.flow_cache.endpoint_removed(&net1);
        assert!(matches!(bed.cache.all().pop(), Some(Call::Scopes(_))), "{:?}", bed.cache.all());
    });
}

#[test]
fn an_endpoint_is_taken_off_the_fast_path_by_annotation_mirror_policing_and_qos_and_comes_back() {
    on_a_node(|| async {
        let mut bed = Bed::open().await;
        plug(&bed.ovs, "a");
        plug(&bed.ovs, "b");
        let reason = |s: &CacheStatus, id: &str| {
            s.endpoints.iter().find(|e| e.id == id).map(|e| (e.path.path, e.path.reason.clone()))
        };
        let slow = async |why: &'static str| {
            bed.until(why, |s| reason(s, "a").is_some_and(|(p, r)| p == Path::Ovs && r.contains(why))).await;
            assert_eq!(reason(&bed.status(), "b").unwrap().0, Path::Ebpf, "only the one");
            assert_eq!(bed.cache.endpoint("a"), Some(false));
        };
        let fast = async || {
            bed.until("fast", |s| reason(s, "a").is_some_and(|(p, _)| p == Path::Ebpf)).await;
            assert_eq!(bed.cache.endpoint("a"), Some(true));
        };
        fast().await;
        let key = NamespacedName { namespace: "ns".to_owned(), name: "a".to_owned() };
        let info = PodInfo { uid: "u".to_owned(), path: Some("ovs".to_owned()), ..PodInfo::default() };
        bed.node.pods.apply(key.clone(), info.clone());
        slow("annotation slipstream.dev/path").await;
        bed.node.pods.apply(key.clone(), PodInfo { path: Some("fast".to_owned()), ..info.clone() });
        slow("`fast`").await;
        bed.node.pods.apply(key, PodInfo { path: None, ..info });
        fast().await;
        let mirror = ["--id=@a", "get", "port", "a", "--", "--id=@m", "create", "mirror", "name=m"];
        let select = ["select-src-port=@a", "--", "set", "bridge", "br-int", "mirrors=@m"];
        bed.ovs.vsctl(
            &["--", mirror[0]]
                .into_iter()
                .chain(mirror[1..].iter().copied())
                .chain(select)
                .collect::<Vec<_>>(),
        );
        slow("mirror m").await;
        bed.ovs.vsctl(&["clear", "bridge", "br-int", "mirrors"]);
        fast().await;
        bed.ovs.vsctl(&["set", "interface", "a", "ingress_policing_rate=1000"]);
        slow("policing").await;
        bed.ovs.vsctl(&["set", "interface", "a", "ingress_policing_rate=0"]);
        fast().await;
        bed.ovs.vsctl(&["set", "port", "a", "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-noop"]);
        slow("QoS").await;
        bed.ovs.vsctl(&["clear", "port", "a", "qos"]);
        fast().await;
        // A rate limit as the bandwidth plugin sets it. It must be noticed without any other change.
        tc("qdisc add dev a root tbf rate 1mbit burst 10kb latency 50ms");
        slow("queueing discipline `tbf`").await;
        tc("qdisc del dev a root");
        fast().await;
        bed.ovs.ofctl("add-flow", "table=44,tcp,tcp_flags=+syn,actions=drop");
        bed.until("slow", |s| s.node.reason.contains("TCP flags")).await;
        bed.ovs.ofctl("del-flows", "table=44");
        fast().await;
        // OVN's port 5 of datapath 3; an ACL that logs packets to it, and one on a port group with an address set.
        bed.ovs.ofctl(
            "add-flow",
            "table=0,in_port=a,actions=set_field:3->metadata,set_field:5->reg14,resubmit(,8)",
        );
        let log = "actions=controller(userdata=00.00.00.07.00.00.00.00)";
        bed.ovs.ofctl("add-flow", &format!("table=44,udp,reg0=0x2/0x2,reg15=5,metadata=3,{log}"));
        slow("log packets of this port").await;
        bed.ovs.ofctl("del-flows", "table=44");
        fast().await;
        for part in ["nw_src=10.0.0.1,actions=conjunction(9,1/2)", "reg15=5,actions=conjunction(9,2/2)"] {
            bed.ovs.ofctl("add-flow", &format!("table=44,ip,metadata=3,{part}"));
        }
        bed.ovs.ofctl("add-flow", &format!("table=44,ip,conj_id=9,metadata=3,{log}"));
        slow("log packets of this port").await;
        bed.ovs.ofctl("del-flows", "table=44");
        fast().await;
        bed.rest().await;
        bed.node.flow_cache.endpoint_removed("a");
        let last = bed.cache.all().pop();
        assert!(
            matches!(&last, Some(Call::Scopes(change)) if change.buckets.iter().all(|(_, closed)| *closed)),
            "{last:?}"
        );
    });
}

#[test]
fn flows_that_log_sample_or_limit_and_settings_of_the_chassis_take_the_node_off() {
    on_a_node(|| async {
        let bed = Bed::open().await;
        let slow = async |why: &'static str| {
            bed.until(why, |s| s.node.path == Path::Ovs && s.node.reason.contains(why)).await;
            bed.until("a closed gate", |s| !s.cache.gate.forward).await;
        };
        let fast = async || bed.until("fast", |s| s.node.path == Path::Ebpf && s.cache.gate.forward).await;
        let log = "table=44,priority=7,actions=controller(userdata=00.00.00.07.00.00.00.00)";
        for (flow, why) in [
            (log, "log packets"),
            ("table=44,priority=7,actions=sample(probability=655,collector_set_id=1)", "sample packets"),
            (
                "table=44,priority=7,actions=clone(sample(probability=655,collector_set_id=1))",
                "sample packets",
            ),
            ("table=44,priority=7,actions=set_queue:3", "set a queue"),
        ] {
            bed.ovs.ofctl("add-flow", flow);
            slow(why).await;
            bed.ovs.ofctl("del-flows", "table=44");
            fast().await;
        }
        // A flow of another kind that sends packets to ovn-controller.
        bed.ovs.ofctl("add-flow", "table=44,actions=controller(userdata=00.00.00.02.00.00.00.00)");
        for (set, unset, why) in [
            ("ovn-encap-type=vxlan", "ovn-encap-type=geneve", "ovn-encap-type is `vxlan`"),
            ("ovn-encap-tos=inherit", "ovn-encap-tos=0", "ovn-encap-tos"),
        ] {
            bed.ovs.vsctl(&["set", "Open_vSwitch", ".", &format!("external_ids:{set}")]);
            slow(why).await;
            bed.ovs.vsctl(&["set", "Open_vSwitch", ".", &format!("external_ids:{unset}")]);
            fast().await;
        }
        let tunnel = ["add-port", "br-int", "t", "--", "set", "interface", "t", "type=geneve"];
        let options = ["options:remote_ip=172.18.0.3", "options:key=flow", "options:csum=false"];
        bed.ovs.vsctl(&tunnel.into_iter().chain(options).collect::<Vec<_>>());
        fast().await;
        for (option, back) in [("dst_port=6082", "dst_port=6081"), ("df_default=false", "df_default=true")] {
            bed.ovs.vsctl(&["set", "interface", "t", &format!("options:{option}")]);
            slow(option).await;
            bed.ovs.vsctl(&["set", "interface", "t", &format!("options:{back}")]);
            fast().await;
        }
        bed.ovs.vsctl(&["set", "Open_vSwitch", ".", "other_config:hw-offload=true"]);
        slow("hardware offload").await;
        bed.ovs.vsctl(&["remove", "Open_vSwitch", ".", "other_config", "hw-offload"]);
        fast().await;
        bed.ovs.vsctl(&["set", "interface", "t", "options:psk=secret"]);
        slow("IPsec").await;
    });
}
