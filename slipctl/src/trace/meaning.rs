//! Rows of the northbound database in the words of Kubernetes.

use std::collections::BTreeMap;

use api::ovn_name::key;
use serde_json::Value;

/// Tables that rows are looked for in, and their columns.
pub(super) const TABLES: [(&str, &str); 5] = [
    ("ACL", "_uuid,name,action,priority,external_ids"),
    ("Load_Balancer", "_uuid,name,external_ids"),
    ("Logical_Router_Static_Route", "_uuid,ip_prefix,nexthop,policy"),
    ("NAT", "_uuid,type,logical_ip,external_ip"),
    ("Logical_Router_Policy", "_uuid,match,action,nexthops"),
];

/// What a row is: its kind, and its meaning, which is empty if it decides nothing.
pub(super) fn of_row(table: &str, row: &BTreeMap<String, Value>) -> (&'static str, String) {
    let text = |column: &str| match row.get(column) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => String::new(),
        Some(other) => other.to_string(),
    };
    match table {
        // Goes on to the next tier.
        "ACL" if text("action") == "pass" => ("policy", String::new()),
        "ACL" => ("policy", acl(row, &text("action"))),
        "Load_Balancer" => {
            let ids = row.get("external_ids");
            let owner = ids.and_then(|ids| ids[key::OWNER].as_str()).unwrap_or_default();
            ("service", format!("Service {owner} (load balancer {})", text("name")))
        }
        "Logical_Router_Static_Route" => {
            let by = if text("policy") == "src-ip" { "from" } else { "to" };
            ("route", format!("{by} {} via {}", text("ip_prefix"), text("nexthop")))
        }
        "NAT" => {
            ("translation", format!("{} {} as {}", text("type"), text("logical_ip"), text("external_ip")))
        }
        _ => ("route", format!("{} {} where {}", text("action"), text("nexthops"), text("match"))),
    }
}

/// An ACL by the policy and rule that it is made from.
fn acl(row: &BTreeMap<String, Value>, action: &str) -> String {
    let id = |of: &str| row.get("external_ids").and_then(|ids| ids[of].as_str()).unwrap_or_default();
    let verb = if action.starts_with("allow") { "allowed" } else { "denied" };
    let direction = id("direction").to_lowercase();
    let object = id(key::NAME).replacen(':', "/", 1);
    // Policies of a virtual network have owner types of their own.
    let owner_type = id(key::OWNER_TYPE);
    let (kind, on) = match id(key::VIRTUAL_NETWORK) {
        "" => ("NetworkPolicy", String::new()),
        network => ("MultiNetworkPolicy", format!(" on virtual network {network}")),
    };
    match (owner_type.trim_start_matches("Multi"), id("gress-index")) {
        ("NetworkPolicy" | "NetworkPolicyNamedPort", index) if !index.is_empty() => {
            let rule =
                index.parse::<u32>().map_or_else(|_| index.to_owned(), |index| (index + 1).to_string());
            format!("{verb} by {kind} {object}{on}, {direction} rule {rule}")
        }
        ("NetpolNamespace", _) => {
            format!(
                "{verb} by default: policies of namespace {object}{on} select the pod for {direction}, and none of their rules allows \
                 this"
            )
        }
        ("NetpolNode", _) => format!("{verb}: traffic from node {object} to its own pods is always allowed"),
        _ => format!(
            "{verb} by ACL {} ({owner_type} {object})",
            row.get("name").and_then(Value::as_str).unwrap_or("without a name")
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(value: &Value) -> BTreeMap<String, Value> {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn rows_are_told_by_policy_rule_service_and_route() {
        let allow = row(&json!({"action": "allow-related", "name": "NP:shop:db:Ingress:0", "external_ids": {
            "k8s.ovn.org/owner-type": "NetworkPolicy", "k8s.ovn.org/name": "shop:db", "direction": "Ingress", "gress-index": "0"}}));
        assert_eq!(
            of_row("ACL", &allow),
            ("policy", "allowed by NetworkPolicy shop/db, ingress rule 1".to_owned())
        );
        let deny =
            row(&json!({"action": "drop", "external_ids": {"k8s.ovn.org/owner-type": "NetpolNamespace",
            "k8s.ovn.org/name": "shop", "direction": "Egress"}}));
        assert!(of_row("ACL", &deny).1.starts_with("denied by default: policies of namespace shop"));
        let on_network = row(&json!({"action": "allow-related", "external_ids": {
            "k8s.ovn.org/owner-type": "MultiNetworkPolicy", "k8s.ovn.org/name": "shop:db", "direction": "Egress", "gress-index": "1",
            "slipstream.dev/virtual-network": "shop/blue"}}));
        assert_eq!(
            of_row("ACL", &on_network).1,
            "allowed by MultiNetworkPolicy shop/db on virtual network shop/blue, egress rule 2"
        );
        let service = row(
            &json!({"name": "Service_shop/db_TCP_cluster", "external_ids": {"k8s.ovn.org/owner": "shop/db"}}),
        );
        assert_eq!(
            of_row("Load_Balancer", &service).1,
            "Service shop/db (load balancer Service_shop/db_TCP_cluster)"
        );
        let route = row(&json!({"ip_prefix": "10.244.0.0/24", "nexthop": "100.64.0.2", "policy": "src-ip"}));
        assert_eq!(of_row("Logical_Router_Static_Route", &route).1, "from 10.244.0.0/24 via 100.64.0.2");
    }
}
