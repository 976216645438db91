//! A service's backends come and go under load, as in a rolling update: no new connection fails, and connections to the backend that
//! stays go on.

use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::admin::{CachedProtocol, ServiceTraffic};

use crate::demo::Pods;
use crate::demo::echoes::{self, Echo, Service};
use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::cluster::config::Datapath;
use testbed::traffic::Place;

/// Port of the service.
const PORT: u16 = 7202;
/// Times that the other backend comes or goes, and the time between.
const CHANGES: usize = 10;
const PAUSE: Duration = Duration::from_secs(2);
/// Most that the clients go on; they end when they are told to. A loaded machine may need five times as long as an idle one.
const SECONDS: u64 = 120;
/// Longest until the flow cache has both connections again after the last change. Each change of the endpoints ends their
/// entries, and a loaded machine takes its time.
const LEARNED: Duration = Duration::from_secs(8);

/// For an answer. The kernel sends a SYN again after 1 s; OVN may lose one while it rewrites its flows, with any datapath.
const TIMEOUT_MS: &str = "2500";

/// On one node and across nodes: the backend that stays is on n2, the other one on n1, where the clients are.
pub(crate) fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    let pods = Pods::list(bed)?;
    let other: (IpAddr, &str) = (pods.find("web-1")?.1.into(), "n1");
    let stays: (IpAddr, &str) = (pods.find("web-2")?.1.into(), "n2");
    let _echoes =
        [Echo::in_pod(bed, "n1", pods.find("web-1")?.0)?, Echo::in_pod(bed, "n2", pods.find("web-2")?.0)?];
    let service = |backends| Service {
        namespace: "shop",
        name: "rolling",
        port: PORT,
        backends,
        node_port: None,
        local: false,
    };
    let (alone, both) = ([stays], [stays, other]);
    let made = service(&alone).create(bed)?;
    let address = *made.iter().find(|ip| ip.is_ipv4()).context("the service has no IPv4 address")?;
    let place =
        Place::Pod { node: "n1".into(), namespace: "shop".into(), name: pods.find("client")?.0.into() };
    // OVN has to hear of the service first.
    thread::sleep(Duration::from_secs(2));
    let clients = [
        ("a TCP connection to the backend that stays", start(bed, &place, address, &["--pause", "2"])?),
        ("UDP to the backend that stays", start(bed, &place, address, &["--udp", "--pause", "2"])?),
        ("new TCP connections", start(bed, &place, address, &["--connect", "--pause", "5"])?),
    ];
    thread::sleep(PAUSE);
    for change in 0..CHANGES {
        let backends: &[_] = if change % 2 == 0 { &both } else { &alone };
        service(backends).create(bed)?;
        thread::sleep(PAUSE);
    }
    if bed.config().datapath != Datapath::Ovs {
        for protocol in [CachedProtocol::Tcp, CachedProtocol::Udp] {
            let what = format!("slipctl services shows the {protocol} connection to the backend that stays");
            checks.check(what, soon_shown(bed, protocol, address, stays.0).map_err(|e| format!("{e:#}")));
        }
    }
    for (what, client) in clients {
        let what = format!("{what}, while another comes and goes {CHANGES} times");
        checks.check(what, judge(client).map_err(|e| format!("{e:#}")));
    }
    service(&alone).delete(bed)
}

fn start(bed: &Bed, place: &Place, address: IpAddr, more: &[&str]) -> Result<Child> {
    let mut client = echoes::client(bed, place)?;
    client.args(["--count", "1000000", "--until-closed", "--timeout", TIMEOUT_MS]).args(more);
    client.args(["--seconds", &SECONDS.to_string(), &address.to_string(), &PORT.to_string()]);
    client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a client")
}

/// [`shown`], as soon as it shows it: within [`LEARNED`].
fn soon_shown(bed: &Bed, protocol: CachedProtocol, address: IpAddr, backend: IpAddr) -> Result<String> {
    let started = Instant::now();
    loop {
        match shown(bed, protocol, address, backend) {
            Err(_) if started.elapsed() < LEARNED => thread::sleep(Duration::from_millis(100)),
            Ok(text) => return Ok(format!("{text}, {} ms after", started.elapsed().as_millis())),
            failed => {
                let status = bed.agent("n1").slipctl(&["status"])?;
                return failed.with_context(|| format!("slipctl status: {status}"));
            }
        }
    }
}

/// What slipctl on the clients' node shows of the service.
fn shown(bed: &Bed, protocol: CachedProtocol, address: IpAddr, backend: IpAddr) -> Result<String> {
    let services: Vec<ServiceTraffic> = bed.agent("n1").slipctl_json(&["services"])?;
    let front = SocketAddr::new(address, PORT).to_string();
    let of = |s: &&ServiceTraffic| {
        (s.protocol, s.service.as_str(), &s.address) == (protocol, "shop/rolling", &front)
    };
    let service = services.iter().find(of).with_context(|| format!("no line of {front}: {services:?}"))?;
    let backend = service.backends.iter().find(|one| one.address == SocketAddr::new(backend, echoes::PORT));
    let backend = backend.with_context(|| format!("no line of the backend: {service:?}"))?;
    let (to, from) = (backend.to_backend.packets, backend.from_backend.packets);
    let text = format!("{} connections, {to} packets to it and {from} from it", backend.connections);
    ensure!(backend.connections > 0 && to > 10 && from > 10, "{text}");
    Ok(text)
}

/// Ends a client, by closing its standard input, and judges what it saw.
fn judge(client: Child) -> Result<String> {
    let output = client.wait_with_output()?;
    let seen = echoes::round_trips(&String::from_utf8_lossy(&output.stdout))?;
    let text = format!("{} answers, {} lost", seen.answers, seen.lost);
    ensure!(seen.answers > 500 && seen.lost == 0, "{text}");
    Ok(text)
}
