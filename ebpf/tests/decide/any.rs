//! Entries, packets and clocks for the tests: mostly such as fit together, as two random numbers never do.

use ebpf::{
    decide::{Terms, forward::Facts},
    layout::{
        flow::{Entry, GATE_FORWARD, GATE_HOLD, GATE_LEARN, GATE_TCP, STATE_ACTIVE, STATE_WAITING, Tuple4},
        maps::Config,
    },
};
use proptest::prelude::*;

/// Times in ticks as the agent sets them, roughly, at 250 ticks a second.
pub(crate) fn config() -> Config {
    Config {
        refresh: 500,
        jitter: 64,
        slack: 50,
        grace: 50,
        overdue: 2_500,
        note_age: 250,
        note_reuse: 1_000,
        heartbeat_limit: 500,
        budget: 3,
        budget_shift: 4,
        pod_mtu: 1_400,
        tunnel_mtu: 1_300,
        uplink_mtu: 1_350,
        uplink: 2,
        ..Config::default()
    }
}

/// One of a few values, so that two of them are often the same.
pub(crate) fn few() -> impl Strategy<Value = u32> {
    1_u32..4
}

/// Gates with [`GATE_FORWARD`], which is asked before an entry is looked for.
pub(crate) fn gate() -> impl Strategy<Value = u32> {
    (any::<bool>(), any::<bool>()).prop_map(|(learn, tcp)| {
        GATE_FORWARD | if learn { GATE_LEARN } else { 0 } | if tcp { GATE_TCP } else { 0 }
    })
}

/// An entry, a packet of its flow, and the time: now at most 3,000 ticks before or after the deadline.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) entry: Entry<Tuple4>,
    pub(crate) facts: Facts,
    pub(crate) config: Config,
    pub(crate) gate: u32,
    pub(crate) epoch: u32,
    pub(crate) change: u32,
    pub(crate) now: u32,
    /// What is known of the receiver and the connection.
    pub(crate) receives: bool,
    pub(crate) is_open: bool,
    /// True if no change since the last check concerns the entry; asked if the entry was not checked since the last change.
    pub(crate) is_current: bool,
}

impl Case {
    pub(crate) fn terms(&self) -> Terms<'_> {
        let Self { config, gate, epoch, now, change, .. } = self;
        Terms { config, gate: *gate, epoch: *epoch, change: *change, now: *now }
    }

    /// This case without a hold.
    pub(crate) fn without_hold(self) -> Self {
        Self { gate: self.gate & !GATE_HOLD, ..self }
    }

    /// Ticks since the deadline; negative before it.
    pub(crate) fn late(&self) -> i32 {
        self.now.wrapping_sub(self.entry.deadline).cast_signed()
    }
}

prop_compose! {
    /// A case in which only the clock has a say.
    pub(crate) fn valid()(case in case(), ttl in 2_u8.., waiting in any::<bool>()) -> Case {
        let Case { mut entry, mut facts, .. } = case;
        entry.epoch = case.epoch;
        entry.checked = if case.is_current { entry.checked } else { case.change };
        entry.macs = facts.macs;
        entry.way = facts.way;
        entry.dscp = facts.dscp;
        entry.state = if waiting { STATE_WAITING } else { STATE_ACTIVE };
        facts.ttl = ttl.max(entry.ttl_step + 2);
        Case { entry, facts, receives: true, is_open: case.is_open || waiting, is_current: true, ..case }
    }
}

prop_compose! {
    /// Any case.
    pub(crate) fn case()(
        epoch in few(),
        entry_epoch in prop::option::weighted(0.2, few()),
        (macs, entry_macs) in (prop::array::uniform3(1_u32..3), prop::array::uniform3(1_u32..3)),
        same_macs in prop::bool::weighted(0.8),
        (dscp, entry_dscp) in (prop::bool::weighted(0.1), prop::bool::weighted(0.1)),
        (ttl, ttl_step) in (0_u8..6, 0_u8..3),
        (probing, state) in (0_u8..3, 0_u8..4),
        (way, entry_way) in (few(), prop::option::weighted(0.1, few())),
        (aggregate, receives, is_open) in (any::<bool>(), prop::bool::weighted(0.8), any::<bool>()),
        gate in gate(),
        (hold, hold_until) in (prop::bool::weighted(0.2), -100_i32..100),
        (change, checked, is_current) in (few(), few(), any::<bool>()),
        now in any::<u32>(),
        late in prop_oneof![-60_i32..60, -3_000..3_000],
    ) -> Case {
        let entry = Entry {
            epoch: entry_epoch.unwrap_or(epoch),
            checked,
            deadline: now.wrapping_sub(late.cast_unsigned()),
            probing,
            state,
            way: [entry_way.unwrap_or(way), 0, 0],
            ttl_step,
            dscp: u8::from(entry_dscp) << 2,
            macs: if same_macs { macs } else { entry_macs },
            ..Entry::default()
        };
        let facts = Facts { way: [way, 0, 0], macs, dscp: u8::from(dscp) << 2, ttl, aggregate };
        let gate = gate | if hold { GATE_HOLD } else { 0 };
        let config = Config { hold_until: now.wrapping_add_signed(hold_until), ..config() };
        Case { entry, facts, config, gate, epoch, change, now, receives, is_open, is_current }
    }
}
