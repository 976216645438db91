use std::collections::BTreeMap;

use super::*;
use crate::state::ObjectRef;

const LIMITS: Limits = Limits { total: 8, namespace: 4, failing: 1 };
const FAILED: Ended = Ended::Failed { tell: true };

fn patch(namespace: &str, name: &str, value: &str) -> Patch {
    Patch {
        object: ObjectRef {
            kind: "Pod",
            namespace: Some(namespace.to_owned()),
            name: name.to_owned(),
            uid: format!("{namespace}/{name}"),
        },
        annotations: BTreeMap::from([("key", value.to_owned())]),
    }
}

fn queue(patches: &[(&str, &str)], now: Instant) -> Queue {
    let mut queue = Queue::new(LIMITS);
    for (namespace, name) in patches {
        queue.push(patch(namespace, name, "1"), now);
    }
    queue
}

/// Everything that may be written now.
fn take(queue: &mut Queue, now: Instant) -> Vec<String> {
    std::iter::from_fn(|| queue.next(now)).map(|patch| patch.object.uid).collect()
}

#[test]
fn namespaces_are_written_in_turn_whatever_came_first() {
    let now = Instant::now();
    let mut queue = queue(&[("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("c", "1")], now);
    assert_eq!(take(&mut queue, now), ["a/1", "b/1", "c/1", "a/2", "a/3"]);
    assert_eq!(queue.len(), 5);
}

#[test]
fn a_namespace_takes_no_more_places_than_its_own() {
    let now = Instant::now();
    let names: Vec<String> = (0..20).map(|n| format!("{n:02}")).collect();
    let pods: Vec<(&str, &str)> = names.iter().map(|name| ("a", name.as_str())).collect();
    let mut queue = queue(&pods, now);
    assert_eq!(take(&mut queue, now).len(), LIMITS.namespace);
    queue.push(patch("kube-system", "dns", "1"), now);
    assert_eq!(take(&mut queue, now), ["kube-system/dns"]);
    // A namespace whose writes fail gets one place until a write succeeds.
    for name in ["00", "01", "02", "03"] {
        queue.ended(&format!("a/{name}"), FAILED, now);
    }
    assert_eq!(take(&mut queue, now), ["a/04"]);
    queue.ended("a/04", Ended::Written, now);
    assert_eq!(take(&mut queue, now).len(), LIMITS.namespace);
}

#[test]
fn places_are_bounded_over_all_namespaces() {
    let now = Instant::now();
    let names: Vec<String> = (0..20).map(|n| format!("{n:02}")).collect();
    let pods: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "p")).collect();
    let mut queue = queue(&pods, now);
    assert_eq!(take(&mut queue, now).len(), LIMITS.total);
    queue.ended("00/p", Ended::Written, now);
    assert_eq!(take(&mut queue, now), ["08/p"]);
}

#[test]
fn a_newer_value_replaces_one_that_waits_and_follows_one_that_is_being_written() {
    let now = Instant::now();
    let mut queue = queue(&[("a", "1")], now);
    queue.push(patch("a", "1", "2"), now);
    let value = |patch: Option<Patch>| patch.map(|patch| patch.annotations["key"].clone());
    assert_eq!(value(queue.next(now)).as_deref(), Some("2"));
    queue.push(patch("a", "1", "3"), now);
    assert_eq!(queue.next(now), None, "one write an object");
    assert_eq!(queue.ended("a/1", Ended::Written, now), After::Again);
    assert_eq!(value(queue.next(now)).as_deref(), Some("3"));
    assert_eq!(queue.ended("a/1", Ended::Written, now), After::Off(Duration::ZERO));
    assert_eq!((queue.len(), queue.lanes.len(), queue.turns.len()), (0, 0, 0));
}

#[test]
fn each_failure_doubles_the_objects_own_wait_up_to_a_limit() {
    let mut now = Instant::now();
    let mut queue = queue(&[("a", "1"), ("a", "2")], now);
    assert_eq!(take(&mut queue, now), ["a/1", "a/2"]);
    queue.ended("a/2", Ended::Written, now);
    let mut waits = Vec::new();
    for _ in 0..12 {
        queue.ended("a/1", FAILED, now);
        assert_eq!(queue.next(now), None);
        let wake = queue.wake().unwrap();
        waits.push(wake - now);
        now = wake;
        assert_eq!(take(&mut queue, now), ["a/1"]);
    }
    assert_eq!(waits[..3], [50, 100, 200].map(Duration::from_millis));
    assert_eq!(waits[11], MAX_BACKOFF);
    assert!(waits.is_sorted());
}

#[test]
fn the_owner_of_a_stuck_object_is_told_now_and_then() {
    let mut now = Instant::now();
    let mut queue = queue(&[("a", "1")], now);
    let mut fail = |queue: &mut Queue, after: Duration, ended: Ended| {
        now += after;
        assert!(queue.next(now).is_some());
        queue.ended("a/1", ended, now)
    };
    let second = Duration::from_secs(1);
    for _ in 1..TELL_FAILURES {
        assert_eq!(fail(&mut queue, second, FAILED), After::Again);
    }
    let quiet = Ended::Failed { tell: false };
    assert_eq!(fail(&mut queue, second, quiet), After::Again, "no help of the owner's");
    assert_eq!(fail(&mut queue, 10 * second, FAILED), After::Stuck { failures: 6 });
    assert_eq!(fail(&mut queue, 10 * second, FAILED), After::Again);
    assert_eq!(fail(&mut queue, TELL_AGAIN, FAILED), After::Stuck { failures: 8 });
}

#[test]
fn one_that_hung_is_told_of_at_its_first_time_out() {
    let now = Instant::now();
    let mut queue = queue(&[("a", "1")], now);
    queue.next(now);
    assert_eq!(queue.ended("a/1", FAILED, now + TELL_AFTER), After::Stuck { failures: 1 });
}

#[test]
fn what_is_gone_is_not_written_again() {
    let now = Instant::now();
    let mut queue = queue(&[("a", "ready"), ("b", "resting"), ("c", "writing"), ("d", "refused")], now);
    queue.forget("a/ready");
    assert_eq!(take(&mut queue, now), ["b/resting", "c/writing", "d/refused"]);
    queue.ended("b/resting", FAILED, now);
    queue.forget("b/resting");
    assert_eq!(queue.wake(), None);
    queue.forget("c/writing");
    queue.push(patch("c", "writing", "2"), now);
    assert!(matches!(queue.ended("c/writing", FAILED, now), After::Off(_)));
    assert!(matches!(queue.ended("d/refused", Ended::Gone, now), After::Off(_)));
    assert_eq!((queue.len(), queue.lanes.len(), queue.turns.len(), queue.writing), (0, 0, 0, 0));
    assert_eq!(take(&mut queue, now + MAX_BACKOFF), Vec::<String>::new());
}
