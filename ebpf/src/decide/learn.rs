//! What is learned from a packet that comes out of OVS: an entry is made, confirmed, or shown to be wrong.

use super::tuple::Tuple;
use super::{Terms, age, forward::different, note, scope};
use crate::{
    layout::{
        flow::{
            AGREEING, Entry, GATE_LEARN, GATE_SERVICES, GATE_TCP, HEADER_WORDS, KEPT_OFF, NOTE_LIVE,
            NOTE_SPENT, Note, PROBE_FIRST, PROBE_NONE, Print, SENSITIVE, SIDE_NODE, SIDE_OUTSIDE, SIDE_POD,
            SIDE_TUNNEL, STATE_ACTIVE, STATE_CLOSING, STATE_LIKELY, STATE_SLOW, STATE_WAITING, TRANSLATED,
        },
        maps::{Budget, Config, OUTSIDE_PART},
        reason::Reason,
        scope::CLOSED,
    },
    packet::{TCP, halves, word_sum},
};

/// What was learned from a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Learned {
    /// No entry was made, and there is nothing to tell.
    Nothing,
    /// No entry was made: the packet is none that the flow cache carries.
    Unread,
    /// An entry was made.
    Entry,
    /// An entry was made that carries nothing: its service is kept off the cache.
    KeptOff,
    /// OVS gave the answer that the entry has; it holds for another while.
    Confirmed,
    /// OVS gave another answer in the same epoch: the entry is gone, and its endpoints are slow for the rest of the epoch.
    Diverged,
    /// OVS seems to have given another answer, but the packet may be another one: the entry is gone, and no more is made of it.
    Disagreed,
}

impl Learned {
    /// What is counted.
    #[inline(always)]
    pub const fn counter(self) -> Option<Reason> {
        match self {
            Self::Nothing | Self::Unread => None,
            Self::Entry => Some(Reason::Learned),
            Self::KeptOff => Some(Reason::ServiceSlow),
            Self::Confirmed => Some(Reason::Refreshed),
            Self::Diverged => Some(Reason::Diverged),
            Self::Disagreed => Some(Reason::Disagreed),
        }
    }
}

/// What is seen of a packet that comes out of OVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Out<T> {
    /// The flow, and the side on which it comes out.
    pub tuple: T,
    /// Interface by which it leaves: a pod's host veth, the uplink, an interface of the node, or one of a physical network.
    pub target: u32,
    /// The target is an interface of a physical network.
    pub physical: bool,
    /// VLAN tag with which it leaves ([`crate::layout::flow::vlan`]); 0 = none.
    pub vlan: u32,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Type of service or traffic class.
    pub tos: u8,
    /// Tells it from others of its flow.
    pub print: Print,
    /// Index of the segment, if OVS got an aggregate in pieces.
    pub index: u32,
    /// The note is known to be this packet's by its number alone, see [`super::tag::note`].
    pub by_number: bool,
}

/// How well it is known that a packet that comes out of OVS is the one that the note is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// By something that no other packet has: a number that is not used again for minutes, TCP's own numbers, or a source or destination that
    /// OVS has left as it was.
    Sure,
    /// By the number of its slot, its length and the front of its payload only: UDP of which OVS changed both ends, in interposed mode. A packet that OVS
    /// held back until its slot had another owner could be taken for the owner's. That it meets one that looks the same is by chance, as nobody
    /// knows which slot comes next; so an entry is made of several answers that agree ([`AGREEING`]), and any that does not agree takes it away.
    Likely,
}

/// Whether something may be learned from a packet that comes out of OVS and whose slot has `note`, and how sure it is. OVS must have left it
/// as it was, but for what an entry can repeat: another address or port, a lower TTL; a DSCP mark (OVN's QoS) is not.
///
/// # Errors
/// Why nothing may be learned.
#[inline(always)]
pub fn judge<T: Tuple>(note: &Note<T>, out: &Out<T>, terms: &Terms<'_>) -> Result<Tie, Reason> {
    if note.state != NOTE_LIVE && note.state != NOTE_SPENT {
        return Err(Reason::NoteMissing);
    }
    if !note::fits(note, out.tuple.protocol(), &out.print, out.index) {
        return Err(Reason::OtherPacket);
    }
    if note.state == NOTE_SPENT {
        // A later segment of an aggregate, or another copy.
        return Err(if note.segment == 0 { Reason::SeveralOut } else { Reason::NoteMissing });
    }
    let tcp = out.tuple.protocol() == TCP;
    let source = note.tuple.same_source(&out.tuple);
    let destination = note.tuple.same_destination(&out.tuple);
    if note.tos != out.tos || note.ttl < out.ttl {
        return Err(Reason::OtherChange);
    }
    let (from, to) = (note.tuple.side(), out.tuple.side());
    let several_ports = matches!(to, SIDE_POD | SIDE_NODE);
    let back = from == to && (!several_ports || note.way[0] == out.target);
    if back || out.tuple.is_to_itself() || note.tuple.is_to_itself() {
        return Err(Reason::SentBack);
    }
    // Physical networks are for pods: a tag belongs to no other way. What goes from outside to outside was sent back.
    let crosses = if out.physical {
        from != SIDE_POD
    } else {
        to != SIDE_POD && from == SIDE_OUTSIDE && note.way[0] != terms.config.uplink
    };
    if crosses {
        return Err(Reason::OtherChange);
    }
    if terms.gate & GATE_LEARN == 0 {
        return Err(Reason::LearningOff);
    }
    if tcp && terms.gate & GATE_TCP == 0 {
        return Err(Reason::TcpGateClosed);
    }
    if note.epoch != terms.epoch {
        return Err(Reason::NoteOldEpoch);
    }
    if terms.now.wrapping_sub(note.when) > terms.config.note_age {
        return Err(Reason::NoteExpired);
    }
    Ok(if source || destination || tcp || out.by_number { Tie::Sure } else { Tie::Likely })
}

/// The deadline of an entry that is confirmed now. `random`: any number, so that entries made together part.
#[inline(always)]
pub const fn deadline(terms: &Terms<'_>, random: u32) -> u32 {
    let early = random & terms.config.jitter.saturating_sub(1);
    terms.now.wrapping_add(terms.config.refresh).wrapping_sub(early)
}

/// Gives an entry that is made its first deadline: a quarter of the time of others, so that OVS is soon asked what it does with the packets that
/// come after the first one. One that carries nothing has nothing to be asked: it is [`STATE_SLOW`], or likely and OVS has all packets.
#[inline(always)]
pub const fn soon<T>(value: &mut Entry<T>, config: &Config) {
    if value.state < STATE_SLOW {
        value.deadline = value.deadline.wrapping_sub(age::early(config.refresh));
        value.probing = PROBE_FIRST;
    }
}

/// What comes of an answer of OVS, compared with the entry of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// There is nothing to compare with: the answer makes an entry, in place of one that is no longer valid or for other packets.
    New,
    /// The entry has the answer.
    Same,
    /// The entry says something else for such packets.
    Other,
}

/// Compares. `valid`: the entry is of this epoch, and of no scope that has changed; `same_answer`: it does what OVS did; `same_question`: it is for packets like this
/// one, with the MACs and the DSCP that the packet had when it entered OVS.
#[inline(always)]
const fn compared(valid: bool, same_answer: bool, same_question: bool) -> Compared {
    if !valid {
        Compared::New
    } else if same_answer {
        Compared::Same
    } else if same_question {
        Compared::Other
    } else {
        Compared::New
    }
}

/// What comes of an answer that is not the entry's ([`Compared::Other`]). Of a packet that may be another one it is no proof.
#[inline(always)]
pub const fn otherwise(tie: Tie) -> Learned {
    match tie {
        Tie::Sure => Learned::Diverged,
        Tie::Likely => Learned::Disagreed,
    }
}

/// Bits of the fifth word of [`Entry::header`] that hold the outer UDP source port.
const SOURCE_PORT: u64 = 0xffff << 16;

/// Compares an entry with `answer`, made of the packet that comes out of OVS. `is_current`: nothing that concerns the entry has changed,
/// so that another answer is not expected. Another outer UDP source port is the same answer: OVS may
/// choose one at any time. `audit`: answers are compared; without it any answer is the entry's, for measuring what comparing costs, but for
/// one that is likely only: an entry needs several of those to agree.
#[inline(always)]
pub fn compare<T: Tuple>(
    entry: &Entry<T>,
    answer: &Entry<T>,
    tie: Tie,
    is_current: bool,
    audit: bool,
) -> Compared {
    let audit = audit || matches!(tie, Tie::Likely);
    let mut other = source_port_moved(entry, answer) & !SOURCE_PORT;
    let mut at = 0;
    while at < HEADER_WORDS {
        if at != 4 {
            other |= entry.header[at] ^ answer.header[at];
        }
        at += 1;
    }
    let same = other == 0
        && entry.target == answer.target
        && entry.ttl_step == answer.ttl_step
        && entry.after.is(&answer.after);
    let same_way = different(entry.way, answer.way) == 0;
    let question = same_way && different(entry.macs, answer.macs) == 0 && entry.dscp == answer.dscp;
    compared(is_current && entry.epoch == answer.epoch, (same && same_way) || !audit, question)
}

#[inline(always)]
const fn source_port_moved<T>(entry: &Entry<T>, answer: &Entry<T>) -> u64 {
    entry.header[4] ^ answer.header[4]
}

/// Confirms an entry that has the answer; true if OVS chose another outer UDP source port. `tie`: of the packet that the answer was given to.
#[inline(always)]
pub fn confirm<T>(entry: &mut Entry<T>, answer: &Entry<T>, tie: Tie, terms: &Terms<'_>) -> bool {
    let moved = source_port_moved(entry, answer) != 0;
    if moved {
        entry.header[4] = answer.header[4];
    }
    put(&mut entry.macs, &answer.macs);
    entry.dscp = answer.dscp;
    entry.checked = answer.checked;
    entry.entered = answer.entered;
    prolong(entry, answer.deadline, tie, terms);
    moved
}

/// What another packet with the same answer does to an entry: it gets more time, or, where it is likely only, it comes nearer to being
/// certain. That must happen before its first deadline, or counting begins again.
#[inline(always)]
const fn prolong<T>(entry: &mut Entry<T>, deadline: u32, tie: Tie, terms: &Terms<'_>) {
    if entry.state >= STATE_LIKELY {
        let in_time = terms.now.wrapping_sub(entry.deadline).cast_signed() < 0;
        let last = entry.state >= STATE_LIKELY + AGREEING - 1;
        match tie {
            Tie::Likely if in_time && !last => {
                entry.state += 1;
                return;
            }
            Tie::Likely if !in_time => entry.state = STATE_LIKELY,
            _ => entry.state = STATE_ACTIVE,
        }
    }
    entry.probing = PROBE_NONE;
    entry.deadline = deadline;
}

/// Copies three words, one after the other: for what may overlap, as far as the compiler knows, it would call a function that copies byte
/// by byte.
#[inline(always)]
const fn put(to: &mut [u32; 3], from: &[u32; 3]) {
    let [a, b, c] = *from;
    to[0] = a;
    to[1] = b;
    to[2] = c;
}

/// What of each word of a header is the same for all packets of a flow, see [`template`].
const SAME: [u64; HEADER_WORDS] = {
    let mut words = [u64::MAX; HEADER_WORDS];
    template(&mut words);
    words
};

/// Whether an entry says all that is seen of a packet, of how it went in and how it came out, so that it would be confirmed and would stay as
/// it is: it gets [`more_time`]. Nothing needs to be put together for that. `dscp`: of the packet; `word`: reads the packet's front.
#[inline(always)]
pub fn repeats<T: Tuple>(
    entry: &Entry<T>,
    note: &Note<T>,
    out: &Out<T>,
    dscp: u8,
    terms: &Terms<'_>,
    word: impl Fn(usize) -> u64,
) -> bool {
    let other = (entry.epoch ^ terms.epoch)
        | (entry.checked ^ terms.change)
        | (note.change ^ terms.change)
        | (terms.change & CLOSED)
        | (terms.gate & GATE_SERVICES)
        | (entry.translated & KEPT_OFF)
        | (entry.target ^ out.target)
        | different(entry.way, note.way)
        | different(entry.macs, note.macs)
        | u32::from(entry.dscp ^ dscp)
        | u32::from(entry.ttl_step ^ note.ttl.wrapping_sub(out.ttl));
    if other != 0 || entry.state == STATE_CLOSING || !entry.after.is(&out.tuple) {
        return false;
    }
    if out.tuple.side() != SIDE_TUNNEL {
        let end = word(1) & u64::from(u32::MAX) | u64::from(out.vlan) << 32;
        return (entry.header[0] ^ word(0)) | (entry.header[1] ^ end) == 0;
    }
    let (mut other, mut at) = (0, 0);
    while at < HEADER_WORDS {
        other |= entry.header[at] ^ (word(at) & SAME[at]);
        at += 1;
    }
    other == 0
}

/// Confirms an entry that [`repeats`] what is seen of a packet with this `tie`.
#[inline(always)]
pub const fn more_time<T>(entry: &mut Entry<T>, note: &Note<T>, deadline: u32, tie: Tie, terms: &Terms<'_>) {
    entry.entered = note.change;
    prolong(entry, deadline, tie, terms);
}

/// Whether something may be learned of a connection of which there is this entry.
///
/// # Errors
/// [`Reason::Closing`]: FIN or RST was seen, and no SYN since.
#[inline(always)]
pub const fn is_learnable<T>(entry: &Entry<T>) -> Result<(), Reason> {
    if entry.state == STATE_CLOSING { Err(Reason::Closing) } else { Ok(()) }
}

/// Puts what OVS did with a packet with this `tie` into an entry. `is_management`: whether an interface of the node is the management port. The header, its checksum, the counters and their slots are left to the caller.
#[inline(always)]
pub fn fill<T: Tuple>(
    value: &mut Entry<T>,
    note: &Note<T>,
    (out, tie): (&Out<T>, Tie),
    dscp: u8,
    terms: &Terms<'_>,
    deadline: u32,
    is_management: impl Fn(u32) -> bool,
) {
    value.epoch = terms.epoch;
    value.checked = terms.change;
    value.entered = note.change;
    put(&mut value.way, &note.way);
    put(&mut value.macs, &note.macs);
    value.deadline = deadline;
    value.target = out.target;
    value.state = first_state(out.tuple.protocol(), tie);
    value.probing = PROBE_NONE;
    value.ttl_step = note.ttl.wrapping_sub(out.ttl);
    value.dscp = dscp;
    value.after = out.tuple;
    value.address_difference = note.tuple.address_difference(&out.tuple);
    let (before, after) = (note.tuple.ports(), out.tuple.ports());
    value.port_difference = word_sum(!before) + word_sum(after);
    let same = note.tuple.same_source(&out.tuple) && note.tuple.same_destination(&out.tuple);
    value.translated = if same { 0 } else { TRANSLATED };
    if scope::is_sensitive(&note.tuple, value, is_management) {
        value.translated |= SENSITIVE;
    }
    value.learned = terms.now;
}

/// One direction is enough for UDP, if it is sure; TCP is carried when both were seen.
#[inline(always)]
const fn first_state(protocol: u8, tie: Tie) -> u8 {
    match tie {
        Tie::Sure if protocol == TCP => STATE_WAITING,
        Tie::Sure => STATE_ACTIVE,
        Tie::Likely => STATE_LIKELY,
    }
}

/// Makes a header that OVS wrote into what is the same for all packets of the flow: ECN bits, lengths, identification and checksums
/// become 0. Bytes are counted from the outer Ethernet header.
#[inline(always)]
pub const fn template(header: &mut [u64; HEADER_WORDS]) {
    // Byte 15, ECN.
    header[1] &= !word([0, 0, 0, 0, 0, 0, 0, 3]);
    // Bytes 16 to 19, length and identification.
    header[2] &= !word([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    // Bytes 24 and 25, the checksum of the IPv4 header.
    header[3] &= !word([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
    // Bytes 38 to 41, UDP's length and checksum.
    header[4] &= !word([0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    header[5] &= !word([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
}

/// The sum of the IPv4 header in a [`template`], which is in bytes 14 to 33: [`Entry::checksum`].
#[inline(always)]
pub const fn template_sum(header: &[u64; HEADER_WORDS]) -> u32 {
    let [(_, first), (second, third), (fourth, fifth), (sixth, _)] =
        [halves(header[1]), halves(header[2]), halves(header[3]), halves(header[4])];
    // Of the first and the last half-word only the last and the first two bytes are the IPv4 header's.
    word_sum(first & LAST_TWO)
        + word_sum(second)
        + word_sum(third)
        + word_sum(fourth)
        + word_sum(fifth)
        + word_sum(sixth & !LAST_TWO)
}

/// The last two of four bytes of a packet.
const LAST_TWO: u32 = u32::from_ne_bytes([0, 0, 0xff, 0xff]);

/// Eight bytes of a packet as a word of the header.
const fn word(bytes: [u8; 8]) -> u64 {
    u64::from_ne_bytes(bytes)
}

/// Whether the agent was alive lately, which new entries need. `heartbeat`: tick of its last sign of life.
///
/// # Errors
/// [`Reason::NoHeartbeat`].
#[inline(always)]
pub const fn is_agent_alive(heartbeat: u32, terms: &Terms<'_>) -> Result<(), Reason> {
    // The agent's clock and the program's are read at different times: a heartbeat may be of the next tick.
    let silence = terms.now.wrapping_sub(heartbeat).cast_signed();
    if silence > terms.config.heartbeat_limit.cast_signed() { Err(Reason::NoHeartbeat) } else { Ok(()) }
}

/// Takes one new entry from this CPU's budget for flows that come by this side.
///
/// # Errors
/// [`Reason::OverBudget`]: nothing is left of it in this window.
#[inline(always)]
pub const fn spend(budget: &mut Budget, side: u8, terms: &Terms<'_>) -> Result<(), Reason> {
    let window = terms.now >> (terms.config.budget_shift & 31);
    if budget.window != window {
        budget.window = window;
        budget.used = 0;
    }
    budget.used += 1;
    let limit = if side == SIDE_OUTSIDE { terms.config.budget / OUTSIDE_PART } else { terms.config.budget };
    if budget.used <= limit { Ok(()) } else { Err(Reason::OverBudget) }
}
