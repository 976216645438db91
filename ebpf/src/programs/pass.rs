//! State of one packet on its way through a program ([`Pass`]), and its outcome.

use ebpf::{
    decide::{Terms, forward},
    layout::{
        maps::{Config, Port},
        reason::Reason,
    },
    packet::wire::Meta,
};

use super::skb::{self, Skb};

/// What stays the same for one packet. Gate, epoch and change are read once, see [`Terms`].
pub(super) struct Pass<'a> {
    pub(super) config: &'a Config,
    /// The port at which the packet is.
    pub(super) port: &'a Port,
    pub(super) meta: Meta,
    pub(super) gate: u32,
    pub(super) epoch: u32,
    pub(super) change: u32,
    /// Slot in `NOTE_BUDGET` of who pays for notes.
    pub(super) payer: u32,
    /// The program is at an egress hook, where a packet cannot be handed to a pod's end of the veth.
    pub(super) at_egress: bool,
}

impl<'a> Pass<'a> {
    /// What to decide by, now.
    #[inline(always)]
    pub(super) fn terms(&self) -> Terms<'a> {
        let Self { config, gate, epoch, change, .. } = *self;
        Terms { config, gate, epoch, change, now: skb::now() }
    }
}

/// What became of a packet: the verdict of one that is on its way, or one of three marks. A plain number, as one that is known at
/// the end of each way costs less than two to be put together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome(i32);

impl Outcome {
    /// To OVS. Its headers are in order.
    pub(super) const SLOW: Self = Self(-2);
    /// To OVS, with a note.
    pub(super) const NOTED: Self = Self(-4);
    /// To OVS. It was not looked at, or not understood.
    pub(super) const UNREAD: Self = Self(-3);

    /// The packet is on its way. `verdict`: what the program returns; none of those that are used is negative but `TC_ACT_UNSPEC`, and
    /// that is none of a packet on its way.
    #[inline(always)]
    pub(super) const fn done(verdict: i32) -> Self {
        Self(verdict)
    }

    /// The verdict of a packet that is on its way.
    #[inline(always)]
    pub(super) const fn verdict(self) -> Option<i32> {
        if self.0 >= 0 { Some(self.0) } else { None }
    }
}

/// Why a packet of which a note may be left goes slow, and what is to be done with it: one number, of which the verifier can be made to
/// know nothing.
#[derive(Clone, Copy)]
pub(super) struct Slow(u32);

impl Slow {
    const REASON: u32 = 0xffff;
    const URGENT: u32 = 1 << 16;
    const MISS: u32 = 1 << 17;
    const CHANGES: u32 = 1 << 18;

    /// `changes`: the packet changes its connection.
    #[inline(always)]
    pub(super) const fn of(reason: Reason, changes: bool) -> Self {
        let urgent = if forward::is_urgent(reason) { Self::URGENT } else { 0 };
        let miss = if matches!(reason, Reason::Miss) { Self::MISS } else { 0 };
        let changes = if changes { Self::CHANGES } else { 0 };
        Self(reason.index() | urgent | miss | changes)
    }

    /// Returns `self`. The verifier looks once at what comes behind, and not for each reason: see [`Skb::forget`].
    #[inline(always)]
    pub(super) fn forgotten(self, skb: &Skb) -> Self {
        Self(skb.forget(self.0))
    }

    /// [Index](Reason::index) of the reason.
    #[inline(always)]
    pub(super) const fn reason(self) -> u32 {
        self.0 & Self::REASON
    }

    /// An entry dies if the packet is not noted.
    #[inline(always)]
    pub(super) const fn is_urgent(self) -> bool {
        self.0 & Self::URGENT != 0
    }

    /// There is no entry.
    #[inline(always)]
    pub(super) const fn is_miss(self) -> bool {
        self.0 & Self::MISS != 0
    }

    /// The packet changes its connection.
    #[inline(always)]
    pub(super) const fn changes(self) -> bool {
        self.0 & Self::CHANGES != 0
    }
}
