//! Whether br-int's flows are as the rules assume: who writes which field (A1 to A3 of the module's documentation).

use std::collections::BTreeSet;

use super::facts::Write;
use super::index::Index;
use crate::ovs::openflow::Target;

/// What is wrong first, as a sentence without a full stop; `None` if nothing is.
pub(super) fn check(index: &Index) -> Option<String> {
    writers(index).or_else(|| translations(index)).or_else(|| ttl(index)).or_else(|| topology(index))
}

/// Where a flow is, for texts.
fn place(datapath: Option<u64>, table: u8) -> String {
    match datapath {
        Some(datapath) => format!("table {table}, datapath {datapath:#x}"),
        None => format!("table {table}"),
    }
}

/// Fields that nobody else may write: metadata and registers 14 and 15 by what enters the bridge or a datapath, registers of
/// addresses from the packet alone, Ethernet addresses by routers.
fn writers(index: &Index) -> Option<String> {
    index
        .writes
        .iter()
        .filter_map(|(datapath, table, write)| {
            let router = datapath.is_none_or(|datapath| index.is_router(datapath));
            let what = match write {
                Write::Never(target) => format!("a flow writes {}", name(*target)),
                Write::Registers => "a flow leads to another datapath and keeps registers".to_owned(),
                // Before it has routed, a router has other things there.
                Write::NextHop if datapath.is_some_and(|datapath| index.is_routed(datapath, *table)) => {
                    "a router's next hop is neither constant nor the destination".to_owned()
                }
                Write::Original => {
                    "an original destination is neither constant nor the destination".to_owned()
                }
                Write::Scratches if !datapath.is_some_and(|datapath| index.is_router(datapath)) => {
                    "register 1 of a switch is not for the original destination alone".to_owned()
                }
                Write::Carries if !router => "a switch copies flags to the original destination".to_owned(),
                Write::Ethernet if !router => "a switch writes Ethernet addresses".to_owned(),
                _ => return None,
            };
            Some(format!("{what} ({})", place(*datapath, *table)))
        })
        .min()
}

fn name(target: Target) -> &'static str {
    match target {
        Target::Datapath => "metadata",
        Target::Ingress => "the ingress port",
        Target::Egress => "an egress port that is not constant",
        Target::NextHop => "the next hop",
        Target::Original => "the original destination",
        Target::EthSource => "the Ethernet source",
        Target::EthDestination => "the Ethernet destination",
        Target::Address => "IP addresses",
        Target::Port => "transport ports",
        Target::Ttl => "the TTL",
        Target::Encapsulation => "the encapsulation",
        Target::Unknown => "what cannot be read",
    }
}

/// A1: routers next to local endpoints translate nothing, and switches the destination once.
fn translations(index: &Index) -> Option<String> {
    let mut tables = BTreeSet::new();
    let mut wrong = None;
    for (datapath, table, write) in index.writes.iter() {
        let router = datapath.is_some_and(|datapath| index.is_router(datapath));
        let near = datapath.is_none_or(|datapath| index.is_near(datapath));
        match write {
            Write::Translates if router && near => wrong = Some(place(*datapath, *table)),
            Write::TranslatesDestination if !router && datapath.is_some() => _ = tables.insert(*table),
            _ => {}
        }
    }
    wrong.map(|place| format!("a router next to local endpoints translates addresses ({place})")).or_else(
        || {
            (tables.len() > 1)
                .then(|| format!("switches translate destinations in several tables: {tables:?}"))
        },
    )
}

/// A2: every pass of a router lowers the TTL: in one table, and no egress port is chosen before or there without it.
fn ttl(index: &Index) -> Option<String> {
    index.routers.iter().find_map(|(router, tables)| {
        let tables: BTreeSet<u8> = tables.iter().copied().collect();
        let last = *tables.last()?;
        if tables.len() > 1 {
            return Some(format!("datapath {router:#x} lowers the TTL in several tables: {tables:?}"));
        }
        let early = index.writes.iter().find(|(datapath, table, write)| {
            *datapath == Some(*router) && *write == Write::EgressAlone && *table <= last
        });
        early.map(|(datapath, table, _)| {
            format!("a router chooses an egress port without lowering the TTL ({})", place(*datapath, *table))
        })
    })
}

/// Switches are connected by routers alone. Endpoints whose switch has a port to a provider's bridge have no entries.
fn topology(index: &Index) -> Option<String> {
    index.neighbours.iter().find_map(|(datapath, others)| {
        let other = others.iter().find(|other| !index.is_router(*datapath) && !index.is_router(**other))?;
        Some(format!("datapaths {datapath:#x} and {other:#x} are connected without a router"))
    })
}
