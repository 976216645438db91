//! The audit against a real ovs-vswitchd: its result for a cached flow depends on OVS's flow tables. Needs root.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
#[path = "common/ovs.rs"]
mod ovs;

use ebpf::Reason;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::MacAddr;
use api::admin::{AuditReply, AuditRequest, Audited, Verdict};
use common::on_a_node;
use node_agent::admin::audit::audit;
use node_agent::admin::{NodeView, View};
use node_agent::datapath::Datapath;
use node_agent::flow_cache::{
    Action, CacheError, Divergence, EndpointAmounts, Flow, FlowCache, Gate, GatewayEnd, InterfaceAmounts,
    PhysicalPort, Pressure, ScopeChange, Swept, Timing, Tunnel, Underlay,
};
use node_agent::health::Health;
use node_agent::kernel::link::Netlink;
use node_agent::kube::pods::Pods;
use node_agent::node::Node;
use node_agent::ovs::Ovs;
use ovs::OvsNode;

const SOON: Duration = Duration::from_secs(20);
const EPOCH: u32 = 9;
const REMOTE: [u8; 4] = [192, 0, 2, 2];

/// A cache with the given flows.
#[derive(Debug, Default)]
struct Cache {
    flows: Mutex<Vec<Flow>>,
    diverged: Mutex<Vec<(String, u32)>>,
}

impl FlowCache for Cache {
    fn epoch(&self) -> Result<u32, CacheError> {
        Ok(EPOCH)
    }
    fn invalidate(&self) -> Result<u32, CacheError> {
        Ok(EPOCH)
    }
    fn change_scopes(&self, _: &ScopeChange) -> Result<(), CacheError> {
        unreachable!()
    }
    fn open_scopes(&self) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_gate(&self, _: Gate) -> Result<(), CacheError> {
        Ok(())
    }
    fn gate(&self) -> Result<Gate, CacheError> {
        Ok(Gate::default())
    }
    fn hold_left(&self) -> Result<Duration, CacheError> {
        Ok(Duration::ZERO)
    }
    fn heartbeat(&self) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_underlay(&self, _: Option<Underlay>) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_gateway(&self, _: Option<GatewayEnd>) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_physical(&self, _: &BTreeMap<u32, PhysicalPort>) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_remotes(&self, _: &BTreeSet<Ipv4Addr>) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_timing(&self, _: Timing) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_endpoint_fast(&self, _: &str, _: bool) -> Result<(), CacheError> {
        Ok(())
    }
    fn set_endpoint_diverged(&self, id: &str, epoch: u32) -> Result<(), CacheError> {
        self.diverged.lock().unwrap().push((id.to_owned(), epoch));
        Ok(())
    }
    fn each_flow(&self, visit: &mut dyn FnMut(&Flow) -> ControlFlow<()>) -> Result<(), CacheError> {
        let _ = self.flows(usize::MAX)?.iter().try_for_each(visit);
        Ok(())
    }
    fn flows(&self, limit: usize) -> Result<Vec<Flow>, CacheError> {
        Ok(self.flows.lock().unwrap().iter().take(limit).cloned().collect())
    }
    fn pressure(&self) -> Result<Vec<Pressure>, CacheError> {
        Ok(Vec::new())
    }
    fn sweep(&self) -> Result<Swept, CacheError> {
        Ok(Swept::default())
    }
    fn end_connections(&self, _: &node_agent::flow_cache::Connections) -> Result<u64, CacheError> {
        Ok(0)
    }
    fn divergences(&self) -> Result<Vec<Divergence>, CacheError> {
        Ok(Vec::new())
    }
    fn tunnels(&self) -> Result<Vec<Tunnel>, CacheError> {
        Ok(Vec::new())
    }
    fn endpoints(&self) -> Result<Vec<EndpointAmounts>, CacheError> {
        Ok(Vec::new())
    }
    fn interfaces(&self) -> Result<Vec<InterfaceAmounts>, CacheError> {
        Ok(Vec::new())
    }
    fn reasons(&self) -> Result<Vec<(Reason, u64)>, CacheError> {
        Ok(Vec::new())
    }
}

struct Bed {
    ovs: OvsNode,
    view: Arc<dyn View>,
    cache: Arc<Cache>,
}

impl Bed {
    /// Creates br-int with the ports p1 and p2 of pods a and b, and gen0, a tunnel to 192.0.2.2 through the bridge br-u.
    async fn open() -> Self {
        let ovs = OvsNode::start();
        for (port, pod, ofport) in [("p1", "a", "1"), ("p2", "b", "2")] {
            ovs.vsctl(&["add-port", "br-int", port, "--", "set", "Interface", port, "type=internal"]);
            let (iface_id, sandbox, mac) = (
                format!("external_ids:iface-id=red_{pod}"),
                format!("external_ids:sandbox=c-{pod}"),
                format!("external_ids:attached_mac=\"0a:58:0a:f4:00:0{ofport}\""),
            );
            let number = format!("ofport_request={ofport}");
            ovs.vsctl(&["set", "Interface", port, &iface_id, &sandbox, &mac, &number]);
        }
        ovs.vsctl(&["add-br", "br-u", "--", "set", "Bridge", "br-u", "datapath_type=netdev"]);
        ovs.vsctl(&["add-port", "br-u", "u1", "--", "set", "Interface", "u1", "type=internal"]);
        let tunnel =
            ["type=geneve", "options:remote_ip=192.0.2.2", "options:local_ip=192.0.2.1", "options:key=flow"];
        let gen0 = ["add-port", "br-int", "gen0", "--", "set", "Interface", "gen0", "ofport_request=3"];
        ovs.vsctl(&[&gen0[..], &tunnel[..]].concat());
        ovs.ofctl("add-tlv-map", "{class=0x102,type=0x80,len=4}->tun_metadata0");
        let cache = Arc::new(Cache::default());
        let mut datapath = Datapath::ovs_only(true, false, "a test");
        datapath.flow_cache = Some(Arc::clone(&cache) as Arc<dyn FlowCache>);
        let flow_cache = datapath.manager(&ovs.path("state")).unwrap();
        let node = Node {
            netlink: Netlink::open().unwrap(),
            reaper: Netlink::open().unwrap(),
            ovs: Ovs::connect(&ovs.db(), SOON).await.unwrap(),
            pods: Pods::default(),
            datapath: Arc::new(datapath),
            cni_conf_dir: Default::default(),
            default_network: true,
            mtu: 1400,
            calls: Default::default(),
            journal: Default::default(),
            metrics: Default::default(),
            health: Health::default(),
            peers: Default::default(),
            service_names: Default::default(),
            flow_cache,
            tasks: supervision::Tasks::new().0,
        };
        let open = |ovs: &Ovs| {
            let number = |name: &str| ovs.interface(name).and_then(|row| row.ofport);
            (["p1", "p2", "gen0"].map(number) == [Some(1), Some(2), Some(3)]).then_some(())
        };
        assert!(node.ovs.wait_for(SOON, open).await.is_some(), "OVS has not opened the ports");
        let view = Arc::new(NodeView::new(node, "n1", None, &ovs.db()));
        Self { ovs, view, cache }
    }

    /// Gives br-u the address of the tunnel's near end, and OVS the neighbour entry of the far end.
    async fn reach_the_far_end(&self) {
        let netlink = Netlink::open().unwrap();
        let link = netlink.get("br-u").await.unwrap();
        netlink.set_up(link.index, "br-u").await.unwrap();
        netlink.add_address(link.index, "br-u", "192.0.2.1/24".parse().unwrap()).await.unwrap();
        let start = std::time::Instant::now();
        while !self.ovs.appctl(&["ovs/route/show"]).contains("192.0.2.0/24") {
            assert!(start.elapsed() < SOON, "OVS does not see the route");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.ovs.appctl(&["tnl/neigh/set", "br-u", "192.0.2.2", "02:00:00:00:00:02"]);
    }

    /// Replaces the flow table of br-int.
    fn flows(&self, flows: &[&str]) {
        self.ovs.ofctl("del-flows", "table=0");
        self.ovs.ofctl("del-flows", "table=1");
        for flow in flows {
            self.ovs.ofctl("add-flow", flow);
        }
    }

    async fn audit(&self) -> Audited {
        let AuditReply { mut flows, same, different, undecided } =
            audit(&self.view, AuditRequest::default()).await.unwrap();
        assert_eq!((flows.len(), same + different + undecided), (1, 1));
        flows.remove(0)
    }

    fn diverged(&self) -> Vec<(String, u32)> {
        std::mem::take(&mut self.cache.diverged.lock().unwrap())
    }
}

/// A cached TCP flow from pod a.
fn flow(action: Action) -> Flow {
    let mac = |last| MacAddr([0x0a, 0x58, 0x0a, 0xf4, 0, last]);
    Flow {
        endpoint: "c-a".to_owned(),
        protocol: 6,
        source: [10, 244, 0, 1].into(),
        destination: [10, 244, 0, 2].into(),
        source_port: 40_000,
        destination_port: 80,
        action,
        epoch: EPOCH,
        current: true,
        valid: true,
        sensitive: false,
        translated: None,
        gateway: false,
        closing: false,
        slow: false,
        probing: false,
        ttl_step: 1,
        destination_mac: mac(9),
        source_mac: mac(1),
        delivered_destination_mac: mac(2),
        delivered_source_mac: mac(9),
        age_ms: 0,
        refresh_in_ms: 0,
        packets: 0,
        bytes: 0,
    }
}

const REWRITE: &str = "dec_ttl,mod_dl_src:0a:58:0a:f4:00:09,mod_dl_dst:0a:58:0a:f4:00:02";

#[test]
fn the_verdict_on_a_local_flow_follows_the_flow_table() {
    on_a_node(|| async {
        let bed = Bed::open().await;
        *bed.cache.flows.lock().unwrap() = vec![flow(Action::Local { to: "c-b".to_owned() })];
        let enter = "table=0,in_port=1,tcp,actions=ct(table=1,zone=6)";
        let go = |actions: &str| format!("table=1,ct_state=+new,tcp,actions={actions}");
        bed.flows(&[enter, &go(&format!("{REWRITE},output:2"))]);
        let same = bed.audit().await;
        assert_eq!(same.verdict, Verdict::Same, "{same:#?}");
        assert_eq!(same.asked[1], "zone 6: no connection, trk,new");
        assert_eq!(same.ovs.unwrap().to.as_deref(), Some("red/b"));
        assert!(bed.diverged().is_empty());
        for (actions, part) in [
            ("drop".to_owned(), "OVS would drop it"),
            (format!("{REWRITE},in_port"), "target: the cache has red/b, OVS red/a"),
            (REWRITE.replace("dec_ttl,", "") + ",output:2", "TTL"),
            (REWRITE.replace("00:02", "00:07") + ",output:2", "destination MAC"),
            (format!("{REWRITE},output:2,in_port"), "OVS would send it to red/b, red/a"),
        ] {
            bed.flows(&[enter, &go(&actions)]);
            let audited = bed.audit().await;
            assert_eq!(audited.verdict, Verdict::Different, "{actions}: {audited:#?}");
            assert!(audited.why[0].contains(part), "{actions}: {:?}", audited.why);
            assert_eq!(bed.diverged(), [("c-a".to_owned(), EPOCH)], "{actions}");
        }
        bed.flows(&[enter, &go(&format!("{REWRITE},controller,output:2"))]);
        let copied = bed.audit().await;
        assert_eq!(copied.verdict, Verdict::Undecided, "{copied:#?}");
        assert!(bed.diverged().is_empty());
    });
}

#[test]
fn the_verdict_on_a_flow_into_the_tunnel_follows_vni_and_option() {
    on_a_node(|| async {
        let bed = Bed::open().await;
        let action = Action::Tunnel { remote: REMOTE.into(), vni: 5, option: 0x0001_0002 };
        *bed.cache.flows.lock().unwrap() = vec![flow(action)];
        let push = |vni: u32, option: u32| {
            let tunnel = format!("set_field:{vni}->tun_id,set_field:{option:#x}->tun_metadata0,output:3");
            format!("table=0,in_port=1,tcp,actions={REWRITE},{tunnel}")
        };
        bed.flows(&[&push(5, 0x0001_0002)]);
        let unreachable = bed.audit().await;
        assert_eq!(unreachable.verdict, Verdict::Undecided, "{unreachable:#?}");
        assert!(unreachable.why.iter().any(|why| why.contains("cannot reach the remote tunnel endpoint")));
        bed.reach_the_far_end().await;
        let same = bed.audit().await;
        assert_eq!(same.verdict, Verdict::Same, "{same:#?}");
        for (flow, part) in [
            (push(6, 0x0001_0002), "VNI: the cache has 0x5, OVS 0x6"),
            (push(5, 1), "option: the cache has 0x10002, OVS 0x1"),
        ] {
            bed.flows(&[&flow]);
            let audited = bed.audit().await;
            assert_eq!(audited.verdict, Verdict::Different, "{audited:#?}");
            assert!(audited.why[0].contains(part), "{:?}", audited.why);
            assert_eq!(bed.diverged(), [("c-a".to_owned(), EPOCH)]);
        }
    });
}

#[test]
fn a_packet_out_of_the_tunnel_is_asked_about_with_its_vni_and_option() {
    on_a_node(|| async {
        let bed = Bed::open().await;
        let mut flow = flow(Action::Deliver { remote: REMOTE.into(), vni: 5, option: 0x0001_0002 });
        flow.ttl_step = 0;
        (flow.delivered_destination_mac, flow.delivered_source_mac) = (flow.destination_mac, flow.source_mac);
        *bed.cache.flows.lock().unwrap() = vec![flow];
        let enter = "table=0,in_port=3,tun_id=5,tun_src=192.0.2.2,tun_metadata0=0x10002,tcp";
        bed.flows(&[&format!("{enter},actions=output:1")]);
        let same = bed.audit().await;
        assert_eq!(same.verdict, Verdict::Same, "{same:#?}");
        bed.flows(&[&format!("{enter},actions=output:2")]);
        let other = bed.audit().await;
        assert!(other.why[0].contains("target: the cache has red/a, OVS red/b"), "{other:#?}");
        assert_eq!(bed.diverged(), [("c-a".to_owned(), EPOCH)]);
    });
}
