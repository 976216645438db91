//! The reference's packet checks: who answers, and whom the server saw. They are those of `verify.txt`, with the
//! named port of a policy as Kubernetes has it.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;

use crate::expect::{self, Expect};
use crate::harness::Checks;
use test_support::ovn_reference::Stage;
use testbed::cluster::Bed;
use testbed::cluster::config::{CENTRAL_IP, OUTSIDE_IP, node_ip};
use testbed::exec;
use testbed::traffic::{self, Dial, Place};

const LIMIT: Duration = Duration::from_secs(15);
/// Enough connections that each of two backends is met, but for one run in some thousand.
const MANY: u32 = 16;

struct Check {
    what: &'static str,
    from: Place,
    dial: Dial,
    expect: Expect,
}

/// Runs the checks that belong to a stage.
pub(super) fn run(bed: &Bed, stage: Stage, checks: &mut Checks) -> Result<()> {
    let list = match stage {
        Stage::Nodes | Stage::Pods => return Ok(()),
        Stage::Services => services(),
        Stage::Policies => policies(),
    };
    for check in list {
        let Check { what, from, dial, expect } = check;
        let (_, verdict) = expect::settle(bed, &from, dial, &expect, LIMIT);
        checks.check(what, verdict);
    }
    if stage == Stage::Services {
        checks.check("health check port of a local service, n1 and n2", health(bed));
    }
    Ok(())
}

fn pod(node: &str, namespace: &str, name: &str) -> Place {
    Place::Pod { node: node.into(), namespace: namespace.into(), name: name.into() }
}

fn on(host: &str) -> Place {
    Place::Host(host.into())
}

fn check(what: &'static str, from: Place, dial: Dial, expect: Expect) -> Check {
    Check { what, from, dial, expect }
}

fn set(answers: &[&str]) -> Vec<String> {
    answers.iter().map(|&a| a.to_owned()).collect()
}

const fn service(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 96, 0, last)
}

// The pods' addresses: red/a and blue/c on n1, red/b and blue/d on n2.
const A: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 3);
const B: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 3);
const C: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 4);
const D: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 4);

fn services() -> Vec<Check> {
    let a = || pod("n1", "red", "a");
    let b = || pod("n2", "red", "b");
    let (n1, n2) = (node_ip(1), node_ip(2));
    // A backend that is the client itself sees the hairpin address.
    let hairpin = "a 169.254.169.5";
    let (join1, join2) = (["a 100.64.0.2", "b 100.64.0.2"], ["a 100.64.0.3", "b 100.64.0.3"]);
    vec![
        check("pod -> pod on the other node", a(), Dial::tcp(B, 8080), Expect::only("b 10.244.0.3")),
        check(
            "pod -> ClusterIP, both backends",
            a(),
            Dial::tcp(service(50), 80).times(MANY),
            Expect::All(set(&[hairpin, "b 10.244.0.3"])),
        ),
        // The first connection to such a service may be lost in userspace OVS; settling covers it.
        check(
            "pod -> service with client affinity, one backend",
            a(),
            Dial::tcp(service(52), 80).times(MANY),
            Expect::Same(set(&[hairpin, "b 10.244.0.3"])),
        ),
        check("pod -> itself by ClusterIP (hairpin)", a(), Dial::tcp(service(53), 80), Expect::only(hairpin)),
        check("pod -> service without endpoints", a(), Dial::tcp(service(57), 80), Expect::Refused),
        check(
            "pod -> service with internal traffic policy Local",
            a(),
            Dial::tcp(service(56), 80).times(MANY),
            Expect::only(hairpin),
        ),
        check(
            "pod -> host-network backend, own node",
            a(),
            Dial::tcp(service(58), 80),
            Expect::only("h 10.244.0.3"),
        ),
        check(
            "pod -> host-network backend, other node",
            b(),
            Dial::tcp(service(58), 80),
            Expect::only("h 172.18.0.3"),
        ),
        check(
            "pod -> outside, SNAT to the node",
            a(),
            Dial::tcp(OUTSIDE_IP, 9000),
            Expect::only("ext 172.18.0.2"),
        ),
        check(
            "pod -> host of the API server",
            a(),
            Dial::tcp(CENTRAL_IP, 9000),
            Expect::only("api 172.18.0.2"),
        ),
        check("host -> ClusterIP", on("n1"), Dial::tcp(service(50), 80), Expect::OneOf(set(&join1))),
        check(
            "host -> pod by the management port",
            on("n1"),
            Dial::tcp(A, 8080),
            Expect::only("a 10.244.0.2"),
        ),
        check("host -> its own NodePort", on("n1"), Dial::tcp(n1, 30080), Expect::OneOf(set(&join1))),
        check(
            "outside -> NodePort on n1, both backends",
            on("ext"),
            Dial::tcp(n1, 30080).times(MANY),
            Expect::All(set(&join1)),
        ),
        check("outside -> NodePort on n2", on("ext"), Dial::tcp(n2, 30080), Expect::OneOf(set(&join2))),
        check(
            "outside -> NodePort with external traffic policy Local keeps the client",
            on("ext"),
            Dial::tcp(n1, 30081),
            Expect::only("a 172.18.0.1"),
        ),
        check(
            "outside -> NodePort with external traffic policy Local, no backend there",
            on("ext"),
            Dial::tcp(n2, 30081),
            Expect::Refused,
        ),
        check(
            "outside -> load-balancer address, Local",
            on("ext"),
            Dial::tcp(Ipv4Addr::new(172, 18, 10, 1), 80),
            Expect::only("a 172.18.0.1"),
        ),
        check(
            "outside -> load-balancer address, Cluster",
            on("ext"),
            Dial::tcp(Ipv4Addr::new(172, 18, 10, 2), 80),
            Expect::OneOf(set(&join2)),
        ),
        check(
            "outside -> external IP",
            on("ext"),
            Dial::tcp(Ipv4Addr::new(172, 18, 11, 1), 80),
            Expect::OneOf(set(&join1)),
        ),
    ]
}

fn policies() -> Vec<Check> {
    let red = |node: &str, name: &str| pod(node, "red", name);
    let c = || pod("n1", "blue", "c");
    let dropped = |host, port| Dial::tcp(host, port).within(Duration::from_secs(1));
    vec![
        check(
            "policy: red/a -> blue/c 8080 allowed",
            red("n1", "a"),
            Dial::tcp(C, 8080),
            Expect::only("c 10.244.0.3"),
        ),
        check(
            "policy: red/a -> blue/c 8085 (endPort)",
            red("n1", "a"),
            Dial::tcp(C, 8085),
            Expect::only("c 10.244.0.3"),
        ),
        check("policy: red/a -> blue/c 8091 denied", red("n1", "a"), dropped(C, 8091), Expect::Dropped),
        check("policy: red/b -> blue/c 8080 denied", red("n2", "b"), dropped(C, 8080), Expect::Dropped),
        check(
            "policy: blue/c -> blue/d 8080 (ipBlock)",
            c(),
            Dial::tcp(D, 8080),
            Expect::only("d 10.244.0.4"),
        ),
        check("policy: red/a -> blue/d 8080 (except)", red("n1", "a"), dropped(D, 8080), Expect::Dropped),
        check("policy: named port http is 8080, so 9999 is denied", c(), dropped(D, 9999), Expect::Dropped),
        check(
            "policy: red/b -> red/a 8080 denied by egress",
            red("n2", "b"),
            dropped(A, 8080),
            Expect::Dropped,
        ),
        check(
            "policy: red/b -> 192.0.2.1 allowed",
            red("n2", "b"),
            Dial::tcp(OUTSIDE_IP, 9000),
            Expect::only("ext 172.18.0.3"),
        ),
        check(
            "policy: red/b -> blue/d 8080, allowed by both sides",
            red("n2", "b"),
            Dial::tcp(D, 8080),
            Expect::only("d 10.244.1.3"),
        ),
    ]
}

/// 200 where the service has a backend, 503 where it has none.
fn health(bed: &Bed) -> Result<String, String> {
    let ask = |node: u8| -> Result<String> {
        let mut get = traffic::command(bed, &on("ext"), &bed.config().program("testbed"))?;
        let said = exec::output(get.args([
            "probe",
            "get",
            &node_ip(node).to_string(),
            "30181",
            "/",
            "--timeout",
            "2",
        ]))?;
        Ok(said.split_whitespace().next().unwrap_or_default().to_owned())
    };
    exec::retry(LIMIT, "health checks", || {
        let seen = format!("{} {}", ask(1)?, ask(2)?);
        anyhow::ensure!(seen == "200 503", "{seen}; expected 200 503");
        Ok(seen)
    })
    .map_err(|error| format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_checks_as_in_the_reference() {
        let reference = test_support::ovn_reference::data::PACKETS;
        let lines = reference.lines().filter(|l| l.starts_with("PASS ")).count();
        // The health check port is not a dialled one.
        assert_eq!(services().len() + policies().len() + 1, lines);
    }
}
