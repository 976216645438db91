//! Random changes of the northbound database, as if made by hand.

use anyhow::Result;
use testbed::cluster::Bed;

use super::change::Change;
use super::scene::{LOCAL, Member, REMOTE, Scene};
use crate::random::Random;

struct Choices<'a> {
    scene: &'a Scene,
    random: &'a mut Random,
    groups: Vec<String>,
    sets: Vec<String>,
}

/// One of each kind, with random details, and one by which flows are dropped for sure where no address and no port is named.
pub(super) fn changes(bed: &Bed, scene: &Scene, random: &mut Random) -> Result<Vec<Change>> {
    let names = |table: &str| -> Result<Vec<String>> {
        let text = bed.nbctl(&["--bare", "--columns=name", "list", table])?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    };
    let mut choices = Choices { scene, groups: names("port_group")?, sets: names("address_set")?, random };
    let mut changes = Vec::new();
    for _ in 0..4 {
        changes.extend(choices.acl());
    }
    changes.push(acl_without_address());
    changes.extend(choices.routers()?);
    changes.extend(choices.ports()?);
    changes.extend(choices.balancers()?);
    changes.extend(choices.others()?);
    Ok(changes)
}

/// Only the rule that such a change concerns everything finds what it changes.
fn acl_without_address() -> Change {
    let matched = "ip4 && tcp";
    Change::by_hand(
        &["--may-exist", "--type=switch", "acl-add", "n1", "to-lport", "2600", matched, "drop"],
        &["--type=switch", "acl-del", "n1", "to-lport", "2600", matched],
    )
}

/// A static route with an external id: the controller takes one without for a leftover of its own if its next hop is in the
/// join network, and removes it.
fn marked_route<'w>(router: &'w str, columns: &[&'w str]) -> Vec<&'w str> {
    let create = ["--id=@route", "create", "logical_router_static_route", "external_ids:of=scoped"];
    let add = ["--", "add", "logical_router", router, "static_routes", "@route"];
    [&create[..], columns, &add[..]].concat()
}

impl<'a> Choices<'a> {
    fn pod(&mut self, of: &[&'static str]) -> Result<&'a Member> {
        let name = self.random.pick(of).copied().unwrap_or("a");
        self.scene.member(name)
    }

    fn any_ip(&mut self) -> String {
        let members: Vec<_> = self.scene.members.values().collect();
        self.random.pick(&members).map(|member| member.ip()).unwrap_or_default()
    }

    fn any_ip6(&mut self) -> Option<String> {
        let members: Vec<_> = self.scene.members.values().collect();
        Some(self.random.pick(&members)?.addresses.get(1)?.to_string())
    }

    /// One condition of an ACL.
    fn condition(&mut self, port: &str) -> Result<String> {
        let ip = self.any_ip();
        Ok(match self.random.below(14) {
            0 | 1 => format!("ip4.src=={ip}"),
            2 | 3 => format!("ip4.dst=={ip}"),
            4 => format!("ip4.src=={{{ip},{},{}}}", self.any_ip(), self.any_ip()),
            5 => format!("ip4.dst==10.244.{}.0/{}", self.random.below(2), 24 + self.random.below(6)),
            6 | 7 => format!("tcp.dst=={}", ["80", "443", "8080"].get(self.random.below(3)).unwrap_or(&"80")),
            8 => "udp.dst==53".to_owned(),
            9 => ["ct.est", "ct.rpl", "ip.proto==6", "ip.ttl==64", "tcp.src==8080", "tcp.dst<1000"]
                .get(self.random.below(6))
                .copied()
                .unwrap_or("ct.est")
                .to_owned(),
            10 => {
                let mac = self.pod(&[LOCAL, REMOTE].concat())?.mac;
                format!("eth.{}=={mac}", if self.random.chance(50) { "src" } else { "dst" })
            }
            11 => format!("{port}==\"{}\"", self.pod(&LOCAL)?.port),
            12 => match self.any_ip6() {
                Some(ip) => format!("ip6.dst=={ip}"),
                None => "ip4".to_owned(),
            },
            _ => match self.random.pick(&self.groups) {
                Some(group) => format!("{port}==@{group}"),
                None => "ip4".to_owned(),
            },
        })
    }

    fn acl(&mut self) -> Result<Change> {
        let egress = self.random.chance(50);
        let (direction, port) = if egress { ("from-lport", "inport") } else { ("to-lport", "outport") };
        let mut conditions = vec!["ip".to_owned()];
        for _ in 0..=self.random.below(3) {
            conditions.push(self.condition(port)?);
        }
        let group = self.random.pick(&self.groups).cloned().filter(|_| self.random.chance(25));
        conditions.extend(group.iter().map(|group| format!("{port}==@{group}")));
        let matched = conditions.join(" && ");
        let action = ["drop", "reject", "allow-related", "allow-stateless", "drop"];
        let action = action.get(self.random.below(5)).copied().unwrap_or("drop");
        let priority = ["1", "1005", "1500", "2500"].get(self.random.below(4)).copied().unwrap_or("1500");
        let owner = match &group {
            Some(group) => group.as_str(),
            None if self.random.chance(80) => "n1",
            None => "n2",
        };
        let kind = if group.is_some() { "--type=port-group" } else { "--type=switch" };
        Ok(Change::by_hand(
            &["--may-exist", kind, "acl-add", owner, direction, priority, &matched, action],
            &[kind, "acl-del", owner, direction, priority, &matched],
        ))
    }

    fn routers(&mut self) -> Result<Vec<Change>> {
        const ROUTER: &str = "ovn_cluster_router";
        let (a, q) = (self.pod(&LOCAL)?.ip(), self.pod(&REMOTE)?.ip());
        let prefix = [format!("{q}/32"), "10.244.1.0/25".into(), "10.244.1.0/28".into(), format!("{a}/32")];
        let prefix = self.random.pick(&prefix).cloned().unwrap_or_default();
        let matched = [
            format!("ip4.src=={a}"),
            format!("ip4.dst=={q}"),
            "ip4.src==10.244.0.0/28".into(),
            "tcp.dst==80".into(),
            format!("inport==\"rtos-n1\" && ip4.dst=={q}"),
        ];
        let matched = self.random.pick(&matched).cloned().unwrap_or_default();
        let action: &[&str] = [&["drop"][..], &["allow"], &["reroute", "100.64.0.2"]]
            .get(self.random.below(3))
            .copied()
            .unwrap_or(&["drop"]);
        let add = [&["lr-policy-add", ROUTER, "700", &matched][..], action].concat();
        Ok(vec![
            Change::by_hand(&add, &["--if-exists", "lr-policy-del", ROUTER, "700", &matched]),
            Change::by_hand(
                &marked_route(ROUTER, &[&format!("ip_prefix=\"{prefix}\""), "nexthop=100.64.0.2"]),
                &["--if-exists", "lr-route-del", ROUTER, &prefix],
            ),
            Change::by_hand(
                &marked_route(ROUTER, &[&format!("ip_prefix={a}"), "nexthop=100.64.0.2", "policy=src-ip"]),
                &["--if-exists", "--policy=src-ip", "lr-route-del", ROUTER, &a],
            ),
            Change::by_hand(
                &["lr-nat-add", "GR_n1", "snat", "172.18.0.77", &a],
                &["--if-exists", "lr-nat-del", "GR_n1", "snat", &a],
            ),
            Change::by_hand(
                &["static-mac-binding-add", "rtos-n2", &q, "0a:58:0a:f4:01:55"],
                &["static-mac-binding-del", "rtos-n2", &q],
            ),
            Change::by_hand(
                &["set", "logical_router_port", "rtos-n2", "options:gateway_mtu=1300"],
                &["remove", "logical_router_port", "rtos-n2", "options", "gateway_mtu"],
            ),
            Change::by_hand(
                &["lrp-set-enabled", "rtos-n2", "disabled"],
                &["lrp-set-enabled", "rtos-n2", "enabled"],
            ),
        ])
    }

    fn ports(&mut self) -> Result<Vec<Change>> {
        let (a, b, q) = (self.pod(&LOCAL)?.clone(), self.pod(&LOCAL)?.clone(), self.pod(&REMOTE)?.clone());
        let addresses = |member: &Member| {
            let list: Vec<_> = member.addresses.iter().map(ToString::to_string).collect();
            format!("{} {}", member.mac, list.join(" "))
        };
        let usual = (addresses(&a), addresses(&q));
        let security = [addresses(&b), b.mac.to_string(), a.mac.to_string()];
        let security = self.random.pick(&security).cloned().unwrap_or_default();
        let elsewhere = |member: &Member| {
            let list: Vec<_> = member.addresses.iter().map(ToString::to_string).collect();
            format!("0a:58:0a:f4:01:77 {}", list.join(" "))
        };
        let mut changes = vec![
            Change::by_hand(
                &["lsp-set-port-security", &a.port, &security],
                &["lsp-set-port-security", &a.port, &usual.0],
            ),
            Change::by_hand(
                &["lsp-set-addresses", &a.port, &elsewhere(&a)],
                &["lsp-set-addresses", &a.port, &usual.0],
            ),
            Change::by_hand(
                &["lsp-set-addresses", &q.port, &elsewhere(&q)],
                &["lsp-set-addresses", &q.port, &usual.1],
            ),
        ];
        for member in [&a, &q] {
            changes.push(Change::by_hand(
                &["lsp-set-enabled", &member.port, "disabled"],
                &["lsp-set-enabled", &member.port, "enabled"],
            ));
        }
        Ok(changes)
    }

    fn balancers(&mut self) -> Result<Vec<Change>> {
        let (a, q) = (self.pod(&LOCAL)?.ip(), self.pod(&REMOTE)?.ip());
        let on_pod = format!("{q}:80");
        let to = format!("{a}:80");
        let both = format!("{q}:8080,{a}:8080");
        Ok(vec![
            Change::by_hand(
                &["lb-add", "lbx", &on_pod, &to, "--", "ls-lb-add", "n1", "lbx"],
                &["--if-exists", "lb-del", "lbx"],
            ),
            Change::by_hand(
                &["lb-add", "lby", "10.96.7.7:80", &both, "--", "ls-lb-add", "n1", "lby"],
                &["--if-exists", "lb-del", "lby"],
            ),
        ])
    }

    fn others(&mut self) -> Result<Vec<Change>> {
        let (a, b, q) = (self.pod(&LOCAL)?.clone(), self.pod(&LOCAL)?.ip(), self.pod(&REMOTE)?.ip());
        let (by_address, by_port) = (format!("ip4.src=={}", a.ip()), format!("inport==\"{}\"", a.port));
        let mut changes = vec![
            Change::by_hand(
                &["qos-add", "n1", "from-lport", "100", &by_address, "dscp=10"],
                &["qos-del", "n1", "from-lport", "100", &by_address],
            ),
            Change::by_hand(
                &["qos-add", "n1", "from-lport", "101", &by_port, "rate=100000"],
                &["qos-del", "n1", "from-lport", "101", &by_port],
            ),
        ];
        for _ in 0..2 {
            if let Some(set) = self.random.pick(&self.sets).cloned() {
                changes.push(Change::by_hand(
                    &[
                        "add",
                        "address_set",
                        &set,
                        "addresses",
                        &q,
                        "--",
                        "add",
                        "address_set",
                        &set,
                        "addresses",
                        &b,
                    ],
                    &[
                        "remove",
                        "address_set",
                        &set,
                        "addresses",
                        &q,
                        "--",
                        "remove",
                        "address_set",
                        &set,
                        "addresses",
                        &b,
                    ],
                ));
            }
        }
        Ok(changes)
    }
}
