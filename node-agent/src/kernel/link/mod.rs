//! Links, addresses, routes and neighbours of a network namespace, through rtnetlink.
//!
//! [`Netlink`] works in the namespace in which it was opened. No subprocesses. All errors name interface and operation.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use api::MacAddr;
use futures::TryStreamExt;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags,
    LinkInfo, LinkMessage,
};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth};
use supervision::Tasks;
use tokio::sync::Mutex;

pub mod address;
pub mod error;
pub mod ethtool;
pub mod kind;
mod qdisc;
pub mod route;

pub use error::LinkError;
pub use route::Route;

/// Only tests end a thread.
#[cfg(feature = "test-hooks")]
async fn told_to_end(stop: &AtomicBool) {
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[cfg(not(feature = "test-hooks"))]
async fn told_to_end(_stop: &AtomicBool) {
    std::future::pending().await
}

/// Retry delay and number of retries of dump requests: the kernel rejects a dump during another one on the same socket, which a caller
/// that was cancelled may have left, and sometimes while interfaces change.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(5);
const LISTS: u32 = 20;

/// Maximum length of an interface name in bytes (IFNAMSIZ of linux/if.h without the terminating zero).
pub const MAX_NAME: usize = 15;

/// Attributes of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Interface index in its namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// MAC address, if it has one of six bytes.
    pub mac: Option<MacAddr>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Promiscuous mode, as set by an administrator.
    pub promiscuous: bool,
    /// Link group, 0 by default.
    pub group: u32,
    /// Kind, such as `veth`; `None` for a hardware device.
    pub kind: Option<String>,
    /// Alias, free text.
    pub alias: Option<String>,
    /// Index of the peer in its namespace (veth), or of the lower device.
    pub peer_index: Option<u32>,
    /// Index of the controlling interface (bond, bridge).
    pub controller: Option<u32>,
}

/// Parameters of a veth pair to create. Both ends are down after creation.
#[derive(Debug, Clone)]
pub struct Veth<'a> {
    /// Name of the end in this namespace.
    pub name: &'a str,
    /// MAC address of that end; `None`: random.
    pub mac: Option<MacAddr>,
    /// Link group of that end.
    pub group: u32,
    /// Name of the other end.
    pub peer: &'a str,
    /// MAC address of the other end; `None`: random.
    pub peer_mac: Option<MacAddr>,
    /// Link group of the other end.
    pub peer_group: u32,
    /// Descriptor of the namespace in which the other end is created; `None`: the same.
    pub peer_netns: Option<std::os::fd::RawFd>,
    /// MTU of both ends, in bytes.
    pub mtu: u32,
}

/// An rtnetlink socket. Clones share it.
#[derive(Debug, Clone)]
pub struct Netlink {
    handle: Handle,
    /// Held during a dump: the kernel serves one at a time on a socket, and rejects others with `EBUSY`.
    dump: Arc<Mutex<()>>,
}

#[expect(
    clippy::missing_errors_doc,
    reason = "each fails with LinkError, which names interface and operation"
)]
impl Netlink {
    /// Opens a socket in the namespace of the calling thread, and serves it on the current tokio runtime.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn open() -> Result<Self, LinkError> {
        let (connection, handle, _messages) =
            rtnetlink::new_connection().map_err(|e| LinkError::new("(all)", "open a netlink socket", e))?;
        tokio::spawn(connection);
        Ok(Self::with(handle))
    }

    /// Opens a socket as [`Netlink::open`] does, served by a supervised task.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub fn open_in(tasks: &Tasks) -> Result<Self, LinkError> {
        let (connection, handle, _messages) =
            rtnetlink::new_connection().map_err(|e| LinkError::new("(all)", "open a netlink socket", e))?;
        tasks.spawn("netlink", connection);
        Ok(Self::with(handle))
    }

    /// Opens a socket that is served on its own thread, for slow requests: the kernel executes a request while it is sent, which
    /// blocks the sending thread. The thread ends with the last handle, or with the socket.
    ///
    /// # Errors
    /// The socket cannot be opened or the thread cannot be started.
    pub async fn open_on_thread(name: &str, tasks: &Tasks) -> Result<Self, LinkError> {
        let failed = |e| LinkError::new("(all)", "open a netlink socket", e);
        let (tell, told) = tokio::sync::oneshot::channel();
        let serve = move |stop: &AtomicBool| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let opened = runtime.and_then(|runtime| {
                let inside = runtime.enter();
                let (connection, handle, _messages) = rtnetlink::new_connection()?;
                drop(inside);
                Ok((connection, handle, runtime))
            });
            match opened {
                Ok((connection, handle, runtime)) => {
                    // Fails when the caller was cancelled.
                    if tell.send(Ok(handle)).is_ok() {
                        runtime.block_on(async {
                            tokio::select! {
                                () = connection => {}
                                () = told_to_end(stop) => {}
                            }
                        });
                    }
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        };
        tasks.thread(name, serve);
        let handle = told.await.map_err(|closed| failed(io::Error::other(closed)))?.map_err(failed)?;
        Ok(Self::with(handle))
    }

    fn with(handle: Handle) -> Self {
        Self { handle, dump: Arc::default() }
    }

    /// Collects a dump, with retries, when those before it are complete; `ask` sends the request.
    pub(crate) async fn listed<T, S>(&self, ask: impl Fn() -> S) -> Result<Vec<T>, rtnetlink::Error>
    where
        S: futures::Stream<Item = Result<T, rtnetlink::Error>>,
    {
        let _turn = self.dump.lock().await;
        let mut tries = 1;
        loop {
            match ask().try_collect().await {
                Err(rtnetlink::Error::NetlinkError(message))
                    if message.raw_code().abs() == nix::libc::EBUSY && tries < LISTS =>
                {
                    tries += 1;
                }
                done => return done,
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Underlying handle, for requests that this module does not cover. Dumps go through [`Netlink::listed`].
    pub fn raw(&self) -> &Handle {
        &self.handle
    }

    /// Looks up the interface called `name`; `None` if it does not exist.
    pub async fn find(&self, name: &str) -> Result<Option<Link>, LinkError> {
        let mut answers = self.handle.link().get().match_name(name).execute();
        match answers.try_next().await {
            Ok(message) => Ok(message.map(Link::from)),
            Err(e) => {
                let error = LinkError::netlink(name, "look up", e);
                if error.is_missing() { Ok(None) } else { Err(error) }
            }
        }
    }

    /// Looks up the interface called `name`; an error if it does not exist.
    pub async fn get(&self, name: &str) -> Result<Link, LinkError> {
        let found = self.find(name).await?;
        found.ok_or_else(|| LinkError::new(name, "look up", io::Error::from_raw_os_error(nix::libc::ENODEV)))
    }

    /// Lists all interfaces of the namespace.
    pub async fn list(&self) -> Result<Vec<Link>, LinkError> {
        let found = self.listed(|| self.handle.link().get().execute()).await;
        let messages: Vec<LinkMessage> = found.map_err(|e| LinkError::netlink("(all)", "list", e))?;
        Ok(messages.into_iter().map(Link::from).collect())
    }

    /// Creates a veth pair, the peer directly in its namespace. The peer cannot be set up in the same request.
    pub async fn create_veth(&self, veth: &Veth<'_>) -> Result<(), LinkError> {
        let mut peer = LinkMessageBuilder::<LinkUnspec>::new().name(veth.peer).mtu(veth.mtu);
        if let Some(mac) = veth.peer_mac {
            peer = peer.address(mac.0.to_vec());
        }
        if veth.peer_group != 0 {
            peer = peer.link_group(veth.peer_group);
        }
        if let Some(fd) = veth.peer_netns {
            peer = peer.setns_by_fd(fd);
        }
        let mut host = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(veth.name)
            .mtu(veth.mtu)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer.build())));
        if let Some(mac) = veth.mac {
            host = host.address(mac.0.to_vec());
        }
        if veth.group != 0 {
            host = host.link_group(veth.group);
        }
        let request = self.handle.link().add(host.build());
        let object = || format!("{} (peer {})", veth.name, veth.peer);
        request.execute().await.map_err(|e| LinkError::netlink(object(), "create a veth pair", e))
    }

    /// Deletes an interface by index, with the peer of a veth. `name` is for the error.
    pub async fn delete(&self, index: u32, name: &str) -> Result<(), LinkError> {
        self.handle.link().del(index).execute().await.map_err(|e| LinkError::netlink(name, "delete", e))
    }

    /// Deletes the interface called `name`; `false` if it does not exist.
    pub async fn delete_if_exists(&self, name: &str) -> Result<bool, LinkError> {
        let Some(link) = self.find(name).await? else { return Ok(false) };
        match self.delete(link.index, name).await {
            Ok(()) => Ok(true),
            Err(e) if e.is_missing() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Sets the interface up.
    pub async fn set_up(&self, index: u32, name: &str) -> Result<(), LinkError> {
        self.set(LinkUnspec::new_with_index(index).up().build(), name, "set up").await
    }

    /// Sets the interface up, with an alias of at most 255 bytes.
    pub async fn set_up_with_alias(&self, index: u32, name: &str, alias: &str) -> Result<(), LinkError> {
        self.set(LinkUnspec::new_with_index(index).alias(alias).up().build(), name, "set alias and up").await
    }

    /// Sets the interface down.
    pub async fn set_down(&self, index: u32, name: &str) -> Result<(), LinkError> {
        self.set(LinkUnspec::new_with_index(index).down().build(), name, "set down").await
    }

    /// Sets the MAC address.
    pub async fn set_mac(&self, index: u32, name: &str, mac: MacAddr) -> Result<(), LinkError> {
        let message = LinkUnspec::new_with_index(index).address(mac.0.to_vec()).build();
        self.set(message, name, "set the MAC address").await
    }

    /// Sets the MTU, in bytes.
    pub async fn set_mtu(&self, index: u32, name: &str, mtu: u32) -> Result<(), LinkError> {
        self.set(LinkUnspec::new_with_index(index).mtu(mtu).build(), name, "set the MTU").await
    }

    /// Sets the link group.
    pub async fn set_group(&self, index: u32, name: &str, group: u32) -> Result<(), LinkError> {
        self.set(LinkUnspec::new_with_index(index).link_group(group).build(), name, "set the link group")
            .await
    }

    /// Turns promiscuous mode on or off.
    pub async fn set_promiscuous(&self, index: u32, name: &str, on: bool) -> Result<(), LinkError> {
        let message = LinkUnspec::new_with_index(index).promiscuous(on).build();
        self.set(message, name, "set promiscuous mode").await
    }

    /// Turns off automatic link-local IPv6 addresses for the interface. Succeeds on a kernel without IPv6.
    pub async fn no_ipv6_address(&self, index: u32, name: &str) -> Result<(), LinkError> {
        let inet6 = AfSpecUnspec::Inet6(vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)]);
        let message = LinkUnspec::new_with_index(index)
            .append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![inet6]))
            .build();
        match self.set(message, name, "turn off IPv6 address generation").await {
            Err(e) if e.source.raw_os_error() == Some(nix::libc::EAFNOSUPPORT) => Ok(()),
            other => other,
        }
    }

    async fn set(&self, message: LinkMessage, name: &str, operation: &'static str) -> Result<(), LinkError> {
        let request = self.handle.link().set(message);
        request.execute().await.map_err(|e| LinkError::netlink(name, operation, e))
    }
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            mac: None,
            mtu: 0,
            up: message.header.flags.contains(LinkFlags::Up),
            promiscuous: message.header.flags.contains(LinkFlags::Promisc),
            group: 0,
            kind: None,
            alias: None,
            peer_index: None,
            controller: None,
        };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name = name,
                LinkAttribute::Address(bytes) => link.mac = <[u8; 6]>::try_from(bytes).ok().map(MacAddr),
                LinkAttribute::Mtu(mtu) => link.mtu = mtu,
                LinkAttribute::Group(group) => link.group = group,
                LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
                LinkAttribute::Controller(index) => link.controller = Some(index),
                LinkAttribute::Link(index) => link.peer_index = Some(index),
                LinkAttribute::LinkInfo(infos) => {
                    link.kind = infos.into_iter().find_map(|info| match info {
                        LinkInfo::Kind(kind) => Some(kind.to_string()),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        link
    }
}
