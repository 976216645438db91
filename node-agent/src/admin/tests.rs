//! The resources, requested as `slipctl` requests them: over a real unix socket.

use crate::flow_cache::CacheControl;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::naming::{Naming, tests::naming};
use super::*;
use crate::flow_cache::fake::Fake;
use api::admin::{Cache, CacheStatus, NodePath, Path as PacketPath, PathStatus};

struct Node {
    cache: Option<Arc<Fake>>,
}

impl audit::Ports for Node {
    fn number(&self, _: &str) -> Option<i64> {
        None
    }
    fn tunnel(&self, _: std::net::IpAddr) -> Option<(i64, Option<std::net::IpAddr>)> {
        None
    }
}

#[derive(Debug)]
struct Wheel;

impl CacheControl for Wheel {
    fn status(&self) -> CacheStatus {
        let cache = Cache {
            wanted: NodePath::Auto,
            tcp: PathStatus::ebpf(""),
            tunnel: PathStatus::ebpf(""),
            gateway: PathStatus::ebpf(""),
            underlay: None,
            epoch: Some(7),
            gate: Default::default(),
            monitor: api::admin::MonitorHealth::Synced,
            unsynced_reason: String::new(),
            hold_ms: None,
            refresh_ms: 2_000,
            invalidations: Default::default(),
            divergences: 0,
        };
        CacheStatus { node: PathStatus::ebpf(""), cache, endpoints: Vec::new() }
    }
    fn diverged(&self) {}
    fn set_node_path(&self, path: NodePath) -> Result<PathStatus, String> {
        Ok(PathStatus { path: PacketPath::Ovs, reason: format!("asked for: {}", path.name()) })
    }
}

impl View for Node {
    fn unixctl(&self) -> Option<crate::ovs::unixctl::Unixctl> {
        None
    }
    fn kernel_datapath(&self) -> bool {
        false
    }
    fn ports(&self) -> &dyn audit::Ports {
        self
    }
    fn audited(&self, _: wire::Verdict, _: bool) {}
    fn flow_cache(&self) -> Option<Arc<dyn FlowCache>> {
        self.cache.clone().map(|cache| cache as Arc<dyn FlowCache>)
    }
    fn control(&self) -> Option<Arc<dyn CacheControl>> {
        self.cache.as_ref().map(|_| Arc::new(Wheel) as Arc<dyn CacheControl>)
    }
    fn naming(&self) -> Naming {
        naming()
    }
    fn path(&self) -> PathStatus {
        PathStatus { path: PacketPath::Ovs, reason: "--datapath=ovs".to_owned() }
    }
    fn status(&self) -> Result<wire::Status, AdminError> {
        Err(AdminError::Failed("map CONFIG cannot be read".to_owned()))
    }
    fn now_ms(&self) -> u64 {
        1
    }
}

/// Serves for one exchange. Returns the status line's code and the body.
async fn ask(node: Node, method: &str, path: &str, body: &str) -> (String, serde_json::Value) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.sock");
    let listener = crate::kernel::unix_socket::listen(&socket).unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, router(Arc::new(node))).await });
    let mut stream = UnixStream::connect(&socket).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    server.abort();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), serde_json::from_str(body).unwrap())
}

fn with_cache() -> Node {
    Node { cache: Some(Arc::default()) }
}

#[tokio::test]
async fn flows_are_given_with_names_up_to_the_limit() {
    let (code, all) = ask(with_cache(), "GET", wire::FLOWS, "").await;
    assert_eq!((code.as_str(), all.as_array().unwrap().len()), ("200", 3));
    assert_eq!(
        all[0]["action"],
        serde_json::json!({"kind": "tunnel", "remote": "172.18.0.3", "node": "n2", "vni": 5, "option": 0x0003_0002})
    );
    let request = r#"{"endpoint":"default/web-1","limit":1}"#;
    let (_, one) = ask(with_cache(), "POST", wire::FLOWS, request).await;
    assert_eq!((one.as_array().unwrap().len(), one[0]["source"].as_str()), (1, Some("10.244.0.3:40000")));
    let read: Vec<wire::Flow> = serde_json::from_value(all).unwrap();
    assert_eq!(read[2].flow.to_string(), "udp 10.244.0.4:5000 10.244.0.3:53");
}

#[tokio::test]
async fn counters_and_the_path_are_answered() {
    let (code, counters) = ask(with_cache(), "GET", wire::COUNTERS, "").await;
    assert_eq!((code.as_str(), &counters["tunnels"][0]["in"]["hitRatio"]), ("200", &serde_json::json!(0.75)));
    let (code, path) = ask(with_cache(), "POST", wire::PATH_NODE, r#"{"path":"ovs"}"#).await;
    assert_eq!((code.as_str(), path["reason"].as_str()), ("200", Some("asked for: ovs")));
}

#[tokio::test]
async fn what_cannot_be_done_is_said_with_value_and_remedy() {
    for (node, method, path, body, code, parts) in [
        (with_cache(), "POST", wire::FLOWS, r#"{"limit":0}"#, "400", ["limit `0`", "at least 1"]),
        (with_cache(), "POST", wire::FLOWS, r#"{"endpoint":"red/x"}"#, "404", ["`red/x`", "NAMESPACE/POD"]),
        (with_cache(), "POST", wire::FLOWS, r#"{"limits":1}"#, "400", ["`limits`", "`limit`"]),
        (with_cache(), "POST", wire::PATH_NODE, r#"{"path":"fast"}"#, "400", ["`fast`", "`auto`"]),
        (with_cache(), "POST", wire::PATH_NODE, "", "400", ["path", "missing"]),
        (with_cache(), "POST", wire::AUDIT, r#"{"limit":0}"#, "400", ["limit `0`", "at least 1"]),
        (with_cache(), "POST", wire::AUDIT, "", "409", ["not on this node", "--ovs-db"]),
        (with_cache(), "GET", wire::STATUS, "", "500", ["CONFIG", "cannot be read"]),
        (with_cache(), "DELETE", wire::STATUS, "", "400", ["`DELETE`", wire::STATUS]),
        (with_cache(), "GET", "/v9/x", "", "404", ["`/v9/x`", "of the same version"]),
        (Node { cache: None }, "GET", wire::COUNTERS, "", "409", ["no flow cache", "--datapath=ovs"]),
        (
            Node { cache: None },
            "POST",
            wire::PATH_NODE,
            r#"{"path":"auto"}"#,
            "409",
            ["no flow", "--datapath"],
        ),
    ] {
        let (got, answer) = ask(node, method, path, body).await;
        let error = answer["error"].as_str().unwrap();
        assert!(
            got == code && parts.iter().all(|p| error.contains(p)),
            "{method} {path} {body}: {got} {error}"
        );
    }
}
