//! Role `ovn-central` of an image with a newer schema of OVN's databases: three servers are replaced one after the other, or all at once,
//! and go back. Needs root and `cargo xtask setup`.
#![allow(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "starts the program that is tested")]

mod support;

use std::path::{Path, PathBuf};
use std::time::Duration;

use support::{Network, SERVERS, Server};
use test_support::cache;
use test_support::wait::wait_until;

/// Version of the older schemas.
const OLD: &str = "5.0.0";
/// A table that the older northbound schema has not.
const NEW_TABLE: &str = "Static_MAC_Binding";

/// Schemas of an image that is older: another version, and a table less.
fn old_schemas(dir: &Path) -> PathBuf {
    let old = dir.join("old-schemas");
    std::fs::create_dir_all(&old).unwrap();
    for name in ["ovn-nb.ovsschema", "ovn-sb.ovsschema"] {
        let text = std::fs::read_to_string(cache::file("ovs/share").join(name)).unwrap();
        let mut schema: serde_json::Value = serde_json::from_str(&text).unwrap();
        schema["version"] = OLD.into();
        if name == "ovn-nb.ovsschema" {
            assert!(schema["tables"].as_object_mut().unwrap().remove(NEW_TABLE).is_some());
        }
        std::fs::write(old.join(name), schema.to_string()).unwrap();
    }
    old
}

fn version_of(schemas: &Path) -> String {
    let text = std::fs::read_to_string(schemas.join("ovn-nb.ovsschema")).unwrap();
    let schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    schema["version"].as_str().unwrap().to_owned()
}

/// Three servers of the older image, with a switch.
fn cluster<'a>(network: &'a Network, dir: &Path) -> (Vec<Server<'a>>, PathBuf) {
    let old = old_schemas(dir);
    let mut servers: Vec<_> = (0..3).map(|index| Server::new(network, dir, SERVERS, index)).collect();
    for server in &mut servers {
        server.schemas.clone_from(&old);
        server.run(SERVERS);
    }
    servers.iter().for_each(Server::wait_ready);
    servers[0].nbctl(&["ls-add", "before"]).unwrap();
    assert!(servers.iter().all(|server| server.schema_version() == OLD));
    (servers, old)
}

/// Waits until all servers have the newer schema, what was there before, and a row of the new table.
fn all_are_new(servers: &[Server<'_>], new: &str) {
    wait_until(Duration::from_secs(30), "all have the newer schema", || {
        servers.iter().all(|server| server.schema_version() == new)
    });
    let row = ["create", NEW_TABLE, "logical_port=a", "ip=10.0.0.1", "mac=\"0a:58:0a:00:00:01\""];
    wait_until(Duration::from_secs(30), "the new table is written", || servers[1].nbctl(&row).is_some());
    for server in servers {
        wait_until(Duration::from_secs(10), "what was there before, and the row", || {
            server.nbctl(&["ls-list"]).is_some_and(|list| list.contains("before"))
                && server
                    .nbctl(&["--bare", "--columns=ip", "list", NEW_TABLE])
                    .is_some_and(|ip| ip.trim() == "10.0.0.1")
        });
    }
}

#[test]
fn three_servers_that_are_replaced_one_after_the_other_get_the_newer_schema_and_keep_it() {
    let network = Network::new(SERVERS);
    let dir = tempfile::tempdir().unwrap();
    let (mut servers, old) = cluster(&network, dir.path());
    let new = cache::file("ovs/share");
    for index in (0..3).rev() {
        assert_eq!(servers[index].end(), Some(0));
        // The others go on meanwhile, whichever schema they have.
        wait_until(Duration::from_secs(30), "two of three take a row", || {
            servers[(index + 1) % 3].nbctl(&["ls-add", &format!("without-{index}")]).is_some()
        });
        servers[index].schemas.clone_from(&new);
        servers[index].run(SERVERS);
        servers[index].wait_ready();
    }
    all_are_new(&servers, &version_of(&new));
    // The older image again: its programs read the newer schema, which stays.
    for server in &mut servers {
        assert_eq!(server.end(), Some(0));
        server.schemas.clone_from(&old);
        server.run(SERVERS);
        server.wait_ready();
    }
    assert!(servers.iter().all(|server| server.schema_version() == version_of(&new)));
    let list = servers[2].nbctl(&["ls-list"]).unwrap();
    for switch in ["before", "without-0", "without-1", "without-2"] {
        assert!(list.contains(switch), "{switch}: {list}");
    }
}

#[test]
fn three_servers_that_start_at_once_with_the_newer_schema_agree() {
    let network = Network::new(SERVERS);
    let dir = tempfile::tempdir().unwrap();
    let (mut servers, _) = cluster(&network, dir.path());
    let new = cache::file("ovs/share");
    servers.iter_mut().for_each(|server| assert_eq!(server.end(), Some(0)));
    for server in &mut servers {
        server.schemas.clone_from(&new);
        server.run(SERVERS);
    }
    servers.iter().for_each(Server::wait_ready);
    all_are_new(&servers, &version_of(&new));
}
