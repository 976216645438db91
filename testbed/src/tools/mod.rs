//! The traffic tool: small servers that say who they are and whom they saw, and clients that ask them.

mod bulk;
mod dial;
mod get;
pub mod load;
mod name;
mod netexec;
mod newcomers;
pub mod packets;
mod reset;
mod respond;
mod rr;
mod serve;
pub mod spray;
mod stream;
pub mod survey;

use anyhow::Result;

pub use dial::{Answer, Attempt};
pub use rr::RoundTrips;

/// `testbed probe`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Args {
    /// Answer `NAME CLIENT-ADDRESS` on TCP and UDP ports.
    Serve(serve::Args),
    /// Ask a server and print its answer, or `ERR` and the reason.
    Dial(dial::Args),
    /// Take many bytes from a bulk port of a server.
    Bulk(bulk::Args),
    /// Send many bytes and reset the connection, or tell how such a connection ends.
    Reset(reset::Args),
    /// Send back whatever comes.
    Echo(rr::EchoArgs),
    /// Ask an echo over and over, and print how long it takes.
    Rr(rr::Args),
    /// Get a page over HTTP or HTTPS and print its status.
    Get(get::Args),
    /// Ask an `agnhost netexec` over one connection, without end.
    Stream(stream::Args),
    /// Hold many flows, as ordered on standard input, and report what arrives.
    Load(load::Args),
    /// Send and receive complete packets, as ordered on standard input.
    Packets(packets::Args),
    /// Send many flows of one packet each: TCP SYN and UDP.
    Spray(spray::Args),
    /// Send a datagram each from many addresses that nobody has seen before, without end.
    Newcomers(newcomers::Args),
    /// Count what arrives of such a spray.
    Tally(spray::TallyArgs),
    /// Ask a DNS server for the addresses of a name.
    Name(name::Args),
    /// Answer every message with `NAME:PORT CLIENT-ADDRESS:PORT`, on TCP and UDP ports.
    Respond(respond::Args),
    /// Make many calls of such servers, as ordered on standard input, and report who answered.
    Survey(survey::Args),
}

impl Args {
    /// Runs it.
    pub fn run(self) -> Result<()> {
        match self {
            Self::Serve(args) => args.run(),
            Self::Dial(args) => args.run(),
            Self::Bulk(args) => args.run(),
            Self::Reset(args) => args.run(),
            Self::Echo(args) => args.run(),
            Self::Rr(args) => args.run(),
            Self::Get(args) => args.run(),
            Self::Stream(args) => args.run(),
            Self::Load(args) => args.run(),
            Self::Packets(args) => args.run(),
            Self::Spray(args) => args.run(),
            Self::Newcomers(args) => args.run(),
            Self::Tally(args) => args.run(),
            Self::Name(args) => args.run(),
            Self::Respond(args) => args.run(),
            Self::Survey(args) => args.run(),
        }
    }
}
