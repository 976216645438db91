//! `external_ids` of the node's Open_vSwitch: one question to OVS's database, before there is a runtime or a log.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Deserializer, Value, json};

/// Timeout of each read and write.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the `external_ids` of the row in `Open_vSwitch`.
///
/// # Errors
/// The server does not answer within two seconds, or not as OVSDB (RFC 7047).
pub fn read(socket: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let select = json!({ "op": "select", "table": "Open_vSwitch", "where": [], "columns": ["external_ids"] });
    let question = json!({ "id": "settings", "method": "transact", "params": ["Open_vSwitch", select] });
    stream.write_all(question.to_string().as_bytes())?;
    for message in Deserializer::from_reader(&stream).into_iter::<Value>() {
        let message = message?;
        if message["id"] == "settings" {
            return ids(&message).ok_or_else(|| io::Error::other(format!("unexpected answer {message}")));
        }
    }
    Err(io::Error::other("the server closed the connection"))
}

/// The map `["map", [[key, value], …]]` of the first row.
fn ids(answer: &Value) -> Option<BTreeMap<String, String>> {
    let pairs = answer.pointer("/result/0/rows/0/external_ids/1")?.as_array()?;
    let text = |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned()));
    Some(pairs.iter().filter_map(text).collect())
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A server that answers one question with these ids, after an echo request.
    pub(in crate::settings) fn serve(socket: &Path, ids: Value) {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::Builder::new()
            .spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let asked = Deserializer::from_reader(&stream).into_iter::<Value>().next().unwrap().unwrap();
                let echo = json!({ "id": "echo", "method": "echo", "params": [] });
                let rows = json!([{ "rows": [{ "external_ids": ["map", ids] }] }]);
                let answer = json!({ "id": asked["id"], "error": null, "result": rows });
                write!(stream, "{echo}{answer}").unwrap();
            })
            .unwrap();
    }

    #[test]
    fn ids_are_read_from_the_database() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("db.sock");
        serve(&socket, json!([["k8s-api-server", "10.0.0.1:8080"], ["hostname", "n1"]]));
        let ids = read(&socket).unwrap();
        assert_eq!(ids["k8s-api-server"], "10.0.0.1:8080");
        assert!(read(&dir.path().join("none")).is_err());
    }
}
