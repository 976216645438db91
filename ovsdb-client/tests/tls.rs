//! TLS against a real ovsdb-server, with a private certificate authority.

#![allow(clippy::unwrap_used, reason = "helpers of tests are test code")]

mod support;

use std::path::Path;
use std::time::Duration;

use ovsdb_client::nb::LogicalSwitch;
use ovsdb_client::{Client, Datum, Endpoint, MonitorSpec, Options, Row, Status, TlsOptions, Transaction};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use support::{PATIENCE, Server, options, soon};

const NB: &str = "OVN_Northbound";

/// A certificate authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes `NAME-cert.pem` and `NAME-key.pem`.
    fn issue(&self, dir: &Path, name: &str) {
        let key = KeyPair::generate().unwrap();
        // A name that no endpoint of these tests has: Open vSwitch checks the chain only.
        let mut params = CertificateParams::new(vec!["elsewhere.example".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        std::fs::write(dir.join(format!("{name}-cert.pem")), certificate.pem()).unwrap();
        std::fs::write(dir.join(format!("{name}-key.pem")), key.serialize_pem()).unwrap();
    }

    fn write(&self, dir: &Path, name: &str) {
        std::fs::write(dir.join(name), self.0.pem()).unwrap();
    }
}

/// A server that takes only clients of this authority.
fn server(authority: &Authority) -> Server {
    Server::start_with("ovn-nb.ovsschema", |dir| {
        authority.write(dir, "ca.pem");
        authority.issue(dir, "server");
        authority.issue(dir, "client");
        [
            "--private-key=server-key.pem",
            "--certificate=server-cert.pem",
            "--ca-cert=ca.pem",
            "--remote=pssl:0:127.0.0.1",
        ]
        .map(str::to_owned)
        .to_vec()
    })
}

fn tls(dir: &Path) -> TlsOptions {
    TlsOptions { ca: dir.join("ca.pem"), cert: dir.join("client-cert.pem"), key: dir.join("client-key.pem") }
}

fn client(endpoint: Endpoint, tls: Option<TlsOptions>) -> Client {
    Client::new(Options { tls, ..options(vec![endpoint], NB) })
}

async fn failure(client: &Client) -> String {
    client
        .connected(Duration::from_millis(700))
        .await
        .expect_err("the connection must not come up")
        .to_string()
}

#[tokio::test]
async fn a_session_over_tls_does_what_others_do() {
    let server = server(&Authority::new("one"));
    let client = client(Endpoint::Ssl("127.0.0.1".to_owned(), server.port()), Some(tls(server.dir.path())));
    client.connected(PATIENCE).await.unwrap();
    let replica =
        soon("monitor", client.monitor(MonitorSpec::new().table::<LogicalSwitch>(&[]))).await.unwrap();
    // More than one TLS record in both directions.
    let name = "x".repeat(200_000);
    for _ in 0..20 {
        let mut txn = Transaction::new();
        txn.insert(LogicalSwitch::TABLE, [("name", Datum::from(&name))]);
        soon("transact", client.transact(txn)).await.unwrap();
    }
    assert!(replica.read().table::<LogicalSwitch>().iter().filter(|row| row.name == name).count() == 20);
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused() {
    let server = server(&Authority::new("one"));
    let mut files = tls(server.dir.path());
    Authority::new("two").write(server.dir.path(), "other.pem");
    files.ca = server.dir.path().join("other.pem");
    let client = client(Endpoint::Ssl("127.0.0.1".to_owned(), server.port()), Some(files));
    let error = failure(&client).await;
    assert!(error.contains("TLS handshake") && error.contains("certificate"), "{error}");
}

#[tokio::test]
async fn a_client_of_another_authority_is_refused() {
    let server = server(&Authority::new("one"));
    Authority::new("two").issue(server.dir.path(), "foreign");
    let files = TlsOptions {
        cert: server.dir.path().join("foreign-cert.pem"),
        key: server.dir.path().join("foreign-key.pem"),
        ..tls(server.dir.path())
    };
    let error = failure(&client(Endpoint::Ssl("127.0.0.1".to_owned(), server.port()), Some(files))).await;
    assert!(error.contains("ssl:127.0.0.1"), "{error}");
}

#[tokio::test]
async fn missing_and_wrong_files_are_named() {
    let server = server(&Authority::new("one"));
    let endpoint = Endpoint::Ssl("127.0.0.1".to_owned(), server.port());
    let good = tls(server.dir.path());
    let swapped = TlsOptions { cert: good.key.clone(), key: good.cert.clone(), ..good.clone() };
    let absent = TlsOptions { ca: server.dir.path().join("absent.pem"), ..good.clone() };
    for (files, named) in
        [(Some(swapped), "client-key.pem"), (Some(absent), "absent.pem"), (None, "needs the CA")]
    {
        let error = failure(&client(endpoint.clone(), files)).await;
        assert!(error.contains(named), "{named}: {error}");
    }
    let plain = failure(&client(Endpoint::Tcp("127.0.0.1".to_owned(), server.port()), None)).await;
    assert!(plain.contains("tcp:127.0.0.1"), "{plain}");
}

#[tokio::test]
async fn renewed_files_are_taken_up_without_a_restart() {
    let mut server = server(&Authority::new("one"));
    let dir = server.dir.path().to_owned();
    // The client's copies, renewed apart from the server's.
    let own = tempfile::tempdir().unwrap();
    for file in ["ca.pem", "client-cert.pem", "client-key.pem"] {
        std::fs::copy(dir.join(file), own.path().join(file)).unwrap();
    }
    // One port for both lives of the server.
    let endpoints = || Endpoint::Ssl("127.0.0.1".to_owned(), server.port());
    let port = match endpoints() {
        Endpoint::Ssl(_, port) => port,
        other => panic!("{other}"),
    };
    let client = client(endpoints(), Some(tls(own.path())));
    client.connected(PATIENCE).await.unwrap();
    let mut status = client.status();
    server.kill();
    soon("loss", status.wait_for(|status| matches!(status, Status::Connecting { .. }))).await.unwrap();

    let renewed = Authority::new("renewed");
    renewed.write(&dir, "ca.pem");
    for name in ["server", "client"] {
        renewed.issue(&dir, name);
    }
    server.replace_arg("--remote=pssl:0:127.0.0.1", format!("--remote=pssl:{port}:127.0.0.1"));
    server.run();
    soon(
        "refusal with the old files",
        status.wait_for(|status| matches!(status, Status::Connecting { last_error: Some(error) } if error.contains("TLS"))),
    )
    .await
    .unwrap();
    for file in ["ca.pem", "client-cert.pem", "client-key.pem"] {
        std::fs::copy(dir.join(file), own.path().join(file)).unwrap();
    }
    client.connected(PATIENCE).await.unwrap();
}
