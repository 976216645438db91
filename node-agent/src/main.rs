//! Slipstream's node agent. See `slipstream-node-agent --help`.

use std::process::ExitCode;

use api::settings::{self, Program};
use node_agent::args::Args;

fn main() -> ExitCode {
    let settings = settings::read::<Args>(Program::Agent);
    match settings.args.run(&settings.warnings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
