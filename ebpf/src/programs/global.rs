//! Functions that the kernel's verifier looks at once, by themselves, whoever calls them: global functions (Linux 5.6; pointers to memory
//! as arguments since 5.12). What is called at the end of many ways through a program would otherwise be looked at once for each of
//! them. Called with few packets, as each costs a call.
//!
//! A function is global by its name in the object. Its arguments are the packet, numbers, and pointers to values of a fixed size, which
//! the verifier takes for null until told otherwise; its result is a number.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use ebpf::{
    decide::{scope, service},
    layout::{
        flow::{Entry, Tuple4, Tuple6},
        reason::Reason,
    },
    packet,
};

use super::{
    conn, count,
    family::{V4, V6},
    maps, note, peer_maps, quoted,
    skb::Skb,
};

#[inline(always)]
fn skb(raw: *mut __sk_buff) -> Skb {
    Skb::new(&TcContext::new(raw))
}

/// Counts what is wrong with a pod's packet that the flow cache did not look at.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn count_unread(raw: *mut __sk_buff) -> u32 {
    let skb = skb(raw);
    if let Err(reason) = packet::pod(&skb, skb.meta().gso_size != 0) {
        count::malformed(&skb, reason);
    }
    0
}

/// Takes off what looks like our mark. `at`: offset of the Ethernet header in front of the IP header; `port`: counter slot of the port.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn clean_mark(raw: *mut __sk_buff, at: u32, port: u32) -> u32 {
    if let Some(config) = maps::config() {
        note::clean(&skb(raw), at, port, config);
    }
    0
}

/// Takes our mark off a packet that leaves where nothing is learned. `at` as for [`clean_mark`].
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn release_mark(raw: *mut __sk_buff, at: u32) -> u32 {
    note::release(&skb(raw), at);
    0
}

/// Takes our mark off what an ICMP error quotes. `ip`: offset of the IP header.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn unquote4(raw: *mut __sk_buff, ip: u32) -> u32 {
    quoted::restore4(&skb(raw), ip);
    0
}

/// [`unquote4`] for ICMPv6.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn unquote6(raw: *mut __sk_buff, ip: u32) -> u32 {
    quoted::restore6(&skb(raw), ip);
    0
}

/// The node with this outer address, see `peer::find`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn look_for_peer(address: u32, vni: u32, epoch: u32) -> u32 {
    peer_maps::look(address, vni, epoch)
}

/// A slot for the note of a packet, see [`note::take`].
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn take_slot4(payer: u32, urgent: u32, segments: u32, now: u32) -> u32 {
    note::take::<V4>(payer, urgent != 0, segments, now)
}

/// [`take_slot4`] for an IPv6 packet, whose segments all have its flow label.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn take_slot6(payer: u32, urgent: u32, now: u32) -> u32 {
    note::take::<V6>(payer, urgent != 0, 0, now)
}

/// What is asked of flows, of each IP version.
macro_rules! of_flows {
    ($family:ident, $tuple:ty, $is_current:ident, $scope_refusal:ident, $is_slow:ident, $change:ident) => {
        /// Whether nothing that concerns an entry has changed.
        #[inline(never)]
        #[unsafe(no_mangle)]
        pub(super) extern "C" fn $is_current(
            key: *const $tuple,
            entry: *const Entry<$tuple>,
            change: u32,
        ) -> u32 {
            // SAFETY: callers have references.
            let (Some(key), Some(entry)) = (unsafe { (key.as_ref(), entry.as_ref()) }) else { return 0 };
            scope::is_current(key, entry, change, maps::scope).into()
        }

        /// Why nothing may be learned into an entry: 1: [`Reason::ScopeClosed`], 2: another one; 0: it may.
        #[inline(never)]
        #[unsafe(no_mangle)]
        pub(super) extern "C" fn $scope_refusal(
            key: *const $tuple,
            value: *const Entry<$tuple>,
            change: u32,
        ) -> u32 {
            // SAFETY: callers have references.
            let (Some(key), Some(value)) = (unsafe { (key.as_ref(), value.as_ref()) }) else { return 2 };
            match scope::may_learn(key, value, change, maps::scope) {
                Ok(()) => 0,
                Err(Reason::ScopeClosed) => 1,
                Err(_) => 2,
            }
        }

        /// Whether a flow is of a service that is kept off the cache.
        #[inline(never)]
        #[unsafe(no_mangle)]
        pub(super) extern "C" fn $is_slow(before: *const $tuple, after: *const $tuple) -> u32 {
            // SAFETY: callers have references.
            let (Some(before), Some(after)) = (unsafe { (before.as_ref(), after.as_ref()) }) else {
                return 1;
            };
            service::is_slow(before, after, maps::is_slow_service).into()
        }

        /// What SYN, FIN or RST does to the connection's entries, see [`conn::change`]. 1: something.
        #[inline(never)]
        #[unsafe(no_mangle)]
        pub(super) extern "C" fn $change(key: *const $tuple, flags: u32, out: u32) -> u32 {
            // SAFETY: callers have references.
            let Some(key) = (unsafe { key.as_ref() }) else { return 0 };
            // On the stack: Linux 6.1 takes memory of the caller's for no key of a map.
            let key = *key;
            conn::change_entries::<$family>(&key, flags, out)
        }
    };
}

of_flows!(V4, Tuple4, is_current4, scope_refusal4, is_slow4, change4);
of_flows!(V6, Tuple6, is_current6, scope_refusal6, is_slow6, change6);
