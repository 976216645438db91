//! Learning: what comes out of OVS, compared with what went in, makes an entry, renews one, or shows that one is wrong.

use aya_ebpf::helpers::bpf_get_prandom_u32;
use ebpf::{
    decide::pending,
    layout::flow::{
        Answer, DIVERGED_EGRESS, DIVERGED_INGRESS, Divergence, EgressFlow, EgressKey, FROM_POD, FROM_TUNNEL,
        GATE_FORWARD, HEADER, HEADER_WORDS, IngressFlow, IngressKey, KIND_LOCAL, KIND_TUNNEL, NOTE_LIVE,
        Note,
    },
    layout::maps::{Config, PORT_FAST, PORT_INTERPOSED, Port, TunnelKey, mapped},
    layout::reason::Reason,
    packet::{Flow, Outer, Packet as _, Window as _, word_sum},
};

use super::{
    conn, count,
    family::{Family, V4, V6},
    maps, note,
    skb::{self, Front, Skb},
};

/// A packet that comes out of OVS.
struct Seen<'a> {
    config: &'a Config,
    gate: u32,
    epoch: u32,
    now: u32,
    interposed: bool,
    tag: u32,
}

impl<'a> Seen<'a> {
    #[inline(always)]
    fn new(config: &'a Config, port: &Port, tag: u32, gate: u32) -> Self {
        Self {
            config,
            gate,
            epoch: maps::epoch(config),
            now: skb::now(),
            interposed: port.flags & PORT_INTERPOSED != 0,
            tag,
        }
    }

    /// The deadline of an entry that was confirmed now.
    #[inline(always)]
    fn deadline(&self) -> u32 {
        // SAFETY: draws a number.
        let random = unsafe { bpf_get_prandom_u32() } & self.config.jitter.saturating_sub(1);
        self.now.wrapping_add(self.config.refresh).wrapping_sub(random)
    }

    #[inline(always)]
    fn judge(&self, note: &Note) -> Result<(), Reason> {
        note::judge(note, self.config, self.gate, self.epoch, self.now)
    }

    /// Whether another entry may be made now: the agent is alive, and this CPU has budget. What there is already is
    /// refreshed without that.
    #[inline(always)]
    fn may_add(&self) -> Result<(), Reason> {
        // The agent's clock and ours are read at different times: a heartbeat may be of the next tick.
        let silence = self.now.wrapping_sub(maps::heartbeat(self.config)).cast_signed();
        if silence > self.config.heartbeat_limit.cast_signed() {
            return Err(Reason::NoHeartbeat);
        }
        let Some(budget) = maps::BUDGET.get_ptr_mut(0) else { return Err(Reason::OverBudget) };
        let window = self.now >> (self.config.budget_shift & 31);
        // SAFETY: a value of a per-CPU array, which only this CPU writes.
        let used = unsafe {
            if (*budget).window != window {
                (*budget).window = window;
                (*budget).used = 0;
            }
            (*budget).used += 1;
            (*budget).used
        };
        if used <= self.config.budget { Ok(()) } else { Err(Reason::OverBudget) }
    }
}

/// A Geneve packet as OVS sends it.
#[inline(always)]
pub(super) fn to_uplink(skb: &Skb, outer: &Outer, tunnel: u32, config: &Config, port: &Port, tag: u32) {
    let gate = maps::gate(config);
    if gate & GATE_FORWARD == 0 || config.uplink == 0 || outer.source != u32::from_ne_bytes(config.local) {
        return;
    }
    // Not OVS's: a pod can send what looks like a tunnel packet, and leaves with this node's address.
    if !outer.plain || !maps::is_remote(outer.destination) {
        count::reason(Reason::ForeignTunnel);
        return;
    }
    let seen = Seen::new(config, port, tag, gate);
    let learned = if outer.inner == V4::TYPE {
        egress::<V4>(skb, &skb.front(HEADER as u32 + 20 + 20), &seen, tunnel)
    } else if outer.inner == V6::TYPE {
        egress::<V6>(skb, &skb.front(HEADER as u32 + 40 + 20), &seen, tunnel)
    } else {
        return;
    };
    if let Err(reason) = learned {
        count::reason(reason);
    }
}

#[inline(always)]
fn egress<F: Family>(skb: &Skb, front: &Front, seen: &Seen<'_>, tunnel: u32) -> Result<(), Reason> {
    let Ok(flow) = F::parse(front, HEADER as u32, skb.len().wrapping_sub(HEADER as u32)) else {
        return Ok(());
    };
    if flow.changes_connection() {
        return Ok(());
    }
    let Some(note) = note::take::<F>(seen.interposed, seen.tag, &flow.tuple, FROM_POD, seen.epoch) else {
        return Err(Reason::NoteMissing);
    };
    if note.ifindex == 0 || !is_same(&note, &flow) {
        return Err(Reason::NoteMissing);
    }
    seen.judge(&note)?;
    let key = EgressKey { ifindex: note.ifindex, tuple: flow.tuple };
    if F::is_tcp(&flow.tuple) {
        let state = conn::learnable::<F>(&key, seen.gate)?;
        // SAFETY: a map value, see `conn`.
        unsafe { (*state).epoch_out = seen.epoch };
    }
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return Ok(()) };
    // SAFETY: a value of a per-CPU array, which only this CPU uses.
    let value = unsafe { &mut *scratch };
    fill::<F>(value, seen, &note, &flow);
    value.kind = KIND_TUNNEL;
    value.target = seen.config.uplink;
    value.slot = tunnel as u16;
    if !front.has(HEADER as u32) {
        return Ok(());
    }
    let mut at = 0;
    while at < HEADER_WORDS {
        // SAFETY: inside the packet, as just checked.
        value.header[at] = unsafe { *front.at::<u64>(at as u32 * 8) };
        at += 1;
    }
    // What differs from packet to packet: ECN, length and identification, the checksums, the UDP length.
    value.header[1] &= !(3 << 56);
    value.header[2] &= !0xffff_ffff;
    value.header[3] &= !0xffff;
    value.header[4] &= !(0xffff << 48);
    value.header[5] &= !0xffff;
    value.checksum = word_sum(front.u32(14) & 0x0000_fcff)
        + word_sum(front.u32(18) & 0xffff_0000)
        + word_sum(front.u32(22) & 0x0000_ffff)
        + word_sum(front.u32(26))
        + word_sum(front.u32(30));
    save::<F>(&key, value, seen)
}

/// Whether the note may teach of the packet, and OVS left the packet as it was, but for what an entry can repeat: a DSCP mark
/// (OVN's QoS) is not.
#[inline(always)]
fn is_same<T>(note: &Note, flow: &Flow<T>) -> bool {
    note.live == NOTE_LIVE && note.tos == flow.tos && note.ttl >= flow.ttl
}

/// Bits of the header's fifth word that hold the outer UDP source port: OVS may choose another at any time.
const SOURCE_PORT: u64 = 0xffff << 16;

/// A packet that OVS delivers to the pod at `ifindex`, its host veth. `port`: where it is seen.
#[inline(always)]
pub(super) fn to_pod(skb: &Skb, port: &Port, ifindex: u32, tag: u32) {
    let Some(config) = maps::config() else { return };
    let gate = maps::gate(config);
    if gate & GATE_FORWARD == 0 || port.flags & PORT_FAST == 0 {
        return;
    }
    let front = skb.front(14 + 20 + 20);
    if !front.has(14) {
        return;
    }
    let seen = Seen::new(config, port, tag, gate);
    let ethertype = u16::from_be(front.u16(12));
    let learned = if ethertype == V4::TYPE {
        delivered::<V4>(skb, &front, &seen, ifindex)
    } else if ethertype == V6::TYPE {
        delivered::<V6>(skb, &skb.front(14 + 40 + 20), &seen, ifindex)
    } else {
        return;
    };
    if let Err(reason) = learned {
        count::reason(reason);
    }
}

#[inline(always)]
fn delivered<F: Family>(skb: &Skb, front: &Front, seen: &Seen<'_>, ifindex: u32) -> Result<(), Reason> {
    let Ok(flow) = F::parse(front, 14, skb.len().wrapping_sub(14)) else { return Ok(()) };
    let receiver = EgressKey { ifindex, tuple: F::reverse(&flow.tuple) };
    if flow.changes_connection() {
        conn::close::<F>(&receiver, u32::from(flow.flags));
        return Ok(());
    }
    let tunnelled = note::take::<F>(seen.interposed, seen.tag, &flow.tuple, FROM_TUNNEL, seen.epoch);
    // What is not live counts as long as its packets may be the one that came out.
    let tunnelled = tunnelled
        .filter(|note| note.live == NOTE_LIVE || pending::may_be_inside(note, seen.config, seen.now));
    let note = match tunnelled {
        // A pod of this node sends the flow too, and the one that came out may be that.
        Some(_) if seen.interposed && note::is_inside::<F>(&flow.tuple, FROM_POD, seen.config, seen.now) => {
            None
        }
        Some(note) => Some(note),
        // By its tag the packet has one note.
        None if seen.interposed => note::take::<F>(true, 0, &flow.tuple, FROM_POD, seen.epoch),
        None => None,
    };
    let Some(note) = note else { return Err(Reason::NoteMissing) };
    if !is_same(&note, &flow) {
        return Err(Reason::NoteMissing);
    }
    seen.judge(&note)?;
    let macs = [front.u32(0), front.u32(4), front.u32(8)];
    if note.ifindex == 0 {
        ingress::<F>(seen, &note, &flow, &receiver, macs)
    } else {
        local::<F>(seen, &note, &flow, &receiver, macs)
    }
}

#[inline(always)]
fn ingress<F: Family>(
    seen: &Seen<'_>,
    note: &Note,
    flow: &Flow<F::Tuple>,
    receiver: &EgressKey<F::Tuple>,
    macs: [u32; 3],
) -> Result<(), Reason> {
    let [vni, option, remote] = note.way;
    let key = IngressKey { vni, option, remote, tuple: flow.tuple };
    if F::is_tcp(&flow.tuple) {
        let state = conn::learnable::<F>(receiver, seen.gate)?;
        // SAFETY: a map value, see `conn`.
        unsafe {
            (*state).epoch_in = seen.epoch;
            (*state).vni = key.vni;
            (*state).option = key.option;
            (*state).remote = key.remote;
            (*state).peer = 0;
        }
    }
    let ttl_step = note.ttl.wrapping_sub(flow.ttl);
    if let Some(entry) = F::ingress().get_ptr_mut(&key) {
        // SAFETY: a map value, see `egress`.
        let entry = unsafe { &mut *entry };
        if entry.epoch == seen.epoch {
            let same = entry.target == receiver.ifindex
                && entry.ttl_step == ttl_step
                && entry.macs == macs
                && entry.arrived == note.macs;
            if same || !count::counting() {
                entry.dscp = flow.dscp();
                entry.probing = 0;
                entry.deadline = seen.deadline();
                return Err(Reason::Refreshed);
            }
            // Of a frame for another station, or with another DSCP, it would be the answer to another question.
            if entry.arrived == note.macs && entry.dscp == flow.dscp() {
                let remembered = answer(entry.target, 0, entry.ttl_step, entry.macs);
                report::<F>(DIVERGED_INGRESS, entry.target, &flow.tuple, seen.epoch, |record| {
                    record.remembered = remembered;
                    record.ovs = answer(receiver.ifindex, 0, ttl_step, macs);
                });
                suspend(entry.target, seen.epoch);
                suspend(receiver.ifindex, seen.epoch);
                let _ = F::ingress().remove(&key);
                return Err(Reason::Diverged);
            }
        }
    }
    seen.may_add()?;
    let remote = mapped(remote.to_ne_bytes());
    let value = IngressFlow {
        epoch: seen.epoch,
        deadline: seen.deadline(),
        probing: 0,
        active: u8::from(!F::is_tcp(&flow.tuple)),
        ttl_step,
        dscp: flow.dscp(),
        target: receiver.ifindex,
        macs,
        slot: count::tunnel_slot(&TunnelKey { remote, vni }),
        learned: seen.now,
        arrived: note.macs,
        packets: 0,
    };
    match F::ingress().insert(&key, value, 0) {
        Ok(()) => Err(Reason::Learned),
        Err(_) => Err(Reason::InsertFailed),
    }
}

#[inline(always)]
fn local<F: Family>(
    seen: &Seen<'_>,
    note: &Note,
    flow: &Flow<F::Tuple>,
    receiver: &EgressKey<F::Tuple>,
    macs: [u32; 3],
) -> Result<(), Reason> {
    let key = EgressKey { ifindex: note.ifindex, tuple: flow.tuple };
    let Some(port) = maps::port(receiver.ifindex) else { return Ok(()) };
    if note.ifindex == receiver.ifindex {
        // To itself, through a service: for OVS.
        return Ok(());
    }
    if F::is_tcp(&flow.tuple) {
        let sender = conn::learnable::<F>(&key, seen.gate)?;
        let other = conn::learnable::<F>(receiver, seen.gate)?;
        // SAFETY: map values, see `conn`.
        unsafe {
            (*sender).epoch_out = seen.epoch;
            (*sender).peer = receiver.ifindex;
            (*other).epoch_in = seen.epoch;
            (*other).peer = key.ifindex;
        }
    }
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return Ok(()) };
    // SAFETY: a value of a per-CPU array, which only this CPU uses.
    let value = unsafe { &mut *scratch };
    fill::<F>(value, seen, note, flow);
    value.kind = KIND_LOCAL;
    value.target = receiver.ifindex;
    value.slot = port.slot as u16;
    value.checksum = 0;
    let front = front(macs);
    let mut at = 0;
    while at < HEADER_WORDS {
        let word = if at < front.len() { front[at] } else { 0 };
        // SAFETY: a word of the value. Volatile, for the reason of `note::write_words`.
        unsafe { (&raw mut value.header[at]).write_volatile(word) };
        at += 1;
    }
    save::<F>(&key, value, seen)
}

/// The MACs as the first words of a header.
#[inline(always)]
fn front(macs: [u32; 3]) -> [u64; 2] {
    [u64::from(macs[0]) | u64::from(macs[1]) << 32, u64::from(macs[2])]
}

/// The MACs as a header with nothing behind them.
#[inline(always)]
fn header(macs: [u32; 3]) -> [u64; HEADER_WORDS] {
    let mut header = [0; HEADER_WORDS];
    [header[0], header[1]] = front(macs);
    header
}

/// What every egress entry has.
#[inline(always)]
fn fill<F: Family>(value: &mut EgressFlow, seen: &Seen<'_>, note: &Note, flow: &Flow<F::Tuple>) {
    value.epoch = seen.epoch;
    value.deadline = seen.deadline();
    value.probing = 0;
    value.active = u8::from(!F::is_tcp(&flow.tuple));
    value.ttl_step = note.ttl.wrapping_sub(flow.ttl);
    value.macs = note.macs;
    value.dscp = flow.dscp();
    value.learned = seen.now;
    value.packets = 0;
}

/// Compares with the entry, or makes it. The result is what to count.
#[inline(always)]
fn save<F: Family>(key: &EgressKey<F::Tuple>, value: &EgressFlow, seen: &Seen<'_>) -> Result<(), Reason> {
    if let Some(entry) = F::egress().get_ptr_mut(key) {
        // SAFETY: a map value, see `egress`.
        let entry = unsafe { &mut *entry };
        if entry.epoch == seen.epoch {
            let moved = entry.header[4] ^ value.header[4];
            let mut other = moved & !SOURCE_PORT;
            let mut at = 0;
            while at < HEADER_WORDS {
                if at != 4 {
                    other |= entry.header[at] ^ value.header[at];
                }
                at += 1;
            }
            let same = other == 0
                && entry.kind == value.kind
                && entry.target == value.target
                && entry.ttl_step == value.ttl_step;
            if same || !count::counting() {
                if moved != 0 {
                    entry.header[4] = value.header[4];
                    count::reason(Reason::SourcePortChanged);
                }
                entry.macs = value.macs;
                entry.dscp = value.dscp;
                entry.probing = 0;
                entry.deadline = value.deadline;
                return Err(Reason::Refreshed);
            }
            // Sent to another station, or with another DSCP, it was another question.
            if entry.macs == value.macs && entry.dscp == value.dscp {
                report::<F>(DIVERGED_EGRESS, key.ifindex, &key.tuple, seen.epoch, |record| {
                    record.remembered = full_answer(entry);
                    record.ovs = full_answer(value);
                });
                suspend(key.ifindex, seen.epoch);
                let _ = F::egress().remove(key);
                return Err(Reason::Diverged);
            }
        }
    }
    seen.may_add()?;
    match F::egress().insert(key, value, 0) {
        Ok(()) => Err(Reason::Learned),
        Err(_) => Err(Reason::InsertFailed),
    }
}

/// Takes an endpoint off the fast path for this epoch.
#[inline(always)]
fn suspend(ifindex: u32, epoch: u32) {
    if let Some(port) = maps::port_mut(ifindex) {
        // SAFETY: a map value; a store of one word.
        unsafe { (*port).diverged = epoch };
    }
}

/// Tells the agent, with both answers.
#[inline(always)]
fn report<F: Family>(
    what: u32,
    ifindex: u32,
    tuple: &F::Tuple,
    epoch: u32,
    answers: impl FnOnce(&mut Divergence),
) {
    let Some(mut room) = maps::EVENTS.reserve::<Divergence>(0) else {
        count::reason(Reason::EventLost);
        return;
    };
    // SAFETY: reserved for a `Divergence`, and every field is written.
    let record = unsafe { &mut *room.as_mut_ptr() };
    record.what = what;
    record.ifindex = ifindex;
    record.epoch = epoch;
    record.family = F::VERSION;
    record.tuple = F::wide(tuple);
    answers(record);
    room.submit(0);
}

#[inline(always)]
fn answer(target: u32, kind: u8, ttl_step: u8, macs: [u32; 3]) -> Answer {
    Answer { target, kind, ttl_step, _pad: [0; 2], header: header(macs) }
}

#[inline(always)]
fn full_answer(flow: &EgressFlow) -> Answer {
    Answer {
        target: flow.target,
        kind: flow.kind,
        ttl_step: flow.ttl_step,
        _pad: [0; 2],
        header: flow.header,
    }
}
