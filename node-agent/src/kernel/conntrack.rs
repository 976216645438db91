//! The kernel's connection tracking table, through `conntrack(8)`.

use std::process::Stdio;

use anyhow::{Context, bail};

/// Deletes the entries of UDP to destination `port`, in the namespace of the process. No such entry is a success.
///
/// # Errors
/// `conntrack` cannot be started, or fails otherwise than by finding nothing.
#[expect(clippy::disallowed_methods, reason = "conntrack(8); started when host ports of UDP change only")]
pub async fn forget(port: u16) -> anyhow::Result<()> {
    let output = tokio::process::Command::new("conntrack")
        .args(["-D", "-p", "udp", "--orig-port-dst", &port.to_string()])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot start `conntrack`; the conntrack package is needed for host ports of UDP")?;
    let told = String::from_utf8_lossy(&output.stderr);
    // It fails as well when there was nothing to delete.
    if !output.status.success() && !told.contains("0 flow entries") {
        bail!("conntrack -D for UDP port {port}: {}", told.trim());
    }
    Ok(())
}
