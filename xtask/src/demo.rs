//! `cargo xtask demo`, `up` and `down`: build what is needed and run the test bed.

use anyhow::Result;

use crate::setup::Scope;
use crate::{build, exec, image, paths, setup};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Leave the cluster running and print how to explore it.
    #[arg(long)]
    keep: bool,
    /// Use real nodes: containerd and kubelet, with Deployments in place of stand-in pods.
    #[arg(long)]
    real: bool,
    /// Use real nodes on which everything of Slipstream, OVN and Open vSwitch is installed by the chart, as pods of our image.
    #[arg(long, conflicts_with = "real")]
    installed: bool,
    /// Passed on to `e2e demo`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Sets up, builds, and runs the demonstration.
pub(crate) fn run(args: &Args) -> Result<()> {
    let mut rest = args.args.clone();
    if args.real {
        rest.insert(0, "--real".into());
    }
    if args.installed {
        rest.splice(0..0, ["--real".into(), "--install=chart".into()]);
    }
    if args.keep {
        rest.insert(0, "--keep".into());
    }
    start("e2e", "demo", &rest)
}

/// Sets up, builds, and runs one verb of the test bed.
pub(crate) fn testbed(verb: &str, args: &[String]) -> Result<()> {
    start("testbed", verb, args)
}

fn start(program: &str, verb: &str, args: &[String]) -> Result<()> {
    setup::ensure_beside(scope(args), || build::programs(&[program]))?;
    if args.iter().any(|arg| arg == "chart" || arg == "--install=chart") {
        image::for_test_bed()?;
    }
    let status = exec::command(paths::target().join("debug").join(program)).arg(verb).args(args).status()?;
    if status.success() {
        return Ok(());
    }
    // The program itself has reported the error.
    std::process::exit(status.code().unwrap_or(1));
}

/// What clusters of this verb need: only real nodes need kubelets, a container runtime and images.
fn scope(args: &[String]) -> Scope {
    let real = |arg: &String| arg == "--real" || arg.ends_with("containerd");
    if args.iter().any(real) { Scope::All } else { Scope::Light }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_nodes_need_everything() {
        let of = |args: &[&str]| scope(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["--datapath", "ebpf"]), Scope::Light);
        for real in [&["--real"][..], &["--runtime", "containerd"], &["--runtime=containerd"]] {
            assert_eq!(of(real), Scope::All);
        }
    }
}
