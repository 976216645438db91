//! The northbound database: when it says what the model says, when every node has carried it out, and ACLs written directly.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ovsdb_client::nb::{self, AddressSet, LogicalSwitchPort, NbGlobal, PortGroup};
use ovsdb_client::{
    Client, Condition, Datum, Endpoint, Function, MonitorSpec, Mutator, Options, Replica, Row, Snapshot,
    Transaction, Uuid,
};
use tokio::time::{Instant, timeout};

use super::model::{Acl, Direction, Model, Policy, Protocol};
use super::nb_services;
use testbed::cluster::config::{CENTRAL_IP, NB_PORT};

/// Namespace of the pods and policies.
pub(super) const NAMESPACE: &str = "laws";
/// The port group of the ACLs that are written directly.
const GROUP: &str = "laws_direct";
/// After so long OVN is asked again: shortly after an ovn-controller was started, a number stayed without an answer for a minute (OVN 25.03).
const ASK_AGAIN: Duration = Duration::from_secs(15);
/// The pods' addresses by their numbers.
pub(super) type Addresses = Vec<String>;

/// A connection to the database.
pub(super) struct Nb {
    client: Client,
    replica: Replica,
}

/// The address block that tells one version of a policy from all others (198.18.0.0/15 is for tests: RFC 2544).
pub(super) fn nonce(policy: &Policy) -> String {
    let [high, low] = policy.nonce.to_be_bytes();
    format!("198.18.{high}.{low}/32")
}

/// The name of a policy.
pub(super) fn policy_name(id: u16) -> String {
    format!("p{id}")
}

fn port_name(pod: &str) -> String {
    format!("{NAMESPACE}_{pod}")
}

impl Nb {
    /// Connects, and makes the port group.
    pub(super) async fn new() -> Result<Self> {
        let client = Client::new(Options {
            endpoints: Endpoint::parse_list(&format!("tcp:{CENTRAL_IP}:{NB_PORT}"))?,
            database: nb::DATABASE.to_owned(),
            ..Options::default()
        });
        client.connected(Duration::from_secs(10)).await?;
        let spec = MonitorSpec::new()
            .table::<NbGlobal>(&["nb_cfg", "hv_cfg"])
            .table::<nb::Acl>(&["match", "external_ids"])
            .table::<PortGroup>(&[])
            .table::<AddressSet>(&[])
            .table::<nb::LoadBalancer>(&["name", "protocol", "vips", "options", "external_ids"])
            .table::<LogicalSwitchPort>(&["name", "addresses", "external_ids"]);
        let replica = client.monitor(spec).await?;
        let mut txn = Transaction::new();
        txn.insert(PortGroup::TABLE, [("name", Datum::from(GROUP))]);
        client.transact(txn).await.context("the port group for ACLs")?;
        Ok(Self { client, replica })
    }

    /// Waits until the database says what the model says, and every node's OVS does it.
    pub(super) async fn in_force(&self, model: &Model, addresses: &Addresses, limit: Duration) -> Result<()> {
        let agree = |rows: &Snapshot<'_>| {
            agrees(rows, model, addresses)?;
            nb_services::agree(rows, model, addresses)
        };
        self.until(limit, "the database follows the policies and services", agree).await?;
        self.sync(limit).await
    }

    /// Waits until every node has carried out what is in the database now, as `ovn-nbctl --wait=hv sync` does.
    pub(super) async fn sync(&self, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.sync_once(left.min(ASK_AGAIN)).await {
                Err(_) if left > ASK_AGAIN => {}
                done => return done,
            }
        }
    }

    async fn sync_once(&self, limit: Duration) -> Result<()> {
        let mut txn = Transaction::new();
        txn.mutate(NbGlobal::TABLE, Vec::new(), [("nb_cfg", Mutator::Add, Datum::from(1))]);
        self.client.transact(txn).await?;
        let read = |rows: &Snapshot<'_>| {
            rows.table::<NbGlobal>().iter().next().map(|row| (row.nb_cfg, row.hv_cfg)).context("no NB_Global")
        };
        let (wanted, _) = read(&self.replica.read())?;
        self.until(limit, "every node carries it out", |rows| {
            let (_, done) = read(rows)?;
            ensure!(done >= wanted, "they are at {done} of {wanted}");
            Ok(())
        })
        .await
    }

    async fn until(
        &self,
        limit: Duration,
        what: &str,
        check: impl Fn(&Snapshot<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut changes = self.replica.changes();
        let work = async {
            while check(&self.replica.read()).is_err() {
                changes.next().await.context("the database has gone")?;
            }
            anyhow::Ok(())
        };
        match timeout(limit, work).await {
            Ok(done) => done,
            Err(_) => match check(&self.replica.read()) {
                Ok(()) => Ok(()),
                Err(error) => Err(error.context(format!("gave up after {limit:?}: {what}"))),
            },
        }
    }

    /// Puts all pods into the port group; those that were made again have new rows.
    pub(super) async fn join(&self, model: &Model) -> Result<()> {
        let ports: Vec<Uuid> = {
            let rows = self.replica.read();
            let by_name = ports(&rows);
            let uuid = |pod: &str| by_name.get(&port_name(pod)).map(|row| row.uuid);
            model.pods.iter().filter_map(|pod| uuid(&pod.name)).collect()
        };
        let mut txn = Transaction::new();
        let group = vec![Condition::equal("name", GROUP)];
        txn.update(PortGroup::TABLE, group, [("ports", Datum::set(ports))]);
        self.client.transact(txn).await?;
        Ok(())
    }

    /// Writes an ACL of tier 0, which comes before those of policies.
    pub(super) async fn add_acl(&self, id: u16, acl: &Acl, addresses: &Addresses) -> Result<()> {
        let address = |pod: usize| addresses.get(pod).context("no such pod");
        let protocol = match acl.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
        };
        let (direction, port) = match acl.direction {
            Direction::Ingress => ("to-lport", "outport"),
            Direction::Egress => ("from-lport", "inport"),
        };
        let matching = format!(
            "{port} == @{GROUP} && ip4.src == {} && ip4.dst == {} && {protocol}",
            address(acl.from)?,
            address(acl.to)?
        );
        // In the same stage as the policies' own, so that the tiers are compared.
        let options = match acl.direction {
            Direction::Ingress => Datum::Map(Vec::new()),
            Direction::Egress => Datum::map([("apply-after-lb", "true")]),
        };
        let mut txn = Transaction::new();
        let row = txn.insert(
            nb::Acl::TABLE,
            [
                ("action", Datum::from(if acl.allow { "allow-related" } else { "drop" })),
                ("direction", direction.into()),
                ("match", matching.into()),
                ("options", options),
                ("priority", i64::from(acl.priority).into()),
                ("tier", 0.into()),
                ("external_ids", Datum::map([("laws", id.to_string().as_str())])),
            ],
        );
        let group = vec![Condition::equal("name", GROUP)];
        txn.mutate(PortGroup::TABLE, group, [("acls", Mutator::Insert, row.into())]);
        self.client.transact(txn).await?;
        Ok(())
    }

    /// Removes it.
    pub(super) async fn remove_acl(&self, id: u16) -> Result<()> {
        let uuid = {
            let rows = self.replica.read();
            let text = id.to_string();
            let found =
                rows.table::<nb::Acl>().iter().find(|acl| acl.external_ids.get("laws") == Some(&text));
            found.with_context(|| format!("ACL {id} is not in the database"))?.uuid
        };
        let mut txn = Transaction::new();
        let group = vec![Condition::equal("name", GROUP)];
        txn.mutate(PortGroup::TABLE, group, [("acls", Mutator::Delete, Datum::from(uuid))]);
        self.client.transact(txn).await?;
        Ok(())
    }

    /// Sees to it that the port of a pod that is gone is gone too: the controller removes those that it made.
    pub(super) async fn remove_port(&self, pod: &str, limit: Duration) -> Result<()> {
        let name = port_name(pod);
        let found = ports(&self.replica.read())
            .get(&name)
            .map(|row| (row.uuid, row.external_ids.get("pod").is_some_and(|pod| pod == "true")));
        let Some((uuid, managed)) = found else { return Ok(()) };
        if managed {
            let gone = |rows: &Snapshot<'_>| {
                ensure!(!ports(rows).contains_key(&name), "port {name} is still there");
                Ok(())
            };
            return self.until(limit, "the controller removes the port of a pod", gone).await;
        }
        let mut txn = Transaction::new();
        let holder = Condition::new("ports", Function::Includes, Datum::from(uuid));
        txn.mutate(nb::LogicalSwitch::TABLE, vec![holder], [("ports", Mutator::Delete, Datum::from(uuid))]);
        self.client.transact(txn).await?;
        Ok(())
    }

    /// Makes the port of a pod that the controller does not manage, on the switch of a node.
    pub(super) async fn add_port(&self, pod: &str, switch: &str, mac: &str, ip: &str) -> Result<()> {
        let addresses = format!("{mac} {ip}");
        let mut txn = Transaction::new();
        let row = txn.insert(
            LogicalSwitchPort::TABLE,
            [
                ("name", Datum::from(port_name(pod))),
                ("addresses", addresses.as_str().into()),
                ("port_security", addresses.as_str().into()),
            ],
        );
        let switch = vec![Condition::equal("name", switch)];
        txn.mutate(nb::LogicalSwitch::TABLE, switch, [("ports", Mutator::Insert, row.into())]);
        self.client.transact(txn).await?;
        Ok(())
    }
}

type Ports<'a> = BTreeMap<String, &'a LogicalSwitchPort>;

fn ports<'a>(rows: &'a Snapshot<'_>) -> Ports<'a> {
    rows.table::<LogicalSwitchPort>().iter().map(|row| (row.name.clone(), row.as_ref())).collect()
}

/// Whether the rows that the controller writes for policies say what the model says.
fn agrees(rows: &Snapshot<'_>, model: &Model, addresses: &Addresses) -> Result<()> {
    let by_name = ports(rows);
    let port = |pod: usize| -> Result<Uuid> {
        let name = port_name(&model.pods[pod].name);
        let row = by_name.get(&name).with_context(|| format!("there is no port {name}"))?;
        let ip = addresses.get(pod).context("no address")?;
        let has = row.addresses.iter().any(|a| a.split(' ').any(|word| word == ip));
        ensure!(has, "port {name} does not have {ip}");
        Ok(row.uuid)
    };
    let all = |pods: BTreeSet<usize>| pods.into_iter().map(port).collect::<Result<BTreeSet<Uuid>>>();
    all((0..model.pods.len()).collect())?;
    let mut found = BTreeSet::new();
    for group in rows.table::<PortGroup>().iter() {
        let id = |key: &str| group.external_ids.get(&format!("k8s.ovn.org/{key}")).map(String::as_str);
        let (kind, name) = (id("owner-type"), id("name").unwrap_or_default());
        let members = group.ports.iter().copied().collect::<BTreeSet<_>>();
        if kind == Some("NetpolNamespace") && name == NAMESPACE {
            let ingress = group.external_ids.get("direction").is_some_and(|d| d == "Ingress");
            let direction = if ingress { Direction::Ingress } else { Direction::Egress };
            ensure!(members == all(model.isolated(direction))?, "isolated by {direction:?}: {members:?}");
            found.insert(format!("{direction:?}"));
        } else if let (Some("NetworkPolicy"), Some(policy)) =
            (kind, name.strip_prefix(NAMESPACE).and_then(|rest| rest.strip_prefix(':')))
        {
            let wanted = model.policies.iter().find(|(id, _)| policy_name(**id) == policy);
            let (_, wanted) = wanted.with_context(|| format!("policy {policy} is still there"))?;
            ensure!(members == all(model.of_role(wanted.target))?, "members of {policy}: {members:?}");
            let acls = group.acls.iter().filter_map(|uuid| rows.table::<nb::Acl>().get(uuid));
            let version = nonce(wanted);
            ensure!(acls.clone().any(|acl| acl.r#match.contains(&version)), "{policy} is an older one");
            found.insert(policy.to_owned());
        }
    }
    for (id, policy) in &model.policies {
        ensure!(found.contains(&policy_name(*id)), "policy {id} is not there");
        let direction = format!("{:?}", policy.direction);
        let none = model.isolated(policy.direction).is_empty();
        ensure!(none || found.contains(&direction), "nothing isolates by {direction}");
    }
    for set in rows.table::<AddressSet>().iter() {
        let name = set.external_ids.get("k8s.ovn.org/name").map(String::as_str).unwrap_or_default();
        let role = name.strip_prefix(&format!("{NAMESPACE}_LS{{ML:{{role: r")).and_then(|r| r.chars().next());
        let Some(role) = role.and_then(|r| r.to_digit(10)).and_then(|r| u8::try_from(r).ok()) else {
            continue;
        };
        let wanted: BTreeSet<&String> =
            model.of_role(role).into_iter().filter_map(|pod| addresses.get(pod)).collect();
        if set.addresses.iter().collect::<BTreeSet<_>>() != wanted {
            bail!("the pods of role {role}: {:?}", set.addresses);
        }
    }
    Ok(())
}
