//! A UDP client that goes on sending from one port while its service's only backend is replaced: it is served by the new one.

use std::net::IpAddr;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use testbed::cluster::Bed;
use testbed::demo::Pods;
use testbed::demo::echoes::{self, Echo, Service};
use testbed::traffic::Place;
use testbed::ui::Checks;

/// Port of the service.
const PORT: u16 = 7201;
/// How long the client goes on; in milliseconds where it pauses.
const SECONDS: u64 = 16;
/// When the backend is replaced, and when the old one stops answering: what is still sent to it is lost from then on.
const REPLACED: Duration = Duration::from_secs(3);
const SILENT: Duration = Duration::from_secs(10);

/// From a backend on the client's node to one on the other, and back.
pub(crate) fn check(bed: &Bed, checks: &mut Checks) -> Result<()> {
    for (old, new) in [(("n1", "web-1"), ("n2", "web-2")), (("n2", "web-2"), ("n1", "web-1"))] {
        let what = format!("UDP follows from the backend on {} to the one on {}", old.0, new.0);
        checks.check(what, one(bed, old, new).map_err(|e| format!("{e:#}")));
    }
    Ok(())
}

fn one(bed: &Bed, old: (&str, &str), new: (&str, &str)) -> Result<String> {
    let pods = Pods::list(bed)?;
    let backend = |(node, name): (&'static str, &str)| -> Result<(IpAddr, &'static str)> {
        Ok((pods.find(name)?.1.into(), node))
    };
    let known = |node: &str| if node == "n1" { "n1" } else { "n2" };
    let (first, second) = (backend((known(old.0), old.1))?, backend((known(new.0), new.1))?);
    let service = |backends| Service {
        namespace: "shop",
        name: "replaced",
        port: PORT,
        backends,
        node_port: None,
        local: false,
    };
    let echo = Echo::in_pod(bed, old.0, pods.find(old.1)?.0)?;
    let _echo = Echo::in_pod(bed, new.0, pods.find(new.1)?.0)?;
    let only_first = [first];
    let before = service(&only_first);
    let made = before.create(bed)?;
    let address = made.iter().find(|ip| ip.is_ipv4()).context("the service has no IPv4 address")?;
    let client =
        Place::Pod { node: "n1".into(), namespace: "shop".into(), name: pods.find("client")?.0.into() };
    let mut client = echoes::client(bed, &client)?;
    client.args(["--udp", "--pause", "2", "--timeout", "500", "--count", "1000000"]);
    client.args(["--seconds", &SECONDS.to_string(), &address.to_string(), &PORT.to_string()]);
    let running = client.stdout(Stdio::piped()).spawn().context("cannot start the client")?;
    thread::sleep(REPLACED);
    let only_second = [second];
    service(&only_second).create(bed)?;
    thread::sleep(SILENT.saturating_sub(REPLACED));
    drop(echo);
    let output = running.wait_with_output()?;
    before.delete(bed)?;
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
