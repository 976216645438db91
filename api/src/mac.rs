//! Ethernet addresses, and how one is derived from an IP address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};

/// An Ethernet (EUI-48) address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MacAddr(pub [u8; 6]);

/// The text is not six hexadecimal bytes separated by colons.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a MAC address: must be six two-digit hexadecimal bytes separated by `:`, such as 0a:58:0a:f4:00:03"
)]
pub struct ParseMacError(String);

impl MacAddr {
    /// The first bytes of addresses that follow from IP addresses, as in ovn-kubernetes.
    pub const PREFIX: [u8; 2] = [0x0a, 0x58];

    /// The MAC address for `ip`: `0a:58` followed by the four bytes of an IPv4 address. For IPv6 the four bytes
    /// are a hash of the address, as sixteen do not fit.
    pub fn from_ip(ip: IpAddr) -> Self {
        Self::with_prefix(Self::PREFIX, ip)
    }

    /// MAC derived from `ip` as by [`Self::from_ip`], with other first bytes than [`Self::PREFIX`].
    pub fn with_prefix([first, second]: [u8; 2], ip: IpAddr) -> Self {
        let tail = match ip {
            IpAddr::V4(v4) => v4.octets(),
            IpAddr::V6(v6) => hash32(v6),
        };
        Self([first, second, tail[0], tail[1], tail[2], tail[3]])
    }

    /// Shorthand for [`MacAddr::from_ip`] with an IPv4 address.
    pub fn from_ipv4(ip: Ipv4Addr) -> Self {
        Self::from_ip(IpAddr::V4(ip))
    }
}

/// The first four bytes of the SHA-256 of the address as text, as in ovn-kubernetes.
fn hash32(ip: Ipv6Addr) -> [u8; 4] {
    let digest = Sha256::digest(ip.to_string().as_bytes());
    [digest[0], digest[1], digest[2], digest[3]]
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddr {
    type Err = ParseMacError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let err = || ParseMacError(text.to_owned());
        let mut bytes = [0u8; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(err)?;
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(err());
            }
            *byte = u8::from_str_radix(part, 16).ok().ok_or_else(err)?;
        }
        if parts.next().is_some() {
            return Err(err());
        }
        Ok(Self(bytes))
    }
}

impl Serialize for MacAddr {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddr {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_of_an_ipv4_address_is_0a58_and_its_bytes() {
        assert_eq!(MacAddr::from_ipv4(Ipv4Addr::new(10, 244, 1, 3)).to_string(), "0a:58:0a:f4:01:03");
    }

    #[test]
    fn mac_of_an_ipv6_address_is_0a58_and_a_hash() {
        let ip = IpAddr::V4(Ipv4Addr::new(10, 244, 1, 3));
        assert_eq!(MacAddr::with_prefix([0x02, 0x11], ip).to_string(), "02:11:0a:f4:01:03");
        let mac = MacAddr::from_ip("fd00::1".parse().unwrap());
        assert_eq!(mac.0[..2], [0x0a, 0x58]);
        assert_ne!(mac, MacAddr::from_ip("fd00::2".parse().unwrap()));
    }

    #[test]
    fn text_round_trips_and_garbage_is_refused() {
        let mac: MacAddr = "02:42:ac:12:00:02".parse().unwrap();
        assert_eq!(mac.to_string(), "02:42:ac:12:00:02");
        for bad in [
            "",
            "02:42",
            "02:42:ac:12:00:02:03",
            "2:42:ac:12:00:02",
            "+2:42:ac:12:00:02",
            "zz:42:ac:12:00:02",
        ] {
            let error = bad.parse::<MacAddr>().unwrap_err().to_string();
            assert!(error.contains("six two-digit"), "{error}");
        }
    }
}
