//! What a pod can put beside a packet says nothing to the programs: they keep their tag in `skb->priority`.

use nix::sys::socket::{
    MsgFlags, send, setsockopt,
    sockopt::{Mark, Priority},
};
use node_agent::bpf::Reason;
use std::os::fd::AsRawFd;

use super::world::{Shape, UDP, World};
use crate::{
    forwarder::open,
    sandbox::{eventually, must},
};

/// A tag as the programs write it: a note in slot 7.
const TAG: u32 = 0x5001_0007;

#[test]
fn a_priority_and_a_mark_that_a_pod_sets_do_not_get_across_its_veth() {
    // Direct mode, in which the tag counts. The programs are attached to `pod0`; `px0` is the pod's end.
    World::run(false, |world| {
        for end in ["px0", "pod0"] {
            must(&format!("ip link set {end} up"));
        }
        let socket = open("px0");
        setsockopt(&socket, Priority, &TAG.cast_signed()).unwrap();
        setsockopt(&socket, Mark, &TAG).unwrap();
        let (packet, _) = UDP.out();
        send(socket.as_raw_fd(), &packet, MsgFlags::empty()).unwrap();
        assert!(eventually(|| world.count(Reason::Miss) == 1), "{:?}", world.reasons());
        assert_eq!(world.count(Reason::PriorityTaken), 0, "{:?}", world.reasons());
        // It would have been seen.
        let (packet, _) = Shape { six: true, ..UDP }.out();
        world.pass("from_pod", &packet, world.pods[0], TAG);
        assert_eq!((world.count(Reason::Miss), world.count(Reason::PriorityTaken)), (2, 1));
    });
}
