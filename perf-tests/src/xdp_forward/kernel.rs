//! Forwarding of node ports by the kernel: nftables translates destination and source, and the packet is routed. Without a tunnel, which the flow
//! cache's lanes make and take away besides.

use anyhow::{Context, Result};
use nix::net::if_::if_nametoindex;

use super::frames::{CLIENT, GATEWAY, NODE, NODE_PORT, UPLINK, asked};
use super::{lane::Lane, node::wire, sh};

/// A router.
pub(super) struct Kernel {
    _sink: Option<aya::Ebpf>,
}

impl Kernel {
    pub(super) fn new(through: bool) -> Result<Self> {
        let sink = wire("router", through)?;
        let mac = UPLINK.map(|byte| format!("{byte:02x}")).join(":");
        let gateway = GATEWAY.map(|byte| format!("{byte:02x}")).join(":");
        let dotted = |address: [u8; 4]| std::net::Ipv4Addr::from(address);
        let (node, client) = (dotted(NODE), dotted(CLIENT));
        let mut lines = vec![
            format!("ip link set router address {mac}"),
            format!("ip addr add {node}/24 dev router"),
            format!("ip neigh add 172.18.0.1 lladdr {gateway} dev router nud permanent"),
            format!("ip route add {client}/32 via 172.18.0.1 dev router"),
            "ip route add 10.244.1.0/24 via 172.18.0.1 dev router".to_owned(),
            "nft add table ip bench".to_owned(),
            "nft add chain ip bench before { type nat hook prerouting priority -100 ; }".to_owned(),
            format!("nft add rule ip bench before udp dport {NODE_PORT} counter dnat to 10.244.1.3:8080"),
            "nft add chain ip bench after { type nat hook postrouting priority 100 ; }".to_owned(),
            "nft add rule ip bench after ip daddr 10.244.1.3 counter snat to 172.18.0.2".to_owned(),
            "nft add chain ip bench count { type filter hook postrouting priority 200 ; }".to_owned(),
            "nft add rule ip bench count ip daddr 10.244.1.3 counter".to_owned(),
        ];
        for setting in [
            "ip_forward",
            "conf/all/rp_filter",
            "conf/router/rp_filter",
            "conf/all/send_redirects",
            "conf/router/send_redirects",
        ] {
            let value = if setting == "ip_forward" { "1" } else { "0" };
            let path = format!("/proc/sys/net/ipv4/{setting}");
            std::fs::write(&path, value).with_context(|| path.clone())?;
        }
        for line in lines.drain(..) {
            sh(&line)?;
        }
        Ok(Self { _sink: sink })
    }

    /// Packets that were forwarded, as the last chain has counted.
    fn forwarded() -> Result<u64> {
        let mut nft = testbed::exec::command("nft");
        let text = testbed::exec::output(nft.args(["list", "chain", "ip", "bench", "count"]))?;
        let count = text.split_whitespace().skip_while(|word| *word != "packets").nth(1);
        count.and_then(|count| count.parse().ok()).with_context(|| format!("no counter in {text}"))
    }

    pub(super) fn lane(&mut self) -> Result<Lane<'static>> {
        let router = if_nametoindex("router").context("interface router")?;
        Lane::to_kernel("nftables, DNAT and SNAT", asked(), router, Box::new(Self::forwarded))
    }
}
