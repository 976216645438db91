//! The CNI plugin as a container runtime sees it: the real executable, a real agent process, real OVS. Only the API server
//! and ovn-controller are stand-ins. Needs root, and OVS in the project's cache.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../common/cni.rs"]
mod bed;
#[path = "../common/mod.rs"]
mod common;
mod interfaces;
#[path = "../common/kube.rs"]
mod kube;
mod multus;
#[path = "../common/ovs.rs"]
mod ovs;
mod traffic;

use std::time::Duration;

use bed::{Bed, Call, id, networks};
use common::{Pod, on_a_node};
use serde_json::json;
use traffic::megabyte;

/// Not a test by itself: the agent process of the other tests, with everything but the gateway.
#[test]
fn the_agent() {
    #[derive(clap::Parser)]
    struct Arguments {
        #[command(flatten)]
        config: node_agent::config::Config,
    }
    let Ok(args) = std::env::var(bed::AGENT) else { return };
    let all = std::iter::once("agent").chain(args.lines());
    let config = <Arguments as clap::Parser>::parse_from(all).config;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (tasks, _ends) = supervision::Tasks::new();
        let client = node_agent::kube::client::client(&config).await.unwrap();
        let node = node_agent::run::connect(&config, client, &tasks).await.unwrap();
        let (_run, stopped) = tokio::sync::watch::channel(false);
        node_agent::run::serve_pods(&node, &config, stopped).await.unwrap();
    });
}

#[test]
fn add_answers_as_the_reference_does_and_del_leaves_nothing() {
    on_a_node(async || {
        let bed = Bed::ready("ovs").await;
        let _ovn = bed.ovs.play_ovn_controller().await;
        let (pod, a) = (Pod::new(), id(1));
        bed.api.put("a", "u1", Some(&networks(3)));
        let added = bed.add(&a, &pod, "a", "u1").await;
        assert_eq!(added.error(), 0, "{added:?} {}", bed.log());

        let mut result = added.json();
        let host_mac = result["interfaces"][0]["mac"].take();
        assert!(host_mac.as_str().unwrap().parse::<api::MacAddr>().is_ok());
        assert_eq!(
            result,
            json!({
                "cniVersion": "1.1.0",
                "interfaces": [
                    { "mac": null, "name": &a[..15], "mtu": 1400 },
                    { "mac": "0a:58:0a:f4:00:03", "name": "eth0", "sandbox": pod.path(), "mtu": 1400 },
                ],
                "ips": [{ "address": "10.244.0.3/24", "gateway": "10.244.0.1", "interface": 1 }],
            })
        );
        let netns = node_agent::kernel::netns::Netns::open(pod.path()).unwrap();
        let (routes, features) = netns.run("look", look).await.unwrap();
        assert_eq!(
            routes,
            [
                "0.0.0.0/0 via 10.244.0.1",
                "10.244.0.0/16 via 10.244.0.1",
                "10.244.0.0/24",
                "10.96.0.0/16 via 10.244.0.1",
                "100.64.0.0/16 via 10.244.0.1",
                "169.254.169.5/32 via 10.244.0.1",
            ]
        );
        assert!(
            !features.iter().any(|f| f.starts_with("tx-checksum-")),
            "OVS would read unfinished checksums: {features:?}"
        );
        let ids = bed.ovs.vsctl(&["--bare", "get", "Interface", &a[..15], "external_ids"]);
        for wanted in [
            "attached_mac=\"0a:58:0a:f4:00:03\"",
            "iface-id=ns_a",
            "iface-id-ver=u1",
            "ip_addresses=\"10.244.0.3/24\"",
            "pod-if-name=eth0",
        ] {
            assert!(ids.contains(wanted), "{wanted} in {ids}");
        }
        assert!(ids.contains(&format!("sandbox=\"{a}\"")), "{ids}");
        assert_eq!(bed.ovs.vsctl(&["get", "Port", &a[..15], "other_config:transient"]), "\"true\"");
        let link = node_agent::kernel::link::Netlink::open().unwrap().get(&a[..15]).await.unwrap();
        assert_eq!((link.group, link.up), (0x5151, true));

        assert_eq!(bed.del(&a, Some(pod.path())).await.error(), 0);
        bed.assert_clean().await;
        assert_eq!(bed.del(&a, Some(pod.path())).await.error(), 0, "a second time");
        assert_eq!(bed.del(&id(99), None).await.error(), 0, "an unknown container");
    });
}

/// Routes of the namespace as text, sorted, and the features of eth0.
fn look() -> (Vec<String>, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let netlink = node_agent::kernel::link::Netlink::open().unwrap();
        let routes = netlink.routes(false, 254).await.unwrap();
        let text = |r: &node_agent::kernel::link::Route| {
            r.gateway.map_or(r.dest.to_string(), |g| format!("{} via {g}", r.dest))
        };
        let mut routes: Vec<String> = routes.iter().map(text).collect();
        routes.sort();
        (routes, node_agent::kernel::link::ethtool::active_features("eth0").unwrap())
    })
}

#[test]
fn del_works_without_namespace_and_touches_no_newer_sandbox() {
    on_a_node(async || {
        let bed = Bed::ready("ovs").await;
        let _ovn = bed.ovs.play_ovn_controller().await;
        bed.api.put("a", "u1", Some(&networks(3)));
        let (old, new) = (Pod::new(), Pod::new());
        assert_eq!(bed.add(&id(1), &old, "a", "u1").await.error(), 0);
        let added = bed.add(&id(2), &new, "a", "u1").await;
        assert_eq!(added.error(), 0, "a retry with a new sandbox succeeds at once: {added:?}");
        assert_eq!(bed.ovs.ports(), [&id(2)[..15]], "the old sandbox's port is gone");

        let gone = old.path().to_owned();
        drop(old);
        assert_eq!(bed.del(&id(1), Some(&gone)).await.error(), 0);
        assert_eq!(bed.del(&id(1), None).await.error(), 0);
        let plain = bed.ovs.path("plain");
        std::fs::write(&plain, "").unwrap();
        assert_eq!(bed.del(&id(1), Some(&plain)).await.error(), 0);
        assert_eq!(bed.ovs.ports(), [&id(2)[..15]], "the newer sandbox stays");
        assert_eq!(bed.del(&id(2), None).await.error(), 0);
        bed.assert_clean().await;
    });
}

#[test]
fn a_second_add_is_refused_without_damage_and_check_sees_what_is_missing() {
    on_a_node(async || {
        let bed = Bed::ready("ovs").await;
        let _ovn = bed.ovs.play_ovn_controller().await;
        bed.api.put("a", "u1", Some(&networks(3)));
        let (pod, a) = (Pod::new(), id(1));
        let added = bed.add(&a, &pod, "a", "u1").await;
        assert_eq!(added.error(), 0);
        let again = bed.add(&a, &pod, "a", "u1").await;
        assert!(again.error() >= 100 && again.message().contains("called before"), "{again:?}");

        let extra = json!({ "prevResult": added.json() });
        let call = Call {
            command: "CHECK",
            id: &a,
            netns: Some(pod.path()),
            pod: "a",
            uid: "u1",
            extra,
            ..Call::default()
        };
        let checked = bed.call(call.clone()).await;
        assert_eq!((checked.error(), checked.stdout.as_str()), (0, ""), "right after ADD, and no output");
        let bare = Call { extra: json!({}), ..call.clone() };
        assert_eq!(bed.call(bare).await.error(), 7, "prevResult is needed");

        let netns = node_agent::kernel::netns::Netns::open(pod.path()).unwrap();
        netns.run("break", break_route).await.unwrap();
        bed.ovs.vsctl(&["del-port", &a[..15]]);
        let checked = bed.call(call).await;
        assert!(checked.message().contains("10.96.0.0/16"), "{checked:?}");
        assert!(checked.message().contains("no OVS port"), "{checked:?}");
        assert_eq!(bed.del(&a, None).await.error(), 0);
        bed.assert_clean().await;
    });
}

fn break_route() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let netlink = node_agent::kernel::link::Netlink::open().unwrap();
        let services = "10.96.0.0/16".parse().unwrap();
        let route =
            netlink.routes(false, 254).await.unwrap().into_iter().find(|r| r.dest == services).unwrap();
        assert!(netlink.delete_route("eth0", &route).await.unwrap());
    });
}

#[test]
fn an_add_that_fails_at_any_step_leaves_nothing() {
    on_a_node(async || {
        let mut bed = Bed::ready("ovs").await;
        let pod = Pod::new();
        // ovn-installed is never set. First the pod is deleted during the wait for its addresses; then a newer sandbox comes during the
        // wait for OVN.
        bed.api.put("a", "u1", None);
        let a = id(1);
        let (added, ()) = tokio::join!(bed.add(&a, &pod, "a", "u1"), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(bed.left().await.0, [&a[..15]], "the link is made while the addresses are waited for");
            bed.api.remove("a");
        });
        assert_eq!(added.error(), 11, "{added:?}");
        assert!(added.message().contains("deleted or replaced"), "{added:?}");
        bed.assert_clean().await;

        bed.api.put("b", "u2", Some(&networks(4)));
        let (first, second) = (id(2), id(3));
        let other = Pod::new();
        let (old, new) = tokio::join!(bed.add(&first, &pod, "b", "u2"), async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            assert_eq!(bed.ovs.ports(), [&first[..15]]);
            let (new, _) = tokio::join!(bed.add(&second, &other, "b", "u2"), async {
                tokio::time::sleep(Duration::from_millis(400)).await;
                bed.del(&second, None).await
            });
            new
        });
        assert_eq!((old.error(), new.error()), (11, 11), "{old:?} {new:?}");
        assert!(old.message().contains("newer sandbox"), "{old:?}");
        assert!(new.message().contains("DEL of the same container"), "{new:?}");
        bed.assert_clean().await;

        // A malformed annotation.
        bed.api.put("c", "u3", Some("{\"default\":5}"));
        let bad = bed.add(&id(4), &pod, "c", "u3").await;
        assert!(bad.message().contains("k8s.ovn.org/pod-networks"), "{bad:?}");
        bed.assert_clean().await;

        // Inside the pod: an address that does not fit its gateway.
        bed.api.put(
            "d",
            "u4",
            Some(
                &networks(5)
                    .replace("\"gateway_ip\":\"10.244.0.1\"", "\"x\":1")
                    .replace("[\"10.244.0.1\"]", "[\"9.9.9.9\"]"),
            ),
        );
        let bad = bed.add(&id(5), &pod, "d", "u4").await;
        assert!(bad.message().contains("eth0 route 0.0.0.0/0 via 9.9.9.9"), "{bad:?}");
        bed.assert_clean().await;

        // eth0 exists already and was not created by the plugin.
        bed.api.put("e", "u5", Some(&networks(6)));
        let netns = node_agent::kernel::netns::Netns::open(pod.path()).unwrap();
        netns.run("squat", squat).await.unwrap();
        let bad = bed.add(&id(6), &pod, "e", "u5").await;
        assert!(bad.message().contains("eth0 exists in") && bad.message().contains("not changed"), "{bad:?}");
        bed.assert_clean().await;

        // A port of the same name that is not ours.
        let fresh = Pod::new();
        let taken = id(7);
        bed.ovs.vsctl(&[
            "--no-wait",
            "add-port",
            "br-int",
            &taken[..15],
            "--",
            "set",
            "Interface",
            &taken[..15],
            "type=patch",
        ]);
        bed.api.put("f", "u6", Some(&networks(7)));
        let bad = bed.add(&taken, &fresh, "f", "u6").await;
        assert!(bad.message().contains("not replaced"), "{bad:?}");
        assert_eq!(bed.left().await, (vec![], vec![taken[..15].to_owned()]));
        bed.ovs.vsctl(&["--no-wait", "del-port", &taken[..15]]);

        // Without the database.
        bed.ovs.kill_database();
        let again = bed.add(&id(8), &fresh, "f", "u6").await;
        assert_eq!(again.error(), 11, "{again:?}");
        let status = bed.call(Call { command: "STATUS", ..Call::default() }).await;
        assert_eq!(status.error(), 50);
        assert!(status.message().contains("Open_vSwitch database"), "{status:?}");
        assert_eq!(bed.left_links().await, Vec::<String>::new());
    });
}

fn squat() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let netlink = node_agent::kernel::link::Netlink::open().unwrap();
        let pair = node_agent::kernel::link::Veth {
            name: "eth0",
            mac: None,
            group: 0,
            peer: "other",
            peer_mac: None,
            peer_group: 0,
            peer_netns: None,
            mtu: 1400,
        };
        netlink.create_veth(&pair).await.unwrap();
    });
}

#[test]
fn a_pod_goes_while_the_database_is_away_and_its_port_when_it_is_back() {
    on_a_node(async || {
        let mut bed = Bed::ready("ovs").await;
        let ovn = bed.ovs.play_ovn_controller().await;
        let [_a, _b] = two_pods(&bed).await;
        ovn.abort();
        bed.ovs.kill_database();
        assert_eq!(bed.del(&id(1), None).await.error(), 0);
        assert_eq!(bed.left_links().await, [&id(2)[..15]]);
        bed.ovs.start_database();
        for _ in 0..400 {
            if bed.ovs.ports().len() == 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        assert_eq!(bed.ovs.ports(), [&id(2)[..15]], "{}", bed.log());
        assert_eq!(bed.del(&id(2), None).await.error(), 0);
        bed.assert_clean().await;
    });
}

#[test]
fn bad_calls_get_the_specifications_codes_and_version_needs_nobody() {
    on_a_node(async || {
        let mut bed = Bed::ready("ovs").await;
        let pod = Pod::new();
        let a = id(1);
        let call = Call { id: &a, netns: Some(pod.path()), pod: "a", uid: "u1", ..Call::default() };
        let missing = bed.ovs.path("no-such-namespace");
        bed.api.put("a", "u1", Some(&networks(3)));
        assert_eq!(bed.call(Call { netns: Some(&missing), ..call.clone() }).await.error(), 3);
        assert_eq!(bed.call(Call { netns: None, ..call.clone() }).await.error(), 4);
        assert_eq!(bed.call(Call { version: "9.9.9", ..call.clone() }).await.error(), 1);
        assert_eq!(bed.call(Call { command: "FROB", ..call.clone() }).await.error(), 4);
        let gc = Call { command: "GC", ..Call::default() };
        assert_eq!(bed.call(gc).await.error(), 7, "GC without a list must not wipe the node");
        bed.assert_clean().await;

        let version = bed.call(Call { command: "VERSION", version: "0.4.0", ..Call::default() }).await;
        assert_eq!(
            version.json(),
            json!({ "cniVersion": "0.4.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] })
        );
        bed.kill_agent();
        assert_eq!(bed.call(Call { command: "VERSION", ..Call::default() }).await.code, 0);
        assert_eq!(bed.call(Call { command: "STATUS", ..Call::default() }).await.error(), 50);
        assert_eq!(bed.call(call.clone()).await.error(), 11);
        let del = bed.call(Call { command: "DEL", ..call }).await;
        assert_eq!(
            (del.code, del.stdout.as_str()),
            (0, ""),
            "an agent that is down must not keep a pod from going"
        );
    });
}

#[test]
fn gc_frees_what_is_not_listed_and_nothing_else() {
    on_a_node(async || {
        let bed = Bed::ready("ovs").await;
        let _ovn = bed.ovs.play_ovn_controller().await;
        let pods = [Pod::new(), Pod::new(), Pod::new()];
        for (n, pod) in (1..=3_u8).zip(&pods) {
            bed.api.put(&format!("p{n}"), &format!("u{n}"), Some(&networks(n + 2)));
            let added = bed.add(&id(u32::from(n)), pod, &format!("p{n}"), &format!("u{n}")).await;
            assert_eq!(added.error(), 0, "{added:?}");
        }
        let keep = json!([{ "containerID": id(2), "ifname": "eth0" }]);
        let gc = |key: &str, list: serde_json::Value| Call {
            command: "GC",
            extra: json!({ key: list }),
            ..Call::default()
        };
        let done = bed.call(gc("cni.dev/attachments", keep)).await;
        assert_eq!((done.error(), done.stdout.as_str()), (0, ""));
        assert_eq!(bed.left().await, (vec![id(2)[..15].to_owned()], vec![id(2)[..15].to_owned()]));
        assert_eq!(bed.call(gc("cni.dev/valid-attachments", json!([]))).await.error(), 0);
        bed.assert_clean().await;
    });
}

#[test]
fn thirty_at_once_and_back() {
    on_a_node(async || {
        let bed = Bed::ready("ovs").await;
        let _ovn = bed.ovs.play_ovn_controller().await;
        let pods: Vec<Pod> = (0..30).map(|_| Pod::new()).collect();
        for round in 0..2_u32 {
            let names: Vec<(u8, String, String)> =
                (0..30_u8).map(|n| (n, format!("p{n}"), format!("u{round}-{n}"))).collect();
            let ids: Vec<String> = (0..30).map(|n| id(1000 * round + n)).collect();
            let adds = names.iter().zip(&pods).zip(&ids).map(|(((n, name, uid), pod), id)| {
                bed.api.put(name, uid, Some(&networks(n + 3)));
                bed.add(id, pod, name, uid)
            });
            for added in futures::future::join_all(adds).await {
                assert_eq!(added.error(), 0, "{added:?}");
            }
            assert_eq!(bed.left().await.1.len(), 30);
            // Otherwise ovs-vswitchd may set them down again.
            assert_eq!(bed.ovs.early(), [""; 0], "interfaces are up before OVS hears of them");
            let dels = ids.iter().zip(&pods).map(|(id, pod)| bed.del(id, Some(pod.path())));
            for deleted in futures::future::join_all(dels).await {
                assert_eq!(deleted.error(), 0, "{deleted:?}");
            }
            bed.assert_clean().await;
        }
    });
}

#[test]
fn an_agent_killed_in_the_middle_of_adds_is_clean_after_its_restart() {
    on_a_node(async || {
        let mut bed = Bed::ready("ovs").await;
        bed.api.put("waits", "u1", None);
        bed.api.put("plugged", "u2", Some(&networks(4)));
        let (one, two) = (Pod::new(), Pod::new());
        let (first, second) = (id(1), id(2));
        // One waits for its addresses, one for OVN.
        let running: Vec<_> = [(&first, &one, "waits", "u1"), (&second, &two, "plugged", "u2")]
            .into_iter()
            .map(|(id, pod, name, uid)| {
                let (mut command, conf) =
                    bed.command(&Call { id, netns: Some(pod.path()), pod: name, uid, ..Call::default() });
                let mut child = command.spawn().unwrap();
                (child.stdin.take().unwrap(), child, conf)
            })
            .collect();
        let mut children = Vec::new();
        for (mut stdin, child, conf) in running {
            tokio::io::AsyncWriteExt::write_all(&mut stdin, conf.as_bytes()).await.unwrap();
            children.push(child);
        }
        while bed.left().await.0.len() < 2 || bed.ovs.ports().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bed.kill_agent();
        for child in children {
            let out = child.wait_with_output().await.unwrap();
            let error: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
            assert_eq!(error["code"], 11, "the runtime shall try again");
        }
        // DEL finds no agent and succeeds; then the namespaces are deleted.
        assert_eq!(bed.del(&first, Some(one.path())).await.error(), 0);
        assert_eq!(bed.del(&second, Some(two.path())).await.error(), 0);
        drop((one, two));
        let no_links = async || {
            while !bed.left().await.0.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        no_links().await;
        assert_eq!(bed.ovs.ports(), [&second[..15]], "the port row is what is left");
        bed.start_agent().await;
        bed.assert_clean().await;

        // A running pod is left alone by a restart.
        let _ovn = bed.ovs.play_ovn_controller().await;
        let pod = Pod::new();
        assert_eq!(bed.add(&id(3), &pod, "plugged", "u2").await.error(), 0);
        bed.kill_agent();
        bed.start_agent().await;
        assert_eq!(bed.ovs.ports(), [&id(3)[..15]]);
        assert_eq!(bed.del(&id(3), None).await.error(), 0);
        bed.assert_clean().await;
    });
}

async fn two_pods(bed: &Bed) -> [Pod; 2] {
    let pods = [Pod::new(), Pod::new()];
    for (n, pod) in (1..=2_u8).zip(&pods) {
        let (name, uid) = (format!("p{n}"), format!("u{n}"));
        bed.api.put(&name, &uid, Some(&networks(n + 2)));
        let added = bed.add(&id(u32::from(n)), pod, &name, &uid).await;
        assert_eq!(added.error(), 0, "{added:?} {}", bed.log());
    }
    pods
}

#[test]
fn pods_reach_each_other_directly_and_without_the_agent() {
    on_a_node(async || {
        let mut bed = Bed::ready("ovs").await;
        bed.ovs.vsctl(&["set", "bridge", "br-int", "fail_mode=standalone"]);
        let _ovn = bed.ovs.play_ovn_controller().await;
        let [a, b] = two_pods(&bed).await;
        megabyte(&a, &b, "10.244.0.4:7001").await;
        bed.kill_agent();
        megabyte(&b, &a, "10.244.0.3:7002").await;
    });
}

#[test]
fn pods_reach_each_other_interposed_and_without_the_agent_and_nothing_is_left() {
    on_a_node(async || {
        let mut bed = Bed::ready("ebpf").await;
        bed.ovs.vsctl(&["set", "bridge", "br-int", "fail_mode=standalone"]);
        let _ovn = bed.ovs.play_ovn_controller().await;
        let [a, b] = two_pods(&bed).await;
        let shims = [1, 2].map(|n| format!("so{}", &id(n)[..13]));
        assert_eq!(bed.ovs.ports(), shims, "the shim's far end is the OVS port");
        let agent_end = format!("sa{}", &id(1)[..13]);
        let features = node_agent::kernel::link::ethtool::active_features(&agent_end).unwrap();
        assert!(
            !features.iter().any(|f| f.starts_with("tx-checksum-") || f.ends_with("-segmentation")),
            "{features:?}"
        );
        for end in [&agent_end, &shims[0]] {
            assert_eq!(node_agent::kernel::sysctl::get_interface("ipv6", end, "disable_ipv6").unwrap(), "1");
        }
        let netns = node_agent::kernel::netns::Netns::open(a.path()).unwrap();
        let (_, features) = netns.run("look", look).await.unwrap();
        assert!(
            features.iter().any(|f| f == "tx-checksum-ip-generic"),
            "the pod keeps its offloads: {features:?}"
        );
        megabyte(&a, &b, "10.244.0.4:7001").await;

        bed.kill_agent();
        megabyte(&b, &a, "10.244.0.3:7002").await;
        bed.start_agent().await;
        megabyte(&a, &b, "10.244.0.4:7003").await;
        let checked = Call {
            command: "CHECK",
            id: &id(1),
            netns: Some(a.path()),
            pod: "p1",
            uid: "u1",
            ..Call::default()
        };
        let prev = json!({ "prevResult": {
            "interfaces": [{ "name": "eth0", "mac": "0a:58:0a:f4:00:03", "sandbox": a.path() }],
            "ips": [{ "address": "10.244.0.3/24", "gateway": "10.244.0.1", "interface": 0 }],
        }});
        assert_eq!(bed.call(Call { extra: prev, ..checked }).await.error(), 0);

        // Without eBPF the connections of these pods would be cut: the agent refuses to start, and the connections continue.
        bed.kill_agent();
        bed.datapath = "ovs";
        let log = bed.refused();
        assert!(log.contains("attached through eBPF programs of an earlier run: ns_p"), "{log}");
        megabyte(&a, &b, "10.244.0.4:7004").await;
        bed.datapath = "ebpf";
        bed.start_agent().await;

        for n in 1..=2 {
            assert_eq!(bed.del(&id(n), None).await.error(), 0);
        }
        bed.assert_clean().await;
        let pinned = std::path::Path::new(&bed.bpf_dir()).join("endpoints");
        assert_eq!(std::fs::read_dir(pinned).unwrap().count(), 0, "no pinned programs");
        bed.kill_agent();
        bed.datapath = "ovs";
        bed.start_agent().await;
        assert!(!std::path::Path::new(&bed.bpf_dir()).exists(), "nobody needs the programs any more");
    });
}
