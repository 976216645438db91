//! Complete packets in and out of an interface, by a packet socket: sends the packets ordered on standard input, byte for byte, and
//! writes what arrives to standard output, a line of JSON each.
//!
//! With every packet goes what the kernel keeps beside its bytes: the header of `PACKET_VNET_HDR` (checksum and
//! segmentation still to be done; linux/virtio_net.h) and the VLAN tag that was taken out (`PACKET_AUXDATA`; packet(7)).

use std::io::{BufRead, IoSlice, IoSliceMut, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::sys::socket::{
    self, AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType,
    setsockopt, sockopt,
};
use serde::{Deserialize, Serialize};

use super::load::now;

mod option {
    use nix::{libc, setsockopt_impl, sockopt_impl};

    sockopt_impl!(VnetHeader, SetOnly, libc::SOL_PACKET, libc::PACKET_VNET_HDR, bool);
    sockopt_impl!(Auxdata, SetOnly, libc::SOL_PACKET, libc::PACKET_AUXDATA, bool);
}

/// `testbed probe packets`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The interface.
    #[arg(long, default_value = "eth0")]
    interface: String,
    /// Report what this machine sends too, not only what comes in.
    #[arg(long)]
    outgoing: bool,
}

/// What the kernel keeps beside a packet: `struct virtio_net_hdr`, numbers in the host's order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offload {
    /// `NEEDS_CHECKSUM`, `CHECKED`.
    pub flags: u8,
    /// `GSO_*`, with `GSO_ECN`.
    pub gso_type: u8,
    /// Bytes of the headers, or of the contiguous part.
    pub headers: u16,
    /// Payload of a segment.
    pub gso_size: u16,
    /// Where the checksum begins, and where behind that it goes.
    pub checksum_start: u16,
    pub checksum_offset: u16,
}

/// The checksum is still to be completed.
pub const NEEDS_CHECKSUM: u8 = 1;
/// The kernel takes the checksum as right.
pub const CHECKED: u8 = 2;
/// TCP over IPv4.
pub const GSO_TCP4: u8 = 1;
/// TCP over IPv6.
pub const GSO_TCP6: u8 = 4;
/// UDP datagrams of one size.
pub const GSO_UDP: u8 = 5;
/// TCP whose first segment alone has CWR.
pub const GSO_ECN: u8 = 0x80;
/// Bytes of the header.
const OFFLOAD: usize = 10;

impl Offload {
    fn to_bytes(self) -> [u8; OFFLOAD] {
        let mut bytes = [0; OFFLOAD];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let numbers = [self.headers, self.gso_size, self.checksum_start, self.checksum_offset];
        for (place, number) in bytes[2..].chunks_exact_mut(2).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    fn of(bytes: &[u8; OFFLOAD]) -> Self {
        let number = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Self {
            flags: bytes[0],
            gso_type: bytes[1],
            headers: number(2),
            gso_size: number(4),
            checksum_start: number(6),
            checksum_offset: number(8),
        }
    }
}

/// A packet to send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// From the Ethernet header on.
    #[serde(with = "hex")]
    pub bytes: Vec<u8>,
    #[serde(default)]
    pub offload: Offload,
}

/// An order: packets one after another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub frames: Vec<Frame>,
    /// Microseconds between two of them.
    pub pause_us: u64,
}

/// What is reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Report {
    /// The socket is open.
    Ready,
    /// A packet.
    Packet(Capture),
    /// An order is done.
    Sent,
    /// A packet was rejected, or could not be reported.
    Failed(String),
}

/// A packet that came in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    #[serde(flatten)]
    pub frame: Frame,
    /// `CLOCK_MONOTONIC` when it was read, in nanoseconds.
    pub at: u64,
    /// VLAN tag that the kernel took out of the bytes: TPID and TCI.
    pub vlan: Option<u32>,
    /// This machine sent it.
    pub outgoing: bool,
}

impl Args {
    /// Runs until standard input ends.
    pub fn run(self) -> Result<()> {
        let socket = Arc::new(open(&self.interface)?);
        report(&Report::Ready)?;
        let reader = Arc::clone(&socket);
        thread::Builder::new().name("capture".into()).spawn(move || capture(&reader, self.outgoing))?;
        for line in std::io::stdin().lock().lines() {
            let order: Order = serde_json::from_str(&line?).context("order")?;
            for frame in &order.frames {
                let header = frame.offload.to_bytes();
                let parts = [IoSlice::new(&header), IoSlice::new(&frame.bytes)];
                let sent = socket::sendmsg::<()>(socket.as_raw_fd(), &parts, &[], MsgFlags::empty(), None);
                if let Err(error) = sent {
                    report(&Report::Failed(format!("a packet of {} bytes: {error}", frame.bytes.len())))?;
                }
                thread::sleep(Duration::from_micros(order.pause_us));
            }
            report(&Report::Sent)?;
        }
        Ok(())
    }
}

fn report(what: &Report) -> Result<()> {
    let line = serde_json::to_string(what)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}

fn open(interface: &str) -> Result<OwnedFd> {
    let address = getifaddrs()?
        .filter(|entry| entry.interface_name == interface)
        .find_map(|entry| entry.address?.as_link_addr().copied());
    let Some(address) = address else { bail!("there is no interface {interface}") };
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket::socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
    setsockopt(&fd, sockopt::RcvBufForce, &(64 << 20)).context("SO_RCVBUFFORCE")?;
    setsockopt(&fd, option::VnetHeader, &true).context("PACKET_VNET_HDR")?;
    setsockopt(&fd, option::Auxdata, &true).context("PACKET_AUXDATA")?;
    socket::bind(fd.as_raw_fd(), &address).with_context(|| format!("interface {interface}"))?;
    Ok(fd)
}

fn capture(socket: &OwnedFd, outgoing: bool) {
    let mut room = vec![0; OFFLOAD + 0x1_0000 + 64];
    loop {
        let told = match receive(socket, &mut room) {
            Ok(capture) if capture.outgoing && !outgoing => continue,
            Ok(capture) => report(&Report::Packet(capture)),
            Err(error) => report(&Report::Failed(format!("a packet came that cannot be read: {error:#}"))),
        };
        if told.is_err() {
            // The reader is gone.
            return;
        }
    }
}

fn receive(socket: &OwnedFd, room: &mut [u8]) -> Result<Capture> {
    let mut beside = nix::cmsg_space!([u8; 64]);
    let (length, outgoing, vlan) = {
        let mut parts = [IoSliceMut::new(room)];
        let message = socket::recvmsg::<LinkAddr>(
            socket.as_raw_fd(),
            &mut parts,
            Some(&mut beside),
            MsgFlags::empty(),
        )?;
        let outgoing = message.address.is_some_and(|from| from.pkttype() == libc::PACKET_OUTGOING);
        (message.bytes, outgoing, message.cmsgs()?.find_map(|one| tag(&one)))
    };
    let at = now();
    let bytes = room.get(..length).context("more than there is room for")?;
    let (header, bytes) = bytes.split_first_chunk::<OFFLOAD>().context("no header")?;
    let frame = Frame { bytes: bytes.to_vec(), offload: Offload::of(header) };
    Ok(Capture { frame, at, vlan, outgoing })
}

/// The tag of `struct tpacket_auxdata`: status, two lengths of 32 bits, two offsets of 16, then TCI and TPID.
fn tag(message: &ControlMessageOwned) -> Option<u32> {
    let ControlMessageOwned::Unknown(message) = message else { return None };
    let header = &message.cmsg_header;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
        return None;
    }
    let data = &message.data_bytes;
    let status = u32::from_ne_bytes(*data.first_chunk()?);
    let half = |at: usize| Some(u16::from_ne_bytes([*data.get(at)?, *data.get(at + 1)?]));
    if status & libc::TP_STATUS_VLAN_VALID == 0 {
        return None;
    }
    Some(u32::from(half(18)?) << 16 | u32::from(half(16)?))
}

mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::to_hex(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let pair = |at: usize| text.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
        (0..text.len())
            .step_by(2)
            .map(|at| {
                pair(at).ok_or_else(|| de::Error::custom(format!("byte {} is not hexadecimal", at / 2)))
            })
            .collect()
    }
}

/// Bytes as hexadecimal digits.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 0xf)]);
    bytes.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_survive_being_told_as_text() {
        let offload = Offload {
            flags: 1,
            gso_type: 4,
            headers: 74,
            gso_size: 1326,
            checksum_start: 54,
            checksum_offset: 16,
        };
        let frame = Frame { bytes: vec![0, 0x7f, 0xff], offload };
        let report = Report::Packet(Capture { frame, at: 5, vlan: Some(0x8100_0064), outgoing: false });
        let text = serde_json::to_string(&report).unwrap();
        assert!(text.contains("007fff"), "{text}");
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        assert!(serde_json::from_str::<Frame>(r#"{"bytes":"0g"}"#).is_err());
        assert_eq!(Offload::of(&offload.to_bytes()), offload);
    }
}
