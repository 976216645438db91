//! Whether the load balancers in the northbound database say what the model says.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use api::ovn_name::key;
use ovsdb_client::Snapshot;
use ovsdb_client::nb::LoadBalancer;

use super::model::Model;
use super::nb::{Addresses, NAMESPACE};
use super::service_act::service_name;
use super::services::{SERVICE_PORT, cluster_ip};

/// Part of the name of the load balancers that keep clients' addresses.
const LOCAL_ROUTER: &str = "_node_local_router";

/// Compares all services.
pub(super) fn agree(rows: &Snapshot<'_>, model: &Model, addresses: &Addresses) -> Result<()> {
    for (number, service) in model.services.iter().enumerate() {
        let owner = format!("{NAMESPACE}/{}", service_name(number));
        let of = |row: &&LoadBalancer| row.external_ids.get(key::OWNER) == Some(&owner);
        let table = rows.table::<LoadBalancer>();
        let balancers: Vec<&LoadBalancer> = table.iter().map(AsRef::as_ref).filter(of).collect();
        if !service.live {
            ensure!(balancers.is_empty(), "service {number} is still there");
            continue;
        }
        let port = model.backend_port(number);
        let text = |pod: usize| addresses.get(pod).map(|ip| format!("{ip}:{port}")).context("no address");
        let wanted = service.backends.iter().map(|&pod| text(pod)).collect::<Result<BTreeSet<String>>>()?;
        let vip = format!("{}:{SERVICE_PORT}", cluster_ip(number));
        for protocol in ["tcp", "udp"] {
            let of = balancers.iter().filter(|row| row.protocol.as_deref() == Some(protocol));
            let found: Vec<BTreeSet<String>> =
                of.clone().filter_map(|row| row.vips.get(&vip)).map(|list| backends(list)).collect();
            ensure!(
                !found.is_empty() && found.iter().all(|found| *found == wanted),
                "service {number}: {found:?} by {protocol}"
            );
            // A node's own may be fewer.
            let mut others = of.flat_map(|row| row.vips.values()).map(|list| backends(list));
            ensure!(others.all(|some| some.is_subset(&wanted)), "service {number} has other backends");
        }
        let local = balancers.iter().any(|row| row.name.contains(LOCAL_ROUTER));
        // Without endpoints every node is the same.
        ensure!(local == service.local || wanted.is_empty(), "service {number}: policy Local is {local}");
        let affinity = |row: &&LoadBalancer| row.options.contains_key("affinity_timeout");
        ensure!(
            balancers.iter().all(|row| affinity(row) == service.affinity),
            "service {number}: the affinity is another one"
        );
    }
    Ok(())
}

fn backends(list: &str) -> BTreeSet<String> {
    list.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect()
}
