//! Clients that nobody has seen before: each has an address of its own and sends one datagram.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::socket::sockopt::IpTransparent;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, bind, sendto, setsockopt, socket,
};

/// `testbed probe newcomers`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The first one's address; the others follow. This host need not have them.
    #[arg(long, default_value = "198.18.0.1")]
    first: Ipv4Addr,
    /// So many a second.
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Where to.
    to: SocketAddrV4,
}

impl Args {
    /// Sends until the process is ended.
    ///
    /// # Errors
    /// The kernel refuses a datagram.
    pub fn run(self) -> Result<()> {
        ensure!(self.rate > 0, "--rate is 0: give the clients that come in a second");
        let begin = Instant::now();
        for number in 0_u32.. {
            let from = Ipv4Addr::from_bits(self.first.to_bits().wrapping_add(number));
            send(from, self.to).with_context(|| format!("a datagram from {from} to {}", self.to))?;
            let due = begin + Duration::from_secs(1) * (number + 1) / self.rate;
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}

/// From an address that the host may lack (`IP_TRANSPARENT`, ip(7)).
fn send(from: Ipv4Addr, to: SocketAddrV4) -> Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, IpTransparent, &true)?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(from, 0)))?;
    sendto(socket.as_raw_fd(), b"hello", &SockaddrIn::from(to), MsgFlags::empty())?;
    Ok(())
}
