//! The verb `slipstream-traffic serve`.

use std::io::Write;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::client::{PORT, default_data_port};
use crate::server::{self, Listen};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Address to listen on; without it, all addresses of both families.
    #[arg(long)]
    bind: Option<IpAddr>,
    /// TCP port of control connections.
    #[arg(long, default_value_t = PORT, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Port of all data, TCP and UDP; without it, the one after the control port.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    data_port: Option<u16>,
}

impl Args {
    pub(super) fn run(self) -> Result<ExitCode> {
        let data_port = self.data_port.unwrap_or_else(|| default_data_port(self.port));
        if data_port == self.port {
            bail!("--data-port {data_port}: must be another port than --port");
        }
        let listen = Listen { bind: self.bind, port: self.port, data_port };
        server::serve(listen, |at, data_port| {
            // Nobody reads it: no reason not to serve.
            let _ = writeln!(std::io::stdout(), "serving: control {at}, data TCP and UDP port {data_port}");
        })?;
        Ok(ExitCode::SUCCESS)
    }
}
