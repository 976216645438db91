//! Audit: traces a packet of a flow through OVS (`ofproto/trace`) and compares the result with the cached entry.
//!
//! A trace without a packet has no side effects in OVS. The connection tracking state is read from the datapath, zone by zone, as
//! the trace needs it.
//!
//! `subject` builds the packet; `trace`, `actions` and `conntrack` parse OVS's output; `compare` yields the verdict. All are pure;
//! the I/O is in this file.

mod actions;
mod compare;
mod conntrack;
mod question;
mod subject;
mod trace;

use crate::flow_cache::CacheError;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use conntrack::State;
use subject::{Cached, Subject};
use trace::Traced;

use super::error::AdminError;
use super::naming::Naming;
use super::view::View;
use crate::flow_cache::Flow;
use crate::ovs::unixctl::{Unixctl, UnixctlError};
use api::admin::{AuditReply, AuditRequest, Audited, DEFAULT_FLOWS, Outcome, Verdict};
use api::ovn_name::INTEGRATION_BRIDGE;

/// Timeout for a command to OVS.
const ANSWER: Duration = Duration::from_secs(10);

/// Maximum number of passes through connection tracking.
const PASSES: usize = 16;

/// Delay before a differing verdict is checked again, as an OVS change may be on its way to the cache.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Access of an audit to OVS.
struct Ovs {
    unixctl: Unixctl,
    /// Names of the datapath ports by number.
    ports: BTreeMap<String, String>,
    /// True for the kernel datapath.
    kernel: bool,
}

/// Verdict of OVS with the commands that led to it.
#[derive(Debug, Default)]
struct Answer {
    traced: Option<Traced>,
    asked: Vec<String>,
    /// Why the verdict for a real packet may differ.
    doubts: Vec<String>,
}

/// Audits one flow or all valid ones.
///
/// # Errors
/// The request is invalid, or ovs-vswitchd cannot be queried.
pub async fn audit(view: &Arc<dyn View>, request: AuditRequest) -> Result<AuditReply, AdminError> {
    let limit = request.limit.unwrap_or(DEFAULT_FLOWS);
    if limit == 0 {
        return Err(AdminError::Bad("limit `0`: must be at least 1".to_owned()));
    }
    let unixctl = view.unixctl().ok_or_else(|| {
        AdminError::Cannot(
            "OVS is not on this node (--ovs-db is not a unix socket), so flows cannot be traced".to_owned(),
        )
    })?;
    let ports = unixctl.call("dpif/show", &[], ANSWER).await.map_err(failed)?;
    let ovs = Ovs { unixctl, ports: compare::ports(&ports), kernel: view.kernel_datapath() };
    let mut flows = Vec::new();
    for (subject, flow) in subjects(view, &request, limit).await? {
        flows.push(match subject {
            Ok(subject) => one(view, &ovs, &subject).await,
            Err(why) => unaskable(flow, why, &view.naming()),
        });
    }
    let count = |verdict| flows.iter().filter(|flow| flow.verdict == verdict).count();
    let (same, different, undecided) =
        (count(Verdict::Same), count(Verdict::Different), count(Verdict::Undecided));
    Ok(AuditReply { flows, same, different, undecided })
}

type Asked = (Result<Subject, String>, Option<Flow>);

/// Subjects of the request: entries of the cache, or the given flow.
async fn subjects(
    view: &Arc<dyn View>,
    request: &AuditRequest,
    limit: usize,
) -> Result<Vec<Asked>, AdminError> {
    let (wanted, naming) = (request.flow, view.naming());
    let mut list = cached(view, usize::MAX).await?;
    match wanted {
        Some(wanted) => list.retain(|flow| super::flow_spec::spec(flow) == Some(wanted)),
        None => list.retain(|flow| flow.valid),
    }
    list.truncate(limit);
    if let (Some(wanted), true) = (wanted, list.is_empty()) {
        return Ok(vec![(Ok(Subject::described(wanted, &naming, view.ports())?), None)]);
    }
    let subjects = list.into_iter().map(|flow| (Subject::cached(&flow, &naming, view.ports()), Some(flow)));
    Ok(subjects.collect())
}

/// Flows of the cache; empty without a cache. Flows of an endpoint that diverged in this epoch count as not valid.
async fn cached(view: &Arc<dyn View>, limit: usize) -> Result<Vec<Flow>, AdminError> {
    let Some(cache) = view.flow_cache() else { return Ok(Vec::new()) };
    let read = move || {
        let mut list = cache.flows(limit)?;
        let off = super::collect::diverged(&cache.endpoints()?, cache.epoch()?);
        list.iter_mut().filter(|flow| off.contains(&flow.endpoint)).for_each(|flow| flow.valid = false);
        Ok::<_, AdminError>(list)
    };
    let list = tokio::task::spawn_blocking(read).await;
    list.unwrap_or_else(|e| Err(AdminError::Failed(e.to_string())))
}

fn failed(error: UnixctlError) -> AdminError {
    AdminError::Failed(error.to_string())
}

fn unaskable(flow: Option<Flow>, why: String, naming: &Naming) -> Audited {
    let spec = flow.as_ref().and_then(super::flow_spec::spec);
    let unknown = api::admin::FlowSpec {
        protocol: api::admin::CachedProtocol::Udp,
        source: ([0; 4], 0).into(),
        destination: ([0; 4], 0).into(),
    };
    let endpoint = flow.as_ref().map(|flow| flow.endpoint.clone()).unwrap_or_default();
    Audited {
        pod: naming.pod(&endpoint),
        endpoint,
        flow: spec.unwrap_or(unknown),
        verdict: Verdict::Undecided,
        why: vec![why],
        remembered: flow.map(|flow| compare::remembered(&flow, naming)),
        ovs: None,
        asked: Vec::new(),
        datapath_actions: Vec::new(),
    }
}

/// Audits one flow. A persistent difference is reported as a divergence.
async fn one(view: &Arc<dyn View>, ovs: &Ovs, subject: &Subject) -> Audited {
    let mut audited = judge(view, ovs, subject).await;
    if audited.verdict != Verdict::Different {
        return tell(view, audited, None).await;
    }
    tokio::time::sleep(AGAIN_AFTER).await;
    match unchanged(view, subject).await {
        Ok(true) => audited = judge(view, ovs, subject).await,
        Ok(false) => {
            audited.verdict = Verdict::Undecided;
            audited.why.insert(0, "the cache changed during the audit; retry".to_owned());
        }
        Err(error) => {
            audited.verdict = Verdict::Undecided;
            audited.why.insert(0, error.to_string());
        }
    }
    let diverged = subject.cached.as_ref().filter(|c| c.valid && audited.verdict == Verdict::Different);
    tell(view, audited, diverged.map(|cached| cached.epoch)).await
}

/// Counts the result. A difference in an entry in use (of epoch `diverged`) keeps the endpoint on the slow path for that epoch, and
/// is logged with both verdicts.
async fn tell(view: &Arc<dyn View>, mut audited: Audited, diverged: Option<u32>) -> Audited {
    view.audited(audited.verdict, diverged.is_some());
    let (Some(epoch), Some(cache)) = (diverged, view.flow_cache()) else { return audited };
    let endpoint = audited.endpoint.clone();
    let done = tokio::task::spawn_blocking(move || cache.set_endpoint_diverged(&endpoint, epoch)).await;
    audited.why.push(match done.unwrap_or_else(|e| Err(CacheError::Programs(e.to_string()))) {
        Ok(()) => format!("the pod takes the slow path until the epoch is no longer {epoch}"),
        Err(error) => format!("cannot move the pod to the slow path: {error}"),
    });
    tracing::error!(
        pod = audited.pod.as_deref().unwrap_or("?"),
        container = audited.endpoint,
        flow = %audited.flow,
        epoch,
        why = audited.why.join("; "),
        remembered = ?audited.remembered,
        ovs = ?audited.ovs,
        asked = ?audited.asked,
        actions = ?audited.datapath_actions,
        "divergence: audit found an entry that differs from OVS's verdict"
    );
    audited
}

/// Whether the entry is unchanged, in the same epoch.
async fn unchanged(view: &Arc<dyn View>, subject: &Subject) -> Result<bool, AdminError> {
    let Some(before) = &subject.cached else { return Ok(true) };
    let naming = view.naming();
    Ok(cached(view, usize::MAX).await?.iter().any(|flow| {
        flow.endpoint == subject.container
            && super::flow_spec::spec(flow) == Some(subject.flow)
            && flow.epoch == before.epoch
            && flow.valid == before.valid
            && compare::remembered(flow, &naming) == before.outcome
    }))
}

async fn judge(view: &Arc<dyn View>, ovs: &Ovs, subject: &Subject) -> Audited {
    let naming = view.naming();
    let mut answer = Answer::default();
    let error = ask(ovs, subject, &mut answer).await.err();
    let question = &subject.question;
    let from_tunnel = matches!(question.entry, question::Entry::Tunnel { .. });
    let before = (question.source_mac.to_string(), question.destination_mac.to_string());
    let traced = answer.traced.as_ref();
    let outcome = traced.map(|t| compare::answered(t, &ovs.ports, &naming, before, from_tunnel));
    let remarks = traced.map(|t| t.remarks.clone()).unwrap_or_default();
    let (verdict, why) = verdict(subject.cached.as_ref(), outcome.as_ref(), &remarks, &answer.doubts, error);
    Audited {
        pod: naming.pod(&subject.container),
        endpoint: subject.container.clone(),
        flow: subject.flow,
        verdict,
        why,
        remembered: subject.cached.as_ref().map(|cached| cached.outcome.clone()),
        ovs: outcome,
        asked: answer.asked,
        datapath_actions: traced
            .map(|t| t.passes.iter().map(|pass| pass.actions.clone()).collect())
            .unwrap_or_default(),
    }
}

fn verdict(
    cached: Option<&Cached>,
    ovs: Option<&Outcome>,
    remarks: &[String],
    doubts: &[String],
    error: Option<String>,
) -> (Verdict, Vec<String>) {
    let undecided = |why: String| (Verdict::Undecided, vec![why]);
    match (cached, ovs, error) {
        (_, _, Some(error)) => undecided(error),
        (_, None, None) => undecided("no verdict from OVS".to_owned()),
        (None, Some(_), None) => undecided("the flow is not cached; the verdict of OVS is shown".to_owned()),
        (Some(cached), Some(ovs), None) => {
            let (mut verdict, mut why) = compare::compare(&cached.outcome, ovs, remarks);
            if !doubts.is_empty() && verdict != Verdict::Undecided {
                verdict = Verdict::Undecided;
                why.extend(doubts.iter().cloned());
            }
            if !cached.valid && verdict == Verdict::Different {
                why.push(format!("the entry (epoch {}) is not in use", cached.epoch));
            }
            (verdict, why)
        }
    }
}

/// Traces the packet, supplying the connection tracking state of each zone as the trace reaches it.
async fn ask(ovs: &Ovs, subject: &Subject, answer: &mut Answer) -> Result<(), String> {
    let mut question = subject.question.clone();
    let (mut states, mut found): (Vec<&'static str>, HashMap<u16, State>) = Default::default();
    for _ in 0..=PASSES {
        let spec = question.text();
        let mut params = vec![INTEGRATION_BRIDGE, spec.as_str()];
        params.extend(states.iter().flat_map(|state| ["--ct-next", state]));
        let text = ovs.unixctl.call("ofproto/trace", &params, ANSWER).await.map_err(|e| e.to_string())?;
        let traced = trace::read(&text).map_err(|e| e.to_string())?;
        let Some(zone) = traced.zones.get(states.len()).copied() else {
            answer.asked.insert(0, format!("ofproto/trace {}", params.join(" ")));
            answer.doubts.extend(traced.doubts.iter().cloned());
            answer.traced = Some(traced);
            return Ok(());
        };
        let Some(zone) = zone else {
            states.push(conntrack::NEW);
            answer.doubts.push("the connection tracking zone is missing in the trace".to_owned());
            continue;
        };
        let state = match found.entry(zone) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                let (which, mut state) = (format!("zone={zone}"), None);
                let look = |line: &str| {
                    state = state.take().or_else(|| conntrack::state(line, &subject.flow, ovs.kernel));
                };
                let listed = ovs.unixctl.lines("dpctl/dump-conntrack", &["-m", &which], ANSWER, look).await;
                listed.map_err(|e| e.to_string())?;
                place.insert(state.unwrap_or_else(State::none))
            }
        };
        answer.asked.push(format!("zone {zone}: {}", state.words));
        if states.is_empty() {
            question.mark = state.mark;
        } else if state.mark != 0 {
            let mark = state.mark;
            answer
                .doubts
                .push(format!("connection mark {mark:#x} in zone {zone} cannot be passed to ofproto/trace"));
        }
        states.push(state.ct_next);
    }
    Err(format!("the packet passes connection tracking more than {PASSES} times"))
}

#[cfg(test)]
mod tests;
