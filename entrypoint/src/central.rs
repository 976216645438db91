//! Role `ovn-central`: OVN's northbound and southbound database and northd.
//!
//! One server has standalone databases. Several are a Raft cluster: the first address of the list makes it, unless another one
//! answers already, and the others join.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::exec::{self, Argv, argv};
use crate::say;
use crate::servers::{DATABASES, Database, Servers, Transport};
use crate::settings::{CENTRAL, Settings, TLS};
use crate::supervise::{Group, Program, Stop};
use crate::tls::Files;

/// Milliseconds of silence until a server asks whether a client is still there.
const PROBE: u32 = 60_000;
/// How long a server may take to answer after its start: joining a cluster waits for the leader.
const START: Duration = Duration::from_secs(60);

/// Where things are.
#[derive(Debug, Clone, clap::Args)]
pub struct Places {
    /// Directory of the database files, which outlive the container.
    #[arg(long = "data-dir", default_value = "/var/lib/ovn")]
    pub data: PathBuf,
    /// Directory of sockets.
    #[arg(long = "run-dir", default_value = "/run/ovn")]
    pub run: PathBuf,
    /// Directory of OVN's schemas.
    #[arg(long = "schema-dir", default_value = "/usr/share/ovn")]
    pub schemas: PathBuf,
    /// Directory with `tls.key`, `tls.crt`, and the authorities that sign clients: `ca.crt` of everything but nodes, `clients.crt` of
    /// nodes too.
    #[arg(long = "tls-dir", default_value = "/etc/slipstream/tls")]
    pub tls: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            data: "/var/lib/ovn".into(),
            run: "/run/ovn".into(),
            schemas: "/usr/share/ovn".into(),
            tls: "/etc/slipstream/tls".into(),
        }
    }
}

impl Places {
    /// File of a database.
    #[must_use]
    pub fn file(&self, database: Database) -> PathBuf {
        self.data.join(format!("ovn{}_db.db", database.short()))
    }

    /// Socket of a database for clients of this container.
    #[must_use]
    pub fn socket(&self, database: Database) -> String {
        format!("unix:{}", self.run.join(format!("ovn{}_db.sock", database.short())).display())
    }

    /// Control socket of a database's server.
    #[must_use]
    pub fn control(&self, database: Database) -> PathBuf {
        self.run.join(format!("ovn{}_db.ctl", database.short()))
    }

    /// Control socket of northd.
    #[must_use]
    pub fn northd(&self) -> PathBuf {
        self.run.join("ovn-northd.ctl")
    }

    fn schema(&self, database: Database) -> PathBuf {
        self.schemas.join(format!("ovn-{}.ovsschema", database.short()))
    }

    /// The certificate, and whom the server of a database accepts: nodes have nothing to do with the northbound one.
    fn server_tls(&self, database: Database) -> Files {
        let clients = match database {
            Database::Nb => "ca.crt",
            Database::Sb => "clients.crt",
        };
        Files::of(&self.tls, clients)
    }

    /// The certificate, and who signs servers.
    fn client_tls(&self) -> Files {
        Files::of(&self.tls, "ca.crt")
    }

    fn server_settings(&self, database: Database) -> PathBuf {
        self.run.join(format!("ovn{}_db.json", database.short()))
    }
}

/// What the server of this container is among all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    servers: Servers,
    own: IpAddr,
    transport: Transport,
}

/// How a database file that is not there comes to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// On its own, without Raft.
    Standalone,
    /// The first of a cluster.
    Bootstrap,
    /// From a cluster that is there, or that the first server makes.
    Join,
}

impl Member {
    /// The server on the node with address `own`.
    ///
    /// # Errors
    /// The node is none of the servers.
    pub fn new(servers: Servers, own: IpAddr, transport: Transport) -> Result<Self> {
        if servers.addresses().contains(&own) {
            return Ok(Self { servers, own, transport });
        }
        let listed: Vec<_> = servers.addresses().iter().map(ToString::to_string).collect();
        Err(Error::Wrong {
            name: CENTRAL,
            value: listed.join(","),
            problem: format!("the node that this pod runs on, {own}, is not in it"),
            right: "the addresses of exactly the nodes with the label that the pods of ovn-central select",
        })
    }

    /// How a missing file is made; `peer_is_member` says whether another server has a cluster already.
    #[must_use]
    pub fn origin(&self, peer_is_member: bool) -> Origin {
        if !self.servers.is_cluster() {
            return Origin::Standalone;
        }
        // A first server that has lost its disk must not make a second cluster.
        let first = self.servers.addresses().first() == Some(&self.own);
        if first && !peer_is_member { Origin::Bootstrap } else { Origin::Join }
    }

    /// The command that makes a database file.
    #[must_use]
    pub fn create(&self, places: &Places, database: Database, origin: Origin) -> Argv {
        let file = places.file(database).display().to_string();
        let schema = places.schema(database).display().to_string();
        let raft = |ip| self.transport.endpoint(ip, database.raft_port());
        let own = raft(self.own);
        match origin {
            Origin::Standalone => argv(&["ovsdb-tool", "create", &file, &schema]),
            Origin::Bootstrap => argv(&["ovsdb-tool", "create-cluster", &file, &schema, &own]),
            Origin::Join => {
                let mut command = argv(&["ovsdb-tool", "join-cluster", &file, database.name(), &own]);
                command.extend(self.servers.others(self.own).map(raft));
                command
            }
        }
    }

    /// The settings of a database's server: file, and where it listens. Over the network the southbound one serves nodes only, each of
    /// which may write what northd lets its role write; northd itself comes by the socket.
    #[must_use]
    pub fn server_settings(&self, places: &Places, database: Database) -> serde_json::Value {
        let mut remote = json!({"inactivity-probe": PROBE});
        if (database, self.transport) == (Database::Sb, Transport::Tls) {
            remote["role"] = json!("ovn-controller");
        }
        let local = format!("p{}", places.socket(database));
        let network = self.passive(database.port());
        json!({
            "remotes": {local: {}, network: remote},
            "databases": {places.file(database).display().to_string(): {}},
        })
    }

    /// The three programs.
    #[must_use]
    pub fn programs(&self, places: &Places) -> [Program; 3] {
        let server = |name, database: Database| Program {
            name,
            argv: self.with_tls(
                places.server_tls(database),
                &[
                    "ovsdb-server",
                    &format!("--config-file={}", places.server_settings(database).display()),
                    &format!("--unixctl={}", places.control(database).display()),
                    "-vconsole:info",
                    "-vsyslog:off",
                ],
            ),
            stop: exit(&places.control(database)),
        };
        // Where the network is for nodes only, northd works beside the leader of the southbound database.
        let endpoints = |database| match (database, self.transport) {
            (Database::Sb, Transport::Tls) => places.socket(database),
            _ if self.servers.is_cluster() => self.servers.endpoints(database, self.transport),
            _ => places.socket(database),
        };
        [
            server("northbound database", Database::Nb),
            server("southbound database", Database::Sb),
            Program {
                name: "northd",
                argv: self.with_tls(
                    places.client_tls(),
                    &[
                        "ovn-northd",
                        &format!("--ovnnb-db={}", endpoints(Database::Nb)),
                        &format!("--ovnsb-db={}", endpoints(Database::Sb)),
                        &format!("--unixctl={}", places.northd().display()),
                        "-vconsole:info",
                        "-vsyslog:off",
                    ],
                ),
                stop: exit(&places.northd()),
            },
        ]
    }

    /// A command with the flags of a certificate, if there is one.
    fn with_tls(&self, files: Files, words: &[&str]) -> Argv {
        let mut command = argv(words);
        if self.transport == Transport::Tls {
            command.extend(files.flags());
        }
        command
    }

    /// Where a server listens: `pssl:PORT:IP` or `ptcp:PORT:IP`.
    fn passive(&self, port: u16) -> String {
        let method = self.transport.method();
        match self.own {
            IpAddr::V4(ip) => format!("p{method}:{port}:{ip}"),
            IpAddr::V6(ip) => format!("p{method}:{port}:[{ip}]"),
        }
    }

    /// Whether another server is a member of a cluster, with a majority or without. One that wants to join serves the database too.
    fn peer_is_member(&self, places: &Places, database: Database) -> bool {
        let select = json!(["_Server", {"op": "select", "table": "Database", "columns": ["cid"],
            "where": [["name", "==", database.name()]]}])
        .to_string();
        self.servers.others(self.own).any(|ip| {
            let peer = self.transport.endpoint(ip, database.port());
            let ask = ["ovsdb-client", "--timeout=3", "query", &peer, &select];
            exec::output(&self.with_tls(places.client_tls(), &ask)).is_ok_and(|said| has_cluster_id(&said))
        })
    }

    /// Whether this server should have made the cluster, waits to join one, and there is none: all have lost their files.
    fn waits_in_vain(&self, places: &Places, database: Database) -> bool {
        let file = places.file(database).display().to_string();
        let is_first = self.servers.is_cluster() && self.servers.addresses().first() == Some(&self.own);
        is_first
            && exec::output(&argv(&["ovsdb-tool", "db-is-clustered", &file])).is_ok()
            && exec::output(&argv(&["ovsdb-tool", "db-cid", &file])).is_err()
            && !self.peer_is_member(places, database)
    }

    /// Makes a database file, or checks the one that is there.
    fn prepare(&self, places: &Places, database: Database) -> Result<()> {
        let path = places.file(database);
        if path.exists() {
            self.check(&path)?;
            if !self.waits_in_vain(places, database) {
                return Ok(());
            }
            say(format_args!("{}: no cluster member found; recreating {}", database.name(), path.display()));
            fs::remove_file(&path).map_err(|source| Error::File {
                action: "remove",
                path: path.clone(),
                source,
            })?;
        }
        let origin = self.origin(self.servers.is_cluster() && self.peer_is_member(places, database));
        say(format_args!("{}: {origin:?} in {}", database.name(), path.display()));
        exec::output(&self.create(places, database, origin)).map(drop)
    }

    /// Fails for a file that was made for another number of servers.
    fn check(&self, path: &Path) -> Result<()> {
        let shown = path.display().to_string();
        let clustered = exec::output(&argv(&["ovsdb-tool", "db-is-clustered", &shown])).is_ok();
        let problem = match (clustered, self.servers.is_cluster()) {
            (true, false) => format!(
                "belongs to a Raft cluster, and {CENTRAL} has one address; list all servers, or make it standalone: \
                 ovsdb-tool cluster-to-standalone"
            ),
            (false, true) => format!(
                "is standalone, and {CENTRAL} has several addresses; move it away on every node: the controller writes everything \
                 again from Kubernetes"
            ),
            (true, true) => {
                let own = exec::output(&argv(&["ovsdb-tool", "db-local-address", &shown]))?;
                let wanted = self.transport.method();
                if own.starts_with(wanted) {
                    return Ok(());
                }
                format!(
                    "is of a server that the others reach at {}, and {TLS} asks for {wanted}: set it as it was, or move the file away \
                     on every node: the controller writes everything again from Kubernetes",
                    own.trim()
                )
            }
            (false, false) => return Ok(()),
        };
        Err(Error::Database { path: path.to_owned(), problem })
    }
}

/// Ends a program by its control socket. A server of a database hands its cluster's leadership over before it goes, so that others write
/// after 20 to 40 ms; after SIGTERM they wait for an election, 1 to 1.5 s.
fn exit(control: &Path) -> Stop {
    Stop::Command(argv(&["ovs-appctl", "--timeout=3", "-t", &control.display().to_string(), "exit"]))
}

/// Whether a server's answer names the cluster of its database. One that wants to join has an id of zeroes.
fn has_cluster_id(answer: &str) -> bool {
    let results: serde_json::Value = serde_json::from_str(answer).unwrap_or_default();
    let id = results.pointer("/0/rows/0/cid/1").and_then(|id| id.as_str()?.parse::<Uuid>().ok());
    id.is_some_and(|id| !id.is_nil())
}

/// Whether a schema version is newer than another: `MAJOR.MINOR.PATCH`.
fn is_newer(one: &str, than: &str) -> bool {
    let numbers = |text: &str| text.trim().split('.').map(|n| n.parse().unwrap_or(0)).collect::<Vec<u32>>();
    numbers(one) > numbers(than)
}

/// Gives the database of a running server the schema of this image, if that is newer. A roll-back leaves the newer one, which older
/// programs read.
fn convert(places: &Places, database: Database) -> Result<()> {
    let (socket, name) = (places.socket(database), database.name());
    let schema = places.schema(database).display().to_string();
    let has = exec::output(&argv(&["ovsdb-client", "--timeout=30", "get-schema-version", &socket, name]))?;
    let wanted = exec::output(&argv(&["ovsdb-tool", "schema-version", &schema]))?;
    if is_newer(&wanted, &has) {
        say(format_args!("{name}: schema {} becomes {}", has.trim(), wanted.trim()));
        exec::output(&argv(&["ovsdb-client", "--timeout=60", "convert", &socket, &schema]))?;
    }
    Ok(())
}

/// Runs the role.
///
/// # Errors
/// The environment is wrong, or a database cannot be prepared.
pub fn run(settings: &Settings, places: &Places) -> Result<ExitCode> {
    let member = Member::new(settings.central()?, settings.host_ip()?, settings.transport()?)?;
    for dir in [&places.data, &places.run] {
        fs::create_dir_all(dir).map_err(|source| Error::File {
            action: "create",
            path: dir.clone(),
            source,
        })?;
    }
    let mut group = Group::new()?;
    if member.transport == Transport::Tls {
        places
            .server_tls(Database::Sb)
            .wait(&mut group, "the Secret slipstream-ovn-central, which the controller makes")?;
    }
    for database in DATABASES {
        member.prepare(places, database)?;
        let path = places.server_settings(database);
        let text = member.server_settings(places, database).to_string();
        fs::write(&path, text).map_err(|source| Error::File { action: "write", path, source })?;
    }
    let [nb, sb, northd] = member.programs(places);
    group.start(&nb)?;
    group.start(&sb)?;
    for database in DATABASES {
        let connected = argv(&[
            "ovsdb-client",
            "--timeout=5",
            "wait",
            &places.socket(database),
            database.name(),
            "connected",
        ]);
        exec::retry(START, || {
            group.check()?;
            exec::output(&connected)
        })?;
        convert(places, database)?;
    }
    let control = places.control(Database::Sb).display().to_string();
    let status = argv(&["ovs-appctl", "--timeout=2", "-t", &control, "cluster/status", Database::Sb.name()]);
    let leads =
        || exec::output(&status).is_ok_and(|said| said.lines().any(|line| line.trim() == "Role: leader"));
    let mut led = leads();
    group.start(&northd)?;
    if (member.transport, member.servers.is_cluster()) != (Transport::Tls, true) {
        return Ok(group.run());
    }
    // Where it is not beside the leader northd tries again every 8 s. Beside a new one it must not be that late.
    Ok(group.run_and_look(|| {
        let before = std::mem::replace(&mut led, leads());
        (led && !before).then_some(northd.name)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::parse;

    fn member(servers: &str, own: &str) -> Member {
        Member::new(parse(servers).unwrap(), own.parse().unwrap(), Transport::Tls).unwrap()
    }

    const THREE: &str = "10.0.0.1,10.0.0.2,10.0.0.3";

    #[test]
    fn a_node_that_is_not_in_the_list_is_told_so() {
        let error = Member::new(parse(THREE).unwrap(), "10.0.0.9".parse().unwrap(), Transport::Tls);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("10.0.0.9") && error.contains(CENTRAL), "{error}");
    }

    #[test]
    fn the_first_makes_the_cluster_once_and_the_others_join() {
        assert_eq!(member("10.0.0.1", "10.0.0.1").origin(false), Origin::Standalone);
        assert_eq!(member(THREE, "10.0.0.1").origin(false), Origin::Bootstrap);
        assert_eq!(member(THREE, "10.0.0.1").origin(true), Origin::Join, "its disk was lost");
        assert_eq!(member(THREE, "10.0.0.2").origin(false), Origin::Join);
    }

    #[test]
    fn databases_are_made_with_raft_addresses() {
        let places = Places::default();
        let second = member(THREE, "10.0.0.2");
        assert_eq!(
            second.create(&places, Database::Nb, Origin::Join).join(" "),
            "ovsdb-tool join-cluster /var/lib/ovn/ovnnb_db.db OVN_Northbound ssl:10.0.0.2:6643 ssl:10.0.0.1:6643 ssl:10.0.0.3:6643"
        );
        assert_eq!(
            second.create(&places, Database::Sb, Origin::Bootstrap).join(" "),
            "ovsdb-tool create-cluster /var/lib/ovn/ovnsb_db.db /usr/share/ovn/ovn-sb.ovsschema ssl:10.0.0.2:6644"
        );
    }

    #[test]
    fn a_server_listens_on_the_nodes_own_address_only() {
        let settings = member(THREE, "10.0.0.2").server_settings(&Places::default(), Database::Sb);
        let remotes: Vec<_> = settings["remotes"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(remotes, ["pssl:6642:10.0.0.2", "punix:/run/ovn/ovnsb_db.sock"]);
        assert_eq!(settings["remotes"]["pssl:6642:10.0.0.2"]["role"], "ovn-controller");
        let six = member("fd00::1", "fd00::1").server_settings(&Places::default(), Database::Nb);
        assert!(six["remotes"].as_object().unwrap().contains_key("pssl:6641:[fd00::1]"));
        let plain = Member { transport: Transport::Plain, ..member("10.0.0.1", "10.0.0.1") };
        let settings = plain.server_settings(&Places::default(), Database::Sb).to_string();
        assert!(settings.contains("ptcp:6642:10.0.0.1") && !settings.contains("role"), "{settings}");
    }

    #[test]
    fn northd_of_a_cluster_follows_the_leader() {
        let northd = |servers| member(servers, "10.0.0.1").programs(&Places::default())[2].argv.join(" ");
        assert!(northd("10.0.0.1").contains("--ovnnb-db=unix:/run/ovn/ovnnb_db.sock"));
        assert!(northd(THREE).contains("--ovnnb-db=ssl:10.0.0.1:6641,ssl:10.0.0.2:6641,ssl:10.0.0.3:6641"));
        assert!(
            northd(THREE).contains("--ovnsb-db=unix:/run/ovn/ovnsb_db.sock"),
            "nodes only are let in by the network"
        );
    }

    #[test]
    fn the_northbound_server_accepts_no_nodes() {
        let [nb, sb, northd] = member(THREE, "10.0.0.1").programs(&Places::default());
        assert!(nb.argv.contains(&"--ca-cert=/etc/slipstream/tls/ca.crt".to_owned()));
        assert!(sb.argv.contains(&"--ca-cert=/etc/slipstream/tls/clients.crt".to_owned()));
        assert!(northd.argv.contains(&"--ca-cert=/etc/slipstream/tls/ca.crt".to_owned()));
    }

    #[test]
    fn a_server_that_wants_to_join_is_no_member() {
        let with = |id: &str| format!("[{{\"rows\":[{{\"cid\":[\"uuid\",\"{id}\"]}}]}}]");
        assert!(has_cluster_id(&with("0f5a541b-ef2c-4557-9737-d9a2c5ff19cd")));
        assert!(!has_cluster_id(&with("00000000-0000-0000-0000-000000000000")));
        assert!(!has_cluster_id("[{\"rows\":[{\"cid\":[\"set\",[]]}]}]"));
        assert!(!has_cluster_id("[{\"rows\":[]}]") && !has_cluster_id(""));
    }

    #[test]
    fn only_a_newer_schema_replaces_one() {
        assert!(is_newer("7.10.0\n", "7.9.3"));
        assert!(!is_newer("7.9.3", "7.10.0"));
        assert!(!is_newer("7.10.0", "7.10.0"));
    }
}
