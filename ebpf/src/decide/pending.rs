//! Notes of packets that are inside OVS, found by flow (interposed mode): when a younger packet's note may take the place of an older
//! one, and what becomes of a note when its packet comes out.
//!
//! A packet that comes out is credited with the note of its flow. That is right only if every packet of the flow that may be inside OVS
//! came by the same *way* (port, MACs, and from the tunnel VNI, option and node) in the same epoch: OVS may decide otherwise for
//! another. So a note gives way only when nobody who entered under it can be inside OVS any more. [`Note::live`] is its state.
//!
//! What [`gives_way`] does with an old note when a packet enters, by the state of the old one:
//!
//! | old | the packet: same way, same epoch | same way, another epoch | another way |
//! |---|---|---|---|
//! | live | a note after the back-off since `when`, an urgent one after the age of a note; before that the old one stays and stands for the packet | a note after its age since `last`; before that the old one stays | a note after its age since `last`; before that the old one becomes void |
//! | mark | a note takes its place at once; a mark lengthens it | a note after its age since `last`; before that the old one stays | a note after its age since `last`; before that the old one becomes void |
//! | unlearned | a note or mark takes its place at once; unlearned lengthens it | as in its own epoch: learning begins again with another | a note after its age since `last`; before that the old one becomes void |
//! | void | a note after its age since `last`, which the packet sets to now | the same | the same |
//!
//! What [`taken`] does when a packet comes out: a live note of this epoch is spent, or becomes a mark if more packets entered under
//! it; any other stays.

use super::Terms;
use crate::{
    layout::{
        flow::{NOTE_LIVE, NOTE_MARK, NOTE_UNLEARNED, NOTE_VOID, Note},
        maps::Config,
    },
    packet::Flow,
};

/// The note of a packet that enters OVS now. `ifindex`: host veth of the pod that sent it, 0 = from the tunnel; `macs`, `way`, `live`: as
/// the fields of [`Note`].
#[inline(always)]
pub const fn entered<T>(
    flow: &Flow<T>,
    ifindex: u32,
    macs: [u32; 3],
    way: [u32; 3],
    live: u8,
    terms: &Terms<'_>,
) -> Note {
    Note {
        epoch: terms.epoch,
        when: terms.now,
        last: terms.now,
        ifindex,
        macs,
        way,
        ttl: flow.ttl,
        tos: flow.tos,
        live,
        more: 0,
    }
}

/// Whether `old`, a note of the same flow, gives way to `new`; if not, what was seen is put down in `old`. The module's table has the
/// cases. `urgent`: an entry dies if the packet is not noted. `new` is told whether it stands for packets of `old` as well.
#[inline(always)]
pub fn gives_way(old: &mut Note, new: &mut Note, config: &Config, urgent: bool) -> bool {
    new.more = u8::from(!is_over(new.when.wrapping_sub(old.last), config.note_age));
    let same_way = old.ifindex == new.ifindex && old.way == new.way && old.macs == new.macs;
    let same = same_way && old.epoch == new.epoch;
    if same_way && old.live == NOTE_UNLEARNED {
        old.last = new.when;
        return new.live != NOTE_UNLEARNED;
    }
    if same && old.live == NOTE_MARK {
        old.when = new.when;
        old.last = new.when;
        return new.live == NOTE_LIVE;
    }
    let alike = same && old.live == NOTE_LIVE;
    let (since, patience) = match (alike, urgent) {
        (false, _) => (old.last, config.note_age),
        (true, true) => (old.when, config.note_age),
        (true, false) => (old.when, config.note_backoff),
    };
    if is_over(new.when.wrapping_sub(since), patience) {
        return true;
    }
    if !same_way {
        old.live = NOTE_VOID;
    }
    if alike || old.live == NOTE_VOID {
        old.last = new.when;
        old.more = 1;
    }
    false
}

/// What becomes of a note whose flow had a packet come out of OVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It stays: it is of another epoch or not live, and stands for packets that may be inside OVS.
    Stays,
    /// It goes: the only packet that entered under it is out.
    Spent,
    /// It becomes a mark: more packets entered under it, and must not be credited to a packet of another epoch.
    BecomesMark,
}

/// Decides on the note when a packet comes out of OVS in this epoch.
#[inline(always)]
pub const fn taken(note: &Note, epoch: u32) -> Taken {
    if note.live != NOTE_LIVE || note.epoch != epoch {
        Taken::Stays
    } else if note.more == 0 {
        Taken::Spent
    } else {
        Taken::BecomesMark
    }
}

/// Whether packets may still be inside OVS for which `note` stands: those that entered by `last`, and those of the next epoch that
/// left no note because of it. It keeps them out for the age of a note, and they are inside for as long.
#[inline(always)]
pub fn may_be_inside(note: &Note, terms: &Terms<'_>) -> bool {
    !is_over(terms.now.wrapping_sub(note.last), terms.config.note_age.wrapping_mul(2))
}

/// Whether a note says anything of the packet that comes out: a live one does, another as long as its packets may be inside OVS.
#[inline(always)]
pub fn counts(note: &Note, terms: &Terms<'_>) -> bool {
    note.live == NOTE_LIVE || may_be_inside(note, terms)
}

/// Another CPU may have read the clock after us and written first: then the age is a little less than 0.
#[inline(always)]
fn is_over(age: u32, patience: u32) -> bool {
    age >= patience && age <= patience.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: u32 = 250;
    const BACKOFF: u32 = 1_000;

    fn config() -> Config {
        Config { note_age: AGE, note_backoff: BACKOFF, ..Config::default() }
    }

    /// A note from the tunnel.
    fn note(epoch: u32, when: u32, remote: u32) -> Note {
        Note { epoch, when, last: when, way: [7, 9, remote], live: NOTE_LIVE, ..Note::default() }
    }

    fn is_spent(note: &Note) -> bool {
        taken(note, note.epoch) == Taken::Spent
    }

    /// Whether a packet at `when` may be noted.
    fn may(old: &mut Note, epoch: u32, when: u32, remote: u32) -> bool {
        gives_way(old, &mut note(epoch, when, remote), &config(), false)
    }

    #[test]
    fn a_note_of_the_same_kind_gives_way_after_the_backoff_and_to_an_urgent_one_when_its_packet_is_out() {
        assert!(!may(&mut note(1, 0, 1), 1, BACKOFF - 1, 1));
        assert!(may(&mut note(1, 0, 1), 1, BACKOFF, 1));
        let urgent = |when| gives_way(&mut note(1, 0, 1), &mut note(1, when, 1), &config(), true);
        assert!(!urgent(AGE - 1) && urgent(AGE));
    }

    #[test]
    fn a_note_of_another_epoch_stays_until_the_last_packet_that_entered_under_it_is_out() {
        let mut old = note(1, 0, 1);
        assert!(!may(&mut old, 1, 200, 1), "no note of its own");
        // Those of the next epoch do not put it off.
        assert!(!may(&mut old, 2, AGE, 1) && !may(&mut old, 2, 200 + AGE - 1, 1));
        assert!(may(&mut old, 2, 200 + AGE, 1));
    }

    #[test]
    fn two_ways_at_a_time_make_the_note_void_until_neither_was_seen_for_long_enough() {
        let mut old = note(1, 0, 1);
        assert!(!may(&mut old, 1, 10, 2));
        assert_eq!(old.live, NOTE_VOID);
        assert!(!may(&mut old, 1, 200, 1) && !may(&mut old, 1, 200 + AGE - 1, 2));
        assert!(may(&mut old, 1, 200 + 2 * AGE - 1, 1));
    }

    #[test]
    fn a_note_that_more_packets_entered_under_stays_as_a_mark_when_the_first_is_out() {
        let mut old = note(1, 0, 1);
        assert!(is_spent(&old), "the only one");
        assert!(!may(&mut old, 1, 5, 1));
        assert_eq!((taken(&old, 1), taken(&old, 2)), (Taken::BecomesMark, Taken::Stays));
        old.live = NOTE_MARK;
        assert!(
            !may(&mut old, 2, 5 + AGE - 1, 1),
            "the second one may be inside still, and is of the epoch before"
        );
        assert!(may(&mut old, 2, 5 + AGE, 1));
        // One of the same epoch is noted at once, and stands for the second one too.
        let mut new = note(1, 10, 1);
        assert!(gives_way(&mut old, &mut new, &config(), false) && !is_spent(&new));
        let mut late = note(1, 5 + AGE, 1);
        assert!(
            gives_way(&mut old, &mut late, &config(), false) && !is_spent(&late),
            "the mark was touched at 10"
        );
        let mut late = note(1, 10 + 2 * AGE, 1);
        assert!(gives_way(&mut old, &mut late, &config(), false) && is_spent(&late));
    }

    /// The note of a packet that is not for the cache.
    fn mark(epoch: u32, when: u32, remote: u32) -> Note {
        Note { live: NOTE_MARK, ..note(epoch, when, remote) }
    }

    #[test]
    fn a_mark_gives_way_at_once_to_a_note_of_its_way_and_to_no_other_mark() {
        assert!(may(&mut mark(1, 0, 1), 1, 10, 1));
        let mut old = mark(1, 0, 1);
        assert!(!gives_way(&mut old, &mut mark(1, 900, 1), &config(), false));
        assert_eq!((old.live, old.last), (NOTE_MARK, 900));
        // A mark does not put off a note of its way, nor make it void.
        let mut old = note(1, 0, 1);
        assert!(!gives_way(&mut old, &mut mark(1, 10, 1), &config(), false));
        assert_eq!((old.live, old.when, old.last), (NOTE_LIVE, 0, 10));
    }

    #[test]
    fn a_mark_and_a_note_of_another_way_make_void_whichever_came_first() {
        let mut old = mark(1, 0, 1);
        assert!(!may(&mut old, 1, AGE - 1, 2));
        assert_eq!((old.live, old.last), (NOTE_VOID, AGE - 1));
        assert!(may(&mut mark(1, 0, 1), 1, AGE, 2), "the marked packets are out");
        let mut old = note(1, 0, 1);
        assert!(!gives_way(&mut old, &mut mark(1, AGE - 1, 2), &config(), false));
        assert_eq!((old.live, old.last), (NOTE_VOID, AGE - 1));
        assert!(gives_way(&mut old, &mut mark(1, 2 * AGE - 1, 2), &config(), false));
    }

    #[test]
    fn a_mark_of_another_epoch_stays_until_its_packets_are_out() {
        let mut old = mark(1, 0, 1);
        assert!(!may(&mut old, 2, AGE - 1, 1));
        assert_eq!((old.live, old.last), (NOTE_MARK, 0));
        assert!(may(&mut old, 2, AGE, 1));
    }

    /// What a packet leaves while nothing is learned.
    fn unlearned(epoch: u32, when: u32, remote: u32) -> Note {
        Note { live: NOTE_UNLEARNED, ..note(epoch, when, remote) }
    }

    #[test]
    fn what_came_while_nothing_was_learned_keeps_other_ways_out_and_its_own_at_no_time() {
        assert!(may(&mut unlearned(1, 0, 1), 2, 1, 1), "the epoch in which learning begins again");
        let mut old = unlearned(1, 0, 1);
        assert!(!gives_way(&mut old, &mut unlearned(1, 90, 1), &config(), false));
        assert_eq!((old.live, old.last), (NOTE_UNLEARNED, 90));
        assert!(!may(&mut old, 2, 90 + AGE - 1, 2));
        assert_eq!(old.live, NOTE_VOID);
        assert!(may(&mut unlearned(1, 0, 1), 2, AGE, 2), "its packets are out");
        assert!(gives_way(&mut unlearned(1, 0, 1), &mut mark(1, 10, 1), &config(), false));
    }

    #[test]
    fn what_comes_while_nothing_is_learned_leaves_notes_of_its_way_alone_and_makes_others_void() {
        let mut old = note(1, 0, 1);
        assert!(!gives_way(&mut old, &mut unlearned(2, 10, 1), &config(), false));
        assert_eq!((old.live, old.epoch, old.last), (NOTE_LIVE, 1, 0));
        let mut old = note(1, 0, 1);
        assert!(!gives_way(&mut old, &mut unlearned(2, 10, 2), &config(), false));
        assert_eq!((old.live, old.last), (NOTE_VOID, 10));
        let mut old = mark(1, 0, 1);
        assert!(!gives_way(&mut old, &mut unlearned(2, 10, 1), &config(), false));
        assert_eq!(old.live, NOTE_MARK);
    }

    #[test]
    fn packets_to_two_macs_come_by_two_ways() {
        for from_pod in [false, true] {
            let note = |macs| Note {
                ifindex: u32::from(from_pod),
                way: if from_pod { [0; 3] } else { [7, 9, 1] },
                macs,
                ..note(1, 0, 1)
            };
            let mut old = note([1, 2, 3]);
            assert!(!gives_way(&mut old, &mut note([1, 2, 4]), &config(), false));
            assert_eq!(old.live, NOTE_VOID);
        }
    }

    #[test]
    fn a_note_stands_for_packets_inside_ovs_until_those_that_it_kept_from_a_note_are_out() {
        let config = config();
        let inside = |now| {
            let terms = Terms { config: &config, gate: 0, epoch: 1, now };
            may_be_inside(&note(1, 1_000, 1), &terms)
        };
        assert!(inside(999) && inside(1_000) && inside(1_000 + 2 * AGE - 1));
        assert!(!inside(1_000 + 2 * AGE) && !inside(30 * 86_400 * 954));
    }

    #[test]
    fn a_packet_that_read_the_clock_before_the_note_was_touched_finds_it_young_also_where_the_clock_wraps() {
        for when in [1_000, 0] {
            let mut old = note(1, when, 1);
            assert!(!may(&mut old, 2, when.wrapping_sub(1), 1), "{when}");
            assert!(!may(&mut old, 1, when.wrapping_sub(1), 1), "{when}");
        }
        // Left for 30 days.
        assert!(may(&mut note(1, 0, 1), 2, 30 * 86_400 * 954, 1));
    }
}
