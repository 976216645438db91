//! The servers with OVN's databases, and the addresses by which they are reached.

use std::net::{IpAddr, SocketAddr};

/// A database of OVN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    /// Northbound.
    Nb,
    /// Southbound.
    Sb,
}

/// Both databases, in the order in which they are started.
pub const DATABASES: [Database; 2] = [Database::Nb, Database::Sb];

impl Database {
    /// Short name of the database, as files and sockets have it.
    #[must_use]
    pub fn short(self) -> &'static str {
        match self {
            Self::Nb => "nb",
            Self::Sb => "sb",
        }
    }

    /// Name of the schema.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nb => "OVN_Northbound",
            Self::Sb => "OVN_Southbound",
        }
    }

    /// TCP port for clients.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::Nb => 6641,
            Self::Sb => 6642,
        }
    }

    /// TCP port for the other servers of a Raft cluster.
    #[must_use]
    pub fn raft_port(self) -> u16 {
        match self {
            Self::Nb => 6643,
            Self::Sb => 6644,
        }
    }
}

/// How servers and clients of a database talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// With TLS, in which both ends show certificates.
    Tls,
    /// Without, for whoever reaches the port.
    Plain,
}

impl Transport {
    /// `ssl:IP:PORT` or `tcp:IP:PORT`, an IPv6 address in brackets.
    #[must_use]
    pub fn endpoint(self, ip: IpAddr, port: u16) -> String {
        format!("{}:{}", self.method(), SocketAddr::new(ip, port))
    }

    /// The word for it in OVS's endpoints.
    #[must_use]
    pub fn method(self) -> &'static str {
        match self {
            Self::Tls => "ssl",
            Self::Plain => "tcp",
        }
    }
}

/// The servers, in the order in which they were given. The first makes the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Servers(Vec<IpAddr>);

impl Servers {
    /// The addresses, in order.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.0
    }

    /// Whether there is more than one, and so Raft.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.0.len() > 1
    }

    /// Servers other than `own`.
    pub fn others(&self, own: IpAddr) -> impl Iterator<Item = IpAddr> {
        self.0.iter().copied().filter(move |address| *address != own)
    }

    /// The endpoints of a database for its clients, separated by commas.
    #[must_use]
    pub fn endpoints(&self, database: Database, transport: Transport) -> String {
        let all: Vec<_> = self.0.iter().map(|&ip| transport.endpoint(ip, database.port())).collect();
        all.join(",")
    }
}

/// Reads a list of addresses.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str) -> Result<Servers, String> {
    let mut addresses = Vec::new();
    for word in text.split(',').map(str::trim) {
        let ip: IpAddr = word.parse().map_err(|error| format!("{word:?}: {error}"))?;
        if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
            return Err(format!("{ip} is no address of a node"));
        }
        if is_example(ip) {
            return Err(format!("{ip} is still the example of the manifests"));
        }
        if addresses.contains(&ip) {
            return Err(format!("{ip} is there twice"));
        }
        addresses.push(ip);
    }
    match addresses.len() {
        1 | 3 | 5 => Ok(Servers(addresses)),
        // With an even number one more fails to bring no more.
        other => Err(format!("there are {other} addresses")),
    }
}

/// Whether an address is of documentation (RFC 5737, RFC 3849), as the manifests have it before they are edited.
fn is_example(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_documentation(),
        IpAddr::V6(ip) => ip.segments()[..2] == [0x2001, 0xdb8],
    }
}

/// Whether `HOST[:PORT]` names an address of documentation.
pub(crate) fn is_example_host(host: &str) -> bool {
    let address = host.parse::<IpAddr>().or_else(|_no_address| host.parse::<SocketAddr>().map(|a| a.ip()));
    address.is_ok_and(is_example)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_three_or_five_servers_are_taken_in_their_order() {
        let servers = parse("10.0.0.3, 10.0.0.1,10.0.0.2").unwrap();
        assert!(servers.is_cluster());
        assert_eq!(
            servers.endpoints(Database::Sb, Transport::Tls),
            "ssl:10.0.0.3:6642,ssl:10.0.0.1:6642,ssl:10.0.0.2:6642"
        );
        let own = "10.0.0.1".parse().unwrap();
        assert_eq!(servers.others(own).count(), 2);
        let one = parse("fd00::1").unwrap();
        assert!(!one.is_cluster());
        assert_eq!(one.endpoints(Database::Nb, Transport::Plain), "tcp:[fd00::1]:6641");
    }

    #[test]
    fn a_list_that_cannot_be_right_says_why() {
        for (text, why) in [
            ("", "invalid"),
            ("10.0.0.1,10.0.0.2", "2 addresses"),
            ("10.0.0.1,10.0.0.1,10.0.0.2", "twice"),
            ("127.0.0.1", "no address of a node"),
            ("192.0.2.10", "example"),
            ("2001:db8::1", "example"),
            ("n1", "n1"),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.contains(why), "{text:?}: {said}");
        }
    }
}
