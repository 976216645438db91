//! `slipctl network`: virtual networks as objects of the API server, by kubectl and with its user's rights. What is made is waited for:
//! either the controller takes it, or nothing is left of it.

mod show;

use std::time::{Duration, Instant};

use api::NamespacedName;
use api::virtual_network::{
    API_VERSION, GROUP, Ipam, KIND, Localnet, PLURAL, Reach, Scope, VirtualNetworkSpec, condition, legacy,
};
use clap::Subcommand;
use serde_json::{Value, json};

use crate::client::Error;
use crate::cluster;

/// How long the controller may take to judge a network.
const PATIENCE: Duration = Duration::from_secs(30);
/// Wait between two looks at the network.
const LOOK: Duration = Duration::from_millis(300);

/// The command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
    /// kubectl, with flags such as --kubeconfig FILE or --context NAME.
    #[arg(long, global = true, env = "SLIPSTREAM_KUBECTL", default_value = "kubectl")]
    kubectl: String,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the networks of all namespaces.
    List,
    /// Show a network with its conditions.
    Get {
        /// NAMESPACE/NAME of the network.
        network: NamespacedName,
    },
    /// Make a network, and wait until pods may attach to it. If the controller refuses it, it is removed again.
    Create(Box<Create>),
    /// Change what may change, and wait until it is in force.
    Update {
        /// NAMESPACE/NAME of the network.
        network: NamespacedName,
        /// MTU of the interfaces of new pods, in bytes.
        #[arg(long)]
        mtu: Option<u32>,
        /// CIDRs and addresses that no pod gets unless it asks for one, in place of those that are set; `none` for none.
        #[arg(long, value_delimiter = ',')]
        exclude: Vec<String>,
        /// Networks that it reaches if they list it too, in place of those that are set; `none` for none.
        #[arg(long, value_delimiter = ',')]
        peer: Vec<String>,
        /// Whether addresses of a StatefulSet's pods are kept while the pods are away; for pods that are made from then on.
        #[arg(long)]
        persistent: Option<bool>,
    },
    /// Delete a network. It stays while pods are attached to it, and takes no new ones.
    Delete {
        /// NAMESPACE/NAME of the network.
        network: NamespacedName,
    },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// NAMESPACE/NAME of the network.
    network: NamespacedName,
    /// CIDR; two, separated by a comma, for IPv4 and IPv6.
    #[arg(long, value_delimiter = ',', required_unless_present = "config")]
    subnet: Vec<String>,
    /// The gateway's address in each subnet; by default the first address.
    #[arg(long, value_delimiter = ',')]
    gateway: Vec<String>,
    /// CIDRs and addresses that no pod gets unless it asks for one.
    #[arg(long, value_delimiter = ',')]
    exclude: Vec<String>,
    /// How far packets get: Isolated, ClusterRouter, Outside or Localnet.
    #[arg(long, default_value_t = Reach::default())]
    reach: Reach,
    /// With reach Localnet: the physical network, by its name in the nodes' `ovn-bridge-mappings`.
    #[arg(long)]
    physical_network: Option<String>,
    /// The VLAN there; without it packets have no tag.
    #[arg(long, requires = "physical_network")]
    vlan: Option<u16>,
    /// Which pods may attach: Namespace (those of its own) or Cluster (all).
    #[arg(long, default_value_t = Scope::default())]
    scope: Scope,
    /// Networks that it reaches if they list it too, as NAME or NAMESPACE/NAME.
    #[arg(long, value_delimiter = ',')]
    peer: Vec<String>,
    /// MTU of the pods' interfaces, in bytes; by default the cluster's.
    #[arg(long)]
    mtu: Option<u32>,
    /// First two bytes of the MAC addresses that follow from pods' addresses; by default 0a:58.
    #[arg(long)]
    mac_prefix: Option<String>,
    /// Keep the addresses of a StatefulSet's pods while the pods are away.
    #[arg(long)]
    persistent: bool,
    /// The JSON of an onapNetwork's `spec.config`, in place of all other flags.
    #[arg(long, conflicts_with_all = ["subnet", "gateway", "exclude", "reach", "physical_network", "vlan", "peer", "scope", "mtu", "mac_prefix", "persistent"])]
    config: Option<String>,
}

impl Create {
    fn localnet(&self) -> Option<Localnet> {
        let physical_network = self.physical_network.clone()?;
        Some(Localnet { physical_network, vlan: self.vlan })
    }

    fn spec(&self) -> Result<VirtualNetworkSpec, Error> {
        if let Some(config) = &self.config {
            return legacy::convert(&self.network.name, config)
                .map_err(|error| Error::Usage(error.to_string()));
        }
        Ok(VirtualNetworkSpec {
            scope: self.scope,
            subnets: self.subnet.clone(),
            gateways: self.gateway.clone(),
            excluded_ranges: self.exclude.clone(),
            reach: self.reach,
            localnet: self.localnet(),
            peers: self.peer.clone(),
            mtu: self.mtu,
            mac_prefix: self.mac_prefix.clone(),
            ipam: self.persistent.then_some(Ipam::PERSISTENT),
        })
    }
}

/// What is printed.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The answer as JSON.
    pub(crate) value: Value,
    /// The answer as text.
    pub(crate) text: String,
}

/// Executes the command.
///
/// # Errors
/// kubectl fails, or the controller refuses the network or does not answer.
pub(crate) fn run(args: &Args) -> Result<Answer, Error> {
    let reach = cluster::Reach::by(&args.kubectl);
    let networks = Networks { reach: &reach, patience: PATIENCE };
    match &args.verb {
        Verb::List => {
            let all = reach.list(&[&resource(), "--all-namespaces"])?;
            Ok(Answer { text: show::list(&all), value: all.into() })
        }
        Verb::Get { network } => networks.get(network).map(shown),
        Verb::Create(create) => networks.create(&create.network, &create.spec()?).map(shown),
        Verb::Update { network, mtu, exclude, peer, persistent } => {
            let lists = [("excludedRanges", exclude.as_slice()), ("peers", peer)];
            networks.update(network, *mtu, lists, *persistent).map(shown)
        }
        Verb::Delete { network } => networks.delete(network),
    }
}

fn shown(value: Value) -> Answer {
    Answer { text: show::one(&value), value }
}

/// The resource, as kubectl names it without doubt.
fn resource() -> String {
    format!("{PLURAL}.{GROUP}")
}

/// What the controller says of the object's present fields; `None` until it says something.
fn verdict(object: &Value) -> Option<Result<(), String>> {
    let generation = object["metadata"]["generation"].as_i64()?;
    if object["status"]["observedGeneration"].as_i64()? < generation {
        return None;
    }
    let conditions = object["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|one| one["type"] == condition::READY)?;
    match ready["status"].as_str()? {
        "True" => Some(Ok(())),
        _ => Some(Err(ready["message"].as_str().unwrap_or_default().to_owned())),
    }
}

struct Networks<'a> {
    reach: &'a cluster::Reach,
    patience: Duration,
}

impl Networks<'_> {
    fn get(&self, network: &NamespacedName) -> Result<Value, Error> {
        self.reach.get(&[&resource(), "--namespace", &network.namespace, &network.name])
    }

    fn create(&self, network: &NamespacedName, spec: &VirtualNetworkSpec) -> Result<Value, Error> {
        let metadata = json!({"namespace": network.namespace, "name": network.name});
        let object = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec});
        self.reach.kubectl_with(&["create", "-f", "-"], &object.to_string())?;
        self.judged(network).map_err(|error| {
            let kept = self.remove(network).err();
            let rest = match kept {
                None => "it is removed again".to_owned(),
                Some(kept) => format!("and it could not be removed again: {kept}"),
            };
            Error::Program(format!("virtual network {network}: {error}; {rest}"))
        })
    }

    fn update(
        &self,
        network: &NamespacedName,
        mtu: Option<u32>,
        lists: [(&str, &[String]); 2],
        persistent: Option<bool>,
    ) -> Result<Value, Error> {
        let mut spec = serde_json::Map::new();
        spec.extend(mtu.map(|mtu| ("mtu".to_owned(), json!(mtu))));
        spec.extend(
            persistent.map(|persistent| ("ipam".to_owned(), json!(persistent.then_some(Ipam::PERSISTENT)))),
        );
        for (field, list) in lists {
            match list {
                [] => {}
                [none] if none == "none" => drop(spec.insert(field.to_owned(), Value::Null)),
                values => drop(spec.insert(field.to_owned(), json!(values))),
            }
        }
        if spec.is_empty() {
            let what = "nothing to change: --mtu, --exclude, --peer or --persistent is needed; the other fields are fixed";
            return Err(Error::Usage(what.to_owned()));
        }
        let patch = json!({ "spec": spec }).to_string();
        let (kind, space) = (resource(), network.namespace.as_str());
        let patching =
            ["patch", &kind, "--namespace", space, &network.name, "--type=merge", "--patch", &patch];
        self.reach.kubectl(&patching)?;
        self.judged(network).map_err(|error| Error::Program(format!("virtual network {network}: {error}")))
    }

    fn delete(&self, network: &NamespacedName) -> Result<Answer, Error> {
        self.remove(network)?;
        let end = Instant::now() + self.patience.min(Duration::from_secs(5));
        loop {
            let left = self.reach.list(&[
                &resource(),
                "--namespace",
                &network.namespace,
                "--field-selector",
                &format!("metadata.name={}", network.name),
            ])?;
            let in_use = left.first().and_then(show::in_use);
            let is_over = Instant::now() >= end || in_use.is_some();
            match left.into_iter().next() {
                None => {
                    let text = format!("virtual network {network} is deleted\n");
                    return Ok(Answer { value: Value::Null, text });
                }
                Some(value) if is_over => {
                    let why = in_use.unwrap_or_else(|| "the controller has not let go of it yet".to_owned());
                    return Ok(Answer {
                        value,
                        text: format!("virtual network {network} is being deleted: {why}\n"),
                    });
                }
                Some(_) => std::thread::sleep(LOOK),
            }
        }
    }

    fn remove(&self, network: &NamespacedName) -> Result<(), Error> {
        let kind = resource();
        let words = ["delete", &kind, "--namespace", &network.namespace, &network.name, "--wait=false"];
        self.reach.kubectl(&words).map(drop)
    }

    /// The object, once the controller has taken its fields.
    fn judged(&self, network: &NamespacedName) -> Result<Value, String> {
        let end = Instant::now() + self.patience;
        loop {
            let object = self.get(network).map_err(|error| error.to_string())?;
            match verdict(&object) {
                Some(Ok(())) => return Ok(object),
                Some(Err(message)) => return Err(message),
                None if Instant::now() >= end => {
                    let waited = self.patience.as_secs();
                    return Err(format!(
                        "the controller has said nothing of it for {waited} s; does it run?"
                    ));
                }
                None => std::thread::sleep(LOOK),
            }
        }
    }
}

#[cfg(test)]
mod tests;
