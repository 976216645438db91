//! Many datagrams by one system call (sendmmsg(2), recvmmsg(2)), so that the rate of small ones is not bounded by calls.

use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};

/// Most datagrams by one call.
pub(crate) const BATCH: usize = 64;

/// Sends batches over a connected socket.
pub(crate) struct Sender {
    headers: MultiHeaders<SockaddrStorage>,
    payloads: Vec<Vec<u8>>,
}

impl Sender {
    /// For payloads of so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { headers: MultiHeaders::preallocate(BATCH, None), payloads: vec![vec![0; bytes]; BATCH] }
    }

    /// Sends up to `count` datagrams, at most [`BATCH`], after `fill` has written each with its index. Answers how many went.
    pub(crate) fn send(
        &mut self,
        socket: &UdpSocket,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]),
    ) -> Result<usize, Errno> {
        let count = count.min(BATCH);
        for (index, payload) in self.payloads.iter_mut().take(count).enumerate() {
            fill(index, payload);
        }
        let slices: Vec<_> =
            self.payloads.iter().take(count).map(|payload| [IoSlice::new(payload)]).collect();
        let to = [const { None }; BATCH];
        sendmmsg(socket.as_raw_fd(), &mut self.headers, &slices, &to[..count], [], MsgFlags::empty())
            .map(Iterator::count)
    }
}

/// One datagram that came: its length, and where it came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    pub(crate) from: Option<SockaddrStorage>,
}

/// Receives batches.
pub(crate) struct Receiver {
    headers: MultiHeaders<SockaddrStorage>,
    room: usize,
    buffer: Vec<u8>,
    received: Vec<Received>,
}

impl Receiver {
    /// For payloads of at most so many bytes.
    pub(crate) fn new(room: usize) -> Self {
        let headers = MultiHeaders::preallocate(BATCH, None);
        Self { headers, room, buffer: vec![0; room * BATCH], received: Vec::with_capacity(BATCH) }
    }

    /// Waits for a datagram, within the socket's limit, and takes with it what has come already.
    pub(crate) fn receive(&mut self, socket: &UdpSocket) -> Result<(), Errno> {
        self.received.clear();
        let mut slices: Vec<_> =
            self.buffer.chunks_mut(self.room).map(|chunk| [IoSliceMut::new(chunk)]).collect();
        let flags = MsgFlags::MSG_WAITFORONE;
        let got = recvmmsg(socket.as_raw_fd(), &mut self.headers, slices.iter_mut(), flags, None)?;
        self.received.extend(got.map(|message| Received { bytes: message.bytes, from: message.address }));
        Ok(())
    }

    /// What the last call has brought.
    pub(crate) fn datagrams(&mut self) -> impl Iterator<Item = (Received, &mut [u8])> {
        let chunks = self.buffer.chunks_mut(self.room);
        self.received.iter().copied().zip(chunks)
    }
}
