//! Monitor of changes to Slipstream's nftables tables by other processes: netlink notifications (linux/netfilter/nfnetlink.h,
//! nf_tables.h) and the list of tables. `nft flush ruleset`, common in firewall scripts, removes all tables.

use std::collections::BTreeSet;
use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{AsyncSocket, AsyncSocketExt, Socket, SocketAddr, TokioSocket};

use crate::kernel::nfnetlink::{HEADERS, Message, attribute, messages};

/// Multicast group of nftables (`NFNLGRP_NFTABLES`).
const GROUP: u32 = 7;
/// High byte of message types (`NFNL_SUBSYS_NFTABLES`).
const SUBSYSTEM: u8 = 10;
// Low byte of message types.
const NEW_TABLE: u8 = 0;
const GET_TABLE: u8 = 1;
const NEW_CHAIN: u8 = 3;
const GET_CHAIN: u8 = 4;
const NEW_GENERATION: u8 = 15;
const GET_GENERATION: u8 = 16;
/// Attribute with the number of the last transaction (`NFTA_GEN_ID`), 32 bits, big-endian.
const GENERATION: u16 = 1;
/// Attribute with the name of the table, in messages about tables and their content (`NFTA_TABLE_NAME`, `NFTA_CHAIN_TABLE`, …).
const TABLE_NAME: u16 = 1;
// Attributes of a chain (`NFTA_CHAIN_…`): name, hook with its number as nested attribute `NFTA_HOOK_HOOKNUM`, policy.
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const HOOK_NUMBER: u16 = 1;
const CHAIN_POLICY: u16 = 5;
/// Hook of forwarded packets (`NF_INET_FORWARD`).
const FORWARD: u32 = 2;
/// Policy of a chain that lets nothing pass but what its rules accept (`NF_DROP`).
const DROP: u32 = 0;
/// Families whose chains see IP packets (`NFPROTO_…`), as `nft` names them.
const FAMILIES: [(u8, &str); 3] = [(1, "inet"), (2, "ip"), (10, "ip6")];
// linux/netlink.h
const DONE: u16 = 3;
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
const REQUEST_DUMP: u16 = REQUEST | 0x100 | 0x200;

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
                    let by: BTreeSet<u32> = messages(&datagram).filter_map(|m| touches_ours(&m)).collect();
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
    listed(GET_TABLE, |message| table(message).map(|name| (message.family, name)))
}

/// Lists the chains that drop forwarded packets unless one of their rules accepts them, as `nft list chain` names them. Chains of
/// iptables are among them where it works by nftables.
///
/// # Errors
/// The kernel does not reply.
pub fn chains_that_drop_forwarded() -> io::Result<BTreeSet<String>> {
    listed(GET_CHAIN, drops_forwarded)
}

/// Replies to a request for a list.
fn listed<T: Ord>(what: u8, take: impl Fn(&Message<'_>) -> Option<T>) -> io::Result<BTreeSet<T>> {
    let socket = ask(what, REQUEST_DUMP)?;
    let mut found = BTreeSet::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        for message in messages(&datagram) {
            match message.kind {
                DONE => return Ok(found),
                ERROR => {
                    return Err(io::Error::other("the kernel rejects the request to list what nftables has"));
                }
                _ => found.extend(take(&message)),
            }
        }
    }
}

/// Number of the namespace's last nftables transaction, which is 1 more with each.
///
/// # Errors
/// The kernel does not reply.
pub fn generation() -> io::Result<u32> {
    let (datagram, _) = ask(GET_GENERATION, REQUEST)?.recv_from_full()?;
    let found = messages(&datagram).find_map(|message| number(&message));
    found.ok_or_else(|| {
        io::Error::other("the kernel does not tell the number of its last nftables transaction")
    })
}

/// A socket on which the reply to a request will come.
fn ask(what: u8, flags: u16) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut request = Vec::with_capacity(HEADERS);
    request.extend(u32::try_from(HEADERS).map_err(io::Error::other)?.to_ne_bytes());
    request.extend([what, SUBSYSTEM]);
    request.extend(flags.to_ne_bytes());
    request.extend([0; 12]);
    socket.send(&request, 0)?;
    Ok(socket)
}

fn number(message: &Message<'_>) -> Option<u32> {
    if !message.is(SUBSYSTEM, NEW_GENERATION) {
        return None;
    }
    Some(u32::from_be_bytes(attribute(message.attributes, GENERATION)?.try_into().ok()?))
}

/// Port id of the socket that changed one of Slipstream's tables.
fn touches_ours(message: &Message<'_>) -> Option<u32> {
    let about_tables = message.kind.to_le_bytes()[1] == SUBSYSTEM && !message.is(SUBSYSTEM, NEW_GENERATION);
    let name = name(message).filter(|_| about_tables)?;
    name.starts_with(OURS).then_some(message.port)
}

/// Name of the table that the message lists, if it is one of Slipstream's.
fn table(message: &Message<'_>) -> Option<String> {
    name(message).filter(|name| message.is(SUBSYSTEM, NEW_TABLE) && name.starts_with(OURS))
}

fn name(message: &Message<'_>) -> Option<String> {
    text(message, TABLE_NAME)
}

fn text(message: &Message<'_>, kind: u16) -> Option<String> {
    let text = attribute(message.attributes, kind)?.split(|byte| *byte == 0).next()?;
    String::from_utf8(text.to_vec()).ok()
}

/// The chain that the message lists, if it drops forwarded packets by policy.
fn drops_forwarded(message: &Message<'_>) -> Option<String> {
    let number = |attributes, kind| Some(u32::from_be_bytes(attribute(attributes, kind)?.try_into().ok()?));
    let family = FAMILIES.iter().find(|(family, _)| *family == message.family)?.1;
    let hook = number(attribute(message.attributes, CHAIN_HOOK)?, HOOK_NUMBER)?;
    let drops = message.is(SUBSYSTEM, NEW_CHAIN)
        && hook == FORWARD
        && number(message.attributes, CHAIN_POLICY)? == DROP;
    drops.then(|| Some(format!("{family} {} {}", name(message)?, text(message, CHAIN_NAME)?)))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::nfnetlink::tests as nfnetlink;

    fn message(low: u8, port: u32, table: &str) -> Vec<u8> {
        let mut name = table.as_bytes().to_vec();
        name.push(0);
        nfnetlink::message(SUBSYSTEM, low, port, &nfnetlink::encoded(TABLE_NAME, &name))
    }

    #[test]
    fn the_last_transactions_number_is_in_its_own_message() {
        let of = |low: u8| {
            let encoded = nfnetlink::encoded(GENERATION, &258_u32.to_be_bytes());
            let bytes = nfnetlink::message(SUBSYSTEM, low, 0, &encoded);
            messages(&bytes).find_map(|message| number(&message))
        };
        assert_eq!(of(NEW_GENERATION), Some(258));
        assert_eq!(of(NEW_TABLE), None);
    }

    #[test]
    fn only_what_is_about_our_tables_counts_and_names_who_did_it() {
        let touched =
            |datagram: &[u8]| messages(datagram).filter_map(|m| touches_ours(&m)).collect::<Vec<_>>();
        let mut all = message(NEW_TABLE, 7, "filter");
        all.extend(message(2, 8, "slipstream"));
        all.extend(message(14, 9, "slipstream_host_ports"));
        all.extend(message(NEW_GENERATION, 10, "slipstream"));
        assert_eq!(touched(&all), [8, 9]);
        assert_eq!(touched(&all[..all.len() - 3]), [8, 9], "the last one is cut short");
        assert!(touched(&[1, 2, 3]).is_empty());
    }

    #[test]
    fn chains_that_drop_forwarded_packets_are_told_from_others() {
        let told = |family: u8, hook: u32, policy: u32| {
            let text = |kind, text: &str| nfnetlink::encoded(kind, format!("{text}\0").as_bytes());
            let number = |kind, number: u32| nfnetlink::encoded(kind, &number.to_be_bytes());
            let attributes = [
                text(TABLE_NAME, "filter"),
                text(CHAIN_NAME, "FORWARD"),
                nfnetlink::encoded(CHAIN_HOOK, &number(HOOK_NUMBER, hook)),
                number(CHAIN_POLICY, policy),
            ];
            let mut bytes = nfnetlink::message(SUBSYSTEM, NEW_CHAIN, 0, &attributes.concat());
            bytes[HEADERS - 4] = family;
            messages(&bytes).find_map(|message| drops_forwarded(&message))
        };
        assert_eq!(told(2, FORWARD, DROP).as_deref(), Some("ip filter FORWARD"));
        assert_eq!(told(1, FORWARD, DROP).as_deref(), Some("inet filter FORWARD"));
        assert_eq!(told(2, FORWARD, 1), None, "policy accept");
        assert_eq!(told(2, 1, DROP), None, "hook input");
        assert_eq!(told(5, FORWARD, DROP), None, "family netdev");
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the rules of a firewall")]
    fn a_chain_that_drops_is_found_in_the_kernel() {
        use test_support::namespaces::Netns;

        Netns::new("chains").run(|| {
            let rules = "table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; \
                         chain INPUT { type filter hook input priority 0; policy drop; }; chain sub { }; }";
            let done = std::process::Command::new("nft").arg(rules).status().unwrap();
            assert!(done.success());
            let found = chains_that_drop_forwarded().unwrap();
            assert_eq!(found.into_iter().collect::<Vec<_>>(), ["ip filter FORWARD"]);
        });
    }
}
