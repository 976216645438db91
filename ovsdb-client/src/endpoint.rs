//! Where a server listens: parsing and printing of `unix:`, `tcp:` and `ssl:` endpoints.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::Error;

/// Address of one OVSDB server (active connection methods of ovsdb(7)).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `unix:PATH`
    Unix(PathBuf),
    /// `tcp:HOST:PORT`; the host without the brackets of an IPv6 address.
    Tcp(String, u16),
    /// `ssl:HOST:PORT`
    Ssl(String, u16),
}

impl Endpoint {
    /// Parses a comma separated list, as in `tcp:10.0.0.1:6641,tcp:10.0.0.2:6641`.
    ///
    /// # Errors
    /// An entry is no endpoint; an empty text is one empty entry.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, Error> {
        list.split(',').map(|one| one.trim().parse()).collect()
    }

    /// Prints a list the way [`Endpoint::parse_list`] reads it.
    pub fn format_list(list: &[Self]) -> String {
        list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |why: &str| {
            Error::Invalid(format!(
                "OVSDB endpoint {text:?}: {why}; expected unix:/path, tcp:host:port or ssl:host:port (an IPv6 address in brackets)"
            ))
        };
        let (method, rest) = text.split_once(':').ok_or_else(|| bad("no connection method"))?;
        match method {
            "unix" if rest.is_empty() => Err(bad("empty path")),
            "unix" => Ok(Self::Unix(PathBuf::from(rest))),
            "tcp" | "ssl" => {
                let (host, port) = if let Some(inner) = rest.strip_prefix('[') {
                    let (host, tail) = inner.split_once(']').ok_or_else(|| bad("missing ']'"))?;
                    (host, tail.strip_prefix(':').ok_or_else(|| bad("missing port"))?)
                } else {
                    let (host, port) = rest.rsplit_once(':').ok_or_else(|| bad("missing port"))?;
                    if host.contains(':') {
                        return Err(bad("IPv6 address without brackets"));
                    }
                    (host, port)
                };
                if host.is_empty() {
                    return Err(bad("empty host"));
                }
                let port: u16 = match port.parse() {
                    Ok(port) if port != 0 => port,
                    _ => return Err(bad("port is not a number from 1 to 65535")),
                };
                let host = host.to_owned();
                Ok(if method == "tcp" { Self::Tcp(host, port) } else { Self::Ssl(host, port) })
            }
            _ => Err(bad("unknown connection method")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (method, host, port) = match self {
            Self::Unix(path) => return write!(f, "unix:{}", path.display()),
            Self::Tcp(host, port) => ("tcp", host, port),
            Self::Ssl(host, port) => ("ssl", host, port),
        };
        if host.contains(':') {
            write!(f, "{method}:[{host}]:{port}")
        } else {
            write!(f, "{method}:{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_survives_parsing_and_printing() {
        for text in [
            "unix:/run/db.sock",
            "tcp:1.2.3.4:6641",
            "tcp:[::1]:6641",
            "ssl:nb.example:6641",
            "ssl:[fd00::1]:1",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        let list = "tcp:1.2.3.4:6641,unix:/x";
        assert_eq!(Endpoint::format_list(&Endpoint::parse_list(list).unwrap()), list);
    }

    #[test]
    fn a_bad_endpoint_is_named_in_the_error() {
        for text in [
            "",
            "/run/db.sock",
            "unix:",
            "tcp:1.2.3.4",
            "tcp:::1:6641",
            "tcp:[::1]",
            "tcp:[::1:1",
            "ssl::1",
            "tcp:h:0",
            "tcp:h:70000",
            "http:h:1",
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("expected"), "{error}");
        }
    }
}
