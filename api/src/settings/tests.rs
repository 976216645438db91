use clap::Subcommand;

use super::*;
use crate::annotation::GatewayMode;
use crate::cluster_network::ClusterNetworkArgs;

#[derive(Debug, Parser)]
struct Agent {
    #[command(subcommand)]
    command: Commands,
}

#[derive(Debug, Subcommand)]
enum Commands {
    Run(Box<Flags>),
}

/// Flags as the agent has them.
#[derive(Debug, clap::Args)]
struct Flags {
    #[arg(long, env = "SLIPSTREAM_TEST_NODE_NAME")]
    node_name: String,
    #[arg(long)]
    sb: Option<String>,
    #[arg(long)]
    api_server: Option<String>,
    #[arg(long, default_value = "auto")]
    gateway_interface: String,
    #[arg(long)]
    exgw_interface: Option<String>,
    #[arg(long)]
    gateway_next_hop: Option<String>,
    #[arg(long, value_enum, default_value_t)]
    gateway_mode: GatewayMode,
    #[arg(long, default_value = "unix:/nothing/db.sock")]
    ovs_db: String,
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    node_port: bool,
    #[command(flatten)]
    network: ClusterNetworkArgs,
    #[command(flatten)]
    api: ApiAccessArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

/// A word list, separated by spaces, as a command line of the agent.
fn agent(line: &str, sources: &Sources) -> Result<(Flags, Vec<String>, Option<String>), String> {
    let argv = std::iter::once("agent").chain(line.split_whitespace()).map(OsString::from).collect();
    let settings = read_from::<Agent>(Program::Agent, argv, sources).map_err(|error| error.to_string())?;
    let Commands::Run(flags) = settings.args.command;
    Ok((*flags, settings.warnings, settings.shown))
}

fn file(dir: &tempfile::TempDir, text: &str) -> Sources {
    let file = dir.path().join("ovn_k8s.conf");
    std::fs::write(&file, text).unwrap();
    Sources { file, ..Sources::default() }
}

fn environment(variables: &[(&str, &str)]) -> Sources {
    let owned = variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
    Sources { environment: owned.collect(), ..Sources::default() }
}

#[test]
fn old_flags_are_accepted_with_a_warning_that_names_the_new_one() {
    let line = "-init-node=n1 -sb-address tcp:10.0.0.1:6642 -nb-address=tcp:10.0.0.1:6641 -init-gateways -nodeport=false \
                -gateway-interface=enp0s9 -gateway-nexthop=10.0.0.254 -cluster-subnets=192.168.0.0/16 \
                --k8s-service-cidr=172.16.1.0/24 -k8s-token=secret -k8s-apiserver=10.0.0.1:8080";
    let (flags, warnings, _) = agent(line, &Sources::default()).unwrap();
    assert_eq!((flags.node_name.as_str(), flags.node_port), ("n1", false));
    assert_eq!(flags.sb.as_deref(), Some("tcp:10.0.0.1:6642"));
    assert_eq!(flags.gateway_interface, "enp0s9");
    assert_eq!(flags.gateway_next_hop.as_deref(), Some("10.0.0.254"));
    assert_eq!(flags.network.cluster_subnets[0].to_string(), "192.168.0.0/16/24");
    assert_eq!(flags.network.service_cidrs[0].to_string(), "172.16.1.0/24");
    assert_eq!(flags.api.api_token.as_deref(), Some("secret"));
    assert_eq!(flags.api_server.as_deref(), Some("http://10.0.0.1:8080"));
    let warnings = warnings.join("\n");
    for told in
        ["write --sb", "--nb-address: ignored", "write --api-token", "write --cluster-subnets", "write run"]
    {
        assert!(warnings.contains(told), "{told}: {warnings}");
    }
    assert!(!warnings.contains("secret"));
}

#[test]
fn what_is_not_supported_is_refused_with_what_to_do() {
    let none = Sources::default();
    for (line, told) in [
        ("-init-node=n1 -gateway-mode=spare", "possible values: shared, local"),
        ("-init-node=n1 -gateway-vlanid=7", "must be 0"),
        ("-init-node=n1 -encap-type=vxlan", "must be `geneve`"),
        ("minion-init --node-name=n1 --minion-switch-subnet=10.0.0.0/24", "k8s.ovn.org/node-subnets"),
        ("-init-master=n1", "slipstream-controller run"),
        ("master-init --node-name=n1", "slipstream-controller run"),
        ("run --node-name=n1 --underlay", "never was"),
    ] {
        let error = agent(line, &none).unwrap_err();
        assert!(error.contains(told), "{line}: {error}");
    }
    // What is switched off asks for nothing.
    agent("-init-node=n1 --underlay=false", &none).unwrap();
}

#[test]
fn the_mode_of_a_gateway_has_two_flags_and_a_key() {
    use GatewayMode::{Local, Shared};
    let none = Sources::default();
    let mode = |line: &str, sources: &Sources| agent(line, sources).unwrap().0.gateway_mode;
    assert_eq!(mode("-init-node=n1 -init-gateways -gateway-local", &none), Local);
    assert_eq!(mode("-init-node=n1 -gateway-local=false", &none), Shared);
    assert_eq!(mode("-init-node=n1 -gateway-mode=local", &none), Local);
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(mode("run --node-name=n1", &file(&dir, "[gateway]\nmode=local\n")), Local);
    let in_file = file(&dir, "[gateway]\nmode=local\n");
    assert_eq!(mode("run --node-name=n1 --gateway-mode=shared", &in_file), Shared);
}

#[test]
fn the_second_uplink_has_a_flag_and_a_key() {
    let second = |line: &str, sources: &Sources| agent(line, sources).unwrap().0.exgw_interface;
    assert_eq!(second("-init-node=n1 -exgw-interface=eth1", &Sources::default()).as_deref(), Some("eth1"));
    let dir = tempfile::tempdir().unwrap();
    let in_file = file(&dir, "[gateway]\negw-interface=eth2\n");
    assert_eq!(second("run --node-name=n1", &in_file).as_deref(), Some("eth2"));
}

#[test]
fn flag_goes_before_environment_before_file_before_external_ids_before_default() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("db.sock");
    let ids = [["k8s-api-server", "10.0.0.4"], ["k8s-api-token", "of-ovs"]];
    let source = |line: &str, variable: Option<&str>, in_file: bool, in_ovs: bool| {
        let text = if in_file { "[kubernetes]\napiserver=10.0.0.3\n" } else { "" };
        let mut sources = file(&dir, text);
        sources.environment.extend(variable.map(|value| ("K8S_APISERVER".to_owned(), value.to_owned())));
        let _ = std::fs::remove_file(&socket);
        if in_ovs {
            external_ids::tests::serve(&socket, serde_json::json!(ids));
        }
        let line = format!("run --node-name=n1 --ovs-db=unix:{} {line}", socket.display());
        let (flags, ..) = agent(&line, &sources).unwrap();
        assert_eq!(flags.api.api_token.as_deref(), in_ovs.then_some("of-ovs"));
        flags.api_server
    };
    let server = |host: &str| Some(format!("http://{host}"));
    assert_eq!(source("--api-server=http://10.0.0.1", Some("10.0.0.2"), true, true), server("10.0.0.1"));
    assert_eq!(source("", Some("10.0.0.2"), true, true), server("10.0.0.2"));
    assert_eq!(source("", None, true, true), server("10.0.0.3"));
    assert_eq!(source("", None, false, true), server("10.0.0.4"));
    assert_eq!(source("", None, false, false), None);
}

#[test]
fn a_file_of_ovn_kubernetes_is_read_and_what_means_nothing_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let sources = file(
        &dir,
        "[Default]\nmtu=1300\nconntrack-zone=64000\n[Kubernetes]\ncacert=/nothing/ca.crt\n[Gateway]\nmode=shared\n\
         next-hop=10.0.0.254\n[Hybrid]\nenabled=true\n",
    );
    let (flags, warnings, _) = agent("run --node-name=n1", &sources).unwrap();
    assert_eq!(flags.network.mtu, 1300);
    assert_eq!((flags.gateway_next_hop.as_deref(), flags.api.api_ca), (Some("10.0.0.254"), None));
    let warnings = warnings.join("\n");
    for told in ["conntrack-zone: ignored", "no file /nothing/ca.crt", "[hybrid] enabled"] {
        assert!(warnings.contains(told), "{told}: {warnings}");
    }
}

#[test]
fn a_wrong_value_is_told_with_the_place_it_is_from() {
    let dir = tempfile::tempdir().unwrap();
    let error = agent("run --node-name=n1", &file(&dir, "[default]\nmtu=big\n")).unwrap_err();
    assert!(error.contains("'big'") && error.contains("ovn_k8s.conf [default] mtu"), "{error}");
    let error = agent("run --node-name=n1", &environment(&[("net_cidr", "10.0.0.0")])).unwrap_err();
    assert!(error.contains("environment net_cidr"), "{error}");
    let error = agent("run --node-name=n1", &file(&dir, "[gateway]\nmode=spare\n")).unwrap_err();
    assert!(error.contains("[gateway] mode = `spare`"), "{error}");
}

#[test]
fn keys_of_the_config_map_are_variables_by_either_name() {
    let raw = environment(&[
        ("OvnSouth", "tcp:10.0.0.1:6642"),
        ("net_cidr", "10.128.0.0/14"),
        ("svc_cidr", "172.30.0.0/16"),
    ]);
    let (flags, ..) = agent("run --node-name=n1", &raw).unwrap();
    assert_eq!(flags.sb.as_deref(), Some("tcp:10.0.0.1:6642"));
    assert_eq!(flags.network.cluster_subnets[0].to_string(), "10.128.0.0/14/24");
    let shell = environment(&[("OVN_SOUTH", "tcp:10.0.0.2:6642"), ("OVN_SVC_CIDR", "172.30.0.0/16")]);
    let (flags, ..) = agent("run --node-name=n1", &shell).unwrap();
    assert_eq!(flags.sb.as_deref(), Some("tcp:10.0.0.2:6642"));
    assert_eq!(flags.network.service_cidrs[0].to_string(), "172.30.0.0/16");
}

#[test]
fn every_value_is_shown_with_where_it_came_from_and_no_secret() {
    let sources = environment(&[("K8S_TOKEN", "hidden-one"), ("OVN_SOUTH", "tcp:10.0.0.2:6642")]);
    let (_, _, shown) = agent("run --node-name=n1 --mtu 1300 --print-config", &sources).unwrap();
    let shown = shown.unwrap();
    let line = |name: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("mtu"), "mtu 1300 command line");
    assert_eq!(line("sb"), "sb tcp:10.0.0.2:6642 environment OVN_SOUTH");
    assert_eq!(line("api-token"), "api-token (not shown) environment K8S_TOKEN");
    assert_eq!(line("service-cidrs"), "service-cidrs 10.96.0.0/12 default");
    assert_eq!(line("gateway-next-hop"), "gateway-next-hop - not set");
    assert!(!shown.contains("hidden-one"));
}

#[test]
fn a_kubeconfig_is_made_of_token_and_authority() {
    assert_eq!(ApiAccessArgs::default().kubeconfig(None), Ok(None));
    let args = ApiAccessArgs { api_token: Some("t".to_owned()), ..ApiAccessArgs::default() };
    assert!(args.kubeconfig(None).unwrap_err().to_string().contains("--api-server"));
    let made = args.kubeconfig(Some("https://10.0.0.1")).unwrap().unwrap();
    assert_eq!(made.pointer("/users/0/user/token").unwrap(), "t");
    assert_eq!(made.pointer("/clusters/0/cluster/server").unwrap(), "https://10.0.0.1");
}
