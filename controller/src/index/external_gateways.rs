//! External gateways of namespaces: their pods reach the outside by these instead of the node's default gateway.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use api::annotation::{BFD_ENABLED, ROUTING_EXTERNAL_GWS};

/// Gateways of one namespace that are used; each is a route of each of its pods.
pub const MAX_GATEWAYS: usize = 32;
/// Entries of one annotation that are reported.
const MAX_PROBLEMS: usize = 8;
/// Characters of an entry that are quoted: the longest IP address has 45.
const QUOTED: usize = 45;

/// What a namespace's annotations say about its pods' way to the outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExternalGateways {
    /// Addresses of the gateways; empty if the pods take the way of their nodes.
    pub ips: BTreeSet<IpAddr>,
    /// Whether a gateway is alive is found out by BFD.
    pub bfd: bool,
}

impl ExternalGateways {
    /// Reads the annotations of a namespace. Entries that cannot be used are left out and described.
    pub fn read<'a>(get: impl Fn(&str) -> Option<&'a str>) -> (Self, Vec<String>) {
        let Some(list) = get(ROUTING_EXTERNAL_GWS) else { return Default::default() };
        let mut ips = BTreeSet::new();
        let mut problems = Vec::new();
        let (mut bad, mut beyond) = (0_usize, 0_usize);
        for entry in list.split(',').map(str::trim) {
            match gateway(entry) {
                Ok(ip) if ips.len() < MAX_GATEWAYS || ips.contains(&ip) => {
                    ips.insert(ip);
                }
                Ok(_) => beyond += 1,
                Err(why) => {
                    bad += 1;
                    if bad <= MAX_PROBLEMS {
                        let entry: String = entry.chars().take(QUOTED).collect();
                        problems.push(format!("entry `{entry}` {why}"));
                    }
                }
            }
        }
        if bad > MAX_PROBLEMS {
            problems.push(format!("{} more entries cannot be used", bad - MAX_PROBLEMS));
        }
        if beyond > 0 {
            problems.push(format!(
                "it names {} gateways; the first {MAX_GATEWAYS} are used",
                MAX_GATEWAYS + beyond
            ));
        }
        let bfd = !ips.is_empty() && get(BFD_ENABLED).is_some();
        let told = |problem| {
            format!(
                "annotation {ROUTING_EXTERNAL_GWS}: {problem}; addresses of gateways, separated by commas, are needed, such as \
                 `172.19.0.1,172.19.0.9`"
            )
        };
        (Self { ips, bfd }, problems.into_iter().map(told).collect())
    }

    /// Whether there is no gateway.
    pub fn is_empty(&self) -> bool {
        self.ips.is_empty()
    }
}

/// The address of a gateway, or why the entry is none.
fn gateway(entry: &str) -> Result<IpAddr, &'static str> {
    let ip: IpAddr = entry.parse().map_err(|_bad| "is no IP address")?;
    let ip = ip.to_canonical();
    match ip {
        _ if ip.is_unspecified() => Err("is the unspecified address, which no gateway can have"),
        _ if ip.is_loopback() => Err("is a loopback address, which no gateway can have"),
        _ if ip.is_multicast() => Err("is a multicast address, which no gateway can have"),
        IpAddr::V4(Ipv4Addr::BROADCAST) => Err("is the broadcast address, which no gateway can have"),
        _ => Ok(ip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &str, bfd: bool) -> (Vec<String>, bool, Vec<String>) {
        let get = |key: &str| match key {
            ROUTING_EXTERNAL_GWS => Some(list),
            BFD_ENABLED => bfd.then_some(""),
            _ => None,
        };
        let (found, problems) = ExternalGateways::read(get);
        (found.ips.iter().map(ToString::to_string).collect(), found.bfd, problems)
    }

    #[test]
    fn addresses_of_both_families_are_read_once_each() {
        let (ips, bfd, problems) =
            read(" 172.19.0.9, fd00:19::1 ,172.19.0.1,172.19.0.9,::ffff:172.19.0.1", true);
        assert_eq!((ips, bfd), (vec!["172.19.0.1".into(), "172.19.0.9".into(), "fd00:19::1".into()], true));
        assert_eq!(problems, [] as [String; 0]);
        assert_eq!(ExternalGateways::read(|_| None), (ExternalGateways::default(), vec![]));
    }

    #[test]
    fn entries_that_cannot_be_gateways_are_told_of_and_the_others_are_used() {
        for bad in [
            "x",
            "",
            "172.19.0.1/16",
            "127.0.0.1",
            "224.0.0.1",
            "0.0.0.0",
            "::",
            "::1",
            "ff02::1",
            "255.255.255.255",
        ] {
            let (ips, _, problems) = read(&format!("172.19.0.1,{bad},172.19.0.9"), false);
            assert_eq!(ips, ["172.19.0.1", "172.19.0.9"], "{bad}");
            assert_eq!(problems.len(), 1, "{bad}");
            for part in ["k8s.ovn.org/routing-external-gws", &format!("`{bad}`"), "such as"] {
                assert!(problems[0].contains(part), "{part}: {problems:?}");
            }
        }
        let (ips, bfd, problems) = read("x", true);
        assert_eq!((ips.len(), bfd, problems.len()), (0, false, 1), "nothing is left for BFD to watch");
    }

    #[test]
    fn neither_gateways_nor_messages_are_without_number() {
        let many: Vec<String> = (0..100).map(|n| format!("172.19.1.{n}")).collect();
        let (ips, _, problems) = read(&many.join(","), false);
        assert_eq!((ips.len(), problems.len()), (MAX_GATEWAYS, 1));
        assert!(problems[0].contains("100 gateways; the first 32"), "{problems:?}");
        let (_, _, problems) = read(&"y".repeat(1000).replace('y', "ä,"), false);
        assert_eq!(problems.len(), MAX_PROBLEMS + 1);
        let (_, _, problems) = read(&"z".repeat(1000), false);
        assert!(problems[0].len() < 300, "{problems:?}");
    }
}
