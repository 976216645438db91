//! Stands where OVS stands in interposed mode: reads two interfaces by packet sockets, as the userspace datapath
//! does, and sends what comes in at one out of the other.

use std::{
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use nix::{
    ifaddrs::getifaddrs,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
        setsockopt, socket,
        sockopt::{RcvBufForce, ReceiveTimeout},
    },
    sys::time::{TimeVal, TimeValLike},
};

use crate::sandbox::Netns;

/// `PACKET_OUTGOING` of linux/if_packet.h: what we sent ourselves.
const OUTGOING: u8 = 4;

/// Forwards until dropped.
pub(crate) struct Forwarder {
    stop: Arc<AtomicBool>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Forwarder {
    /// Forwards between two interfaces of a namespace.
    pub(crate) fn between(net: &Netns, one: &'static str, other: &'static str) -> Self {
        let (one, other) = net.run(move || (Arc::new(open(one)), Arc::new(open(other))));
        let stop = Arc::new(AtomicBool::new(false));
        let start = |from: &Arc<OwnedFd>, to: &Arc<OwnedFd>| {
            let (from, to, stop) = (Arc::clone(from), Arc::clone(to), Arc::clone(&stop));
            let carry = move || {
                while !stop.load(Ordering::Relaxed) {
                    forward(&from, &to);
                }
            };
            thread::Builder::new().name("forwarder".into()).spawn(carry).unwrap()
        };
        let threads = vec![start(&one, &other), start(&other, &one)];
        Self { stop, threads }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A packet socket on an interface.
pub(crate) fn open(interface: &str) -> OwnedFd {
    let address = getifaddrs()
        .unwrap()
        .filter(|entry| entry.interface_name == interface)
        .find_map(|entry| entry.address?.as_link_addr().copied())
        .unwrap();
    let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll).unwrap();
    // Room for everything a test has on the way: a packet lost here would be retransmitted and counted twice.
    setsockopt(&fd, RcvBufForce, &(64 << 20)).unwrap();
    setsockopt(&fd, ReceiveTimeout, &TimeVal::milliseconds(50)).unwrap();
    bind(fd.as_raw_fd(), &address).unwrap();
    fd
}

/// Carries packets from one socket to the other until none came for a while.
fn forward(from: &OwnedFd, to: &OwnedFd) {
    let mut frame = [0; 65_536];
    while let Ok((length, source)) = recvfrom::<LinkAddr>(from.as_raw_fd(), &mut frame) {
        if source.is_some_and(|address| address.pkttype() == OUTGOING) {
            continue;
        }
        // Refused while the other end is down: lost, as on any wire.
        let _ = send(to.as_raw_fd(), &frame[..length], MsgFlags::empty());
    }
}
