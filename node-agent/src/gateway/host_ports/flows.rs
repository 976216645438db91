//! Flows of host ports on the gateway bridge: packets from outside go to OVN, whose load balancers select the pod, and replies from
//! OVN go to the uplink. Ports in the node's ephemeral range are first separated from replies to the node.

use std::net::IpAddr;

use api::annotation::GatewayMode;
use api::host_port::Listen;

use crate::gateway::flows::asked::{self, COOKIE};
use crate::gateway::flows::{FlowSet, Inputs};
use crate::kube::host_ports::{HostPorts, addresses};
use api::Protocol;

/// Priority above that of service flows: a host port of one node precedes a node port of all nodes.
const PRIORITY: u16 = 112;

/// Adds the flows. `own` are the node's addresses on the bridge; other addresses of the node are served by its own stack.
pub fn add(set: &mut FlowSet, inputs: &Inputs, own: &[IpAddr], ports: &HostPorts) {
    let Some(patch) = &inputs.patch else { return };
    if inputs.mode == GatewayMode::Local {
        // The node's stack serves them.
        return;
    }
    let Inputs { uplink, mac, .. } = inputs;
    for place in ports.keys() {
        for ip in addresses(ports, place, own) {
            let family = own.iter().any(|own| own.is_ipv4() == ip.is_ipv4());
            if !family || matches!(place.listen, Listen::One(ip) if ip.is_loopback()) {
                continue;
            }
            let (proto, field) = (proto(place.protocol, ip), if ip.is_ipv4() { "nw" } else { "ipv6" });
            let port = place.port;
            let asked = asked::action(set, patch);
            let matches = format!("{proto},in_port={uplink},{field}_dst={ip},tp_dst={port}");
            set.add(COOKIE, 0, PRIORITY, matches, asked);
            set.add(
                COOKIE,
                0,
                PRIORITY,
                format!("{proto},in_port={patch},dl_src={mac},{field}_src={ip},tp_src={port}"),
                format!("output:{uplink}"),
            );
        }
    }
}

fn proto(protocol: Protocol, ip: IpAddr) -> String {
    format!("{}{}", protocol.lower(), if ip.is_ipv4() { "" } else { "6" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::flows::tests::inputs;
    use crate::kube::host_ports::tests::three;

    fn text(own: &[&str]) -> String {
        let own: Vec<IpAddr> = own.iter().map(|ip| ip.parse().unwrap()).collect();
        let mut set = FlowSet::default();
        add(&mut set, &inputs(), &own, &three());
        set.to_string()
    }

    #[test]
    fn packets_from_outside_go_to_ovn_but_for_answers_to_the_node() {
        let text = text(&["172.18.0.2"]);
        let flows: Vec<&str> = text.lines().map(|line| line.split_once(',').unwrap().1).collect();
        assert_eq!(
            flows,
            [
                "table=0,priority=112,tcp,in_port=\"patch-breth0_n1\",dl_src=02:42:ac:12:00:02,nw_src=172.18.0.2,tp_src=54323,actions=output:eth0",
                "table=0,priority=112,tcp,in_port=eth0,nw_dst=172.18.0.2,tp_dst=54323,actions=ct(table=8,zone=64000)",
                "table=0,priority=112,udp,in_port=\"patch-breth0_n1\",dl_src=02:42:ac:12:00:02,nw_src=172.18.0.2,tp_src=54323,actions=output:eth0",
                "table=0,priority=112,udp,in_port=eth0,nw_dst=172.18.0.2,tp_dst=54323,actions=ct(table=8,zone=64000)",
                "table=8,priority=0,actions=output:\"patch-breth0_n1\"",
                "table=8,priority=100,ct_state=+est+trk,ct_mark=0x2,actions=LOCAL",
                "table=8,priority=100,ct_state=+rel+trk,ct_mark=0x2,actions=LOCAL",
            ]
        );
    }

    #[test]
    fn loopback_never_comes_from_outside() {
        assert!(!text(&["172.18.0.2"]).contains("127.0.0.1"));
    }

    #[test]
    fn without_host_ports_there_is_no_flow() {
        let mut set = FlowSet::default();
        add(&mut set, &inputs(), &["172.18.0.2".parse().unwrap()], &HostPorts::new());
        assert!(set.is_empty());
    }
}
