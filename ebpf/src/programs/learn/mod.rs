//! Learning: what comes out of OVS, compared with what went in, makes an entry, confirms one, or shows that one is wrong. What is
//! learned is decided in [`ebpf::decide::learn`].

mod report;

use aya_ebpf::helpers::bpf_get_prandom_u32;
use ebpf::{
    decide::{
        Terms, conn as connection,
        learn::{self, Compared, Learned},
        pending,
    },
    layout::{
        flow::{
            DIVERGED_EGRESS, DIVERGED_INGRESS, EgressFlow, EgressKey, FROM_POD, FROM_TUNNEL, GATE_FORWARD,
            HEADER_LEN, HEADER_WORDS, IngressFlow, IngressKey, KIND_LOCAL, KIND_TUNNEL, Note,
        },
        maps::{Config, PORT_FAST, PORT_INTERPOSED, Port, TunnelKey, mapped},
        reason::Reason,
    },
    packet::{Flow, Outer, Packet as _, Window as _},
};
use report::{egress_answer, ingress_answer, report, suspend};

use super::{
    conn, count,
    family::{Family, V4, V6},
    maps, note,
    skb::{self, Front, Skb},
};

/// What stays the same for a packet that comes out of OVS.
struct Seen<'a> {
    terms: Terms<'a>,
    interposed: bool,
    tag: u32,
}

impl<'a> Seen<'a> {
    #[inline(always)]
    fn new(config: &'a Config, port: &Port, tag: u32, gate: u32) -> Self {
        let terms = Terms { config, gate, epoch: maps::epoch(config), now: skb::now() };
        Self { terms, interposed: port.flags & PORT_INTERPOSED != 0, tag }
    }

    /// The deadline of an entry that is confirmed now.
    #[inline(always)]
    fn deadline(&self) -> u32 {
        // SAFETY: draws a number.
        learn::deadline(&self.terms, unsafe { bpf_get_prandom_u32() })
    }

    /// Whether another entry may be made now: the agent is alive, and this CPU has budget. What there is already is
    /// confirmed without that.
    #[inline(always)]
    fn may_add(&self) -> Result<(), Reason> {
        learn::is_agent_alive(maps::heartbeat(self.terms.config), &self.terms)?;
        let Some(budget) = maps::BUDGET.get_ptr_mut(0) else { return Err(Reason::OverBudget) };
        // SAFETY: a value of a per-CPU array, which only this CPU writes.
        learn::spend(unsafe { &mut *budget }, &self.terms)
    }
}

/// Counts what was learned, or why nothing was.
#[inline(always)]
fn tell(learned: Result<Learned, Reason>) {
    let reason = match learned {
        Ok(learned) => learned.counter(),
        Err(reason) => Some(reason),
    };
    if let Some(reason) = reason {
        count::reason(reason);
    }
}

/// Looks at a Geneve packet as OVS sends it. `tunnel`: slot of the tunnel's counters.
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
    if outer.inner == V4::TYPE {
        tell(egress::<V4>(skb, &skb.front(HEADER_LEN + 20 + 20), &seen, tunnel));
    } else if outer.inner == V6::TYPE {
        tell(egress::<V6>(skb, &skb.front(HEADER_LEN + 40 + 20), &seen, tunnel));
    }
}

#[inline(always)]
fn egress<F: Family>(skb: &Skb, front: &Front, seen: &Seen<'_>, tunnel: u32) -> Result<Learned, Reason> {
    let terms = &seen.terms;
    let Ok(flow) = F::parse(front, HEADER_LEN, skb.len().wrapping_sub(HEADER_LEN)) else {
        return Ok(Learned::Nothing);
    };
    if flow.changes_connection() {
        return Ok(Learned::Nothing);
    }
    let Some(note) = note::take::<F>(seen.interposed, seen.tag, &flow.tuple, FROM_POD, terms.epoch) else {
        return Err(Reason::NoteMissing);
    };
    if note.ifindex == 0 {
        return Err(Reason::NoteMissing);
    }
    learn::judge(&note, flow.tos, flow.ttl, terms)?;
    let key = EgressKey { ifindex: note.ifindex, tuple: flow.tuple };
    if F::is_tcp(&flow.tuple) {
        connection::sent(conn::learnable::<F>(&key, terms)?, terms);
    }
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return Ok(Learned::Nothing) };
    // SAFETY: a value of a per-CPU array, which only this CPU uses.
    let value = unsafe { &mut *scratch };
    learn::fill_egress(value, &note, &flow, F::protocol(&flow.tuple), terms, seen.deadline());
    value.kind = KIND_TUNNEL;
    value.target = terms.config.uplink;
    value.slot = slot(tunnel);
    if !front.has(HEADER_LEN) {
        return Ok(Learned::Nothing);
    }
    let mut at = 0;
    while at < HEADER_WORDS {
        // SAFETY: inside the packet, as just checked.
        value.header[at] = unsafe { *front.word(at) };
        at += 1;
    }
    learn::template(&mut value.header);
    value.checksum = learn::template_sum(&value.header);
    save::<F>(&key, value, seen)
}

/// Slot of a counter, as an entry has it.
#[expect(clippy::cast_possible_truncation, reason = "there are at most 65,536 slots of either kind")]
#[inline(always)]
const fn slot(number: u32) -> u16 {
    number as u16
}

/// Looks at a packet that OVS delivers to the pod at `ifindex`, its host veth. `port`: where it is seen.
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
    if ethertype == V4::TYPE {
        tell(delivered::<V4>(skb, &front, &seen, ifindex));
    } else if ethertype == V6::TYPE {
        tell(delivered::<V6>(skb, &skb.front(14 + 40 + 20), &seen, ifindex));
    }
}

#[inline(always)]
fn delivered<F: Family>(skb: &Skb, front: &Front, seen: &Seen<'_>, ifindex: u32) -> Result<Learned, Reason> {
    let Ok(flow) = F::parse(front, 14, skb.len().wrapping_sub(14)) else { return Ok(Learned::Nothing) };
    let receiver = EgressKey { ifindex, tuple: F::reverse(&flow.tuple) };
    if flow.changes_connection() {
        conn::close::<F>(&receiver, u32::from(flow.flags));
        return Ok(Learned::Nothing);
    }
    let Some(note) = note_of_delivered::<F>(&flow.tuple, seen) else { return Err(Reason::NoteMissing) };
    learn::judge(&note, flow.tos, flow.ttl, &seen.terms)?;
    let macs = [front.u32(0), front.u32(4), front.u32(8)];
    if note.ifindex == 0 {
        ingress::<F>(seen, &note, &flow, &receiver, macs)
    } else {
        local::<F>(seen, &note, &flow, &receiver, macs)
    }
}

/// The note of a packet that OVS delivers: from the tunnel, or from another pod of this node.
#[inline(always)]
fn note_of_delivered<F: Family>(tuple: &F::Tuple, seen: &Seen<'_>) -> Option<Note> {
    let Terms { epoch, .. } = seen.terms;
    let tunnelled = note::take::<F>(seen.interposed, seen.tag, tuple, FROM_TUNNEL, epoch)
        .filter(|note| pending::counts(note, &seen.terms));
    match tunnelled {
        // A pod of this node sends the flow too, and the one that came out may be that.
        Some(_) if seen.interposed && note::is_inside::<F>(tuple, FROM_POD, &seen.terms) => None,
        Some(note) => Some(note),
        // By its tag the packet has one note.
        None if seen.interposed => note::take::<F>(true, 0, tuple, FROM_POD, epoch),
        None => None,
    }
}

#[inline(always)]
fn ingress<F: Family>(
    seen: &Seen<'_>,
    note: &Note,
    flow: &Flow<F::Tuple>,
    receiver: &EgressKey<F::Tuple>,
    macs: [u32; 3],
) -> Result<Learned, Reason> {
    let terms = &seen.terms;
    let [vni, option, remote] = note.way;
    let key = IngressKey { vni, option, remote, tuple: flow.tuple };
    if F::is_tcp(&flow.tuple) {
        connection::received(conn::learnable::<F>(receiver, terms)?, note.way, terms);
    }
    let answer = |slot, deadline| {
        let (protocol, delivered) = (F::protocol(&flow.tuple), (receiver.ifindex, macs));
        learn::ingress_entry(note, flow, protocol, delivered, slot, terms, deadline)
    };
    if let Some(entry) = F::ingress().get_ptr_mut(&key) {
        // SAFETY: a map value that an LRU map may reuse, as in `egress` of the parent module.
        let entry = unsafe { &mut *entry };
        let answer = answer(0, 0);
        match learn::compare_ingress(entry, &answer, count::counting()) {
            Compared::Same => {
                learn::confirm_ingress(entry, &IngressFlow { deadline: seen.deadline(), ..answer });
                return Ok(Learned::Confirmed);
            }
            Compared::Other => {
                let remembered = ingress_answer(entry);
                report::<F>(DIVERGED_INGRESS, entry.target, &flow.tuple, terms.epoch, |record| {
                    record.remembered = remembered;
                    record.ovs = ingress_answer(&answer);
                });
                suspend(entry.target, terms.epoch);
                suspend(receiver.ifindex, terms.epoch);
                let _ = F::ingress().remove(&key);
                return Ok(Learned::Diverged);
            }
            Compared::New => {}
        }
    }
    seen.may_add()?;
    let slot = count::tunnel_slot(&TunnelKey { remote: mapped(remote.to_ne_bytes()), vni });
    match F::ingress().insert(&key, answer(slot, seen.deadline()), 0) {
        Ok(()) => Ok(Learned::Entry),
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
) -> Result<Learned, Reason> {
    let terms = &seen.terms;
    let key = EgressKey { ifindex: note.ifindex, tuple: flow.tuple };
    let Some(port) = maps::port(receiver.ifindex) else { return Ok(Learned::Nothing) };
    if note.ifindex == receiver.ifindex {
        // To itself, through a service: for OVS.
        return Ok(Learned::Nothing);
    }
    if F::is_tcp(&flow.tuple) {
        let sender = conn::learnable::<F>(&key, terms)?;
        let other = conn::learnable::<F>(receiver, terms)?;
        connection::passed((sender, key.ifindex), (other, receiver.ifindex), terms);
    }
    let Some(scratch) = maps::SCRATCH.get_ptr_mut(0) else { return Ok(Learned::Nothing) };
    // SAFETY: a value of a per-CPU array, which only this CPU uses.
    let value = unsafe { &mut *scratch };
    learn::fill_egress(value, note, flow, F::protocol(&flow.tuple), terms, seen.deadline());
    value.kind = KIND_LOCAL;
    value.target = receiver.ifindex;
    value.slot = slot(port.slot);
    value.checksum = 0;
    let front = report::front(macs);
    let mut at = 0;
    while at < HEADER_WORDS {
        let word = if at < front.len() { front[at] } else { 0 };
        // SAFETY: a word of the value. Volatile, for the reason of `note::write_words`.
        unsafe { (&raw mut value.header[at]).write_volatile(word) };
        at += 1;
    }
    save::<F>(&key, value, seen)
}

/// Compares `value` with the entry, or makes it the entry.
#[inline(always)]
fn save<F: Family>(
    key: &EgressKey<F::Tuple>,
    value: &EgressFlow,
    seen: &Seen<'_>,
) -> Result<Learned, Reason> {
    if let Some(entry) = F::egress().get_ptr_mut(key) {
        // SAFETY: a map value that an LRU map may reuse, as in `egress` of the parent module.
        let entry = unsafe { &mut *entry };
        match learn::compare_egress(entry, value, count::counting()) {
            Compared::Same => {
                if learn::confirm_egress(entry, value) {
                    count::reason(Reason::SourcePortChanged);
                }
                return Ok(Learned::Confirmed);
            }
            Compared::Other => {
                let epoch = seen.terms.epoch;
                report::<F>(DIVERGED_EGRESS, key.ifindex, &key.tuple, epoch, |record| {
                    record.remembered = egress_answer(entry);
                    record.ovs = egress_answer(value);
                });
                suspend(key.ifindex, epoch);
                let _ = F::egress().remove(key);
                return Ok(Learned::Diverged);
            }
            Compared::New => {}
        }
    }
    seen.may_add()?;
    match F::egress().insert(key, value, 0) {
        Ok(()) => Ok(Learned::Entry),
        Err(_) => Err(Reason::InsertFailed),
    }
}
