//! Keeps TCP sequence checks of OVS's connection tracking off, so that it accepts connections whose packets partly bypassed it on
//! the fast path.
//!
//! Userspace datapath: `dpctl/ct-disable-tcp-seq-chk`. Kernel datapath: OVS sets conntrack to liberal, but it still compares the
//! sequence number of an RST with the last acknowledged one it has seen. After more than 2 GiB on the fast path the comparison is
//! meaningless, and a dropped RST leaves the peer waiting. `nf_conntrack_tcp_ignore_invalid_rst` (Linux 5.14) turns that off. Both
//! settings are read back; while they are not in effect, TCP takes the slow path.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::flow_cache::invalidation::{Input, Tracking};
use crate::flow_cache::state::Shared;
use crate::ovs::unixctl::{Unixctl, UnixctlError};

/// Name of the userspace datapath in `dpctl` commands.
const USERSPACE: &str = "netdev@ovs-netdev";
/// Setting of the kernel in the agent's network namespace, which OVS shares.
const IGNORE_RST: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_ignore_invalid_rst";
/// Interval at which the kernel setting is checked, as other processes may change it.
const LOOK: Duration = Duration::from_secs(5);

/// Connection tracking implementation.
pub(in crate::flow_cache) enum Of {
    /// OVS's userspace datapath.
    Userspace {
        /// Control socket of ovs-vswitchd.
        unixctl: Option<Unixctl>,
        /// Fault injection: leave the check on.
        keep: bool,
    },
    /// Netfilter conntrack.
    Kernel,
}

/// Keeps the sequence check off and reports its state to the state machine. Never returns, except without a control socket.
pub(in crate::flow_cache) async fn follow(shared: Arc<Shared>, of: Of) {
    match of {
        Of::Userspace { unixctl, keep } => userspace(shared, unixctl, keep).await,
        Of::Kernel => kernel(shared, PathBuf::from(IGNORE_RST)).await,
    }
}

/// Keeps `nf_conntrack_tcp_ignore_invalid_rst` on.
async fn kernel(shared: Arc<Shared>, setting: PathBuf) {
    loop {
        let tracking = match ignore_rst(&setting) {
            Ok(()) => Tracking::Tolerant,
            Err(why) => Tracking::Strict(why.to_string()),
        };
        if shared.tracking() != tracking {
            match &tracking {
                Tracking::Strict(why) => tracing::warn!(why, "TCP flows take the slow path"),
                _ => tracing::info!(
                    "kernel connection tracking accepts RST packets of any sequence number; TCP flows may be cached"
                ),
            }
            shared.take(Input::Tracking(tracking));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Why TCP packets of any sequence number are not known to be accepted.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("cannot read {}: {source}{}", setting.display(), hint(source))]
    Read { setting: PathBuf, source: io::Error },
    #[error("cannot write 1 to {}: {source}", setting.display())]
    Write { setting: PathBuf, source: io::Error },
    #[error("{} is not 1 after writing 1", setting.display())]
    NotKept { setting: PathBuf },
    #[error(
        "no unixctl socket of ovs-vswitchd on this node; the TCP sequence check of its connection tracking cannot be disabled"
    )]
    NoSocket,
    #[error("the TCP sequence check of OVS's connection tracking is still on: {answer}")]
    StillOn { answer: String },
    #[error("OVS rejects {method}: {message}")]
    Refused { method: String, message: String },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => " (needs Linux 5.14 or later with module nf_conntrack loaded)",
        _ => "",
    }
}

/// Turns the setting on if it is off, and reads it back.
///
/// # Errors
/// Why the setting is off.
fn ignore_rst(setting: &Path) -> Result<(), CheckError> {
    let setting = setting.to_path_buf();
    let read = || match std::fs::read_to_string(&setting) {
        Ok(text) => Ok(text.trim() == "1"),
        Err(source) => Err(CheckError::Read { setting: setting.clone(), source }),
    };
    if read()? {
        return Ok(());
    }
    let failed = |source| CheckError::Write { setting: setting.clone(), source };
    std::fs::write(&setting, "1").map_err(failed)?;
    if read()? { Ok(()) } else { Err(CheckError::NotKept { setting }) }
}

/// Keeps the TCP sequence check of the userspace datapath's connection tracking off.
async fn userspace(shared: Arc<Shared>, unixctl: Option<Unixctl>, keep: bool) {
    if keep {
        tracing::error!("fault injection: the TCP sequence check stays on; TCP flows take the slow path");
    }
    let Some(unixctl) = unixctl else {
        shared.take(Input::Tracking(Tracking::Strict(CheckError::NoSocket.to_string())));
        return;
    };
    loop {
        let lives = shared.lives();
        match turn_check_off(&unixctl, keep).await {
            Ok(()) => {
                if shared.tracking() != Tracking::Tolerant {
                    tracing::info!("TCP sequence check of OVS's connection tracking is off");
                }
                if shared.take_tracking(lives, Tracking::Tolerant) {
                    shared.ovs_is_new.notified().await;
                }
            }
            Err(why) => {
                let why = why.to_string();
                let strict = Tracking::Strict(why.clone());
                if shared.tracking() != strict {
                    tracing::warn!(why, "TCP flows take the slow path");
                    shared.take_tracking(lives, strict);
                }
                let _ = tokio::time::timeout(Duration::from_secs(1), shared.ovs_is_new.notified()).await;
            }
        }
    }
}

/// Disables the check and reads it back; retries while ovs-vswitchd or its datapath is not available.
///
/// # Errors
/// OVS has rejected the command, or reported the check as enabled, for 2 s.
async fn turn_check_off(unixctl: &Unixctl, keep: bool) -> Result<(), CheckError> {
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
            Ok(answer) => Some(CheckError::StillOn { answer: answer.trim().to_owned() }),
            Err(UnixctlError::Refused { method, message }) => Some(CheckError::Refused { method, message }),
            // ovs-vswitchd is not available; the flow monitor reports that.
            Err(error) => {
                tracing::debug!(%error, "cannot query the TCP sequence check");
                None
            }
        };
        // A starting ovs-vswitchd opens its socket before it creates its datapath.
        if let Some(refusal) = refusal
            && began.elapsed() >= Duration::from_secs(2)
        {
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
        let absent = ignore_rst(&setting).unwrap_err().to_string();
        assert!(absent.contains("cannot read") && absent.contains("5.14"), "{absent}");
        assert!(!setting.exists(), "nothing is made");
        for text in ["0\n", "1\n"] {
            std::fs::write(&setting, text).unwrap();
            ignore_rst(&setting).unwrap();
            assert_eq!(std::fs::read_to_string(&setting).unwrap().trim(), "1");
        }
        // Writes have no effect.
        assert!(ignore_rst(Path::new("/dev/null")).unwrap_err().to_string().contains("after writing 1"));
    }
}
