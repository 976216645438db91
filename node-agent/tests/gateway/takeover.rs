use std::time::Duration;

use anyhow::bail;
use clap::Parser;
use node_agent::config::Config;
use node_agent::gateway::nics;
use node_agent::gateway::uplink::journal::{Phase, Step};
use node_agent::gateway::uplink::migration::Hook;
use node_agent::kernel::link::route::MAIN_TABLE;

use crate::world::{World, in_both_modes, ip, on_a_node};

/// Addresses, links and routes of the whole node, except interface indices and the counters of OVS's own interfaces.
fn state() -> String {
    let mut links: Vec<serde_json::Value> = serde_json::from_str(&ip("-j addr show")).unwrap();
    // Bridges of other tests' OVS are not visible here; ovs-netdev belongs to the userspace datapath itself.
    links.retain(|l| l["ifname"] != "ovs-netdev");
    for link in &mut links {
        let link = link.as_object_mut().unwrap();
        for volatile in ["ifindex", "link_index", "operstate", "stats"] {
            link.remove(volatile);
        }
    }
    links.sort_by_key(|l| l["ifname"].to_string());
    let routes = ip("-4 route show table all") + &ip("-6 route show table main");
    let mut routes: Vec<&str> = routes.lines().collect();
    routes.sort_unstable();
    format!("{}\n{}", serde_json::to_string_pretty(&links).unwrap(), routes.join("\n"))
}

/// Stops at `step` as a crash would.
fn crash_at(step: Step) -> impl Fn(Step) -> anyhow::Result<()> + Sync {
    move |now| if now == step { bail!("crash") } else { Ok(()) }
}

fn crash_after_all(_: Step) -> anyhow::Result<()> {
    Ok(())
}

/// The interface that is the bridge's port.
fn port(world: &World) -> &'static str {
    if world.is_interposed() { "so-eth0" } else { "eth0" }
}

async fn assert_taken(world: &World) {
    let bridge = world.netlink.get("breth0").await.unwrap();
    let uplink = world.netlink.get("eth0").await.unwrap();
    let on_bridge = ip("-4 -br addr show dev breth0");
    assert!(on_bridge.contains("172.18.0.2/16") && on_bridge.contains("172.18.0.77/16"), "{on_bridge}");
    assert!(world.netlink.saved_addresses(uplink.index, "eth0").await.unwrap().is_empty());
    assert_eq!((bridge.mac, bridge.mtu, bridge.up), (uplink.mac, 1450, true));
    let routes = world.netlink.routes(false, MAIN_TABLE).await.unwrap();
    assert!(routes.iter().all(|r| r.interface == bridge.index), "{routes:?}");
    let text = ip("-4 route show table all");
    for route in [
        "default via 172.18.0.1 dev breth0 proto dhcp metric 100",
        "198.51.100.0/24 via 172.18.0.9 dev breth0 src 172.18.0.77 mtu 1300",
        "203.0.113.0/24 dev breth0 table 77 scope link",
    ] {
        assert!(text.contains(route), "{route} is not in\n{text}");
    }
    let on_bridge = ip("-6 -br addr show dev breth0 scope global");
    assert!(on_bridge.contains("fd00:172:18::2/64"), "{on_bridge}");
    let text = ip("-6 route show table main");
    for route in [
        "default via fd00:172:18::1 dev breth0 proto static metric 100",
        "2001:db8:7::/48 via fd00:172:18::9 dev breth0 metric 1024 mtu 1300",
        "fd00:172:18::/64 dev breth0 proto kernel",
    ] {
        assert!(text.contains(route), "{route} is not in\n{text}");
    }
    assert!(!text.lines().any(|l| l.contains("dev eth0") && !l.starts_with("fe80::")), "{text}");
    assert_eq!(world.vsctl("list-ports breth0").trim(), port(world));
    assert!(uplink.promiscuous, "set by OVS on its port, by us when OVS has another");
    assert_eq!(
        world.vsctl("get bridge breth0 fail_mode external_ids").replace('\n', " ").trim(),
        "standalone {bridge-id=breth0, bridge-uplink=eth0}"
    );
    assert!(world.reaches_neighbour());
    assert_eq!(world.store().load().unwrap().unwrap().phase, Phase::Done);
}

async fn assert_given_back(world: &World, before: &str) {
    assert_eq!(state(), before);
    assert!(world.reaches_neighbour());
    assert_eq!(world.vsctl("list-br").trim(), "");
    assert!(world.store().load().unwrap().is_none());
}

#[test]
fn the_bridge_takes_addresses_and_routes_and_gives_them_back_exactly() {
    in_both_modes(|world| async move {
        let before = state();
        let migration = world.migration();
        let taken = migration.take("eth0").await.unwrap();
        assert_eq!(
            (taken.bridge.as_str(), taken.uplink.as_str(), taken.port.as_str()),
            ("breth0", "eth0", port(&world))
        );
        assert_taken(&world).await;
        let after = state();
        migration.take("eth0").await.unwrap();
        assert_eq!(state(), after, "a second migration changes nothing");
        // The bridge's own name selects the same gateway.
        assert_eq!(migration.take("breth0").await.unwrap().uplink, "eth0");
        migration.release().await.unwrap();
        assert_given_back(&world, &before).await;
        migration.release().await.unwrap();
    });
}

#[test]
fn after_a_crash_before_any_step_the_next_start_finishes() {
    in_both_modes(|world| async move {
        let before = state();
        for step in Step::ALL {
            let crash = crash_at(step);
            let hook: Hook<'_> = &crash;
            world.migration().take_with("eth0", hook).await.unwrap_err();
            assert!(world.reaches_neighbour(), "{step:?}: the node must stay reachable");
            world.migration().take("eth0").await.unwrap_or_else(|e| panic!("{step:?}: {e:#}"));
            assert_taken(&world).await;
            world.migration().release().await.unwrap_or_else(|e| panic!("{step:?}: {e:#}"));
            assert_given_back(&world, &before).await;
        }
    });
}

#[test]
fn after_a_crash_before_any_step_cleanup_puts_everything_back() {
    in_both_modes(|world| async move {
        let before = state();
        for step in Step::ALL {
            let crash = crash_at(step);
            let hook: Hook<'_> = &crash;
            world.migration().take_with("eth0", hook).await.unwrap_err();
            world.migration().release().await.unwrap_or_else(|e| panic!("{step:?}: {e:#}"));
            assert_given_back(&world, &before).await;
        }
    });
}

#[test]
fn after_a_crash_of_the_roll_back_both_ways_are_open() {
    in_both_modes(|world| async move {
        let before = state();
        for (n, step) in Step::ALL.into_iter().enumerate() {
            world.migration().take_with("eth0", &crash_after_all).await.unwrap();
            let crash = crash_at(step);
            let hook: Hook<'_> = &crash;
            world.migration().release_with(hook).await.unwrap_err();
            assert!(world.reaches_neighbour(), "{step:?}: the node must stay reachable");
            if n % 2 == 0 {
                world.migration().take("eth0").await.unwrap_or_else(|e| panic!("{step:?}: {e:#}"));
                assert_taken(&world).await;
            }
            world.migration().release().await.unwrap_or_else(|e| panic!("{step:?}: {e:#}"));
            assert_given_back(&world, &before).await;
        }
    });
}

#[test]
fn a_step_that_fails_is_named_and_everything_is_put_back() {
    on_a_node(|world| async move {
        world.vsctl("add-br other -- set bridge other datapath_type=netdev -- add-port other eth0");
        let before = state();
        let error = format!("{:#}", world.migration().take("eth0").await.unwrap_err());
        assert!(
            error.contains("Uplink") && error.contains("eth0 is a port of another OVS bridge"),
            "{error}"
        );
        assert!(error.contains("the uplink migration was undone"), "{error}");
        assert_eq!(state(), before);
        assert_eq!(world.vsctl("list-br").trim(), "other");
        assert!(world.store().load().unwrap().is_none());
    });
}

#[test]
fn without_an_address_the_error_says_what_to_do() {
    on_a_node(|world| async move {
        ip("addr flush dev eth0");
        let error = format!("{:#}", world.migration().take("eth0").await.unwrap_err());
        assert!(error.contains("neither eth0 nor breth0 has an address"), "{error}");
        let error = format!("{:#}", world.migration().take("eth7").await.unwrap_err());
        assert!(error.contains("eth7"), "{error}");
    });
}

#[test]
fn a_bridge_made_by_somebody_else_is_adopted_and_left_in_place() {
    in_both_modes(|world| async move {
        world.vsctl("add-br breth0 -- set bridge breth0 datapath_type=netdev -- add-port breth0 eth0");
        ip("addr flush dev eth0");
        ip("link set breth0 up");
        ip("addr add 172.18.0.2/16 dev breth0");
        ip("addr add 169.254.169.2/29 dev breth0");
        ip("route add default via 172.18.0.1 dev breth0");
        let before = state();
        let taken = world.migration().take("eth0").await.unwrap();
        assert!(taken.journal.adopted);
        assert_eq!(world.vsctl("list-ports breth0").trim(), port(&world));
        let addresses: Vec<String> = taken.journal.found.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["172.18.0.2/16"], "the masquerade address is not the node's own");
        world.migration().release().await.unwrap();
        assert_eq!(world.vsctl("list-ports breth0").trim(), "eth0");
        assert!(world.netlink.find("so-eth0").await.unwrap().is_none());
        let bridge = |state: &str| state.matches("172.18.0.2").count();
        assert_eq!(bridge(&state()), bridge(&before));
    });
}

#[test]
fn when_ovs_makes_the_bridge_s_interface_anew_addresses_and_routes_come_back() {
    on_a_node(|mut world| async move {
        let migration = world.migration();
        let mut taken = migration.take("eth0").await.unwrap();
        let old = world.netlink.get("breth0").await.unwrap().index;
        assert!(!migration.restore_bridge(&mut taken).await.unwrap(), "nothing is missing");
        world.kill_switch();
        assert!(ip("-br link").contains("breth0"), "the interface outlives the process");
        ip("link del breth0");
        world.start_switch();
        let appears = async {
            loop {
                match world.netlink.find("breth0").await.unwrap() {
                    Some(link) if link.index != old => return,
                    _ => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), appears).await.expect("OVS makes its interface again");
        // OVS sets the MAC address of its interface shortly after it created it, and sets it down for that (`netdev_linux`, tap
        // devices). The kernel then drops the routes, or refuses new ones: if the migration was faster than OVS, it must repeat them.
        let first = migration.restore_bridge(&mut taken).await;
        assert!(!matches!(first, Ok(false)), "everything is missing");
        let mac = world.netlink.get("eth0").await.unwrap().mac;
        // The agent repeats it whenever the kernel tells of a change of the interface. Without that it may stay down: OVS gives it the flags
        // that it had before.
        let ready = async {
            loop {
                let restored = migration.restore_bridge(&mut taken).await;
                let link = world.netlink.find("breth0").await;
                if restored.is_ok() && matches!(link, Ok(Some(link)) if link.mac == mac && link.up) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ready)
            .await
            .expect("OVS gives its interface the address");
        migration.restore_bridge(&mut taken).await.unwrap();
        assert!(!migration.restore_bridge(&mut taken).await.unwrap(), "nothing is missing any more");
        assert_taken(&world).await;
        migration.release().await.unwrap();
    });
}

#[test]
fn what_somebody_changes_on_the_bridge_stays_over_a_start_of_the_agent_and_is_given_back() {
    in_both_modes(|world| async move {
        world.migration().take("eth0").await.unwrap();
        ip("route replace default via 172.18.0.254 dev breth0 proto dhcp metric 100");
        ip("addr del 172.18.0.77/16 dev breth0");
        ip("addr add 172.18.0.3/16 dev breth0");
        ip("addr add 10.7.0.3/24 dev breth0");
        ip("addr add 172.18.0.200/32 dev breth0");
        ip("-6 addr del fd00:172:18::2/64 dev breth0");
        let taken = world.migration().take("eth0").await.unwrap();
        let routes = ip("-4 route show default");
        assert_eq!(
            routes.trim(),
            "default via 172.18.0.254 dev breth0 proto dhcp metric 100",
            "and no other"
        );
        let addresses: Vec<String> = taken.addresses().iter().map(ToString::to_string).collect();
        // A second address of a subnet, or one with a prefix of its full length, may be shared by a pair of machines.
        assert_eq!(addresses, ["172.18.0.2/16", "10.7.0.3/24"]);
        world.migration().release().await.unwrap();
        let on_uplink = ip("-br addr show dev eth0 scope global");
        assert!(on_uplink.contains("172.18.0.2/16 ") && on_uplink.contains("10.7.0.3/24"), "{on_uplink}");
        assert!(!on_uplink.contains("172.18.0.77") && !on_uplink.contains("fd00:172:18::2"), "{on_uplink}");
        let routes = ip("-4 route show default");
        assert_eq!(routes.trim(), "default via 172.18.0.254 dev eth0 proto dhcp metric 100");
    });
}

#[test]
fn a_virtual_address_stays_where_it_was_and_is_not_put_back() {
    on_a_node(|world| async move {
        ip("addr add 172.18.0.200/32 dev eth0");
        let taken = world.migration().take("eth0").await.unwrap();
        let on_uplink = || ip("-4 -br addr show dev eth0");
        assert!(on_uplink().contains(" 172.18.0.200/32"), "{}", on_uplink());
        assert!(!taken.addresses().iter().any(|a| a.to_string().contains("200")));
        assert!(world.reaches_neighbour());
        world.migration().take("eth0").await.unwrap();
        assert!(on_uplink().contains(" 172.18.0.200/32"), "not moved by a second start");
        world.migration().release().await.unwrap();
        assert!(on_uplink().contains(" 172.18.0.200/32") && on_uplink().contains(" 172.18.0.2/16"));
        assert!(world.reaches_neighbour());
    });
}

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    config: Config,
}

#[test]
fn nics_to_bridge_and_bridges_to_nics_move_the_uplink_there_and_back() {
    on_a_node(|world| async move {
        let flags =
            format!("agent --node-name= --cluster-subnets=10.244.0.0/16,fd00:10:244::/48 {}", world.flags());
        let config = Flags::parse_from(flags.split(' ')).config;
        let before = state();
        nics::to_bridge(config.clone(), vec!["eth0".to_owned()], true).await.unwrap();
        assert_eq!(state(), before, "a dry run changes nothing");
        nics::to_bridge(config.clone(), vec!["eth0".to_owned()], false).await.unwrap();
        assert_taken(&world).await;
        let other = nics::to_nics(config.clone(), vec!["br0".to_owned()]).await.unwrap_err();
        assert!(other.to_string().contains("that is breth0, with uplink eth0"), "{other}");
        nics::to_nics(config.clone(), vec!["breth0".to_owned()]).await.unwrap();
        assert_given_back(&world, &before).await;
        let none = nics::to_nics(config, vec!["breth0".to_owned()]).await.unwrap_err();
        assert!(none.to_string().contains("no uplink was migrated"), "{none}");
    });
}
