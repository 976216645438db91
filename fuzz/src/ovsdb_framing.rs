//! Messages from an OVSDB server: the stream cut into messages, updates of a replica, values and schemas.

use ovsdb_client::{Datum, Schema, fuzzing};

use crate::bytes::pieces;

/// The first byte determines how the stream is cut; the rest is the stream.
pub fn ovsdb_framing(data: &[u8]) {
    let [seed, stream @ ..] = data else { return };
    let (messages, end) = fuzzing::cut([stream]);
    assert_eq!(fuzzing::cut(pieces(stream, *seed)), (messages.clone(), end));
    // Between messages only white space may be lost.
    let mut rest = stream;
    for message in &messages {
        rest = rest.trim_ascii_start().strip_prefix(message.as_slice()).unwrap();
        // The JSON parser checks which bracket closes.
        assert!(message.starts_with(b"{") && (message.ends_with(b"}") || message.ends_with(b"]")));
    }
    let mut follower = fuzzing::Follower::default();
    for message in &messages {
        let taken = follower.take(message);
        if taken.is_err() && seed & 1 == 0 {
            // A session ends here. For odd seeds it continues, to check the state after an incomplete update.
            break;
        }
        follower.check();
    }
    if let Ok(text) = std::str::from_utf8(stream) {
        value(text);
        schema(text);
    }
}

/// A value that can be read must be equal after writing and reading it again.
fn value(text: &str) {
    let Ok(datum) = serde_json::from_str::<Datum>(text) else { return };
    let written = serde_json::to_string(&datum).unwrap();
    assert_eq!(serde_json::from_str::<Datum>(&written).unwrap(), datum, "{written}");
    assert_eq!(datum.clone().canonical(), datum);
}

fn schema(text: &str) {
    let Ok(schema) = serde_json::from_str::<Schema>(text) else { return };
    for (name, table) in &schema.tables {
        assert!(schema.has_table(name));
        assert!(table.columns.keys().all(|column| schema.has_column(name, column)));
    }
}
