//! Ends tracked UDP connections to backends that are gone, and to services that were not there yet.
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

use api::service::Front;
use futures::FutureExt;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Context;
use super::services::{Backend, InForce, Stale, Translation};
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
/// Zones of the gateway bridge's own flows.
const BRIDGE_ZONES: RangeInclusive<u16> = 64_000..=64_002;
/// What OVS says of a connection that it does not have (ENOENT).
const GONE: &str = "No such file or directory";
/// Before it is tried again while the last round is under way.
const BUSY: Duration = Duration::from_millis(200);

/// What is stale, and which times of [`AFTER`] are over for it.
#[derive(Debug, Default)]
pub(super) struct StaleUdp {
    stale: BTreeMap<Stale, (Instant, usize)>,
    /// When to look through all connections.
    look: Look,
    /// The last round, perhaps under way.
    round: Option<JoinHandle<()>>,
    not_before: Option<Instant>,
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
    /// They are since then; so many of [`LOOKS`] are done.
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

    /// What is to be ended now. `still`: whether it is stale still.
    fn due(&mut self, now: Instant, still: impl Fn(&Stale) -> bool) -> BTreeSet<Stale> {
        self.stale.retain(|stale, _| still(stale));
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

    /// Ends the connections that are due, in the background, one round at a time. `own`: the addresses where OVN serves node ports on this
    /// node.
    pub(super) fn end_due(&mut self, in_force: &InForce, own: Vec<Own>, context: &Context) {
        let now = Instant::now();
        if let Some(mut round) = self.round.take() {
            match (&mut round).now_or_never() {
                None => {
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
        let stale = self.due(now, |stale| in_force.concerns(stale));
        let look = self.look.take(now);
        let Some(unixctl) = Unixctl::beside(&context.config.ovs_db) else { return };
        if stale.is_empty() && !look {
            return;
        }
        let round = Round {
            stale,
            own,
            all: look.then(|| in_force.clone()),
            unixctl,
            // As OVS calls them: `lib/dpif.c`, `dpif_netdev` and `dpif_netlink` have one datapath each.
            datapath: format!("{0}@ovs-{0}", context.datapath_type),
            userspace: context.datapath_type == "netdev",
            flow_cache: context.flow_cache.clone(),
            metrics: context.metrics.clone(),
        };
        self.round = Some(tokio::spawn(Arc::new(round).run()));
    }
}

/// One round.
struct Round {
    /// What is ended.
    stale: BTreeSet<Stale>,
    /// Where node ports are served on this node.
    own: Vec<Own>,
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
        if (self.all.is_some() || self.stale.len() > FEW) && !many {
            self.end_listed().await;
        } else {
            for stale in &self.stale {
                for (original, reply) in tuples(stale, &self.own) {
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
        }
        // What was learned meanwhile is of a connection that may be gone. It is not compared with OVS before its first refresh.
        if cached || Arc::clone(&self).is_cached().await {
            self.flow_cache.connections_end();
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
            return self.concerns(destination, None) || self.concerns(source, None);
        };
        let [to_source, to_destination] = [to.source, to.destination].map(|end| (end.ip(), end.port()));
        let forward = (to_destination != destination).then_some(to_destination);
        let reply = (to_source != source).then_some(source);
        self.concerns(destination, forward) || self.concerns(to_source, reply)
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
        let mut ended = 0;
        loop {
            let mut stale = Vec::new();
            let keep = |line: &str| {
                if stale.len() < TOGETHER
                    && let Some(tracked) = Tracked::udp(line)
                    && self.is_stale(&tracked)
                {
                    stale.push((tracked.zone, tracked.original));
                }
            };
            let listed = self.unixctl.lines("dpctl/dump-conntrack", &[&self.datapath], LISTED, keep).await;
            if let Err(error) = listed {
                return self.failed(&error);
            }
            let before = ended;
            for &(zone, original) in &stale {
                ended +=
                    usize::from(self.flush(&format!("zone={zone}"), &original_tuple(original), "").await);
            }
            // The list goes on after those that were kept, unless nothing can be ended.
            if stale.len() < TOGETHER || ended == before {
                break;
            }
        }
        if ended > 0 {
            tracing::info!(connections = ended, "stale UDP connections ended");
        }
    }

    fn is_stale(&self, tracked: &Tracked) -> bool {
        let backend = tracked.translated_to().map(|to| (to.ip(), to.port()));
        if backend.is_none() && BRIDGE_ZONES.contains(&tracked.zone) {
            // The node's own connections meet a load balancer behind the bridge.
            return false;
        }
        self.concerns((tracked.original.1.ip(), tracked.original.1.port()), backend)
    }

    /// Whether connections to this destination, translated to `backend` or not, are to end.
    fn concerns(&self, destination: (IpAddr, u16), backend: Option<Backend>) -> bool {
        let backend = backend.map(|backend| as_services_name_it(&self.own, backend));
        let due = is_due(&self.stale, &self.own, destination, backend);
        due || self.all.as_ref().is_some_and(|all| all.stale(destination, backend).is_some())
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

/// The backend with the node's own address in place of the one that the gateway router has for it.
fn as_services_name_it(own: &[Own], (ip, port): Backend) -> Backend {
    let host = own.iter().find(|own| own.masquerade == ip);
    (host.map_or(ip, |own| own.address), port)
}

/// Whether connections to this destination, translated to `backend` or not, are among the stale ones. A node port is translated by the
/// node that is asked: on the client's own node, and on their way to another service with that number, connections are as they should be.
fn is_due(
    stale: &BTreeSet<Stale>,
    own: &[Own],
    destination: (IpAddr, u16),
    backend: Option<Backend>,
) -> bool {
    Front::candidates(destination).into_iter().any(|front| match backend {
        Some(backend) => stale.contains(&Stale::Backend(Translation { front, backend })),
        None if matches!(front, Front::NodePort(_)) && own.iter().all(|own| own.address != destination.0) => {
            false
        }
        None => stale.contains(&Stale::Untranslated(front)),
    })
}

/// Connections by what they asked for and what answers, in the form of ovs-appctl(8), `dpctl/flush-conntrack`. An address that is not
/// named is any; one of zeros would be itself. Node ports that were not translated are those of `own` addresses, one pair for each.
fn tuples(stale: &Stale, own: &[Own]) -> Vec<(String, String)> {
    let pair = |(asked, port): (Option<IpAddr>, u16), (answers, from): Backend| {
        let asked = asked.map_or_else(String::new, |ip| format!("{}={ip},", field("dst", ip)));
        (
            format!("{asked}ct_nw_proto=17,ct_tp_dst={port}"),
            format!("{}={answers},ct_nw_proto=17,ct_tp_src={from}", field("src", answers)),
        )
    };
    match *stale {
        Stale::Backend(Translation { front, backend }) => {
            let asked = match front {
                Front::Address(ip, port) => (Some(ip), port),
                Front::NodePort(port) => (None, port),
            };
            let host = own.iter().find(|own| own.address == backend.0).map(|own| (own.masquerade, backend.1));
            std::iter::once(backend).chain(host).map(|backend| pair(asked, backend)).collect()
        }
        Stale::Untranslated(Front::Address(ip, port)) => vec![pair((Some(ip), port), (ip, port))],
        Stale::Untranslated(Front::NodePort(port)) => {
            own.iter().map(|own| pair((Some(own.address), port), (own.address, port))).collect()
        }
    }
}

/// One connection by its first packet. With all of it and a zone, OVS does not walk.
fn original_tuple((source, destination): (SocketAddr, SocketAddr)) -> String {
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
mod tests {
    use super::*;

    fn stale(last: u8) -> Stale {
        let front = Front::Address(IpAddr::from([10, 96, 0, 1]), 53);
        Stale::Backend(Translation { front, backend: (IpAddr::from([10, 244, 0, last]), 5353) })
    }

    fn own() -> [Own; 2] {
        let own = |address: &str, masquerade: &str| Own {
            address: address.parse().unwrap(),
            masquerade: masquerade.parse().unwrap(),
        };
        [own("172.18.0.2", "169.254.169.2"), own("fd00:172:18::2", "fd69::2")]
    }

    #[test]
    fn a_backend_in_the_nodes_own_network_is_known_by_the_address_that_the_router_has_for_it() {
        let named = |ip: &str| as_services_name_it(&own(), (ip.parse().unwrap(), 53)).0.to_string();
        assert_eq!(named("169.254.169.2"), "172.18.0.2");
        assert_eq!(named("fd69::2"), "fd00:172:18::2");
        assert_eq!(named("10.244.0.3"), "10.244.0.3");
        let front = Front::Address(IpAddr::from([10, 96, 0, 1]), 53);
        let gone = Stale::Backend(Translation { front, backend: (IpAddr::from([172, 18, 0, 2]), 5353) });
        let replies: Vec<_> = tuples(&gone, &own()).into_iter().map(|(_, reply)| reply).collect();
        assert_eq!(
            replies,
            [
                "ct_nw_src=172.18.0.2,ct_nw_proto=17,ct_tp_src=5353",
                "ct_nw_src=169.254.169.2,ct_nw_proto=17,ct_tp_src=5353",
            ]
        );
    }

    /// After the looks at all connections.
    fn looked() -> StaleUdp {
        StaleUdp { look: Look::Since(Instant::now(), LOOKS.len()), ..StaleUdp::default() }
    }

    #[test]
    fn connections_are_ended_some_times_and_not_of_a_backend_that_is_back() {
        let start = Instant::now();
        let mut all = looked();
        let of = |list: &[u8]| list.iter().map(|last| stale(*last)).collect::<BTreeSet<_>>();
        assert_eq!(all.next(), None);
        all.add(of(&[1, 2]), start);
        assert_eq!(all.next(), Some(start + AFTER[0]));
        assert_eq!(all.due(start, |_| true), of(&[]));
        assert_eq!(all.due(start + AFTER[0], |_| true), of(&[1, 2]));
        assert_eq!(all.due(start + AFTER[0], |_| true), of(&[]));
        // Two times are over at once.
        assert_eq!(all.due(start + AFTER[2], |one| *one != stale(2)), of(&[1]));
        assert_eq!(all.next(), Some(start + AFTER[3]));
        assert_eq!(all.due(start + AFTER[5], |_| true), of(&[1]));
        assert_eq!(all.next(), None);
    }

    #[test]
    fn at_first_all_connections_are_looked_through() {
        let start = Instant::now();
        let mut all = StaleUdp::default();
        all.add([stale(1)], start);
        assert!(all.stale.is_empty(), "every service is new then");
        assert_eq!(all.next(), Some(start + AFTER[0]));
        assert!(!all.look.take(start));
        for after in LOOKS.map(|at| AFTER[at]) {
            assert_eq!(all.next(), Some(start + after));
            assert!(all.look.take(start + after));
        }
        assert_eq!(all.next(), None);
        all.add([stale(1)], start + AFTER[5]);
        assert_eq!(all.stale.len(), 1);
    }

    #[test]
    fn connections_are_named_by_what_was_asked_for_and_what_answers() {
        let own = own();
        let all = |stale| {
            let named =
                tuples(&stale, &own).into_iter().map(|(original, reply)| format!("{original} {reply}"));
            named.collect::<Vec<_>>()
        };
        let named = |stale| all(stale).concat();
        assert_eq!(
            named(stale(7)),
            "ct_nw_dst=10.96.0.1,ct_nw_proto=17,ct_tp_dst=53 ct_nw_src=10.244.0.7,ct_nw_proto=17,ct_tp_src=5353"
        );
        let backend = ("fd00::7".parse().unwrap(), 5353);
        let six = Translation { front: Front::NodePort(30_053), backend };
        assert_eq!(
            named(Stale::Backend(six)),
            "ct_nw_proto=17,ct_tp_dst=30053 ct_ipv6_src=fd00::7,ct_nw_proto=17,ct_tp_src=5353"
        );
        let address = Front::Address("fd00::1".parse().unwrap(), 53);
        assert_eq!(
            named(Stale::Untranslated(address)),
            "ct_ipv6_dst=fd00::1,ct_nw_proto=17,ct_tp_dst=53 ct_ipv6_src=fd00::1,ct_nw_proto=17,ct_tp_src=53"
        );
        assert_eq!(
            all(Stale::Untranslated(Front::NodePort(30_053))),
            [
                "ct_nw_dst=172.18.0.2,ct_nw_proto=17,ct_tp_dst=30053 ct_nw_src=172.18.0.2,ct_nw_proto=17,ct_tp_src=30053",
                "ct_ipv6_dst=fd00:172:18::2,ct_nw_proto=17,ct_tp_dst=30053 ct_ipv6_src=fd00:172:18::2,ct_nw_proto=17,ct_tp_src=30053",
            ]
        );
    }

    #[test]
    fn connections_to_the_node_port_of_another_node_go_on() {
        let own = own();
        let here = (own[0].address, 30_053);
        let other = IpAddr::from([172, 18, 0, 3]);
        let backend = (IpAddr::from([10, 244, 0, 7]), 5353);
        let front = Front::NodePort(30_053);
        let new = BTreeSet::from([Stale::Untranslated(front)]);
        assert!(is_due(&new, &own, here, None), "made before the service");
        assert!(!is_due(&new, &own, (other, 30_053), None), "the other node translates");
        assert!(!is_due(&new, &own, here, Some(backend)));
        let gone = BTreeSet::from([Stale::Backend(Translation { front, backend })]);
        assert!(is_due(&gone, &own, here, Some(backend)));
        assert!(!is_due(&gone, &own, here, None));
    }

    #[test]
    fn one_connection_is_named_by_its_first_packet() {
        let ends = ("10.244.0.3:40000".parse().unwrap(), "10.96.0.1:53".parse().unwrap());
        assert_eq!(
            original_tuple(ends),
            "ct_nw_src=10.244.0.3,ct_nw_dst=10.96.0.1,ct_nw_proto=17,ct_tp_src=40000,ct_tp_dst=53"
        );
    }
}
