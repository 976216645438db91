//! Output of `slipctl path service`.

use api::admin::ServicePath;

use super::status::reasoned;
use crate::table::{Column, table};

/// Renders one service, with the addresses at which clients reach it.
pub(crate) fn text(now: &ServicePath) -> String {
    let ServicePath { service, wanted, path, addresses, .. } = now;
    let mut out = format!("{service}: requested {}, now {}\n", wanted.name(), reasoned(path));
    for address in addresses {
        out.push_str(&format!("  {address}\n"));
    }
    out
}

/// Renders the services whose path was requested.
pub(crate) fn list(all: &[ServicePath]) -> String {
    if all.is_empty() {
        return "no service is kept off the flow cache\n".to_owned();
    }
    let columns = [
        Column::Left("SERVICE"),
        Column::Left("REQUESTED"),
        Column::Left("PATH"),
        Column::Right("ADDRESSES"),
        Column::Left("REASON"),
    ];
    let row = |one: &ServicePath| {
        vec![
            one.service.clone(),
            one.wanted.name().to_owned(),
            one.path.path.name().to_owned(),
            one.addresses.len().to_string(),
            one.path.reason.clone(),
        ]
    };
    table(&columns, &all.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_shown_with_its_path_reason_and_addresses() {
        let one: ServicePath = serde_json::from_value(serde_json::json!({
            "service": "shop/web", "wanted": "ovs", "temporary": false, "path": "ovs", "reason": "requested",
            "addresses": ["tcp 10.96.0.9:80", "tcp 172.18.0.2:30080"]
        }))
        .unwrap();
        assert_eq!(
            text(&one),
            "shop/web: requested ovs, now ovs: requested\n  tcp 10.96.0.9:80\n  tcp 172.18.0.2:30080\n"
        );
        assert_eq!(
            list(&[one]),
            "SERVICE   REQUESTED  PATH  ADDRESSES  REASON\nshop/web  ovs        ovs           2  requested\n"
        );
        assert_eq!(list(&[]), "no service is kept off the flow cache\n");
    }
}
