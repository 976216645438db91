//! The path of the gateway bridge: its flows are monitored by a session of its own, and what the fast path cannot repeat there keeps the
//! node's own traffic slow, and pods fast.

use std::time::{Duration, Instant};

use api::admin::{CacheStatus, Path};
use node_agent::flow_cache::{FaultInjection, Gate, HOLD};

use super::bed::{Bed, Call, Recorder};
use super::common::on_a_node;
use super::tc;

/// Gateway bridge, uplink and management port, as interfaces of OVS.
fn build(bed: &Bed) {
    let internal = ["--", "set", "interface"];
    let port = |bridge, name| {
        let row = [&["add-port", bridge, name][..], &internal, &[name, "type=internal"]].concat();
        bed.ovs.vsctl(&row);
    };
    bed.ovs.vsctl(&["add-br", "breth0", "--", "set", "bridge", "breth0", "datapath_type=netdev"]);
    port("breth0", "eth0");
    port("br-int", "ovn-k8s-mp0");
    bed.ovs.vsctl(&["set", "Open_vSwitch", ".", "external_ids:ovn-bridge-mappings=physnet:breth0"]);
}

fn bumps(status: &CacheStatus, cause: &str) -> u64 {
    status.cache.invalidations[cause]
}

#[test]
fn the_gateways_path_follows_its_bridge_and_leaves_pods_alone() {
    on_a_node(|| async {
        let mut bed = Bed::open().await;
        bed.until("no gateway bridge", |s| s.cache.gateway.path == Path::Ovs).await;
        build(&bed);
        let fast = async || bed.until("fast", |s| s.cache.gateway.path == Path::Ebpf).await;
        fast().await;
        let sent = bed.cache.all().into_iter().filter_map(|call| match call {
            Call::Gateway(end) => Some(end),
            _ => None,
        });
        let end = sent.flatten().last().unwrap();
        assert_eq!(end.mtu, 1500);
        let slow = async |why: &'static str| {
            bed.until(why, |s| s.cache.gateway.path == Path::Ovs && s.cache.gateway.reason.contains(why))
                .await;
            assert_eq!(bed.status().node.path, Path::Ebpf, "pods stay fast");
        };
        let log = "table=44,priority=7,actions=controller(userdata=00.00.00.07.00.00.00.00)";
        bed.ovs.ofctl_of("breth0", "add-flow", log);
        slow("gateway bridge breth0: 1 flows of the bridge log packets").await;
        bed.ovs.ofctl_of("breth0", "del-flows", "table=44");
        fast().await;
        bed.ovs.vsctl(&["set", "interface", "eth0", "ingress_policing_rate=1000"]);
        slow("interface eth0 has a rate limit").await;
        bed.ovs.vsctl(&["set", "interface", "eth0", "ingress_policing_rate=0"]);
        fast().await;
        let mirror = ["--", "--id=@m", "create", "mirror", "name=m", "select_all=true"];
        bed.ovs.vsctl(&[&mirror[..], &["--", "add", "bridge", "breth0", "mirrors", "@m"]].concat());
        slow("mirrored (mirror m)").await;
        bed.ovs.vsctl(&["clear", "bridge", "breth0", "mirrors"]);
        fast().await;
        tc("qdisc add dev breth0 root tbf rate 1mbit burst 10kb latency 10ms");
        slow("interface breth0 has queueing discipline `tbf`").await;
        tc("qdisc del dev breth0 root");
        fast().await;
        bed.rest().await;
        let before = bed.status();
        bed.ovs.ofctl_of("breth0", "add-flow", "table=5,priority=9,ip,nw_dst=10.244.0.3,actions=drop");
        bed.until("a bump", |s| bumps(s, "gateway_flows") > bumps(&before, "gateway_flows")).await;
        assert_eq!(bumps(&bed.status(), "flows"), bumps(&before, "flows"));
    });
}

#[test]
fn without_its_monitor_the_gateway_stays_fast_for_the_grace_period_and_what_is_cached_stays_valid() {
    on_a_node(|| async {
        let mut bed = Bed::open().await;
        build(&bed);
        bed.until("fast", |s| s.cache.gateway.path == Path::Ebpf).await;
        bed.rest().await;
        let before = bed.cache.invalidations();
        bed.ovs.kill_switch();
        bed.until("a grace period", |s| s.cache.gate.hold).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(bed.status().cache.gateway.path, Path::Ebpf);
        assert_eq!(bed.cache.invalidations(), before, "cached flows outlive OVS");
        let slow = |s: &CacheStatus| s.cache.gateway.path == Path::Ovs;
        bed.until_within(Duration::from_secs(20), "the end of the grace period", slow).await;
    });
}

#[test]
fn an_agent_that_starts_while_ovs_is_away_leaves_the_gateway_as_it_was_for_the_grace_period() {
    on_a_node(|| async {
        let bed = Bed::open().await;
        build(&bed);
        bed.until("fast", |s| s.cache.gateway.path == Path::Ebpf).await;
        let mut ovs = bed.ovs;
        ovs.kill_switch();
        let left = Gate { forward: true, learn: true, tcp: true, hold: false };
        let bed = Bed::start_with(ovs, FaultInjection::default(), Recorder::adopted(left)).await;
        let started = Instant::now();
        let sent = || bed.cache.all().into_iter().find(|call| matches!(call, Call::Gateway(_)));
        tokio::time::sleep(HOLD / 2).await;
        assert_eq!((sent(), bed.status().node.path), (None, Path::Ebpf));
        while sent().is_none() {
            assert!(started.elapsed() < 2 * HOLD, "{:#?}", bed.status());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(sent(), Some(Call::Gateway(None)));
        assert!(started.elapsed() >= HOLD - Duration::from_secs(1), "{:?}", started.elapsed());
    });
}
