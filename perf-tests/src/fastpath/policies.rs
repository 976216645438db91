//! `cargo xtask bench policy-scale`: what network policies cost that select the pods of a connection. Two pods without one, two under some and two under
//! many run at the same time, on one cluster, by the same rounds.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use testbed::cluster::Bed;
use testbed::exec::retry;
use testbed::tools::Answer;
use testbed::traffic::{Dial, Place as Client, dial};

use super::cell::Route;
use super::cluster::{Cluster, NAMESPACE};
use super::place::Place;
use super::rows::ratios;
use super::say;
use super::scale::{Phase, Scale};
use crate::names::Path;
use crate::scenario_file::Run as Command;

/// How policies are measured.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many policies select the pods of the second and of the third path.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000], value_parser = clap::value_parser!(u16).range(1..=10_000))]
    policies: Vec<u16>,
    /// Name of the cluster, which is a new one.
    #[arg(long, default_value = "policy-scale")]
    name: String,
    #[command(flatten)]
    scale: Scale,
}

/// The paths under policies.
const PATHS: [Path; 2] = [Path::SomePolicies, Path::ManyPolicies];
/// What the policies allow between the pods: the ports of all loads.
const PORTS: (u16, u16) = (7000, 7999);
/// A port on which the pods listen, and which no policy allows.
const DENIED: u16 = 8080;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long the policies may take until they are in force: the controller, ovn-northd and two ovn-controllers with a thousand of them.
const IN_FORCE: Duration = Duration::from_secs(300);

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let &[some, many] = self.policies.as_slice() else {
            bail!("--policies wants two numbers, as in `--policies 100,1000`, not {:?}", self.policies);
        };
        ensure!(some < many, "--policies wants the smaller number first, not {:?}", self.policies);
        let scenario = self.scale.scenario(Command::PolicyScale, &[Path::Fast, PATHS[0], PATHS[1]])?;
        let circumstances = self.scale.circumstances();
        let cluster = Cluster::up(&self.name, self.scale.datapath)?;
        let mut routes = vec![(Path::Fast, cluster.across()?)];
        for (path, count) in PATHS.into_iter().zip([some, many]) {
            say(&format!("{count} policies"));
            routes.push((path, under(&cluster, count).with_context(|| format!("{count} policies"))?));
        }
        let samples = self.scale.measure(&routes)?;
        cluster.down()?;
        let words = [("some", some.to_string()), ("many", many.to_string())];
        let rows = ratios(&scenario, &samples, &words);
        self.scale.tell(
            &circumstances,
            &rows,
            &[Phase { objects: json!({"policies": [some, many]}), samples }],
        )
    }
}

/// Makes two pods and as many policies for them; the way from the one to the other, once they are in force.
fn under(cluster: &Cluster, count: u16) -> Result<Route> {
    let bed = cluster.bed()?;
    let [client, server] = ["near", "far"].map(|name| format!("{name}-{count}"));
    cluster.add_pods(&[(&client, "n1"), (&server, "n2")])?;
    let (from, _) = Place::pod(bed, "n1", NAMESPACE, &client)?;
    let (to, address) = Place::pod(bed, "n2", NAMESPACE, &server)?;
    let place = Client::Pod { node: "n1".into(), namespace: NAMESPACE.into(), name: client.clone() };
    let ip: IpAddr = address.parse().with_context(|| format!("address {address:?}"))?;
    let answers = || -> Result<bool> {
        let attempts = dial(bed, &place, Dial::tcp(ip, DENIED).within(PATIENCE))?;
        Ok(attempts.iter().all(|attempt| matches!(attempt.answer, Answer::Reply(_))))
    };
    ensure!(answers()?, "without policies the pod {server} does not answer on port {DENIED}");
    let list: Vec<String> = (0..count).map(|i| policy(&client, &server, i, count).to_string()).collect();
    bed.apply(&list.join("\n---\n"))?;
    wait(bed, count)?;
    ensure!(!answers()?, "policies are there, and port {DENIED} is still open");
    Ok(Route { client: from, server: to, address, by: None, part_of_path: cluster.ovs()? })
}

/// Waits until a set of policies is in the flows of every node.
fn wait(bed: &Bed, count: u16) -> Result<()> {
    // An ACL names its owner, as in ovn-kubernetes: `k8s.ovn.org/id=default-network-controller:NetworkPolicy:NAMESPACE:NAME:Ingress:…`.
    let owner = format!(":NetworkPolicy:{NAMESPACE}:");
    retry(IN_FORCE, "the policies are in force", || {
        let list = bed.nbctl(&["--bare", "--columns=external_ids", "list", "acl"])?;
        let owners: BTreeSet<&str> =
            list.split_whitespace().filter_map(|id| id.split_once(&owner)?.1.split(':').next()).collect();
        if let Some(missing) =
            (0..count).map(|i| policy_name(count, i)).find(|name| !owners.contains(name.as_str()))
        {
            bail!("the policy {missing} has no ACL");
        }
        bed.nbctl(&["--wait=hv", "--timeout=120", "sync"])
    })
    .map(drop)
}

fn policy_name(count: u16, i: u16) -> String {
    format!("of-{count}-{i}")
}

/// One policy of a set, in both directions. The last one allows what is measured, each other one a range of addresses and a port of its own.
fn policy(client: &str, server: &str, i: u16, count: u16) -> Value {
    let pods = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": [client, server]}]});
    let (peer, ports) = if i + 1 == count {
        let port = |protocol| json!({"protocol": protocol, "port": PORTS.0, "endPort": PORTS.1});
        (json!({"podSelector": pods}), vec![port("TCP"), port("UDP")])
    } else {
        let range = format!("198.18.{}.{}/32", i / 256, i % 256);
        (json!({"ipBlock": {"cidr": range}}), vec![json!({"protocol": "TCP", "port": 20_000 + i})])
    };
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": policy_name(count, i), "namespace": NAMESPACE},
        "spec": {
            "podSelector": pods, "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [peer], "ports": ports}],
            "egress": [{"to": [peer], "ports": ports}],
        },
    })
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::fastpath::load::Kind;

    #[test]
    fn one_policy_of_a_set_allows_what_is_measured() {
        let all: Vec<Value> = (0..300).map(|i| policy("a", "b", i, 300)).collect();
        let open = |policy: &&Value| policy["spec"]["ingress"][0]["ports"][0]["endPort"] == 7999;
        assert_eq!(all.iter().filter(open).count(), 1);
        let names: BTreeSet<&str> =
            all.iter().filter_map(|policy| policy["metadata"]["name"].as_str()).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(all[299]["metadata"]["name"], "of-300-299");
        assert_eq!(all[298]["spec"]["egress"][0]["to"][0]["ipBlock"]["cidr"], "198.18.1.42/32");
        assert!(Kind::value_variants().iter().all(|kind| (PORTS.0..PORTS.1).contains(&kind.port())));
    }
}
