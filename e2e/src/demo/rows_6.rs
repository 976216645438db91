//! What the demonstration tries by IPv6 on a dual-stack cluster, and the expected results.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context, Result};

use super::rows::{Try, pod};
use super::workloads::Pods;
use crate::expect::Expect;
use testbed::cluster::Bed;
use testbed::cluster::config::{EXT_IP, OUTSIDE_IP_6, Runtime, node_ip, underlay_ip6};
use testbed::traffic::{Dial, Place};

/// The service's IPv6 address.
fn service(bed: &Bed) -> Result<Ipv6Addr> {
    let ips = bed.cluster_ips("shop", "web")?;
    let six = ips.iter().find_map(|ip| if let IpAddr::V6(ip) = ip { Some(*ip) } else { None });
    six.with_context(|| format!("the service has no IPv6 address; it has {ips:?}"))
}

/// The tries, in order.
pub(super) fn tries(bed: &Bed, pods: &Pods) -> Result<Vec<Try>> {
    let program = bed.config().program("testbed").display().to_string();
    for node in bed.config().node_names() {
        let argv = [program.as_str(), "probe", "serve", "--name", "node", "--tcp", "9001"];
        bed.host(&node).start("server", &argv, &[])?;
    }
    let ((client_pod, client), (web1_pod, web1)) = (pods.find_6("client")?, pods.find_6("web-1")?);
    let ((_, web2), (db_pod, db)) = (pods.find_6("web-2")?, pods.find_6("db")?);
    // The servers in real pods are agnhost's; outside and on nodes there is always our own.
    let netexec = bed.config().runtime == Runtime::Containerd;
    let tcp = |host, port| Dial { netexec, ..Dial::tcp(host, port) };
    let udp = |host, port| Dial { netexec, ..Dial::udp(host, port) };
    let service = service(bed)?;
    let (n1, n2) = (underlay_ip6(node_ip(1)), underlay_ip6(node_ip(2)));
    let on = |host: &str| Place::Host(host.to_owned());
    let one = |what, from, dial, expect| Try { what, from, dial, expect };
    let seen = |name: &str, client: Ipv6Addr| Expect::only(&format!("{name} {client}"));
    let both = |client: Ipv6Addr| Expect::All(vec![format!("web-1 {client}"), format!("web-2 {client}")]);
    // OVN gives the gateway routers addresses of the join range in the order of their nodes.
    let join = |node: u8| Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, u16::from(node) + 1);
    let [a, b, c, d, ..] = client.segments();
    let mp0 = Ipv6Addr::new(a, b, c, d, 0, 0, 0, 2);
    let from = || pod("n1", client_pod);
    Ok(vec![
        one("v6: pod -> pod, same node", from(), tcp(web1, 8080), seen("web-1", client)),
        one("v6: pod -> pod, across nodes", from(), tcp(web2, 8080), seen("web-2", client)),
        one("v6: the same, UDP", from(), udp(web2, 5353), seen("web-2", client)),
        one("v6: pod -> ClusterIP", from(), tcp(service, 80), both(client)),
        one("v6: node -> ClusterIP", on("n1"), tcp(service, 80), both(join(1))),
        one("v6: outside -> NodePort on n1", on("ext"), tcp(n1, 30080), both(join(1))),
        one("v6: outside -> NodePort on n2", on("ext"), tcp(n2, 30080), both(join(2))),
        one("v6: node -> its own NodePort", on("n1"), tcp(n1, 30080), both(join(1))),
        one("v6: pod -> outside, SNAT", from(), Dial::tcp(OUTSIDE_IP_6, 9000), seen("outside", n1)),
        one(
            "v6: pod -> gateway, SNAT",
            pod("n2", db_pod),
            Dial::tcp(underlay_ip6(EXT_IP), 9000),
            seen("outside", n2),
        ),
        one("v6: node -> pod, own", on("n1"), tcp(web1, 8080), seen("web-1", mp0)),
        one("v6: node -> pod, other node's", on("n1"), tcp(web2, 8080), seen("web-2", mp0)),
        one("v6: pod -> its node", from(), Dial::tcp(n1, 9001), seen("node", client)),
        one("v6: pod -> the other node", from(), Dial::tcp(n2, 9001), seen("node", n1)),
        one("v6: policy: denied", from(), tcp(db, 5432), Expect::Dropped),
        one("v6: policy: allowed", pod("n1", web1_pod), tcp(db, 5432), seen("db", web1)),
    ])
}

/// Removes IPv6 from the service again: its node port is then unused.
pub(super) fn without_ipv6(bed: &Bed) -> Result<Try> {
    let policy = r#"{"spec":{"ipFamilyPolicy":"SingleStack"}}"#;
    bed.kubectl(&["patch", "service", "-n", "shop", "web", "-p", policy])?;
    Ok(Try {
        what: "v6: NodePort, family given up",
        from: Place::Host("ext".to_owned()),
        dial: Dial::tcp(underlay_ip6(node_ip(1)), 30080),
        expect: Expect::Refused,
    })
}
