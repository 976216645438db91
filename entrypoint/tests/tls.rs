//! OVN's databases with TLS: who may come in and write what, new certificates without a restart, and Raft. Needs root and
//! `cargo xtask setup`.
#![allow(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "starts the program that is tested")]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use support::{Network, SERVERS, Server};
use test_support::wait::wait_until;

const CENTRAL: &str = "10.99.0.1";

/// A certificate authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes `tls.key` and `tls.crt` into a directory, as one step each.
    fn issue(&self, name: &str, dir: &Path) {
        std::fs::create_dir_all(dir).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        for (file, text) in [("tls.key", key.serialize_pem()), ("tls.crt", certificate.pem())] {
            std::fs::write(dir.join("new"), text).unwrap();
            std::fs::rename(dir.join("new"), dir.join(file)).unwrap();
        }
    }
}

/// What the controller gives to servers and nodes.
struct Pki<'a> {
    central: Authority,
    nodes: Authority,
    dir: &'a Path,
}

impl<'a> Pki<'a> {
    fn new(dir: &'a Path) -> Self {
        let pki = Self { central: Authority::new("central"), nodes: Authority::new("nodes"), dir };
        let server = pki.server();
        pki.central.issue("servers", &server);
        let (central, nodes) = (pki.central.0.pem(), pki.nodes.0.pem());
        std::fs::write(server.join("clients.crt"), format!("{central}{nodes}")).unwrap();
        std::fs::write(server.join("ca.crt"), central).unwrap();
        for chassis in ["chassis-a", "chassis-b"] {
            pki.nodes.issue(chassis, &dir.join(chassis));
        }
        Authority::new("nobody").issue("chassis-a", &dir.join("foreign"));
        pki
    }

    fn server(&self) -> std::path::PathBuf {
        self.dir.join("tls")
    }

    /// Runs a tool on a database as somebody with the certificate in a directory; what it wrote, by whether it succeeded.
    fn ctl(&self, network: &Network, tool: &str, who: &str, args: &[&str]) -> Result<String, String> {
        let port = if tool == "ovn-nbctl" { 6641 } else { 6642 };
        let mut ctl = network.command(tool);
        ctl.args(["--timeout=5", &format!("--db=ssl:{CENTRAL}:{port}")]);
        ctl.arg(format!("--private-key={}", self.dir.join(who).join("tls.key").display()));
        ctl.arg(format!("--certificate={}", self.dir.join(who).join("tls.crt").display()));
        ctl.arg(format!("--ca-cert={}", self.server().join("ca.crt").display()));
        let out = ctl.args(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if out.status.success() { Ok(text(&out.stdout)) } else { Err(text(&out.stderr)) }
    }
}

#[test]
fn a_node_writes_its_own_rows_only_and_strangers_are_refused() {
    let network = Network::new(CENTRAL);
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let server = Server::start_with_tls(&network, dir.path(), CENTRAL, 0, &pki.server());
    server.wait_ready();
    let sb = |who: &str, args: &[&str]| pki.ctl(&network, "ovn-sbctl", who, args);
    let denied = |said: Result<String, String>| {
        let error = said.unwrap_err();
        assert!(error.contains("permission error"), "{error}");
    };
    // northd says what the role may do.
    wait_until(Duration::from_secs(10), "a node adds itself", || {
        sb("chassis-a", &["--may-exist", "chassis-add", "chassis-a", "geneve", "10.0.0.1"]).is_ok()
    });
    denied(sb("chassis-a", &["chassis-add", "chassis-b", "geneve", "10.0.0.2"]));
    sb("chassis-b", &["chassis-add", "chassis-b", "geneve", "10.0.0.2"]).unwrap();
    sb("chassis-b", &["set", "Chassis", "chassis-b", "external_ids:a=b"]).unwrap();
    denied(sb("chassis-a", &["set", "Chassis", "chassis-b", "external_ids:a=c"]));
    denied(sb("chassis-a", &["chassis-del", "chassis-b"]));
    denied(sb("chassis-a", &["create", "Datapath_Binding", "tunnel_key=9"]));

    // A node has nothing to do with the northbound database, and the servers' own authority is no node's.
    let nb = |who: &str| pki.ctl(&network, "ovn-nbctl", who, &["show"]);
    nb("tls").unwrap();
    for refused in [nb("chassis-a"), nb("foreign"), sb("foreign", &["show"])] {
        assert!(refused.unwrap_err().contains("database connection failed"));
    }
    for plain in [format!("--db=tcp:{CENTRAL}:6642"), format!("--db=tcp:{CENTRAL}:6641")] {
        let out = network.command("ovn-sbctl").args(["--timeout=3", &plain, "show"]).output().unwrap();
        assert!(!out.status.success());
    }
    // No certificate at all. With TLS 1.3 the server refuses it after the client's side is done (RFC 8446, 4.4.2.4): a client that
    // writes may meet the closed connection before it reads why.
    let script = format!("openssl s_client -connect {CENTRAL}:6642 -quiet 2>&1 </dev/null");
    let out = network.command("bash").args(["-c", &script]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(said.contains("certificate required"), "{said}");
}

#[test]
fn new_certificates_are_taken_while_a_session_goes_on() {
    let network = Network::new(CENTRAL);
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let server = Server::start_with_tls(&network, dir.path(), CENTRAL, 0, &pki.server());
    server.wait_ready();
    let shown = || {
        let script = format!(
            "openssl s_client -connect {CENTRAL}:6641 -cert {0}/tls.crt -key {0}/tls.key </dev/null 2>/dev/null | openssl x509 -noout \
             -subject",
            pki.server().display()
        );
        let out = network.command("bash").args(["-c", &script]).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    assert!(shown().contains("servers"));
    // A session that lasts: it prints a line of each change.
    let mut monitor = network.command("ovsdb-client");
    monitor.arg(format!("--private-key={}/tls.key", pki.server().display()));
    monitor.arg(format!("--certificate={}/tls.crt", pki.server().display()));
    monitor.arg(format!("--ca-cert={}/ca.crt", pki.server().display()));
    let address = format!("ssl:{CENTRAL}:6641");
    monitor.args(["--format=csv", "monitor", &address, "OVN_Northbound", "Logical_Switch", "name"]);
    let changes = dir.path().join("changes");
    let mut monitor = monitor.stdout(std::fs::File::create(&changes).unwrap()).spawn().unwrap();

    pki.central.issue("renewed", &pki.server());
    wait_until(Duration::from_secs(5), "the new certificate is shown", || shown().contains("renewed"));
    server.nbctl(&["ls-add", "after"]).unwrap();
    wait_until(Duration::from_secs(5), "the session of before goes on", || {
        std::fs::read_to_string(&changes).unwrap().contains("after")
    });
    assert_eq!(monitor.try_wait().unwrap(), None);
    monitor.kill().unwrap();
    monitor.wait().unwrap();
}

#[test]
fn northd_follows_the_leader_of_the_southbound_cluster() {
    let network = Network::new(SERVERS);
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(dir.path());
    let mut servers: Vec<_> = (0..3)
        .map(|index| Server::start_with_tls(&network, dir.path(), SERVERS, index, &pki.server()))
        .collect();
    servers.iter().for_each(Server::wait_ready);
    let carried = |servers: &[Server<'_>], name: &str| {
        servers.iter().find_map(|server| server.nbctl(&["--may-exist", "ls-add", name])).unwrap();
        wait_until(Duration::from_secs(20), name, || {
            let has = |server: &Server<'_>| {
                server.sbctl(&["--bare", "--columns=external_ids", "list", "Datapath_Binding"])
            };
            servers.iter().find_map(has).is_some_and(|list| list.contains(&format!("name={name}")))
        });
    };
    carried(&servers, "before");
    let leader = servers.iter().position(|server| server.leads("OVN_Southbound", "sb")).unwrap();
    let begin = Instant::now();
    servers.remove(leader).kill();
    carried(&servers, "after");
    println!("a change is carried over {:?} after the leader was killed", begin.elapsed());
}
