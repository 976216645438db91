//! Kernel connection tracking table, accessed through conntrack(8).

use std::process::Stdio;

use anyhow::{Context, bail};

/// Deletes UDP entries with destination `port` in the namespace of the process. Missing entries are not an error.
///
/// # Errors
/// `conntrack` cannot be started, or fails for another reason than missing entries.
#[expect(clippy::disallowed_methods, reason = "conntrack(8); started when host ports of UDP change only")]
pub async fn forget(port: u16) -> anyhow::Result<()> {
    let output = tokio::process::Command::new("conntrack")
        .args(["-D", "-p", "udp", "--orig-port-dst", &port.to_string()])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cannot run `conntrack`; install the conntrack package, which UDP host ports require")?;
    let told = String::from_utf8_lossy(&output.stderr);
    // It also fails when there is nothing to delete.
    if !output.status.success() && !told.contains("0 flow entries") {
        bail!("conntrack -D for UDP port {port}: {}", told.trim());
    }
    Ok(())
}
