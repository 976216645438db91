//! Lines of `dpctl/dump-conntrack` (ovs-dpctl(8)): tracked connections. Pure.

use std::net::{IpAddr, SocketAddr};

/// A tracked connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracked {
    /// Source and destination of its first packet, as it came.
    pub original: (SocketAddr, SocketAddr),
    /// Source and destination of a reply, before translation is undone.
    pub reply: (SocketAddr, SocketAddr),
    /// Connection tracking zone.
    pub zone: u16,
}

impl Tracked {
    /// Parses a line, if it is a UDP connection.
    pub fn udp(line: &str) -> Option<Self> {
        let rest = line.trim().strip_prefix("udp,")?;
        let zone = field(rest, "zone=").and_then(|zone| zone.parse().ok()).unwrap_or(0);
        Some(Self { original: ends(rest, "orig=(")?, reply: ends(rest, "reply=(")?, zone })
    }

    /// Where the connection was translated to, if its destination was.
    pub fn translated_to(&self) -> Option<SocketAddr> {
        (self.reply.0 != self.original.1).then_some(self.reply.0)
    }
}

/// Source and destination after `key`.
pub fn ends(text: &str, key: &str) -> Option<(SocketAddr, SocketAddr)> {
    let (_, rest) = text.split_once(key)?;
    let (inside, _) = rest.split_once(')')?;
    let get = |key| field(inside, key);
    let address = |key| get(key)?.parse::<IpAddr>().ok();
    let port = |key| get(key)?.parse::<u16>().ok();
    let source = SocketAddr::new(address("src=")?, port("sport=")?);
    Some((source, SocketAddr::new(address("dst=")?, port("dport=")?)))
}

/// Text between `key` and the next comma or bracket; `key` must be at the start of a word.
pub fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let at = text.match_indices(key).map(|(at, _)| at).find(|at| {
        *at == 0
            || key.starts_with(['(', ','])
            || text.as_bytes().get(at - 1).is_some_and(|b| matches!(b, b',' | b'('))
    })?;
    let rest = text.get(at + key.len()..)?;
    rest.split([',', ')', '/']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "udp,orig=(src=172.18.0.1,dst=172.18.0.2,sport=40001,dport=31172),reply=(src=10.244.0.6,dst=172.18.0.1,sport=7000,dport=40001),zone=13,mark=10";

    #[test]
    fn a_translated_udp_connection_says_where_to() {
        let tracked = Tracked::udp(LINE).unwrap();
        assert_eq!(tracked.original.1, "172.18.0.2:31172".parse().unwrap());
        assert_eq!(tracked.translated_to(), Some("10.244.0.6:7000".parse().unwrap()));
        assert_eq!(tracked.zone, 13);
    }

    #[test]
    fn without_translation_or_zone_there_is_none_and_other_protocols_are_not_parsed() {
        let line = "udp,orig=(src=fd00::3,dst=fd00::4,sport=1,dport=2),reply=(src=fd00::4,dst=fd00::3,sport=2,dport=1),status=CONFIRMED";
        let tracked = Tracked::udp(line).unwrap();
        assert_eq!((tracked.translated_to(), tracked.zone), (None, 0));
        assert_eq!(Tracked::udp(&LINE.replace("udp", "tcp")), None);
        assert_eq!(Tracked::udp("udp,orig=(src=1"), None);
    }
}
