//! Messages from OVS to a flow monitor.

use std::collections::BTreeMap;
use std::time::Instant;

use node_agent::flow_cache::eligibility::flow_actions::FlowExclusions;
use node_agent::flow_cache::invalidation::{MonitorError, Watched};
use node_agent::flow_cache::sources::flow_monitor::{Event, Session};
use node_agent::ovs::openflow::{self, Message, Update};

use crate::bytes::pieces;

/// The events of a session, except those that depend on how the stream was cut.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    up: Option<usize>,
    paused: Vec<bool>,
    exclusions: Option<FlowExclusions>,
    replies: Vec<u8>,
    /// Why the session ended.
    end: Option<MonitorError>,
}

/// The first byte determines how the stream is cut; the rest is the stream.
pub fn openflow_monitor(data: &[u8]) {
    let [seed, stream @ ..] = data else { return };
    let (mut whole, mut cut) = (Session::new(Watched::Integration), Session::new(Watched::Integration));
    let at_once = read(&mut whole, std::iter::once(stream));
    let in_pieces = read(&mut cut, pieces(stream, *seed));
    assert_eq!(
        (&at_once.up, &at_once.paused, &at_once.end),
        (&in_pieces.up, &in_pieces.paused, &in_pieces.end)
    );
    if at_once.end.is_none() {
        assert_eq!(at_once.replies, in_pieces.replies);
        assert_eq!(whole.waiting(), cut.waiting());
        assert!(whole.waiting() < usize::from(u16::MAX), "a message is not longer than its length can say");
        // Otherwise the exclusions are reported when the last message is complete.
        if whole.waiting() == 0 {
            assert_eq!(at_once.exclusions, in_pieces.exclusions);
            undone(stream, &mut whole, &at_once);
        }
    }
}

fn read<'a>(session: &mut Session, stream: impl Iterator<Item = &'a [u8]>) -> Told {
    let mut told = Told::default();
    let came = Instant::now();
    for piece in stream {
        let (mut changes, mut done) = (0, 0);
        let mut tell = |event| match event {
            Event::Up { flows } => told.up = Some(flows),
            Event::Reading => changes += 1,
            Event::Changed(when, impact) => {
                // The beginning of a message may have come before.
                assert!(when <= came && impact.updates > 0);
                changes += 1;
            }
            Event::Lint(_) => {}
            Event::Paused(paused) => told.paused.push(paused),
            Event::Exclusions(exclusions) => told.exclusions = Some(exclusions),
            Event::Read => done += 1,
            Event::Down(why) => panic!("the connection's end is not the session's to tell: {why}"),
        };
        match session.read(piece, came, &mut tell) {
            Ok(replies) => told.replies.extend(replies),
            Err(why) => {
                told.end = Some(why);
                return told;
            }
        }
        assert!(done <= 1 && (done == 0 || session.waiting() == 0));
        assert!(changes == 0 || done == 1 || session.waiting() > 0, "nobody says that changes were read");
    }
    told
}

/// The complete messages of a stream.
fn messages(mut stream: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (one, rest) = stream.split_at_checked(openflow::length(stream)?)?;
        stream = rest;
        Some(one)
    })
}

/// When every reported flow is removed, no endpoint may be excluded; and every change must be recognised by its first bytes.
fn undone(stream: &[u8], session: &mut Session, told: &Told) {
    let mut present = BTreeMap::new();
    for message in messages(stream) {
        let updates = match openflow::read(message) {
            Message::Initial { updates, .. } => updates,
            Message::Changed(updates) => {
                assert!(openflow::begins_change(message), "a change that is not known by its first bytes");
                updates
            }
            _ => continue,
        };
        for update in openflow::updates(updates) {
            match update {
                Update::Present { key, .. } => {
                    present.insert((key.table, key.priority, key.fields), ());
                }
                Update::Removed(key) => {
                    present.remove(&(key.table, key.priority, key.fields));
                }
                Update::Paused(_) | Update::Unknown => {}
            }
        }
    }
    if told.up.is_none() {
        return;
    }
    let gone: Vec<u8> = present.keys().flat_map(|key| removal(key.0, key.1, key.2)).collect();
    let after = read(session, std::iter::once(gone.as_slice()));
    let exclusions = after.exclusions.or_else(|| told.exclusions.clone());
    assert_eq!(exclusions, Some(FlowExclusions::default()));
}

/// A message that reports the removal of one flow.
fn removal(table: u8, priority: u16, fields: &[u8]) -> Vec<u8> {
    let mut update = vec![0, 0, 0, 2, table, 0, 0, 0, 0, 0];
    update.extend(priority.to_be_bytes());
    update.extend([0; 12]);
    update.extend(fields);
    // A match contains its own length, whatever that is.
    update.resize(update.len().max(28), 0);
    update[26..28].copy_from_slice(&u16::try_from(fields.len()).unwrap().to_be_bytes());
    let length = u16::try_from(update.len()).unwrap().to_be_bytes();
    update[..2].copy_from_slice(&length);
    let length = u16::try_from(update.len() + 16).unwrap().to_be_bytes();
    [&[6, 19, length[0], length[1], 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0], update.as_slice()].concat()
}
