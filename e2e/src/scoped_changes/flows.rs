//! Flows that the cache would have, what OVS does with them now, and the scopes that such entries belong to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use anyhow::Result;
use api::MacAddr;
use node_agent::flow_cache::scope::{Impact, Scope, Why};

use super::control::Control;

/// What connection tracking says at every look.
const LOOKS: usize = 5;

/// A way into br-int.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// From a local pod, by its OpenFlow port.
    Port(u32),
    /// By a tunnel: its port, network identifier, option, addresses of the underlay.
    Tunnel { port: u32, vni: u32, option: u32, underlay: (IpAddr, IpAddr) },
}

/// A packet.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) from: From,
    pub(super) macs: (MacAddr, MacAddr),
    pub(super) addresses: (IpAddr, IpAddr),
    pub(super) udp: bool,
    pub(super) ports: (u16, u16),
    pub(super) ttl: u8,
    /// State of its connection, as `--ct-next` takes it.
    pub(super) state: &'static str,
}

impl Packet {
    /// As ovs-fields(7).
    pub(super) fn text(&self) -> String {
        let from = match &self.from {
            From::Port(port) => format!("in_port={port}"),
            From::Tunnel { port, vni, option, underlay: (source, destination) } => format!(
                "in_port={port},tun_id={vni},tun_src={source},tun_dst={destination},tun_metadata0={option:#x}"
            ),
        };
        let (source, destination) = self.addresses;
        let (v, ip) = if source.is_ipv4() { ("", "nw") } else { ("6", "ipv6") };
        let protocol = if self.udp { "udp" } else { "tcp" };
        format!(
            "{from},dl_src={},dl_dst={},{protocol}{v},{ip}_src={source},{ip}_dst={destination},nw_ttl={},{protocol}_src={},{protocol}_dst={}",
            self.macs.0, self.macs.1, self.ttl, self.ports.0, self.ports.1
        )
    }

    fn trace(&self, control: &mut Control) -> Result<Vec<String>> {
        control.trace(&self.text(), &[self.state; LOOKS])
    }
}

/// How a flow is translated.
#[derive(Clone, Debug)]
pub(super) enum Translation {
    None,
    /// To a service: the trace translates the destination.
    Request,
    /// From a backend: the trace does not translate; the second packet is what connection tracking makes of the first.
    Reply(IpAddr),
}

/// A flow that is traced again and again.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) name: String,
    pub(super) packet: Packet,
    pub(super) translation: Translation,
}

/// What OVS does with a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) actions: Vec<String>,
    /// Scopes of its entry; `None` if there can be no scoped entry.
    pub(super) scopes: Option<BTreeSet<Scope>>,
}

impl Flow {
    pub(super) fn verdict(&self, control: &mut Control, ports: &BTreeMap<u32, u32>) -> Result<Verdict> {
        let packet = &self.packet;
        let mut actions = packet.trace(control)?;
        let mut addresses = BTreeSet::from([packet.addresses.0, packet.addresses.1]);
        let scopes = self.out(&actions, ports);
        match self.translation {
            Translation::None => {}
            Translation::Request => {
                let Some(backend) = translated(&actions) else {
                    return Ok(Verdict { actions, scopes: None });
                };
                addresses.insert(backend);
                let established =
                    Packet { addresses: (packet.addresses.0, backend), state: "trk,est", ..packet.clone() };
                actions.extend(established.trace(control)?);
            }
            Translation::Reply(service) => {
                addresses.insert(service);
                let after = Packet { addresses: (service, packet.addresses.1), ..packet.clone() };
                actions.extend(after.trace(control)?);
            }
        }
        let translated = matches!(self.translation, Translation::None) && translated(&actions).is_some();
        let scopes = scopes.filter(|_| !translated).map(|mut scopes| {
            scopes.extend(addresses.into_iter().map(Scope::Address));
            scopes.insert(Scope::Mac(packet.macs.0));
            match packet.from {
                From::Port(port) => _ = scopes.insert(Scope::Port(port)),
                From::Tunnel { vni, option, .. } => scopes.extend(tunnel(vni, option)),
            }
            scopes
        });
        Ok(Verdict { actions, scopes })
    }

    /// Where the packet leaves: the scopes of that side.
    fn out(&self, actions: &[String], ports: &BTreeMap<u32, u32>) -> Option<BTreeSet<Scope>> {
        let last = actions.last()?;
        let delivered = ethernet(actions, "dst").unwrap_or(self.packet.macs.1);
        let mut scopes = BTreeSet::from([Scope::Mac(delivered)]);
        if last.contains("tnl_push(") {
            let (vni, option) = geneve(last)?;
            if matches!(self.packet.from, From::Tunnel { .. }) {
                return None;
            }
            scopes.extend(tunnel(vni, option));
        } else {
            let port: u32 = last.rsplit(',').next()?.parse().ok()?;
            let port = *ports.get(&port)?;
            if self.packet.from == From::Port(port) {
                return None;
            }
            scopes.insert(Scope::Port(port));
        }
        Some(scopes)
    }
}

fn tunnel(vni: u32, option: u32) -> [Scope; 3] {
    let [high, low] = [option >> 16, option & 0xffff].map(|half| u16::try_from(half).unwrap_or(0));
    let key = |key| Scope::Key { vni, key };
    [key(high & 0x7fff), key(low), Scope::Datapath { vni }]
}

/// Network identifier and option of the last Geneve header.
pub(super) fn geneve(actions: &str) -> Option<(u32, u32)> {
    let header = actions.rsplit_once("geneve(")?.1;
    let hex = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let after = |word: &str| header.split_once(word).map(|(_, rest)| rest);
    let digits = |text: &str| text.chars().take_while(char::is_ascii_hexdigit).collect::<String>();
    let vni = hex(&digits(after("vni=0x")?))?;
    let option = hex(&digits(after("len=4,0x")?))?;
    Some((vni, option))
}

/// The last Ethernet address that is set, by its name: `src` or `dst`.
pub(super) fn ethernet(actions: &[String], name: &str) -> Option<MacAddr> {
    let sets = actions.iter().flat_map(|line| line.split("set(eth(").skip(1));
    let values = sets.filter_map(|set| {
        let set = set.split(')').next()?;
        set.split(',').find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    });
    values.last()
}

/// The last destination that connection tracking translates to.
fn translated(actions: &[String]) -> Option<IpAddr> {
    let text = actions.iter().rev().find_map(|line| Some(line.rsplit_once("nat(dst=")?.1))?;
    let text = text.split(')').next()?;
    let v6 = text.strip_prefix('[').and_then(|text| text.split(']').next());
    v6.or_else(|| text.split(':').next()).and_then(|text| text.parse().ok())
}

/// Whether an impact makes an entry of these scopes invalid.
pub(super) fn is_hit(impact: &Impact, scopes: &BTreeSet<Scope>) -> bool {
    impact.everything.is_some() || impact.scopes.iter().any(|scope| scopes.contains(scope))
}

/// What was everything, for reports.
pub(super) fn reason(impact: &Impact) -> &'static str {
    match impact.everything {
        Some(why) => Why::name(why),
        None if impact.is_nothing() => "nothing",
        None => "scopes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_from_datapath_actions() {
        let actions = "set(eth(src=0a:58:0a:f4:01:01,dst=0a:58:0a:f4:01:03)),set(ipv4(ttl=63)),tnl_push(tnl_port(6081),header(size=58,type=5,eth(dst=02:00:00:00:00:03),geneve(crit,vni=0x3,options({class=0x102,type=0x80,len=4,0x20003}))),out_port(2)),3";
        assert_eq!(geneve(actions), Some((3, 0x20003)));
        assert_eq!(ethernet(&[actions.to_owned()], "dst"), "0a:58:0a:f4:01:03".parse().ok());
        assert_eq!(ethernet(&[actions.to_owned()], "src"), "0a:58:0a:f4:01:01".parse().ok());
        let nat = |text: &str| translated(&[text.to_owned()]);
        assert_eq!(nat("ct(commit,zone=4,nat(dst=10.244.1.3:8080)),recirc()"), "10.244.1.3".parse().ok());
        assert_eq!(nat("ct(commit,nat(dst=[fd00::3]:8080))"), "fd00::3".parse().ok());
        assert_eq!(nat("ct(nat)"), None);
    }
}
