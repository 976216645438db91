//! `slipctl compare`: a service on both paths in turn, on the traffic that it has.
//!
//! The paths take turns, in an order that cancels a steady change of the traffic (`ovs ebpf ebpf ovs …`). The agent lends each path for a
//! limited time only: what it was before comes back by itself when this process is killed.

mod cpu;
mod figures;
mod interrupt;
pub(crate) mod show;

use std::time::Duration;

use api::admin::{self as wire, Path, ServicePath, ServicePathRequest, ServiceTotals, ServiceTotalsRequest};

use crate::client::{Client, Error};
use cpu::CpuTime;
pub(crate) use figures::Comparison;
use figures::Slice;
use interrupt::{Interrupted, Interrupts};

/// Seconds to measure on each path, if nothing else is asked for.
pub(crate) const SECONDS: u64 = 12;
/// Parts of the time on each path.
const ROUNDS: u32 = 3;
/// Time after a change of the path that is not measured: entries are learned again.
const SETTLE: Duration = Duration::from_secs(1);
/// How much longer than needed a path is lent.
const SPARE: Duration = Duration::from_secs(10);

/// Measures the service `name`, for `time` on each path.
///
/// # Errors
/// The agent cannot do it, or a signal came. The service's path is as before in any case, or will be within [`SPARE`] and the time of
/// one part.
pub(crate) fn run(client: &Client, name: &str, time: Duration) -> Result<Comparison, Error> {
    let before = path(client, ServicePathRequest { service: name.to_owned(), path: None, for_ms: None })?;
    may_compare(&before)?;
    let interrupts = Interrupts::catch().map_err(|error| Error::Interrupted(error.to_string()))?;
    let measured = measure(client, &before.service, time / ROUNDS, &interrupts);
    let restored =
        path(client, ServicePathRequest { service: before.service.clone(), path: None, for_ms: Some(0) });
    // The first error says more.
    let slices = measured.map_err(|error| match error {
        Failed::Client(error) => error,
        Failed::Interrupted => Error::Interrupted(match &restored {
            Ok(now) => format!("the path of {} is {} as before", now.service, now.path.path.name()),
            Err(error) => format!("the path of {name} will be as before in a moment: {error}"),
        }),
    })?;
    restored?;
    Ok(Comparison::new(before, &slices))
}

/// Why a measurement ended early.
enum Failed {
    Client(Error),
    Interrupted,
}

impl From<Interrupted> for Failed {
    fn from(_: Interrupted) -> Self {
        Self::Interrupted
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

fn measure(
    client: &Client,
    name: &str,
    part: Duration,
    interrupts: &Interrupts,
) -> Result<Vec<Slice>, Failed> {
    let loan = u64::try_from((part + SETTLE + SPARE).as_millis()).unwrap_or(u64::MAX);
    let sleep = |time| interrupts.sleep(time).map_err(Failed::from);
    let mut slices = Vec::new();
    for round in 0..ROUNDS {
        let order = if round % 2 == 0 { [Path::Ovs, Path::Ebpf] } else { [Path::Ebpf, Path::Ovs] };
        for wanted in order {
            let request =
                ServicePathRequest { service: name.to_owned(), path: Some(wanted), for_ms: Some(loan) };
            path(client, request)?;
            sleep(SETTLE)?;
            let begin = (totals(client, name)?, CpuTime::now());
            sleep(part)?;
            let end = (totals(client, name)?, CpuTime::now());
            if end.0.at_ms < begin.0.at_ms {
                let message = "the agent was restarted in the middle of the measurement".to_owned();
                return Err(Failed::Client(Error::Refused { status: 409, message }));
            }
            let cpu = begin.1.zip(end.1).and_then(|(begin, end)| end.busy_since(begin));
            slices.push(Slice::between(wanted, round, &begin.0, &end.0, cpu));
        }
    }
    Ok(slices)
}

fn path(client: &Client, request: ServicePathRequest) -> Result<ServicePath, Error> {
    serde_json::from_value(client.post(wire::PATH_SERVICE, &request)?).map_err(Error::not_understood)
}

fn totals(client: &Client, name: &str) -> Result<ServiceTotals, Error> {
    let request = ServiceTotalsRequest { service: name.to_owned() };
    serde_json::from_value(client.post(wire::SERVICE_TOTALS, &request)?).map_err(Error::not_understood)
}

/// Whether there are two paths to compare, and nobody else does.
fn may_compare(before: &ServicePath) -> Result<(), Error> {
    let refused = |message| Err(Error::Refused { status: 409, message });
    let ServicePath { service, wanted, temporary, path, .. } = before;
    if *temporary {
        return refused(format!("{service} is being compared already: {}", path.reason));
    }
    if *wanted == Path::Ebpf && path.path == Path::Ovs {
        return refused(format!("the flow cache carries nothing of {service} on this node: {}", path.reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_compared_by_one_at_a_time_and_where_there_are_two_paths() {
        let of = |wanted, temporary, path, reason: &str| ServicePath {
            service: "shop/web".to_owned(),
            wanted,
            temporary,
            path: wire::PathStatus { path, reason: reason.to_owned() },
            addresses: Vec::new(),
        };
        assert!(may_compare(&of(Path::Ebpf, false, Path::Ebpf, "")).is_ok());
        assert!(may_compare(&of(Path::Ovs, false, Path::Ovs, "requested")).is_ok());
        let error = may_compare(&of(Path::Ebpf, true, Path::Ebpf, "")).unwrap_err().to_string();
        assert!(error.contains("shop/web is being compared"), "{error}");
        let error = may_compare(&of(Path::Ebpf, false, Path::Ovs, "no eBPF")).unwrap_err().to_string();
        assert!(error.contains("no eBPF"), "{error}");
    }
}
