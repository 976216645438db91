//! The resources, requested as `slipctl` requests them: over a real unix socket.

use crate::flow_cache::CacheControl;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::naming::{Naming, tests::naming};
use super::*;
use crate::flow_cache::fake::Fake;
use crate::flow_cache::{Services, StoreError};
use crate::kube::service_names::fixture::service;
use api::admin::{Cache, CacheStatus, NodePath, Path as PacketPath, PathStatus};

struct Node {
    cache: Option<Arc<Fake>>,
    services: Services,
}

impl view::Ports for Node {
    fn number(&self, _: &str) -> Option<i64> {
        None
    }
    fn tunnel(&self, _: std::net::IpAddr) -> Option<(i64, Option<std::net::IpAddr>)> {
        None
    }
}

#[derive(Debug)]
struct Wheel(Services);

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
            scoped_changes: Default::default(),
            unscoped_reason: String::new(),
            divergences: 0,
            slow_services: Vec::new(),
            tracking_unheard: String::new(),
        };
        CacheStatus { node: PathStatus::ebpf(""), cache, endpoints: Vec::new() }
    }
    fn services(&self) -> &Services {
        &self.0
    }
    fn diverged(&self) {}
    fn set_node_path(&self, path: NodePath) -> Result<PathStatus, StoreError> {
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
    fn ports(&self) -> &dyn view::Ports {
        self
    }
    fn audited(&self, _: wire::Verdict, _: bool) {}
    fn flow_cache(&self) -> Option<Arc<dyn FlowCache>> {
        self.cache.clone().map(|cache| cache as Arc<dyn FlowCache>)
    }
    fn control(&self) -> Option<Arc<dyn CacheControl>> {
        self.cache.as_ref().map(|_| Arc::new(Wheel(self.services.clone())) as Arc<dyn CacheControl>)
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
    on_service(Arc::default(), std::path::Path::new("/nonexistent"))
}

/// A node of a cluster with service `shop/web`; paths of services are kept in `state`.
fn on_service(cache: Arc<Fake>, state: &std::path::Path) -> Node {
    let services = Services::new(Some(Arc::clone(&cache) as Arc<dyn FlowCache>), state).unwrap();
    let web = service("web", "10.96.0.9", None);
    services.names().set(&web.name, Some(&web));
    services.names().set_complete();
    services.set_node_addresses(Default::default());
    Node { cache: Some(cache), services }
}

fn without_cache() -> Node {
    Node { cache: None, services: Services::none() }
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
async fn the_path_of_a_service_is_set_shown_and_counted() {
    let state = tempfile::tempdir().unwrap();
    let cache: Arc<Fake> = Arc::default();
    let node = || on_service(Arc::clone(&cache), state.path());
    let (_, list) = ask(node(), "GET", wire::PATH_SERVICE, "").await;
    assert_eq!(list, serde_json::json!([]));
    let request = r#"{"service":"shop/web","path":"ovs"}"#;
    let (code, shown) = ask(node(), "POST", wire::PATH_SERVICE, request).await;
    assert_eq!(
        (code.as_str(), shown["path"].as_str(), &shown["temporary"]),
        ("200", Some("ovs"), &false.into())
    );
    assert_eq!(shown["addresses"], serde_json::json!(["tcp 10.96.0.9:80"]));
    // Another agent has it from the disk.
    let (_, list) = ask(node(), "GET", wire::PATH_SERVICE, "").await;
    assert_eq!(list, serde_json::json!([shown]));
    let request = r#"{"service":"shop/web","path":"ebpf","forMs":5000}"#;
    let (_, shown) = ask(node(), "POST", wire::PATH_SERVICE, request).await;
    // Of the node this is, as it takes no part.
    assert_eq!((&shown["temporary"], shown["reason"].as_str()), (&true.into(), Some("--datapath=ovs")));
    let (code, totals) = ask(node(), "POST", wire::SERVICE_TOTALS, r#"{"service":"shop/web"}"#).await;
    assert_eq!(
        (code.as_str(), &totals["backends"], totals["atMs"].as_u64()),
        ("200", &serde_json::json!([]), Some(1))
    );
}

#[tokio::test]
async fn what_cannot_be_done_is_said_with_value_and_remedy() {
    for (node, method, path, body, code, parts) in [
        (with_cache(), "POST", wire::FLOWS, r#"{"limit":0}"#, "400", ["limit `0`", "at least 1"]),
        (with_cache(), "POST", wire::FLOWS, r#"{"endpoint":"red/x"}"#, "404", ["`red/x`", "NAMESPACE/POD"]),
        (with_cache(), "POST", wire::FLOWS, r#"{"limits":1}"#, "400", ["`limits`", "`limit`"]),
        (with_cache(), "POST", wire::PATH_NODE, r#"{"path":"fast"}"#, "400", ["`fast`", "`auto`"]),
        (with_cache(), "POST", wire::PATH_NODE, "", "400", ["path", "missing"]),
        (
            with_cache(),
            "POST",
            wire::PATH_SERVICE,
            r#"{"service":"shop/no","path":"ovs"}"#,
            "404",
            ["`shop/no`", "NAMESPACE/NAME"],
        ),
        (
            with_cache(),
            "POST",
            wire::PATH_SERVICE,
            r#"{"service":"web"}"#,
            "400",
            ["`web`", "NAMESPACE/NAME"],
        ),
        (
            with_cache(),
            "POST",
            wire::PATH_SERVICE,
            r#"{"service":"shop/web","path":"auto"}"#,
            "400",
            ["`auto`", "`ovs`"],
        ),
        (
            with_cache(),
            "POST",
            wire::PATH_SERVICE,
            r#"{"service":"shop/web","path":"ovs","forMs":600001}"#,
            "400",
            ["`600001`", "at most 600000"],
        ),
        (
            with_cache(),
            "POST",
            wire::SERVICE_TOTALS,
            r#"{"service":"shop/no"}"#,
            "404",
            ["`shop/no`", "no service"],
        ),
        (without_cache(), "GET", wire::PATH_SERVICE, "", "409", ["no flow cache", "--datapath=ovs"]),
        (with_cache(), "POST", wire::AUDIT, r#"{"limit":0}"#, "400", ["limit `0`", "at least 1"]),
        (with_cache(), "POST", wire::AUDIT, "", "409", ["not on this node", "--ovs-db"]),
        (with_cache(), "GET", wire::STATUS, "", "500", ["CONFIG", "cannot be read"]),
        (with_cache(), "DELETE", wire::STATUS, "", "400", ["`DELETE`", wire::STATUS]),
        (with_cache(), "GET", "/v9/x", "", "404", ["`/v9/x`", "of the same version"]),
        (without_cache(), "GET", wire::COUNTERS, "", "409", ["no flow cache", "--datapath=ovs"]),
        (without_cache(), "POST", wire::PATH_NODE, r#"{"path":"auto"}"#, "409", ["no flow", "--datapath"]),
    ] {
        let (got, answer) = ask(node, method, path, body).await;
        let error = answer["error"].as_str().unwrap();
        assert!(
            got == code && parts.iter().all(|p| error.contains(p)),
            "{method} {path} {body}: {got} {error}"
        );
    }
}
