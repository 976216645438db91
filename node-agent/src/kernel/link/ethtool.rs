//! Offload features of interfaces, through ethtool's generic netlink family (linux/ethtool_netlink.h).
//!
//! A packet socket, as used by OVS's userspace datapath, reads packets before hardware offloads: without checksum and larger than the
//! MTU. The interface in front of it must not offer these offloads.

use std::io;
use std::sync::OnceLock;

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

use super::LinkError;

// linux/netlink.h and linux/genetlink.h
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLA_F_NESTED: u16 = 0x8000;
const NLA_TYPE_MASK: u16 = 0x3fff;
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
// linux/ethtool_netlink.h
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_A_FEATURES_HEADER: u16 = 1;
const ETHTOOL_A_FEATURES_WANTED: u16 = 3;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_FEATURES_NOCHANGE: u16 = 5;
const ETHTOOL_A_HEADER_DEV_NAME: u16 = 2;
const ETHTOOL_A_BITSET_BITS: u16 = 3;
const ETHTOOL_A_BITSET_BITS_BIT: u16 = 1;
const ETHTOOL_A_BITSET_BIT_NAME: u16 = 2;

/// Turns off transmit checksum offloads of an interface in the calling thread's namespace, and verifies it.
///
/// # Errors
/// The kernel rejects the request, or an offload stays on.
pub fn disable_tx_checksum(interface: &str) -> Result<(), LinkError> {
    disable(interface, "turn off transmit checksum offload", is_tx_checksum)
}

/// Turns off transmit checksum and all segmentation offloads of an interface in the calling thread's namespace, and verifies it;
/// packets sent through it then have checksums and fit the MTU.
///
/// # Errors
/// The kernel rejects the request, or an offload stays on.
pub fn disable_tx_offloads(interface: &str) -> Result<(), LinkError> {
    disable(interface, "turn off transmit checksum and segmentation offload", |f| {
        is_tx_checksum(f) || is_segmentation(f)
    })
}

/// Names of active features, such as `tx-checksum-ip-generic`.
///
/// # Errors
/// The interface does not exist, or its driver does not answer.
pub fn active_features(interface: &str) -> Result<Vec<String>, LinkError> {
    let read = || Ethtool::open()?.features(interface);
    read().map(|f| f.active).map_err(|e| LinkError::new(interface, "read offload features", e))
}

fn is_tx_checksum(feature: &str) -> bool {
    feature.starts_with("tx-checksum-")
}

fn is_segmentation(feature: &str) -> bool {
    feature.starts_with("tx-") && feature.ends_with("-segmentation")
}

fn disable(interface: &str, operation: &'static str, which: fn(&str) -> bool) -> Result<(), LinkError> {
    let work = || {
        let mut ethtool = Ethtool::open()?;
        let features = ethtool.features(interface)?;
        let changeable = |f: &&String| which(f) && !features.fixed.contains(*f);
        let off: Vec<&str> = features.active.iter().filter(changeable).map(String::as_str).collect();
        if off.is_empty() {
            return Ok(());
        }
        ethtool.turn_off(interface, &off)?;
        let left: Vec<String> = ethtool.features(interface)?.active;
        let left: Vec<&String> = left.iter().filter(|f| off.contains(&f.as_str())).collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(io::Error::other(format!("still on after the request: {left:?}")))
        }
    };
    work().map_err(|e| LinkError::new(interface, operation, e))
}

struct Features {
    active: Vec<String>,
    fixed: Vec<String>,
}

struct Ethtool {
    socket: Socket,
    family: u16,
    sequence: u32,
}

impl Ethtool {
    fn open() -> io::Result<Self> {
        // The family id is constant until reboot, in all namespaces.
        static FAMILY: OnceLock<u16> = OnceLock::new();
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let mut ethtool = Self { socket, family: FAMILY.get().copied().unwrap_or(0), sequence: 0 };
        if ethtool.family == 0 {
            let name = attribute(CTRL_ATTR_FAMILY_NAME, b"ethtool\0")?;
            let answer = ethtool.request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &name)?;
            let id = attributes(&answer)
                .find(|(kind, _)| *kind == CTRL_ATTR_FAMILY_ID)
                .and_then(|(_, v)| v.first_chunk());
            let id = id
                .copied()
                .ok_or_else(|| io::Error::other("the kernel has no generic netlink family `ethtool`"))?;
            ethtool.family = *FAMILY.get_or_init(|| u16::from_ne_bytes(id));
        }
        Ok(ethtool)
    }

    fn features(&mut self, interface: &str) -> io::Result<Features> {
        let header = device_header(interface)?;
        let answer = self.request(self.family, ETHTOOL_MSG_FEATURES_GET, &header)?;
        let set = |wanted| {
            let value = attributes(&answer).find(|(kind, _)| *kind == wanted).map_or(&[][..], |(_, v)| v);
            bit_names(value)
        };
        Ok(Features { active: set(ETHTOOL_A_FEATURES_ACTIVE), fixed: set(ETHTOOL_A_FEATURES_NOCHANGE) })
    }

    fn turn_off(&mut self, interface: &str, features: &[&str]) -> io::Result<()> {
        let mut bits = Vec::new();
        for feature in features {
            // In a bit set with mask, a bit without value attribute is cleared.
            let mut name = feature.as_bytes().to_vec();
            name.push(0);
            let name = attribute(ETHTOOL_A_BITSET_BIT_NAME, &name)?;
            bits.extend(attribute(ETHTOOL_A_BITSET_BITS_BIT | NLA_F_NESTED, &name)?);
        }
        let bits = attribute(ETHTOOL_A_BITSET_BITS | NLA_F_NESTED, &bits)?;
        let mut payload = device_header(interface)?;
        payload.extend(attribute(ETHTOOL_A_FEATURES_WANTED | NLA_F_NESTED, &bits)?);
        self.request(self.family, ETHTOOL_MSG_FEATURES_SET, &payload).map(drop)
    }

    /// Sends a request and returns the attributes of the reply (empty for an acknowledgement).
    fn request(&mut self, kind: u16, command: u8, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        let length = u32::try_from(20 + payload.len()).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(20 + payload.len());
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend([0; 4]);
        message.extend([command, 1, 0, 0]);
        message.extend(payload);
        self.socket.send(&message, 0)?;
        let mut answer = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            let mut rest = datagram.as_slice();
            while let Some((header, _)) = rest.split_first_chunk::<16>() {
                let length =
                    usize::try_from(u32::from_ne_bytes([header[0], header[1], header[2], header[3]]));
                let length = length.map_err(io::Error::other)?;
                let body =
                    rest.get(16..length).ok_or_else(|| io::Error::other("truncated netlink message"))?;
                if u16::from_ne_bytes([header[4], header[5]]) == NLMSG_ERROR {
                    let code = body.first_chunk().copied().map_or(-nix::libc::EPROTO, i32::from_ne_bytes);
                    return if code == 0 {
                        Ok(answer)
                    } else {
                        Err(io::Error::from_raw_os_error(code.abs()))
                    };
                }
                answer = body.get(4..).unwrap_or_default().to_vec();
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

fn device_header(interface: &str) -> io::Result<Vec<u8>> {
    let mut name = interface.as_bytes().to_vec();
    name.push(0);
    attribute(ETHTOOL_A_FEATURES_HEADER | NLA_F_NESTED, &attribute(ETHTOOL_A_HEADER_DEV_NAME, &name)?)
}

/// Names in a verbose bit set without mask.
fn bit_names(bitset: &[u8]) -> Vec<String> {
    let bits = attributes(bitset)
        .filter(|(kind, _)| *kind == ETHTOOL_A_BITSET_BITS)
        .flat_map(|(_, v)| attributes(v));
    let names =
        bits.flat_map(|(_, bit)| attributes(bit)).filter(|(kind, _)| *kind == ETHTOOL_A_BITSET_BIT_NAME);
    names.map(|(_, name)| String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()).collect()
}

fn attribute(kind: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    let length = u16::try_from(4 + value.len()).map_err(io::Error::other)?;
    let mut out = Vec::with_capacity(usize::from(length).next_multiple_of(4));
    out.extend(length.to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(4), 0);
    Ok(out)
}

/// Attributes of a message: type (without flags) and value. Stops at the first malformed one.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & NLA_TYPE_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_bit_set_are_read_and_garbage_ends_the_reading() {
        let bit = |name: &[u8]| attribute(1 | NLA_F_NESTED, &attribute(2, name).unwrap()).unwrap();
        let bits = [bit(b"tx-checksum-sctp\0"), bit(b"tx-nocache-copy\0")].concat();
        let set = attribute(ETHTOOL_A_BITSET_BITS | NLA_F_NESTED, &bits).unwrap();
        assert_eq!(bit_names(&set), ["tx-checksum-sctp", "tx-nocache-copy"]);
        for cut in 0..set.len() {
            let _ = bit_names(&set[..cut]);
        }
        assert!(bit_names(&[0, 0, 0, 0, 1, 0, 0, 0]).is_empty());
    }

    #[test]
    fn what_counts_as_segmentation() {
        assert!(is_segmentation("tx-tcp-segmentation") && is_segmentation("tx-udp_tnl-csum-segmentation"));
        assert!(!is_segmentation("tx-checksum-sctp") && !is_segmentation("rx-gro"));
    }

    #[test]
    fn an_unknown_interface_is_named_in_the_error() {
        let error = disable_tx_checksum("no-such-if").unwrap_err().to_string();
        assert!(error.contains("no-such-if") && error.contains("checksum"), "{error}");
    }
}
