//! Targets: an address or a name, with or without a port.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use anyhow::{Context, Result, bail};

/// Which addresses of a name are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    Any,
    V4,
    V6,
}

impl Family {
    fn has(self, address: &SocketAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

/// The host and, if there is one, the port of `HOST`, `HOST:PORT`, `ADDRESS6` or `[ADDRESS6]:PORT`.
pub(crate) fn with_port(text: &str) -> Result<(String, Option<u16>)> {
    let port = |text: &str| {
        let port = text.parse().ok().filter(|port| *port != 0);
        port.with_context(|| format!("{text:?} is no port: must be from 1 to 65535"))
    };
    if text.is_empty() {
        bail!("an empty target: must be HOST or HOST:PORT");
    }
    if text.parse::<IpAddr>().is_ok() {
        return Ok((text.to_owned(), None));
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) =
            rest.split_once(']').with_context(|| format!("{text:?} has no closing bracket"))?;
        let after = rest.strip_prefix(':').map(port).transpose()?;
        return Ok((host.to_owned(), after));
    }
    match text.split_once(':') {
        Some((host, after)) => Ok((host.to_owned(), Some(port(after)?))),
        None => Ok((text.to_owned(), None)),
    }
}

/// The first address of a host that is of the family.
///
/// # Errors
/// The name is not known, or has no such address.
pub(crate) fn resolve(host: &str, port: u16, family: Family) -> Result<SocketAddr> {
    let mut all = (host, port).to_socket_addrs().with_context(|| format!("cannot resolve {host}"))?;
    all.find(|address| family.has(address)).with_context(|| match family {
        Family::V4 => format!("{host} has no IPv4 address (--ipv4)"),
        Family::V6 => format!("{host} has no IPv6 address (--ipv6)"),
        Family::Any => format!("{host} has no address"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_with_or_without_a_port() {
        let good = |text| with_port(text).unwrap();
        assert_eq!(good("a.b"), ("a.b".into(), None));
        assert_eq!(good("a.b:80"), ("a.b".into(), Some(80)));
        assert_eq!(good("fd00::1"), ("fd00::1".into(), None));
        assert_eq!(good("[fd00::1]:80"), ("fd00::1".into(), Some(80)));
        assert_eq!(good("[fd00::1]"), ("fd00::1".into(), None));
        for wrong in ["", "a:0", "a:65536", "a:b", "[fd00::1", "[fd00::1]:"] {
            assert!(with_port(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_family_that_an_address_is_not_of_is_an_error_that_names_the_flag() {
        assert!(resolve("127.0.0.1", 1, Family::V4).is_ok());
        let error = resolve("127.0.0.1", 1, Family::V6).unwrap_err();
        assert!(error.to_string().contains("--ipv6"), "{error}");
    }
}
