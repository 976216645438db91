//! TCP's own counters of a connection (`TCP_INFO`, tcp(7)).

use std::net::TcpStream;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::GetStruct;

/// The socket option.
#[derive(Debug, Clone, Copy)]
struct TcpInfo;

nix::getsockopt_impl!(TcpInfo, libc::IPPROTO_TCP, libc::TCP_INFO, libc::tcp_info, GetStruct<libc::tcp_info>);

/// Segments that this end has sent again since the connection began; 0 where the kernel does not tell.
pub(crate) fn retransmits(stream: &TcpStream) -> u64 {
    getsockopt(stream, TcpInfo).map_or(0, |info| u64::from(info.tcpi_total_retrans))
}
