//! Connections that the kernel's connection tracking forgets: netlink notifications (linux/netfilter/nfnetlink_conntrack.h).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{AsyncSocket, AsyncSocketExt, Socket, SocketAddr as NetlinkAddress, TokioSocket};
use nix::sys::socket::{setsockopt, sockopt};

use super::nfnetlink::{HEADERS, Message, attribute, messages};

/// Multicast group of ended connections (`NFNLGRP_CONNTRACK_DESTROY`).
const GROUP: u32 = 3;
/// High byte of message types (`NFNL_SUBSYS_CTNETLINK`).
const SUBSYSTEM: u8 = 1;
// Low byte of message types (`IPCTNL_MSG_CT_DELETE`, `IPCTNL_MSG_CT_GET_STATS`).
const DELETE: u8 = 2;
const GET_STATISTICS: u8 = 5;
// linux/netlink.h
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
// Attributes of a connection (`CTA_*`).
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const PROTOCOL_STATE: u16 = 4;
const TIMEOUT: u16 = 7;
// Attributes of a tuple (`CTA_TUPLE_*`, `CTA_IP_*`, `CTA_PROTO_*`).
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const IPV4_SOURCE: u16 = 1;
const IPV4_DESTINATION: u16 = 2;
const IPV6_SOURCE: u16 = 3;
const IPV6_DESTINATION: u16 = 4;
const PROTOCOL_NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;
/// `CTA_PROTOINFO_TCP` and in it `CTA_PROTOINFO_TCP_STATE`.
const TCP: u16 = 1;
/// TCP states of connections that were closed: `TCP_CONNTRACK_TIME_WAIT`, `TCP_CONNTRACK_CLOSE`.
const CLOSED: [u8; 2] = [7, 8];
/// Bit of the status: packets went both ways, so that the connection is not dropped early (`IPS_ASSURED`).
const ASSURED: u32 = 1 << 2;
/// Size of the socket's buffer, in bytes: some 20,000 notifications.
const BUFFER: usize = 8 << 20;

/// Addresses and ports of a packet of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Source.
    pub source: SocketAddr,
    /// Destination.
    pub destination: SocketAddr,
}

/// A connection that is not tracked any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgotten {
    /// IP protocol number: 6 (TCP) or 17 (UDP).
    pub protocol: u8,
    /// Ends of the connection's first packet, before translation.
    pub original: Ends,
    /// A reply, before translation is undone.
    pub reply: Ends,
    /// Packets went both ways, in TCP with an acknowledgement.
    pub assured: bool,
    /// True if the connection had time left: it was deleted, and did not time out. True as well on kernels that do not say so (before Linux
    /// 5.10).
    pub early: bool,
    /// TCP that both ends had closed, or one had reset.
    pub closed: bool,
}

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// Connections that ended.
    Forgotten(Vec<Forgotten>),
    /// Notifications were lost.
    Lost,
}

/// Receiver of notifications.
pub struct Monitor {
    socket: TokioSocket,
}

impl Monitor {
    /// Subscribes to notifications in the namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel has no `nf_conntrack_netlink`, or rejects the subscription.
    pub fn open() -> io::Result<Self> {
        have_subsystem()?;
        let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
        socket.socket_mut().bind_auto()?;
        // More than the usual limit needs CAP_NET_ADMIN, which the agent has.
        setsockopt(socket.socket_ref(), sockopt::RcvBufForce, &BUFFER)?;
        socket.socket_mut().add_membership(GROUP)?;
        Ok(Self { socket })
    }

    /// Waits for the next notification about TCP or UDP.
    ///
    /// # Errors
    /// The socket failed.
    pub async fn next(&self) -> io::Result<Heard> {
        loop {
            match self.socket.recv_from_full().await {
                Ok((datagram, _)) => {
                    let forgotten: Vec<_> = messages(&datagram).filter_map(|m| read(&m)).collect();
                    if !forgotten.is_empty() {
                        return Ok(Heard::Forgotten(forgotten));
                    }
                }
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => return Ok(Heard::Lost),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Has the kernel load `nf_conntrack_netlink`: a subscription alone is accepted without it, and hears nothing.
fn have_subsystem() -> io::Result<()> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddress::new(0, 0))?;
    let mut request = u32::try_from(HEADERS).map_err(io::Error::other)?.to_ne_bytes().to_vec();
    request.extend([GET_STATISTICS, SUBSYSTEM]);
    request.extend(REQUEST.to_ne_bytes());
    request.extend([0; 12]);
    socket.send(&request, 0)?;
    let (datagram, _) = socket.recv_from_full()?;
    // The error code follows the netlink header.
    let refused = messages(&datagram).find(|message| message.kind == ERROR);
    match refused.map(|_| datagram.get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes))
    {
        None => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code.unwrap_or(-nix::libc::EINVAL))),
    }
}

/// A connection that ended, if the message is about one of TCP or UDP.
fn read(message: &Message<'_>) -> Option<Forgotten> {
    if !message.is(SUBSYSTEM, DELETE) {
        return None;
    }
    let get = |kind| attribute(message.attributes, kind);
    let (protocol, original) = tuple(get(TUPLE_ORIGINAL)?)?;
    let (_, reply) = tuple(get(TUPLE_REPLY)?)?;
    let tcp_state =
        get(PROTOCOL_STATE).and_then(|state| attribute(attribute(state, TCP)?, TCP)).and_then(|s| s.first());
    // The time left is told since Linux 5.10, with the state, and not when there is none.
    let tells_time = protocol != 6 || tcp_state.is_some();
    Some(Forgotten {
        protocol,
        original,
        reply,
        assured: get(STATUS).and_then(word).is_some_and(|status| status & ASSURED != 0),
        early: get(TIMEOUT).is_some() || !tells_time,
        closed: tcp_state.is_some_and(|state| CLOSED.contains(state)),
    })
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}

/// Protocol number and ends of a tuple of TCP or UDP.
fn tuple(bytes: &[u8]) -> Option<(u8, Ends)> {
    let (ip, of_protocol) = (attribute(bytes, TUPLE_IP)?, attribute(bytes, TUPLE_PROTOCOL)?);
    let protocol = *attribute(of_protocol, PROTOCOL_NUMBER)?.first()?;
    if !matches!(protocol, 6 | 17) {
        return None;
    }
    let port = |kind| attribute(of_protocol, kind)?.try_into().ok().map(u16::from_be_bytes);
    let v4 = |kind| <[u8; 4]>::try_from(attribute(ip, kind)?).ok().map(|a| IpAddr::from(Ipv4Addr::from(a)));
    let v6 = |kind| <[u8; 16]>::try_from(attribute(ip, kind)?).ok().map(|a| IpAddr::from(Ipv6Addr::from(a)));
    let source = v4(IPV4_SOURCE).or_else(|| v6(IPV6_SOURCE))?;
    let destination = v4(IPV4_DESTINATION).or_else(|| v6(IPV6_DESTINATION))?;
    let ends = Ends {
        source: SocketAddr::new(source, port(SOURCE_PORT)?),
        destination: SocketAddr::new(destination, port(DESTINATION_PORT)?),
    };
    Some((protocol, ends))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::nfnetlink::tests::{encoded, message};

    fn encoded_tuple(protocol: u8, source: [u8; 4], source_port: u16, destination: [u8; 4]) -> Vec<u8> {
        let mut ip = encoded(IPV4_SOURCE, &source);
        ip.extend(encoded(IPV4_DESTINATION, &destination));
        let mut of_protocol = encoded(PROTOCOL_NUMBER, &[protocol]);
        of_protocol.extend(encoded(SOURCE_PORT, &source_port.to_be_bytes()));
        of_protocol.extend(encoded(DESTINATION_PORT, &53_u16.to_be_bytes()));
        let mut tuple = encoded(TUPLE_IP, &ip);
        tuple.extend(encoded(TUPLE_PROTOCOL, &of_protocol));
        tuple
    }

    fn parsed(datagram: &[u8]) -> Vec<Forgotten> {
        messages(datagram).filter_map(|m| read(&m)).collect()
    }

    fn connection(protocol: u8, more: &[u8]) -> Vec<u8> {
        let mut all =
            encoded(TUPLE_ORIGINAL, &encoded_tuple(protocol, [10, 0, 0, 1], 4_000, [10, 96, 0, 10]));
        all.extend(encoded(TUPLE_REPLY, &encoded_tuple(protocol, [10, 0, 0, 7], 53, [10, 0, 0, 1])));
        all.extend(encoded(STATUS, &(ASSURED | 2).to_be_bytes()));
        all.extend(more);
        all
    }

    #[test]
    fn a_connection_is_read_with_how_it_ended() {
        let timeout = encoded(TIMEOUT, &29_u32.to_be_bytes());
        let read = |attributes: &[u8]| parsed(&message(SUBSYSTEM, DELETE, 0, attributes));
        let udp = read(&connection(17, &timeout));
        assert_eq!(udp.len(), 1);
        assert_eq!(udp[0].original.source, "10.0.0.1:4000".parse().unwrap());
        assert_eq!(udp[0].original.destination, "10.96.0.10:53".parse().unwrap());
        assert_eq!(udp[0].reply.source, "10.0.0.7:53".parse().unwrap());
        assert!(udp[0].early && udp[0].assured && !udp[0].closed);
        assert!(!read(&connection(17, &[]))[0].early, "it timed out");
        // TCP: without a state the kernel is an old one, which does not say how much time was left.
        let state = |state| encoded(PROTOCOL_STATE, &encoded(TCP, &encoded(TCP, &[state])));
        assert!(read(&connection(6, &[]))[0].early);
        assert!(!read(&connection(6, &state(3)))[0].early);
        assert!(read(&connection(6, &state(7)))[0].closed && !read(&connection(6, &state(3)))[0].closed);
        let both = [state(3), timeout].concat();
        assert!(read(&connection(6, &both))[0].early);
    }

    #[test]
    fn other_messages_protocols_and_truncated_ones_are_passed_over() {
        assert!(parsed(&message(SUBSYSTEM, 0, 0, &connection(17, &[]))).is_empty(), "a new one");
        assert!(parsed(&message(SUBSYSTEM, DELETE, 0, &connection(1, &[]))).is_empty(), "ICMP");
        let whole = message(SUBSYSTEM, DELETE, 0, &connection(17, &[]));
        for length in 0..whole.len() {
            assert!(parsed(&whole[..length]).is_empty());
        }
    }
}
