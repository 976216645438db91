//! The paths of services, on a fake cache.

use super::*;
use crate::flow_cache::Carried;
use crate::flow_cache::fake::Fake;
use crate::kube::service_names::fixture::service;
use api::admin::Amount;

pub(in crate::flow_cache) const WEB: &str = "shop/web";

/// Services `shop/web` (10.96.0.9, node port 30080) and `shop/db` (10.96.0.10), at a node with an address of each family.
pub(in crate::flow_cache) struct Bed {
    pub(in crate::flow_cache) services: Services,
    fake: Arc<Fake>,
    _state: tempfile::TempDir,
}

/// An entry of a connection to `shop/web` that counted so many packets.
pub(in crate::flow_cache) fn entry(slow: bool, packets: u64) -> Carried {
    let address = |text: &str| text.parse().unwrap();
    Carried {
        id: 1,
        learned: u32::from(slow),
        protocol: Protocol::Tcp,
        before: (address("10.244.0.4:40000"), address("10.96.0.9:80")),
        after: (address("10.244.0.4:40000"), address("10.244.0.3:8080")),
        slow,
        amount: Amount { packets, bytes: packets * 100 },
    }
}

fn list(names: &ServiceNames) {
    for (name, ip, node_port) in [("web", "10.96.0.9", Some(30_080)), ("db", "10.96.0.10", None)] {
        let service = service(name, ip, node_port);
        names.set(&service.name, Some(&service));
    }
    names.set_complete();
}

fn node() -> BTreeSet<IpAddr> {
    ["172.18.0.2", "fd00::2"].map(|ip| ip.parse().unwrap()).into()
}

impl Bed {
    pub(in crate::flow_cache) fn new() -> Self {
        let bed = Self::unlisted(Arc::default(), tempfile::tempdir().unwrap());
        list(bed.services.names());
        bed.services.set_node_addresses(node());
        bed
    }

    fn unlisted(fake: Arc<Fake>, state: tempfile::TempDir) -> Self {
        let services = Services::new(Some(Arc::clone(&fake) as Arc<dyn FlowCache>), state.path()).unwrap();
        Self { services, fake, _state: state }
    }

    /// The next agent, which knows nothing of the cluster yet.
    fn restarted(self) -> Self {
        Self::unlisted(self.fake, self._state)
    }

    /// A round in which the cache has these entries.
    pub(in crate::flow_cache) fn round(&self, entries: &[Carried]) {
        *self.fake.entries.lock() = entries.to_vec();
        self.services.sweep().unwrap().unwrap();
    }

    fn kept_off(&self) -> Vec<String> {
        let list = self.fake.slow.lock();
        list.iter().map(|a| format!("{} {}", a.protocol, SocketAddr::new(a.address, a.port))).collect()
    }
}

fn name(text: &str) -> NamespacedName {
    text.parse().unwrap()
}

const ALL_OF_WEB: [&str; 2] = ["tcp 10.96.0.9:80", "tcp 172.18.0.2:30080"];

#[test]
fn a_node_port_is_at_the_nodes_addresses_of_the_services_families() {
    let bed = Bed::new();
    bed.services.set(&name(WEB), Path::Ovs).unwrap();
    assert_eq!(bed.kept_off(), ALL_OF_WEB);
    let mut both = service("web", "10.96.0.9", Some(30_080));
    both.cluster_ips.push("fd00:96::9".parse().unwrap());
    bed.services.names().set(&both.name, Some(&both));
    bed.services.apply().unwrap();
    let six = ["tcp [fd00::2]:30080", "tcp [fd00:96::9]:80"];
    assert_eq!(bed.kept_off(), [ALL_OF_WEB, six].concat());
}

#[test]
fn a_service_leaves_the_cache_with_all_its_addresses_and_comes_back() {
    let bed = Bed::new();
    *bed.fake.entries.lock() = vec![entry(false, 5)];
    let shown = bed.services.set(&name(WEB), Path::Ovs).unwrap();
    assert_eq!(bed.kept_off(), ALL_OF_WEB);
    assert!(bed.fake.entries.lock().is_empty(), "its entries are gone when the call returns");
    assert_eq!((shown.wanted, shown.temporary, shown.path.path), (Path::Ovs, false, Path::Ovs));
    assert!(shown.path.reason.contains("slipctl path service"), "{}", shown.path.reason);
    assert_eq!(shown.addresses, ALL_OF_WEB);
    assert_eq!(bed.services.list(), [shown]);
    assert_eq!(bed.services.path(&name("shop/db")).unwrap().path.path, Path::Ebpf);

    *bed.fake.entries.lock() = vec![entry(true, 5)];
    let shown = bed.services.set(&name(WEB), Path::Ebpf).unwrap();
    assert_eq!((shown.path.path, bed.kept_off().len(), bed.services.list().len()), (Path::Ebpf, 0, 0));
    assert!(bed.fake.entries.lock().is_empty());
}

#[test]
fn two_services_are_kept_off_apart() {
    let bed = Bed::new();
    bed.services.set(&name(WEB), Path::Ovs).unwrap();
    bed.services.set(&name("shop/db"), Path::Ovs).unwrap();
    assert_eq!(bed.kept_off().len(), 3);
    bed.services.set(&name(WEB), Path::Ebpf).unwrap();
    assert_eq!(bed.kept_off(), ["tcp 10.96.0.10:80"]);
}

#[test]
fn a_service_that_does_not_exist_is_named_and_nothing_changes() {
    let bed = Bed::new();
    let missing = name("shop/nothing");
    for error in [
        bed.services.path(&missing).unwrap_err(),
        bed.services.set(&missing, Path::Ovs).unwrap_err(),
        bed.services.set(&missing, Path::Ebpf).unwrap_err(),
        bed.services.lend(&missing, Path::Ovs, RETRY).unwrap_err(),
        bed.services.totals(&missing).unwrap_err(),
    ] {
        assert_eq!(error.to_string(), "no service `shop/nothing` in this cluster; name it as NAMESPACE/NAME");
    }
    assert!(bed.services.list().is_empty() && bed.kept_off().is_empty());
}

#[test]
fn the_next_agent_keeps_a_service_off_also_before_it_knows_the_cluster() {
    let bed = Bed::new();
    bed.services.set(&name(WEB), Path::Ovs).unwrap();
    bed.services.lend(&name("shop/db"), Path::Ovs, LONGEST_LOAN).unwrap();
    assert_eq!(bed.kept_off().len(), 3);
    let bed = bed.restarted();
    bed.services.apply().unwrap();
    assert_eq!(bed.kept_off().len(), 3, "until the services are listed");
    let error = bed.services.set(&name("shop/db"), Path::Ovs).unwrap_err().to_string();
    assert!(error.contains("`shop/db`") && error.contains("try again"), "{error}");
    list(bed.services.names());
    bed.services.set_node_addresses(node());
    bed.services.apply().unwrap();
    assert_eq!(bed.kept_off(), ALL_OF_WEB, "what was for a while ended with the agent");
    bed.services.set(&name(WEB), Path::Ebpf).unwrap();
    let bed = bed.restarted();
    bed.services.apply().unwrap();
    assert!(bed.kept_off().is_empty());
}

#[test]
fn a_choice_follows_the_service_and_can_be_taken_back_when_it_is_gone() {
    let bed = Bed::new();
    bed.services.set(&name(WEB), Path::Ovs).unwrap();
    let moved = service("web", "10.96.0.77", None);
    bed.services.names().set(&moved.name, Some(&moved));
    bed.services.apply().unwrap();
    assert_eq!(bed.kept_off(), ["tcp 10.96.0.77:80"]);
    bed.services.names().set(&moved.name, None);
    bed.services.apply().unwrap();
    assert!(bed.kept_off().is_empty());
    let shown = bed.services.list().remove(0);
    assert!(shown.path.reason.contains("no such service now"), "{}", shown.path.reason);
    bed.services.set(&name(WEB), Path::Ebpf).unwrap();
    assert!(bed.services.list().is_empty());
}

#[test]
fn a_change_that_fails_is_undone_and_its_error_told() {
    let bed = Bed::new();
    bed.services.set(&name("shop/db"), Path::Ovs).unwrap();
    *bed.fake.full.lock() = true;
    let error = bed.services.set(&name(WEB), Path::Ovs).unwrap_err().to_string();
    assert!(error.contains("SLOW_SERVICES is full"), "{error}");
    assert_eq!(bed.services.failures().get(), 1);
    *bed.fake.full.lock() = false;
    assert_eq!(bed.services.slow(), [name("shop/db")].into());
    bed.services.apply().unwrap();
    assert_eq!(bed.kept_off(), ["tcp 10.96.0.10:80"]);
    let bed = bed.restarted();
    assert_eq!(bed.services.slow(), [name("shop/db")].into(), "nor is it kept on disk");
}

#[tokio::test]
async fn what_is_for_a_while_ends_by_itself_and_changes_are_followed() {
    let bed = Bed::new();
    let running = tokio::spawn(bed.services.clone().run());
    let until = async |what: &str, good: &dyn Fn(&Bed) -> bool| {
        let start = Instant::now();
        while !good(&bed) {
            assert!(start.elapsed() < Duration::from_secs(10), "{what}: {:?}", bed.kept_off());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let services = bed.services.clone();
    let lend = move || services.lend(&name(WEB), Path::Ovs, Duration::from_millis(300)).unwrap();
    let shown = tokio::task::spawn_blocking(lend).await.unwrap();
    assert!(shown.temporary && shown.path.reason.contains("slipctl compare"), "{shown:?}");
    assert_eq!(bed.kept_off(), ALL_OF_WEB);
    until("the end of the while", &|bed| bed.kept_off().is_empty()).await;
    assert!(bed.services.list().is_empty());

    let services = bed.services.clone();
    tokio::task::spawn_blocking(move || services.set(&name(WEB), Path::Ovs).unwrap()).await.unwrap();
    let moved = service("web", "10.96.0.77", None);
    bed.services.names().set(&moved.name, Some(&moved));
    until("the new address", &|bed| bed.kept_off() == ["tcp 10.96.0.77:80"]).await;
    running.abort();
}

#[test]
fn totals_are_of_the_service_that_was_asked_for() {
    let bed = Bed::new();
    bed.round(&[]);
    let other = Carried {
        before: (entry(false, 0).before.0, "10.96.0.10:80".parse().unwrap()),
        id: 2,
        ..entry(false, 9)
    };
    *bed.fake.entries.lock() = vec![entry(false, 4), other];
    let totals = bed.services.totals(&name(WEB)).unwrap();
    assert_eq!(totals.len(), 1);
    assert_eq!((totals[0].1.fast.to_backend.packets, totals[0].1.fast.connections), (4, 1));
}

#[test]
fn a_node_without_a_flow_cache_has_no_totals_and_says_so() {
    let services = Services::none();
    list(services.names());
    assert!(services.sweep().is_none());
    assert!(matches!(services.totals(&name(WEB)), Err(ServiceError::Cache(CacheError::Programs(_)))));
}
