//! Links and namespaces against the real kernel. Needs root.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test")]

mod common;

use common::{Pod, on_a_node};
use node_agent::kernel::link::{LinkError, Netlink, Route, Veth, address::Neighbour, ethtool};
use node_agent::kernel::netns::Netns;
use node_agent::kernel::sysctl;
use node_agent::pod::duplicates::{self, Asked};

fn veth<'a>(name: &'a str, peer: &'a str) -> Veth<'a> {
    Veth { name, mac: None, group: 0, peer, peer_mac: None, peer_group: 0, peer_netns: None, mtu: 1400 }
}

/// Runs an async piece of work with a netlink handle inside `pod`.
async fn inside<T, F, Fut>(pod: &Netns, work: F) -> T
where
    T: Send + 'static,
    F: FnOnce(Netlink) -> Fut + Send + 'static,
    Fut: Future<Output = T>,
{
    let body = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move { work(Netlink::open().unwrap()).await })
    };
    pod.run("test-inside", body).await.unwrap()
}

#[test]
fn a_veth_is_created_with_its_peer_in_the_pod_and_goes_with_it() {
    on_a_node(async || {
        let pod = Pod::new();
        let netns = Netns::open(pod.path()).unwrap();
        let netlink = Netlink::open().unwrap();
        let mac = "0a:58:0a:f4:00:03".parse().unwrap();
        let pair = Veth {
            group: 0x5151,
            peer_mac: Some(mac),
            peer_netns: Some(netns.raw_fd()),
            ..veth("host0", "eth0")
        };
        netlink.create_veth(&pair).await.unwrap();

        let host = netlink.get("host0").await.unwrap();
        assert_eq!(
            (host.mtu, host.group, host.kind.as_deref(), host.up),
            (1400, 0x5151, Some("veth"), false)
        );
        assert!(netlink.find("eth0").await.unwrap().is_none(), "the peer must not be seen on the node");
        let twice = netlink.create_veth(&pair).await.unwrap_err();
        assert!(twice.already_exists() && twice.to_string().contains("host0"), "{twice}");

        let found = inside(&netns, async move |inner| {
            let eth0 = inner.get("eth0").await.unwrap();
            inner.no_ipv6_address(eth0.index, "eth0").await.unwrap();
            inner.add_address(eth0.index, "eth0", "10.244.0.3/24".parse().unwrap()).await.unwrap();
            inner.set_up(eth0.index, "eth0").await.unwrap();
            let gateway = "10.244.0.1".parse().unwrap();
            inner.add_route("eth0", &Route::default_via(gateway, eth0.index)).await.unwrap();
            let services =
                Route { mtu: Some(1300), ..Route::via("10.96.0.0/16".parse().unwrap(), gateway, eth0.index) };
            inner.add_route("eth0", &services).await.unwrap();
            let exists = inner.add_route("eth0", &services).await.unwrap_err();
            assert!(
                exists.already_exists() && exists.to_string().contains("10.96.0.0/16 via 10.244.0.1"),
                "{exists}"
            );
            let eth0 = inner.get("eth0").await.unwrap();
            (
                inner.routes(false, 254).await.unwrap(),
                inner.addresses(eth0.index, "eth0").await.unwrap(),
                eth0,
            )
        })
        .await;
        let (routes, addresses, eth0) = found;
        assert_eq!(eth0.mac, Some(mac));
        assert!(eth0.up);
        assert_eq!(addresses, ["10.244.0.3/24".parse().unwrap()], "and no link-local address");
        let gateway = Some("10.244.0.1".parse().unwrap());
        assert!(routes.iter().any(|r| r.dest.prefix_len() == 0 && r.gateway == gateway), "{routes:?}");
        assert!(
            routes.iter().any(|r| r.dest.to_string() == "10.96.0.0/16" && r.mtu == Some(1300)),
            "{routes:?}"
        );

        assert!(netlink.delete_if_exists("host0").await.unwrap());
        assert!(
            !netlink.delete_if_exists("host0").await.unwrap(),
            "a second time there is nothing to delete"
        );
        assert!(inside(&netns, async |inner| inner.find("eth0").await.unwrap()).await.is_none());
    });
}

#[test]
fn offloads_are_really_off_and_others_stay() {
    on_a_node(async || {
        let netlink = Netlink::open().unwrap();
        netlink.create_veth(&veth("sa", "so")).await.unwrap();
        let before = ethtool::active_features("sa").unwrap();
        assert!(before.iter().any(|f| f == "tx-checksum-ip-generic"), "{before:?}");
        assert!(before.iter().any(|f| f == "tx-tcp-segmentation"), "{before:?}");

        ethtool::disable_tx_offloads("sa").unwrap();
        let after = ethtool::active_features("sa").unwrap();
        let left: Vec<_> =
            after.iter().filter(|f| f.starts_with("tx-checksum-") || f.ends_with("-segmentation")).collect();
        assert!(left.is_empty(), "{left:?}");
        assert!(
            after.iter().any(|f| f == "highdma" || f == "rx-gro" || f == "tx-vlan-hw-insert"),
            "{after:?}"
        );
        ethtool::disable_tx_offloads("sa").unwrap();

        ethtool::disable_tx_checksum("so").unwrap();
        let so = ethtool::active_features("so").unwrap();
        assert!(!so.iter().any(|f| f.starts_with("tx-checksum-")), "{so:?}");
    });
}

#[test]
fn settings_of_an_interface() {
    on_a_node(async || {
        let netlink = Netlink::open().unwrap();
        netlink.create_veth(&veth("a.b", "c")).await.unwrap();
        sysctl::disable_ipv6("a.b").unwrap();
        assert_eq!(sysctl::get_interface("ipv6", "a.b", "disable_ipv6").unwrap(), "1");
        assert_eq!(sysctl::get_interface("ipv6", "c", "disable_ipv6").unwrap(), "0");

        let link = netlink.get("c").await.unwrap();
        netlink.set_promiscuous(link.index, "c", true).await.unwrap();
        netlink.set_group(link.index, "c", 7).await.unwrap();
        netlink.set_mtu(link.index, "c", 1300).await.unwrap();
        netlink.set_up(link.index, "c").await.unwrap();
        let link = netlink.get("c").await.unwrap();
        assert_eq!((link.promiscuous, link.group, link.mtu, link.up), (true, 7, 1300, true));

        let address = "172.18.0.2/16".parse().unwrap();
        netlink.replace_address(link.index, "c", address).await.unwrap();
        netlink.replace_address(link.index, "c", address).await.unwrap();
        assert!(netlink.delete_address(link.index, "c", address).await.unwrap());
        assert!(!netlink.delete_address(link.index, "c", address).await.unwrap());

        let neighbour =
            Neighbour { ip: "169.254.169.1".parse().unwrap(), mac: "0a:58:a9:fe:a9:01".parse().unwrap() };
        netlink.replace_neighbour(link.index, "c", neighbour).await.unwrap();
        assert_eq!(netlink.permanent_neighbours(link.index, "c").await.unwrap(), [neighbour]);
        assert!(netlink.delete_neighbour(link.index, "c", neighbour.ip).await.unwrap());
        assert!(!netlink.delete_neighbour(link.index, "c", neighbour.ip).await.unwrap());
    });
}

#[test]
fn a_namespace_that_is_gone_is_told_from_one_that_cannot_be_entered() {
    on_a_node(async || {
        let pod = Pod::new();
        let path = pod.path().to_owned();
        Netns::open(&path).unwrap();
        drop(pod);
        let gone = Netns::open(&path).unwrap_err();
        assert!(gone.is_gone(), "{gone}");

        let mount = Netns::open("/proc/thread-self/ns/mnt".as_ref()).unwrap();
        let refused = mount.run("test", || ()).await.unwrap_err();
        assert!(!refused.is_gone() && refused.to_string().contains("setns"), "{refused}");
    });
}

#[test]
fn lists_asked_for_at_once_are_all_complete() {
    on_a_node(async || {
        let netlink = Netlink::open().unwrap();
        for pair in 0..40 {
            let (host, peer) = (format!("h{pair}"), format!("p{pair}"));
            netlink.create_veth(&veth(&host, &peer)).await.unwrap();
        }
        let asked = (0..60).map(|_| {
            let netlink = netlink.clone();
            tokio::spawn(async move {
                let links = netlink.list().await?;
                netlink.queueing_disciplines().await?;
                netlink.routes(false, 255).await?;
                Ok(links.len())
            })
        });
        for asked in asked.collect::<Vec<_>>() {
            let links: Result<_, LinkError> = asked.await.unwrap();
            assert!(links.unwrap() > 80);
        }
    });
}

/// The pod's side of `find` and `announce`, with both families.
fn asked(mac: api::MacAddr) -> Vec<Asked> {
    let addresses = ["172.16.1.7", "fd00:1::7"].map(|ip| ip.parse().unwrap()).into();
    vec![Asked { ifname: "net1".to_owned(), mac, addresses }]
}

#[test]
fn an_address_that_another_host_uses_is_found_and_an_announcement_is_heard() {
    on_a_node(async || {
        let pod = Pod::new();
        let netns = Netns::open(pod.path()).unwrap();
        let netlink = Netlink::open().unwrap();
        let mac: api::MacAddr = "0a:58:ac:10:01:07".parse().unwrap();
        let pair = Veth {
            mac: Some("52:54:00:01:02:03".parse().unwrap()),
            peer_mac: Some(mac),
            peer_netns: Some(netns.raw_fd()),
            ..veth("host0", "net1")
        };
        netlink.create_veth(&pair).await.unwrap();
        let host = netlink.get("host0").await.unwrap();
        netlink.set_up(host.index, "host0").await.unwrap();
        inside(&netns, async |inner| {
            let net1 = inner.get("net1").await.unwrap();
            inner.set_up(net1.index, "net1").await.unwrap();
        })
        .await;
        sysctl::set_interface("ipv6", "host0", "accept_dad", "0").unwrap();
        netlink.add_address(host.index, "host0", "172.16.1.1/24".parse().unwrap()).await.unwrap();
        netlink.add_address(host.index, "host0", "fd00:1::1/64".parse().unwrap()).await.unwrap();
        assert_eq!(duplicates::find(asked(mac), &netns).await.unwrap(), []);

        for taken in ["172.16.1.7", "fd00:1::7"] {
            let address: ipnet::IpNet =
                format!("{taken}/{}", if taken.contains(':') { 64 } else { 24 }).parse().unwrap();
            netlink.add_address(host.index, "host0", address).await.unwrap();
            let found = duplicates::find(asked(mac), &netns).await.unwrap();
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!((found[0].ifname.as_str(), found[0].address), ("net1", address.addr()));
            assert_eq!(found[0].user, host.mac.unwrap());
            // A host of another cluster may have the pod's own MAC address with the address.
            netlink.set_mac(host.index, "host0", mac).await.unwrap();
            let found = duplicates::find(asked(mac), &netns).await.unwrap();
            assert_eq!(found.first().map(|one| one.user), Some(mac), "{found:?}");
            netlink.set_mac(host.index, "host0", host.mac.unwrap()).await.unwrap();
            netlink.delete_address(host.index, "host0", address).await.unwrap();
        }
        assert_eq!(duplicates::find(asked(mac), &netns).await.unwrap(), []);

        // The host has old entries for both.
        let other: api::MacAddr = "52:54:00:09:09:09".parse().unwrap();
        for one in &asked(mac)[0].addresses {
            old_neighbour(*one, other);
        }
        duplicates::announce(asked(mac), &netns).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let known = neighbours();
        assert_eq!(known.matches(&mac.to_string()).count(), 2, "{known}");

        let gone = vec![Asked { ifname: "net9".to_owned(), ..asked(mac)[0].clone() }];
        let error = duplicates::find(gone, &netns).await.unwrap_err().to_string();
        assert!(error.contains("net9"), "{error}");
    });
}

fn ip(arguments: &[&str]) -> String {
    let out = std::process::Command::new("ip").args(arguments).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

fn old_neighbour(address: std::net::IpAddr, mac: api::MacAddr) {
    let (address, mac) = (address.to_string(), mac.to_string());
    ip(&["neigh", "replace", &address, "lladdr", &mac, "dev", "host0", "nud", "stale"]);
}

fn neighbours() -> String {
    ip(&["neigh", "show", "dev", "host0"])
}
