//! Matches for address blocks with exceptions.

use ipnet::IpNet;

use crate::index::policy::IpBlock;

use super::matching::{Side, either, field};

/// Up to this many exceptions are written as such (`==` and `!=`). OVN multiplies out every bit of every `!=`, so with more of
/// them they are taken out of the block here, and the rest is written as a list of prefixes.
const PLAIN_EXCEPTIONS: usize = 2;

/// Matches addresses in any of the blocks; `None` when nothing is left of them.
pub(super) fn blocks(blocks: &[IpBlock], side: Side) -> Option<String> {
    if let [IpBlock { cidr, except }] = blocks
        && !except.is_empty()
        && except.len() <= PLAIN_EXCEPTIONS
    {
        let field = field(side, cidr.addr());
        let except: Vec<String> = except.iter().map(ToString::to_string).collect();
        return Some(format!("({field} == {cidr} && {field} != {{{}}})", except.join(", ")));
    }
    let prefixes: Vec<IpNet> = blocks.iter().flat_map(|block| without(block.cidr, &block.except)).collect();
    let (v4, v6): (Vec<IpNet>, Vec<IpNet>) =
        IpNet::aggregate(&prefixes).into_iter().partition(|net| net.addr().is_ipv4());
    either([v4, v6].iter().filter_map(|nets| list(nets, side)).collect())
}

fn list(nets: &[IpNet], side: Side) -> Option<String> {
    let field = field(side, nets.first()?.addr());
    let texts: Vec<String> = nets.iter().map(ToString::to_string).collect();
    Some(match texts.as_slice() {
        [one] => format!("{field} == {one}"),
        several => format!("{field} == {{{}}}", several.join(", ")),
    })
}

/// The prefixes that remain of `net` without `except`.
fn without(net: IpNet, except: &[IpNet]) -> Vec<IpNet> {
    if except.iter().any(|hole| hole.contains(&net)) {
        return Vec::new();
    }
    let inside: Vec<IpNet> = except.iter().filter(|hole| net.contains(*hole)).copied().collect();
    if inside.is_empty() {
        return vec![net];
    }
    // A hole that is inside and does not contain the whole has a longer prefix, so there are halves.
    let halves = net.subnets(net.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| without(half, &inside)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn block(cidr: &str, except: &[&str]) -> IpBlock {
        let except = except.iter().map(|net| net.parse().unwrap()).collect();
        IpBlock { cidr: cidr.parse().unwrap(), except }
    }

    fn text(list: &[IpBlock]) -> String {
        blocks(list, Side::Source).unwrap()
    }

    #[test]
    fn one_block_is_written_as_the_reference_does() {
        assert_eq!(text(&[block("192.0.2.0/24", &[])]), "ip4.src == 192.0.2.0/24");
        assert_eq!(
            text(&[block("10.244.0.0/16", &["10.244.0.3/32", "10.244.1.128/25"])]),
            "(ip4.src == 10.244.0.0/16 && ip4.src != {10.244.0.3/32, 10.244.1.128/25})"
        );
    }

    #[test]
    fn several_blocks_are_one_list_for_each_family() {
        assert_eq!(
            text(&[block("10.0.0.0/8", &[]), block("192.0.2.0/24", &[])]),
            "ip4.src == {10.0.0.0/8, 192.0.2.0/24}"
        );
        assert_eq!(
            text(&[block("fd00::/8", &[]), block("10.0.0.0/8", &[])]),
            "(ip4.src == 10.0.0.0/8 || ip6.src == fd00::/8)"
        );
    }

    #[test]
    fn an_exception_of_one_block_does_not_bind_another() {
        assert_eq!(
            text(&[block("10.0.0.0/30", &["10.0.0.1/32"]), block("10.0.0.1/32", &[])]),
            "ip4.src == 10.0.0.0/30"
        );
    }

    #[test]
    fn nothing_is_left_when_the_exceptions_cover_the_block() {
        assert_eq!(
            blocks(&[block("10.0.0.0/30", &["10.0.0.0/31", "10.0.0.2/32", "10.0.0.3/32"])], Side::Source),
            None
        );
    }

    #[test]
    fn many_exceptions_grow_the_match_by_no_more_than_their_prefixes() {
        let except: Vec<String> = (0..200).map(|i| format!("10.{i}.7.9/32")).collect();
        let except: Vec<&str> = except.iter().map(String::as_str).collect();
        let text = text(&[block("10.0.0.0/8", &except)]);
        assert!(text.matches('/').count() <= 200 * 24, "{} prefixes", text.matches('/').count());
        assert!(!text.contains("!="));
    }

    fn net() -> impl Strategy<Value = IpNet> {
        (0u32..=255, 24u8..=32).prop_map(|(host, len)| {
            let ip = Ipv4Addr::from(0x0a00_0000 + host);
            IpNet::new(ip.into(), len).unwrap().trunc()
        })
    }

    proptest! {
        #[test]
        fn what_is_left_holds_exactly_the_addresses_outside_all_holes(
            net in net(), holes in proptest::collection::vec(net(), 0..6)
        ) {
            let left = without(net, &holes);
            for host in 0..=255u32 {
                let ip = IpAddr::from(Ipv4Addr::from(0x0a00_0000 + host));
                let expected = net.contains(&ip) && !holes.iter().any(|hole| hole.contains(&ip));
                prop_assert_eq!(left.iter().any(|net| net.contains(&ip)), expected, "{}", ip);
            }
        }
    }
}
