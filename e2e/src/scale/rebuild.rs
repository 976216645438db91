//! Part of suite `scale`: the northbound database is lost, and comes back empty.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};

use super::digest::Digest;
use super::figures::Figures;
use super::run::Run;
use super::{SOCKET, eventually, journal, told, told_text};
use crate::harness::Checks;
use testbed::cluster::config::{CENTRAL_IP, NB_PORT};
use testbed::exec;

const FILE: &str = "/run/ovn/ovnnb_db.db";
/// What the controller's log says when a session with the database ends.
const SESSION_ENDED: &str = "OVSDB session ended";

pub(super) async fn run(run: &mut Run<'_>, checks: &mut Checks, figures: &mut Figures) -> Result<()> {
    let (controller, limit) = (run.controller, run.limit());
    let socket = run.bed.host("central").path(SOCKET)?;
    let before = Digest::take(&socket).await?;
    figures.note("rows of NB", before.rows().to_string());
    let (pid, holder) = (controller.pid()?, controller.holder(&run.client).await?);
    empty(run)?;
    // By its socket: from outside the database can be reached only when it says where it listens, which is next. So no
    // transaction of the controller is missed.
    let watch = run.watch().await?;
    let from = controller.log_length();
    let begin = Instant::now();
    listen(run)?;
    let world = &run.world;
    let ports = eventually(limit, "every pod has its row again", || {
        let ports = watch.ports();
        if ports == world.pods.len() { Ok(()) } else { Err(anyhow!("{ports} of {}", world.pods.len())) }
    });
    let ports = ports.await;
    checks.check("NB lost: every pod has its row again", told(ports));
    let settled = controller.settled(limit).await;
    checks.check("NB lost: the controller says that it is done", told(settled));
    figures.time("NB empty → all there", watch.last().unwrap_or(begin) - begin);
    figures.time("NB empty → the controller is ready", begin.elapsed());
    checks.check("NB lost: it holds what the objects say", run.is_right(&watch, limit).await);
    let same = Digest::take(&socket).await.and_then(|after| before.equals(&after));
    checks.check("NB lost: every row is as it was", told(same));
    let file = run.bed.host("central").path(FILE)?;
    let closed = watch.never_open().and_then(|_| journal::never_open(&file, &run.world));
    checks.check("NB lost: no pod that a policy isolates was open at any moment", told_text(closed));
    checks.check("NB lost: the connection held while it was filled", {
        told(controller.never_said(from, SESSION_ENDED))
    });
    let after = (controller.pid()?, controller.holder(&run.client).await?);
    checks.check("NB lost: the lease was kept, by the same process", {
        let same = after == (pid, holder.clone());
        told(if same { Ok(()) } else { Err(anyhow!("{pid} {holder:?} before, {after:?} after")) })
    });
    for (what, metric, bound) in [
        ("largest transaction, operations", "nb_transaction_operations_max", 6_000),
        ("largest transaction, bytes", "nb_transaction_bytes_max", 2_000_000),
    ] {
        let value = controller.metric(metric);
        figures.note(what, value.as_ref().map_or_else(|_| "unknown".to_owned(), u64::to_string));
        let outcome = value.and_then(|value| {
            // The server does nothing else meanwhile, and at ten seconds of silence it is given up.
            ensure!(value <= bound, "{value}");
            Ok(value.to_string())
        });
        checks.check(format_args!("NB lost: {what}, at most {bound}"), told_text(outcome));
    }
    let peak = run.peak("largest memory of the controller, after NB was lost", figures)?;
    figures.at_most(checks, "largest memory of the controller", f64::from(u32::try_from(peak)?), 400.0, "MB");
    run.done("NB made again from nothing");
    Ok(())
}

/// Ends the database's server and starts it again with a database that was never used.
fn empty(run: &Run<'_>) -> Result<()> {
    let central = run.bed.host("central");
    central.kill("ovsdb-nb")?;
    let file = central.path(FILE)?;
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    let config = run.bed.config();
    let mut create = central.command(config.ovs("ovsdb-tool"))?;
    exec::output(create.args(["create", FILE]).arg(config.schema("ovn-nb.ovsschema")))?;
    central.restart("ovsdb-nb")
}

/// Lets the database be reached from other hosts.
fn listen(run: &Run<'_>) -> Result<()> {
    let target = format!("ptcp:{NB_PORT}:{CENTRAL_IP}");
    let connection = ["set-connection", &target, "--", "set", "connection", ".", "inactivity_probe=0"];
    run.bed.nbctl(&[&["init", "--"], &connection[..]].concat()).map(drop)
}
