//! The complete northbound database in terms of names, as one number a row, to compare before and after.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ovsdb_client::nb::{
    Acl, AddressSet, Bfd, ChassisTemplateVar, Copp, GatewayChassis, LoadBalancer, LoadBalancerGroup,
    LogicalRouter, LogicalRouterPolicy, LogicalRouterPort, LogicalRouterStaticRoute, LogicalSwitch,
    LogicalSwitchPort, Meter, Nat, PortGroup, StaticMacBinding,
};
use ovsdb_client::{Atom, Client, Datum, Endpoint, MonitorSpec, Options, Row, Snapshot, Uuid};

/// Columns that change by themselves.
const VOLATILE: &[&str] = &["up", "status", "dynamic_addresses"];

macro_rules! each_table {
    ($do:ident) => {
        $do! {
            Acl, AddressSet, Bfd, ChassisTemplateVar, Copp, GatewayChassis, LoadBalancer, LoadBalancerGroup,
            LogicalRouter, LogicalRouterPolicy, LogicalRouterPort, LogicalRouterStaticRoute, LogicalSwitch,
            LogicalSwitchPort, Meter, Nat, PortGroup, StaticMacBinding
        }
    };
}

/// How often each row is there: by table and a hash of all that it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Digest(BTreeMap<(&'static str, u64), (usize, String)>);

impl Digest {
    /// Reads everything.
    pub(super) async fn take(socket: &Path) -> Result<Self> {
        let client = Client::new(Options {
            endpoints: Endpoint::parse_list(&format!("unix:{}", socket.display()))?,
            database: ovsdb_client::nb::DATABASE.to_owned(),
            probe_interval: Duration::ZERO,
            ..Options::default()
        });
        client.connected(Duration::from_secs(30)).await.context("northbound database")?;
        let mut spec = MonitorSpec::new();
        macro_rules! monitor {
            ($($row:ident),*) => { $(spec = spec.table::<$row>(&[]);)* };
        }
        each_table!(monitor);
        let replica = client.monitor(spec).await.context("monitor of the northbound database")?;
        Ok(Self::of(&replica.read()))
    }

    fn of(snapshot: &Snapshot<'_>) -> Self {
        let mut names = HashMap::new();
        macro_rules! name {
            ($($row:ident),*) => { $(collect::<$row>(snapshot, &mut names);)* };
        }
        each_table!(name);
        let mut digest = Self::default();
        macro_rules! add {
            ($($row:ident),*) => { $(digest.add::<$row>(snapshot, &names);)* };
        }
        each_table!(add);
        digest
    }

    fn add<R: Row>(&mut self, snapshot: &Snapshot<'_>, names: &HashMap<Uuid, u64>) {
        for row in snapshot.table::<R>().iter() {
            let hash = hash_of(row.as_ref(), |atom| match atom {
                Atom::Uuid(uuid) => names.get(uuid).copied().unwrap_or_default(),
                other => hashed(other),
            });
            let entry = self.0.entry((R::TABLE, hash)).or_insert_with(|| (0, shown(row.as_ref())));
            entry.0 += 1;
        }
    }

    /// Rows of all tables.
    pub(super) fn rows(&self) -> usize {
        self.0.values().map(|(count, _)| count).sum()
    }

    /// Fails with the differences.
    pub(super) fn equals(&self, after: &Self) -> Result<()> {
        let lacks = |one: &Self, other: &Self, what: &str| -> Vec<String> {
            let count = |key| other.0.get(key).map_or(0, |(count, _)| *count);
            let missing = one.0.iter().filter(|(key, (has, _))| *has > count(key));
            missing.map(|((table, _), (_, row))| format!("{what}: {table} {row}")).collect()
        };
        let mut found = lacks(self, after, "gone");
        found.extend(lacks(after, self, "new"));
        let some: Vec<_> = found.iter().take(5).cloned().collect();
        ensure!(found.is_empty(), "{} rows differ: {}", found.len(), some.join("; "));
        Ok(())
    }
}

/// A row's name: a hash of what it says, without references.
fn collect<R: Row>(snapshot: &Snapshot<'_>, names: &mut HashMap<Uuid, u64>) {
    for row in snapshot.table::<R>().iter() {
        let hash = hash_of(row.as_ref(), |atom| match atom {
            Atom::Uuid(_) => 0,
            other => hashed(other),
        });
        names.insert(row.uuid(), hash);
    }
}

fn hashed(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A hash of all columns; sets by their sorted members.
fn hash_of<R: Row>(row: &R, atom: impl Fn(&Atom) -> u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    for column in R::COLUMNS.iter().filter(|column| !VOLATILE.contains(column)) {
        let Some(datum) = row.get(column) else { continue };
        column.hash(&mut hasher);
        let mut members: Vec<(u64, u64)> = match &datum {
            Datum::Set(set) => set.iter().map(|member| (atom(member), 0)).collect(),
            Datum::Map(map) => map.iter().map(|(key, value)| (atom(key), atom(value))).collect(),
        };
        members.sort_unstable();
        members.hash(&mut hasher);
    }
    hasher.finish()
}

/// What tells a person which row it is.
fn shown<R: Row>(row: &R) -> String {
    let columns = ["name", "external_ids", "match", "ip_prefix", "logical_ip"];
    let parts = columns.iter().filter_map(|column| row.get(column)).map(|datum| format!("{datum:?}"));
    let text: String = parts.collect::<Vec<_>>().join(" ");
    text.chars().take(300).collect()
}
