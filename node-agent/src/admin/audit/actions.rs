//! Interpreter of OVS's datapath actions as printed by `ofproto/trace` (ovs-actions(7); OVS, lib/odp-util.c).
//!
//! It models the actions that apply to a packet of an established pod-to-pod flow. All others are kept as remarks, and a remark
//! rules out the verdict `same`.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// An action name with the text in its parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Item<'a> {
    name: &'a str,
    inside: Option<&'a str>,
}

/// Tunnel metadata set by the actions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tunnel {
    /// Outer destination address.
    pub(super) remote: Option<IpAddr>,
    /// Virtual network identifier.
    pub(super) vni: Option<u32>,
    /// Value of OVN's Geneve option (class 0x102, type 0x80, 4 bytes).
    pub(super) option: Option<u32>,
}

/// Modifications of a packet so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Packet {
    /// Source MAC, if set.
    pub(super) source_mac: Option<String>,
    /// Destination MAC, if set.
    pub(super) destination_mac: Option<String>,
    /// TTL or hop limit, if set.
    pub(super) ttl: Option<u8>,
    /// Tunnel metadata, if encapsulated.
    pub(super) tunnel: Option<Tunnel>,
}

/// A packet sent to a datapath port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Output {
    /// Number or name of the datapath port.
    pub(super) port: String,
    /// Modifications made before.
    pub(super) packet: Packet,
}

/// A packet that is recirculated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Resume {
    /// Zone of the preceding connection tracking.
    pub(super) zone: Option<u16>,
    /// Modifications made before.
    pub(super) packet: Packet,
}

/// Effect of one or more passes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// Packets sent to datapath ports.
    pub(super) outputs: Vec<Output>,
    /// Recirculated packets by recirculation id.
    pub(super) resumes: BTreeMap<u32, Resume>,
    /// Actions that are not modelled.
    pub(super) remarks: Vec<String>,
}

/// Malformed datapath actions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("datapath actions `{text}`: {what}")]
pub(super) struct Malformed {
    text: String,
    what: &'static str,
}

impl Walk {
    /// Applies `actions` to `packet`.
    pub(super) fn follow(&mut self, actions: &str, packet: &Packet) -> Result<(), Malformed> {
        let (mut packet, mut zone) = (packet.clone(), None);
        for item in items(actions)? {
            self.step(item, &mut packet, &mut zone)?;
        }
        Ok(())
    }

    fn step(&mut self, item: Item<'_>, packet: &mut Packet, zone: &mut Option<u16>) -> Result<(), Malformed> {
        let inside = item.inside.unwrap_or_default();
        match (item.name, item.inside) {
            ("drop" | "ct_clear" | "meter", _) => {}
            ("ct", _) => *zone = value(inside, "zone").map_or(Some(0), |zone| zone.parse().ok()),
            ("recirc", Some(id)) => match number(id) {
                Some(id) => {
                    self.resumes.insert(id, Resume { zone: *zone, packet: packet.clone() });
                }
                None => self.remark(item),
            },
            ("clone", Some(actions)) => self.follow(actions, packet)?,
            // Packets of cached flows never exceed the link MTU; the cache does not handle larger ones.
            ("check_pkt_len", Some(_)) => {
                for branch in items(inside)?.into_iter().filter(|branch| branch.name == "le") {
                    self.follow(branch.inside.unwrap_or_default(), packet)?;
                }
            }
            ("set", Some(field)) => {
                for field in items(field)? {
                    if !set(field, packet)? {
                        self.remark(item);
                    }
                }
            }
            ("tnl_push", Some(_)) => packet.tunnel = Some(pushed(inside)?),
            (port, None) => self.outputs.push(Output { port: port.to_owned(), packet: packet.clone() }),
            _ => self.remark(item),
        }
        Ok(())
    }

    fn remark(&mut self, item: Item<'_>) {
        let inside = item.inside.map(|inside| format!("({inside})")).unwrap_or_default();
        self.remarks.push(format!("{}{inside}", item.name));
    }
}

/// Applies a `set` action. Returns false when it sets a field that a cached entry does not change.
fn set(field: Item<'_>, packet: &mut Packet) -> Result<bool, Malformed> {
    let inside = field.inside.unwrap_or_default();
    let mut known = true;
    match field.name {
        "eth" => {
            for part in items(inside)? {
                match part.name.split_once('=') {
                    Some(("src", mac)) => packet.source_mac = Some(unmasked(mac).to_owned()),
                    Some(("dst", mac)) => packet.destination_mac = Some(unmasked(mac).to_owned()),
                    _ => known = false,
                }
            }
        }
        "ipv4" | "ipv6" => {
            for part in items(inside)? {
                match part.name.split_once('=') {
                    Some(("ttl" | "hlimit", ttl)) => packet.ttl = unmasked(ttl).parse().ok(),
                    _ => known = false,
                }
            }
        }
        "tunnel" => packet.tunnel = Some(set_tunnel(inside)?),
        // Metadata for the node's own kernel, not part of the packet.
        "skb_priority" | "skb_mark" => {}
        _ => known = false,
    }
    Ok(known)
}

/// `set(tunnel(…))` of the kernel datapath.
fn set_tunnel(inside: &str) -> Result<Tunnel, Malformed> {
    let mut tunnel = Tunnel { option: option(inside), ..Tunnel::default() };
    for part in items(inside)? {
        match part.name.split_once('=') {
            Some(("tun_id", id)) => tunnel.vni = number(unmasked(id)),
            Some(("dst" | "ipv6_dst", ip)) => tunnel.remote = unmasked(ip).parse().ok(),
            _ => {}
        }
    }
    Ok(tunnel)
}

/// `tnl_push(tnl_port(…),header(…),out_port(…))` of the userspace datapath.
fn pushed(inside: &str) -> Result<Tunnel, Malformed> {
    let mut tunnel = Tunnel { option: option(inside), ..Tunnel::default() };
    let header = items(inside)?.into_iter().find(|item| item.name == "header");
    for item in items(header.and_then(|h| h.inside).unwrap_or_default())? {
        let inside = item.inside.unwrap_or_default();
        match item.name {
            "ipv4" | "ipv6" => tunnel.remote = value(inside, "dst").and_then(|ip| ip.parse().ok()),
            "geneve" => tunnel.vni = value(inside, "vni").and_then(number),
            _ => {}
        }
    }
    Ok(tunnel)
}

/// Value of OVN's Geneve option; `None` unless it is the only option.
fn option(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("{class=0x102,type=0x80,len=4,")?;
    let (data, rest) = rest.split_once('}')?;
    (!rest.contains("{class=")).then(|| number(unmasked(data))).flatten()
}

/// The value of `key=…` among the parts of `text`.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let parts = items(text).ok()?;
    parts.into_iter().find_map(|item| item.name.strip_prefix(key)?.strip_prefix('='))
}

fn unmasked(text: &str) -> &str {
    text.split_once('/').map_or(text, |(value, _)| value)
}

/// A decimal or, after `0x`, hexadecimal number.
pub(super) fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Splits at commas outside of brackets.
fn items(text: &str) -> Result<Vec<Item<'_>>, Malformed> {
    let malformed = |what| Malformed { text: text.to_owned(), what };
    let (mut list, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' | b'{' => depth += 1,
            b')' | b'}' => {
                depth = depth.checked_sub(1).ok_or_else(|| malformed("unbalanced closing bracket"))?;
            }
            b',' if depth == 0 => {
                list.push(item(&text[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(malformed("unclosed bracket"));
    }
    list.push(item(&text[start..]));
    list.retain(|item| !item.name.is_empty());
    Ok(list)
}

fn item(text: &str) -> Item<'_> {
    let text = text.trim();
    match text.strip_suffix(')').and_then(|rest| rest.split_once('(')) {
        Some((name, inside)) => Item { name, inside: Some(inside) },
        None => Item { name: text, inside: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What OVS 3.5 printed for a TCP packet from a pod to a pod of another node, userspace datapath.
    const PUSH: &str = "ct_clear,check_pkt_len(size=1414,gt(sample(sample=100.0%,actions(meter(4),userspace(pid=0,\
        controller(reason=1,dont_send=1,continuation=0,recirc_id=14,rule_cookie=0xdd238c3b,controller_id=0,max_len=65535))))),\
        le(set(eth(src=0a:58:0a:f4:01:01,dst=0a:58:0a:f4:01:03)),set(ipv4(ttl=63)),check_pkt_len(size=1414,gt(drop),\
        le(clone(tnl_push(tnl_port(5),header(size=58,type=5,eth(dst=02:42:ac:12:00:03,src=02:42:ac:12:00:02,dl_type=0x0800),\
        ipv4(src=172.18.0.2,dst=172.18.0.3,proto=17,tos=0,ttl=64,frag=0x4000),udp(src=0,dst=6081,csum=0x0),\
        geneve(crit,vni=0x4,options({class=0x102,type=0x80,len=4,0x20004}))),out_port(2)),3)))))";

    fn walk(actions: &str) -> Walk {
        let mut walk = Walk::default();
        walk.follow(actions, &Packet::default()).unwrap();
        walk
    }

    fn tunnel() -> Tunnel {
        Tunnel { remote: "172.18.0.3".parse().ok(), vni: Some(4), option: Some(0x20004) }
    }

    #[test]
    fn a_packet_pushed_into_a_tunnel_is_one_output_with_everything_that_was_set() {
        let walk = walk(PUSH);
        assert!(walk.remarks.is_empty(), "{walk:?}");
        let [output] = walk.outputs.as_slice() else { panic!("{walk:?}") };
        assert_eq!(output.port, "3");
        assert_eq!(
            output.packet,
            Packet {
                source_mac: Some("0a:58:0a:f4:01:01".to_owned()),
                destination_mac: Some("0a:58:0a:f4:01:03".to_owned()),
                ttl: Some(63),
                tunnel: Some(tunnel()),
            }
        );
    }

    #[test]
    fn the_kernel_datapath_sets_the_tunnel_and_outputs() {
        let walk = walk(
            "set(tunnel(tun_id=0x4,dst=172.18.0.3,ttl=64,tp_dst=6081,geneve({class=0x102,type=0x80,len=4,0x20004}),\
             flags(df|key))),set(eth(dst=0a:58:0a:f4:01:03)),genev_sys_6081",
        );
        let [output] = walk.outputs.as_slice() else { panic!("{walk:?}") };
        assert_eq!((output.port.as_str(), &output.packet.tunnel), ("genev_sys_6081", &Some(tunnel())));
        assert!(walk.remarks.is_empty(), "{walk:?}");
    }

    #[test]
    fn a_pass_that_ends_in_connection_tracking_says_in_which_zone() {
        let walk =
            walk("set(ipv4(ttl=62)),ct(commit,zone=6,mark=0/0x41,nat(src)),ct(zone=7,nat),recirc(0x11)");
        assert_eq!(
            walk.resumes,
            BTreeMap::from([(
                0x11,
                Resume { zone: Some(7), packet: Packet { ttl: Some(62), ..Packet::default() } }
            )])
        );
    }

    #[test]
    fn a_clone_does_not_change_the_packet_that_goes_on() {
        let walk = walk("clone(set(ipv4(ttl=1)),4),5");
        let seen: Vec<_> = walk.outputs.iter().map(|o| (o.port.as_str(), o.packet.ttl)).collect();
        assert_eq!(seen, [("4", Some(1)), ("5", None)]);
    }

    #[test]
    fn what_a_cached_flow_does_not_do_is_remarked() {
        for actions in [
            "set(ipv4(src=10.0.0.1)),4",
            "set(tcp(dst=80)),4",
            "userspace(pid=0,controller(reason=1)),4",
            "push_vlan(vid=5,pcp=0),4",
            "sample(sample=10.0%,actions(4)),5",
        ] {
            let walk = walk(actions);
            assert_eq!((walk.remarks.len(), walk.outputs.len()), (1, 1), "{actions}: {walk:?}");
        }
        assert_eq!(walk("drop"), Walk::default());
    }

    #[test]
    fn an_option_that_is_not_ovns_alone_is_not_known() {
        for options in [
            "",
            "{class=0x103,type=0x80,len=4,0x1}",
            "{class=0x102,type=0x80,len=4,0x1}{class=0xffff,type=0x1,len=4,0x2}",
        ] {
            assert_eq!(option(options), None, "{options}");
        }
    }

    #[test]
    fn brackets_that_do_not_match_are_an_error() {
        for bad in ["clone(1", "1)", "clone(2)),3"] {
            assert!(Walk::default().follow(bad, &Packet::default()).is_err(), "{bad}");
        }
    }
}
