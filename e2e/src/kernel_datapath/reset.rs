//! A reset at the end of a connection that carried more than 2 GiB on the fast path. The kernel's connection tracking has not seen most
//! of it, and would drop the reset if it compared sequence numbers.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::demo::Pods;
use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::exec;
use testbed::traffic::{self, Place};

/// Where the receiver listens. No policy says anything of it.
const PORT: &str = "7200";

/// Runs it and checks.
pub(super) fn check(bed: &Bed, checks: &mut Checks) {
    let outcome = connection(bed).map_err(|error| format!("{error:#}"));
    checks.check("a reset after 3 GiB arrives", outcome);
}

fn connection(bed: &Bed) -> Result<String> {
    let (_, far) = Pods::list(bed)?.find("web-2")?;
    let silence = exec::patient(Duration::from_secs(20)).as_secs().to_string();
    let receiver = probe(bed, "n2", "web-2")?
        .args([PORT, "--silence", &silence])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the receiver")?;
    let sent = exec::retry(exec::patient(Duration::from_secs(10)), "the receiver listens", || {
        exec::output(probe(bed, "n1", "client")?.args([PORT, "--to", &far.to_string()]))
    })?;
    let said = String::from_utf8(receiver.wait_with_output()?.stdout)?;
    ensure!(said.starts_with("reset"), "{}; the receiver: {}", sent.trim(), said.trim());
    Ok(format!("{}; {}", sent.trim(), said.trim()))
}

fn probe(bed: &Bed, node: &str, name: &str) -> Result<Command> {
    let place = Place::Pod { node: node.into(), namespace: "shop".into(), name: name.into() };
    let mut command = traffic::command(bed, &place, &bed.config().program("testbed"))?;
    command.args(["probe", "reset"]);
    Ok(command)
}
