//! Whether OVS's connection tracking takes TCP flows back that went by the fast path, of which it has not seen all.
//!
//! The userspace datapath compares sequence numbers; that is turned off. The kernel's is told by OVS to be liberal, but it still
//! compares those of RST with the last one that it has seen acknowledged. After more than 2 GiB on the fast path that is as good as
//! any, and an RST may be thrown away: the other end would wait for ever. A setting of the kernel turns that off
//! (`nf_conntrack_tcp_ignore_invalid_rst`, Linux 5.14). Both are read back, and while they are not so TCP has no fast path.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::flow_cache::invalidation::{Input, Tracking};
use crate::flow_cache::manager::Shared;
use crate::ovs::unixctl::{Unixctl, UnixctlError};

/// The userspace datapath.
const USERSPACE: &str = "netdev@ovs-netdev";
/// The kernel's setting, of the agent's network namespace, which is OVS's.
const IGNORE_RST: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_ignore_invalid_rst";
/// How often the kernel's setting is looked at: anybody may change it.
const LOOK: Duration = Duration::from_secs(5);

/// Whose connection tracking it is.
pub(in crate::flow_cache) enum Of {
    /// OVS's own.
    Userspace {
        /// How OVS is asked.
        unixctl: Option<Unixctl>,
        /// For a test: the check stays on.
        keep: bool,
    },
    /// The kernel's.
    Kernel,
}

/// Keeps the setting as it must be, and tells how it is.
pub(in crate::flow_cache) async fn follow(shared: Arc<Shared>, of: Of) {
    match of {
        Of::Userspace { unixctl, keep } => userspace(shared, unixctl, keep).await,
        Of::Kernel => kernel(shared, PathBuf::from(IGNORE_RST)).await,
    }
}

/// Lets the kernel take RST of any sequence number, and looks again and again.
async fn kernel(shared: Arc<Shared>, setting: PathBuf) {
    loop {
        let tracking = match ignore_rst(&setting) {
            Ok(()) => Tracking::Tolerant,
            Err(why) => Tracking::Strict(why),
        };
        if shared.tracking() != tracking {
            match &tracking {
                Tracking::Strict(why) => tracing::warn!(why, "TCP takes the slow path"),
                _ => tracing::info!("the kernel's connection tracking takes flows back"),
            }
            shared.take(Input::Tracking(tracking));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Turns the setting on if it is not, and reads it back. The error says why not.
fn ignore_rst(setting: &Path) -> Result<(), String> {
    let read = || {
        std::fs::read_to_string(setting).map(|text| text.trim() == "1").map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::NotFound => " (Linux 5.14 has it, once nf_conntrack is loaded)",
                _ => "",
            };
            format!("cannot read {}: {error}{hint}", setting.display())
        })
    };
    if read()? {
        return Ok(());
    }
    let failed = |error| format!("cannot write 1 to {}: {error}", setting.display());
    std::fs::write(setting, "1").map_err(failed)?;
    if read()? { Ok(()) } else { Err(format!("{} is not 1 although 1 was written", setting.display())) }
}

/// Turns the sequence check of the userspace datapath's connection tracking off, and makes sure that it is.
async fn userspace(shared: Arc<Shared>, unixctl: Option<Unixctl>, keep: bool) {
    if keep {
        tracing::error!("asked for by a test: TCP gets no fast path");
    }
    let Some(unixctl) = unixctl else {
        let why = "ovs-vswitchd is not on this machine, so its sequence check cannot be turned off";
        shared.take(Input::Tracking(Tracking::Strict(why.to_owned())));
        return;
    };
    loop {
        let lives = shared.lives();
        match turn_check_off(&unixctl, keep).await {
            Ok(()) => {
                if shared.tracking() != Tracking::Tolerant {
                    tracing::info!("OVS's connection tracking does not compare sequence numbers");
                }
                if shared.take_tracking(lives, Tracking::Tolerant) {
                    shared.ovs_is_new.notified().await;
                }
            }
            Err(why) => {
                let strict = Tracking::Strict(why.clone());
                if shared.tracking() != strict {
                    tracing::warn!(why, "TCP takes the slow path");
                    shared.take_tracking(lives, strict);
                }
                let _ = tokio::time::timeout(Duration::from_secs(1), shared.ovs_is_new.notified()).await;
            }
        }
    }
}

/// An error is OVS's refusal. While it cannot be asked, and while the datapath is not there, this goes on asking.
async fn turn_check_off(unixctl: &Unixctl, keep: bool) -> Result<(), String> {
    const SOON: Duration = Duration::from_secs(5);
    const COMMANDS: [&str; 2] = ["dpctl/ct-disable-tcp-seq-chk", "dpctl/ct-get-tcp-seq-chk"];
    let began = Instant::now();
    loop {
        let asked = async {
            if !keep {
                unixctl.call(COMMANDS[0], &[USERSPACE], SOON).await?;
            }
            unixctl.call(COMMANDS[1], &[USERSPACE], SOON).await
        };
        let refusal = match asked.await {
            Ok(answer) if answer.contains("disabled") => return Ok(()),
            Ok(answer) => format!("OVS compares sequence numbers all the same: {}", answer.trim()),
            Err(UnixctlError::Refused { message, .. }) => format!("OVS does not stop to compare: {message}"),
            // It is not there, or does not answer: the monitor knows that too.
            Err(error) => {
                tracing::debug!(%error, "sequence check");
                String::new()
            }
        };
        // A new ovs-vswitchd has its datapath a moment after its socket.
        if !refusal.is_empty() && began.elapsed() >= Duration::from_secs(2) {
            return Err(refusal);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_setting_is_turned_on_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let setting = dir.path().join("ignore_invalid_rst");
        let absent = ignore_rst(&setting).unwrap_err();
        assert!(absent.contains("cannot read") && absent.contains("5.14"), "{absent}");
        assert!(!setting.exists(), "nothing is made");
        for text in ["0\n", "1\n"] {
            std::fs::write(&setting, text).unwrap();
            assert_eq!(ignore_rst(&setting), Ok(()));
            assert_eq!(std::fs::read_to_string(&setting).unwrap().trim(), "1");
        }
        // What is written is not taken.
        assert!(ignore_rst(Path::new("/dev/null")).unwrap_err().contains("although 1 was written"));
    }
}
