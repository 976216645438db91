//! The facts of all flows, by what the rules ask for.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::net::IpAddr;

use api::MacAddr;
use hashbrown::{HashMap, HashSet};

use super::counted::Counted;
use super::facts::{Constant, Fact, Write};
use super::name::Name;
use crate::ovs::openflow::{FIRST_CALLED, FIRST_UNTOLD, LogicalPort};

/// Flows of the clauses of a conjunction, by dimension.
pub(super) type Dimensions = BTreeMap<u8, Counted<Name>>;

/// Facts of flows that exist, or existed a short time ago.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// OpenFlow ports of a logical port of this node.
    ports: HashMap<LogicalPort, Counted<u32>>,
    origins: Counted<u32>,
    /// Datapaths that have local endpoints.
    pub(super) homes: Counted<u64>,
    patches: Counted<LogicalPort>,
    /// Datapaths that a patch port leads to.
    pub(super) neighbours: HashMap<u64, Counted<u64>>,
    /// Tables in which a router lowers the TTL.
    pub(super) routers: HashMap<u64, Counted<u8>>,
    /// Tables that send packets through one that is no stage of a pipeline, by datapath and that table.
    calls: HashMap<(Option<u64>, u8), Counted<u8>>,
    admits: HashMap<MacAddr, Counted<u64>>,
    sends: Counted<MacAddr>,
    writers: HashMap<(Option<u64>, Constant), Counted<Name>>,
    /// Datapaths in which a constant is written.
    places: HashMap<Constant, Counted<Option<u64>>>,
    clauses: HashMap<(u8, u32), Dimensions>,
    virtuals: Counted<IpAddr>,
    /// What is written where, for the lint.
    pub(super) writes: Counted<(Option<u64>, u8, Write)>,
    near: HashSet<u64>,
    near_stale: bool,
    /// Something that the lint looks at has changed.
    pub(super) lint_stale: bool,
}

fn add_to<K: Eq + Hash, V: Eq + Hash>(map: &mut HashMap<K, Counted<V>>, key: K, value: V) {
    map.entry(key).or_default().add(value);
}

fn remove_from<K: Eq + Hash, V: Eq + Hash>(map: &mut HashMap<K, Counted<V>>, key: &K, value: &V) {
    if let Some(counted) = map.get_mut(key)
        && counted.remove(value)
        && counted.is_empty()
    {
        map.remove(key);
    }
}

impl Index {
    pub(super) fn add(&mut self, name: &Name, fact: &Fact) {
        let mut structure = false;
        match *fact {
            Fact::Origin(port, logical) => {
                add_to(&mut self.ports, logical, port);
                self.origins.add(port);
                structure = self.homes.add(logical.datapath);
            }
            Fact::Output(logical, port) => add_to(&mut self.ports, logical, port),
            Fact::Patch(from, to) => {
                self.patches.add(from);
                self.patches.add(to);
                add_to(&mut self.neighbours, from.datapath, to.datapath);
                add_to(&mut self.neighbours, to.datapath, from.datapath);
                structure = true;
            }
            Fact::Admits(datapath, mac) => add_to(&mut self.admits, mac, datapath),
            Fact::Sends(mac) => _ = self.sends.add(mac),
            Fact::Constant(datapath, constant) => {
                add_to(&mut self.writers, (datapath, constant), name.clone());
                add_to(&mut self.places, constant, datapath);
            }
            Fact::Clause(table, part) => {
                let dimensions = self.clauses.entry((table, part.id)).or_default();
                dimensions.entry(part.clause).or_default().add(name.clone());
            }
            Fact::Virtual(address) => _ = self.virtuals.add(address),
            Fact::Calls(datapath, from, to) => {
                self.lint_stale |= self.calls.entry((datapath, to)).or_default().add(from);
            }
            Fact::Write(datapath, table, write) => {
                self.lint_stale |= self.writes.add((datapath, table, write));
                if let (Write::LowersTtl, Some(datapath)) = (write, datapath) {
                    add_to(&mut self.routers, datapath, table);
                }
            }
        }
        self.near_stale |= structure;
        self.lint_stale |= structure;
    }

    pub(super) fn remove(&mut self, name: &Name, fact: &Fact) {
        let mut structure = false;
        match *fact {
            Fact::Origin(port, logical) => {
                remove_from(&mut self.ports, &logical, &port);
                self.origins.remove(&port);
                structure = self.homes.remove(&logical.datapath);
            }
            Fact::Output(logical, port) => remove_from(&mut self.ports, &logical, &port),
            Fact::Patch(from, to) => {
                self.patches.remove(&from);
                self.patches.remove(&to);
                remove_from(&mut self.neighbours, &from.datapath, &to.datapath);
                remove_from(&mut self.neighbours, &to.datapath, &from.datapath);
                structure = true;
            }
            Fact::Admits(datapath, mac) => remove_from(&mut self.admits, &mac, &datapath),
            Fact::Sends(mac) => _ = self.sends.remove(&mac),
            Fact::Constant(datapath, constant) => {
                remove_from(&mut self.writers, &(datapath, constant), name);
                remove_from(&mut self.places, &constant, &datapath);
            }
            Fact::Clause(table, part) => self.remove_clause((table, part.id), part.clause, name),
            Fact::Virtual(address) => _ = self.virtuals.remove(&address),
            Fact::Calls(datapath, from, to) => {
                remove_from(&mut self.calls, &(datapath, to), &from);
                self.lint_stale = true;
            }
            Fact::Write(datapath, table, write) => {
                self.lint_stale |= self.writes.remove(&(datapath, table, write));
                if let (Write::LowersTtl, Some(datapath)) = (write, datapath) {
                    remove_from(&mut self.routers, &datapath, &table);
                }
            }
        }
        self.near_stale |= structure;
        self.lint_stale |= structure;
    }

    fn remove_clause(&mut self, conjunction: (u8, u32), clause: u8, name: &Name) {
        let Some(dimensions) = self.clauses.get_mut(&conjunction) else { return };
        if let Some(flows) = dimensions.get_mut(&clause)
            && flows.remove(name)
            && flows.is_empty()
        {
            dimensions.remove(&clause);
        }
        if dimensions.is_empty() {
            self.clauses.remove(&conjunction);
        }
    }

    /// OpenFlow ports of a logical port; none when it is not of this node.
    pub(super) fn ports(&self, logical: LogicalPort) -> Option<&Counted<u32>> {
        self.ports.get(&logical)
    }

    /// Whether an OpenFlow port is a local endpoint's.
    pub(super) fn is_local(&self, port: u32) -> bool {
        self.origins.contains(&port)
    }

    /// Whether a logical port is one of two that lead from one datapath to another.
    pub(super) fn is_patch(&self, logical: LogicalPort) -> bool {
        self.patches.contains(&logical)
    }

    /// Whether the TTL is lowered in a datapath.
    pub(super) fn is_router(&self, datapath: u64) -> bool {
        self.routers.contains_key(&datapath)
    }

    /// Whether a router's packets have a next hop in a table: it comes after the one that lowers the TTL and routes.
    pub(super) fn has_next_hop(&self, datapath: u64, table: u8) -> bool {
        self.routers.get(&datapath).is_some_and(|tables| tables.iter().all(|lowers| table > *lowers))
    }

    /// Whether a router may have chosen a next hop in a table. Tables that are no stages are as those that call them: what a client of a
    /// service with affinity is remembered by is asked before routing.
    pub(super) fn is_routed(&self, datapath: u64, table: u8) -> bool {
        let Some(tables) = self.routers.get(&datapath) else { return false };
        let late = |table: u8| tables.iter().any(|lowers| table >= *lowers);
        if !(FIRST_CALLED..FIRST_UNTOLD).contains(&table) {
            return late(table);
        }
        let callers = [Some(datapath), None].map(|datapath| self.calls.get(&(datapath, table)));
        callers.into_iter().flatten().flat_map(Counted::iter).any(|caller| late(*caller))
    }

    /// Whether packets may have this MAC address between the way into and out of the bridge alone.
    pub(super) fn is_router_mac(&self, mac: MacAddr) -> bool {
        let admitted = || self.admits.get(&mac).is_some_and(|all| all.iter().any(|one| self.is_router(*one)));
        self.sends.contains(&mac) || admitted()
    }

    /// Flows that write a constant in a datapath; in any, if none is given.
    pub(super) fn writers(&self, datapath: Option<u64>, constant: Constant) -> impl Iterator<Item = &Name> {
        let places = self.places.get(&constant).into_iter().flat_map(Counted::iter);
        let places = places.filter(move |place| datapath.is_none() || place.is_none() || **place == datapath);
        places.filter_map(move |place| self.writers.get(&(*place, constant))).flat_map(Counted::iter)
    }

    /// Clauses of a conjunction.
    pub(super) fn dimensions(&self, table: u8, conjunction: u32) -> Option<&Dimensions> {
        self.clauses.get(&(table, conjunction))
    }

    /// Whether an address is a load balancer's.
    pub(super) fn is_virtual(&self, address: IpAddr) -> bool {
        self.virtuals.contains(&address)
    }

    /// Whether packets of local endpoints may pass a datapath without a tunnel's network identifier telling of it: it has local
    /// endpoints, or is one patch port away from one that has.
    pub(super) fn is_near(&self, datapath: u64) -> bool {
        self.near.contains(&datapath)
    }

    /// Brings [`Self::is_near`] up to date.
    pub(super) fn update_near(&mut self) {
        if !std::mem::take(&mut self.near_stale) {
            return;
        }
        self.near.clear();
        for home in self.homes.iter() {
            self.near.insert(*home);
            self.near.extend(self.neighbours.get(home).into_iter().flat_map(Counted::iter));
        }
    }
}
