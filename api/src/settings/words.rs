//! Words of ovn-kubernetes and of what it was before, and what they are here. `docs/seeds.md` explains them; a test compares.

use super::conversion::{
    Converted, boolean, encapsulation, file, gateway_local, gateway_mode, level, server, vlan,
};

/// Which program reads the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// slipstream-controller.
    Controller,
    /// slipstream-node-agent.
    Agent,
}

/// What an old word is to a program.
#[derive(Debug, Clone, Copy)]
pub(super) enum Meaning {
    /// The word means this flag.
    Flag(&'static str),
    /// The word means this flag, with the value in another form.
    Converted(&'static str, fn(&str) -> Converted),
    /// The word is ignored; the text says why nothing is lost by it.
    Nothing(&'static str),
    /// Something that this program does not do; what to do in its place.
    Refused(&'static str),
}

/// What an old word is to either program.
#[derive(Debug, Clone, Copy)]
pub struct Meanings {
    controller: Meaning,
    agent: Meaning,
}

impl Meanings {
    const fn both(meaning: Meaning) -> Self {
        Self { controller: meaning, agent: meaning }
    }

    const fn controller(meaning: Meaning) -> Self {
        Self { controller: meaning, agent: Nothing("it is the controller's") }
    }

    const fn agent(meaning: Meaning) -> Self {
        Self { controller: Nothing("it is the agents'"), agent: meaning }
    }

    /// Meaning of the word for `program`.
    pub(super) const fn of(&self, program: Program) -> Meaning {
        match program {
            Program::Controller => self.controller,
            Program::Agent => self.agent,
        }
    }
}

/// Whether an old flag has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// In the same word behind `=`, or in the next word.
    Value,
    /// True without one; false with `=false`.
    Switch,
    /// Only in the same word.
    Optional,
}

/// An old flag.
#[derive(Debug)]
pub struct Word {
    /// Name of the flag, without dashes.
    pub name: &'static str,
    pub(super) form: Form,
    pub(super) meanings: Meanings,
}

const fn word(name: &'static str, form: Form, meanings: Meanings) -> Word {
    Word { name, form, meanings }
}

use Form::{Optional, Switch, Value};
use Meaning::{Converted as As, Flag, Nothing, Refused};

const RUNS: &str = "a service manager or the chart runs the programs, which stay in the foreground";
const OWN_SUBNET: &str = "a node's own range is not a flag here: give it before the node joins, with `kubectl annotate node NODE \
     k8s.ovn.org/node-subnets='{\"default\":[\"192.168.1.0/24\"]}'`, or leave the choice to the controller";
const WHOLE: &str = "every node is a gateway, by the interface of its default route";
const CHASSIS: &str = "ovn-controller has keys of its own";

/// Flags.
pub const WORDS: &[Word] = &[
    // ovnkube
    word(
        "init-master",
        Value,
        Meanings {
            controller: Nothing("the leader among controllers is elected"),
            agent: Nothing("it is the controller's"),
        },
    ),
    word("init-node", Value, Meanings { controller: Nothing("it is the agents'"), agent: Flag("node-name") }),
    word("cluster-subnet", Value, Meanings::both(Flag("cluster-subnets"))),
    word("k8s-service-cidr", Value, Meanings::both(Flag("service-cidrs"))),
    word("k8s-service-cidrs", Value, Meanings::both(Flag("service-cidrs"))),
    word("service-cluster-ip-range", Value, Meanings::both(Flag("service-cidrs"))),
    word("k8s-kubeconfig", Value, Meanings::both(Flag("kubeconfig"))),
    word("k8s-apiserver", Value, Meanings::both(As("api-server", server))),
    word("k8s-token", Value, Meanings::both(Flag("api-token"))),
    word("k8s-token-file", Value, Meanings::both(Flag("api-token-file"))),
    word("k8s-cacert", Value, Meanings::both(Flag("api-ca"))),
    word("nb-address", Value, Meanings::controller(Flag("nb"))),
    word("nb-client-privkey", Value, Meanings::controller(Flag("nb-key"))),
    word("nb-client-cert", Value, Meanings::controller(Flag("nb-cert"))),
    word("nb-client-cacert", Value, Meanings::controller(Flag("nb-ca"))),
    word("sb-address", Value, Meanings::agent(Flag("sb"))),
    word("nodeport", Switch, Meanings::agent(As("node-port", boolean))),
    word("init-gateways", Switch, Meanings::both(Nothing(WHOLE))),
    word(
        "gateway-local",
        Switch,
        Meanings { controller: Nothing("it is the agents'"), agent: As("gateway-mode", gateway_local) },
    ),
    word("gateway-mode", Value, Meanings::agent(As("gateway-mode", gateway_mode))),
    word("gateway-interface", Value, Meanings::agent(Flag("gateway-interface"))),
    word("exgw-interface", Value, Meanings::agent(Flag("exgw-interface"))),
    word("gateway-nexthop", Value, Meanings::agent(Flag("gateway-next-hop"))),
    word("gateway-vlanid", Value, Meanings::agent(As("gateway-interface", vlan))),
    word("encap-type", Value, Meanings::agent(As("encap-ip", encapsulation))),
    word("loglevel", Value, Meanings::both(As("log-level", level))),
    word("log-file", Optional, Meanings::both(Flag("logfile"))),
    // ovn-k8s-overlay, -gateway-helper and -watcher
    word("cluster-ip-subnet", Value, Meanings::both(Flag("cluster-subnets"))),
    word("master-switch-subnet", Value, Meanings::both(Refused(OWN_SUBNET))),
    word("minion-switch-subnet", Value, Meanings::both(Refused(OWN_SUBNET))),
    word("physical-interface", Value, Meanings::agent(Flag("gateway-interface"))),
    word("bridge-interface", Value, Meanings::agent(Flag("gateway-interface"))),
    word("physical-bridge", Value, Meanings::agent(Nothing("the bridge is found by its uplink"))),
    word("physical-ip", Value, Meanings::agent(Nothing("the address is that of the interface"))),
    word("default-gw", Value, Meanings::agent(Flag("gateway-next-hop"))),
    word("node-name", Value, Meanings { controller: Nothing("it is the agents'"), agent: Flag("node-name") }),
    word("overlay", Switch, Meanings::both(Nothing("it is the only mode"))),
    word(
        "underlay",
        Switch,
        Meanings::both(Refused("the underlay mode is not supported, as it never was in ovn-kubernetes")),
    ),
    word("pidfile", Optional, Meanings::both(Nothing(RUNS))),
    word("detach", Switch, Meanings::both(Nothing(RUNS))),
];

/// Environment variables, and keys of the ConfigMap `ovn-config` as variables. The first that is set counts.
pub const ENVIRONMENT: &[(&[&str], Meanings)] = &[
    (&["OVN_NORTH", "OvnNorth"], Meanings::controller(Flag("nb"))),
    (&["OVN_SOUTH", "OvnSouth"], Meanings::agent(Flag("sb"))),
    (&["K8S_APISERVER", "k8s_apiserver"], Meanings::both(As("api-server", server))),
    (&["K8S_TOKEN"], Meanings::both(Flag("api-token"))),
    (&["K8S_TOKEN_FILE"], Meanings::both(Flag("api-token-file"))),
    (&["K8S_CACERT"], Meanings::both(As("api-ca", file))),
    (&["K8S_NODE"], Meanings::agent(Flag("node-name"))),
    (&["OVN_NET_CIDR", "NET_CIDR", "net_cidr"], Meanings::both(Flag("cluster-subnets"))),
    (&["OVN_SVC_CIDR", "SVC_CIDR", "svc_cidr"], Meanings::both(Flag("service-cidrs"))),
    (&["OVN_MTU"], Meanings::both(Flag("mtu"))),
    (&["OVN_HOST_NETWORK_NAMESPACE"], Meanings::controller(Flag("host-network-namespace"))),
];

/// Section and key of the file, in lower case.
pub const FILE: &[(&str, &str, Meanings)] = &[
    ("default", "mtu", Meanings::both(Flag("mtu"))),
    ("default", "cluster-subnets", Meanings::both(Flag("cluster-subnets"))),
    ("default", "encap-ip", Meanings::agent(Flag("encap-ip"))),
    ("default", "encap-type", Meanings::agent(As("encap-ip", encapsulation))),
    ("default", "conntrack-zone", Meanings::both(Nothing("OVN and the agent choose zones"))),
    ("logging", "loglevel", Meanings::both(As("log-level", level))),
    (
        "logging",
        "logfile",
        Meanings::both(Nothing("it was the CNI plugin's; the programs log to standard error or --logfile")),
    ),
    ("cni", "conf-dir", Meanings::agent(Flag("cni-conf-dir"))),
    ("cni", "cni-conf-dir", Meanings::agent(Flag("cni-conf-dir"))),
    ("cni", "plugin", Meanings::both(Nothing("the plugin is slipstream-cni"))),
    ("cni", "cni-plugin", Meanings::both(Nothing("the plugin is slipstream-cni"))),
    ("kubernetes", "kubeconfig", Meanings::both(Flag("kubeconfig"))),
    ("kubernetes", "apiserver", Meanings::both(As("api-server", server))),
    ("kubernetes", "token", Meanings::both(Flag("api-token"))),
    ("kubernetes", "tokenfile", Meanings::both(Flag("api-token-file"))),
    ("kubernetes", "cacert", Meanings::both(As("api-ca", file))),
    ("kubernetes", "service-cidr", Meanings::both(Flag("service-cidrs"))),
    ("kubernetes", "service-cidrs", Meanings::both(Flag("service-cidrs"))),
    ("kubernetes", "host-network-namespace", Meanings::controller(Flag("host-network-namespace"))),
    ("ovnnorth", "address", Meanings::controller(Flag("nb"))),
    ("ovnnorth", "client-privkey", Meanings::controller(As("nb-key", file))),
    ("ovnnorth", "client-cert", Meanings::controller(As("nb-cert", file))),
    ("ovnnorth", "client-cacert", Meanings::controller(As("nb-ca", file))),
    ("ovnsouth", "address", Meanings::agent(Flag("sb"))),
    ("ovnsouth", "client-privkey", Meanings::both(Nothing(CHASSIS))),
    ("ovnsouth", "client-cert", Meanings::both(Nothing(CHASSIS))),
    ("ovnsouth", "client-cacert", Meanings::both(Nothing(CHASSIS))),
    ("gateway", "mode", Meanings::agent(As("gateway-mode", gateway_mode))),
    ("gateway", "interface", Meanings::agent(Flag("gateway-interface"))),
    ("gateway", "egw-interface", Meanings::agent(Flag("exgw-interface"))),
    ("gateway", "next-hop", Meanings::agent(Flag("gateway-next-hop"))),
    ("gateway", "vlan-id", Meanings::agent(As("gateway-interface", vlan))),
    ("gateway", "nodeport", Meanings::agent(As("node-port", boolean))),
];

/// Keys of `external_ids` in Open_vSwitch.
pub const EXTERNAL_IDS: &[(&str, Meanings)] = &[
    ("k8s-api-server", Meanings::both(As("api-server", server))),
    ("k8s-api-token", Meanings::both(Flag("api-token"))),
    ("k8s-api-token-file", Meanings::both(Flag("api-token-file"))),
    ("k8s-ca-certificate", Meanings::both(As("api-ca", file))),
    ("ovn-nb", Meanings::controller(Flag("nb"))),
];

/// Old subcommands: which program had them, that it is `run` here.
pub(super) const COMMANDS: &[(&str, Program)] = &[
    ("master-init", Program::Controller),
    ("minion-init", Program::Agent),
    ("gateway-init", Program::Agent),
];
