//! Ends tracked UDP connections to backends that are gone or that a traffic policy refuses, and to services that were not there yet.
//!
//! UDP has no end of connection. OVN forgets the connections to a backend together with it (`ct_flush`), but does so while OVS's
//! datapath still has flows to that backend: a client that goes on sending from the same port is tracked again at once, and stays with
//! the old backend for as long as it sends. So the connections are ended again when the datapath has followed. A client that sent before its
//! service was made is tracked as well, and load balancers look at new connections only. What went and came while no agent was there is
//! looked for when the agent knows all services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use api::addr::Family;
use api::service::Front;
use futures::FutureExt;
use ipnet::IpNet;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Context;
use super::services::{Backend, Client, InForce, Stale, Translation};
use crate::flow_cache::{Flow, Manager};
use crate::metrics::Metrics;
use crate::ovs::tracked::Tracked;
use crate::ovs::unixctl::{Unixctl, UnixctlError};

/// When connections are ended, after the backend was seen to be gone. Controller, OVN and OVS's revalidators take milliseconds on an
/// idle cluster and many seconds on a large busy one.
const AFTER: [Duration; 6] = [
    Duration::from_millis(700),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(18),
    Duration::from_secs(40),
];
/// Timeout of a call; OVS walks over all connections.
const LONGEST: Duration = Duration::from_secs(10);
/// Timeout of a list of all connections: OVS makes the text of a million in seconds.
const LISTED: Duration = Duration::from_secs(60);
/// Userspace datapath: so many connections are listed at most. OVS makes the list in the thread that forwards, at some 3 µs a connection.
const LISTABLE: u64 = 100_000;
/// Where there are more: after each walk, so many times its duration is left for packets.
const SPARE: u32 = 4;
/// Connections that are kept of a list before they are ended.
const TOGETHER: usize = 10_000;
/// Ending the connections of one translation is a walk of OVS over all of them. From so many translations on, all connections are listed
/// once instead.
const FEW: usize = 16;
/// An answer that is on its way when a connection is ended is tracked as a connection of its own, by which the client's packets are answers and
/// meet no load balancer. So long afterwards such ones are ended, with the userspace datapath: the kernel's, where the machine's own
/// connections are among OVS's, was not looked at.
const ON_THE_WAY: Duration = Duration::from_millis(50);
/// How often, as the next answer may be on its way then.
const ANSWERS: usize = 4;
/// Zones of the gateway bridge's own flows.
const BRIDGE_ZONES: RangeInclusive<u16> = 64_000..=64_002;
/// What OVS says of a connection that it does not have (ENOENT).
const GONE: &str = "No such file or directory";
/// Before it is tried again while the last round is under way.
const BUSY: Duration = Duration::from_millis(200);
/// A round that takes longer is told: meanwhile clients stay where they are.
const SLOW: Duration = Duration::from_secs(3);

/// Source and destination of a packet.
type Ends = (SocketAddr, SocketAddr);

/// What is stale, and which times of [`AFTER`] are over for it.
#[derive(Debug, Default)]
pub(super) struct StaleUdp {
    stale: BTreeMap<Stale, (Instant, usize)>,
    /// When to look through all connections.
    look: Look,
    /// The last round, perhaps under way.
    round: Option<JoinHandle<()>>,
    /// When it began; none once it was told that it is slow.
    round_began: Option<Instant>,
    not_before: Option<Instant>,
}

/// What this node serves at its own addresses.
#[derive(Debug, Default)]
pub(super) struct Here {
    /// The addresses where OVN serves node ports.
    pub(super) own: Vec<Own>,
    /// UDP host ports of this node's pods; none: not known yet.
    pub(super) host_ports: Option<BTreeSet<u16>>,
    /// Gateway mode local: clients outside are served by the node's stack, to which OVS passes what they send as it is.
    pub(super) node_serves_outside: bool,
}

/// An address of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    /// On the gateway bridge.
    pub(super) address: IpAddr,
    /// What OVN's gateway router has in its place for backends in the node's own network (`.2`).
    pub(super) masquerade: IpAddr,
}

/// Times of [`AFTER`] at which all connections are looked through after the agent was started. Once is not enough: OVN may be following
/// still what changed while no agent was there.
const LOOKS: [usize; 4] = [0, 2, 3, 5];

/// Whether all connections were looked through since the agent was started.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Not all services are known yet.
    #[default]
    Never,
    /// All services are known since this time; so many of [`LOOKS`] are done.
    Since(Instant, usize),
}

impl Look {
    fn next(self) -> Option<Instant> {
        let Self::Since(since, done) = self else { return None };
        Some(since + *AFTER.get(*LOOKS.get(done)?)?)
    }

    /// Whether it is time; the next one is later.
    fn take(&mut self, now: Instant) -> bool {
        let due = self.next().is_some_and(|at| now >= at);
        if let (true, Self::Since(_, done)) = (due, self) {
            *done += 1;
        }
        due
    }
}

impl StaleUdp {
    /// Adds what is stale since `now`. All services have to be known: the first time, all connections are to be looked through in place
    /// of those.
    pub(super) fn add(&mut self, stale: impl IntoIterator<Item = Stale>, now: Instant) {
        if self.look == Look::Never {
            self.look = Look::Since(now, 0);
        } else {
            self.stale.extend(stale.into_iter().map(|stale| (stale, (now, 0))));
        }
    }

    /// When to call [`Self::end_due`] next.
    pub(super) fn next(&self) -> Option<Instant> {
        let stale = self.stale.values().filter_map(|(since, done)| Some(*since + *AFTER.get(*done)?)).min();
        let next = stale.into_iter().chain(self.look.next()).min()?;
        Some(self.not_before.map_or(next, |at| at.max(next)))
    }

    /// What is to be ended now. `still`: what is stale of it still.
    fn due(&mut self, now: Instant, still: impl Fn(&Stale) -> Option<Stale>) -> BTreeSet<Stale> {
        let all = std::mem::take(&mut self.stale).into_iter();
        self.stale = all.filter_map(|(stale, times)| Some((still(&stale)?, times))).collect();
        let mut due = BTreeSet::new();
        for (stale, (since, done)) in &mut self.stale {
            let over = AFTER.iter().filter(|after| now >= *since + **after).count();
            if over > *done {
                *done = over;
                due.insert(*stale);
            }
        }
        self.stale.retain(|_, (_, done)| *done < AFTER.len());
        due
    }

    /// Ends the connections that are due, in the background, one round at a time.
    pub(super) fn end_due(&mut self, in_force: &InForce, here: Here, context: &Context) {
        let now = Instant::now();
        if let Some(mut round) = self.round.take() {
            match (&mut round).now_or_never() {
                None => {
                    if self.round_began.take_if(|began| now >= *began + SLOW).is_some() {
                        tracing::warn!(
                            longer_than = ?SLOW,
                            "ending stale UDP connections in Open vSwitch takes long; clients that go on sending stay with removed backends meanwhile"
                        );
                    }
                    self.round = Some(round);
                    self.not_before = Some(now + BUSY);
                    return;
                }
                Some(Err(error)) => {
                    context.metrics.stale_udp_failed();
                    tracing::error!(%error, "ending stale UDP connections failed");
                }
                Some(Ok(())) => {}
            }
        }
        self.not_before = None;
        let stale = self.due(now, |stale| in_force.still(stale));
        let look = self.look.take(now);
        let Some(unixctl) = Unixctl::beside(&context.config.ovs_db) else { return };
        if stale.is_empty() && !look {
            return;
        }
        let round = Round {
            stale,
            here,
            cluster: in_force.cluster(),
            all: look.then(|| in_force.clone()),
            unixctl,
            // As OVS calls them: `lib/dpif.c`, `dpif_netdev` and `dpif_netlink` have one datapath each.
            datapath: format!("{0}@ovs-{0}", context.datapath_type),
            userspace: context.datapath_type == "netdev",
            flow_cache: context.flow_cache.clone(),
            metrics: context.metrics.clone(),
        };
        self.round_began = Some(now);
        self.round = Some(tokio::spawn(Arc::new(round).run()));
    }
}

/// One round.
struct Round {
    /// What is ended.
    stale: BTreeSet<Stale>,
    here: Here,
    /// Ranges of the cluster.
    cluster: Arc<[IpNet]>,
    /// All that may stay, if all connections are to be looked through.
    all: Option<InForce>,
    unixctl: Unixctl,
    /// Name of OVS's datapath.
    datapath: String,
    /// The thread that answers forwards packets too.
    userspace: bool,
    flow_cache: Manager,
    metrics: Metrics,
}

impl Round {
    /// Ends connections, and invalidates the flow cache if it has flows of theirs: entries repeat what the connections did.
    async fn run(self: Arc<Self>) {
        let cached = Arc::clone(&self).is_cached().await;
        if cached {
            // Nothing may be compared with an entry while connections go.
            self.flow_cache.connections_end();
        }
        let many = self.tracks_many().await;
        // Who the client is stands in the list only.
        let by_client = self.stale.iter().any(|stale| matches!(stale, Stale::Refused(..)));
        if (self.all.is_some() || by_client || self.stale.len() > FEW) && !many {
            self.end_listed().await;
        } else {
            for stale in &self.stale {
                self.end(stale, many).await;
            }
            let untranslated = || self.stale.iter().filter(|stale| matches!(stale, Stale::Untranslated(..)));
            if self.userspace && !many && untranslated().next().is_some() {
                tokio::time::sleep(ON_THE_WAY).await;
                for stale in untranslated() {
                    self.end(stale, many).await;
                }
            }
        }
        // What was learned meanwhile is of a connection that may be gone. It is not compared with OVS before its first refresh.
        if cached || Arc::clone(&self).is_cached().await {
            self.flow_cache.connections_end();
        }
    }

    /// Ends connections by what is stale of them; OVS walks over all. `many`: over very many.
    async fn end(&self, stale: &Stale, many: bool) {
        for (original, reply) in tuples(stale, &self.here.own, self.userspace) {
            let begin = Instant::now();
            if self.flush("", &original, &reply).await {
                tracing::debug!(?stale, "stale UDP connections ended");
            }
            // A walk over very many connections must not follow another at once.
            if many {
                tokio::time::sleep(begin.elapsed() * SPARE).await;
            }
        }
    }

    /// Whether the flow cache has a flow of a connection that is to end.
    async fn is_cached(self: Arc<Self>) -> bool {
        let look = move || self.flow_cache.has_flow(|flow| self.is_stale_flow(flow));
        // After a panic nothing is known of the cache.
        tokio::task::spawn_blocking(look).await.unwrap_or(true)
    }

    fn is_stale_flow(&self, flow: &Flow) -> bool {
        const UDP: u8 = 17;
        if flow.protocol != UDP {
            return false;
        }
        let source = (flow.source, flow.source_port);
        let destination = (flow.destination, flow.destination_port);
        let Some(to) = flow.translated else {
            return self.concerns(source.0, destination, None) || self.concerns(destination.0, source, None);
        };
        let [to_source, to_destination] = [to.source, to.destination].map(|end| (end.ip(), end.port()));
        let forward = (to_destination != destination).then_some(to_destination);
        let reply = (to_source != source).then_some(source);
        // A reply whose source is translated may also be a flow to the outside, so it does not tell that a service is gone.
        self.concerns(source.0, destination, forward)
            || self.concerns(to_destination.0, to_source, reply)
            || forward.is_some_and(|backend| self.is_unserved(destination, backend))
    }

    /// Whether OVS tracks so many connections that listing them would keep the thread that forwards. What is not looked for then is counted.
    async fn tracks_many(&self) -> bool {
        if !self.userspace {
            return false;
        }
        let connections = match self.unixctl.call("dpctl/ct-get-nconns", &[&self.datapath], LONGEST).await {
            Ok(connections) => connections,
            Err(error) => {
                self.failed(&error);
                return true;
            }
        };
        // A number that cannot be read may be any.
        let many = !connections.trim().parse().is_ok_and(|connections: u64| connections <= LISTABLE);
        if many && self.all.is_some() {
            self.metrics.stale_udp_failed();
            tracing::warn!(
                connections = connections.trim(),
                at_most = LISTABLE,
                "Open vSwitch tracks too many connections to list them; UDP clients may stay with backends that went while no agent was here"
            );
        }
        many
    }

    async fn end_listed(&self) {
        let mut ended: u64 = 0;
        let mut answers = Vec::new();
        loop {
            let mut stale = Vec::new();
            let keep = |line: &str| {
                if stale.len() < TOGETHER
                    && let Some(tracked) = Tracked::udp(line)
                    && self.is_stale(&tracked)
                {
                    stale.push((tracked.zone, tracked.original, self.answer(&tracked)));
                }
            };
            let listed = self.unixctl.lines("dpctl/dump-conntrack", &[&self.datapath], LISTED, keep).await;
            if let Err(error) = listed {
                return self.failed(&error);
            }
            let before = ended;
            for &(zone, original, answer) in &stale {
                let gone = self.flush(&format!("zone={zone}"), &original_tuple(original), "").await;
                tracing::debug!(zone, from = %original.0, to = %original.1, gone, "stale UDP connection ended");
                ended += u64::from(gone);
                answers.extend(answer.filter(|_| gone).map(|answer| (zone, answer)));
            }
            // The list goes on after those that were kept, unless nothing can be ended.
            if stale.len() < TOGETHER || ended == before {
                break;
            }
        }
        ended += self.end_answers(answers).await;
        if ended > 0 {
            self.metrics.stale_udp_ended(ended);
            tracing::info!(connections = ended, "stale UDP connections ended");
        }
    }

    /// Ends connections that began with an answer, for as long as there are such; how many.
    async fn end_answers(&self, mut answers: Vec<(u16, Ends)>) -> u64 {
        let mut ended = 0;
        for _ in 0..ANSWERS {
            if answers.is_empty() {
                break;
            }
            tokio::time::sleep(ON_THE_WAY).await;
            let mut again = Vec::new();
            for (zone, answer) in answers {
                if self.flush(&format!("zone={zone}"), &original_tuple(answer), "").await {
                    again.push((zone, answer));
                }
            }
            ended += again.len() as u64;
            answers = again;
        }
        ended
    }

    /// The connection that an answer of this one makes when it was on its way as this one was ended; none of one that is translated.
    fn answer(&self, tracked: &Tracked) -> Option<Ends> {
        if !self.userspace || tracked.translated_to().is_some() {
            return None;
        }
        let (from, to) = tracked.original;
        let began_with_answer = !self.concerns(from.ip(), (to.ip(), to.port()), None);
        Some(if began_with_answer { (from, to) } else { (to, from) })
    }

    fn is_stale(&self, tracked: &Tracked) -> bool {
        let backend = tracked.translated_to().map(|to| (to.ip(), to.port()));
        if !is_balanced(tracked.zone, self.userspace, backend.is_some()) {
            return false;
        }
        let (client, asked) = tracked.original;
        let asked = (asked.ip(), asked.port());
        let by_ovn = tracked.zone != 0 && !BRIDGE_ZONES.contains(&tracked.zone);
        let unserved = by_ovn && backend.is_some_and(|backend| self.is_unserved(asked, backend));
        let is_answer = || {
            self.userspace
                && by_ovn
                && backend.is_none()
                && self.concerns(asked.0, (client.ip(), client.port()), None)
        };
        self.concerns(client.ip(), asked, backend) || unserved || is_answer()
    }

    /// Whether all connections are looked through, and one that was translated so belongs to a service that went while no agent was here. OVN
    /// serves host ports in the same way.
    fn is_unserved(&self, destination: (IpAddr, u16), backend: Backend) -> bool {
        let host_port = self.here.host_ports.as_ref().is_none_or(|ports| ports.contains(&destination.1));
        !host_port && self.all.as_ref().is_some_and(|all| all.unserved(destination, backend))
    }

    /// Whether connections of this client to this destination, translated to `backend` or not, are to end.
    fn concerns(&self, client: IpAddr, destination: (IpAddr, u16), backend: Option<Backend>) -> bool {
        let backend = backend.map(|backend| as_services_name_it(&self.here.own, backend));
        let client = whose(client, &self.cluster, &self.here.own);
        if self.here.node_serves_outside && backend.is_none() && client == Client::Outside {
            // The node's stack translates behind the bridge.
            return false;
        }
        let due = is_due(&self.stale, &self.here.own, destination, backend, client);
        let is_own = is_own(&self.here.own, destination.0);
        let stale = |all: &InForce| all.stale(destination, is_own, backend, client);
        due || self.all.as_ref().and_then(stale).is_some()
    }

    /// Ends connections by their tuples; whether OVS did.
    async fn flush(&self, zone: &str, original: &str, reply: &str) -> bool {
        let mut params = vec![self.datapath.as_str()];
        if !zone.is_empty() {
            params.push(zone);
        }
        params.push(original);
        if !reply.is_empty() {
            params.push(reply);
        }
        match self.unixctl.call("dpctl/flush-conntrack", &params, LONGEST).await {
            Ok(_) => true,
            // It ended by itself since it was listed.
            Err(UnixctlError::Refused { message, .. }) if message.contains(GONE) => false,
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    fn failed(&self, error: &UnixctlError) {
        self.metrics.stale_udp_failed();
        tracing::warn!(%error, "cannot end stale UDP connections; clients that go on sending may stay with removed backends");
    }
}

/// Whether OVN's load balancers decide on connections of a zone. On those that are not translated in the bridge's zones they do so later.
/// The userspace datapath's zone 0 is that of a gateway router; the kernel's has the host's own connections, which nftables translates, and
/// of the gateway router's only what load balancers have translated before.
fn is_balanced(zone: u16, userspace: bool, translated: bool) -> bool {
    match zone {
        0 => userspace,
        zone => translated || !BRIDGE_ZONES.contains(&zone),
    }
}

/// The backend with the node's own address in place of the one that the gateway router has for it.
fn as_services_name_it(own: &[Own], (ip, port): Backend) -> Backend {
    let host = own.iter().find(|own| own.masquerade == ip);
    (host.map_or(ip, |own| own.address), port)
}

/// Whether this node translates node ports at the address.
fn is_own(own: &[Own], address: IpAddr) -> bool {
    own.iter().any(|own| own.address == address)
}

/// Where a client is. Other nodes are outside: they ask this one as others do.
fn whose(client: IpAddr, cluster: &[IpNet], own: &[Own]) -> Client {
    if own.iter().any(|own| own.address == client || own.masquerade == client) {
        return Client::Node;
    }
    if cluster.iter().any(|range| range.contains(&client)) { Client::Cluster } else { Client::Outside }
}

/// Whether connections of such a client to this destination, translated to `backend` or not, are among the stale ones. A node port is
/// translated by the node that is asked: on the client's own node, and on their way to another service with that number, connections are as
/// they should be.
fn is_due(
    stale: &BTreeSet<Stale>,
    own: &[Own],
    destination: (IpAddr, u16),
    backend: Option<Backend>,
    client: Client,
) -> bool {
    Front::candidates(destination).into_iter().any(|front| match backend {
        Some(backend) => {
            let translation = Translation { front, backend };
            stale.contains(&Stale::Backend(translation))
                || stale.contains(&Stale::Refused(translation, client))
        }
        None if matches!(front, Front::NodePort(_)) && !is_own(own, destination.0) => false,
        None => stale.contains(&Stale::Untranslated(front, Family::of(destination.0))),
    })
}

/// Connections by what they asked for and what answers, in the form of ovs-appctl(8), `dpctl/flush-conntrack`. An address that is not
/// named is any; one of zeros would be itself. Node ports that were not translated are those of `own` addresses, one pair for each.
/// `answers`: also those that began with an answer.
fn tuples(stale: &Stale, own: &[Own], answers: bool) -> Vec<(String, String)> {
    let pair = |(asked, port): (Option<IpAddr>, u16), (answers, from): Backend| {
        let asked = asked.map_or_else(String::new, |ip| format!("{}={ip},", field("dst", ip)));
        (
            format!("{asked}ct_nw_proto=17,ct_tp_dst={port}"),
            format!("{}={answers},ct_nw_proto=17,ct_tp_src={from}", field("src", answers)),
        )
    };
    let both = |(ip, port): (IpAddr, u16)| {
        let begun = answers.then(|| begun_with_answer((ip, port)));
        std::iter::once(pair((Some(ip), port), (ip, port))).chain(begun)
    };
    match *stale {
        // Where all connections cannot be listed, those of other clients end too, and choose a backend anew.
        Stale::Backend(Translation { front, backend })
        | Stale::Refused(Translation { front, backend }, _) => {
            let asked = match front {
                Front::Address(ip, port) => (Some(ip), port),
                Front::NodePort(port) => (None, port),
            };
            let host = own.iter().find(|own| own.address == backend.0).map(|own| (own.masquerade, backend.1));
            std::iter::once(backend).chain(host).map(|backend| pair(asked, backend)).collect()
        }
        Stale::Untranslated(Front::Address(ip, port), _) => both((ip, port)).collect(),
        Stale::Untranslated(Front::NodePort(port), family) => {
            let own = own.iter().map(|own| own.address).filter(|address| Family::of(*address) == family);
            own.flat_map(|address| both((address, port))).collect()
        }
    }
}

/// Connections that began with an answer from there, in the form of [`tuples`].
fn begun_with_answer((ip, port): (IpAddr, u16)) -> (String, String) {
    (
        format!("{}={ip},ct_nw_proto=17,ct_tp_src={port}", field("src", ip)),
        format!("{}={ip},ct_nw_proto=17,ct_tp_dst={port}", field("dst", ip)),
    )
}

/// One connection by its first packet. With all of it and a zone, OVS does not walk.
fn original_tuple((source, destination): Ends) -> String {
    let (from, to) = (source.ip(), destination.ip());
    format!(
        "{}={from},{}={to},ct_nw_proto=17,ct_tp_src={},ct_tp_dst={}",
        field("src", from),
        field("dst", to),
        source.port(),
        destination.port()
    )
}

fn field(end: &str, address: IpAddr) -> String {
    let family = if address.is_ipv4() { "nw" } else { "ipv6" };
    format!("ct_{family}_{end}")
}

#[cfg(test)]
#[path = "stale_udp_tests.rs"]
mod tests;
