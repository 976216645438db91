//! A UDP client that goes on sending from one port while its service's only backend is replaced, or refused by a traffic policy: it is served by
//! the new one.

use std::net::IpAddr;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use testbed::cluster::Bed;
use testbed::cluster::config::node_ip;
use testbed::demo::Pods;
use testbed::demo::echoes::{self, Echo, Service};
use testbed::traffic::Place;
use testbed::ui::Checks;

/// Port of the service.
const PORT: u16 = 7201;
/// Its node port, where it has one.
const NODE_PORT: u16 = 30_191;
/// How long the client goes on; in milliseconds where it pauses.
const SECONDS: u64 = 16;
/// When the backend is replaced, and when the old one stops answering: what is still sent to it is lost from then on.
const REPLACED: Duration = Duration::from_secs(3);
const SILENT: Duration = Duration::from_secs(10);

/// From a backend on the client's node to one on the other, and back; and from the other node to the own one, as a traffic policy wants it.
pub(crate) fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    for (old, new) in [(("n1", "web-1"), ("n2", "web-2")), (("n2", "web-2"), ("n1", "web-1"))] {
        let what = format!("UDP follows from the backend on {} to the one on {}", old.0, new.0);
        checks.check(what, replaced(bed, old, new).map_err(|e| format!("{e:#}")));
    }
    let what = "UDP from outside follows to the node's own backend when externalTrafficPolicy becomes Local";
    checks.check(what, policy(bed).map_err(|e| format!("{e:#}")));
    Ok(())
}

/// Where a client sends to, and what of the service changes meanwhile.
struct Change<'a> {
    client: Place,
    /// Where the client sends to; none: the service's address.
    target: Option<(IpAddr, u16)>,
    before: Service<'a>,
    after: Service<'a>,
}

fn replaced(bed: &Bed, old: (&'static str, &str), new: (&'static str, &str)) -> Result<String> {
    let pods = Pods::list(bed)?;
    let first = [(pods.find(old.1)?.1.into(), old.0)];
    let second = [(pods.find(new.1)?.1.into(), new.0)];
    let client =
        Place::Pod { node: "n1".into(), namespace: "shop".into(), name: pods.find("client")?.0.into() };
    let change = Change {
        client,
        target: None,
        before: service(&first, None, false),
        after: service(&second, None, false),
    };
    served(bed, &change, old, new)
}

/// The client asks the first node, whose service has a backend on the other one only, and then also one of its own.
fn policy(bed: &Bed) -> Result<String> {
    let pods = Pods::list(bed)?;
    let (other, own) = (("n2", "web-2"), ("n1", "web-1"));
    let first = [(pods.find(other.1)?.1.into(), other.0)];
    let both = [first[0], (pods.find(own.1)?.1.into(), own.0)];
    let change = Change {
        client: Place::Host("ext".into()),
        target: Some((node_ip(1).into(), NODE_PORT)),
        before: service(&first, Some(NODE_PORT), false),
        after: service(&both, Some(NODE_PORT), true),
    };
    served(bed, &change, other, own)
}

fn service<'a>(backends: &'a [(IpAddr, &'a str)], node_port: Option<u16>, local: bool) -> Service<'a> {
    Service { namespace: "shop", name: "replaced", port: PORT, backends, node_port, local }
}

/// The client is served to its end, though the first backend stops to answer some time after the change.
fn served(bed: &Bed, change: &Change<'_>, old: (&str, &str), new: (&str, &str)) -> Result<String> {
    let pods = Pods::list(bed)?;
    let echo = Echo::in_pod(bed, old.0, pods.find(old.1)?.0)?;
    let _echo = Echo::in_pod(bed, new.0, pods.find(new.1)?.0)?;
    let made = change.before.create(bed)?;
    let own = made.iter().find(|ip| ip.is_ipv4()).map(|ip| (*ip, PORT));
    let (address, port) = change.target.or(own).context("the service has no IPv4 address")?;
    let mut client = echoes::client(bed, &change.client)?;
    client.args(["--udp", "--pause", "2", "--timeout", "500", "--count", "1000000"]);
    client.args(["--seconds", &SECONDS.to_string(), &address.to_string(), &port.to_string()]);
    let running = client.stdout(Stdio::piped()).spawn().context("cannot start the client")?;
    thread::sleep(REPLACED);
    change.after.create(bed)?;
    thread::sleep(SILENT.saturating_sub(REPLACED));
    drop(echo);
    let output = running.wait_with_output()?;
    change.before.delete(bed)?;
    let seen = echoes::round_trips(&String::from_utf8_lossy(&output.stdout))?;
    let text = format!(
        "{} answers, {} lost, the last answer {} ms before the end",
        seen.answers,
        seen.lost,
        seen.total_ms.saturating_sub(seen.last_answer_ms)
    );
    ensure!(seen.answers > 1000 && seen.total_ms.saturating_sub(seen.last_answer_ms) < 2000, "{text}");
    Ok(text)
}
