//! The eBPF programs of the uplink, as the take-over sees them.

use parking_lot::Mutex;

use super::takeover::UplinkPrograms;
use crate::bpf::{Datapath, Mode};

impl UplinkPrograms for Mutex<Datapath> {
    fn attach(&self, uplink: u32, shim: Option<(u32, u32)>) -> anyhow::Result<()> {
        let mode = match shim {
            Some((agent_end, ovs_end)) => Mode::Interposed { agent_end, ovs_end },
            None => Mode::Direct,
        };
        Ok(self.lock().set_uplink(uplink, mode)?)
    }

    fn detach(&self) -> anyhow::Result<()> {
        Ok(self.lock().clear_uplink()?)
    }
}
