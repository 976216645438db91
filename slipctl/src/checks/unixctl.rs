//! One question to a daemon of OVS or OVN, as `ovs-appctl` asks (lib/unixctl.c of OVS).

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Deserializer, Value, json};

/// Timeout of each read and write.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The answer of the daemon `program` whose pid file is in `directory`.
///
/// # Errors
/// It does not run, does not answer, or refuses.
pub(crate) fn ask(directory: &Path, program: &str, method: &str) -> io::Result<String> {
    let pid = std::fs::read_to_string(directory.join(format!("{program}.pid")))?;
    let mut stream = UnixStream::connect(directory.join(format!("{program}.{}.ctl", pid.trim())))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let question = json!({ "id": 0, "method": method, "params": [] });
    stream.write_all(question.to_string().as_bytes())?;
    let answer = Deserializer::from_reader(&stream).into_iter::<Value>().next();
    let answer = answer.ok_or_else(|| io::Error::other("the daemon closed the connection"))??;
    match (answer["error"].as_str(), answer["result"].as_str()) {
        (Some(error), _) => Err(io::Error::other(error.trim().to_owned())),
        (None, result) => Ok(result.unwrap_or_default().trim().to_owned()),
    }
}
