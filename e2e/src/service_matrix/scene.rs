//! Pods, servers, clients and services of the matrix, on a cluster.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::admin::Flow;
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};
use testbed::cluster::config::GatewayMode;
use testbed::cluster::{Bed, objects};
use testbed::tools::survey::{Call, Order, Outcome};
use testbed::traffic::{self, Place};
use testbed::{exec, pod};

use super::cell::{Client, Kind, Node, kinds};
use super::objects::{NAMESPACE, PODS, name, pod as pod_object, service, slices, status};
use super::world::{BACKEND_PORTS, Pair, World, network};
use crate::reasons::Reasons;
use crate::ways;

/// A process that ends with this.
struct Server(Child);

/// A client that follows orders.
struct Surveyor {
    child: Child,
    orders: ChildStdin,
    reports: BufReader<ChildStdout>,
}

/// All of it.
pub(super) struct Scene<'a> {
    bed: &'a Bed,
    pub(super) world: World,
    _servers: Vec<Server>,
    surveyors: BTreeMap<Client, Surveyor>,
}

impl<'a> Scene<'a> {
    /// Makes everything, and waits until the pods run. OVN has not heard of the services then.
    pub(super) fn set(bed: &'a Bed) -> Result<Self> {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        let pods = PODS.iter().map(|(name, node)| pod_object(name, *node));
        create(bed, std::iter::once(namespace).chain(pods))?;
        pod::wait_ready(bed, NAMESPACE, Duration::from_secs(60))?;
        let [one, two, three, four] = PODS.map(|(name, _)| addresses(bed, name));
        let backends = [one?, two?];
        create(bed, kinds().iter().map(service))?;
        create(bed, kinds().iter().flat_map(|kind| slices(kind, backends)).collect::<Vec<_>>().into_iter())?;
        let statuses: Vec<_> = kinds().iter().map(|kind| (name(kind), status(kind))).collect();
        bed.patch_status::<Service>(NAMESPACE, &statuses)?;
        let world = World {
            clients: [three?, four?],
            backends,
            cluster_ips: cluster_ips(bed)?,
            local_gateway: bed.config().gateway_mode == GatewayMode::Local,
        };
        routes(bed)?;
        if exec::patience() > 1 {
            remember_udp(bed)?;
        }
        let mut servers = Vec::new();
        for (number, node) in [(0, Node::N1), (1, Node::N2)] {
            servers.push(Server::start(
                bed,
                &in_pod(PODS[number].0, node),
                &format!("pod-{}", node.name()),
                &[],
            )?);
        }
        // What answers UDP must do so from the address that was asked.
        let own = [
            Node::N1.address(false),
            Node::N1.address(true),
            Ipv4Addr::LOCALHOST.into(),
            Ipv6Addr::LOCALHOST.into(),
        ];
        servers.push(Server::start(bed, &on("n1"), "host-n1", &own)?);
        let mut surveyors = BTreeMap::new();
        for client in [
            Client::NearPod,
            Client::FarPod,
            Client::Itself,
            Client::NearHost,
            Client::FarHost,
            Client::Outside,
        ] {
            surveyors.insert(client, Surveyor::start(bed, &place(client))?);
        }
        Ok(Self { bed, world, _servers: servers, surveyors })
    }

    /// Lets all clients make their calls at the same time. Their last connections stay open until the next calls.
    pub(super) fn call(
        &mut self,
        calls: &BTreeMap<Client, Vec<Call>>,
    ) -> Result<BTreeMap<Client, Vec<Outcome>>> {
        let order = |client: &Client| Order::Call(calls.get(client).cloned().unwrap_or_default());
        let outcomes = self.all(order)?;
        for (client, reported) in &outcomes {
            ensure!(
                reported.len() == calls.get(client).map_or(0, Vec::len),
                "{client} did not make all calls"
            );
        }
        Ok(outcomes)
    }

    /// Lets all clients ask so many questions on each of their open connections.
    pub(super) fn again(&mut self, round_trips: u32) -> Result<BTreeMap<Client, Vec<Outcome>>> {
        self.all(|_| Order::Again(round_trips))
    }

    fn all(&mut self, order: impl Fn(&Client) -> Order) -> Result<BTreeMap<Client, Vec<Outcome>>> {
        for (client, surveyor) in &mut self.surveyors {
            surveyor.order(&order(client))?;
        }
        let mut outcomes = BTreeMap::new();
        for (client, surveyor) in &mut self.surveyors {
            outcomes.insert(*client, surveyor.report().with_context(|| client.to_string())?);
        }
        Ok(outcomes)
    }

    /// Replaces both agents by new ones.
    pub(super) fn restart_agents(&self) -> Result<()> {
        for node in [Node::N1, Node::N2] {
            self.bed.host(node.name()).kill("node-agent")?;
            self.bed.host(node.name()).restart("node-agent")?;
        }
        Ok(())
    }

    /// How many UDP connections a node's agent took for stale and ended.
    pub(super) fn ended(&self, node: Node) -> Result<u64> {
        self.bed.agent(node.name()).metrics()?.sum("slipstream_node_stale_udp_ended_total", &[])
    }

    /// Whether both agents are ready.
    pub(super) fn agents_ready(&self) -> bool {
        let mut nodes = [Node::N1, Node::N2].into_iter();
        nodes.all(|node| self.bed.agent(node.name()).status().is_ok_and(|status| status["ready"] == true))
    }

    /// What a node's flow cache holds.
    pub(super) fn flows(&self, node: Node) -> Result<Vec<Flow>> {
        self.bed.agent(node.name()).slipctl_json(&["flows", "--limit", "100000"])
    }

    /// How often entries ended by a change, of both nodes.
    pub(super) fn changes(&self) -> Result<Vec<Value>> {
        [Node::N1, Node::N2].into_iter().map(|node| ways::changes(self.bed, node.name())).collect()
    }

    /// How often each node counted each reason.
    pub(super) fn reasons(&self) -> Result<BTreeMap<Node, Reasons>> {
        let of = |node: Node| Ok((node, Reasons::of(&self.bed.agent(node.name()).status()?)?));
        [Node::N1, Node::N2].into_iter().map(of).collect()
    }

    /// Waits until every ovn-controller has carried out what is in the northbound database.
    pub(super) fn wait_ovn(&self) -> Result<()> {
        self.bed.nbctl(&["--wait=hv", "sync"]).map(drop)
    }

    /// Deletes the objects; the pods' processes go with them.
    pub(super) fn clear(self) -> Result<()> {
        let bed = self.bed;
        drop(self);
        let limit = "--timeout=60s";
        bed.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
        for kinds in [["services", "--all"], ["endpointslices", "--all"], ["pods", "--all"]] {
            bed.kubectl(&[&["delete", "-n", NAMESPACE, limit][..], &kinds].concat())?;
        }
        change_routes(bed, "del")
    }
}

fn on(host: &str) -> Place {
    Place::Host(host.to_owned())
}

fn in_pod(name: &str, node: Node) -> Place {
    Place::Pod { node: node.name().into(), namespace: NAMESPACE.into(), name: name.into() }
}

fn place(client: Client) -> Place {
    match client {
        Client::NearPod => in_pod(PODS[2].0, Node::N1),
        Client::FarPod => in_pod(PODS[3].0, Node::N2),
        Client::Itself => in_pod(PODS[0].0, Node::N1),
        Client::NearHost => on("n1"),
        Client::FarHost => on("n2"),
        Client::Outside => on("ext"),
    }
}

impl Server {
    fn start(bed: &Bed, place: &Place, name: &str, addresses: &[IpAddr]) -> Result<Self> {
        let mut command = tool(bed, place)?;
        command.args(["respond", "--name", name]);
        for address in addresses {
            command.args(["--address", &address.to_string()]);
        }
        command.args(BACKEND_PORTS.concat().iter().map(u16::to_string)).stdin(Stdio::null());
        Ok(Self(command.spawn().with_context(|| format!("cannot start a server in {place}"))?))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.0);
    }
}

impl Surveyor {
    fn start(bed: &Bed, place: &Place) -> Result<Self> {
        let mut command = tool(bed, place)?;
        // Each of them is slower beside others.
        let parallel = (6 / exec::patience()).max(1).to_string();
        command.args(["survey", "--parallel", &parallel]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start a client in {place}"))?;
        let orders = child.stdin.take().context("no pipe to the client")?;
        let reports = BufReader::new(child.stdout.take().context("no pipe from the client")?);
        Ok(Self { child, orders, reports })
    }

    fn order(&mut self, order: &Order) -> Result<()> {
        let line = serde_json::to_string(order)?;
        writeln!(self.orders, "{line}").context("the client takes no order")
    }

    fn report(&mut self) -> Result<Vec<Outcome>> {
        let mut line = String::new();
        self.reports.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("the client said {line:?}"))
    }
}

impl Drop for Surveyor {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// It may have ended by itself.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// The traffic tool at a place, before its arguments.
fn tool(bed: &Bed, place: &Place) -> Result<Command> {
    let mut command = traffic::command(bed, place, &bed.config().program("testbed"))?;
    command.arg("probe");
    Ok(command)
}

fn create(bed: &Bed, objects: impl Iterator<Item = Value>) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects.collect::<Vec<_>>()});
    bed.create(&list.to_string()).map(drop)
}

fn addresses(bed: &Bed, pod: &str) -> Result<Pair> {
    pair(&bed.pod_addresses(NAMESPACE, pod)?).with_context(|| pod.to_owned())
}

/// One address of each family.
fn pair(addresses: &[IpAddr]) -> Result<Pair> {
    let (mut four, mut six) = (None, None);
    for address in addresses {
        match *address {
            IpAddr::V4(ip) => four = Some(ip),
            IpAddr::V6(ip) => six = Some(ip),
        }
    }
    Ok(Pair(four.context("no IPv4 address")?, six.context("no IPv6 address")?))
}

fn cluster_ips(bed: &Bed) -> Result<Vec<Pair>> {
    let services: Vec<Service> = bed.list(NAMESPACE, "")?;
    let of = |kind: &Kind| {
        let name = name(kind);
        let service = services.iter().find(|service| service.metadata.name.as_deref() == Some(&name));
        let service = service.with_context(|| format!("no service {name}"))?;
        pair(&objects::cluster_ips(service)?).with_context(|| format!("service {name}"))
    };
    kinds().iter().map(of).collect()
}

/// The outside knows by which node to reach external addresses; nobody announces them here.
fn routes(bed: &Bed) -> Result<()> {
    change_routes(bed, "replace")
}

/// Where everything takes longer, connections of UDP wait for others for longer than the kernel remembers them (30 s, nf_conntrack-sysctl).
fn remember_udp(bed: &Bed) -> Result<()> {
    const SECONDS: &str = "net.netfilter.nf_conntrack_udp_timeout=900";
    [Node::N1, Node::N2].iter().try_for_each(|node| {
        let mut command = bed.host(node.name()).network_command("sysctl")?;
        exec::output(command.args(["-w", SECONDS])).map(drop)
    })
}

fn change_routes(bed: &Bed, verb: &str) -> Result<()> {
    let mut lines = String::new();
    for load_balancer in [false, true] {
        for node in [Node::N1, Node::N2] {
            for (net, six) in network(load_balancer, node).into_iter().zip([false, true]) {
                lines += &format!("route {verb} {net} via {} dev eth0 onlink\n", node.address(six));
            }
        }
    }
    exec::input_output(bed.host("ext").network_command("ip")?.args(["-batch", "-"]), &lines).map(drop)
}

/// Tries until it holds or the time is over; false then.
pub(super) fn comes_true(limit: Duration, mut check: impl FnMut() -> Result<bool>) -> Result<bool> {
    let end = Instant::now() + exec::patient(limit);
    loop {
        if check()? {
            return Ok(true);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(200));
    }
}
