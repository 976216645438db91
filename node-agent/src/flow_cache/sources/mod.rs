//! Sources of events after which OVS's verdicts may differ: flows of br-int, the Open_vSwitch database, links and neighbours of
//! the underlay, connection tracking, and OVS's revalidators.

pub(super) mod faults;
pub(super) mod flow_events;
pub mod flow_monitor;
pub(super) mod forgotten;
pub(super) mod ovs_database;
pub(super) mod physical;
pub(super) mod revalidation;
mod tables;
pub(super) mod tracking;
pub(super) mod underlay;
