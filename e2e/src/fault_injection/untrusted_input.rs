//! What reaches the controller although it should not: annotations that were written before the policies existed, names that are those
//! of the network itself, and addresses of a Service that belong to other objects. The controller accepts none of it, and reports it.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::forgery::{forged, tenant};
use super::world::{HEAL, NAMESPACE, World};
use testbed::cluster::admission;
use testbed::{exec, pod};

/// Every address that n1 has left for pods, with the hardware address that belongs to the first.
const GREEDY: &str = r#"{"default":{"ip_addresses":["10.244.0.4/29","10.244.0.5/29","10.244.0.6/29"],"mac_address":"0a:58:0a:f4:00:04","gateway_ips":["10.244.0.1"]}}"#;
/// One free address of n1 with the router's hardware address.
const ROUTER: &str = r#"{"default":{"ip_addresses":["10.244.0.6/29"],"mac_address":"0a:58:0a:f4:00:01","gateway_ips":["10.244.0.1"]}}"#;
const BINDING: &str = "slipstream-pod-networks";

pub(super) fn run(world: &mut World<'_>) -> Result<()> {
    without_the_policy(world)?;
    chassis_of_another_node(world)?;
    name_of_a_localnet_port(world)?;
    external_addresses(world)?;
    one_address_two_services(world)
}

/// Pods from before the policies were applied.
fn without_the_policy(world: &mut World<'_>) -> Result<()> {
    world.bed.kubectl(&["delete", "validatingadmissionpolicybinding", BINDING])?;
    let flags = tenant().flags();
    for (name, networks) in [("greedy", GREEDY), ("router", ROUTER)] {
        let object = forged(name, networks).to_string();
        exec::retry(HEAL, "the policy is out of force", || {
            let mut command = world.bed.kubectl_command()?;
            exec::input_output(command.args(&flags).args(["create", "-f", "-"]), &object)
        })?;
    }
    world.bed.apply(admission::MANIFEST)?;
    admission::wait_in_force(world.bed)?;
    for (name, what) in
        [("greedy", "all addresses that are left"), ("router", "the router's hardware address")]
    {
        world.check(&format!("a pod that was made with {what}: told as an Event"), |world| {
            world.event(name, "NetworkAnnotationUnusable")
        });
        world.check("it has no port", |world| {
            let port = port(world, &format!("{NAMESPACE}_{name}"), "name")?;
            ensure!(port.is_empty(), "{port}");
            Ok(String::new())
        });
    }
    world.check("the others go on", World::others_go_on);
    for name in ["greedy", "router"] {
        world.annotate(&format!("pod/{name}"), "pod-networks", None)?;
        world.check("without the annotation it gets one address and the hardware address of that", |world| {
            let ip = world.running(name, HEAL)?;
            world.answers(name)?;
            let [_, b, c, d] = ip.octets();
            let own = format!("0a:58:0a:{b:02x}:{c:02x}:{d:02x} {ip}");
            for column in ["addresses", "port_security"] {
                let there = port(world, &format!("{NAMESPACE}_{name}"), column)?;
                ensure!(there == own, "{column} of its port is {there:?}, not {own:?}");
            }
            Ok(own)
        });
    }
    world.delete(&["greedy", "router"])
}

/// The agent of n2 says that it is n1's chassis, as one would whose machine was copied from n1's or taken over.
fn chassis_of_another_node(world: &mut World<'_>) -> Result<()> {
    let (first, own) =
        (world.annotation("node/n1", "node-chassis-id")?, world.annotation("node/n2", "node-chassis-id")?);
    world.annotate("node/n2", "node-chassis-id", Some(&first))?;
    for node in ["n1", "n2"] {
        world.check(&format!("n2 claims n1's chassis: told as an Event of {node}"), |world| {
            world.event(node, "NodeNetworkConflict")
        });
    }
    world.check("its agent writes its own again, and the pods of both go on", |world| {
        world.eventually(HEAL, || {
            let now = world.annotation("node/n2", "node-chassis-id")?;
            ensure!(now == own, "it is {now:?} instead of {own:?}");
            Ok(())
        })?;
        world.others_go_on()
    });
    Ok(())
}

/// A column of a port in NB; empty without such a port.
fn port(world: &World<'_>, name: &str, column: &str) -> Result<String> {
    let column = format!("--columns={column}");
    let found =
        world.bed.nbctl(&["--bare", &column, "find", "Logical_Switch_Port", &format!("name={name}")])?;
    Ok(found.trim().to_owned())
}

/// A pod whose port would have the name of the port by which n1 reaches the outside.
fn name_of_a_localnet_port(world: &mut World<'_>) -> Result<()> {
    let (namespace, name, taken) = ("breth0", "n1", "breth0_n1");
    let columns = |world: &World<'_>| -> Result<Vec<String>> {
        ["type", "addresses", "options"].iter().map(|column| port(world, taken, column)).collect()
    };
    let before = columns(world)?;
    ensure!(before[0] == "localnet", "port {taken} is {before:?}");
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    world.apply(space.to_string())?;
    world.apply(pod::manifest(namespace, name, Some("n1")).to_string())?;
    world.check(
        "a pod whose port would have the name of n1's way to the outside: told as an Event",
        |world| world.event(name, "NetworkNameConflict"),
    );
    world.check("that way stays as it was", |world| {
        let now = columns(world)?;
        ensure!(now == before, "port {taken} is {now:?} instead of {before:?}");
        Ok(before.join(" "))
    });
    world.check("the others go on", World::others_go_on);
    world.bed.kubectl(&["delete", "namespace", namespace, "--timeout=60s"]).map(drop)?;
    world.check("without that pod as well", |world| {
        let now = columns(world)?;
        ensure!(now == before, "port {taken} is {now:?} instead of {before:?}");
        Ok(String::new())
    });
    Ok(())
}

/// Makes a Service with an external address as the tenant.
fn service(world: &World<'_>, name: &str, address: &str, port: u16) -> Result<()> {
    let object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "externalIPs": [address],
            "selector": {"no": "pod"},
            "ports": [{"port": port, "protocol": "TCP"}],
        },
    });
    let mut command = world.bed.kubectl_command()?;
    exec::input_output(command.args(tenant().flags()).args(["create", "-f", "-"]), &object.to_string())
        .map(drop)
}

/// Names of the load balancers in NB that serve an address at a port.
fn serving(world: &World<'_>, vip: &str) -> Result<Vec<String>> {
    let rows = world.bed.nbctl(&[
        "--format=csv",
        "--data=bare",
        "--no-headings",
        "--columns=name,vips",
        "list",
        "Load_Balancer",
    ])?;
    let serves = |row: &&str| row.split([' ', ',', '"']).any(|word| word.split('=').next() == Some(vip));
    Ok(rows.lines().filter(serves).map(|row| row.split(',').next().unwrap_or_default().to_owned()).collect())
}

/// Waits until a Service is in NB, by its own address; so what it does not have there it will not get later.
fn is_in_nb(world: &World<'_>, name: &str, port: u16) -> Result<()> {
    let own = world.field(&format!("service/{name}"), ".spec.clusterIP")?;
    let vip = format!("{own}:{port}");
    exec::retry(HEAL, &format!("{name} is served at {vip}"), || {
        ensure!(!serving(world, &vip)?.is_empty(), "it is not");
        Ok(())
    })
}

/// Services that claim what belongs to the cluster.
fn external_addresses(world: &mut World<'_>) -> Result<()> {
    for (name, what, address) in [
        ("claims-service", "the address of the cluster's DNS", "10.96.0.10"),
        ("claims-pod", "an address of pods", "10.244.0.3"),
        ("claims-join", "an address between routers", "100.64.0.2"),
        ("claims-node", "the address of a node", "172.18.0.3"),
    ] {
        service(world, name, address, 4242)?;
        world.check(&format!("a Service that claims {what}: told as an Event, naming it"), |world| {
            let note = world.event(name, "ServiceAddressUnusable")?;
            ensure!(note.contains(address), "{note}");
            Ok(note)
        });
        world.check("it is served at its own address, and not at that one", |world| {
            is_in_nb(world, name, 4242)?;
            let found = serving(world, &format!("{address}:4242"))?;
            ensure!(found.is_empty(), "{found:?}");
            Ok(String::new())
        });
        world.bed.kubectl(&["delete", "service", "-n", NAMESPACE, name])?;
    }
    Ok(())
}

/// Two Services that claim one address.
fn one_address_two_services(world: &mut World<'_>) -> Result<()> {
    let (address, vip) = ("172.18.10.9", "172.18.10.9:4343");
    // By name and by number the other one would come first.
    service(world, "second-older", address, 4343)?;
    is_in_nb(world, "second-older", 4343)?;
    // An object's creation time has a resolution of one second.
    thread::sleep(Duration::from_millis(1100));
    service(world, "first-younger", address, 4343)?;
    is_in_nb(world, "first-younger", 4343)?;
    let by = |world: &World<'_>, name: &str| {
        exec::retry(HEAL, &format!("{vip} is served by {name}"), || {
            let found = serving(world, vip)?;
            if found.is_empty() || !found.iter().all(|row| row.contains(&format!("{NAMESPACE}/{name}_"))) {
                bail!("it is served by {found:?}");
            }
            Ok(found.join(" "))
        })
    };
    world.check("of two Services that claim one address the older has it", |world| by(world, "second-older"));
    world.check("the younger is told as an Event", |world| {
        let note = world.event("first-younger", "ServiceAddressUnusable")?;
        ensure!(note.contains(address) && note.contains("second-older"), "{note}");
        Ok(note)
    });
    world.bed.kubectl(&["delete", "service", "-n", NAMESPACE, "second-older"])?;
    world.check("when the older goes the younger gets it", |world| by(world, "first-younger"));
    world
        .bed
        .kubectl(&["delete", "service", "-n", NAMESPACE, "first-younger"])
        .map(drop)
        .context("end of the Services")
}
