//! Changes of the Open_vSwitch database that may change a verdict.

use std::sync::Arc;

use ovsdb_client::vswitch::{Bridge, Interface, Mirror, OpenVSwitch, Port};
use ovsdb_client::{Change, Row, RowChange};

use crate::flow_cache::cause::Cause;
use crate::flow_cache::invalidation::Input;
use crate::flow_cache::manager::Shared;
use crate::ovs::Ovs;

/// Follows the Open_vSwitch database.
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
                    Some(Change::Rows(rows)) => rows.iter().filter_map(meaning).max_by_key(|s| *s == Cause::Ports),
                    Some(Change::Resync) => Some(Cause::Ports),
                    None => break,
                };
                if let Some(source) = source {
                    // First, so that nothing is learned from a node that is gone after what it taught is invalid.
                    shared.update_remotes(&ovs);
                    shared.take(Input::Changed(source));
                }
                shared.decide.notify_one();
            }
        }
    }
    shared.take(Input::Database(false));
}

/// What a changed row has to do with verdicts. The rest comes and goes with every pod: `external_ids` above all.
fn meaning(change: &RowChange) -> Option<Cause> {
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
