//! The measurements, path by path.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{Row, reference};
use crate::demo::echoes::{Echo, Service};
use crate::kernel_datapath::agent;
use crate::virtual_networks::localnet;
use testbed::cluster::config::{CENTRAL_IP, Config, Datapath, EXT_IP, node_ip};
use testbed::cluster::{self, Bed};
use testbed::tools::RoundTrips;
use testbed::traffic::{self, Place};
use testbed::ui::{Progress, say};
use testbed::{exec, pod};

const PORT: &str = "7100";
const NAMESPACE: &str = "default";
/// The pods: the client, one beside it, one on the other node.
const PODS: [(&str, &str); 3] = [("client", "n1"), ("near", "n1"), ("far", "n2")];

/// A load: the suffix of its rows, and the client's arguments.
const LOADS: [(&str, &[&str]); 2] = [("", &[]), ("-udp", &["--udp"])];
/// Messages that the kernel makes aggregates of, as of a stream in both directions.
const BULK: (&str, &[&str]) = ("-bulk", &["--size", "200000"]);
/// A connection with one round trip, and a question from a port that is used once.
const ONCE: [(&str, &[&str]); 2] = [("-crr", &["--connect"]), ("-udp-once", &["--udp", "--connect"])];

/// Where every packet is to go through OVS, one of so many may not.
const SOME: u64 = 10;
/// So many times as many measurements at most as are wanted.
const TRIES: u32 = 6;

pub(super) struct Measure<'a> {
    pub(super) bed: &'a Bed,
    pub(super) count: u32,
    pub(super) repeat: u32,
    /// Paths to measure; empty for all.
    pub(super) paths: &'a [String],
    /// Run before and after each measurement.
    pub(super) around: Option<&'a Path>,
    pub(super) progress: &'a Progress,
    pub(super) rows: Vec<Row>,
}

impl Measure<'_> {
    /// All paths that are asked for.
    pub(super) fn everything(&mut self) -> Result<()> {
        self.measure_all()?;
        // A path is asked for by its name, and its rows are that name and its loads.
        let is_of = |row: &Row, asked: &str| {
            row.name.strip_prefix(asked).is_some_and(|load| load.is_empty() || load.starts_with('-'))
        };
        let missing = self.paths.iter().filter(|asked| !self.rows.iter().any(|row| is_of(row, asked)));
        let missing: Vec<&str> = missing.map(String::as_str).collect();
        ensure!(missing.is_empty(), "not measured: {}; docs/testing.md names the paths", missing.join(", "));
        Ok(())
    }

    /// The programs go last, as a node that has had them is put back to OVS alone by its agent.
    fn measure_all(&mut self) -> Result<()> {
        let bed = self.bed;
        let own = bed.config().program("testbed");
        let _references = self.references(&own)?;
        for (name, node) in PODS {
            let manifest = pod::manifest(NAMESPACE, name, Some(node)).to_string();
            bed.apply(&manifest)?;
        }
        pod::wait_ready(bed, NAMESPACE, Duration::from_secs(60))?;
        let place = |index: usize| {
            let (name, node) = PODS[index];
            Place::Pod { node: node.into(), namespace: NAMESPACE.into(), name: name.into() }
        };
        let [near, far] = [self.address(PODS[1].0)?, self.address(PODS[2].0)?];
        let mut echoes = Vec::new();
        for index in [1, 2] {
            echoes.push(Echo::start(traffic::command(bed, &place(index), &own)?)?);
        }
        let client = || traffic::command(bed, &place(0), &own);
        self.progress.done("pods are Ready");
        self.with_connections("fast", &client, &far)?;
        self.loads("fast-same", &client, &near)?;
        let [near_service, far_service] =
            [self.service("near", &near, "n1")?, self.service("far", &far, "n2")?];
        self.loads("service", &client, &far_service)?;
        self.loads("service-same", &client, &near_service)?;
        let (asking, answering, vlan_server) = localnet::joined(bed)?;
        echoes.push(Echo::start(traffic::command(bed, &answering, &own)?)?);
        let vlan_client = || traffic::command(bed, &asking, &own);
        let vlan_server = vlan_server.to_string();
        self.loads("vlan", &vlan_client, &vlan_server)?;
        let ways = self.ways(&far)?;
        self.measure_ways("", &client, &ways)?;
        if self.wants(|path| path.starts_with("learn"))
            && self.agents("learning everything", Datapath::Ebpf, &["--refresh-ms=0"])?
        {
            self.loads("learn", &client, &far)?;
            self.loads("learn-same", &client, &near)?;
        }
        if !self.wants(|path| path.starts_with("ovs") || path.starts_with("off")) {
            return Ok(());
        }
        if !self.agents("programs off", Datapath::Ovs, &[])? {
            bail!("no agent with --datapath=ovs");
        }
        // Two names for one state: OVS is what the fast path is compared with, off is what learning is compared with.
        self.with_connections("ovs", &client, &far)?;
        self.loads("ovs-same", &client, &near)?;
        self.loads("ovs-service", &client, &far_service)?;
        self.loads("ovs-service-same", &client, &near_service)?;
        self.loads("ovs-vlan", &vlan_client, &vlan_server)?;
        self.measure_ways("ovs-", &client, &ways)?;
        for (from, to) in [("ovs", "off"), ("ovs-udp", "off-udp"), ("ovs-same", "off-same")] {
            let row = self.rows.iter().find(|row| row.name == from).cloned();
            self.rows.extend(row.map(|row| Row { name: to.into(), ..row }));
        }
        Ok(())
    }

    /// The ways that cross the gateway bridge, with the echo on the other node.
    fn ways(&self, far: &str) -> Result<Ways> {
        let own = self.bed.config().program("testbed");
        let echo = Echo::start(self.bed.host("n2").network_command(&own)?)?;
        for (name, node_port, pod, node) in
            [("own", "30181", self.address(PODS[1].0)?, "n1"), ("other", "30182", far.to_owned(), "n2")]
        {
            let service = Service {
                namespace: NAMESPACE,
                name,
                port: PORT.parse()?,
                backends: &[(pod.parse()?, node)],
                node_port: Some(node_port.parse()?),
                local: false,
            };
            service.create(self.bed)?;
        }
        Ok(Ways { _echo: echo, far: far.to_owned() })
    }

    fn measure_ways(&mut self, prefix: &str, pod: &dyn Fn() -> Result<Command>, ways: &Ways) -> Result<()> {
        let (bed, own) = (self.bed, self.bed.config().program("testbed"));
        let on = |host: &str| bed.host(host).network_command(&own);
        let (n1, n2) = (node_ip(1).to_string(), node_ip(2).to_string());
        self.loads(&format!("{prefix}outside"), pod, &EXT_IP.to_string())?;
        self.load(&format!("{prefix}outside"), BULK, pod, &EXT_IP.to_string())?;
        self.loads(&format!("{prefix}node"), &|| on("n1"), &n2)?;
        self.loads(&format!("{prefix}node-pod"), &|| on("n1"), &ways.far)?;
        // From a client outside; UDP of which both ends are translated too.
        for (name, port) in [("own", "30181"), ("other", "30182")] {
            let server = format!("{n1} {port}");
            self.loads(&format!("{prefix}node-port-{name}"), &|| on("ext"), &server)?;
        }
        Ok(())
    }

    /// Address of a service with this backend.
    fn service(&self, name: &str, backend: &str, node: &str) -> Result<String> {
        let service = Service {
            namespace: NAMESPACE,
            name,
            port: PORT.parse()?,
            backends: &[(backend.parse()?, node)],
            node_port: None,
            local: false,
        };
        let made = service.create(self.bed)?;
        made.first().map(ToString::to_string).with_context(|| format!("service {name} has no address"))
    }

    fn address(&self, name: &str) -> Result<String> {
        let ips = self.bed.pod_addresses(NAMESPACE, name)?;
        let ip =
            ips.iter().find(|ip| ip.is_ipv4()).with_context(|| format!("pod {name} has no IPv4 address"))?;
        Ok(ip.to_string())
    }

    /// Bare veths, the underlay, VXLAN.
    fn references(&mut self, own: &Path) -> Result<Vec<Echo>> {
        let bed = self.bed;
        reference::build(bed, [&CENTRAL_IP.to_string(), &EXT_IP.to_string()])?;
        let [first, second] = reference::HOSTS;
        let inside = |host: &str, namespace: &str| -> Result<Command> {
            let mut command = bed.host(host).command("ip")?;
            command.args(["netns", "exec", namespace]).arg(own);
            Ok(command)
        };
        let echoes = vec![
            Echo::start(inside(first, reference::PAIR[1])?)?,
            Echo::start(inside(second, reference::POD)?)?,
            Echo::start(bed.host(second).network_command(own)?)?,
            Echo::start(inside(first, reference::ROUTED)?)?,
        ];
        let pair = || inside(first, reference::PAIR[0]);
        let host = || bed.host(first).network_command(own);
        let overlay = || inside(first, reference::POD);
        self.with_connections("veth", &pair, reference::PAIR_SERVER)?;
        self.with_connections("host", &host, &EXT_IP.to_string())?;
        self.with_connections("vxlan", &overlay, reference::OVERLAY_SERVER)?;
        self.loads("snat", &|| inside(first, reference::ROUTED), &EXT_IP.to_string())?;
        self.load("snat", BULK, &|| inside(first, reference::ROUTED), &EXT_IP.to_string())?;
        self.loads("routed", &|| bed.host(second).network_command(own), reference::ROUTED_SERVER)?;
        Ok(echoes)
    }

    fn wants(&self, path: impl Fn(&String) -> bool) -> bool {
        self.paths.is_empty() || self.paths.iter().any(path)
    }

    fn loads(&mut self, path: &str, client: &dyn Fn() -> Result<Command>, server: &str) -> Result<()> {
        LOADS.iter().try_for_each(|&load| self.load(path, load, client, server))
    }

    /// Also connections, and questions that are asked once.
    fn with_connections(
        &mut self,
        path: &str,
        client: &dyn Fn() -> Result<Command>,
        server: &str,
    ) -> Result<()> {
        self.loads(path, client, server)?;
        ONCE.iter().try_for_each(|&load| self.load(path, load, client, server))
    }

    /// One row: the lowest median of some measurements. OVS has modes, by the order in which its flows came.
    fn load(
        &mut self,
        path: &str,
        (suffix, how): (&str, &[&str]),
        client: &dyn Fn() -> Result<Command>,
        server: &str,
    ) -> Result<()> {
        let name = format!("{path}{suffix}");
        if !self.wants(|asked| asked == path || *asked == name) {
            return Ok(());
        }
        let ask = |count: u32| -> Result<RoundTrips> {
            let mut command = client()?;
            let (server, port) = server.split_once(' ').unwrap_or((server, PORT));
            command.args(["probe", "rr", "--count", &count.to_string()]).args(how).args([server, port]);
            let said =
                exec::retry(Duration::from_secs(10), "the echo answers", || exec::output(&mut command))
                    .with_context(|| name.clone())?;
            serde_json::from_str(&said).with_context(|| format!("the client said {said:?}"))
        };
        // What is asked once goes by OVS whatever the programs do.
        let once = ONCE.iter().any(|(name, _)| *name == suffix);
        // Every packet is to go through OVS, and to be learned.
        let slow = path.starts_with("learn");
        let mut all = Vec::new();
        let mut tries = 0;
        while all.len() < self.repeat as usize {
            tries += 1;
            if once || slow || path.starts_with("ovs") {
                for node in self.bed.config().node_names() {
                    let mut flush = self.bed.host(&node).command(self.bed.config().ovs("ovs-appctl"))?;
                    exec::output(flush.env("OVS_RUNDIR", "/run/openvswitch").arg("dpctl/del-flows"))?;
                }
            }
            // A message of many packets costs as much as hundreds of small ones.
            let count = if suffix == BULK.0 { self.count / 20 } else { self.count };
            ask((count / 5).max(5))?;
            let before = if slow { self.carried()? } else { 0 };
            self.mark(&name, "before")?;
            let seen = ask(count)?;
            self.mark(&name, "after")?;
            if seen.lost > 0 {
                bail!("{name}: {} answers did not come", seen.lost);
            }
            // A packet that finds no free slot leaves its entry in use for the grace.
            if !slow || self.carried()? - before < u64::from(count) / SOME {
                all.push(seen.p50_ns);
            } else if tries > TRIES * self.repeat {
                bail!("{name}: the flow cache carries its packets; {} measurements are good", all.len());
            }
        }
        let instructions = all.iter().copied().min().unwrap_or(0);
        self.progress.done(format_args!("{name:<14} {instructions:>8}  {all:?}"));
        self.rows.push(Row { name, instructions, all });
        Ok(())
    }

    /// Packets that the client's node has sent or delivered by the flow cache.
    fn carried(&self) -> Result<u64> {
        let fast = agent::fast(self.bed, PODS[0].1)?;
        Ok(fast.sent + fast.delivered)
    }

    /// Tells who profiles that a measurement of this row begins or has ended.
    fn mark(&self, row: &str, when: &str) -> Result<()> {
        let Some(program) = self.around else { return Ok(()) };
        exec::output(exec::command(program).args([row, when])).map(drop)
    }

    /// Starts the agents with other flags; false if they do not know them.
    fn agents(&self, what: &str, datapath: Datapath, more: &[&str]) -> Result<bool> {
        let config = Config { datapath, ..self.bed.config().clone() };
        for node in config.node_names() {
            let host = self.bed.host(&node);
            host.stop("node-agent", Duration::from_secs(10))?;
            let program = config.program("slipstream-node-agent").display().to_string();
            let arguments = cluster::agent_arguments(&config, &node);
            let mut argv = vec![program.as_str(), "run"];
            argv.extend(arguments.iter().map(String::as_str));
            argv.extend(more);
            host.start("node-agent", &argv, cluster::ENVIRONMENT)?;
            let ready = exec::retry(Duration::from_secs(60), "the agent is ready", || {
                host.check_running("node-agent")?;
                self.bed.agent(&node).page("/readyz").map(drop)
            });
            if let Err(error) = ready {
                say(format_args!("no agent for {what:?}: {error:#}"));
                return Ok(false);
            }
        }
        self.progress.done(what);
        Ok(true)
    }
}

/// What the ways across the gateway bridge lead to.
struct Ways {
    _echo: Echo,
    /// The pod on the other node.
    far: String,
}
