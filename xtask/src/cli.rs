//! The command line of `cargo xtask`.

use clap::{CommandFactory, Parser, Subcommand};

use crate::{
    bench, build_ebpf, chart, codegen, conformance, demo, exec, fuzz, image, lint, release, setup, test,
    vm_test,
};

/// Builds, tests and demonstrates Slipstream.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Install everything needed for building and testing: packages, bpf-linker, OVS and OVN, Kubernetes.
    Setup(setup::Args),
    /// Compile the eBPF programs.
    BuildEbpf,
    /// Write the generated OVSDB models from the schemas.
    Codegen {
        /// Change nothing; fail if a generated file is out of date.
        #[arg(long)]
        check: bool,
    },
    /// Formatting, clippy, dependency directions, file rules and doc comments.
    Lint,
    /// Run every test, from unit tests to whole clusters. Ends with one line that counts them.
    Test(test::Args),
    /// Bring up a two-node cluster, show that its traffic works, and take it down.
    Demo(demo::Args),
    /// Run libFuzzer on everything that reads input from outside; fails when it finds something.
    Fuzz(fuzz::Args),
    /// Run the upstream Kubernetes end-to-end suite on a cluster with real nodes.
    Conformance(conformance::Args),
    /// Run a cluster on Debian's kernels, with OVS's kernel datapath, in virtual machines.
    VmTest(vm_test::Args),
    /// Make the container image, without a container engine.
    Image(image::Args),
    /// Make chart and image of an earlier release, for tests of upgrades; kept in the cache.
    Release(release::Args),
    /// Write the manifests that are rendered from the Helm chart.
    Chart(chart::Args),
    /// Start a cluster and leave it running.
    Up {
        /// Passed on to `testbed up`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Stop a cluster that `up` or `demo --keep` left running.
    Down {
        /// Passed on to `testbed down`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Run the performance tests in release mode.
    Bench {
        /// Passed on to `perf-tests`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let Self { verb } = self;
        exec::prepare_environment()?;
        match verb {
            Verb::Setup(args) => setup::run(&args),
            Verb::BuildEbpf => build_ebpf::run(),
            Verb::Codegen { check } => codegen::run(check),
            Verb::Lint => lint::run(&Self::command()),
            Verb::Test(args) => test::run(&args, &Self::command()),
            Verb::Demo(args) => demo::run(&args),
            Verb::Fuzz(args) => fuzz::run(&args),
            Verb::Conformance(args) => conformance::run(&args),
            Verb::VmTest(args) => vm_test::run(&args),
            Verb::Image(args) => image::run(&args),
            Verb::Release(args) => release::run(&args),
            Verb::Chart(args) => chart::run(&args),
            Verb::Up { args } => demo::testbed("up", &args),
            Verb::Down { args } => demo::testbed("down", &args),
            Verb::Bench { args } => bench::run(&args),
        }
    }
}
