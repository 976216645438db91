//! The command line of `e2e`: the demonstration, and every suite with its parameters, as the test programs of the same names run it without.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use libtest_mimic::Arguments;

use crate::harness::{Group, Program, Settings};
use crate::{
    demo, demonstration, fault_injection, flow_cache_equivalence, flow_cache_invariants, instruction_count,
    kernel_datapath, multus, node_lifecycle, ovn_kubernetes_parity, pod_churn, scale, scoped_changes,
    service_matrix, supervision, uplink_migration, virtual_networks,
};

/// The demonstration, or one suite by hand.
#[derive(Debug, Parser)]
#[command(name = "e2e")]
pub struct Args {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show that a cluster works, in a table.
    Demo(demo::Args),
    #[command(flatten)]
    Suite(Suite),
}

#[derive(Debug, Subcommand)]
enum Suite {
    /// The table of `e2e demo`, every way of a connection, and services that change.
    Demonstration(demonstration::Args),
    /// Bad input and missing services: clear errors, nothing left behind, and recovery.
    FaultInjection(fault_injection::Args),
    /// What arrives by the flow cache is what arrives through OVS, and no pod uses the entry of another.
    FlowCacheEquivalence(flow_cache_equivalence::Args),
    /// Never more than OVS allows, all that it allows, and what happens when parts die.
    FlowCacheInvariants(flow_cache_invariants::Args),
    /// Count the instructions of round trips, in a virtual machine that counts them.
    InstructionCount(instruction_count::Args),
    /// On the datapath of this machine's kernel: traffic, a policy, the programs, the fast path.
    KernelDatapath(kernel_datapath::Args),
    /// Below Multus, in either role: every interface or none, bad input, killed agents, many pods, Multus' own cases.
    Multus(multus::Args),
    /// Real nodes: many pods at once, restarts, crashes, a drain, a reboot, broken files, full disks.
    NodeLifecycle(node_lifecycle::Args),
    /// Compare with what ovn-kubernetes does for the same objects.
    OvnKubernetesParity(ovn_kubernetes_parity::Args),
    /// Add and delete many pods at once, and look for what is left.
    PodChurn(pod_churn::Args),
    /// Thousands of pods on nodes that exist as objects only: what the controller misses when a process is down.
    Scale(scale::Args),
    /// Whether the scopes of changed flows cover every flow that OVS treats otherwise.
    ScopedChanges(scoped_changes::Args),
    /// Clients, addresses, backends, policies and affinity of services, against one table of expectations.
    ServiceMatrix(service_matrix::Args),
    /// End every task and thread of agent and controller, and see the process end, come back, and nothing lost.
    Supervision(supervision::Args),
    /// Change the uplink of nodes as real machines' changes: gateways, addresses, leases, flushed tables.
    UplinkMigration(uplink_migration::Args),
    /// Pods with several interfaces on virtual networks: what reaches what, and what is left.
    VirtualNetworks(virtual_networks::Args),
}

impl Args {
    /// Runs the demonstration or the suite.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let Self { settings, verb } = self;
        let suite = match verb {
            Verb::Demo(args) => return args.main(settings.name.as_deref().unwrap_or("demo"), settings.keep),
            Verb::Suite(suite) => suite,
        };
        let (program, name) = suite.names();
        let cluster = settings.name.clone().unwrap_or_else(|| name.to_owned());
        let program = Program::new(program, settings).with_all(suite.groups(&cluster));
        program.run(&Arguments::from_iter(["e2e"]))
    }
}

impl Suite {
    /// Of the test program, and of the cluster.
    fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::Demonstration(_) => ("demonstration", "demo"),
            Self::FaultInjection(_) => ("fault_injection", "faults"),
            Self::FlowCacheEquivalence(_) => ("flow_cache_equivalence", "equivalence"),
            Self::FlowCacheInvariants(_) => ("flow_cache_invariants", "invariants"),
            Self::InstructionCount(_) => ("instruction_count", "icount"),
            Self::KernelDatapath(_) => ("kernel_datapath", "kernel"),
            Self::Multus(_) => ("multus", "multus"),
            Self::NodeLifecycle(_) => ("node_lifecycle", "lifecycle"),
            Self::OvnKubernetesParity(_) => ("ovn_kubernetes_parity", "parity"),
            Self::PodChurn(_) => ("pod_churn", "churn"),
            Self::Scale(_) => ("scale", "scale"),
            Self::ScopedChanges(_) => ("scoped_changes", "scoped"),
            Self::ServiceMatrix(_) => ("service_matrix", "matrix"),
            Self::Supervision(_) => ("supervision", "supervision"),
            Self::UplinkMigration(_) => ("uplink_migration", "uplinks"),
            Self::VirtualNetworks(_) => ("virtual_networks", "networks"),
        }
    }

    fn groups(self, cluster: &str) -> Vec<Group> {
        let group = match self {
            Self::Scale(args) => return args.groups(cluster),
            Self::Demonstration(args) => args.group("", cluster),
            Self::FaultInjection(args) => args.group("", cluster),
            Self::FlowCacheEquivalence(args) => return args.groups(cluster),
            Self::FlowCacheInvariants(args) => args.group("", cluster),
            Self::InstructionCount(args) => args.group("", cluster),
            Self::KernelDatapath(args) => args.group("", cluster),
            Self::Multus(args) => args.group("", cluster),
            Self::NodeLifecycle(args) => args.group("", cluster),
            Self::OvnKubernetesParity(args) => args.group("", cluster),
            Self::PodChurn(args) => args.group("", cluster),
            Self::ScopedChanges(args) => args.group("", cluster),
            Self::ServiceMatrix(args) => args.group("", cluster),
            Self::Supervision(args) => args.group("", cluster),
            Self::UplinkMigration(args) => args.group("", cluster),
            Self::VirtualNetworks(args) => args.group("", cluster),
        };
        vec![group]
    }
}
