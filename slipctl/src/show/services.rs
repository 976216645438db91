//! Output of `slipctl services`.

use api::admin::{BackendTraffic, ServiceTraffic, service_port};

use crate::table::{Column, table};
use crate::units::short_count;

const COLUMNS: [Column; 10] = [
    Column::Left("SERVICE"),
    Column::Left("PROTO"),
    Column::Left("ADDRESS"),
    Column::Left("PATH"),
    Column::Left("BACKEND"),
    Column::Left("POD"),
    Column::Right("CONNECTIONS"),
    Column::Right("TO BACKEND"),
    Column::Right("FROM BACKEND"),
    Column::Right("BYTES"),
];

/// Renders a line for each backend.
pub(crate) fn text(services: &[ServiceTraffic]) -> String {
    let lines =
        services.iter().flat_map(|service| service.backends.iter().map(move |backend| (service, backend)));
    let rows: Vec<_> = lines.map(|(service, backend)| row(service, backend)).collect();
    if rows.is_empty() {
        return "no connections to services on the flow cache\n".to_owned();
    }
    table(&COLUMNS, &rows)
}

fn row(service: &ServiceTraffic, backend: &BackendTraffic) -> Vec<String> {
    vec![
        service_port(&service.service, &service.port),
        service.protocol.to_string(),
        service.address.clone(),
        service.path.name().to_owned(),
        backend.address.to_string(),
        backend.pod.clone().unwrap_or_else(|| "-".to_owned()),
        backend.connections.to_string(),
        short_count(backend.to_backend.packets),
        short_count(backend.from_backend.packets),
        short_count(backend.to_backend.bytes + backend.from_backend.bytes),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_has_a_line_with_its_connections_and_packets() {
        let services: Vec<ServiceTraffic> = serde_json::from_value(serde_json::json!([{
            "service": "shop/web", "port": "http", "protocol": "tcp", "address": "10.96.0.9:80", "path": "ovs",
            "backends": [
                {"address": "10.244.0.3:8080", "pod": "shop/web-1", "connections": 2,
                 "toBackend": {"packets": 1_500, "bytes": 90_000}, "fromBackend": {"packets": 3, "bytes": 1_000}},
                {"address": "10.244.1.4:8080", "pod": null, "connections": 0,
                 "toBackend": {"packets": 0, "bytes": 0}, "fromBackend": {"packets": 0, "bytes": 0}},
            ]
        }]))
        .unwrap();
        assert_eq!(
            text(&services),
            "SERVICE        PROTO  ADDRESS       PATH  BACKEND          POD         CONNECTIONS  TO BACKEND  FROM BACKEND  BYTES\n\
             shop/web:http  tcp    10.96.0.9:80  ovs   10.244.0.3:8080  shop/web-1            2        1.5k             3  91.0k\n\
             shop/web:http  tcp    10.96.0.9:80  ovs   10.244.1.4:8080  -                     0           0             0      0\n"
        );
        assert_eq!(text(&[]), "no connections to services on the flow cache\n");
    }
}
