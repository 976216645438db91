//! Monitor of changes to Slipstream's nftables tables by other processes: netlink notifications (linux/netfilter/nfnetlink.h,
//! nf_tables.h) and the list of tables. `nft flush ruleset`, common in firewall scripts, removes all tables.

use std::collections::BTreeSet;
use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{AsyncSocket, AsyncSocketExt, Socket, SocketAddr, TokioSocket};

/// Multicast group of nftables (`NFNLGRP_NFTABLES`).
const GROUP: u32 = 7;
/// High byte of message types (`NFNL_SUBSYS_NFTABLES`).
const SUBSYSTEM: u8 = 10;
// Low byte of message types.
const NEW_TABLE: u8 = 0;
const GET_TABLE: u8 = 1;
const NEW_GENERATION: u8 = 15;
/// Attribute with the name of the table, in messages about tables and their content (`NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE`, …).
const TABLE_NAME: u16 = 1;
// linux/netlink.h
const DONE: u16 = 3;
const ERROR: u16 = 2;
const NLA_TYPE_MASK: u16 = 0x3fff;
const REQUEST_DUMP: u16 = 1 | 0x100 | 0x200;
/// Size of `nlmsghdr` and `nfgenmsg` in bytes.
const HEADERS: usize = 20;

/// Name prefix of Slipstream's tables.
const OURS: &str = "slipstream";

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// Slipstream's tables were changed through sockets with these port ids; that of a process's first socket is its process id.
    Touched(BTreeSet<u32>),
    /// Notifications were lost.
    Lost,
}

/// Receiver of nftables notifications.
pub struct Monitor {
    socket: TokioSocket,
}

impl Monitor {
    /// Subscribes to notifications in the namespace of the calling thread.
    ///
    /// # Errors
    /// The kernel has no nftables, or rejects the subscription.
    pub fn open() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_NETFILTER)?;
        socket.socket_mut().bind_auto()?;
        socket.socket_mut().add_membership(GROUP)?;
        Ok(Self { socket })
    }

    /// Waits for the next notification about Slipstream's tables.
    ///
    /// # Errors
    /// The socket failed.
    pub async fn next(&self) -> io::Result<Heard> {
        loop {
            match self.socket.recv_from_full().await {
                Ok((datagram, _)) => {
                    let by: BTreeSet<u32> = messages(&datagram).filter_map(|m| m.touches_ours()).collect();
                    if !by.is_empty() {
                        return Ok(Heard::Touched(by));
                    }
                }
                Err(error) if error.raw_os_error() == Some(nix::libc::ENOBUFS) => return Ok(Heard::Lost),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Lists Slipstream's existing tables as `FAMILY NAME`, with the number of the family.
///
/// # Errors
/// The kernel does not reply.
pub fn tables() -> io::Result<BTreeSet<(u8, String)>> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut request = Vec::with_capacity(HEADERS);
    request.extend(u32::try_from(HEADERS).map_err(io::Error::other)?.to_ne_bytes());
    request.extend([GET_TABLE, SUBSYSTEM]);
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.extend([0; 12]);
    socket.send(&request, 0)?;
    let mut found = BTreeSet::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        for message in messages(&datagram) {
            match message.kind {
                DONE => return Ok(found),
                ERROR => {
                    return Err(io::Error::other("the kernel rejects the request to list nftables tables"));
                }
                _ => found.extend(message.table().map(|name| (message.family, name))),
            }
        }
    }
}

struct Message<'a> {
    kind: u16,
    port: u32,
    family: u8,
    attributes: &'a [u8],
}

impl Message<'_> {
    fn is(&self, low: u8) -> bool {
        self.kind.to_le_bytes() == [low, SUBSYSTEM]
    }

    /// Port id of the socket that changed one of Slipstream's tables.
    fn touches_ours(&self) -> Option<u32> {
        let about_tables = self.kind.to_le_bytes()[1] == SUBSYSTEM && !self.is(NEW_GENERATION);
        let name = self.name().filter(|_| about_tables)?;
        name.starts_with(OURS).then_some(self.port)
    }

    /// Name of the table, if it is one of Slipstream's.
    fn table(&self) -> Option<String> {
        self.name().filter(|name| self.is(NEW_TABLE) && name.starts_with(OURS))
    }

    fn name(&self) -> Option<String> {
        let mut rest = self.attributes;
        while let Some((header, _)) = rest.split_first_chunk::<4>() {
            let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
            let kind = u16::from_ne_bytes([header[2], header[3]]) & NLA_TYPE_MASK;
            let value = rest.get(4..length)?;
            if kind == TABLE_NAME {
                let text = value.split(|byte| *byte == 0).next()?;
                return String::from_utf8(text.to_vec()).ok();
            }
            rest = rest.get(length.next_multiple_of(4)..)?;
        }
        None
    }
}

/// Messages of a datagram; stops at a truncated one.
fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let (header, _) = rest.split_first_chunk::<16>()?;
        let number =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = usize::try_from(number(0)).ok()?;
        let message = rest.get(..length)?;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let (family, attributes) =
            (message.get(16).copied().unwrap_or(0), message.get(HEADERS..).unwrap_or_default());
        rest = rest.get(length.max(16).next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, port: number(12), family, attributes })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(low: u8, port: u32, table: &str) -> Vec<u8> {
        let mut name = table.as_bytes().to_vec();
        name.push(0);
        let attribute = 4 + name.len();
        let length = HEADERS + attribute.next_multiple_of(4);
        let mut out = Vec::new();
        out.extend(u32::try_from(length).unwrap().to_ne_bytes());
        out.extend([low, SUBSYSTEM, 0, 0, 0, 0, 0, 0]);
        out.extend(port.to_ne_bytes());
        out.extend([1, 0, 0, 0]);
        out.extend(u16::try_from(attribute).unwrap().to_ne_bytes());
        out.extend(TABLE_NAME.to_ne_bytes());
        out.extend(name);
        out.resize(length, 0);
        out
    }

    #[test]
    fn only_what_is_about_our_tables_counts_and_names_who_did_it() {
        let touched =
            |datagram: &[u8]| messages(datagram).filter_map(|m| m.touches_ours()).collect::<Vec<_>>();
        let mut all = message(NEW_TABLE, 7, "filter");
        all.extend(message(2, 8, "slipstream"));
        all.extend(message(14, 9, "slipstream_host_ports"));
        all.extend(message(NEW_GENERATION, 10, "slipstream"));
        assert_eq!(touched(&all), [8, 9]);
        assert_eq!(touched(&all[..all.len() - 3]), [8, 9], "the last one is cut short");
        assert!(touched(&[1, 2, 3]).is_empty());
    }
}
