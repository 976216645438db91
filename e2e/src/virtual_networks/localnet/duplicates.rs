//! A pod whose static address a host on the physical network has: it does not start, nobody there hears of it, and it starts when the
//! address is free.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use testbed::cluster::Bed;
use testbed::exec;
use testbed::traffic::{Dial, Place};

use super::super::life::{eventually, running};
use super::super::scene::{RED, asking};
use super::fabric::HOST;
use super::{NAMED, STORAGE, reaches};
use crate::harness::Checks;
use crate::objects::Objects;

/// The outside host's interface on the networks' VLAN.
const INTERFACE: &str = "dc100";
const POD: &str = "twice";
/// Both the pod's and the outside host's.
const ADDRESSES: [&str; 2] = ["172.16.91.201", "fd00:91::201"];
/// How long the pod tries while somebody has its addresses.
const TRIES: Duration = Duration::from_secs(6);

/// All of it, for each address family on its own: the other family's address is free.
pub(super) fn check(red: &Objects<'_>, checks: &mut Checks) -> Result<()> {
    let bed = red.bed;
    let mac = ip(bed, &["-brief", "link", "show", INTERFACE])?;
    let mac = mac.split_whitespace().nth(2).context("no MAC address")?.to_owned();
    for address in ADDRESSES {
        let family = if address.contains(':') { "IPv6" } else { "IPv4" };
        take(bed, address)?;
        let _ = ip(bed, &["neigh", "flush", "dev", INTERFACE])?;
        let wanted = json!([{"name": STORAGE, "interface": "net1", "ip_address": ADDRESSES.join(",")}]);
        let log = red.log("n1", "node-agent");
        red.apply(asking(RED, POD, Some("n1"), &wanted))?;
        let told = log.tells(&[&format!("pod {RED}/{POD}"), &format!("{address} is in use"), &mac]);
        let told = told.map_err(|error| format!("{error:#}"));
        checks.check(
            format!("{family}: the error of a pod whose address a host there has names the host"),
            told,
        );
        thread::sleep(TRIES);
        checks.check(format!("{family}: it does not run, and nobody there heard of it"), unheard(red));
        give_back(bed, address)?;
        checks.check(format!("{family}: it runs when the address is free"), running(red, POD));
        for address in ADDRESSES {
            let own = super::OUTSIDE[usize::from(address.contains(':'))];
            let outside = Place::Host(HOST.into());
            let verdict =
                reaches(bed, &outside, Dial::tcp(address.parse::<IpAddr>()?, NAMED), &format!("{POD} {own}"));
            checks.check(format!("{family}: and answers at {address}"), verdict);
        }
        red.delete(&[POD])?;
        let rests = || -> Result<String> {
            let known = bed.kubectl(&["get", "pod", "-n", RED, POD, "--ignore-not-found", "-o", "name"])?;
            ensure!(known.is_empty(), "{known}");
            Ok(known)
        };
        checks.check(format!("{family}: it is gone"), eventually(rests));
    }
    Ok(())
}

/// The pod has not started, and the outside host knows no neighbour with one of its addresses.
fn unheard(red: &Objects<'_>) -> Result<String, String> {
    let look = || -> Result<String> {
        let phase = red.field(&format!("pod/{POD}"), ".status.phase")?;
        ensure!(phase == "Pending", "phase {phase}");
        let mut known = String::new();
        for address in ADDRESSES {
            write!(known, "{}", ip(red.bed, &["neigh", "show", "to", address, "dev", INTERFACE])?)?;
        }
        ensure!(!known.contains("lladdr"), "{known}");
        Ok(phase)
    };
    look().map_err(|error| format!("{error:#}"))
}

fn ip(bed: &Bed, arguments: &[&str]) -> Result<String> {
    exec::output(bed.host(HOST).network_command("ip")?.args(arguments))
}

fn with_length(address: &str) -> String {
    format!("{address}/{}", if address.contains(':') { 64 } else { 24 })
}

fn take(bed: &Bed, address: &str) -> Result<()> {
    let mut arguments = vec![
        "addr".to_owned(),
        "add".to_owned(),
        with_length(address),
        "dev".to_owned(),
        INTERFACE.to_owned(),
    ];
    arguments.extend(address.contains(':').then(|| "nodad".to_owned()));
    ip(bed, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).map(drop)
}

fn give_back(bed: &Bed, address: &str) -> Result<()> {
    ip(bed, &["addr", "del", &with_length(address), "dev", INTERFACE]).map(drop)
}
