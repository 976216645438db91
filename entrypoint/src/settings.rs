//! The environment: read once, checked with errors that name the variable and say what is right.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::error::{Error, Result};
use crate::servers::{self, Servers, Transport};

/// Addresses of the servers with OVN's databases.
pub const CENTRAL: &str = "SLIPSTREAM_OVN_CENTRAL";
/// Address of the node that the container runs on.
pub const HOST_IP: &str = "SLIPSTREAM_HOST_IP";
/// Name of the node that the container runs on.
pub const NODE_NAME: &str = "SLIPSTREAM_NODE_NAME";
/// The API server.
pub const API_SERVER: &str = "SLIPSTREAM_API_SERVER";
/// A kubeconfig file, in place of the pod's service account.
pub const KUBECONFIG: &str = "SLIPSTREAM_KUBECONFIG";
/// The northbound database's servers.
pub const NB: &str = "SLIPSTREAM_NB";
/// The southbound database's servers.
pub const SB: &str = "SLIPSTREAM_SB";
/// OVS's datapath.
pub const OVS_DATAPATH: &str = "SLIPSTREAM_OVS_DATAPATH";
/// Whether connections to OVN's databases are encrypted, and both ends show certificates.
pub const TLS: &str = "SLIPSTREAM_TLS";
/// Set where Open vSwitch takes its datapath with it when it ends.
pub const OVS_LEAVES: &str = "SLIPSTREAM_OVS_LEAVES";
/// How the agent attaches its programs.
pub const ATTACH_MODE: &str = "SLIPSTREAM_ATTACH_MODE";
/// The agent's datapath.
pub const DATAPATH: &str = "SLIPSTREAM_DATAPATH";

/// Variables of ovn-kubernetes, and keys of its ConfigMap `ovn-config`, for the same things (docs/seeds.md).
const OLD: &[(&str, &[&str])] = &[
    (API_SERVER, &["K8S_APISERVER", "k8s_apiserver"]),
    (NB, &["OVN_NORTH", "OvnNorth"]),
    (SB, &["OVN_SOUTH", "OvnSouth"]),
    (NODE_NAME, &["K8S_NODE"]),
];

const CENTRAL_IS: &str =
    "the addresses of the nodes that run OVN's databases, one, or three or five separated by commas";
const HOST_IP_IS: &str = "the address of the node, as the downward API has it in status.hostIP";
const NODE_NAME_IS: &str = "the name of the node, as the downward API has it in spec.nodeName";
const API_SERVER_IS: &str =
    "https://HOST[:PORT] of an API server that nodes reach without services, such as https://10.0.0.10:6443";
const OVS_DATAPATH_IS: &str = "system (the kernel's datapath) or netdev (in ovs-vswitchd)";

/// The variables of the environment, or those of a test.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    variables: HashMap<String, String>,
}

impl Settings {
    /// The process's own environment. Variables that are not UTF-8 are none of ours.
    #[must_use]
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self { variables: std::env::vars_os().filter_map(text).collect() }
    }

    /// Variables that are given.
    #[must_use]
    pub fn of(variables: &[(&str, &str)]) -> Self {
        let owned = variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        Self { variables: owned.collect() }
    }

    /// The value of a variable, or of the one that ovn-kubernetes had for the same; an empty one is none.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let old = OLD.iter().filter(|(new, _)| *new == name).flat_map(|(_, old)| *old).copied();
        let value = |name: &str| self.variables.get(name).map(|value| value.trim());
        std::iter::once(name).chain(old).filter_map(value).find(|value| !value.is_empty())
    }

    fn needed(&self, name: &'static str, right: &'static str) -> Result<&str> {
        self.get(name).ok_or(Error::Missing { name, right })
    }

    /// The servers with OVN's databases.
    ///
    /// # Errors
    /// The variable is missing, has no addresses, or has one twice or of documentation.
    pub fn central(&self) -> Result<Servers> {
        let text = self.needed(CENTRAL, CENTRAL_IS)?;
        servers::parse(text).map_err(|problem| Error::Wrong {
            name: CENTRAL,
            value: text.to_owned(),
            problem,
            right: CENTRAL_IS,
        })
    }

    /// The address of the node.
    ///
    /// # Errors
    /// It is missing or no address.
    pub fn host_ip(&self) -> Result<IpAddr> {
        let text = self.needed(HOST_IP, HOST_IP_IS)?;
        text.parse().map_err(|error: std::net::AddrParseError| Error::Wrong {
            name: HOST_IP,
            value: text.to_owned(),
            problem: error.to_string(),
            right: HOST_IP_IS,
        })
    }

    /// The name of the node.
    ///
    /// # Errors
    /// It is missing.
    pub fn node_name(&self) -> Result<&str> {
        self.needed(NODE_NAME, NODE_NAME_IS)
    }

    /// Fails unless the programs can find the API server: by the address, or by a kubeconfig.
    ///
    /// # Errors
    /// Neither is set, or the address is none, or the chart's example.
    pub fn check_api_server(&self) -> Result<()> {
        let Some(text) = self.get(API_SERVER) else {
            return match self.get(KUBECONFIG) {
                Some(_) => Ok(()),
                None => Err(Error::Missing { name: API_SERVER, right: API_SERVER_IS }),
            };
        };
        let wrong = |problem: &str| Error::Wrong {
            name: API_SERVER,
            value: text.to_owned(),
            problem: problem.to_owned(),
            right: API_SERVER_IS,
        };
        let Some(host) = text.strip_prefix("https://") else {
            return Err(wrong("it does not begin with https://"));
        };
        let host = host.trim_end_matches('/');
        if host.is_empty() || host.contains('/') {
            return Err(wrong("it has no host, or a path"));
        }
        if servers::is_example_host(host) {
            return Err(wrong("it is still the example of the manifests"));
        }
        Ok(())
    }

    /// How OVN's databases are reached: with TLS unless it is switched off.
    ///
    /// # Errors
    /// Another word than `true` and `false`.
    pub fn transport(&self) -> Result<Transport> {
        match self.get(TLS).unwrap_or("true") {
            "true" => Ok(Transport::Tls),
            "false" => Ok(Transport::Plain),
            other => Err(Error::Wrong {
                name: TLS,
                value: other.to_owned(),
                problem: "it is neither".to_owned(),
                right: "true or false",
            }),
        }
    }

    /// OVS's datapath, `system` unless it is set.
    ///
    /// # Errors
    /// Another word than the two.
    pub fn ovs_datapath(&self) -> Result<&str> {
        match self.get(OVS_DATAPATH).unwrap_or("system") {
            known @ ("system" | "netdev") => Ok(known),
            other => Err(Error::Wrong {
                name: OVS_DATAPATH,
                value: other.to_owned(),
                problem: "there is no such datapath".to_owned(),
                right: OVS_DATAPATH_IS,
            }),
        }
    }
}

impl Settings {
    /// Whether pods' interfaces are ports of OVS's userspace datapath itself.
    ///
    /// # Errors
    /// As of [`Self::ovs_datapath`].
    pub fn needs_userspace_offload(&self) -> Result<bool> {
        let plain = self.get(DATAPATH) == Some("ovs") || self.get(ATTACH_MODE) == Some("direct");
        Ok(self.ovs_datapath()? == "netdev" && plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said<T: std::fmt::Debug>(result: Result<T>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn an_error_names_the_variable_and_what_is_right() {
        let none = Settings::of(&[(HOST_IP, " ")]);
        for (name, error) in [
            (CENTRAL, said(none.central())),
            (HOST_IP, said(none.host_ip())),
            (NODE_NAME, said(none.node_name())),
            (API_SERVER, said(none.check_api_server())),
        ] {
            assert!(error.contains(name) && error.contains("must be"), "{error}");
        }
        let wrong = Settings::of(&[(HOST_IP, "n1"), (OVS_DATAPATH, "kernel"), (CENTRAL, "a,b,c")]);
        assert!(said(wrong.host_ip()).contains("\"n1\""));
        assert!(said(wrong.ovs_datapath()).contains("system"));
        assert!(said(wrong.central()).contains(CENTRAL));
    }

    #[test]
    fn keys_of_ovn_config_are_known() {
        let old =
            Settings::of(&[("OvnNorth", "tcp:10.0.0.1:6641"), ("K8S_APISERVER", "https://10.0.0.1:6443")]);
        old.check_api_server().unwrap();
        assert_eq!(old.get(NB), Some("tcp:10.0.0.1:6641"));
        let both = Settings::of(&[(NB, "ssl:10.0.0.2:6641"), ("OVN_NORTH", "tcp:10.0.0.1:6641")]);
        assert_eq!(both.get(NB), Some("ssl:10.0.0.2:6641"));
    }

    #[test]
    fn an_api_server_is_https_without_a_path_and_no_example() {
        let check = |value| Settings::of(&[(API_SERVER, value)]).check_api_server();
        check("https://10.0.0.10:6443").unwrap();
        check("https://api.example.net/").unwrap();
        check("https://[fd00::1]:6443").unwrap();
        for bad in
            ["10.0.0.10:6443", "http://10.0.0.10", "https://", "https://a/b", "https://192.0.2.10:6443"]
        {
            assert!(said(check(bad)).contains(API_SERVER), "{bad}");
        }
        Settings::of(&[(KUBECONFIG, "/etc/k.yaml")]).check_api_server().unwrap();
    }

    #[test]
    fn ovs_takes_offloaded_packets_where_no_program_is_between() {
        let needs = |variables: &[_]| Settings::of(variables).needs_userspace_offload().unwrap();
        assert!(needs(&[(OVS_DATAPATH, "netdev"), (DATAPATH, "ovs")]));
        assert!(needs(&[(OVS_DATAPATH, "netdev"), (ATTACH_MODE, "direct")]));
        assert!(!needs(&[(OVS_DATAPATH, "netdev"), (DATAPATH, "ebpf")]));
        assert!(!needs(&[(DATAPATH, "ovs")]));
    }

    #[test]
    fn databases_are_reached_with_tls_unless_it_is_switched_off() {
        let with = |value| Settings::of(&[(TLS, value)]).transport();
        assert_eq!(Settings::default().transport().unwrap(), Transport::Tls);
        assert_eq!(with("false").unwrap(), Transport::Plain);
        assert!(said(with("no")).contains("SLIPSTREAM_TLS"));
    }

    #[test]
    fn the_datapath_is_the_kernels_unless_it_is_set() {
        assert_eq!(Settings::default().ovs_datapath().unwrap(), "system");
        assert_eq!(Settings::of(&[(OVS_DATAPATH, "netdev")]).ovs_datapath().unwrap(), "netdev");
    }
}
