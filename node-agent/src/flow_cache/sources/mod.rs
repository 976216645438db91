//! What tells that OVS's verdicts may have changed: flows of br-int, the Open_vSwitch database, the underlay's links and
//! neighbours, connection tracking, and OVS's revalidators.

pub(super) mod flow_events;
pub mod flow_monitor;
pub(super) mod ovs_database;
pub(super) mod revalidation;
pub(super) mod tracking;
pub(super) mod underlay;
