//! The rules: which entries' packets can have a state that a flow matches. Their arguments are in the module's documentation.

use std::net::IpAddr;

use api::MacAddr;

use super::facts::{Constant, FIRST_GROUP, v4};
use super::impact::{Rule, Scope, Why};
use super::index::Index;
use crate::ovs::openflow::{Address, IPV4, IPV6, LogicalPort, Match};

/// Writers of constants are followed this far.
const DEPTH: u8 = 2;

/// Appends the scopes of a flow by its own match, and tells by which rule. On an error what was appended says nothing.
pub(super) fn direct(
    index: &Index,
    table: u8,
    matched: &Match,
    scopes: &mut Vec<Scope>,
) -> Result<Rule, Why> {
    Rules { index, scopes }.direct(table, matched, 0)
}

/// Appends the scopes of a flow by those of others that write what it matches; `None`: it is no such flow.
type ByWriters<'a> = fn(&mut Rules<'a>, u8, &Match, u8) -> Option<Result<(), Why>>;

struct Rules<'a> {
    index: &'a Index,
    scopes: &'a mut Vec<Scope>,
}

impl<'a> Rules<'a> {
    fn direct(&mut self, table: u8, matched: &Match, depth: u8) -> Result<Rule, Why> {
        if matched.is_never_cached() {
            return Ok(Rule::NeverCached);
        }
        if let Some(address) = self.address(matched) {
            return Ok(self.name(Scope::Address(address), Rule::Address));
        }
        for register in [15, 14] {
            if let Some(port) = matched.logical_port(register)
                && self.local_port(port)
            {
                return Ok(Rule::LocalPort);
            }
        }
        if let Some(port) = matched.in_port.filter(|port| self.index.is_local(*port)) {
            return Ok(self.name(Scope::Port(port), Rule::LocalPort));
        }
        let begin = self.scopes.len();
        let by_writers: [(ByWriters<'a>, Rule); 3] =
            [(Self::group, Rule::Group), (Self::next_hop, Rule::NextHop), (Self::original, Rule::Original)];
        for (by_writers, rule) in by_writers {
            if by_writers(self, table, matched, depth) == Some(Ok(())) {
                return Ok(rule);
            }
            self.scopes.truncate(begin);
        }
        if let Some(mac) = self.mac(matched) {
            return Ok(self.name(Scope::Mac(mac), Rule::Mac));
        }
        if let Some(scope) = self.remote_port(matched) {
            return Ok(self.name(scope, Rule::RemotePort));
        }
        if let Some(scope) = self.far_datapath(matched) {
            return Ok(self.name(scope, Rule::FarDatapath));
        }
        Err(self.why(matched))
    }

    fn name(&mut self, scope: Scope, rule: Rule) -> Rule {
        self.scopes.push(scope);
        rule
    }

    /// R1. Of two addresses the one that is not a load balancer's: fewer entries have it.
    fn address(&self, matched: &Match) -> Option<IpAddr> {
        match (matched.source.whole(), matched.destination.whole()) {
            (Some(source), Some(destination)) if self.index.is_virtual(source) => Some(destination),
            (source, destination) => source.or(destination),
        }
    }

    /// R2. The key as well: until this change the port may have been another node's.
    fn local_port(&mut self, port: LogicalPort) -> bool {
        let Some(ports) = self.index.ports(port) else { return false };
        self.scopes.extend(ports.iter().map(|port| Scope::Port(*port)));
        self.scopes.extend(key(port));
        true
    }

    /// R3: a group, by the flows that send to it; and what comes to it by a tunnel.
    fn group(&mut self, _table: u8, matched: &Match, depth: u8) -> Option<Result<(), Why>> {
        let group = matched.logical_port(15).filter(|port| port.port >= FIRST_GROUP)?;
        self.scopes.extend(key(group));
        Some(self.writers(Some(group.datapath), Constant::Group(group.port), depth))
    }

    /// R5. Before a router has routed, the lower half of the register is something else.
    fn next_hop(&mut self, table: u8, matched: &Match, depth: u8) -> Option<Result<(), Why>> {
        let router = matched.datapath.filter(|datapath| self.index.has_next_hop(*datapath, table))?;
        matched.register(0).filter(|register| *register >> 16 != 0)?;
        self.register(matched, Some(router), 0, Constant::NextHop, depth)
    }

    /// R6.
    fn original(&mut self, _table: u8, matched: &Match, depth: u8) -> Option<Result<(), Why>> {
        self.register(matched, matched.datapath, 4, Constant::Original, depth)
    }

    /// An address in registers from `first` on: it is one of the packet's, or a constant.
    fn register(
        &mut self,
        matched: &Match,
        datapath: Option<u64>,
        first: usize,
        constant: fn(IpAddr) -> Constant,
        depth: u8,
    ) -> Option<Result<(), Why>> {
        let register = matched.register(first)?;
        let v6 = matched.registers(first).filter(|address| !address.is_unspecified());
        if register == 0 && v6.is_none() {
            return None;
        }
        // A register alone may be the beginning of an IPv6 address.
        let maybe_v6 = matched.eth_type != Some(IPV4) && begins_v6(register);
        if v6.is_none() && maybe_v6 {
            return None;
        }
        let v4 = Some(v4(register)).filter(|_| register != 0 && matched.eth_type != Some(IPV6));
        for address in v4.into_iter().chain(v6.map(IpAddr::V6)) {
            self.scopes.push(Scope::Address(address));
            // A router has next hops there, too.
            for constant in [constant(address), Constant::NextHop(address)] {
                if let Err(why) = self.writers(datapath, constant, depth) {
                    return Some(Err(why));
                }
            }
        }
        Some(Ok(()))
    }

    fn writers(&mut self, datapath: Option<u64>, constant: Constant, depth: u8) -> Result<(), Why> {
        let index = self.index;
        for writer in index.writers(datapath, constant) {
            if depth >= DEPTH {
                return Err(Why::Datapath);
            }
            self.direct(writer.table(), &writer.matched(), depth + 1)?;
        }
        Ok(())
    }

    /// R7.
    fn mac(&self, matched: &Match) -> Option<MacAddr> {
        let usable = |mac: &MacAddr| {
            mac.0.first().is_some_and(|byte| byte & 1 == 0)
                && mac.0 != [0; 6]
                && !self.index.is_router_mac(*mac)
        };
        [matched.eth_destination, matched.eth_source].into_iter().flatten().find(usable)
    }

    /// R8.
    fn remote_port(&self, matched: &Match) -> Option<Scope> {
        let ports = [matched.logical_port(15), matched.logical_port(14)].into_iter().flatten();
        let remote = |port: &LogicalPort| {
            port.port < FIRST_GROUP && !self.index.is_patch(*port) && !self.index.is_router(port.datapath)
        };
        ports.filter(remote).find_map(key)
    }

    /// R9.
    fn far_datapath(&self, matched: &Match) -> Option<Scope> {
        let datapath = matched.datapath.filter(|datapath| !self.index.is_near(*datapath))?;
        Some(Scope::Datapath { vni: vni(datapath)? })
    }

    fn why(&self, matched: &Match) -> Why {
        if matched.in_port.is_some() {
            Why::UnknownPort
        } else if matched.source == Address::Part || matched.destination == Address::Part {
            Why::Prefix
        } else if matched.datapath.is_some() {
            Why::Datapath
        } else {
            Why::Bridge
        }
    }
}

/// A datapath's key as a network identifier, which has 24 bits.
fn vni(datapath: u64) -> Option<u32> {
    u32::try_from(datapath).ok().filter(|vni| *vni < 1 << 24)
}

fn key(port: LogicalPort) -> Option<Scope> {
    let (vni, key) = (vni(port.datapath)?, u16::try_from(port.port).ok()?);
    Some(Scope::Key { vni, key })
}

/// Whether a unicast IPv6 address may begin with these bits: global (2000::/3), unique local and link-local (fc00::/6).
fn begins_v6(register: u32) -> bool {
    register >> 29 == 1 || register >> 26 == 0xfc00 >> 10
}
