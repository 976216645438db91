//! A service's backends come and go under load, as in a rolling update: no new connection fails, and connections to the backend that
//! stays go on.

use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use testbed::cluster::Bed;
use testbed::demo::Pods;
use testbed::demo::echoes::{self, Echo, Service};
use testbed::traffic::Place;
use testbed::ui::Checks;

/// Port of the service.
const PORT: u16 = 7202;
/// Times that the other backend comes or goes, and the time between.
const CHANGES: usize = 10;
const PAUSE: Duration = Duration::from_millis(1200);
/// How long the clients go on: all of the changes, and some time before and after.
const SECONDS: u64 = 17;

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
    for (what, client) in clients {
        let what = format!("{what}, while another comes and goes {CHANGES} times");
        checks.check(what, judge(client).map_err(|e| format!("{e:#}")));
    }
    service(&alone).delete(bed)
}

fn start(bed: &Bed, place: &Place, address: IpAddr, more: &[&str]) -> Result<Child> {
    let mut client = echoes::client(bed, place)?;
    client.args(["--count", "1000000", "--timeout", "1000"]).args(more);
    client.args(["--seconds", &SECONDS.to_string(), &address.to_string(), &PORT.to_string()]);
    client.stdout(Stdio::piped()).spawn().context("cannot start a client")
}

fn judge(client: Child) -> Result<String> {
    let output = client.wait_with_output()?;
    let seen = echoes::round_trips(&String::from_utf8_lossy(&output.stdout))?;
    let text = format!("{} answers, {} lost", seen.answers, seen.lost);
    ensure!(seen.answers > 500 && seen.lost == 0, "{text}");
    Ok(text)
}
