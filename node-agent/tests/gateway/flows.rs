use std::collections::{BTreeMap, BTreeSet};

use api::annotation::GatewayMode;
use node_agent::gateway::flow_writer::FlowWriter;
use node_agent::gateway::flows::{self, FamilyInputs, Inputs};
use node_agent::gateway::nft;
use node_agent::gateway::nft::local::LocalGateway;
use node_agent::kernel;
use node_agent::ovs::openflow::management_socket;

use crate::world::{World, on_a_node, output};

fn inputs() -> Inputs {
    Inputs {
        mode: GatewayMode::Shared,
        uplink: "1".to_owned(),
        patch: Some("2".to_owned()),
        mac: "02:42:ac:12:00:02".parse().unwrap(),
        families: vec![FamilyInputs {
            node: "172.18.0.2/16".parse().unwrap(),
            service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
            masquerade_ovn: "169.254.169.1".parse().unwrap(),
            masquerade_host: "169.254.169.2".parse().unwrap(),
        }],
        remote_nodes: BTreeSet::from(["172.18.0.3".parse().unwrap()]),
        tunnel_ends: BTreeSet::from(["172.18.0.3".parse().unwrap()]),
        local_ports: 32768..=60999,
    }
}

fn dual_inputs() -> Inputs {
    let mut dual = inputs();
    dual.families.push(FamilyInputs {
        node: "fd00:172:18::2/64".parse().unwrap(),
        service_cidrs: vec!["fd00:10:96::/112".parse().unwrap()],
        masquerade_ovn: "fd69::1".parse().unwrap(),
        masquerade_host: "fd69::2".parse().unwrap(),
    });
    dual.remote_nodes.insert("fd00:172:18::3".parse().unwrap());
    dual
}

fn dump(world: &World) -> Vec<String> {
    let socket = management_socket(&world.db(), "breth0").unwrap();
    let target = format!("unix:{}", socket.display());
    let text = output(world.ofctl(), &["--no-stats", "--sort", "dump-flows", &target]);
    text.lines().map(|l| l.trim().to_owned()).filter(|l| !l.is_empty()).collect()
}

#[test]
fn ovs_takes_all_flows_and_is_written_to_only_when_they_differ() {
    on_a_node(|mut world| async move {
        let migration = world.migration();
        migration.take("eth0").await.unwrap();
        let mut writer = FlowWriter::new(&world.ofctl(), &world.db(), "breth0");
        let set = flows::compute(&inputs(), &[]);
        assert!(writer.write(&set).await.unwrap());
        assert_eq!(dump(&world).len(), set.len());
        assert!(!writer.write(&set).await.unwrap(), "the same again starts nothing");

        // All flows, including those for ports that the node's own connections may have.
        let wide = Inputs { local_ports: 1024..=65535, ..dual_inputs() };
        let dual = flows::compute(&wide, &services());
        assert!(writer.write(&dual).await.unwrap());
        let there = dump(&world);
        assert_eq!(there.len(), dual.len(), "{there:#?}");
        assert!(writer.write(&set).await.unwrap());

        let mut fewer = inputs();
        fewer.remote_nodes.clear();
        let fewer = flows::compute(&fewer, &[]);
        assert!(writer.write(&fewer).await.unwrap());
        assert_eq!(dump(&world).len(), set.len() - 1);

        // A restarted OVS has only its own flow; the writer must be notified.
        world.kill_switch();
        world.start_switch();
        node_agent::gateway::bridge::wait_for_port(&world.ovs, "breth0").await.unwrap();
        let socket = management_socket(&world.db(), "breth0").unwrap();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        writer.forget();
        assert!(writer.write(&set).await.unwrap());
        assert_eq!(dump(&world).len(), set.len());
    });
}

#[test]
fn the_kernel_takes_the_rulesets_and_their_removal() {
    on_a_node(|_world| async move {
        let inputs = nft::Inputs {
            families: vec![
                nft::FamilyInputs {
                    node: "172.18.0.2".parse().unwrap(),
                    masquerade_local: "169.254.169.3".parse().unwrap(),
                },
                nft::FamilyInputs {
                    node: "fd00:172:18::2".parse().unwrap(),
                    masquerade_local: "fd69::3".parse().unwrap(),
                },
            ],
            management: Some((
                "ovn-k8s-mp0".to_owned(),
                vec!["10.244.0.2".parse().unwrap(), "fd00:10:244::2".parse().unwrap()],
            )),
            remote_nodes: BTreeSet::from(["172.18.0.3".parse().unwrap(), "fd00:172:18::3".parse().unwrap()]),
            nodes: BTreeMap::new(),
            local: Some(LocalGateway {
                bridge: "breth0".to_owned(),
                subnets: ["10.244.0.0/24", "fd00:10:244::/64"].map(|net| net.parse().unwrap()).to_vec(),
                masquerade: ["169.254.169.0/29", "fd69::/125"].map(|net| net.parse().unwrap()).to_vec(),
            }),
        };
        let mut writer = kernel::nft::Writer::default();
        assert!(writer.write(nft::services_table(&inputs, &services())).await.unwrap());
        assert!(!writer.write(nft::services_table(&inputs, &services())).await.unwrap());
        kernel::nft::apply(&nft::ports_tables()).await.unwrap();
        let text = output("nft", &["list", "ruleset"]);
        for rule in [
            "tcp . 30080 : 10.96.0.51 . 80",
            "172.18.10.1 . tcp . 80 : 169.254.169.3 . 30081",
            "ip daddr 172.18.10.9 tcp dport 80 dnat ip to numgen random mod 2",
            "redirect to :9090",
            "snat ip to 10.244.0.2",
            "tcp . 30080 : fd00:10:96::51 . 80",
            "fd00:172:18:10::1 . tcp . 80 : fd69::3 . 30081",
            "ip6 daddr fd00:172:18:10::9 tcp dport 80 dnat ip6 to numgen random mod 2",
            "ip6 daddr fd00:10:96::58 tcp dport 80 redirect to :9090",
            "icmpv6 type packet-too-big ip6 daddr @remote_nodes6 drop",
            "snat ip6 to fd00:10:244::2",
            "iifgroup 20817 drop",
            "map local_policy_node_ports6 {",
            "ip6 saddr fd00:10:244::/64 masquerade fully-random",
            "iifname \"breth0\" ct status dnat return",
            "icmpv6 type nd-redirect oifname \"breth0\" drop",
        ] {
            assert!(text.contains(rule), "{rule} is not in\n{text}");
        }
        kernel::nft::apply(&nft::removal()).await.unwrap();
        assert_eq!(output("nft", &["list", "ruleset"]).trim(), "");
        kernel::nft::apply(&nft::removal()).await.unwrap();
        let error = kernel::nft::apply("table inet x { nonsense }").await.unwrap_err().to_string();
        assert!(error.contains("nft rejected"), "{error}");
    });
}

/// One service of each kind that has rules of its own.
fn services() -> Vec<nft_services::NodeService> {
    use api::{NamespacedName, Protocol};
    use nft_services::{NodeService, NodeServicePort};
    let service = |name: &str, last: &str| NodeService {
        name: NamespacedName::new("red", name),
        cluster_ips: vec![
            format!("10.96.0.{last}").parse().unwrap(),
            format!("fd00:10:96::{last}").parse().unwrap(),
        ],
        external_ips: Vec::new(),
        external_local: false,
        internal_local: false,
        sticky: false,
        health_check_port: None,
        ports: vec![NodeServicePort {
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
            local: Vec::new(),
            elsewhere: BTreeSet::new(),
        }],
        local_backends: 0,
    };
    let ips = |list: &[&str]| list.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<_>>();
    let backends = || {
        let pods = ips(&["10.244.0.3", "10.244.0.4", "fd00:10:244::3", "fd00:10:244::4"]);
        pods.into_iter().map(|ip| (ip, 8080)).collect::<Vec<_>>()
    };
    let mut node_port = service("nodeport", "51");
    node_port.ports[0].node_port = Some(30080);
    let mut local = service("lb-local", "53");
    local.external_local = true;
    local.external_ips = ips(&["172.18.10.1", "fd00:172:18:10::1"]);
    local.ports[0].node_port = Some(30081);
    local.ports[0].local = backends();
    let mut no_node_port = local.clone();
    no_node_port.name.name = "lb-direct".to_owned();
    no_node_port.external_ips = ips(&["172.18.10.9", "fd00:172:18:10::9"]);
    no_node_port.ports[0].node_port = None;
    let mut internal = service("internal", "56");
    internal.internal_local = true;
    internal.ports[0].local = backends();
    let mut redirected = service("host", "58");
    redirected.internal_local = true;
    redirected.ports[0].local =
        ips(&["172.18.0.2", "fd00:172:18::2"]).into_iter().map(|ip| (ip, 9090)).collect();
    vec![node_port, local, no_node_port, internal, redirected]
}

use node_agent::gateway::services as nft_services;
