//! Whole audits against a stand-in for ovs-vswitchd whose answers have the form of a real one's.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use super::*;
use crate::admin::naming::tests::naming;
use crate::admin::view::Ports;
use crate::flow_cache::CacheControl;
use crate::flow_cache::FlowCache;
use crate::flow_cache::fake::Fake;
use api::admin::FlowSpec;
use api::admin::PathStatus;
use subject::tests::Two;

struct Node {
    unixctl: Unixctl,
    cache: Option<Arc<Fake>>,
    /// Verdicts, and whether they are divergences.
    audited: Mutex<Vec<(Verdict, bool)>>,
}

impl View for Node {
    fn unixctl(&self) -> Option<Unixctl> {
        Some(self.unixctl.clone())
    }
    fn kernel_datapath(&self) -> bool {
        false
    }
    fn ports(&self) -> &dyn Ports {
        &Two
    }
    fn audited(&self, verdict: Verdict, diverged: bool) {
        self.audited.lock().push((verdict, diverged));
    }
    fn flow_cache(&self) -> Option<Arc<dyn FlowCache>> {
        self.cache.clone().map(|cache| cache as Arc<dyn FlowCache>)
    }
    fn control(&self) -> Option<Arc<dyn CacheControl>> {
        None
    }
    fn naming(&self) -> Naming {
        naming()
    }
    fn path(&self) -> PathStatus {
        PathStatus::ovs("")
    }
    fn status(&self) -> Result<api::admin::Status, AdminError> {
        Err(AdminError::Failed(String::new()))
    }
    fn now_ms(&self) -> u64 {
        0
    }
}

/// OVS: what the last pass of a trace does, and the mark of connections in the first and the second zone.
#[derive(Clone)]
struct Switch {
    last: Arc<dyn Fn(u32) -> String + Send + Sync>,
    marks: [u32; 2],
    zones: usize,
}

const PUSH: &str = "set(eth(src=0a:58:0a:f4:01:01,dst=0a:58:0a:f4:01:04)),set(ipv4(ttl=63)),tnl_push(tnl_port(5),header(ipv4(src=172.18.0.2,dst=172.18.0.3),\
    geneve(crit,vni=0x5,options({class=0x102,type=0x80,len=4,0x30002}))),out_port(2)),3";

impl Switch {
    fn new(last: &str) -> Self {
        let last = last.to_owned();
        Self { last: Arc::new(move |_| last.clone()), marks: [0, 0], zones: 1 }
    }

    /// The answer to one call. A trace passes through zones 6 and, with two of them, 7, as long as states are given.
    fn answer(&self, request: &serde_json::Value, final_traces: &AtomicU32) -> String {
        let params: Vec<&str> =
            request["params"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
        match request["method"].as_str().unwrap() {
            "dpif/show" => {
                "netdev@x: hit:1\n  br-int:\n    soc0ffee01 4/6: (system)\n    soc0ffee02 5/7: (system)\n"
                    .to_owned()
            }
            "dpctl/dump-conntrack" => {
                let mark = if params[1] == "zone=6" { self.marks[0] } else { self.marks[1] };
                format!(
                    "tcp,orig=(src=10.244.0.3,dst=10.244.1.4,sport=40000,dport=80),\
                     reply=(src=10.244.1.4,dst=10.244.0.3,sport=80,dport=40000),zone=6,mark={mark},protoinfo=(state=ESTABLISHED)\n"
                )
            }
            "ofproto/trace" => {
                let given = params.iter().filter(|p| **p == "--ct-next").count();
                let mut text = String::new();
                for zone in 0..self.zones {
                    if zone > 0 {
                        text += &format!("recirc({zone:#x}) - resume conntrack with ct_state=est|trk\n");
                    }
                    text += &format!("Datapath actions: ct(zone={}),recirc({:#x})\n", 6 + zone, zone + 1);
                }
                text += &format!("recirc({:#x}) - resume conntrack with default ct_state\n", self.zones);
                let count = match given == self.zones {
                    true => final_traces.fetch_add(1, Ordering::Relaxed),
                    false => 0,
                };
                text + &format!("Datapath actions: {}\n", (self.last)(count))
            }
            other => panic!("{other}"),
        }
    }
}

fn start(directory: &Path, switch: Switch) {
    std::fs::write(directory.join("ovs-vswitchd.pid"), "1").unwrap();
    let listener = UnixListener::bind(directory.join("ovs-vswitchd.1.ctl")).unwrap();
    tokio::spawn(async move {
        let traces = AtomicU32::new(0);
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 65_536];
            let n = stream.read(&mut request).await.unwrap();
            let request = serde_json::from_slice(&request[..n]).unwrap();
            let reply =
                serde_json::json!({"id": 0, "result": switch.answer(&request, &traces), "error": null});
            stream.write_all(reply.to_string().as_bytes()).await.unwrap();
        }
    });
}

/// Audits `tcp 10.244.0.3:40000 10.244.1.4:80`. Returns the flow's result and what was reported to the agent.
async fn run(switch: Switch, cache: bool) -> (Audited, Vec<(Verdict, bool)>, Vec<(String, u32)>) {
    let directory = tempfile::tempdir().unwrap();
    start(directory.path(), switch);
    let node = Arc::new(Node {
        unixctl: Unixctl::new(directory.path()),
        cache: cache.then(Arc::default),
        audited: Mutex::default(),
    });
    let view: Arc<dyn View> = Arc::<Node>::clone(&node);
    let flow = FlowSpec::parse("tcp", "10.244.0.3:40000", "10.244.1.4:80").unwrap();
    let mut reply = audit(&view, AuditRequest { flow: Some(flow), limit: None }).await.unwrap();
    let slow = node.cache.as_ref().map(|cache| cache.diverged.lock().clone()).unwrap_or_default();
    let told = node.audited.lock().clone();
    (reply.flows.remove(0), told, slow)
}

#[tokio::test]
async fn the_same_answer_is_the_same_and_the_question_has_the_connections_state() {
    let (audited, told, slow) = run(Switch::new(PUSH), true).await;
    assert_eq!((audited.verdict, told), (Verdict::Same, vec![(Verdict::Same, false)]), "{audited:?}");
    assert!(slow.is_empty(), "{slow:?}");
    assert!(audited.asked[0].ends_with("tcp_dst=80,tcp_flags=ack --ct-next trk,est"), "{:?}", audited.asked);
    assert_eq!(audited.asked[1], "zone 6: original direction of a connection, trk,est");
    assert_eq!(audited.datapath_actions, ["ct(zone=6),recirc(0x1)", PUSH]);
}

#[tokio::test]
async fn a_drop_where_the_cache_forwards_is_a_divergence_of_the_entrys_epoch() {
    let (audited, told, slow) = run(Switch::new("drop"), true).await;
    assert_eq!(
        (audited.verdict, told),
        (Verdict::Different, vec![(Verdict::Different, true)]),
        "{audited:?}"
    );
    assert!(audited.why[0].contains("OVS would drop it"), "{:?}", audited.why);
    assert_eq!(slow, [("c0ffee01".to_owned(), 7)]);
    assert!(audited.why[1].contains("until the epoch is no longer 7"), "{:?}", audited.why);
}

#[tokio::test]
async fn a_difference_that_does_not_stay_is_none() {
    let once: Arc<dyn Fn(u32) -> String + Send + Sync> =
        Arc::new(|count| if count == 0 { "drop".to_owned() } else { PUSH.to_owned() });
    let (audited, told, slow) = run(Switch { last: once, ..Switch::new("") }, true).await;
    assert_eq!((audited.verdict, told), (Verdict::Same, vec![(Verdict::Same, false)]), "{audited:?}");
    assert!(slow.is_empty(), "{slow:?}");
}

#[tokio::test]
async fn a_flow_that_is_not_cached_is_undecided_with_what_ovs_would_do() {
    let (audited, told, slow) = run(Switch::new(PUSH), false).await;
    assert_eq!((audited.verdict, told), (Verdict::Undecided, vec![(Verdict::Undecided, false)]));
    assert!(slow.is_empty(), "{slow:?}");
    assert!(audited.why[0].contains("not cached"), "{:?}", audited.why);
    assert_eq!(audited.ovs.unwrap().vni, Some(5));
}

#[tokio::test]
async fn the_connections_mark_is_told_for_the_first_zone_and_doubted_for_another() {
    let (audited, _, _) = run(Switch { marks: [2, 0], zones: 2, ..Switch::new(PUSH) }, true).await;
    assert_eq!(audited.verdict, Verdict::Same, "{audited:?}");
    assert!(audited.asked[0].contains(",ct_mark=0x2,"), "{:?}", audited.asked);
    for last in [PUSH, "drop"] {
        let (audited, told, slow) = run(Switch { marks: [0, 1], zones: 2, ..Switch::new(last) }, true).await;
        assert_eq!(audited.verdict, Verdict::Undecided, "{audited:?}");
        assert!(audited.why.iter().any(|why| why.contains("mark 0x1 in zone 7")), "{:?}", audited.why);
        assert!(slow.is_empty() && told.iter().all(|(_, diverged)| !diverged));
    }
}

#[tokio::test]
async fn a_packet_that_never_comes_out_of_connection_tracking_is_undecided() {
    let (audited, _, _) = run(Switch { zones: 40, ..Switch::new(PUSH) }, true).await;
    assert_eq!(audited.verdict, Verdict::Undecided);
    assert!(audited.why[0].contains("more than 16 times"), "{:?}", audited.why);
}
