//! The packet to trace, formatted as a flow for `ofproto/trace` (ovs-fields(7)).

use std::net::IpAddr;

use api::MacAddr;

use api::admin::FlowSpec;

/// TTL or hop limit of the traced packet.
pub(super) const TTL: u8 = 64;

/// Ingress of the packet on br-int.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// Port of a pod.
    Pod {
        /// OpenFlow number of the port.
        port: i64,
    },
    /// Tunnel port.
    Tunnel {
        /// OpenFlow number of the tunnel's port.
        port: i64,
        /// Tunnel endpoint of the remote node.
        remote: IpAddr,
        /// Tunnel endpoint of this node.
        local: Option<IpAddr>,
        /// Virtual network identifier.
        vni: u32,
        /// Value of OVN's Geneve option.
        option: u32,
    },
}

/// A packet to trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    /// Ingress.
    pub(super) entry: Entry,
    /// Source MAC at the ingress.
    pub(super) source_mac: MacAddr,
    /// Destination MAC at the ingress.
    pub(super) destination_mac: MacAddr,
    /// Protocol, addresses and ports.
    pub(super) flow: FlowSpec,
    /// `ct_mark` of the connection in the first zone.
    pub(super) mark: u32,
}

impl Question {
    /// Formats the packet for `ofproto/trace`. TCP packets have the ACK flag only, as the cache does not handle others.
    pub(super) fn text(&self) -> String {
        let mut parts = Vec::new();
        match &self.entry {
            Entry::Pod { port } => parts.push(format!("in_port={port}")),
            Entry::Tunnel { port, remote, local, vni, option } => {
                parts.push(format!("in_port={port},tun_id={vni:#x}"));
                let key = if remote.is_ipv4() { "tun" } else { "tun_ipv6" };
                parts.push(format!("{key}_src={remote}"));
                parts.extend(local.map(|local| format!("{key}_dst={local}")));
                parts.push(format!("tun_metadata0={option:#x}"));
            }
        }
        if self.mark != 0 {
            parts.push(format!("ct_mark={:#x}", self.mark));
        }
        let FlowSpec { protocol, source, destination } = self.flow;
        let (six, ip) = if source.is_ipv4() { ("", "nw") } else { ("6", "ipv6") };
        parts.push(format!("{protocol}{six}"));
        parts.push(format!("dl_src={},dl_dst={}", self.source_mac, self.destination_mac));
        parts.push(format!("{ip}_src={},{ip}_dst={},nw_ttl={TTL}", source.ip(), destination.ip()));
        parts.push(format!("{protocol}_src={},{protocol}_dst={}", source.port(), destination.port()));
        if protocol.name() == "tcp" {
            parts.push("tcp_flags=ack".to_owned());
        }
        parts.join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_from_a_pod_and_one_from_a_tunnel_are_written_as_ovs_reads_them() {
        let mac = |last| MacAddr([0x0a, 0x58, 0x0a, 0xf4, 0, last]);
        let pod = Question {
            entry: Entry::Pod { port: 4 },
            source_mac: mac(3),
            destination_mac: mac(1),
            flow: FlowSpec::parse("tcp", "10.244.0.3:40000", "10.244.1.3:9000").unwrap(),
            mark: 0,
        };
        assert_eq!(
            pod.text(),
            "in_port=4,tcp,dl_src=0a:58:0a:f4:00:03,dl_dst=0a:58:0a:f4:00:01,nw_src=10.244.0.3,nw_dst=10.244.1.3,nw_ttl=64,\
             tcp_src=40000,tcp_dst=9000,tcp_flags=ack"
        );
        let (remote, local) = ("172.18.0.3".parse().unwrap(), "172.18.0.2".parse().ok());
        let tunnel = Question {
            entry: Entry::Tunnel { port: 2, remote, local, vni: 4, option: 0x30005 },
            flow: FlowSpec::parse("udp", "[fd00::4]:53", "[fd00::3]:1").unwrap(),
            mark: 1,
            ..pod
        };
        assert_eq!(
            tunnel.text(),
            "in_port=2,tun_id=0x4,tun_src=172.18.0.3,tun_dst=172.18.0.2,tun_metadata0=0x30005,ct_mark=0x1,udp6,\
             dl_src=0a:58:0a:f4:00:03,dl_dst=0a:58:0a:f4:00:01,ipv6_src=fd00::4,ipv6_dst=fd00::3,nw_ttl=64,udp_src=53,udp_dst=1"
        );
    }
}
