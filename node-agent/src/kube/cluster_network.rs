//! Compares the agent's cluster network flags with those of the controller, which it publishes in annotations of each Node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use api::addr::{self, Family};
use api::annotation::{CLUSTER_NETWORK, ClusterNetwork};
use ipnet::IpNet;

use crate::config::Config;

/// Name of the node condition.
pub const CONDITION: &str = "cluster-network";

/// Flags common to controller and agent.
pub const FLAGS: [&str; 6] = [
    "--cluster-subnets",
    "--service-cidrs",
    "--join-subnet",
    "--masquerade-subnet",
    "--mtu",
    "--default-network",
];

/// A flag whose values in controller and agent differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Name of the flag.
    pub flag: &'static str,
    /// Value in the controller.
    pub controller: String,
    /// Value in this agent.
    pub agent: String,
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flag, controller, agent } = self;
        write!(
            f,
            "{flag} is {agent} in this agent but {controller} in the controller; set both to the same value"
        )
    }
}

/// Values of the flags in this agent, with defaults.
pub fn of(config: &Config) -> ClusterNetwork {
    let families: BTreeSet<Family> =
        config.network.cluster_subnets.iter().map(|subnet| Family::of_net(&subnet.cidr)).collect();
    let whole =
        |given: &[IpNet], defaults: &[IpNet]| addr::with_defaults(given, families.iter().copied(), defaults);
    ClusterNetwork {
        cluster_subnets: config.network.cluster_subnets.iter().map(ToString::to_string).collect(),
        service_cidrs: config.network.service_cidrs.clone(),
        join_subnets: whole(&config.network.join_subnet, &addr::DEFAULT_JOIN),
        masquerade_subnets: whole(&config.network.masquerade_subnet, &addr::DEFAULT_MASQUERADE),
        mtu: config.network.mtu.into(),
        default_network: config.network.default_network,
    }
}

/// Ranges whose addresses the cluster gives out itself.
pub fn ranges(config: &Config) -> Vec<IpNet> {
    let ClusterNetwork { service_cidrs, join_subnets, masquerade_subnets, .. } = of(config);
    let pods = config.network.cluster_subnets.iter().map(|subnet| subnet.cidr);
    pods.chain(service_cidrs).chain(join_subnets).chain(masquerade_subnets).collect()
}

/// Flags that differ from those of the controller; the order of CIDRs is ignored.
pub fn differences(controller: &ClusterNetwork, agent: &ClusterNetwork) -> Vec<Difference> {
    let values = |network: &ClusterNetwork| {
        [
            sorted(&network.cluster_subnets),
            sorted(&truncated(&network.service_cidrs)),
            sorted(&truncated(&network.join_subnets)),
            sorted(&truncated(&network.masquerade_subnets)),
            network.mtu.to_string(),
            network.default_network.to_string(),
        ]
    };
    let both = values(controller).into_iter().zip(values(agent));
    let all = FLAGS.into_iter().zip(both);
    all.filter(|(_, (controller, agent))| controller != agent)
        .map(|(flag, (controller, agent))| Difference { flag, controller, agent })
        .collect()
}

/// Differences according to the annotations of this Node; empty while the controller has not written them.
///
/// # Errors
/// The controller's annotation cannot be read; names the key and the field.
pub fn check(
    annotations: &BTreeMap<String, String>,
    agent: &ClusterNetwork,
) -> Result<Vec<Difference>, String> {
    match annotations.get(CLUSTER_NETWORK) {
        None => Ok(Vec::new()),
        Some(value) => {
            let controller = ClusterNetwork::read(value).map_err(|error| error.to_string())?;
            Ok(differences(&controller, agent))
        }
    }
}

fn truncated(nets: &[IpNet]) -> Vec<IpNet> {
    nets.iter().map(IpNet::trunc).collect()
}

fn sorted(list: &[impl Display]) -> String {
    let set: BTreeSet<String> = list.iter().map(ToString::to_string).collect();
    set.into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        config: Config,
    }

    fn told(flags: &[&str]) -> ClusterNetwork {
        of(&Arguments::parse_from([&["agent", "--node-name", "n1"], flags].concat()).config)
    }

    #[test]
    fn the_same_in_another_order_and_with_defaults_written_out_is_no_difference() {
        let short = told(&["--cluster-subnets=10.244.0.0/16,fd00:10:244::/48/64"]);
        let long = told(&[
            "--cluster-subnets=fd00:10:244::/48/64,10.244.0.0/16/24",
            "--join-subnet=fd98::/64,100.64.0.0/16",
            "--masquerade-subnet=169.254.169.0/29,fd69::/125",
        ]);
        assert_eq!(differences(&short, &long), []);
    }

    #[test]
    fn a_difference_names_the_flag_and_both_values() {
        let controller = told(&["--service-cidrs=10.96.0.0/12"]);
        let agent = told(&["--service-cidrs=10.96.0.0/16", "--mtu=1450"]);
        let texts: Vec<String> = differences(&controller, &agent).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "--service-cidrs is 10.96.0.0/16 in this agent but 10.96.0.0/12 in the controller; set both to the same value",
                "--mtu is 1450 in this agent but 1400 in the controller; set both to the same value",
            ]
        );
    }

    #[test]
    fn nothing_is_said_before_the_controller_has_written_and_what_cannot_be_read_is_told() {
        let agent = told(&[]);
        assert_eq!(check(&BTreeMap::new(), &agent), Ok(Vec::new()));
        let written = |value: String| BTreeMap::from([(CLUSTER_NETWORK.to_owned(), value)]);
        assert_eq!(check(&written(api::annotation::encode(&agent)), &agent), Ok(Vec::new()));
        assert!(check(&written("{}".to_owned()), &agent).unwrap_err().contains(CLUSTER_NETWORK));
    }
}
