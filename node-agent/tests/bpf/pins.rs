//! What outlives the agent, and what a new one makes of it.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use ebpf::layout::maps::LAYOUT;
use node_agent::bpf::{Endpoint, Error, Mode, Options, Programs};

use crate::{
    programs::endpoint,
    sandbox::{Node, Shell},
    wiring::{Config, Wired},
};

/// Tells the child of the SIGKILL test what to attach.
const CHILD: &str = "SLIPSTREAM_TEST_CHILD";

#[test]
fn a_directory_of_pins_is_locked_like_any_other() {
    let node = Node::new();
    let dir = node.pins();
    node.run(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let take = || runtime.block_on(node_agent::lock::take(&[&dir], std::time::Duration::ZERO));
        let first = take().unwrap();
        assert!(take().unwrap_err().to_string().contains("locked by another agent"));
        drop(first);
        take().unwrap();
    });
}

#[test]
fn traffic_and_counters_go_on_when_the_agent_is_killed_and_the_next_one_takes_over() {
    let wired = Wired::new();
    let Config { dir, uplink, endpoint, .. } = wired.config();
    let (Mode::Interposed { agent_end, ovs_end }, Mode::Interposed { agent_end: up_agent, ovs_end: up_ovs }) =
        (endpoint.mode, uplink.1)
    else {
        panic!("the wiring is interposed");
    };
    let arguments = [uplink.0, up_agent, up_ovs, endpoint.host_ifindex, agent_end, ovs_end]
        .map(|index| index.to_string())
        .join(",");
    let value = format!("{},{arguments}", dir.display());
    wired.node.run(move || {
        #[expect(clippy::disallowed_methods, reason = "an agent to be killed is a process of its own")]
        let mut agent = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "pins::an_agent_that_ends_leaves_its_programs_attached", "--nocapture"])
            .env(CHILD, value)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(agent.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("attached")), "the agent could not attach");
        agent.kill().unwrap();
        agent.wait().unwrap();
    });
    assert!(wired.ping(), "without any agent");
    let (before, _) = wired.counters();
    assert!(before.from().packets >= 3 && before.to().packets >= 3, "{before:?}");
    wired.reloaded(move |datapath| {
        let endpoints = datapath.endpoints();
        assert_eq!(endpoints.len(), 1);
        assert!(endpoints[0].alive);
        assert_eq!((endpoints[0].host_ifindex, endpoints[0].mode), (endpoint.host_ifindex, endpoint.mode));
        assert_eq!(endpoints[0].ipv4, Some("10.244.0.3".parse().unwrap()));
        assert_eq!(endpoints[0].mac, endpoint.mac);
        assert_eq!(datapath.uplink(), Some((uplink.0, uplink.1, true)));
        // What the agent's reconciliation does next: the same again.
        datapath.set_uplink(uplink.0, uplink.1).unwrap();
        datapath.add_endpoint(&endpoint).unwrap();
    });
    assert!(wired.ping(), "with the new programs");
    let (after, _) = wired.counters();
    assert!(after.from().packets >= before.from().packets + 3, "{before:?} {after:?}");
}

/// Run as a process by the test above, it is the agent that gets killed.
#[test]
fn an_agent_that_ends_leaves_its_programs_attached() {
    let Ok(value) = std::env::var(CHILD) else {
        let wired = Wired::new();
        wired.attached(|_| ());
        return assert!(wired.ping());
    };
    let mut parts = value.split(',');
    let dir = parts.next().unwrap().into();
    let mut next = || parts.next().unwrap().parse::<u32>().unwrap();
    let uplink = (next(), Mode::Interposed { agent_end: next(), ovs_end: next() });
    let endpoint = endpoint("pod0", next(), Mode::Interposed { agent_end: next(), ovs_end: next() });
    let _datapath = Config { dir, uplink, endpoint, options: Options::default() }.attach();
    println!("attached");
    std::thread::sleep(std::time::Duration::from_secs(600));
}

#[test]
fn a_change_of_map_layout_does_not_interrupt_the_slow_path() {
    let wired = Wired::new();
    wired.attached(|_| ());
    assert!(wired.ping());
    let before = wired.counters().0.from().packets;
    let dir = wired.node.pins();
    let (from, to) = (dir.join(format!("v{LAYOUT}")), dir.join("v0"));
    // As if an agent with layout 0 had made the maps.
    wired.node.run(move || std::fs::rename(from, to).unwrap());
    wired.reloaded(move |datapath| {
        let endpoints = datapath.endpoints();
        assert!(endpoints.len() == 1 && endpoints[0].alive, "{endpoints:?}");
        // The kernel may have asked for a neighbour meanwhile.
        let after = datapath.endpoint_stats().unwrap()[0].1.from().packets;
        assert!(after < before, "counters begin again: {before}, then {after}");
    });
    assert_eq!(wired.node.list(&dir), ["endpoints", "host", "physical", "uplink", &format!("v{LAYOUT}")]);
    assert!(wired.ping(), "through the new maps");
    assert!(wired.counters().0.from().packets >= 3);
}

#[test]
fn cleanup_leaves_nothing_pinned_and_nothing_attached() {
    let wired = Wired::new();
    wired.attached(|_| ());
    assert!(wired.ping());
    let dir = wired.node.pins();
    let cleaned = dir.clone();
    wired.node.run(move || {
        Programs::cleanup(&cleaned).unwrap();
        Programs::cleanup(&cleaned).unwrap();
    });
    assert!(!wired.node.list(dir.parent().unwrap()).contains(&"slipstream".to_owned()));
    assert!(!wired.ping(), "something still carries packets across the shims");
}

#[test]
fn removing_a_port_twice_is_fine_and_its_counters_begin_at_zero_next_time() {
    let wired = Wired::new();
    wired.attached(|_| ());
    assert!(wired.ping());
    let Config { endpoint, .. } = wired.config();
    let dir = wired.node.pins().join("endpoints");
    let again = endpoint.clone();
    wired.reloaded(move |datapath| {
        assert!(datapath.endpoint_stats().unwrap()[0].1.to().packets > 0);
        datapath.remove_endpoint(&endpoint.id).unwrap();
        datapath.remove_endpoint(&endpoint.id).unwrap();
        datapath.remove_endpoint("never-heard-of").unwrap();
        datapath.remove_endpoint("../uplink").unwrap();
        assert_eq!(datapath.endpoints(), []);
    });
    assert_eq!(wired.node.list(&dir), Vec::<String>::new());
    assert!(!wired.ping());
    wired.reloaded(move |datapath| {
        datapath.add_endpoint(&again).unwrap();
        // The pod may have sent something by now; nobody sent to it.
        assert_eq!(datapath.endpoint_stats().unwrap()[0].1.to().packets, 0);
    });
    assert!(wired.ping());
}

#[test]
fn a_port_whose_interface_is_gone_is_shown_as_dead_and_can_be_removed() {
    let wired = Wired::new();
    wired.attached(|_| ());
    wired.node.sh("ip link del host0");
    wired.reloaded(|datapath| {
        let endpoints = datapath.endpoints();
        assert!(endpoints.len() == 1 && !endpoints[0].alive, "{endpoints:?}");
        datapath.remove_endpoint("pod0").unwrap();
        assert_eq!(datapath.endpoints(), []);
    });
}

#[test]
fn a_pod_that_gets_an_index_of_a_dead_one_takes_its_place() {
    let node = Node::new();
    node.sh("ip link add one type veth peer name onex");
    let (dir, ifindex) = (node.pins(), node.ifindex("one"));
    node.run(move || {
        let mut datapath = Programs::load(&dir).unwrap();
        datapath.add_endpoint(&endpoint("old", ifindex, Mode::Direct)).unwrap();
        datapath.dry_run("from_pod", &crate::packets::tcp(0), ifindex, 0, 1).unwrap();
        datapath.add_endpoint(&endpoint("new", ifindex, Mode::Direct)).unwrap();
        let ids: Vec<_> =
            datapath.endpoints().into_iter().map(|endpoint| (endpoint.id, endpoint.alive)).collect();
        assert_eq!(ids, [("new".to_owned(), true)]);
        assert_eq!(datapath.endpoint_stats().unwrap()[0].1, Default::default());
    });
}

#[test]
fn a_port_can_change_its_mode_and_the_uplink_its_interface() {
    let node = Node::new();
    for pair in ["one type veth peer name onex", "sa type veth peer name so", "upl type veth peer name upx"] {
        node.sh(&format!("ip link add {pair}"));
    }
    let [one, onex, up, upx] = ["one", "onex", "upl", "upx"].map(|name| node.ifindex(name));
    let interposed = Mode::Interposed { agent_end: node.ifindex("sa"), ovs_end: node.ifindex("so") };
    let dir = node.pins();
    let pins = dir.clone();
    node.run(move || {
        let mut datapath = Programs::load(&dir).unwrap();
        for mode in [Mode::Direct, interposed, Mode::Direct] {
            datapath.add_endpoint(&endpoint("pod0", one, mode)).unwrap();
            let endpoints = datapath.endpoints();
            assert!(endpoints.len() == 1 && endpoints[0].mode == mode && endpoints[0].alive, "{endpoints:?}");
        }
        datapath.set_uplink(up, Mode::Direct).unwrap();
        datapath.dry_run("from_uplink", &crate::packets::tcp(0), up, 0, 1).unwrap();
        assert_eq!(datapath.uplink_stats().unwrap().from().packets, 1);
        datapath.set_uplink(upx, Mode::Direct).unwrap();
        assert_eq!(datapath.uplink(), Some((upx, Mode::Direct, true)));
        assert_eq!(datapath.uplink_stats().unwrap().from().packets, 0, "another uplink's counters");
    });
    let [exit, entry] = [format!("from_pod-{one}"), format!("to_pod-{one}")];
    assert_eq!(node.list(&pins.join("endpoints/pod0")), [exit, entry]);
    assert_eq!(node.list(&pins.join("uplink")), [format!("from_uplink-{upx}"), format!("to_uplink-{upx}")]);
    assert_ne!(onex, 0);
}

#[test]
fn what_cannot_be_attached_leaves_nothing_behind_and_says_what_was_wrong() {
    let node = Node::new();
    node.sh("ip link add one type veth peer name onex");
    let (dir, ifindex) = (node.pins(), node.ifindex("one"));
    let pins = dir.clone();
    node.run(move || {
        let mut datapath = Programs::load(&dir).unwrap();
        let missing = Mode::Interposed { agent_end: 4711, ovs_end: ifindex };
        let cases: [(Endpoint, &str); 4] = [
            (endpoint("pod0", 4711, Mode::Direct), "4711"),
            (endpoint("pod0", ifindex + 1, missing), "4711"),
            (endpoint("a/b", ifindex, Mode::Direct), "a/b"),
            (endpoint("pod0", 0, Mode::Direct), "index 0"),
        ];
        for (config, named) in cases {
            let error = datapath.add_endpoint(&config).unwrap_err();
            assert!(error.to_string().contains(named), "{error} does not name {named}");
            assert_eq!(datapath.endpoints(), []);
        }
        let error = datapath.set_uplink(4711, Mode::Direct).unwrap_err();
        assert!(matches!(error, Error::NoInterface { ifindex: 4711, .. }), "{error:?}");
    });
    assert_eq!(node.list(&pins.join("endpoints")), Vec::<String>::new());
    assert_eq!(node.list(&pins.join("uplink")), Vec::<String>::new());
}

#[test]
fn a_directory_that_is_not_on_bpffs_is_refused_by_name() {
    let node = Node::new();
    node.run(|| {
        let dir = tempfile::tempdir().unwrap();
        let error = Programs::load(dir.path()).unwrap_err();
        assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");
    });
}
