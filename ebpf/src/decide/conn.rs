//! TCP connections of pods: both directions must have been seen, and both leave the cache together.

use super::Terms;
use crate::{
    layout::{
        flow::{Conn, GATE_TCP},
        reason::Reason,
    },
    packet::SYN,
};

/// Whether both directions of the connection came out of OVS in this epoch.
#[inline(always)]
pub const fn is_open(conn: &Conn, epoch: u32) -> bool {
    conn.epoch_out == epoch && conn.epoch_in == epoch && conn.closing == 0
}

/// Whether something may be learned of TCP connections at all.
///
/// # Errors
/// [`Reason::TcpGateClosed`].
#[inline(always)]
pub const fn may_learn(gate: u32) -> Result<(), Reason> {
    if gate & GATE_TCP == 0 { Err(Reason::TcpGateClosed) } else { Ok(()) }
}

/// Whether something may be learned of this connection.
///
/// # Errors
/// [`Reason::Closing`]: FIN or RST was seen, and no SYN since.
#[inline(always)]
pub const fn is_learnable(conn: &Conn) -> Result<(), Reason> {
    if conn.closing == 0 { Ok(()) } else { Err(Reason::Closing) }
}

/// A packet of the pod came out of OVS.
#[inline(always)]
pub fn sent(conn: &mut Conn, terms: &Terms<'_>) {
    conn.epoch_out = terms.epoch;
}

/// A packet to the pod came out of OVS that had come from the tunnel by `way`: VNI, OVN's option, outer source.
#[inline(always)]
pub fn received(conn: &mut Conn, way: [u32; 3], terms: &Terms<'_>) {
    conn.epoch_in = terms.epoch;
    [conn.vni, conn.option, conn.remote] = way;
    conn.peer = 0;
}

/// A packet came out of OVS that one pod of this node sent to another. `sender`, `receiver`: the two pods' connections, each with the
/// host veth of its pod.
#[inline(always)]
pub fn passed(
    (sender, sender_ifindex): (&mut Conn, u32),
    (receiver, receiver_ifindex): (&mut Conn, u32),
    terms: &Terms<'_>,
) {
    sender.epoch_out = terms.epoch;
    sender.peer = receiver_ifindex;
    receiver.epoch_in = terms.epoch;
    receiver.peer = sender_ifindex;
}

/// A packet with these TCP flags, one of SYN, FIN and RST, was seen: neither direction counts as seen any more. After FIN or RST nothing
/// is learned before the next SYN.
#[inline(always)]
pub fn close(conn: &mut Conn, flags: u32) {
    conn.closing = (flags & SYN as u32 == 0) as u32;
    conn.epoch_out = 0;
    conn.epoch_in = 0;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        layout::maps::Config,
        packet::{FIN, RST},
    };

    fn terms(config: &Config, epoch: u32) -> Terms<'_> {
        Terms { config, gate: GATE_TCP, epoch, now: 0 }
    }

    #[test]
    fn a_connection_is_open_when_both_directions_came_out_of_ovs_in_one_epoch() {
        let config = Config::default();
        let mut conn = Conn::default();
        sent(&mut conn, &terms(&config, 7));
        assert!(!is_open(&conn, 7), "one direction");
        received(&mut conn, [1, 2, 3], &terms(&config, 8));
        assert!(!is_open(&conn, 7) && !is_open(&conn, 8), "two epochs");
        sent(&mut conn, &terms(&config, 8));
        assert!(is_open(&conn, 8) && !is_open(&conn, 9));
    }

    #[test]
    fn each_pod_of_a_local_connection_knows_the_other_ones_port() {
        let config = Config::default();
        let (mut a, mut b) = (Conn::default(), Conn::default());
        passed((&mut a, 10), (&mut b, 20), &terms(&config, 1));
        assert!(!is_open(&a, 1) && !is_open(&b, 1), "only one direction was seen");
        passed((&mut b, 20), (&mut a, 10), &terms(&config, 1));
        assert!(is_open(&a, 1) && is_open(&b, 1));
        assert_eq!((a.peer, b.peer), (20, 10));
        received(&mut a, [1, 2, 3], &terms(&config, 1));
        assert_eq!(a.peer, 0, "now from the tunnel");
    }

    proptest! {
        /// Whatever was known before. No epoch is 0.
        #[test]
        fn after_syn_fin_or_rst_a_connection_is_closed_and_only_after_syn_it_can_be_learned(
            epoch in 1_u32..4, out in 0_u32..4, back in 0_u32..4, closing in 0_u32..2, flags in any::<u8>(),
        ) {
            prop_assume!(flags & (SYN | FIN | RST) != 0);
            let mut conn = Conn { epoch_out: out, epoch_in: back, closing, ..Conn::default() };
            close(&mut conn, flags.into());
            prop_assert!(!is_open(&conn, epoch));
            prop_assert_eq!((conn.epoch_out, conn.epoch_in), (0, 0));
            prop_assert_eq!(is_learnable(&conn).is_ok(), flags & SYN != 0);
        }
    }
}
