//! `cargo xtask vm-test`: a cluster on Debian's kernels with OVS's kernel datapath, in virtual machines.

mod initramfs;
mod machine;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::setup::kernel::{KERNELS, Kernel};
use crate::{exec, setup};
use machine::Machine;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kernels: 5.10, 6.1, 6.12, 7.2; the default is all of them.
    kernels: Vec<String>,
    /// Instead of the tests, run this shell command in the machine.
    #[arg(long)]
    exec: Option<String>,
    /// One processor, whose clock advances a nanosecond with each instruction.
    #[arg(long)]
    icount: bool,
}

/// After this a machine is taken for stuck.
const LIMIT: Duration = Duration::from_secs(900);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let kernels = if args.kernels.is_empty() {
        KERNELS.to_vec()
    } else {
        args.kernels.iter().map(|k| Kernel::find(k)).collect::<Result<_>>()?
    };
    setup::ensure_machines(&kernels)?;
    for kernel in kernels {
        let machine = Machine { kernel, count_instructions: args.icount, limit: LIMIT };
        exec::heading(&format!("kernel {}", kernel.release()?));
        let begin = Instant::now();
        let Some(script) = &args.exec else { bail!("not yet") };
        let outcome = machine.run(script)?;
        exec::say(format_args!("--- exit code {:?} after {:.0?}", outcome.code, begin.elapsed()));
    }
    Ok(())
}
