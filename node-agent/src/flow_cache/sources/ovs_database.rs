//! Changes of the Open_vSwitch database after which OVS's verdicts may differ.

use std::sync::Arc;

use ovsdb_client::vswitch::{Bridge, Interface, Mirror, OpenVSwitch, Port};
use ovsdb_client::{Change, Row, RowChange};

use crate::flow_cache::cause::Cause;
use crate::flow_cache::invalidation::Input;
use crate::flow_cache::manager::Shared;
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
                let source = match change {
                    Some(Change::Rows(rows)) => rows.iter().filter_map(cause_of).max_by_key(|s| *s == Cause::Ports),
                    Some(Change::Resync) => Some(Cause::Ports),
                    None => break,
                };
                if let Some(source) = source {
                    // Before the invalidation, so that nothing is learned from a removed node after it.
                    shared.update_remotes(&ovs);
                    shared.take(Input::Changed(source));
                }
                shared.decide.notify_one();
            }
        }
    }
    shared.take(Input::Database(false));
}

/// Cause of invalidation for a changed row; `None` when no verdict depends on the changed columns, such as `external_ids` of
/// interfaces, which change with every pod.
fn cause_of(change: &RowChange) -> Option<Cause> {
    let ports = |differs: bool| differs.then_some(Cause::Ports);
    match change.table {
        OpenVSwitch::TABLE => {
            let facts = |row: &OpenVSwitch| (row.external_ids.clone(), row.other_config.clone());
            differs(change, facts).then_some(Cause::Chassis)
        }
        Interface::TABLE => ports(differs(change, |row: &Interface| {
            let policing = (row.ingress_policing_rate, row.ingress_policing_kpkts_rate);
            (row.name.clone(), row.ofport, row.r#type.clone(), row.options.clone(), row.ifindex, policing)
        })),
        Port::TABLE => ports(differs(change, |row: &Port| {
            (row.name.clone(), row.interfaces.clone(), row.qos, row.other_config.clone())
        })),
        Bridge::TABLE => ports(differs(change, |row: &Bridge| {
            let copies = (row.mirrors.clone(), row.sflow, row.netflow, row.ipfix);
            (row.name.clone(), row.ports.clone(), row.datapath_type.clone(), row.fail_mode.clone(), copies)
        })),
        Mirror::TABLE => Some(Cause::Ports),
        _ => None,
    }
}

fn differs<R: Row, T: PartialEq>(change: &RowChange, facts: impl Fn(&R) -> T) -> bool {
    change.old::<R>().map(&facts) != change.new_row::<R>().map(&facts)
}
