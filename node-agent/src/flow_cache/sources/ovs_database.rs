//! Changes of the Open_vSwitch database after which OVS's verdicts may differ.

use std::collections::BTreeSet;
use std::sync::Arc;

use ovsdb_client::vswitch::{Bridge, Interface, Mirror, OpenVSwitch, Port};
use ovsdb_client::{Change, Row, RowChange};

use crate::flow_cache::invalidation::Cause;
use crate::flow_cache::invalidation::Input;
use crate::flow_cache::state::Shared;
use crate::ovs::Ovs;

/// Reports relevant changes of the Open_vSwitch database, and whether it is synced, to the state machine. Never returns while
/// the database session exists.
pub(in crate::flow_cache) async fn follow(shared: Arc<Shared>, ovs: Ovs) {
    let mut changes = ovs.replica().changes();
    let mut synced = ovs.replica().synced();
    let there = *synced.borrow_and_update();
    if there {
        shared.update_remotes(&ovs);
    }
    shared.take(Input::Database(there));
    loop {
        tokio::select! {
            changed = synced.changed() => {
                if changed.is_err() {
                    break;
                }
                let there = *synced.borrow_and_update();
                if there {
                    shared.update_remotes(&ovs);
                }
                shared.take(Input::Database(there));
            }
            change = changes.next() => {
                let concern = match change {
                    Some(Change::Rows(rows)) => rows.iter().map(concern).fold(Concern::Nothing, Concern::and),
                    Some(Change::Resync) => Concern::Everything(Cause::Ports),
                    None => break,
                };
                tell(&shared, &ovs, concern);
                shared.decide.notify_one();
            }
        }
    }
    shared.take(Input::Database(false));
}

/// What a change of rows concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Concern {
    Nothing,
    /// The ports with these names, if they are pods' ports or the management port.
    Ports(BTreeSet<String>),
    Everything(Cause),
}

impl Concern {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, one) | (one, Self::Nothing) => one,
            (Self::Ports(mut names), Self::Ports(more)) => {
                names.extend(more);
                Self::Ports(names)
            }
            (Self::Everything(Cause::Ports), _) | (_, Self::Everything(Cause::Ports)) => {
                Self::Everything(Cause::Ports)
            }
            (one @ Self::Everything(_), _) | (_, one @ Self::Everything(_)) => one,
        }
    }
}

/// Invalidates what a change concerns.
fn tell(shared: &Shared, ovs: &Ovs, concern: Concern) {
    let names = match &concern {
        Concern::Nothing => return,
        Concern::Ports(names) => names.clone(),
        Concern::Everything(_) => BTreeSet::new(),
    };
    // Before the invalidation, so that nothing is learned from a removed node after it.
    shared.update_remotes(ovs);
    // By the ports as they were and as they are: a row that is gone has its port in the former alone.
    let before = shared.named_ports(&names);
    match &concern {
        Concern::Ports(names) => shared.update_ports(ovs, names),
        _ => shared.read_ports(ovs),
    }
    let after = shared.named_ports(&names);
    let known = |name: &String| before.contains_key(name) || after.contains_key(name);
    match concern {
        Concern::Everything(cause) => shared.take(Input::Changed(cause)),
        Concern::Ports(_) if names.iter().all(known) => {
            let buckets: BTreeSet<u32> = before.into_values().chain(after.into_values()).collect();
            shared.take_buckets(Cause::Ports, buckets.into_iter().collect())
        }
        _ => shared.take(Input::Changed(Cause::Ports)),
    };
}

/// What a changed row concerns: nothing when no verdict depends on the changed columns, such as `external_ids` of interfaces, which
/// change with every pod.
fn concern(change: &RowChange) -> Concern {
    let ports = |differs: bool| if differs { Concern::Everything(Cause::Ports) } else { Concern::Nothing };
    match change.table {
        OpenVSwitch::TABLE => {
            let facts = |row: &OpenVSwitch| (row.external_ids.clone(), row.other_config.clone());
            if differs(change, facts) { Concern::Everything(Cause::Chassis) } else { Concern::Nothing }
        }
        Interface::TABLE => {
            let facts = |row: &Interface| {
                let policing = (row.ingress_policing_rate, row.ingress_policing_kpkts_rate);
                (row.name.clone(), row.ofport, row.r#type.clone(), row.options.clone(), row.ifindex, policing)
            };
            if differs(change, facts) { named(change, |row: &Interface| &row.name) } else { Concern::Nothing }
        }
        Port::TABLE => {
            let facts = |row: &Port| {
                let tags = (row.tag, row.trunks.clone(), row.vlan_mode.clone(), row.protected);
                (row.name.clone(), row.interfaces.clone(), row.qos, row.other_config.clone(), tags)
            };
            if differs(change, facts) { named(change, |row: &Port| &row.name) } else { Concern::Nothing }
        }
        // A port that comes or goes has a row that does.
        Bridge::TABLE => ports(differs(change, |row: &Bridge| {
            let copies = (row.mirrors.clone(), row.sflow, row.netflow, row.ipfix);
            let trees = (row.stp_enable, row.rstp_enable);
            (row.name.clone(), row.datapath_type.clone(), row.fail_mode.clone(), copies, trees)
        })),
        Mirror::TABLE => Concern::Everything(Cause::Ports),
        _ => Concern::Nothing,
    }
}

/// A change of a port with the row's names.
fn named<R: Row>(change: &RowChange, name: impl Fn(&R) -> &String) -> Concern {
    let rows = [change.old::<R>(), change.new_row::<R>()];
    Concern::Ports(rows.into_iter().flatten().map(|row| name(row).clone()).collect())
}

fn differs<R: Row, T: PartialEq>(change: &RowChange, facts: impl Fn(&R) -> T) -> bool {
    change.old::<R>().map(&facts) != change.new_row::<R>().map(&facts)
}
