//! The controller's executable.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use api::settings::{self, Program};
use controller::args::Args;

fn main() -> ExitCode {
    let settings = settings::read::<Args>(Program::Controller);
    match settings.args.run(&settings.warnings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
