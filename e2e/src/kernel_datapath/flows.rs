//! Long flows between pods: they take the fast path where there is one, and a policy that comes into force ends them.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::agent;
use crate::demo::Pods;
use crate::demo::echoes::{self, Echo, PORT};
use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::exec;
use testbed::tools::RoundTrips;
use testbed::traffic::Place;

/// From then on the web servers take nothing but what they are for.
const POLICY: &str = r#"{
    "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "web"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": 8080}]}]
    }
}"#;
/// How long a flow may go on after a policy was accepted: by far more than the bound of an invalidation, as controller and
/// OVN have to work too.
const BOUND: Duration = Duration::from_secs(3);
/// The flow's own end, should nothing end it.
const FLOW: Duration = Duration::from_secs(60);

/// The demonstration's client, on n1, before its arguments.
fn client(bed: &Bed) -> Result<Command> {
    let place = Place::Pod { node: "n1".into(), namespace: "shop".into(), name: "client".into() };
    echoes::client(bed, &place)
}

/// Fast path, then policy.
pub(super) fn check(bed: &Bed, ebpf: bool, checks: &mut Checks) -> Result<()> {
    let pods = Pods::list(bed)?;
    let (_, near) = pods.find("web-1")?;
    let (_, far) = pods.find("web-2")?;
    let _echoes = [Echo::in_pod(bed, "n1", "web-1")?, Echo::in_pod(bed, "n2", "web-2")?];
    let round_trips = |server: std::net::Ipv4Addr, more: &[&str]| -> Result<RoundTrips> {
        let mut client = client(bed)?;
        client.args(more).args([&server.to_string(), &PORT.to_string()]);
        // The echo may not listen yet.
        let said = exec::retry(Duration::from_secs(10), "the echo answers", || exec::output(&mut client))?;
        serde_json::from_str(&said).with_context(|| format!("the client said {said:?}"))
    };
    let fast = |node: &str| agent::fast(bed, node);
    for (what, server, udp, node) in [
        ("TCP across nodes", far, false, "n2"),
        ("UDP across nodes", far, true, "n2"),
        ("TCP on one node", near, false, "n1"),
        ("UDP on one node", near, true, "n1"),
    ] {
        let mut more = vec!["--count", "2000", "--seconds", "30"];
        more.extend(udp.then_some("--udp"));
        let outcome = || -> Result<String> {
            let before = if ebpf { fast(node)? } else { agent::Fast::default() };
            let seen = round_trips(server, &more)?;
            ensure!(seen.answers > 100, "{} answers, {} lost", seen.answers, seen.lost);
            let mut said = format!("{} answers, {} lost", seen.answers, seen.lost);
            if ebpf {
                let delivered = fast(node)?.delivered.saturating_sub(before.delivered);
                said += &format!(", {delivered} delivered by the fast path");
                // Most of them: only the first packets and the refreshes go through OVS.
                ensure!(delivered > seen.answers / 2, "{said}");
            }
            Ok(said)
        };
        checks.check(what, outcome().map_err(|e| format!("{e:#}")));
    }
    if ebpf {
        for node in bed.config().node_names() {
            let used = fast(&node).and_then(|fast| {
                ensure!(fast.sent > 0 && fast.received > 0, "{fast:?}");
                Ok(format!("{} packets sent, {} received", fast.sent, fast.received))
            });
            checks
                .check(format_args!("{node}: tunnels have a fast path"), used.map_err(|e| format!("{e:#}")));
        }
    }
    let ended = policy(bed, far);
    checks.check("a policy ends a TCP flow that it does not allow", ended.map_err(|e| format!("{e:#}")));
    let denied = exec::capture(
        client(bed)?.args(["--timeout", "1000", "--count", "1", &far.to_string(), &PORT.to_string()]),
        "",
    );
    let denied = denied.and_then(|client| {
        let said = client.stdout + &client.stderr;
        ensure!(said.contains("timed out"), "{}", said.trim());
        Ok(String::new())
    });
    checks.check("and no new connection comes up", denied.map_err(|e| format!("{e:#}")));
    bed.kubectl(&["delete", "networkpolicy", "-n", "shop", "web"])?;
    let again = round_trips(far, &["--count", "100"]).map(|seen| format!("{} answers", seen.answers));
    checks.check("without it connections come up again", again.map_err(|e| format!("{e:#}")));
    if ebpf {
        for node in bed.config().node_names() {
            let none = agent::divergences(bed, &node).and_then(|count| {
                ensure!(count == 0, "{count}");
                Ok(String::new())
            });
            checks.check(format_args!("{node}: no divergence"), none.map_err(|e| format!("{e:#}")));
        }
    }
    Ok(())
}

/// A TCP flow from the client to `server`, into which the policy comes. The client ends when nothing is answered any more.
/// Not UDP: the answer to a datagram may open a connection-tracking entry of its own, whose replies the policy lets in.
fn policy(bed: &Bed, server: std::net::Ipv4Addr) -> Result<String> {
    let begin = Instant::now();
    let mut client = client(bed)?;
    // The first packets of a connection go through OVS's daemon, which takes a while on an emulated machine.
    client.args(["--count", "1000000", "--pause", "5", "--timeout", "1000", "--give-up", "5"]);
    client.args(["--seconds", &exec::patient(FLOW).as_secs_f64().to_string()]);
    let mut child = client.args([&server.to_string(), &PORT.to_string()]).stdout(Stdio::piped()).spawn()?;
    thread::sleep(exec::patient(Duration::from_secs(1)));
    bed.apply(POLICY)?;
    let accepted = begin.elapsed();
    let early = child.try_wait()?;
    let said = String::from_utf8(child.wait_with_output()?.stdout)?;
    ensure!(early.is_none(), "the flow ended before there was a policy: {said}");
    let seen: RoundTrips =
        serde_json::from_str(&said).with_context(|| format!("the client said {said:?}"))?;
    let late = Duration::from_millis(seen.last_answer_ms).saturating_sub(accepted);
    ensure!(seen.answers > 20, "only {} answers before", seen.answers);
    ensure!(
        late <= exec::patient(BOUND),
        "the last of {} answers came {late:.1?} after the policy was accepted",
        seen.answers
    );
    Ok(format!(
        "{} answers, the last {:.2} s after the policy was accepted",
        seen.answers,
        late.as_secs_f64()
    ))
}
