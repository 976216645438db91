//! [`Services`]: which services are kept off the flow cache, and what it carries for each.

mod choices;
mod file;
pub(in crate::flow_cache) mod stats;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::admin::{Path, PathStatus, ServicePath};
use api::service::Front;
use api::{NamespacedName, Protocol};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::Notify;

use crate::flow_cache::cache::{CacheError, FlowCache, See, ServiceAddress, ServiceCache, Swept};
use crate::flow_cache::path_file::StoreError;
use crate::kube::service_names::ServiceNames;
use choices::Choices;
use file::ServiceFile;
use stats::ServiceStats;
pub use stats::{Backend, Sums, Totals, Use, use_of};

/// Time between two looks for entries of the other path: a packet that was being learned when the path changed is learned by then.
const IN_FLIGHT: Duration = Duration::from_millis(50);
/// Time until a change that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest time for which a path can be asked for a while.
pub const LONGEST_LOAN: Duration = Duration::from_secs(600);

/// The services of the flow cache. Clones share state.
#[derive(Debug, Clone)]
pub struct Services(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    cache: Option<Arc<dyn FlowCache>>,
    names: ServiceNames,
    file: ServiceFile,
    choices: Mutex<Choices>,
    /// Addresses of the node; `None` until they are known.
    node_addresses: Mutex<Option<BTreeSet<IpAddr>>>,
    /// Is held while the maps are changed. True: they may not be as they should.
    unsettled: Mutex<bool>,
    stats: Mutex<ServiceStats>,
    change: Notify,
    failures: Counter,
}

/// Why the path of a service cannot be told or set.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// No such service.
    #[error("no service `{0}` in this cluster; name it as NAMESPACE/NAME")]
    Unknown(NamespacedName),
    /// The services are not known yet.
    #[error(
        "service `{0}` is not known yet: the services have not been listed from the Kubernetes API; try again"
    )]
    NotListed(NamespacedName),
    /// The choice cannot be persisted.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The maps cannot be read or written.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl Services {
    /// The services of `cache`, with the choices persisted under `state_dir`.
    ///
    /// # Errors
    /// The choices cannot be read.
    pub fn new(cache: Option<Arc<dyn FlowCache>>, state_dir: &FilePath) -> Result<Self, StoreError> {
        let file = ServiceFile::new(state_dir);
        let kept_off = file.load()?;
        Ok(Self::with(cache, file, Choices::new(kept_off)))
    }

    /// Services of a node without a flow cache.
    pub fn none() -> Self {
        Self::with(None, ServiceFile::new(FilePath::new("/nonexistent")), Choices::default())
    }

    fn with(cache: Option<Arc<dyn FlowCache>>, file: ServiceFile, choices: Choices) -> Self {
        Self(Arc::new(Shared {
            cache,
            names: ServiceNames::default(),
            file,
            choices: Mutex::new(choices),
            node_addresses: Mutex::default(),
            unsettled: Mutex::default(),
            stats: Mutex::default(),
            change: Notify::new(),
            failures: Counter::default(),
        }))
    }

    /// Names of services by address, which the owner of the watch fills.
    pub fn names(&self) -> &ServiceNames {
        &self.0.names
    }

    /// Sets the addresses of the node, at which its node ports are.
    pub fn set_node_addresses(&self, addresses: BTreeSet<IpAddr>) {
        let new = Some(addresses);
        let mut known = self.0.node_addresses.lock();
        if *known != new {
            *known = new;
            self.0.change.notify_one();
        }
    }

    /// Services whose packets OVS gets.
    pub fn slow(&self) -> BTreeSet<NamespacedName> {
        self.0.choices.lock().slow()
    }

    /// The services whose path was asked for.
    pub fn list(&self) -> Vec<ServicePath> {
        let all = self.0.choices.lock().all();
        all.iter().map(|name| self.show(name)).collect()
    }

    /// The path of a service.
    ///
    /// # Errors
    /// There is no such service, or it is not known yet.
    pub fn path(&self, name: &NamespacedName) -> Result<ServicePath, ServiceError> {
        self.known(name)?;
        Ok(self.show(name))
    }

    /// Sets the path of a service for good. Blocks: when it returns, no entry of the other path is left.
    ///
    /// # Errors
    /// There is no such service, the choice cannot be persisted, or the maps cannot be written. The path is as before then, as far as
    /// the maps can be written.
    pub fn set(&self, name: &NamespacedName, path: Path) -> Result<ServicePath, ServiceError> {
        self.change(name, path, |choices| choices.set(name, path))
    }

    /// Sets the path of a service for a while, [`LONGEST_LOAN`] at most; with no time, the path from before comes back. As
    /// [`Self::set`] otherwise.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn lend(
        &self,
        name: &NamespacedName,
        path: Path,
        time: Duration,
    ) -> Result<ServicePath, ServiceError> {
        let time = time.min(LONGEST_LOAN);
        let path_needed = if time.is_zero() { Path::Ebpf } else { path };
        self.change(name, path_needed, |choices| choices.lend(name, path, Instant::now(), time))
    }

    fn change(
        &self,
        name: &NamespacedName,
        path: Path,
        change: impl FnOnce(&mut Choices),
    ) -> Result<ServicePath, ServiceError> {
        // What was asked of a service that is gone can be taken back.
        if path != Path::Ebpf || !self.0.choices.lock().has(name) {
            self.known(name)?;
        }
        let before = {
            let mut choices = self.0.choices.lock();
            let mut new = choices.clone();
            change(&mut new);
            if new.kept_off() != choices.kept_off() {
                self.0.file.save(new.kept_off())?;
            }
            std::mem::replace(&mut *choices, new)
        };
        if let Err(error) = self.apply() {
            self.take_back(before);
            return Err(error.into());
        }
        let shown = self.show(name);
        tracing::info!(service = %name, path = shown.wanted.name(), temporary = shown.temporary, "path of a service requested");
        // The task waits for the end of what is for a while.
        self.0.change.notify_one();
        Ok(shown)
    }

    fn take_back(&self, before: Choices) {
        self.0.failures.inc();
        {
            let mut choices = self.0.choices.lock();
            if let Err(error) = self.0.file.save(before.kept_off()) {
                tracing::error!(%error, "cannot persist the paths of services");
            }
            *choices = before;
        }
        // Tried again until it succeeds.
        self.0.change.notify_one();
    }

    fn known(&self, name: &NamespacedName) -> Result<(), ServiceError> {
        if self.0.names.fronts(name).is_some() {
            return Ok(());
        }
        match self.0.names.is_complete() {
            true => Err(ServiceError::Unknown(name.clone())),
            false => Err(ServiceError::NotListed(name.clone())),
        }
    }

    fn show(&self, name: &NamespacedName) -> ServicePath {
        let (wanted, temporary) = self.0.choices.lock().of(name);
        let addresses = self.addresses(name);
        let gone = if addresses.is_none() { "; there is no such service now" } else { "" };
        let path = match (wanted, temporary) {
            (Path::Ebpf, _) => PathStatus::ebpf("its connections are cached where their ends are eligible"),
            (Path::Ovs, false) => {
                PathStatus::ovs(format!("requested for the service (slipctl path service){gone}"))
            }
            (Path::Ovs, true) => PathStatus::ovs(format!("requested for a while (slipctl compare){gone}")),
        };
        let addresses = addresses.unwrap_or_default();
        let shown =
            addresses.iter().map(|at| format!("{} {}", at.protocol, SocketAddr::new(at.address, at.port)));
        ServicePath { service: name.to_string(), wanted, temporary, path, addresses: shown.collect() }
    }

    /// Where packets for a service enter OVS; `None` if there is no such service. Its node ports are at the node's addresses of the
    /// families that it has.
    fn addresses(&self, name: &NamespacedName) -> Option<BTreeSet<ServiceAddress>> {
        let fronts = self.0.names.fronts(name)?;
        let has_family_of = |ip: &IpAddr| {
            fronts
                .iter()
                .any(|(_, front)| matches!(front, Front::Address(at, _) if at.is_ipv4() == ip.is_ipv4()))
        };
        let mut node = self.0.node_addresses.lock().clone().unwrap_or_default();
        node.retain(has_family_of);
        let cached = fronts.iter().filter(|(protocol, _)| *protocol != Protocol::Sctp);
        let places = |&(protocol, front): &(Protocol, Front)| -> Vec<ServiceAddress> {
            let at = |address, port| ServiceAddress { address, port, protocol };
            match front {
                Front::Address(ip, port) => vec![at(ip, port)],
                Front::NodePort(port) => node.iter().map(|ip| at(*ip, port)).collect(),
            }
        };
        Some(cached.flat_map(places).collect())
    }

    /// Makes the maps what was asked for, and ends the entries of the other path. Blocks.
    fn apply(&self) -> Result<(), CacheError> {
        let Some(cache) = self.cache() else { return Ok(()) };
        let mut unsettled = self.0.unsettled.lock();
        let slow = self.slow();
        let mut wanted: BTreeSet<ServiceAddress> =
            slow.iter().filter_map(|name| self.addresses(name)).flatten().collect();
        let there = cache.slow_services()?;
        if !self.0.names.is_complete() || self.0.node_addresses.lock().is_none() {
            // The agent before knew more.
            wanted.extend(there.iter().filter(|_| !slow.is_empty()));
        }
        if wanted == there && !*unsettled {
            return Ok(());
        }
        *unsettled = true;
        cache.set_slow_services(&wanted)?;
        let mut ended = self.walk(|cache, see| cache.end_misplaced(see))?;
        std::thread::sleep(IN_FLIGHT);
        ended += self.walk(|cache, see| cache.end_misplaced(see))?;
        *unsettled = false;
        tracing::debug!(addresses = wanted.len(), ended, "addresses of services on the slow path changed");
        Ok(())
    }

    fn cache(&self) -> Option<&dyn ServiceCache> {
        self.0.cache.as_deref()?.services()
    }

    /// A round over all entries, in which they are counted. Blocks.
    fn walk<T>(
        &self,
        look: impl FnOnce(&dyn ServiceCache, See<'_>) -> Result<T, CacheError>,
    ) -> Result<T, CacheError> {
        let cache = self
            .cache()
            .ok_or_else(|| CacheError::Programs("the flow cache knows no services".to_owned()))?;
        let mut stats = self.0.stats.lock();
        let (now, names) = (Instant::now(), &self.0.names);
        let complete = names.is_complete();
        let done = look(cache, &mut |entry| stats.see(entry, names, now))?;
        stats.end_round(now, complete);
        Ok(done)
    }

    /// Sweeps the maps, and counts what was carried. `None`: the cache knows no services. Blocks.
    pub(super) fn sweep(&self) -> Option<Result<Swept, CacheError>> {
        self.cache().is_some().then(|| self.walk(|cache, see| cache.sweep_seeing(see)))
    }

    /// What was carried for a service until now, by backend. Blocks: iterates over all entries.
    ///
    /// # Errors
    /// There is no such service, or the maps cannot be read.
    pub fn totals(&self, name: &NamespacedName) -> Result<Vec<(Backend, Totals)>, ServiceError> {
        self.known(name)?;
        self.walk(|cache, see| cache.each_carried(see))?;
        let stats = self.0.stats.lock();
        let its_own = stats.backends().filter(|(of, _)| of.service == *name);
        Ok(its_own.map(|(of, totals)| (of.clone(), *totals)).collect())
    }

    /// Calls `read` with the sums as of the last round.
    pub(super) fn with_stats<T>(&self, read: impl FnOnce(&ServiceStats) -> T) -> T {
        read(&self.0.stats.lock())
    }

    /// Changes that failed.
    pub(super) fn failures(&self) -> Counter {
        self.0.failures.clone()
    }

    /// Follows changes of services and of the node's addresses, and ends what was asked for a while. Never returns.
    pub(super) async fn run(self) {
        let mut changes = self.0.names.changes();
        loop {
            self.0.choices.lock().expire(Instant::now());
            let services = self.clone();
            let done = tokio::task::spawn_blocking(move || services.apply()).await;
            let done = done.unwrap_or_else(|error| Err(CacheError::Programs(error.to_string())));
            let failed = done.inspect_err(|error| {
                self.0.failures.inc();
                tracing::error!(%error, "cannot change which services take the slow path; retrying");
            });
            let end = self.0.choices.lock().next_end();
            let again = failed.is_err().then(|| Instant::now() + RETRY);
            let wait = async {
                match [end, again].into_iter().flatten().min() {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.0.change.notified() => {}
                // The names live as long as this.
                _ = changes.changed() => {}
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
