//! Pods with several interfaces: all are made in one ADD, and none is forgotten by anything that comes after it.

use std::time::{Duration, Instant};

use node_agent::attach::{Names, interface_id};
use node_agent::kernel::link::{Netlink, Veth};
use node_agent::kernel::netns::Netns;
use serde_json::{Value, json};

use crate::bed::{Answer, Bed, Call, id, networks};
use crate::common::{Pod, on_a_node};
use crate::traffic::megabyte;

/// The annotation of the pod with the n-th address on the cluster network, and further entries.
fn with(n: u8, entries: &[(&str, Value)]) -> String {
    let mut all: Value = serde_json::from_str(&networks(n)).unwrap();
    for (key, entry) in entries {
        all[*key] = entry.clone();
    }
    all.to_string()
}

/// The entry of interface `netN` with the n-th address of the network's range.
fn entry(net: u8, n: u8) -> Value {
    json!({
        "ip_addresses": [format!("172.16.{net}.{n}/24")],
        "mac_address": format!("0a:58:ac:10:{net:02x}:{n:02x}"),
        "interface": format!("net{net}"),
    })
}

/// net1 has a route and a smaller MTU, net2 nothing special.
pub(crate) fn three(n: u8) -> String {
    let mut one = entry(1, n);
    one["routes"] = json!([{ "dest": "172.20.0.0/16", "nextHop": "172.16.1.1" }]);
    one["mtu"] = json!(1300);
    with(n, &[("shop/blue", one), ("shop/blue/net2", entry(2, n))])
}

/// Names of the host veths of a container's first interfaces.
fn hosts(container: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| Names::of(&interface_id(container, number)).host).collect()
}

pub(crate) fn sorted(mut list: Vec<String>) -> Vec<String> {
    list.sort();
    list
}

/// What is in the pod: interfaces with MAC, MTU and addresses, and routes through a next hop.
pub(crate) async fn inside(pod: &Pod) -> (Vec<String>, Vec<String>) {
    let look = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let netlink = Netlink::open().unwrap();
            let (mut interfaces, mut routes) = (Vec::new(), Vec::new());
            let links = netlink.list().await.unwrap();
            for link in links.iter().filter(|link| link.name != "lo") {
                assert!(link.up, "{link:?}");
                let addresses = netlink.addresses(link.index, &link.name).await.unwrap();
                let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                let (mac, addresses) = (link.mac.unwrap(), addresses.join(" "));
                interfaces.push(format!("{} {mac} {} {addresses}", link.name, link.mtu));
            }
            for ipv6 in [false, true] {
                for route in netlink.routes(ipv6, 254).await.unwrap() {
                    let link = links.iter().find(|link| link.index == route.interface).unwrap();
                    let Some(gateway) = route.gateway else { continue };
                    routes.push(format!("{} via {gateway} dev {}", route.dest, link.name));
                }
            }
            (sorted(interfaces), sorted(routes))
        })
    };
    Netns::open(pod.path()).unwrap().run("look", look).await.unwrap()
}

/// Runs `work` with a netlink socket in the pod.
pub(crate) async fn in_pod<Fut: Future<Output = ()>>(
    pod: &Pod,
    work: impl FnOnce(Netlink) -> Fut + Send + 'static,
) {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { work(Netlink::open().unwrap()).await });
    };
    Netns::open(pod.path()).unwrap().run("change", run).await.unwrap();
}

async fn check(bed: &Bed, id: &str, pod: &Pod, added: &Answer) -> Answer {
    let extra = json!({ "prevResult": added.json() });
    let netns = Some(pod.path());
    bed.call(Call { command: "CHECK", id, netns, pod: "a", uid: "u1", extra, ..Call::default() }).await
}

pub(crate) fn pinned(bed: &Bed) -> usize {
    std::fs::read_dir(std::path::Path::new(&bed.bpf_dir()).join("endpoints")).unwrap().count()
}

async fn add_check_delete(datapath: &'static str) {
    let bed = Bed::ready(datapath).await;
    let _ovn = bed.ovs.play_ovn_controller().await;
    let (pod, a) = (Pod::new(), id(1));
    bed.api.put("a", "u1", Some(&three(3)));
    let added = bed.add(&a, &pod, "a", "u1").await;
    assert_eq!(added.error(), 0, "{added:?} {}", bed.log());

    let (interfaces, routes) = inside(&pod).await;
    assert_eq!(
        interfaces,
        [
            "eth0 0a:58:0a:f4:00:03 1400 10.244.0.3/24",
            "net1 0a:58:ac:10:01:03 1300 172.16.1.3/24",
            "net2 0a:58:ac:10:02:03 1400 172.16.2.3/24",
        ]
    );
    assert!(routes.contains(&"0.0.0.0/0 via 10.244.0.1 dev eth0".to_owned()), "{routes:?}");
    assert!(routes.contains(&"172.20.0.0/16 via 172.16.1.1 dev net1".to_owned()), "{routes:?}");

    let interposed = datapath == "ebpf";
    let names: Vec<Names> = (0..3).map(|number| Names::of(&interface_id(&a, number))).collect();
    let port = |names: &Names| if interposed { names.shim_ovs.clone() } else { names.host.clone() };
    assert_eq!(sorted(bed.ovs.ports()), sorted(names.iter().map(port).collect()));
    for (number, iface_id, name) in
        [(0, "iface-id=ns_a", "eth0"), (1, "shop.blue_ns_a", "net1"), (2, "shop.blue.net2_ns_a", "net2")]
    {
        let ids = bed.ovs.vsctl(&["--bare", "get", "Interface", &port(&names[number]), "external_ids"]);
        for part in [iface_id, &format!("pod-if-name={name}"), "iface-id-ver=u1", &format!("sandbox=\"{a}\"")]
        {
            assert!(ids.contains(part), "{part} in {ids}");
        }
    }
    if interposed {
        assert_eq!(pinned(&bed), 3);
    }

    let checked = check(&bed, &a, &pod, &added).await;
    assert_eq!((checked.error(), checked.stdout.as_str()), (0, ""));
    bed.ovs.vsctl(&["del-port", &port(&names[1])]);
    in_pod(&pod, async |netlink| {
        let link = netlink.get("net2").await.unwrap();
        let address = "172.16.2.3/24".parse().unwrap();
        assert!(netlink.delete_address(link.index, "net2", address).await.unwrap());
    })
    .await;
    let checked = check(&bed, &a, &pod, &added).await.message();
    assert!(checked.contains("net2: address 172.16.2.3/24 is missing"), "{checked}");
    assert!(checked.contains("interface net1 of the container has no OVS port"), "{checked}");
    assert!(!checked.contains("eth0"), "{checked}");

    // Although a part of it is gone, and with the pod.
    bed.api.remove("a");
    assert_eq!(bed.del(&a, Some(pod.path())).await.error(), 0);
    bed.assert_clean().await;
    if interposed {
        assert_eq!(pinned(&bed), 0);
    }
    assert_eq!(bed.del(&a, None).await.error(), 0, "a second time");
}

#[test]
fn all_interfaces_of_a_pod_are_made_checked_and_deleted() {
    on_a_node(async || add_check_delete("ovs").await);
}

#[test]
fn all_interfaces_of_a_pod_are_made_checked_and_deleted_interposed() {
    on_a_node(async || add_check_delete("ebpf").await);
}

#[test]
fn the_result_names_every_interface_in_each_version() {
    on_a_node(async || {
        let bed = Bed::ready("ovs").await;
        let _ovn = bed.ovs.play_ovn_controller().await;
        bed.api.put("a", "u1", Some(&with(3, &[("shop/blue", entry(1, 3))])));
        for (n, version) in [(1, "0.4.0"), (2, "1.1.0")] {
            let (pod, a) = (Pod::new(), id(n));
            let call =
                Call { id: &a, netns: Some(pod.path()), pod: "a", uid: "u1", version, ..Call::default() };
            let added = bed.call(call).await;
            assert_eq!(added.error(), 0, "{added:?}");
            let netlink = Netlink::open().unwrap();
            let [host, further] = hosts(&a, 2).try_into().unwrap();
            let mac = async |name: &str| netlink.get(name).await.unwrap().mac.unwrap();
            let (host_mac, further_mac, netns) =
                (mac(&host).await, mac(&further).await, pod.path().display());
            let (mtu, four) = match version {
                "1.1.0" => (r#","mtu":1400"#, ""),
                _ => ("", r#","version":"4""#),
            };
            let expected = format!(
                concat!(
                    r#"{{"cniVersion":"{}","interfaces":["#,
                    r#"{{"mac":"{}"{mtu},"name":"{}"}},"#,
                    r#"{{"mac":"0a:58:0a:f4:00:03"{mtu},"name":"eth0","sandbox":"{netns}"}},"#,
                    r#"{{"mac":"{}"{mtu},"name":"{}"}},"#,
                    r#"{{"mac":"0a:58:ac:10:01:03"{mtu},"name":"net1","sandbox":"{netns}"}}],"#,
                    r#""ips":[{{"address":"10.244.0.3/24","gateway":"10.244.0.1","interface":1{four}}},"#,
                    r#"{{"address":"172.16.1.3/24","interface":3{four}}}],"#,
                    r#""routes":[{{"dst":"0.0.0.0/0","gw":"10.244.0.1"}},{{"dst":"10.244.0.0/16","gw":"10.244.0.1"}},"#,
                    r#"{{"dst":"10.96.0.0/16","gw":"10.244.0.1"}},{{"dst":"169.254.169.5/32","gw":"10.244.0.1"}},"#,
                    r#"{{"dst":"100.64.0.0/16","gw":"10.244.0.1"}}]}}"#
                ),
                version,
                host_mac,
                host,
                further_mac,
                further,
                mtu = mtu,
                netns = netns,
                four = four
            );
            assert_eq!(added.stdout.trim(), expected);
            assert_eq!(bed.del(&a, Some(pod.path())).await.error(), 0);
        }
        bed.assert_clean().await;
    });
}

#[test]
fn the_default_route_is_where_the_annotation_says_and_ipv6_is_like_ipv4() {
    on_a_node(async || {
        let bed = Bed::ready("ovs").await;
        let _ovn = bed.ovs.play_ovn_controller().await;
        let mut one = entry(1, 3);
        one["ip_addresses"] = json!(["172.16.1.3/24", "fd00:16:1::3/64"]);
        one["gateway_ips"] = json!(["172.16.1.1", "fd00:16:1::1"]);
        one["routes"] = json!([{ "dest": "fd00:20::/32", "nextHop": "fd00:16:1::1" }]);
        let mut six = entry(2, 3);
        six["ip_addresses"] = json!(["fd00:16:2::3/64"]);
        let mut all: Value =
            serde_json::from_str(&with(3, &[("shop/blue", one), ("shop/six", six)])).unwrap();
        let default = all["default"].as_object_mut().unwrap();
        default.remove("gateway_ips");
        default.remove("gateway_ip");
        bed.api.put("a", "u1", Some(&all.to_string()));
        let (pod, a) = (Pod::new(), id(1));
        let added = bed.add(&a, &pod, "a", "u1").await;
        assert_eq!(added.error(), 0, "{added:?}");
        let (interfaces, routes) = inside(&pod).await;
        let addresses: Vec<&str> =
            interfaces.iter().map(|line| line.split_once(" 1400 ").unwrap().1).collect();
        let link_local =
            |line: &str| line.split(' ').filter(|a| !a.starts_with("fe80")).collect::<Vec<_>>().join(" ");
        let addresses: Vec<String> = addresses.into_iter().map(link_local).collect();
        assert_eq!(addresses, ["10.244.0.3/24", "172.16.1.3/24 fd00:16:1::3/64", "fd00:16:2::3/64"]);
        let by_default = |route: &&String| route.starts_with("0.0.0.0/0") || route.starts_with("::/0");
        assert_eq!(
            routes.iter().filter(by_default).collect::<Vec<_>>(),
            ["0.0.0.0/0 via 172.16.1.1 dev net1", "::/0 via fd00:16:1::1 dev net1"]
        );
        assert!(routes.contains(&"fd00:20::/32 via fd00:16:1::1 dev net1".to_owned()), "{routes:?}");
        let result = added.json();
        assert_eq!(result["ips"][0].get("gateway"), None);
        assert_eq!(
            result["ips"][2],
            json!({ "address": "fd00:16:1::3/64", "gateway": "fd00:16:1::1", "interface": 3 })
        );
        let checked = check(&bed, &a, &pod, &added).await;
        assert_eq!(checked.error(), 0, "{checked:?}");
        assert_eq!(bed.del(&a, None).await.error(), 0);
        bed.assert_clean().await;
    });
}

async fn third_fails(datapath: &'static str) {
    let bed = Bed::ready(datapath).await;
    let _ovn = bed.ovs.play_ovn_controller().await;
    let clean = async || {
        bed.assert_clean().await;
        if datapath == "ebpf" {
            assert_eq!(pinned(&bed), 0);
        }
    };
    // Inside the pod.
    let (pod, mut net2) = (Pod::new(), entry(2, 3));
    net2["routes"] = json!([{ "dest": "172.20.0.0/16", "nextHop": "9.9.9.9" }]);
    bed.api.put("a", "u1", Some(&with(3, &[("shop/blue", entry(1, 3)), ("shop/red", net2)])));
    let bad = bed.add(&id(1), &pod, "a", "u1").await;
    assert!(bad.message().contains("net2 route 172.20.0.0/16 via 9.9.9.9"), "{bad:?}");
    clean().await;
    assert!(inside(&pod).await.0.is_empty());

    // Its name is taken in the pod.
    in_pod(&pod, async |netlink| {
        let (mac, peer_mac, peer_netns) = (None, None, None);
        let pair =
            Veth { name: "net2", mac, group: 0, peer: "x", peer_mac, peer_group: 0, peer_netns, mtu: 1400 };
        netlink.create_veth(&pair).await.unwrap();
    })
    .await;
    bed.api.put("a", "u1", Some(&three(3)));
    let bad = bed.add(&id(2), &pod, "a", "u1").await;
    assert!(bad.message().contains("net2 exists in") && bad.message().contains("not changed"), "{bad:?}");
    clean().await;

    // Its port is somebody else's.
    let (fresh, a) = (Pod::new(), id(3));
    let Names { host, shim_ovs, .. } = Names::of(&interface_id(&a, 2));
    let taken = if datapath == "ebpf" { &shim_ovs } else { &host };
    bed.ovs.vsctl(&["--no-wait", "add-port", "br-int", taken, "--", "set", "Interface", taken, "type=patch"]);
    let bad = bed.add(&a, &fresh, "a", "u1").await;
    assert!(bad.message().contains(taken) && bad.message().contains("not replaced"), "{bad:?}");
    assert_eq!(bed.left().await, (vec![], vec![taken.clone()]));
    bed.ovs.vsctl(&["--no-wait", "del-port", taken]);
    clean().await;

    // And then it works, in the same namespace.
    let added = bed.add(&a, &fresh, "a", "u1").await;
    assert_eq!(added.error(), 0, "{added:?}");
    assert_eq!(bed.del(&a, None).await.error(), 0);
    clean().await;
}

#[test]
fn a_failure_of_the_third_interface_undoes_the_others() {
    on_a_node(async || third_fails("ovs").await);
}

#[test]
fn a_failure_of_the_third_interface_undoes_the_others_interposed() {
    on_a_node(async || third_fails("ebpf").await);
}

#[test]
fn what_cannot_be_done_is_refused_and_what_is_there_is_told_again() {
    on_a_node(async || {
        let bed = Bed::ready("ovs").await;
        let _ovn = bed.ovs.play_ovn_controller().await;
        let pod = Pod::new();
        let mut same = entry(1, 3);
        same["interface"] = json!("eth0");
        bed.api.put("a", "u1", Some(&with(3, &[("shop/blue", same)])));
        let bad = bed.add(&id(1), &pod, "a", "u1").await;
        assert!(bad.message().contains("`shop/blue.interface`: `eth0`"), "{bad:?}");
        bed.assert_clean().await;

        let reserved = interface_id(&id(1), 1);
        let bad = bed.add(&reserved, &pod, "a", "u1").await;
        assert!(bad.error() == 4 && bad.message().contains("CNI_CONTAINERID"), "{bad:?}");

        // As Multus calls the plugin for another network.
        bed.api.put("a", "u1", Some(&three(3)));
        let a = id(2);
        let mut added = bed.add(&a, &pod, "a", "u1").await;
        // The agent's watch may not have the new annotation yet.
        let end = Instant::now() + Duration::from_secs(10);
        while added.error() != 0 && added.message().contains("`eth0`") && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
            added = bed.add(&a, &pod, "a", "u1").await;
        }
        assert_eq!(added.error(), 0, "{added:?}");
        let call = Call { id: &a, netns: Some(pod.path()), pod: "a", uid: "u1", ..Call::default() };
        let again = bed.call(Call { ifname: "net7", ..call.clone() }).await;
        assert!(again.error() >= 100, "{again:?}");
        for part in ["`net7`", "it has net1, net2", "Nothing was changed"] {
            assert!(again.message().contains(part), "{part} in {again:?}");
        }
        let further = bed.call(Call { ifname: "net1", ..call.clone() }).await;
        assert_eq!(further.error(), 0, "{further:?}");
        assert!(further.stdout.contains("172.16.1.3/24") && !further.stdout.contains("eth0"), "{further:?}");
        assert_eq!(check(&bed, &a, &pod, &added).await.error(), 0, "nothing was changed");
        assert_eq!(bed.del(&a, None).await.error(), 0);
        bed.assert_clean().await;
    });
}

#[test]
fn an_agent_that_starts_anew_knows_all_interfaces_and_packets_pass_each() {
    on_a_node(async || {
        let mut bed = Bed::ready("ebpf").await;
        bed.ovs.vsctl(&["set", "bridge", "br-int", "fail_mode=standalone"]);
        let _ovn = bed.ovs.play_ovn_controller().await;
        let (pod, other) = (Pod::new(), Pod::new());
        bed.api.put("a", "u1", Some(&three(3)));
        bed.api.put("b", "u2", Some(&three(4)));
        let added = bed.add(&id(1), &pod, "a", "u1").await;
        assert_eq!((added.error(), bed.add(&id(2), &other, "b", "u2").await.error()), (0, 0), "{added:?}");
        megabyte(&pod, &other, "172.16.1.4:7001").await;

        bed.kill_agent();
        megabyte(&pod, &other, "172.16.2.4:7002").await;
        let ports = sorted(bed.ovs.ports());
        bed.start_agent().await;
        assert_eq!((sorted(bed.ovs.ports()), pinned(&bed)), (ports, 6), "{}", bed.log());
        let checked = check(&bed, &id(1), &pod, &added).await;
        assert_eq!(checked.error(), 0, "{checked:?}");
        megabyte(&other, &pod, "172.16.1.3:7003").await;

        // A link that is gone takes only its own interface with it.
        let Names { host, .. } = Names::of(&interface_id(&id(2), 1));
        bed.kill_agent();
        Netlink::open().unwrap().delete_if_exists(&host).await.unwrap();
        bed.start_agent().await;
        let names = |container: u32, number| Names::of(&interface_id(&id(container), number)).shim_ovs;
        let left = [names(1, 0), names(1, 1), names(1, 2), names(2, 0), names(2, 2)];
        assert_eq!((sorted(bed.ovs.ports()), pinned(&bed)), (sorted(left.into()), 5), "{}", bed.log());
        megabyte(&pod, &other, "172.16.2.4:7004").await;

        // DEL while the agent is away, and the namespaces with it.
        bed.kill_agent();
        assert_eq!(bed.del(&id(2), Some(other.path())).await.error(), 0);
        drop(other);
        let hosts = hosts(&id(2), 3);
        while bed.left_links().await.iter().any(|link| hosts.contains(link)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bed.start_agent().await;
        assert_eq!((bed.ovs.ports().len(), pinned(&bed)), (3, 3), "{}", bed.log());
        assert_eq!(bed.del(&id(1), None).await.error(), 0);
        bed.assert_clean().await;
        assert_eq!(pinned(&bed), 0);
    });
}

#[test]
fn del_after_the_namespace_and_gc_leave_nothing() {
    on_a_node(async || {
        let bed = Bed::ready("ebpf").await;
        let _ovn = bed.ovs.play_ovn_controller().await;
        let (pod, other) = (Pod::new(), Pod::new());
        bed.api.put("a", "u1", Some(&three(3)));
        bed.api.put("b", "u2", Some(&with(4, &[("shop/blue", entry(1, 4))])));
        for (n, pod, name, uid) in [(1, &pod, "a", "u1"), (2, &other, "b", "u2")] {
            let added = bed.add(&id(n), pod, name, uid).await;
            assert_eq!(added.error(), 0, "{added:?}");
        }
        let keep = json!([{ "containerID": id(1), "ifname": "eth0" }]);
        let gc = |list: Value| Call {
            command: "GC",
            extra: json!({ "cni.dev/valid-attachments": list }),
            ..Call::default()
        };
        assert_eq!(bed.call(gc(keep)).await.error(), 0);
        assert_eq!((bed.ovs.ports().len(), bed.left_links().await.len(), pinned(&bed)), (3, 9, 3));

        // A part of it is gone already.
        bed.ovs.vsctl(&["del-port", &Names::of(&interface_id(&id(1), 1)).shim_ovs]);
        let path = pod.path().to_owned();
        drop(pod);
        bed.api.remove("a");
        assert_eq!(bed.del(&id(1), Some(&path)).await.error(), 0);
        bed.assert_clean().await;
        assert_eq!(pinned(&bed), 0);

        let again = bed.add(&id(3), &other, "b", "u2").await;
        assert_eq!(again.error(), 0, "{again:?}");
        assert_eq!(bed.call(gc(json!([]))).await.error(), 0);
        bed.assert_clean().await;
        assert_eq!(pinned(&bed), 0);
    });
}

#[test]
fn what_an_agent_that_was_killed_in_the_middle_left_goes_with_the_next_del() {
    on_a_node(async || {
        let mut bed = Bed::ready("ebpf").await;
        let (pod, a) = (Pod::new(), id(1));
        bed.api.put("a", "u1", Some(&three(3)));
        // It waits for OVN, which never comes.
        let (mut command, conf) =
            bed.command(&Call { id: &a, netns: Some(pod.path()), pod: "a", uid: "u1", ..Call::default() });
        let mut child = command.spawn().unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut child.stdin.take().unwrap(), conf.as_bytes()).await.unwrap();
        while bed.ovs.ports().len() < 3 || pinned(&bed) < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bed.kill_agent();
        child.wait_with_output().await.unwrap();
        bed.start_agent().await;
        assert_eq!(bed.left_links().await.len(), 9, "the pod may be alive");
        assert_eq!(bed.del(&a, Some(pod.path())).await.error(), 0);
        bed.assert_clean().await;
        assert_eq!(pinned(&bed), 0);

        // Before there was anything but links, of which some had no alias yet.
        let netlink = Netlink::open().unwrap();
        for number in 0..3 {
            let Names { host, shim_agent, shim_ovs } = Names::of(&interface_id(&a, number));
            for (name, peer) in [(&shim_agent, shim_ovs.clone()), (&host, format!("peer{number}"))] {
                let (mac, peer_mac, peer_netns) = (None, None, None);
                let (group, peer_group, mtu) = (0, 0, 1400);
                let pair = Veth { name, mac, group, peer: &peer, peer_mac, peer_group, peer_netns, mtu };
                netlink.create_veth(&pair).await.unwrap();
            }
        }
        bed.api.remove("a");
        assert_eq!(bed.del(&a, Some(pod.path())).await.error(), 0);
        bed.assert_clean().await;
    });
}

/// The time is no limit but a figure to read: `--nocapture` shows it.
async fn ten(datapath: &'static str) -> String {
    let bed = Bed::ready(datapath).await;
    let _ovn = bed.ovs.play_ovn_controller().await;
    let keys: Vec<String> = (1..10).map(|net| format!("shop/net-{net}")).collect();
    let entries: Vec<_> = keys.iter().zip(1..).map(|(key, net)| (key.as_str(), entry(net, 3))).collect();
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..5 {
        for (times, entries) in times.iter_mut().zip([&entries[..0], &entries[..]]) {
            let count = entries.len() + 1;
            let (pod, a) = (Pod::new(), id(round * 100 + u32::try_from(count).unwrap()));
            bed.api.put("a", "u1", Some(&with(3, entries)));
            tokio::time::sleep(Duration::from_millis(100)).await;
            let start = Instant::now();
            let added = bed.add(&a, &pod, "a", "u1").await;
            times.push(start.elapsed());
            assert_eq!((added.error(), bed.ovs.ports().len()), (0, count), "{added:?}");
            assert_eq!(inside(&pod).await.0.len(), count);
            assert_eq!(bed.del(&a, Some(pod.path())).await.error(), 0);
            bed.assert_clean().await;
        }
    }
    times.iter_mut().for_each(|times| times.sort());
    format!("{datapath}: one interface {:?}, ten {:?} (medians of 5)", times[0][2], times[1][2])
}

#[test]
fn ten_interfaces_are_made_in_one_add() {
    on_a_node(async || println!("{}", ten("ovs").await));
}

#[test]
fn ten_interfaces_are_made_in_one_add_interposed() {
    on_a_node(async || println!("{}", ten("ebpf").await));
}
