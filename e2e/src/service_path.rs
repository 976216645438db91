//! A service that is kept off the flow cache on its clients' node: it is answered, the cache carries nothing of it in either direction,
//! and carries other services as before. It stays off when the agent is restarted, and comes back when it is asked to.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::admin::{PathTotals, ServicePath};

use crate::demo::Pods;
use crate::demo::echoes::{self, Echo, Service};
use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::exec;
use testbed::traffic::Place;

/// Where the clients are, and the service is kept off the cache.
const NODE: &str = "n1";
/// The service that leaves, with its backend on the other node, and one that stays, with its backend on this one.
const LEAVES: &str = "path-leaves";
const STAYS: &str = "path-stays";
const PORTS: [u16; 2] = [7204, 7205];
/// Round trips of a connection.
const COUNT: u64 = 500;
/// Times that a service is asked until the cache carries it: whatever changes on the node ends its entries.
const TRIES: usize = 5;
/// Longest until the agent knows a new service.
const KNOWN: Duration = Duration::from_secs(20);
/// Longest until the agent answers after its start.
const BACK: Duration = Duration::from_secs(20);

pub(crate) fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let scene = Scene::set(bed)?;
    let mut row =
        |what: &str, outcome: Result<String>| checks.check(what, outcome.map_err(|e| format!("{e:#}")));
    row("the flow cache carries both services", scene.both_fast());
    row("a service that does not exist is an error with its name", scene.unknown());
    row("the service is answered through OVS alone, the other one is cached", scene.leaves());
    row("it stays off the cache when the agent is restarted", scene.restarts());
    row("it is cached again when it is asked to come back", scene.comes_back());
    scene.clear()
}

struct Scene<'a> {
    bed: &'a Bed,
    place: Place,
    _echoes: [Echo; 2],
    services: Vec<(Service<'static>, Vec<IpAddr>)>,
}

impl Scene<'_> {
    fn set(bed: &Bed) -> Result<Scene<'_>> {
        let pods = Pods::list(bed)?;
        let (near, far) = (pods.find("web-1")?, pods.find("web-2")?);
        let echoes = [Echo::in_pod(bed, "n1", near.0)?, Echo::in_pod(bed, "n2", far.0)?];
        let mut services = Vec::new();
        for (name, port, web, node) in [(LEAVES, PORTS[0], "web-2", "n2"), (STAYS, PORTS[1], "web-1", "n1")] {
            let mut backends: Vec<(IpAddr, &'static str)> = vec![(pods.find(web)?.1.into(), node)];
            if bed.config().dual_stack {
                backends.push((pods.find_6(web)?.1.into(), node));
            }
            // The objects are few, and live as long as the test.
            let backends: &'static [_] = backends.leak();
            let service = Service { namespace: "shop", name, port, backends, node_port: None, local: false };
            let mut ips = service.create(bed)?;
            ips.retain(|ip| backends.iter().any(|(backend, _)| backend.is_ipv6() == ip.is_ipv6()));
            ensure!(ips.len() == backends.len(), "{name} has {ips:?}");
            services.push((service, ips));
        }
        let place =
            Place::Pod { node: NODE.into(), namespace: "shop".into(), name: pods.find("client")?.0.into() };
        Ok(Scene { bed, place, _echoes: echoes, services })
    }

    fn clear(self) -> Result<()> {
        self.services.iter().try_for_each(|(service, _)| service.delete(self.bed))
    }

    fn service(&self, name: &str) -> Result<&(Service<'static>, Vec<IpAddr>)> {
        self.services.iter().find(|(service, _)| service.name == name).context("no such service")
    }

    /// Asks a service by TCP and UDP, over each of its addresses; the fewest answers of a connection.
    fn ask(&self, name: &str) -> Result<u64> {
        let (service, ips) = self.service(name)?;
        let mut fewest = COUNT;
        for ip in ips {
            for udp in [false, true] {
                let mut client = echoes::client(self.bed, &self.place)?;
                client.args(["--count", &COUNT.to_string(), "--seconds", "5"]).args(udp.then_some("--udp"));
                client.args([ip.to_string(), service.port.to_string()]);
                // OVN has to hear of a service first.
                let said = exec::retry(Duration::from_secs(20), name, || exec::output(&mut client))?;
                let seen = echoes::round_trips(&said)?;
                ensure!(seen.lost == 0 && seen.answers > 100, "{name} at {ip}, UDP {udp}: {seen:?}");
                fewest = fewest.min(seen.answers);
            }
        }
        Ok(fewest)
    }

    /// What was carried for a service by the cache, and what by OVS.
    fn totals(&self, name: &str) -> Result<[PathTotals; 2]> {
        let totals = self.bed.agent(NODE).service_totals(&format!("shop/{name}"))?;
        let sum = |of: fn(&api::admin::BackendTotals) -> PathTotals| {
            totals.backends.iter().map(of).fold(PathTotals::default(), |mut all, one| {
                all.to_backend.packets += one.to_backend.packets;
                all.from_backend.packets += one.from_backend.packets;
                all
            })
        };
        Ok([sum(|backend| backend.fast), sum(|backend| backend.slow)])
    }

    /// Asks a service; packets to and from the backend by the cache, the same by OVS, and the fewest answers of a connection.
    fn carried(&self, name: &str) -> Result<([[u64; 2]; 2], u64)> {
        let before = self.totals(name)?;
        let answers = self.ask(name)?;
        let after = self.totals(name)?;
        let more = |path: usize| {
            let (before, after): (&PathTotals, &PathTotals) = (&before[path], &after[path]);
            [
                after.to_backend.packets - before.to_backend.packets,
                after.from_backend.packets - before.from_backend.packets,
            ]
        };
        Ok(([more(0), more(1)], answers))
    }

    /// The cache carries a service in both directions, all but the first packets and refreshes.
    fn fast(&self, name: &str) -> Result<String> {
        let mut tried = 0;
        loop {
            let ([fast, slow], answers) = self.carried(name)?;
            let connections = self.service(name)?.1.len() as u64 * 2;
            let text =
                format!("{name}: to and from the backend {fast:?} packets by the cache and {slow:?} by OVS");
            tried += 1;
            if slow == [0, 0] && fast.iter().all(|packets| *packets > answers * connections * 3 / 4) {
                return Ok(text);
            }
            ensure!(tried < TRIES, "{text}; {answers} answers");
        }
    }

    /// The cache carries nothing of a service, and has counted what OVS carried.
    fn slow(&self, name: &str) -> Result<String> {
        let ([fast, slow], answers) = self.carried(name)?;
        let text =
            format!("{name}: to and from the backend {fast:?} packets by the cache and {slow:?} by OVS");
        ensure!(fast == [0, 0] && slow.iter().all(|packets| *packets > answers), "{text}; {answers} answers");
        Ok(text)
    }

    fn both_fast(&self) -> Result<String> {
        // The agent hears of a service by its own watch, some time after the API server has it.
        for name in [LEAVES, STAYS] {
            exec::retry(KNOWN, name, || self.totals(name))?;
        }
        Ok(format!("{}; {}", self.fast(LEAVES)?, self.fast(STAYS)?))
    }

    fn path(&self, words: &[&str]) -> Result<ServicePath> {
        self.bed.agent(NODE).slipctl_json(&[&["path", "service"], words].concat())
    }

    fn unknown(&self) -> Result<String> {
        match self.bed.agent(NODE).slipctl(&["path", "service", "shop/none", "ovs"]) {
            Ok(said) => bail!("it said {said:?}"),
            Err(error) => {
                let text = format!("{error:#}");
                ensure!(text.contains("no service `shop/none`"), "{text}");
                Ok("no service `shop/none`".to_owned())
            }
        }
    }

    fn leaves(&self) -> Result<String> {
        let shown = self.path(&[&format!("shop/{LEAVES}"), "ovs"])?;
        ensure!(shown.path.path == api::admin::Path::Ovs && !shown.addresses.is_empty(), "{shown:?}");
        let text = format!("{}; {}", self.slow(LEAVES)?, self.fast(STAYS)?);
        ensure!(self.reason()? > 0, "no packet was counted as service_slow");
        Ok(text)
    }

    fn reason(&self) -> Result<u64> {
        let status = self.bed.agent(NODE).status()?;
        Ok(status["packetReasons"]["service_slow"].as_u64().unwrap_or_default())
    }

    fn restarts(&self) -> Result<String> {
        self.bed.host(NODE).restart("node-agent")?;
        let started = Instant::now();
        loop {
            let is_back = self
                .bed
                .agent(NODE)
                .status()
                .is_ok_and(|s| s["ready"] == true && s["cache"]["sight"] == "open");
            if is_back && self.totals(LEAVES).is_ok() {
                break;
            }
            ensure!(
                started.elapsed() < BACK,
                "the agent does not come back: {:?}",
                self.bed.agent(NODE).status()
            );
            thread::sleep(Duration::from_millis(100));
        }
        let shown = self.path(&[&format!("shop/{LEAVES}")])?;
        ensure!(shown.wanted == api::admin::Path::Ovs && !shown.temporary, "{shown:?}");
        Ok(format!("{}; {}", self.slow(LEAVES)?, self.fast(STAYS)?))
    }

    fn comes_back(&self) -> Result<String> {
        let shown = self.path(&[&format!("shop/{LEAVES}"), "ebpf"])?;
        ensure!(shown.path.path == api::admin::Path::Ebpf, "{shown:?}");
        self.fast(LEAVES)
    }
}
