//! What clients are told, and how long it takes. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use traffic::{PORT, SHORTEST, Test};

use crate::document::NotMeasured;
use crate::options::{Family, RunArgs};
use crate::paths::{Client, Path, Server, Way};

/// What a slice takes beside its length and its warm-up, a tenth: asking the server how long it waited.
const AROUND: Duration = Duration::from_millis(3);
/// What a slice of datagrams takes beside that: waiting for those on their way.
const DRAIN: Duration = Duration::from_millis(60);
/// Start and end of a client's pod.
const POD: Duration = Duration::from_secs(4);
/// How long a path may take to open, in seconds: rules of a Service come a little after its endpoints.
const PATIENCE: u64 = 10;

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) passes: u32,
    /// Rounds of each pass.
    pub(crate) rounds: u32,
    pub(crate) slice: Duration,
}

impl Amount {
    /// Amount that the arguments ask for.
    pub(crate) fn of(args: &RunArgs) -> Self {
        let (rounds, passes, slice) = if args.quick { (30, 2, 20) } else { (300, 3, 30) };
        let passes = args.passes.unwrap_or(passes);
        let rounds = args.rounds.unwrap_or(rounds).div_ceil(passes);
        Self { passes, rounds, slice: Duration::from_millis(args.slice_ms.unwrap_or(slice)) }
    }

    /// How long a client takes for a test of so many paths.
    pub(crate) fn test(&self, test: Test, paths: usize) -> Duration {
        let slice = match test {
            Test::UdpRate => self.slice.max(SHORTEST).mul_f64(1.1) + AROUND + DRAIN,
            _ => self.slice.mul_f64(1.1) + AROUND,
        };
        slice * self.rounds * u32::try_from(paths).unwrap_or(u32::MAX)
    }

    /// How long a client's pod takes for all tests.
    pub(crate) fn client(&self, tests: &[Test], paths: usize) -> Duration {
        POD + tests.iter().map(|test| self.test(*test, paths)).sum::<Duration>()
    }
}

/// Addresses, as the cluster has given them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) servers: BTreeMap<Server, Vec<IpAddr>>,
    pub(crate) cluster_ips: BTreeMap<Server, Vec<IpAddr>>,
    pub(crate) own_node: Vec<IpAddr>,
    pub(crate) other_node: Vec<IpAddr>,
    /// Node port of the Service, one number for TCP and UDP.
    pub(crate) node_port: Option<u16>,
    pub(crate) node_port_local: Option<u16>,
    /// Control port of servers with the node's network.
    pub(crate) host_port: u16,
}

/// A path by one family of addresses, as a client is told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lane {
    pub(crate) name: String,
    pub(crate) path: Path,
    pub(crate) is_ipv6: bool,
    /// `NAME=TARGET` or `NAME=TARGET@ADDRESS`.
    pub(crate) spec: String,
}

/// The name of a path by a family.
pub(crate) fn lane_name(path: Path, is_ipv6: bool) -> String {
    if is_ipv6 { format!("{}-6", path.name()) } else { path.name() }
}

/// What is measured on each path, and what cannot be.
pub(crate) fn lanes(paths: &[Path], family: Family, addresses: &Addresses) -> (Vec<Lane>, Vec<NotMeasured>) {
    let (mut lanes, mut not_measured) = (Vec::new(), Vec::new());
    // A family that no server has is none of the cluster's.
    let of = |six: bool| {
        let mut all = addresses.servers.values().flatten().filter(|ip| family.has(**ip));
        all.any(|ip| ip.is_ipv6() == six)
    };
    let named = [(Family::Ipv4, false), (Family::Ipv6, true)];
    let families = named.into_iter().filter(|(asked, six)| family == *asked || of(*six));
    let families: Vec<bool> = families
        .filter(|(asked, _)| family == Family::Both || family == *asked)
        .map(|(_, six)| six)
        .collect();
    for path in paths {
        for &is_ipv6 in &families {
            let name = lane_name(*path, is_ipv6);
            match spec(*path, is_ipv6, addresses) {
                Ok(rest) => lanes.push(Lane { spec: format!("{name}={rest}"), name, path: *path, is_ipv6 }),
                Err(reason) => not_measured.push(NotMeasured { path: name, test: None, reason }),
            }
        }
    }
    (lanes, not_measured)
}

fn spec(path: Path, is_ipv6: bool, addresses: &Addresses) -> Result<String, String> {
    let family = if is_ipv6 { "IPv6" } else { "IPv4" };
    let pick = |all: Option<&Vec<IpAddr>>, whose: &str| {
        let found = all.into_iter().flatten().find(|ip| ip.is_ipv6() == is_ipv6).copied();
        found.ok_or_else(|| format!("{whose} has no {family} address"))
    };
    let server = path.server();
    let host = server == Server::OtherHost;
    let port = if host { addresses.host_port } else { PORT };
    let whose = if host { "the other node" } else { "the server's pod" };
    let target = SocketAddr::new(pick(addresses.servers.get(&server), whose)?, port);
    let node_port = |port: Option<u16>| {
        port.ok_or_else(|| "the Service has no node port that is the same for TCP and UDP".to_owned())
    };
    let data = match path.way() {
        Way::Direct => return Ok(target.to_string()),
        Way::ClusterIp => SocketAddr::new(pick(addresses.cluster_ips.get(&server), "the Service")?, PORT + 1),
        Way::NodePortOwn => SocketAddr::new(
            pick(Some(&addresses.own_node), "the client's node")?,
            node_port(addresses.node_port)?,
        ),
        Way::NodePortOther => SocketAddr::new(
            pick(Some(&addresses.other_node), "the other node")?,
            node_port(addresses.node_port)?,
        ),
        Way::NodePortLocal => SocketAddr::new(
            pick(Some(&addresses.other_node), "the other node")?,
            node_port(addresses.node_port_local)?,
        ),
    };
    Ok(format!("{target}@{data}"))
}

/// Arguments of the traffic tool in the pod of a client.
pub(crate) fn arguments(client: Client, lanes: &[Lane], tests: &[Test], amount: Amount) -> Vec<String> {
    let specs: Vec<_> =
        lanes.iter().filter(|lane| lane.path.client() == client).map(|lane| lane.spec.as_str()).collect();
    let tests: Vec<_> = tests.iter().map(|test| test.name()).collect();
    let words = [
        "run",
        "--json",
        "-",
        "--patience",
        &PATIENCE.to_string(),
        "--slice-ms",
        &amount.slice.as_millis().to_string(),
        "--rounds",
        &amount.rounds.to_string(),
        "--paths",
        &specs.join(","),
        &tests.join(","),
    ];
    words.map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::options::tests::parsed;

    fn amount(line: &str) -> Amount {
        Amount::of(&parsed(line))
    }

    fn addresses() -> Addresses {
        let ips = |text: &str| text.split(',').map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>();
        Addresses {
            servers: [
                (Server::Other, ips("10.0.1.7,fd00::7")),
                (Server::Same, ips("10.0.0.7,fd00::1")),
                (Server::OtherHost, ips("192.0.2.2")),
            ]
            .into(),
            cluster_ips: [(Server::Other, ips("10.96.0.9,fd96::9")), (Server::Same, ips("10.96.0.8"))].into(),
            own_node: ips("192.0.2.1"),
            other_node: ips("192.0.2.2"),
            node_port: Some(30_100),
            node_port_local: None,
            host_port: 25_501,
        }
    }

    #[test]
    fn each_path_leads_to_its_server_by_its_address() {
        let spec = |path| spec(path, false, &addresses()).unwrap();
        assert_eq!(spec(Path::PodIp), "10.0.1.7:5501");
        assert_eq!(spec(Path::ClusterIp), "10.0.1.7:5501@10.96.0.9:5502");
        assert_eq!(spec(Path::ClusterIpSame), "10.0.0.7:5501@10.96.0.8:5502");
        assert_eq!(spec(Path::NodePort), "10.0.1.7:5501@192.0.2.1:30100");
        assert_eq!(spec(Path::NodePortOther), "10.0.1.7:5501@192.0.2.2:30100");
        assert_eq!(spec(Path::HostHost), "192.0.2.2:25501");
        assert_eq!(
            super::spec(Path::ClusterIp, true, &addresses()).unwrap(),
            "[fd00::7]:5501@[fd96::9]:5502"
        );
    }

    #[test]
    fn what_has_no_address_is_not_measured_and_says_why() {
        let (lanes, not) = lanes(Path::value_variants(), Family::Both, &addresses());
        let reason = |name: &str| not.iter().find(|n| n.path == name).map(|n| n.reason.as_str());
        assert!(lanes.iter().any(|lane| lane.name == "pod-ip-6" && lane.is_ipv6));
        assert_eq!(reason("host-host-6"), Some("the other node has no IPv6 address"));
        assert_eq!(reason("cluster-ip-same-6"), Some("the Service has no IPv6 address"));
        assert!(reason("node-port-local").unwrap().contains("no node port"));
        assert_eq!(lanes.len() + not.len(), 2 * Path::value_variants().len());
    }

    #[test]
    fn a_family_that_the_cluster_does_not_have_is_left_out_unless_it_was_asked_for() {
        let mut only4 = addresses();
        for all in only4.servers.values_mut().chain(only4.cluster_ips.values_mut()) {
            all.retain(IpAddr::is_ipv4);
        }
        let (all, not) = lanes(&[Path::PodIp], Family::Both, &only4);
        assert_eq!((all.len(), not.len()), (1, 0));
        let (all, not) = lanes(&[Path::PodIp], Family::Ipv6, &only4);
        assert!(all.is_empty() && not[0].reason.contains("no IPv6"), "{not:?}");
        let (all, _) = lanes(&[Path::PodIp], Family::Ipv4, &addresses());
        assert_eq!(all.iter().map(|lane| lane.name.as_str()).collect::<Vec<_>>(), ["pod-ip"]);
    }

    #[test]
    fn rounds_are_divided_into_passes() {
        assert_eq!(amount(""), Amount { passes: 3, rounds: 100, slice: Duration::from_millis(30) });
        assert_eq!(amount("--quick"), Amount { passes: 2, rounds: 15, slice: Duration::from_millis(20) });
        assert_eq!(amount("--rounds 10 --passes 4").rounds, 3);
    }

    #[test]
    fn a_client_is_told_its_own_paths_and_all_tests() {
        let (lanes, _) = lanes(&[Path::PodIp, Path::HostPod], Family::Ipv4, &addresses());
        let words = arguments(Client::Host, &lanes, &[Test::TcpRr, Test::UdpRate], amount("--quick"));
        assert_eq!(words.last().unwrap(), "tcp-rr,udp-rate");
        assert!(words.contains(&"host-pod=10.0.1.7:5501".to_owned()), "{words:?}");
    }

    #[test]
    fn a_quick_run_of_everything_takes_about_a_minute() {
        let amount = amount("--quick");
        let tests = [Test::TcpRr, Test::UdpRr, Test::TcpStream, Test::UdpRate, Test::TcpCrr];
        let time = (amount.client(&tests, 8) + amount.client(&tests, 4)) * amount.passes;
        assert!((40..100).contains(&time.as_secs()), "{time:?}");
    }
}
