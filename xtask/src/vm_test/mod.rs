//! `cargo xtask vm-test`: a cluster on Debian's kernels with OVS's kernel datapath, in virtual machines.

mod gate;
mod icount;
mod initramfs;
mod machine;
mod origin;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::setup::kernel::{KERNELS, Kernel};
use crate::tally::Tally;
use crate::{build, exec, paths, setup};
use icount::Figures;
use machine::{Machine, Outcome};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Kernels: 5.10, 6.1, 6.12, 7.2; the default is all of them.
    kernels: Vec<String>,
    /// Instead of the tests, run this shell command in the machine.
    #[arg(long)]
    exec: Option<String>,
    /// Use one processor whose clock advances a nanosecond with each instruction. Instead of the tests, count the instructions of
    /// round trips.
    #[arg(long)]
    icount: bool,
    /// Count only what is compared, and fail where a path of ours takes over 2 % more instructions than in this file, which an earlier
    /// `--icount` wrote: perf-tests/instructions-6.1.json is that of a commit.
    #[arg(long, value_name = "FILE", requires = "icount", conflicts_with = "exec")]
    against: Option<PathBuf>,
    /// Seconds after which a machine counts as stuck and is ended.
    #[arg(long, default_value_t = LIMIT)]
    limit: u64,
}

/// Seconds after which a machine of `cargo xtask test` counts as stuck.
const LIMIT: u64 = 1800;
/// The kernel of `cargo xtask test`: the oldest on which the programs run.
const USUAL: &str = "6.1";

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let kernels = if args.kernels.is_empty() {
        KERNELS.to_vec()
    } else {
        args.kernels.iter().map(|k| Kernel::find(k)).collect::<Result<_>>()?
    };
    let base = args.against.as_deref().map(Figures::read).transpose()?;
    if let (Some(base), [_, _, ..]) = (&base, kernels.as_slice()) {
        bail!("--against: the figures are of one kernel, {}; name it", base.kernel);
    }
    setup::ensure()?;
    setup::ensure_machines(&kernels)?;
    if let Some(script) = &args.exec {
        for kernel in kernels {
            let outcome = start(kernel, args.icount, args.limit, script)?;
            exec::say(format_args!("exit code {}", outcome.code));
        }
        return Ok(());
    }
    build::programs(&["e2e"])?;
    if args.icount {
        return kernels.into_iter().try_for_each(|kernel| match &base {
            None => icount::run(kernel, args.limit),
            Some(base) => {
                let figures = icount::some(kernel, args.limit, &gate::paths(base))?;
                gate::judge(base, &figures)
            }
        });
    }
    let mut tally = Tally::default();
    for kernel in kernels {
        if let Err(error) = test(&mut tally, kernel, args.limit) {
            tally.fail(format!("kernel {}: {error:#}", kernel.line));
        }
    }
    exec::heading("result");
    tally.report();
    exec::say(tally.closing_line());
    if tally.is_good() { Ok(()) } else { bail!("not everything passed") }
}

/// Runs the tests on one kernel, as a part of `cargo xtask test`.
pub(crate) fn part(tally: &mut Tally) -> Result<()> {
    let kernel = Kernel::find(USUAL)?;
    setup::ensure_machines(&[kernel])?;
    test(tally, kernel, LIMIT)
}

/// Runs the suite `kernel_datapath` on a kernel.
fn test(tally: &mut Tally, kernel: Kernel, limit: u64) -> Result<()> {
    let expect = if kernel.runs_programs() { "ebpf" } else { "ovs" };
    let e2e = paths::target().join("debug/e2e");
    let script = format!("'{}' --name vm kernel-datapath --expect {expect}", e2e.display());
    let outcome = start(kernel, false, limit, &script)?;
    let name = format!("kernel {}", kernel.line);
    let before = tally.failures();
    if !tally.read(&name, &outcome.output) {
        tally.fail(format!("{name}: ended without a count"));
    } else if outcome.code != 0 && tally.failures() == before {
        tally.fail(format!("{name}: ended badly"));
    }
    if tally.failures() > before {
        exec::say(format_args!("logs are in {}", outcome.kept.display()));
    }
    Ok(())
}

/// Runs a script on a kernel. A machine that ends before the script is started once more: newer kernels patch their own code
/// while they boot, which the emulation of several processors does not always survive.
fn start(kernel: Kernel, count_instructions: bool, limit: u64, script: &str) -> Result<Outcome> {
    let machine = Machine { kernel, count_instructions, limit: Duration::from_secs(limit) };
    let release = kernel.release()?;
    exec::heading(&format!("kernel {release}"));
    let begin = Instant::now();
    let outcome = match machine.run(script)? {
        Some(outcome) => outcome,
        None => match machine.run(script)? {
            Some(outcome) => outcome,
            None => bail!("the machine with kernel {release} ended by itself, twice"),
        },
    };
    exec::say(format_args!("--- kernel {release} took {:.0?}", begin.elapsed()));
    Ok(outcome)
}
