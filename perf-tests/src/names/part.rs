//! What is killed.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Processes of one kind, which are killed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Part {
    /// The control: what this machine loses while nothing is killed.
    Nothing,
    /// The node agent of each node.
    Agent,
    /// ovn-controller of each node.
    OvnController,
    /// The node's own database of each node.
    NodeDatabase,
    /// ovs-vswitchd of each node: with the userspace datapath the datapath itself.
    Vswitchd,
    /// The controller.
    Controller,
    /// ovn-northd.
    Northd,
    /// The northbound database.
    Northbound,
    /// The southbound database.
    Southbound,
}

/// Where what is not on the nodes runs.
const CENTRAL: &str = "central";

impl Part {
    /// All, the control first.
    pub(crate) const ALL: [Self; 9] = [
        Self::Nothing,
        Self::Agent,
        Self::OvnController,
        Self::NodeDatabase,
        Self::Vswitchd,
        Self::Controller,
        Self::Northd,
        Self::Northbound,
        Self::Southbound,
    ];

    /// The processes, each with its host.
    pub(crate) fn processes(self, nodes: &[String]) -> Vec<(&str, &'static str)> {
        let on_nodes = |process| nodes.iter().map(|node| (node.as_str(), process)).collect();
        match self {
            Self::Nothing => Vec::new(),
            Self::Agent => on_nodes("node-agent"),
            Self::OvnController => on_nodes("ovn-controller"),
            Self::NodeDatabase => on_nodes("ovsdb-server"),
            Self::Vswitchd => on_nodes("ovs-vswitchd"),
            Self::Controller => vec![(CENTRAL, "controller")],
            Self::Northd => vec![(CENTRAL, "ovn-northd")],
            Self::Northbound => vec![(CENTRAL, "ovsdb-nb")],
            Self::Southbound => vec![(CENTRAL, "ovsdb-sb")],
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Agent => "node agents",
            Self::OvnController => "ovn-controllers",
            Self::NodeDatabase => "databases of the nodes",
            Self::Vswitchd => "ovs-vswitchds",
            Self::Controller => "controller",
            Self::Northd => "ovn-northd",
            Self::Northbound => "northbound database",
            Self::Southbound => "southbound database",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nodes_have_is_killed_on_each_of_them() {
        let nodes = ["n1".to_owned(), "n2".to_owned()];
        assert_eq!(Part::Agent.processes(&nodes), [("n1", "node-agent"), ("n2", "node-agent")]);
        assert_eq!(Part::Northbound.processes(&nodes), [("central", "ovsdb-nb")]);
        assert_eq!(Part::Nothing.processes(&nodes), []);
    }
}
