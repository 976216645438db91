//! What the two ends of the traffic tool say to each other, and the document that it writes.

use traffic::report::Document;

/// Bytes from a peer, and the text of a file that is compared.
pub fn traffic_protocol(data: &[u8]) {
    traffic::read_anything(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(document) = Document::parse(text) {
        let again = serde_json::to_string(&document).unwrap();
        Document::parse(&again).unwrap();
    }
}
