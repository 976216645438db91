//! What OVN is asked, and by whom.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};

use super::super::cases::{Addresses, tcp};
use super::super::frame::{ACK, Packet, SYN, Upper};
use super::super::marks::LABELS;
use super::super::pairs::mark::Mark;
use super::super::pairs::posts::Sender;
use super::super::pairs::route;
use super::super::scene::{Scene, Who};
use testbed::cluster::config::{EXT_IP, OUTSIDE_IP, OUTSIDE_IP_6, node_ip, underlay_ip6};

/// Number of the first flow.
const FIRST: u8 = 160;
/// Port of the service without backends, and its node port.
pub(super) const PORT: u16 = 7300;
pub(super) const NODE_PORT: u16 = 30_183;
/// What OVN's DNS is asked (RFC 1035, 4.1.2).
const NAME: &[u8] = b"\x05exact\x04test\0";
const DNS: u16 = 53;

/// What is sent, and what comes back.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) name: String,
    pub(super) sender: Sender,
    pub(super) packet: Packet,
    pub(super) answer: Answer,
}

/// What the answer has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The packet turned round.
    Echo,
    /// An ICMP error that quotes it.
    Error,
    /// TCP RST.
    Reset,
    /// Of OVN's DNS.
    Dns,
}

/// The first address of a pod's subnet, which is its router's.
fn router(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            Ipv4Addr::new(a, b, c, 1).into()
        }
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 1).into()
        }
    }
}

/// A question to OVN's DNS.
fn query(six: bool) -> Vec<u8> {
    let kind = if six { 28 } else { 1 };
    // Identification, recursion desired, one question; its type and class.
    let head = [0x13, 0x37, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    [&head, NAME, &[0, kind, 0, 1]].concat()
}

pub(super) fn questions(scene: &Scene<'_>, service: &[IpAddr]) -> Result<Vec<Question>> {
    let addresses = Addresses::of(scene);
    let mut list = Vec::new();
    for six in [false, true] {
        let underlay = |ip| -> IpAddr { if six { underlay_ip6(ip).into() } else { IpAddr::from(ip) } };
        let vip = service.iter().copied().find(|ip| ip.is_ipv6() == six);
        let vip = vip.with_context(|| format!("the service has {service:?}"))?;
        let outside = if six { IpAddr::from(OUTSIDE_IP_6) } else { OUTSIDE_IP.into() };
        let mut add = |name: &str,
                       sender,
                       to: IpAddr,
                       port,
                       upper: Upper,
                       answer,
                       edit: fn(&mut Packet)|
         -> Result<()> {
            let number = FIRST + u8::try_from(list.len())?;
            let ports = [21_000 + u16::from(number), port];
            // To its router, from where it goes to wherever.
            let mut packet = addresses.packet(Who::A, Who::B, six, ports, upper.clone());
            packet.destination = to;
            if sender == Sender::Outside {
                let route = route::to(scene, "ext", to)?;
                packet = Packet::new([route.next, route.own], route.source, to, ports, upper);
            }
            packet.payload = Mark { flow: number, back: false, variant: 0 }.payload(40);
            (packet.id, packet.label) = (0x2468, Some(0x1_3579));
            edit(&mut packet);
            let name = format!("IPv{}: {name}", if six { 6 } else { 4 });
            list.push(Question { name, sender, packet, answer });
            Ok(())
        };
        let pod = Sender::Pod(Who::A);
        let near = router(if six { scene.member(Who::A).ipv6 } else { scene.member(Who::A).ipv4.into() });
        let echo = Upper::Icmp { kind: if six { 128 } else { 8 }, code: 0, rest: [0, 7, 0, 1] };
        add("a router's echo reply", pod, near, 0, echo.clone(), Answer::Echo, |_| {})?;
        add("a router's echo reply to a label of the range", pod, near, 0, echo, Answer::Echo, |packet| {
            packet.label = Some(LABELS + 5);
        })?;
        add("an answer of OVN's DNS", pod, outside, DNS, Upper::Udp, Answer::Dns, |packet| {
            packet.payload = query(packet.source.is_ipv6());
        })?;
        add("a service without backends, UDP", pod, vip, PORT, Upper::Udp, Answer::Error, |_| {})?;
        add("a service without backends, SYN", pod, vip, PORT, tcp(SYN), Answer::Reset, |packet| {
            packet.acknowledged = 0;
        })?;
        add("a service without backends, data", pod, vip, PORT, tcp(ACK), Answer::Reset, |_| {})?;
        add(
            "its node port from outside",
            Sender::Outside,
            underlay(node_ip(1)),
            NODE_PORT,
            Upper::Udp,
            Answer::Error,
            |_| {},
        )?;
        // Of the second router OVN 25.03 sends no ICMPv6 error.
        if !six {
            add(
                "hops that end at the second router",
                pod,
                underlay(EXT_IP),
                PORT,
                Upper::Udp,
                Answer::Error,
                |packet| {
                    packet.ttl = 2;
                },
            )?;
        }
        let far = if six { scene.member(Who::B).ipv6 } else { scene.member(Who::B).ipv4.into() };
        add("a packet that is too long", pod, far, PORT, Upper::Udp, Answer::Error, |packet| {
            packet.payload.resize(1401 - if packet.source.is_ipv6() { 48 } else { 28 }, 7);
        })?;
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_are_the_first_of_their_subnets() {
        assert_eq!(router("10.244.3.17".parse().unwrap()), "10.244.3.1".parse::<IpAddr>().unwrap());
        assert_eq!(
            router("fd00:10:244:2::17".parse().unwrap()),
            "fd00:10:244:2::1".parse::<IpAddr>().unwrap()
        );
        assert_eq!(query(true).len(), 12 + 12 + 4);
    }
}
