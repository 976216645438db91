//! Calls as Multus makes them: one for the pod's first interface, unless another plugin has the cluster's network, and one for each
//! NetworkAttachmentDefinition. Each makes and removes its own interface alone.

use std::path::Path;

use node_agent::attach::{Names, interface_id};
use node_agent::kernel::link::{Route, Veth};
use serde_json::{Value, json};

use crate::bed::{Answer, Bed, Call, id};
use crate::common::{Pod, on_a_node};
use crate::interfaces::{in_pod, inside, pinned, sorted, three};

/// A pod that names both of its networks by definitions.
fn put(bed: &Bed, networks: &str) {
    bed.api.put_naming("a", "u1", Some(networks), "blue,again@net2");
}

fn entries_only(text: &str) -> String {
    let mut all: Value = serde_json::from_str(text).unwrap();
    all.as_object_mut().unwrap().remove("default");
    all.to_string()
}

fn names(container: &str, numbers: &[usize]) -> Vec<Names> {
    numbers.iter().map(|number| Names::of(&interface_id(container, *number))).collect()
}

/// The OVS ports of these interfaces of a container.
fn ports(bed: &Bed, container: &str, numbers: &[usize]) -> Vec<String> {
    let interposed = bed.datapath == "ebpf";
    let name = |names: Names| if interposed { names.shim_ovs } else { names.host };
    sorted(names(container, numbers).into_iter().map(name).collect())
}

/// The calls for one container.
struct Calls<'a> {
    bed: &'a Bed,
    id: String,
    netns: &'a Path,
}

impl Calls<'_> {
    async fn call(&self, command: &str, ifname: &str, extra: Value) -> Answer {
        let call = Call {
            command,
            id: &self.id,
            ifname,
            netns: Some(self.netns),
            pod: "a",
            uid: "u1",
            extra,
            ..Call::default()
        };
        self.bed.call(call).await
    }

    async fn add(&self, ifname: &str) -> Answer {
        self.call("ADD", ifname, json!({})).await
    }

    async fn good(&self, command: &str, ifname: &str) -> Answer {
        let answer = self.call(command, ifname, json!({})).await;
        assert_eq!(answer.error(), 0, "{command} {ifname}: {answer:?}");
        answer
    }

    async fn check(&self, ifname: &str, added: &Answer) -> Answer {
        self.call("CHECK", ifname, json!({ "prevResult": added.json() })).await
    }
}

/// Names of the interfaces in the pod.
async fn has(pod: &Pod) -> Vec<String> {
    let (interfaces, _) = inside(pod).await;
    interfaces.iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

async fn each_call_its_own_interface(datapath: &'static str) {
    let bed = Bed::under_multus(datapath, true).await;
    let _ovn = bed.ovs.play_ovn_controller().await;
    let pod = Pod::new();
    put(&bed, &three(3));
    let calls = Calls { bed: &bed, id: id(1), netns: pod.path() };
    let first = calls.good("ADD", "eth0").await;
    assert_eq!((has(&pod).await, bed.ovs.ports()), (vec!["eth0".to_owned()], ports(&bed, &calls.id, &[0])));
    assert_eq!(first.json()["interfaces"].as_array().unwrap().len(), 2, "{first:?}");

    // Not in the order of their names.
    let second = calls.good("ADD", "net2").await;
    assert!(second.stdout.contains("172.16.2.3/24") && !second.stdout.contains("eth0"), "{second:?}");
    let one = calls.good("ADD", "net1").await;
    assert_eq!(one.json()["routes"], json!([{ "dst": "172.20.0.0/16", "gw": "172.16.1.1" }]));
    assert_eq!(has(&pod).await.len(), 3);
    assert_eq!(sorted(bed.ovs.ports()), ports(&bed, &calls.id, &[0, 1, 2]));
    assert_eq!(calls.good("ADD", "net1").await.stdout, one.stdout, "a second time");
    for (ifname, added) in [("eth0", &first), ("net1", &one), ("net2", &second)] {
        assert_eq!(calls.check(ifname, added).await.error(), 0, "{ifname}");
    }

    let other = json!({ "network": "red" });
    calls.good("DEL", "net1").await;
    let refused = calls.call("ADD", "net1", other).await;
    assert!(
        refused.message().contains("on virtual network shop/blue")
            && refused.message().contains("is for red"),
        "{refused:?}"
    );
    let refused = calls.add("net7").await;
    assert!(
        refused.message().contains("`net7`") && refused.message().contains("it has net1, net2"),
        "{refused:?}"
    );
    assert_eq!(sorted(bed.ovs.ports()), ports(&bed, &calls.id, &[0, 2]));
    let said = calls.check("net1", &one).await.message();
    assert!(said.contains("interface net1 of the container has no OVS port"), "{said}");
    assert_eq!(calls.check("net2", &second).await.error(), 0);

    calls.good("DEL", "net1").await;
    calls.good("ADD", "net1").await;
    for ifname in ["net2", "net1", "net1"] {
        calls.good("DEL", ifname).await;
    }
    assert_eq!((has(&pod).await, bed.ovs.ports()), (vec!["eth0".to_owned()], ports(&bed, &calls.id, &[0])));
    calls.good("DEL", "eth0").await;
    bed.assert_clean().await;
    if datapath == "ebpf" {
        assert_eq!(pinned(&bed), 0);
    }
}

#[test]
fn each_call_makes_and_removes_its_own_interface() {
    on_a_node(async || each_call_its_own_interface("ovs").await);
}

#[test]
fn each_call_makes_and_removes_its_own_interface_interposed() {
    on_a_node(async || each_call_its_own_interface("ebpf").await);
}

#[test]
fn an_interface_without_a_definition_comes_with_the_first_and_without_multus_all_do() {
    on_a_node(async || {
        let bed = Bed::under_multus("ovs", true).await;
        let _ovn = bed.ovs.play_ovn_controller().await;
        let pod = Pod::new();
        bed.api.put_naming("a", "u1", Some(&three(3)), "blue");
        let calls = Calls { bed: &bed, id: id(1), netns: pod.path() };
        calls.good("ADD", "eth0").await;
        assert_eq!(has(&pod).await, ["eth0", "net2"]);
        calls.good("ADD", "net1").await;
        assert_eq!(sorted(has(&pod).await), ["eth0", "net1", "net2"]);
        calls.good("DEL", "eth0").await;
        bed.assert_clean().await;

        std::fs::remove_file(bed.conf_dir().join("00-multus.conf")).unwrap();
        let calls = Calls { bed: &bed, id: id(2), netns: pod.path() };
        calls.good("ADD", "eth0").await;
        assert_eq!(has(&pod).await, ["eth0", "net1", "net2"]);
        calls.good("DEL", "eth0").await;
        bed.assert_clean().await;
    });
}

async fn beside_another_plugin(datapath: &'static str) {
    let mut bed = Bed::under_multus(datapath, false).await;
    let _ovn = bed.ovs.play_ovn_controller().await;
    let pod = Pod::new();
    put(&bed, &entries_only(&three(3)));
    let calls = Calls { bed: &bed, id: id(1), netns: pod.path() };
    let refused = calls.add("eth0").await;
    assert!(
        refused.message().contains("`eth0`") && refused.message().contains("it has net1, net2"),
        "{refused:?}"
    );
    bed.assert_clean().await;

    // The first call that comes is not for the first of the pod's interfaces.
    let second = calls.good("ADD", "net2").await;
    assert_eq!((has(&pod).await, bed.ovs.ports()), (vec!["net2".to_owned()], ports(&bed, &calls.id, &[2])));
    calls.good("ADD", "net1").await;
    assert_eq!(calls.check("net2", &second).await.error(), 0);

    bed.kill_agent();
    bed.start_agent().await;
    let calls = Calls { bed: &bed, id: id(1), netns: pod.path() };
    assert_eq!(
        sorted(bed.ovs.ports()),
        ports(&bed, &calls.id, &[1, 2]),
        "an agent that starts anew keeps both"
    );
    assert_eq!(calls.check("net2", &second).await.error(), 0);
    // GC of one definition's network knows nothing of the others.
    let gc = json!({ "cni.dev/valid-attachments": [], "network": "blue" });
    assert_eq!(bed.call(Call { command: "GC", extra: gc, ..Call::default() }).await.error(), 0);
    calls.good("DEL", "net1").await;
    assert_eq!((has(&pod).await, bed.ovs.ports()), (vec!["net2".to_owned()], ports(&bed, &calls.id, &[2])));
    calls.good("DEL", "eth0").await;
    assert_eq!(bed.ovs.ports().len(), 1, "eth0 is another plugin's");
    calls.good("DEL", "net2").await;
    calls.good("DEL", "net2").await;
    bed.assert_clean().await;
    if datapath == "ebpf" {
        assert_eq!(pinned(&bed), 0);
    }
}

#[test]
fn beside_another_plugin_the_pod_gets_what_each_call_names() {
    on_a_node(async || beside_another_plugin("ovs").await);
}

#[test]
fn beside_another_plugin_the_pod_gets_what_each_call_names_interposed() {
    on_a_node(async || beside_another_plugin("ebpf").await);
}

#[test]
fn a_default_route_that_the_pod_asks_for_takes_the_place_of_the_other_plugins() {
    on_a_node(async || {
        let bed = Bed::under_multus("ovs", false).await;
        let _ovn = bed.ovs.play_ovn_controller().await;
        let pod = Pod::new();
        in_pod(&pod, async |netlink| {
            let (mac, peer_mac, peer_netns) = (None, None, None);
            let (group, peer_group, mtu) = (0, 0, 1400);
            let pair = Veth { name: "eth0", mac, group, peer: "x", peer_mac, peer_group, peer_netns, mtu };
            netlink.create_veth(&pair).await.unwrap();
            let link = netlink.get("eth0").await.unwrap();
            netlink.add_address(link.index, "eth0", "10.1.0.2/24".parse().unwrap()).await.unwrap();
            for name in ["x", "eth0"] {
                let end = netlink.get(name).await.unwrap();
                netlink.set_up(end.index, name).await.unwrap();
            }
            let route = Route::default_via("10.1.0.1".parse().unwrap(), link.index);
            netlink.add_route("eth0", &route).await.unwrap();
        })
        .await;
        let mut all: Value = serde_json::from_str(&entries_only(&three(3))).unwrap();
        all["shop/blue"]["gateway_ips"] = json!(["172.16.1.1"]);
        put(&bed, &all.to_string());
        let calls = Calls { bed: &bed, id: id(1), netns: pod.path() };
        calls.good("ADD", "net2").await;
        let defaults = async || {
            let (_, routes) = inside(&pod).await;
            routes.into_iter().filter(|route| route.starts_with("0.0.0.0/0")).collect::<Vec<_>>()
        };
        assert_eq!(defaults().await, ["0.0.0.0/0 via 10.1.0.1 dev eth0"], "it asks for none by net2");
        let added = calls.good("ADD", "net1").await;
        assert_eq!(defaults().await, ["0.0.0.0/0 via 172.16.1.1 dev net1"]);
        assert_eq!(calls.check("net1", &added).await.error(), 0);
        calls.good("DEL", "net1").await;
        calls.good("DEL", "net2").await;
        bed.assert_clean().await;
    });
}

#[test]
fn what_an_agent_that_was_killed_in_the_middle_left_goes_with_the_del_of_that_interface() {
    on_a_node(async || {
        let mut bed = Bed::under_multus("ebpf", false).await;
        let pod = Pod::new();
        put(&bed, &entries_only(&three(3)));
        let a = id(1);
        {
            let ovn = bed.ovs.play_ovn_controller().await;
            Calls { bed: &bed, id: a.clone(), netns: pod.path() }.good("ADD", "net2").await;
            ovn.abort();
        }
        // It waits for OVN, which never comes.
        let call =
            Call { id: &a, ifname: "net1", netns: Some(pod.path()), pod: "a", uid: "u1", ..Call::default() };
        let (mut command, conf) = bed.command(&call);
        let mut child = command.spawn().unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut child.stdin.take().unwrap(), conf.as_bytes()).await.unwrap();
        while bed.ovs.ports().len() < 2 || pinned(&bed) < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        bed.kill_agent();
        child.wait_with_output().await.unwrap();
        // Of the unfinished one only links are left.
        let Names { shim_ovs, .. } = Names::of(&interface_id(&a, 1));
        bed.ovs.vsctl(&["--no-wait", "del-port", &shim_ovs]);
        bed.start_agent().await;
        let calls = Calls { bed: &bed, id: a.clone(), netns: pod.path() };
        calls.good("DEL", "net1").await;
        assert_eq!((has(&pod).await, bed.ovs.ports()), (vec!["net2".to_owned()], ports(&bed, &a, &[2])));
        // Somebody else's interface of that name is left alone.
        in_pod(&pod, async |netlink| {
            let (mac, peer_mac, peer_netns) = (None, None, None);
            let pair = Veth {
                name: "net1",
                mac,
                group: 0,
                peer: "x",
                peer_mac,
                peer_group: 0,
                peer_netns,
                mtu: 1400,
            };
            netlink.create_veth(&pair).await.unwrap();
        })
        .await;
        let refused = calls.add("net1").await;
        assert!(refused.message().contains("net1 exists in"), "{refused:?}");
        assert_eq!(bed.ovs.ports(), ports(&bed, &a, &[2]));
        // The pod is gone from the API, and with it what tells which interfaces it had.
        bed.api.remove("a");
        calls.good("DEL", "net1").await;
        calls.good("DEL", "net2").await;
        bed.assert_clean().await;
        assert_eq!(pinned(&bed), 0);
    });
}
