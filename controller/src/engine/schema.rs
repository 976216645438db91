//! What the northbound schema of the server can hold. A feature whose column is missing is off, with a reason.

use ovsdb_client::Schema;

use crate::config::Features;
use crate::metrics::Metrics;

/// Probes the schema.
pub fn features(schema: &Schema, metrics: &Metrics) -> Features {
    let has = |feature: &'static str, table: &str, column: &str| {
        let has = schema.has_column(table, column);
        if !has {
            let reason = format!("{} {} has no column {table}.{column}", schema.name, schema.version);
            tracing::warn!(feature, reason, "feature is off");
            metrics.feature_off(feature, &reason);
        }
        has
    };
    Features {
        acl_tier: has("acl_tier", "ACL", "tier"),
        nat_port_range: has("nat_port_range", "NAT", "external_port_range"),
        static_mac_binding: has("static_mac_binding", "Static_MAC_Binding", "override_dynamic_mac"),
        copp: has("copp", "Logical_Router", "copp"),
        load_balancer_group: has("load_balancer_group", "Logical_Switch", "load_balancer_group"),
        bfd: has("bfd", "Logical_Router_Static_Route", "bfd"),
    }
}
