//! What a pod's annotations ask for besides its first interface.

use api::pod_attachments::{
    MAX_INTERFACE_NAME, MAX_INTERFACES, MAX_ROUTES, NFN_REQUEST, PRIMARY, PodAttachments, REQUEST, ROUTES,
    StaticIp, parse,
};
use serde_json::{Value, json};

/// The values of the four annotations, with a byte 0 between them; an empty one is not there.
pub fn pod_attachments(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let values: Vec<&str> = text.split('\0').collect();
    let keys = [REQUEST, ROUTES, NFN_REQUEST, PRIMARY];
    let get = |key: &str| {
        let at = keys.iter().position(|known| *known == key)?;
        values.get(at).copied().filter(|value| !value.is_empty())
    };
    match parse(get) {
        Ok(found) => usable(&found),
        Err(error) => {
            assert!(keys.contains(&error.key) && !error.problem.is_empty());
            let length = error.to_string().chars().count();
            assert!(length < 1000, "{length} characters");
        }
    }
}

/// What is read keeps the limits, and written in one spelling is read as the same.
fn usable(found: &PodAttachments) {
    assert!(found.attachments.len() <= MAX_INTERFACES && found.routes.len() <= MAX_ROUTES);
    assert!(!found.attachments.is_empty() || found.routes.is_empty(), "a route has an interface");
    assert!(found.attachments.iter().filter(|one| one.default_route).count() <= 1);
    for (at, one) in found.attachments.iter().enumerate() {
        assert!((1..=MAX_INTERFACE_NAME).contains(&one.interface.len()));
        assert!(found.attachments[..at].iter().all(|other| other.interface != one.interface));
        assert!(one.mac.is_none_or(|mac| mac.0[0] & 1 == 0));
    }
    for (at, route) in found.routes.iter().enumerate() {
        assert_eq!(route.dest, route.dest.trunc());
        assert!(route.dest.prefix_len() > 0 && route.dest.addr().is_ipv4() == route.next_hop.is_ipv4());
        assert!(found.routes[..at].iter().all(|other| other.dest != route.dest));
    }
    let (list, routes) = (written(found), routes(found));
    let primary = found.primary.as_ref().map(|wish| {
        assert!(wish.mac.is_none_or(|mac| mac.0[0] & 1 == 0));
        assert!(!wish.ips.is_empty() || wish.mac.is_some());
        let mut object = json!({});
        if !wish.ips.is_empty() {
            object["ip_address"] = addresses(&wish.ips).into();
        }
        if let Some(mac) = wish.mac {
            object["macAddress"] = mac.to_string().into();
        }
        if let Some(gateway) = wish.gateway {
            object["gateway_ip"] = gateway.to_string().into();
        }
        object.to_string()
    });
    let again = parse(|key| match key {
        PRIMARY => primary.as_deref(),
        REQUEST if !found.attachments.is_empty() => Some(list.as_str()),
        ROUTES if !found.routes.is_empty() => Some(routes.as_str()),
        _ => None,
    });
    assert_eq!(again.as_ref(), Ok(found), "written as {list} and {routes}");
}

fn written(found: &PodAttachments) -> String {
    let entries = found.attachments.iter().map(|one| {
        let mut entry = json!({
            "name": one.network.to_string(), "interface": one.interface, "defaultGateway": one.default_route,
            "ip_address": addresses(&one.ips),
        });
        if let Some(mac) = one.mac {
            entry["mac_address"] = mac.to_string().into();
        }
        if let Some(gateway) = one.gateways.first() {
            entry["gateway_ip"] = gateway.to_string().into();
        }
        entry
    });
    Value::from_iter(entries).to_string()
}

fn addresses(ips: &[StaticIp]) -> String {
    let ips = ips.iter().map(|ip| match ip.prefix_len {
        Some(length) => format!("{}/{length}", ip.ip),
        None => ip.ip.to_string(),
    });
    ips.collect::<Vec<_>>().join(",")
}

fn routes(found: &PodAttachments) -> String {
    let all = found
        .routes
        .iter()
        .map(|route| json!({"dst": route.dest.to_string(), "gw": route.next_hop.to_string()}));
    Value::from_iter(all).to_string()
}
