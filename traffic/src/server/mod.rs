//! The serving end: a control port, and one data port for TCP and for UDP that all sessions share.
//!
//! It serves the sessions of one run at a time: another one would disturb the measurement, and is refused. It listens in clusters,
//! so whatever comes is bounded: connections, time to say something sensible, and what may be asked.

mod control;
mod counters;
mod sessions;
mod tcp;
mod udp;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::net;
use sessions::Sessions;

/// How long a peer may take to say what it wants.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Where to listen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listen {
    /// None: all addresses of both families.
    pub(crate) bind: Option<IpAddr>,
    pub(crate) port: u16,
    pub(crate) data_port: u16,
}

/// Serves, without end.
pub(crate) fn serve(listen: Listen, ready: impl FnOnce(SocketAddr, u16)) -> Result<()> {
    // Without IPv6 in the kernel all addresses are those of IPv4.
    let any = || match net::udp_client(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 9), PATIENCE) {
        Ok(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        Err(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
    };
    let bind = listen.bind.unwrap_or_else(any);
    let control = net::listen(SocketAddr::new(bind, listen.port))?;
    let data = SocketAddr::new(bind, listen.data_port);
    let (tcp, udp) = (net::listen(data)?, net::udp_server(data)?);
    let sessions = Arc::new(Sessions::default());
    tcp::start(tcp, &sessions).context("threads of data connections")?;
    udp::start(udp, &sessions).context("thread of datagrams")?;
    ready(control.local_addr()?, listen.data_port);
    control::accept(&control, listen.data_port, &sessions)
}
