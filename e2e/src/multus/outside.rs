//! A network that reaches the outside: by the gateway of the pod's node, in either role.

use std::net::IpAddr;

use anyhow::Result;
use serde_json::json;

use testbed::cluster::config::{EXT_IP, OUTSIDE_IP, node_ip};
use testbed::traffic::Dial;

use super::scene::{HEAL, Scene, holds, network, ours, place, same};
use crate::expect::{self, Expect};
use crate::harness::Checks;

/// The pod's default route is by that network.
pub(super) fn check(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let (red, bed) = (&scene.red, scene.bed());
    let own = bed.config().program("testbed").display().to_string();
    bed.host("ext").start("server", &[&own, "probe", "serve", "--name", "outside", "--tcp", "9000"], &[])?;
    let mut out = network("out", 50);
    out["spec"]["reach"] = "Outside".into();
    red.apply(out)?;
    red.apply(ours("out", None))?;
    let asked = json!([{"name": "out", "default-route": ["172.16.50.1"]}]);
    red.apply(scene.naming("leaves", "n2", &asked.to_string())?)?;
    checks.check("a pod with its default route by a network to the outside runs", scene.runs(&["leaves"]));
    checks.check(
        "it has that default route alone",
        holds(|| same(&scene.inside("leaves", "n2")?.defaults(), &vec!["172.16.50.1 net1".to_owned()])),
    );
    let expect = Expect::only(&format!("outside {}", node_ip(2)));
    for (what, address) in
        [("beside the nodes", IpAddr::from(EXT_IP)), ("behind a router", OUTSIDE_IP.into())]
    {
        let dial = Dial::tcp(address, 9000).times(3);
        let (_, verdict) = expect::settle(bed, &place("leaves", "n2"), dial, &expect, HEAL);
        checks.check(format!("to the outside {what}, with the address of its node"), verdict);
    }
    red.delete(&["leaves"])?;
    bed.kubectl(&["delete", "net-attach-def", "-n", "red", "out"])?;
    bed.kubectl(&["delete", "virtualnetwork", "-n", "red", "out", "--timeout=60s"]).map(drop)
}
