//! Role `ovn-central` with the programs of OVN: three servers in a network of their own form a cluster, one is ended and comes back.
//! Needs root and `cargo xtask setup`.
#![allow(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "starts the program that is tested")]

mod support;

use std::time::{Duration, Instant};

use support::{Network, SERVERS, Server};
use test_support::wait::wait_until;

#[test]
fn three_servers_form_a_cluster_that_outlives_one_of_them() {
    let network = Network::new(SERVERS);
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<_> =
        (0..3).map(|index| Server::start(&network, dir.path(), SERVERS, index)).collect();
    servers.iter().for_each(Server::wait_ready);
    // What one takes, another has; northd carries it to the southbound database.
    servers[2].nbctl(&["ls-add", "one"]).unwrap();
    let has = |server: &Server<'_>, switch: &str| {
        server.nbctl(&["ls-list"]).is_some_and(|list| list.contains(switch))
    };
    wait_until(Duration::from_secs(10), "the row is everywhere", || servers.iter().all(|s| has(s, "one")));

    let begin = Instant::now();
    assert_eq!(servers[0].end(), Some(0), "SIGTERM is no failure");
    assert!(begin.elapsed() < Duration::from_secs(5), "three programs end at once: {:?}", begin.elapsed());
    wait_until(Duration::from_secs(30), "two of three go on", || {
        servers[1].nbctl(&["--may-exist", "ls-add", "two"]).is_some()
    });
    assert!(!servers[0].is_ready());

    servers[0].run(SERVERS);
    servers[0].wait_ready();
    wait_until(Duration::from_secs(10), "it has what it missed", || has(&servers[0], "two"));
}

#[test]
fn one_server_keeps_its_database_and_refuses_to_become_a_cluster_silently() {
    let network = Network::new(SERVERS);
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(&network, dir.path(), "10.99.0.1", 0);
    server.wait_ready();
    server.nbctl(&["ls-add", "one"]).unwrap();
    assert_eq!(server.end(), Some(0));
    server.run("10.99.0.1");
    server.wait_ready();
    assert!(server.nbctl(&["ls-list"]).unwrap().contains("one"));
    assert_eq!(server.end(), Some(0));

    server.run(SERVERS);
    let status = server.child.take().unwrap().wait().unwrap();
    assert_eq!(status.code(), Some(1));
    let log = std::fs::read_to_string(server.directory.join("log")).unwrap();
    assert!(log.contains("is standalone, and SLIPSTREAM_OVN_CENTRAL has several addresses"), "{log}");
}

#[test]
fn servers_that_have_all_lost_their_files_make_a_new_cluster() {
    let network = Network::new(SERVERS);
    let dir = tempfile::tempdir().unwrap();
    let mut servers: Vec<_> =
        (0..3).map(|index| Server::start(&network, dir.path(), SERVERS, index)).collect();
    servers.iter().for_each(Server::wait_ready);
    for server in &mut servers {
        server.end();
        for dir in ["data", "run"] {
            std::fs::remove_dir_all(server.directory.join(dir)).unwrap();
        }
    }
    // The first comes last, and finds others that want to join.
    for server in servers.iter_mut().rev() {
        server.run(SERVERS);
        wait_until(Duration::from_secs(10), "it serves", || {
            server.directory.join("run/ovnsb_db.sock").exists()
        });
    }
    servers.iter().for_each(Server::wait_ready);
    servers[1].nbctl(&["ls-add", "new"]).unwrap();
}
