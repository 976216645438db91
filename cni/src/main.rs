//! `slipstream-cni`: CNI plugin executable, started by the container runtime for each call.

mod plugin;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::SystemTime;

fn main() -> ExitCode {
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let Some(command) = std::env::var_os("CNI_COMMAND").map(|c| c.to_string_lossy().into_owned()) else {
        plugin::say(
            "slipstream-cni: CNI plugin of Slipstream, for CNI 0.3.1, 0.4.0, 1.0.0 and 1.1.0; to be run by a container runtime",
        );
        return ExitCode::SUCCESS;
    };
    let answer = plugin::run(&command, started);
    let mut stdout = io::stdout().lock();
    // A closed standard output cannot be reported.
    let _ = stdout.write_all(answer.stdout.as_bytes()).and_then(|()| stdout.flush());
    ExitCode::from(answer.code)
}
