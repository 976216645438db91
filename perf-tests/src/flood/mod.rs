//! `cargo xtask bench flood`: small frames by an interface, made by the kernel.
//!
//! They are the kernel's live frames (`BPF_PROG_TEST_RUN` with `BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18): a small program writes each anew
//! with the next source port, and the kernel hands them to the driver in batches, as it does with frames that XDP sends back. That needs
//! a driver that takes such frames, which most with native XDP do; a veth does while there is an XDP program or GRO at its other end.

mod frame;

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use api::MacAddr;
use aya::{Ebpf, EbpfLoader};
use nix::sched::CpuSet;

use crate::fastpath::OBJECT;
use crate::live_frames::{self, FRONT, xdp};
use frame::{Frame, Tunnel, Wanted};

/// One of so many frames must have been taken by the interface.
const LEAST: u64 = 20;
/// Frames between two looks at the clock.
const PORTION: u32 = 4_096;

/// Flags of `flood`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Interface that the frames leave by.
    #[arg(long, value_name = "NAME")]
    interface: String,
    /// MAC address that they are for.
    #[arg(long)]
    mac: MacAddr,
    /// Source address.
    #[arg(long)]
    from: IpAddr,
    /// Destination: for a node port the node's address and the port.
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    /// Bytes of a frame, from its Ethernet header to its end.
    #[arg(long, default_value_t = 128)]
    size: usize,
    /// Flows: source ports that are taken in turn.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    flows: u32,
    /// The first source port.
    #[arg(long, default_value_t = 5_000)]
    first_port: u16,
    /// How long.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Frames a second; without it as many as there can be.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// CPU to run on.
    #[arg(long, default_value_t = 0)]
    cpu: usize,
    /// Send the frames in OVN's Geneve, from this node's address.
    #[arg(long, value_name = "ADDRESS", requires = "tunnel_to")]
    tunnel_from: Option<Ipv4Addr>,
    /// In Geneve: to the address of this node.
    #[arg(long, value_name = "ADDRESS", requires = "tunnel_from")]
    tunnel_to: Option<Ipv4Addr>,
    /// In Geneve: tunnel key of the datapath.
    #[arg(long, default_value_t = 1, requires = "tunnel_to")]
    vni: u8,
    /// In Geneve: tunnel keys of the ports of sender and receiver.
    #[arg(long, value_delimiter = ',', num_args = 2, default_values_t = [1, 2], requires = "tunnel_to")]
    keys: Vec<u16>,
    /// In Geneve: MAC address that the inner frame is for.
    #[arg(long, requires = "tunnel_to")]
    inner_mac: Option<MacAddr>,
}

/// What came of it.
struct Sent {
    frames: u64,
    time: Duration,
    /// What the interface counts as sent.
    by_interface: u64,
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        ensure!(
            u32::from(self.first_port) + self.flows <= 1 << 16,
            "--first-port {} and --flows {}: there are no ports above 65535",
            self.first_port,
            self.flows
        );
        let index = nix::net::if_::if_nametoindex(self.interface.as_str())
            .with_context(|| format!("--interface {}: there is no such interface", self.interface))?;
        let frame = Frame::new(&self.wanted()?)?;
        let mut set = CpuSet::new();
        set.set(self.cpu).with_context(|| format!("--cpu {}", self.cpu))?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)
            .with_context(|| format!("--cpu {}: there is no such CPU", self.cpu))?;
        let mut programs = self.programs(&frame)?;
        let sent = self.send(&mut programs, &frame, index)?;
        let name = &self.interface;
        // Something else may be sent beside it.
        if sent.by_interface * LEAST < sent.frames {
            bail!(
                "{name} took {} of {} frames: its driver takes none from XDP, or it is down; a veth takes them while its other end has an XDP \
                 program or GRO (`ethtool -K PEER gro on`)",
                sent.by_interface,
                sent.frames
            );
        }
        let seconds = sent.time.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a count to be told")]
        let rate = sent.by_interface as f64 / seconds;
        writeln!(
            std::io::stdout(),
            "{} frames made in {seconds:.2} s, {} sent by {name}: {rate:.0} a second, {:.1} ns each",
            sent.frames,
            sent.by_interface,
            1e9 / rate
        )?;
        Ok(())
    }

    fn wanted(&self) -> Result<Wanted> {
        let own = counter(&self.interface, "address")?;
        let own: MacAddr = own.parse().with_context(|| format!("MAC address of {}", self.interface))?;
        let (outer, keys) = ((own.0, self.mac.0), &self.keys);
        let tunnel = self.tunnel_from.zip(self.tunnel_to).map(|(from, to)| {
            let [a, b] = keys[0].to_be_bytes();
            let [c, d] = keys[1].to_be_bytes();
            Tunnel { macs: outer, from: from.octets(), to: to.octets(), vni: self.vni, keys: [a, b, c, d] }
        });
        let macs = match (tunnel, self.inner_mac) {
            (Some(_), Some(inner)) => (own.0, inner.0),
            _ => outer,
        };
        Ok(Wanted { macs, from: self.from, to: self.to, length: self.size, tunnel })
    }

    fn programs(&self, frame: &Frame) -> Result<Ebpf> {
        let word = |number: usize| u32::try_from(number).context("an offset");
        let words = word(frame.bytes.len().min(FRONT) / 8)?;
        let vary = [
            words,
            word(frame.port_at)?,
            self.flows,
            self.first_port.into(),
            word(frame.checksum_at)?,
            frame.sum.into(),
        ];
        let front = live_frames::front(&frame.bytes);
        let mut programs = EbpfLoader::new()
            .override_global("FRAME", &front[..], true)
            .override_global("VARY", &vary[..], true)
            .load(OBJECT)
            .context("the benchmark's programs")?;
        xdp(&mut programs, "flood")?.load().context("the program that makes frames")?;
        Ok(programs)
    }

    fn send(&self, programs: &mut Ebpf, frame: &Frame, index: u32) -> Result<Sent> {
        let program = xdp(programs, "flood")?;
        let before = self.sent()?;
        let (start, limit) = (Instant::now(), Duration::from_secs(self.seconds));
        let mut frames = 0;
        while start.elapsed() < limit {
            let portion = portion(self.rate, start.elapsed(), frames);
            if portion == 0 {
                std::thread::sleep(Duration::from_micros(50));
                continue;
            }
            live_frames::run(program, &frame.bytes, index, portion)
                .with_context(|| format!("--interface {}", self.interface))?;
            frames += u64::from(portion);
        }
        Ok(Sent { frames, time: start.elapsed(), by_interface: self.sent()? - before })
    }

    fn sent(&self) -> Result<u64> {
        let text = counter(&self.interface, "statistics/tx_packets")?;
        text.parse().with_context(|| format!("packets sent by {}: {text:?}", self.interface))
    }
}

/// How many frames come next after so many in this time. `rate`: frames a second.
fn portion(rate: Option<u64>, elapsed: Duration, frames: u64) -> u32 {
    let Some(rate) = rate else { return PORTION };
    let due = elapsed.as_micros() * u128::from(rate) / 1_000_000 + 1;
    let missing = due.saturating_sub(frames.into());
    u32::try_from(missing).unwrap_or(PORTION).min(PORTION)
}

/// What the kernel says of an interface (sysfs-class-net).
fn counter(interface: &str, file: &str) -> Result<String> {
    let path = Path::new("/sys/class/net").join(interface).join(file);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_on_average_and_bounded_for_a_moment() {
        assert_eq!(portion(None, Duration::ZERO, 7), PORTION);
        assert_eq!(portion(Some(1_000), Duration::from_millis(10), 0), 11);
        assert_eq!(portion(Some(1_000), Duration::from_millis(10), 11), 0);
        assert_eq!(portion(Some(u64::MAX), Duration::from_secs(86_400), 0), PORTION);
    }
}
