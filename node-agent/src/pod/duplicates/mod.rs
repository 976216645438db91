//! Duplicate address detection: asks on a pod's network whether another host uses an address before the pod has it, and tells the
//! network afterwards.
//!
//! It is for static addresses on a physical network, where hosts may have addresses of which the controller does not know. RFC 5227
//! waits up to 7 s, for links that are slow to forward; a pod's start does not, and the intervals are shorter here.

mod frames;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use api::MacAddr;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::libc::PACKET_OUTGOING;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, recvfrom, sendto, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;

use crate::kernel::netns::Netns;
use crate::pod::AttachError;

/// How often each address is asked for.
const PROBES: u32 = 3;
/// After each probe.
const WAIT: Duration = Duration::from_millis(300);
/// How often a pod tells of its addresses.
const ANNOUNCEMENTS: u32 = 2;
/// Between announcements.
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a frame that are looked at: neither ARP nor an advertisement is longer.
const ROOM: usize = 512;

/// An interface in a pod whose addresses others may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Interface name in the pod.
    pub ifname: String,
    /// MAC address of the interface.
    pub mac: MacAddr,
    /// The addresses that it is to have.
    pub addresses: Vec<IpAddr>,
}

/// An address that another host uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// Name of the interface that was to have it.
    pub ifname: String,
    /// The address.
    pub address: IpAddr,
    /// MAC address of the host that uses it.
    pub user: MacAddr,
}

/// Asks for the addresses of interfaces that are up, and returns those that others use; takes 0.9 s when there are none.
///
/// # Errors
/// Nothing can be sent on an interface.
pub async fn find(asked: Vec<Asked>, netns: &Netns) -> Result<Vec<Duplicate>, AttachError> {
    run("detect duplicate addresses", netns, move || Wires::open(&asked)?.find(&asked)).await
}

/// Tells the networks of these interfaces that they have their addresses.
///
/// # Errors
/// Nothing can be sent on an interface.
pub async fn announce(asked: Vec<Asked>, netns: &Netns) -> Result<(), AttachError> {
    run("announce addresses", netns, move || Wires::open(&asked)?.announce(&asked)).await
}

async fn run<T, F>(what: &'static str, netns: &Netns, work: F) -> Result<T, AttachError>
where
    T: Send + 'static,
    F: FnOnce() -> io::Result<T> + Send + 'static,
{
    let failed = |error: io::Error| AttachError::Thread { what: what.to_owned(), reason: error.to_string() };
    netns.run("cni-duplicates", work).await?.map_err(failed)
}

/// A packet socket (packet(7)) for all interfaces of a namespace, and the addresses by which some of them are named.
struct Wires {
    socket: OwnedFd,
    links: BTreeMap<String, LinkAddr>,
}

impl Wires {
    fn open(asked: &[Asked]) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
        let all = getifaddrs()?.filter_map(|entry| {
            let link = entry.address?.as_link_addr().copied()?;
            Some((entry.interface_name, link))
        });
        let links: BTreeMap<_, _> =
            all.filter(|(name, _)| asked.iter().any(|one| one.ifname == *name)).collect();
        Ok(Self { socket, links })
    }

    fn send(&self, one: &Asked, frame: &[u8]) -> io::Result<()> {
        let of_interface =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", one.ifname));
        let link = self.links.get(&one.ifname).ok_or_else(|| of_interface(io::ErrorKind::NotFound.into()))?;
        sendto(self.socket.as_raw_fd(), frame, link, MsgFlags::empty())
            .map(drop)
            .map_err(|errno| of_interface(errno.into()))
    }

    fn find(&self, asked: &[Asked]) -> io::Result<Vec<Duplicate>> {
        for _ in 0..PROBES {
            for one in asked {
                for address in &one.addresses {
                    self.send(one, &frames::probe(one.mac, *address))?;
                }
            }
            let found = self.listen(asked, Instant::now() + WAIT)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// What is heard until then.
    fn listen(&self, asked: &[Asked], end: Instant) -> io::Result<Vec<Duplicate>> {
        let mut found: Vec<Duplicate> = Vec::new();
        let mut room = [0; ROOM];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(found);
            }
            let micros = i64::try_from(left.as_micros()).unwrap_or(i64::MAX).max(1);
            setsockopt(&self.socket, sockopt::ReceiveTimeout, &TimeVal::new(0, micros))?;
            let (length, from) = match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut room) {
                Ok(heard) => heard,
                Err(Errno::EAGAIN | Errno::EINTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            // A packet socket shows what is sent, too.
            let came = from.filter(|from| from.pkttype() != PACKET_OUTGOING).map(|from| from.ifindex());
            let is_there = |one: &&Asked| self.links.get(&one.ifname).map(LinkAddr::ifindex) == came;
            let Some(one) = asked.iter().find(|one| came.is_some() && is_there(one)) else { continue };
            let frame = room.get(..length).unwrap_or_default();
            if let Some((address, user)) = frames::user_of(frame, &one.addresses) {
                let duplicate = Duplicate { ifname: one.ifname.clone(), address, user };
                if !found.contains(&duplicate) {
                    found.push(duplicate);
                }
            }
        }
    }

    fn announce(&self, asked: &[Asked]) -> io::Result<()> {
        for turn in 0..ANNOUNCEMENTS {
            if turn > 0 {
                thread::sleep(PAUSE);
            }
            for one in asked {
                for address in &one.addresses {
                    self.send(one, &frames::announcement(one.mac, *address))?;
                }
            }
        }
        Ok(())
    }
}
