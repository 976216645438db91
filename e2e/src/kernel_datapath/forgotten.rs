//! Tracked connections that somebody deletes under traffic: their entries in the flow cache end at once, others stay, and the traffic
//! goes on.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::admin::{CachedProtocol, Flow};

use crate::demo::Pods;
use crate::demo::echoes::{self, Echo, PORT, Service};
use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::exec;
use testbed::traffic::Place;

use crate::ways::changes;

/// Port of the service.
const SERVICE: u16 = 7203;
/// The node of the clients.
const NODE: &str = "n1";
/// How long the clients go on.
const LONG: Duration = Duration::from_secs(25);
/// How long an entry may outlive its connection, on an idle machine: a walk over the entries, and the notification.
const BOUND: Duration = Duration::from_millis(500);
/// Times that it is tried when something else invalidated the cache meanwhile.
const TRIES: usize = 4;

/// Runs it and checks.
pub(super) fn check(bed: &Bed, checks: &mut Checks) {
    let outcome = connections(bed).map_err(|error| format!("{error:#}"));
    checks.check("entries end with the connections that are deleted, and no others", outcome);
}

fn connections(bed: &Bed) -> Result<String> {
    let pods = Pods::list(bed)?;
    let (_, far) = pods.find("web-2")?;
    let _echo = Echo::in_pod(bed, "n2", pods.find("web-2")?.0)?;
    let backends = [(far.into(), "n2")];
    let service = Service {
        namespace: "shop",
        name: "forgotten",
        port: SERVICE,
        backends: &backends,
        node_port: None,
        local: false,
    };
    let made = service.create(bed)?;
    let address = *made.iter().find(|ip| ip.is_ipv4()).context("the service has no IPv4 address")?;
    let place =
        Place::Pod { node: NODE.into(), namespace: "shop".into(), name: pods.find("client")?.0.into() };
    let start = |udp: bool, to: &str, port: u16| -> Result<_> {
        let mut client = echoes::client(bed, &place)?;
        client.args(udp.then_some("--udp")).args(["--pause", "5", "--timeout", "1000", "--count", "1000000"]);
        client.args(["--seconds", &exec::patient(LONG).as_secs().to_string(), to, &port.to_string()]);
        client.stdout(Stdio::piped()).spawn().context("cannot start a client")
    };
    let through = start(true, &address.to_string(), SERVICE)?;
    let beside = start(false, &far.to_string(), PORT)?;
    let told = exec::retry(Duration::from_secs(10), "an undisturbed try", || one(bed));
    let mut said = told?;
    // Everything that OVS tracks, of both.
    conntrack(bed, &["-F"])?;
    for (what, client) in [("through the service", through), ("beside it", beside)] {
        let seen = echoes::round_trips(&String::from_utf8(client.wait_with_output()?.stdout)?)?;
        let silent = seen.total_ms.saturating_sub(seen.last_answer_ms);
        said += &format!("; {what} {} answers, {} lost", seen.answers, seen.lost);
        ensure!(seen.answers > 100 && silent < 5_000, "{said}, none in the last {silent} ms");
    }
    service.delete(bed)?;
    Ok(said)
}

/// One try: deletes the connection to the service and watches the entries of both.
fn one(bed: &Bed) -> Result<String> {
    for _ in 0..TRIES {
        let (both, before) = exec::retry(Duration::from_secs(20), "entries of both connections", || {
            let all = entries(bed)?;
            ensure!(all.to_service.is_some() && all.beside.is_some(), "{all:?}");
            Ok((all, changes(bed, NODE)?))
        })?;
        let begin = Instant::now();
        conntrack(bed, &["-D", "-p", "udp", "--orig-port-dst", &SERVICE.to_string()])?;
        let deleted = begin.elapsed();
        let ended = loop {
            let now = entries(bed)?;
            // Perhaps learned again.
            let since = begin.elapsed().as_millis();
            if now.to_service.is_none_or(|age| u128::from(age) < since) {
                break begin.elapsed();
            }
            if begin.elapsed() > exec::patient(BOUND) + deleted {
                bail!("the entry of the deleted connection is still there after {:.1?}", begin.elapsed());
            }
            thread::sleep(Duration::from_millis(5));
        };
        let after = entries(bed)?;
        if changes(bed, NODE)? != before {
            continue;
        }
        ensure!(after.beside >= both.beside, "the entry beside it ended: {both:?}, then {after:?}");
        let counted = bed.agent(NODE).metrics()?;
        let counted: u64 =
            counted.samples("slipstream_node_fastpath_tracking_ended_total")?.iter().map(|s| s.value).sum();
        ensure!(counted > 0, "nothing was counted");
        return Ok(format!("ended {:.0?} after conntrack was started, {counted} entries", ended));
    }
    bail!("the cache was invalidated during each of {TRIES} tries")
}

/// Ages of the entries of the direction to the server, in milliseconds.
#[derive(Debug)]
struct Entries {
    to_service: Option<u64>,
    beside: Option<u64>,
}

fn entries(bed: &Bed) -> Result<Entries> {
    let flows: Vec<Flow> = bed.agent(NODE).slipctl_json(&["flows"])?;
    let age = |port: u16, protocol| {
        let is_one = |f: &&Flow| f.valid && f.flow.protocol == protocol && f.flow.destination.port() == port;
        flows.iter().find(is_one).map(|flow| flow.age_ms)
    };
    Ok(Entries { to_service: age(SERVICE, CachedProtocol::Udp), beside: age(PORT, CachedProtocol::Tcp) })
}

fn conntrack(bed: &Bed, args: &[&str]) -> Result<()> {
    let mut command = bed.host(NODE).command("conntrack")?;
    let done = exec::capture(command.args(args), "")?;
    // It also fails when there is nothing to delete.
    ensure!(done.status.success(), "conntrack {args:?}: {}", done.stderr.trim());
    Ok(())
}
