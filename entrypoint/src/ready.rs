//! Whether a role is ready, as its probe asks.

use crate::central::Places;
use crate::error::{Error, Result};
use crate::exec::{self, argv};
use crate::ovs::Ovs;
use crate::servers::{DATABASES, Database};

/// Whether both databases are served, each member of its cluster with a leader, and northd runs.
///
/// # Errors
/// The first thing that is not so.
pub fn central(places: &Places) -> Result<()> {
    for database in DATABASES {
        let ask = |words: &[&str]| {
            let control = places.control(database).display().to_string();
            exec::output(&argv(&[&["ovs-appctl", "--timeout=5", "-t", &control], words].concat()))
        };
        // A standalone database has no status of a cluster.
        match ask(&["cluster/status", database.name()]) {
            Ok(status) => member(&status).map_err(|why| not(database, why))?,
            Err(_) => served(&ask(&["ovsdb-server/list-dbs"])?, database)?,
        }
    }
    exec::output(&argv(&[
        "ovs-appctl",
        "--timeout=5",
        "-t",
        &places.northd().display().to_string(),
        "status",
    ]))
    .map(drop)
}

/// Whether ovn-controller has the southbound database.
///
/// # Errors
/// It has not, or does not answer.
pub fn ovn_controller() -> Result<()> {
    let said =
        exec::output(&argv(&["ovn-appctl", "--timeout=5", "-t", "ovn-controller", "connection-status"]))?;
    match said.trim() {
        "connected" => Ok(()),
        other => Err(Error::NotReady(format!("ovn-controller and the southbound database: {other}"))),
    }
}

/// Whether the switch of this pod answers. While the pod waits for the end of another Open vSwitch, it is that one which would.
///
/// # Errors
/// It does not, or it has not been started.
pub fn ovs(ovs: &Ovs) -> Result<()> {
    if !ovs.started.exists() {
        return Err(Error::NotReady("Open vSwitch of this pod has not started; its log says why".into()));
    }
    exec::output(&argv(&["ovs-appctl", "--timeout=5", "-t", "ovs-vswitchd", "version"])).map(drop)
}

/// Whether the switch of this pod answers, once it has been started.
///
/// # Errors
/// It does not any more.
pub fn ovs_is_alive(ovs: &Ovs) -> Result<()> {
    if ovs.started.exists() { self::ovs(ovs) } else { Ok(()) }
}

fn not(database: Database, why: &str) -> Error {
    Error::NotReady(format!("{}: {why}", database.name()))
}

fn served(list: &str, database: Database) -> Result<()> {
    let there = list.lines().any(|line| line.trim() == database.name());
    if there { Ok(()) } else { Err(not(database, "not served")) }
}

/// Judges what `cluster/status` prints.
fn member(status: &str) -> std::result::Result<(), &'static str> {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    if field("Status") != Some("cluster member") {
        return Err("not yet a member of the cluster");
    }
    match field("Leader") {
        None | Some("" | "unknown") => Err("the cluster has no leader"),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "f2b5\nName: OVN_Northbound\nCluster ID: 55f6\nStatus: cluster member\nRole: follower\nLeader: 91aa\n";

    #[test]
    fn a_member_of_a_cluster_with_a_leader_is_ready() {
        member(STATUS).unwrap();
        assert!(member(&STATUS.replace("cluster member", "joining cluster")).is_err());
        assert!(member(&STATUS.replace("91aa", "unknown")).is_err());
        assert!(member("").is_err());
    }

    #[test]
    fn an_open_vswitch_that_waits_is_alive_and_not_ready() {
        let waiting = Ovs { started: "/nonexistent/ovs-started".into(), ..Ovs::default() };
        ovs_is_alive(&waiting).unwrap();
        assert!(ovs(&waiting).unwrap_err().to_string().contains("not ready"));
    }

    #[test]
    fn a_standalone_database_is_ready_when_it_is_served() {
        served("OVN_Southbound\n_Server\n", Database::Sb).unwrap();
        assert!(served("_Server\n", Database::Sb).unwrap_err().to_string().contains("OVN_Southbound"));
    }
}
