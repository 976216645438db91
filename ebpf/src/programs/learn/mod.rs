//! Learning: what comes out of OVS, compared with what went in, makes an entry, confirms one, or shows that one is wrong. What is
//! learned is decided in [`ebpf::decide::learn`].

mod report;

use ebpf::decide::tuple::Tuple;
use ebpf::{
    decide::{
        Terms, connection,
        learn::{self, Compared, Learned, Out, Tie},
        service, tag,
    },
    layout::{
        flow::{Entry, GATE_FORWARD, HEADER_LEN, HEADER_WORDS, Print, SIDE_OUTSIDE, SIDE_TUNNEL},
        maps::{Config, PORT_FAST, PORT_INTERPOSED, Port, SLOT_MANAGEMENT},
        reason::Reason,
        scope::CLOSED,
    },
    packet::{Outer, Packet as _, UDP, Window as _},
};

use super::{
    conn, count,
    family::{Family, V4, V6},
    maps,
    note::{self, Claim},
    peer::{self, Found},
    skb::{self, Skb},
};

/// Where a packet comes out of OVS.
struct Exit<'a> {
    config: &'a Config,
    /// The port at which it is.
    port: &'a Port,
    /// `SIDE_*`.
    side: u8,
    /// Interface by which it leaves.
    target: u32,
    /// Slot of the counters of what it leaves by.
    slot: u32,
    tag: u32,
    /// VLAN tag with which it leaves ([`vlan`](ebpf::layout::flow::vlan)); 0 = none.
    vlan: u32,
    /// The packet leaves by an interface of a physical network.
    physical: bool,
    /// Whether anything is learned here; marks are taken off in any case.
    learns: bool,
}

/// A Geneve packet as OVS sends it. `peer`: the node that it goes to. False: what is inside is no flow that the cache could carry.
#[inline(always)]
pub(super) fn to_uplink(
    skb: &Skb,
    outer: &Outer,
    peer: Found,
    config: &Config,
    port: &Port,
    tag: u32,
) -> bool {
    let on = maps::gate(config) & GATE_FORWARD != 0;
    let local = config.uplink != 0 && outer.source == u32::from_ne_bytes(config.local);
    // Not OVS's: a pod can send what looks like a tunnel packet, and leaves with this node's address.
    let foreign = !outer.plain || !peer.is_remote();
    if on && local && foreign {
        count::reason(Reason::ForeignTunnel);
    }
    let learns = on && local && !foreign;
    let (target, slot) = (config.uplink, peer.slot());
    let exit = Exit { config, port, side: SIDE_TUNNEL, target, slot, tag, vlan: 0, physical: false, learns };
    let learned = if outer.inner == V4::TYPE {
        comes_out::<V4, HEADER_LEN>(skb, &exit)
    } else if outer.inner == V6::TYPE {
        comes_out::<V6, HEADER_LEN>(skb, &exit)
    } else {
        return false;
    };
    tell(skb, learned)
}

/// A packet that OVS gives out on this side without a tunnel. `target`: interface by which it leaves, a pod's host veth, the uplink or
/// one of the node; `port`: where it is seen. False: it is no flow that the cache could carry, and may be a tunnel's.
#[inline(always)]
pub(super) fn plain(skb: &Skb, config: &Config, port: &Port, side: u8, target: u32, tag: u32) -> bool {
    let learns = maps::gate(config) & GATE_FORWARD != 0 && port.flags & PORT_FAST != 0;
    let slot = port.slot;
    leaves(skb, &Exit { config, port, side, target, slot, tag, vlan: 0, physical: false, learns })
}

/// A packet that OVS gives out to a physical network. The rest as for [`plain`].
#[inline(always)]
pub(super) fn to_physical(skb: &Skb, config: &Config, port: &Port, tag: u32) -> bool {
    let on = maps::gate(config) & GATE_FORWARD != 0 && port.flags & PORT_FAST != 0;
    // A tag of another kind is none that an entry has.
    let vlan = skb.vlan();
    let (learns, vlan) = (on && vlan.is_some(), vlan.unwrap_or(0));
    let (side, target, slot) = (SIDE_OUTSIDE, skb.ifindex(), port.slot);
    leaves(skb, &Exit { config, port, side, target, slot, tag, vlan, physical: true, learns })
}

#[inline(always)]
fn leaves(skb: &Skb, exit: &Exit<'_>) -> bool {
    let front = skb.front(14 + 20 + 20);
    if !front.has(14) {
        return false;
    }
    let ethertype = u16::from_be(front.u16(12));
    let learned = if ethertype == V4::TYPE {
        comes_out::<V4, 14>(skb, exit)
    } else if ethertype == V6::TYPE {
        comes_out::<V6, 14>(skb, exit)
    } else {
        return false;
    };
    tell(skb, learned)
}

/// Whether it is UDP to Geneve's port.
#[inline(always)]
pub(super) fn is_geneve<T: Tuple>(tuple: &T, config: &Config) -> bool {
    tuple.protocol() == UDP && tuple.destination_port() == config.geneve_port.to_be()
}

/// Counts what was learned, or why nothing was; false: the packet was not read. Whatever way led here, the verifier goes on only once.
#[inline(always)]
fn tell(skb: &Skb, learned: Result<Learned, Reason>) -> bool {
    const UNREAD: u32 = 1 << 16;
    const NOTHING: u32 = 1 << 17;
    let told = skb.forget(match learned {
        Ok(Learned::Unread) => UNREAD,
        Ok(learned) => match learned.counter() {
            Some(reason) => reason.index(),
            None => NOTHING,
        },
        Err(reason) => reason.index(),
    });
    if told < UNREAD {
        count::numbered(told);
    }
    told != UNREAD
}

/// `AT`: offset of the IP header.
#[inline(always)]
fn comes_out<F: Family, const AT: u32>(skb: &Skb, exit: &Exit<'_>) -> Result<Learned, Reason> {
    let front = skb.front(AT + F::HEADER + 20);
    let interposed = exit.port.flags & PORT_INTERPOSED != 0;
    // UDP without a number was not noted, and there is nothing to read of it. What may be a tunnel's is left to who reads what is inside.
    if !interposed && exit.side != SIDE_OUTSIDE && tag::slot(exit.tag).is_none() && F::is_udp(&front, AT) {
        return Ok(Learned::Nothing);
    }
    let mut flow = match F::parse(&front, AT, skb.len().wrapping_sub(AT)) {
        Ok(flow) => flow,
        Err(_) => {
            // What may be a tunnel's keeps what is inside for who reads it.
            if exit.side != SIDE_OUTSIDE {
                note::claim::<F>(skb, AT, interposed, exit.tag, 0, &Print::default());
            }
            return Ok(Learned::Unread);
        }
    };
    if exit.side == SIDE_OUTSIDE && is_geneve(&flow.tuple, exit.config) {
        return Ok(Learned::Unread);
    }
    let print = F::print(&front, AT, &flow);
    let claim = note::claim::<F>(skb, AT, interposed, exit.tag, flow.tuple.protocol(), &print);
    if !exit.learns {
        return Ok(Learned::Nothing);
    }
    flow.tuple.enter(exit.side);
    let gate = maps::gate(exit.config);
    if flow.changes_connection() {
        conn::change::<F>(&flow.tuple.reversed(), flow.flags, true);
        if !connection::teaches(flow.flags, gate) {
            return Ok(Learned::Nothing);
        }
    }
    let Some(claim) = claim else { return Err(Reason::NoteMissing) };
    let (epoch, change) = (maps::epoch(exit.config), maps::change(exit.config));
    let terms = Terms { config: exit.config, gate, epoch, change, now: skb::now() };
    let out = Out {
        tuple: flow.tuple,
        target: exit.target,
        vlan: exit.vlan,
        physical: exit.physical,
        ttl: flow.ttl,
        tos: flow.tos,
        print,
        index: claim.index,
        by_number: !interposed,
    };
    // SAFETY: a value of an array.
    let left = unsafe { &*claim.note };
    let judged = learn::judge(left, &out, &terms);
    if judged == Err(Reason::SeveralOut) {
        let _ = F::flows().remove(&left.tuple);
    }
    note::spend(&claim);
    learn::<F, AT>(skb, exit, &claim, (&out, judged?), flow.dscp(), &terms)
}

#[inline(always)]
fn learn<F: Family, const AT: u32>(
    skb: &Skb,
    exit: &Exit<'_>,
    claim: &Claim<F::Tuple>,
    (out, tie): (&Out<F::Tuple>, Tie),
    dscp: u8,
    terms: &Terms<'_>,
) -> Result<Learned, Reason> {
    // SAFETY: a value of an array.
    let left = unsafe { &*claim.note };
    let key = left.tuple;
    // What was changed in the packet made its bytes move.
    let front = skb.front_as_is();
    if !front.has(if AT == 14 { 16 } else { HEADER_LEN }) {
        return Ok(Learned::Nothing);
    }
    // SAFETY: inside the packet, as just checked: two words without a tunnel, all of them with one.
    let word = |number: usize| unsafe { *front.word(number) };
    let deadline = learn::deadline(terms, note::random());
    // SAFETY: a map value that an LRU map may reuse, as in `forward`.
    let mut found = F::flows().get_ptr_mut(&key).map(|entry| unsafe { &mut *entry });
    if let Some(entry) = &mut found
        && learn::repeats(entry, left, out, dscp, terms, word)
    {
        learn::more_time(entry, left, deadline, tie, terms);
        return Ok(Learned::Confirmed);
    }
    let Some(scratch) = F::scratch().get_ptr_mut(0) else { return Ok(Learned::Nothing) };
    // SAFETY: a value of a per-CPU array, which only this CPU uses.
    let value = unsafe { &mut *scratch };
    learn::fill(value, left, (out, tie), dscp, terms, deadline, is_management);
    service::keep_off(value, terms.gate, || conn::is_slow::<F>(&key, &out.tuple));
    // SAFETY: fields of the value. Volatile, for the reason of `note::write_words`.
    unsafe {
        (&raw mut value.packets).write_volatile(0);
        (&raw mut value.bytes).write_volatile(0);
    }
    value.slot_in = 0;
    value.slot_out = short(exit.slot);
    if AT == 14 {
        let macs = [front.u32(0), front.u32(4), front.u32(8)];
        value.checksum = 0;
        value.header[0] = u64::from(macs[0]) | u64::from(macs[1]) << 32;
        value.header[1] = u64::from(macs[2]) | u64::from(exit.vlan) << 32;
        let mut at = 2;
        while at < HEADER_WORDS {
            // SAFETY: a word of the value. Volatile, for the reason of `note::write_words`.
            unsafe { (&raw mut value.header[at]).write_volatile(0) };
            at += 1;
        }
    } else {
        let mut at = 0;
        while at < HEADER_WORDS {
            value.header[at] = word(at);
            at += 1;
        }
        learn::template(&mut value.header);
        value.checksum = learn::template_sum(&value.header);
    }
    save::<F>(&key, value, tie, found, terms)
}

/// Whether an interface of the node is the management port.
#[inline(always)]
fn is_management(ifindex: u32) -> bool {
    maps::port(ifindex).is_some_and(|port| port.slot == SLOT_MANAGEMENT)
}

/// Slot of a counter, as an entry has it.
#[expect(clippy::cast_possible_truncation, reason = "there are at most 65,536 slots of either kind")]
#[inline(always)]
const fn short(number: u32) -> u16 {
    number as u16
}

/// Compares `value` with the entry that there is, or makes it the entry.
#[inline(always)]
fn save<F: Family>(
    key: &F::Tuple,
    value: &mut Entry<F::Tuple>,
    tie: Tie,
    found: Option<&mut Entry<F::Tuple>>,
    terms: &Terms<'_>,
) -> Result<Learned, Reason> {
    if value.entered != terms.change || terms.change & CLOSED != 0 {
        conn::may_learn::<F>(key, value, terms.change)?;
    }
    if let Some(entry) = found {
        learn::is_learnable(entry)?;
        let compared = if service::same_path(entry, value) {
            let is_current = entry.checked == terms.change || conn::is_current::<F>(key, entry, terms.change);
            learn::compare(entry, value, tie, is_current, count::counting())
        } else {
            Compared::New
        };
        match compared {
            Compared::Same => {
                if learn::confirm(entry, value, tie, terms) {
                    count::reason(Reason::SourcePortChanged);
                }
                return Ok(Learned::Confirmed);
            }
            Compared::Other => {
                let learned = learn::otherwise(tie);
                if learned == Learned::Diverged {
                    report::diverged::<F>(key, entry, value, terms.epoch);
                }
                let _ = F::flows().remove(key);
                return Ok(learned);
            }
            Compared::New => service::go_on(value, entry),
        }
    }
    may_add(key.side(), terms)?;
    learn::soon(value, terms.config);
    if key.side() == SIDE_TUNNEL {
        let [vni, _, remote] = value.way;
        value.slot_in = short(peer::find(remote, vni, terms.epoch).slot());
    }
    match F::flows().insert(key, &*value, 0) {
        Ok(()) if service::is_kept_off(value) => Ok(Learned::KeptOff),
        Ok(()) => Ok(Learned::Entry),
        Err(_) => Err(Reason::InsertFailed),
    }
}

/// Whether another entry may be made now: the agent is alive, and this CPU has budget. What there is already is confirmed without that.
#[inline(always)]
fn may_add(side: u8, terms: &Terms<'_>) -> Result<(), Reason> {
    learn::is_agent_alive(maps::heartbeat(terms.config), terms)?;
    let Some(budget) = maps::BUDGET.get_ptr_mut((side == SIDE_OUTSIDE).into()) else {
        return Err(Reason::OverBudget);
    };
    // SAFETY: a value of a per-CPU array, which only this CPU writes.
    learn::spend(unsafe { &mut *budget }, side, terms)
}
