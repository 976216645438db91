//! What the oracle expects of one flow over time, and whether arrivals agree. Pure. Times are nanoseconds of one clock.

/// What the oracle says of a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Arrivals go on: the first within `recover`.
    Allowed { recover: u64 },
    /// Nothing arrives later than `bound` after the beginning.
    Denied { bound: u64 },
    /// Anything may be, as a change is under way.
    Either,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    rule: Rule,
    /// Number of the change that began it.
    change: usize,
}

/// A change under way, and a moment after it: OVN does not rewrite the flows of a port group in one go, so that a packet may
/// pass that neither the old nor the new policy allows, with any datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) from: u64,
    pub(super) to: u64,
    /// So many packets of a flow.
    pub(super) most: usize,
    /// So many of a flow between two nodes. Where one ovn-controller takes back what denied the flow, and another carries out what denies it from
    /// now on, any number passes between the two.
    pub(super) apart: usize,
}

impl Window {
    /// As it is for a flow between two nodes.
    pub(super) fn between_nodes(self) -> Self {
        Self { most: self.apart, ..self }
    }

    /// The same by another clock.
    pub(super) fn retimed(self, clock: &impl Fn(u64) -> u64) -> Self {
        Self { from: clock(self.from), to: clock(self.to), ..self }
    }
}

/// What was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// Arrived although denied; times since the change was in force at `from`, of the first and the last.
    Leak { change: usize, packets: usize, from: u64, first: u64, last: u64 },
    /// Nothing came for so long although allowed; `at` is the time since the span began.
    Silence { change: usize, at: u64, lasted: u64 },
}

/// After one change that began to deny the flow: what still arrived once it was in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// Arrivals within the bound.
    pub(super) packets: usize,
    /// Time of the last of them since the change was in force, 0 without any.
    pub(super) delay: u64,
}

/// What came of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) violations: Vec<Violation>,
    pub(super) tails: Vec<Tail>,
    /// Packets that passed in a [`Window`] although denied before and after it.
    pub(super) slipped: usize,
    /// Time for which arrivals were forbidden, and demanded, by the above.
    pub(super) denied: u64,
    pub(super) allowed: u64,
}

/// A packet's transit: since when it was on its way, and when it was read at the latest. A reader that gets no processor is late, and so is OVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Transit {
    pub(super) left: u64,
    pub(super) came: u64,
}

/// When the packets of a flow came, and their transits by when those began. Each in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) came: Vec<u64>,
    pub(super) transits: Vec<Transit>,
}

impl From<Vec<u64>> for Times {
    /// Of what is judged by one time alone.
    fn from(times: Vec<u64>) -> Self {
        Self { transits: times.iter().map(|&time| Transit { left: time, came: time }).collect(), came: times }
    }
}

/// The rules for a flow over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    spans: Vec<Span>,
}

impl Timeline {
    /// From `from` on this holds. The same verdict again changes nothing: what was denied stays denied since then.
    pub(super) fn set(&mut self, from: u64, rule: Rule, change: usize) {
        let same = self
            .spans
            .last()
            .is_some_and(|last| std::mem::discriminant(&last.rule) == std::mem::discriminant(&rule));
        if !same {
            self.spans.push(Span { from, rule, change });
        }
    }

    /// Moves its times to another clock.
    pub(super) fn retime(&mut self, clock: &impl Fn(u64) -> u64) {
        self.spans.iter_mut().for_each(|span| span.from = clock(span.from));
    }

    /// Anything may be.
    pub(super) fn is_open(&self) -> bool {
        self.spans.last().is_none_or(|last| last.rule == Rule::Either)
    }

    /// Judges arrivals: what is allowed by when it came, what is denied by when it was on its way. `gap` is how long an allowed flow may be silent; `windows` are in order too.
    pub(super) fn judge(&self, times: &Times, end: u64, gap: u64, windows: &[Window]) -> Outcome {
        let mut outcome = Outcome::default();
        for (at, span) in self.spans.iter().enumerate() {
            let to = self.spans.get(at + 1).map_or(end, |next| next.from);
            match span.rule {
                Rule::Either => {}
                Rule::Denied { bound } => {
                    let inside = inside(&times.transits, |transit| transit.left, span.from..to);
                    denied(span, bound, inside, to, windows, &mut outcome);
                }
                Rule::Allowed { recover } => {
                    let inside = inside(&times.came, |time| *time, span.from..to);
                    allowed(span, recover, inside, to, gap, &mut outcome);
                }
            }
        }
        outcome
    }
}

/// Those whose time is in a range; they are in order of it.
fn inside<T>(all: &[T], time: impl Fn(&T) -> u64, range: std::ops::Range<u64>) -> &[T] {
    let begin = all.partition_point(|one| time(one) < range.start);
    let end = all.partition_point(|one| time(one) < range.end);
    all.get(begin..end).unwrap_or_default()
}

fn denied(span: &Span, bound: u64, inside: &[Transit], to: u64, windows: &[Window], outcome: &mut Outcome) {
    let limit = span.from.saturating_add(bound);
    let (tail, leaked) = inside.split_at(inside.partition_point(|transit| transit.left <= limit));
    let since = |transit: &Transit| transit.left - span.from;
    if to > limit {
        let delay = tail.last().map_or(0, since);
        outcome.tails.push(Tail { packets: tail.len(), delay });
        outcome.denied += to - limit;
    }
    let mut used = vec![0; windows.len()];
    // It passed OVS some time in its transit.
    let mut excused = |transit: &Transit| {
        let open = windows
            .iter()
            .zip(&mut used)
            .filter(|(window, _)| window.from <= transit.came && transit.left <= window.to);
        open.filter(|(window, used)| **used < window.most).map(|(_, used)| *used += 1).next().is_some()
    };
    let all = leaked.len();
    let leaked: Vec<Transit> = leaked.iter().copied().filter(|transit| !excused(transit)).collect();
    outcome.slipped += all - leaked.len();
    if let (Some(first), Some(last)) = (leaked.first(), leaked.last()) {
        let (change, packets, from) = (span.change, leaked.len(), span.from);
        let (first, last) = (since(first), since(last));
        outcome.violations.push(Violation::Leak { change, packets, from, first, last });
    }
}

fn allowed(span: &Span, recover: u64, inside: &[u64], to: u64, gap: u64, outcome: &mut Outcome) {
    let due = span.from.saturating_add(recover);
    if to <= due {
        return;
    }
    outcome.allowed += to - due;
    // As if one had come just so long before the first is due.
    let mut last = due.saturating_sub(gap);
    for &time in inside.iter().chain([&to]) {
        let lasted = time.saturating_sub(last);
        // The end of the span is no arrival; a silence is one only if it is too long by then.
        if lasted > gap {
            outcome.violations.push(Violation::Silence {
                change: span.change,
                at: last.saturating_sub(span.from),
                lasted,
            });
        }
        last = last.max(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: u64 = 10;

    fn judge(spans: &[(u64, Rule)], arrivals: &[u64], end: u64) -> Outcome {
        let mut timeline = Timeline::default();
        for (change, &(from, rule)) in spans.iter().enumerate() {
            timeline.set(from, rule, change);
        }
        timeline.judge(&arrivals.to_vec().into(), end, GAP, &[])
    }

    const DENIED: Rule = Rule::Denied { bound: 20 };
    const ALLOWED: Rule = Rule::Allowed { recover: 30 };

    #[test]
    fn what_arrives_after_the_bound_is_a_leak() {
        let outcome = judge(&[(100, DENIED)], &[90, 105, 121, 130], 200);
        let leak = Violation::Leak { change: 0, packets: 2, from: 100, first: 21, last: 30 };
        assert_eq!(outcome.violations, [leak]);
        assert_eq!(outcome.tails, [Tail { packets: 1, delay: 5 }]);
        assert_eq!(outcome.denied, 80);
        assert!(judge(&[(100, DENIED)], &[90, 105, 120], 200).violations.is_empty());
    }

    #[test]
    fn a_packet_that_was_read_late_is_no_leak_and_does_not_fill_a_silence() {
        let mut timeline = Timeline::default();
        timeline.set(100, DENIED, 0);
        let read_late = Times { came: vec![125], transits: vec![Transit { left: 119, came: 125 }] };
        assert!(timeline.judge(&read_late, 200, GAP, &[]).violations.is_empty());
        let later = Times { came: vec![145], transits: vec![Transit { left: 138, came: 145 }] };
        assert_eq!(timeline.judge(&later, 200, GAP, &[]).violations.len(), 1);
        let window = Window { from: 140, to: 160, most: 2, apart: 2 };
        let outcome = timeline.judge(&later, 200, GAP, &[window]);
        assert_eq!(
            (outcome.violations.len(), outcome.slipped),
            (0, 1),
            "it was on its way when a change began"
        );
        let mut timeline = Timeline::default();
        timeline.set(100, ALLOWED, 0);
        let transits = vec![Transit { left: 121, came: 121 }, Transit { left: 130, came: 145 }];
        let silent = Times { came: vec![121, 145], transits };
        assert_eq!(timeline.judge(&silent, 146, GAP, &[]).violations.len(), 1);
    }

    #[test]
    fn a_packet_or_two_may_slip_through_while_a_change_is_under_way() {
        let mut timeline = Timeline::default();
        timeline.set(100, DENIED, 0);
        let windows = [Window { from: 140, to: 160, most: 2, apart: 3 }];
        let outcome = timeline.judge(&vec![145, 150].into(), 200, GAP, &windows);
        assert_eq!((outcome.violations.len(), outcome.slipped), (0, 2));
        let outcome = timeline.judge(&vec![145, 150, 155].into(), 200, GAP, &windows);
        assert_eq!((outcome.violations.len(), outcome.slipped), (1, 2), "not more");
        let outcome =
            timeline.judge(&vec![145, 150, 155].into(), 200, GAP, &windows.map(Window::between_nodes));
        assert_eq!(
            (outcome.violations.len(), outcome.slipped),
            (0, 3),
            "two ovn-controllers take their time"
        );
        let outcome = timeline.judge(&vec![139, 161].into(), 200, GAP, &windows);
        assert_eq!((outcome.violations.len(), outcome.slipped), (1, 0), "and not before or after");
    }

    #[test]
    fn a_denial_again_does_not_renew_the_bound() {
        let outcome = judge(&[(100, DENIED), (150, DENIED)], &[160], 200);
        assert_eq!(
            outcome.violations,
            [Violation::Leak { change: 0, packets: 1, from: 100, first: 60, last: 60 }]
        );
    }

    #[test]
    fn while_a_change_is_under_way_anything_may_be() {
        let spans = [(0, DENIED), (100, Rule::Either), (200, DENIED)];
        assert!(judge(&spans, &[100, 150, 199, 210], 300).violations.is_empty());
        assert_eq!(judge(&spans, &[99], 300).violations.len(), 1);
        assert_eq!(judge(&spans, &[221], 300).violations.len(), 1);
    }

    #[test]
    fn a_denial_shorter_than_its_bound_measures_nothing() {
        let outcome = judge(&[(100, DENIED), (110, ALLOWED)], &[105], 115);
        assert_eq!((outcome.denied, outcome.tails.len()), (0, 0));
    }

    #[test]
    fn an_allowed_flow_must_come_back_in_time_and_go_on() {
        let regular: Vec<u64> = (120..=200).step_by(5).collect();
        let outcome = judge(&[(100, ALLOWED)], &regular, 200);
        assert!(outcome.violations.is_empty());
        assert_eq!(outcome.allowed, 70);
        let late = judge(&[(100, ALLOWED)], &(140..=200).step_by(5).collect::<Vec<_>>(), 200);
        assert_eq!(late.violations, [Violation::Silence { change: 0, at: 20, lasted: 20 }]);
        let hole: Vec<u64> = regular.iter().copied().filter(|t| !(150..170).contains(t)).collect();
        let outcome = judge(&[(100, ALLOWED)], &hole, 200);
        assert_eq!(outcome.violations, [Violation::Silence { change: 0, at: 45, lasted: 25 }]);
        let stopped: Vec<u64> = regular.iter().copied().filter(|&t| t < 180).collect();
        assert_eq!(judge(&[(100, ALLOWED)], &stopped, 200).violations.len(), 1);
        assert_eq!(judge(&[(100, ALLOWED)], &[], 200).violations.len(), 1);
    }

    #[test]
    fn an_allowance_that_ends_before_it_is_due_demands_nothing() {
        assert!(judge(&[(100, ALLOWED), (125, DENIED)], &[], 200).violations.is_empty());
    }
}
