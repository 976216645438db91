//! Bytes as each thing that a peer may send.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::control::{Answer, Ask, Hello};
use super::data::{HEAD_BYTES, Head, hello, read_hello};
use super::lines;

/// Longest reason of a refusal, in bytes.
const LONGEST_REASON: usize = 300;

/// Reads bytes as the head of a connection, the head of a datagram, and lines of the control connection: what a server and a client do with
/// what comes. For fuzzing.
///
/// # Panics
/// A head that was read and written again is another one, a message that was read cannot be written and read again, or test settings that
/// are refused have no short reason.
pub fn read_anything(bytes: &[u8]) {
    if let Some((tag, mode)) = read_hello(bytes) {
        assert_eq!(read_hello(&hello(tag, mode)), Some((tag, mode)));
    }
    if let Some(head) = Head::read(bytes) {
        let mut payload = bytes.to_vec();
        head.write(&mut payload);
        assert_eq!(payload, bytes, "the head of a datagram has no bits of its own");
        assert!(payload.len() >= HEAD_BYTES as usize);
    }
    each::<Hello>(bytes, |_| {});
    each::<Answer>(bytes, |_| {});
    each::<Ask>(bytes, |ask| {
        if let Ask::Prepare { settings } = ask
            && let Err(reason) = settings.check()
        {
            assert!(reason.starts_with("--") && reason.len() < LONGEST_REASON, "{reason}");
        }
    });
}

/// The lines up to the first that is no such message.
fn each<T: DeserializeOwned + Serialize>(mut bytes: &[u8], look: impl Fn(&T)) {
    while let Ok(message) = lines::read::<T>(&mut bytes) {
        look(&message);
        let mut line = Vec::new();
        let again = lines::write(&mut line, &message).and_then(|()| lines::read::<T>(&mut line.as_slice()));
        if let Err(error) = again {
            panic!("what was read can be written and read again: {error:#}");
        }
    }
}
