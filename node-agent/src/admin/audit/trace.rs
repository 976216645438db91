//! Parser of the output of `ofproto/trace` (ovs-vswitchd(8)): one section for each pass through the pipeline, each ending with a
//! line of datapath actions.

use super::actions::{Malformed, Output, Packet, Walk, number};

/// Prefix of the line of datapath actions.
const ACTIONS: &str = "Datapath actions: ";

/// One pass through the pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pass {
    /// Recirculation id; `None` for the first pass.
    pub(super) recirculation: Option<u32>,
    /// The pass followed connection tracking, and consumed one of the given `--ct-next` states.
    pub(super) tracked: bool,
    /// Datapath actions.
    pub(super) actions: String,
}

/// The output cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TraceError {
    /// No line of datapath actions.
    #[error("no datapath actions in the output of ofproto/trace: {0}")]
    NoActions(String),
    /// Malformed datapath actions.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Result of all passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Traced {
    /// Passes in order.
    pub(super) passes: Vec<Pass>,
    /// Packets sent to datapath ports.
    pub(super) outputs: Vec<Output>,
    /// Actions that are not modelled.
    pub(super) remarks: Vec<String>,
    /// Reasons why the result may not be final.
    pub(super) doubts: Vec<String>,
    /// Zones of the passes after connection tracking, in order; `None` where unknown.
    pub(super) zones: Vec<Option<u16>>,
}

/// Reads it.
pub(super) fn read(text: &str) -> Result<Traced, TraceError> {
    let passes = passes(text);
    if passes.is_empty() {
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("empty output");
        return Err(TraceError::NoActions(last.trim().to_owned()));
    }
    let (mut walk, mut zones) = (Walk::default(), Vec::new());
    for pass in &passes {
        let resume = pass.recirculation.and_then(|id| walk.resumes.get(&id)).cloned();
        if pass.tracked {
            zones.push(resume.as_ref().and_then(|resume| resume.zone));
        }
        let packet = resume.map_or_else(Packet::default, |resume| resume.packet);
        walk.follow(&pass.actions, &packet)?;
    }
    Ok(Traced { passes, outputs: walk.outputs, remarks: walk.remarks, doubts: doubts(text), zones })
}

/// Transient failures of tunnel output: without route or neighbour OVS drops the packet and resolves the neighbour, which is not a
/// verdict about the flow (OVS, ofproto/ofproto-dpif-xlate.c, `native_tunnel_output`).
fn doubts(text: &str) -> Vec<String> {
    let said =
        |line: &&str| line.contains("native tunnel routing failed") || line.contains("neighbor cache miss");
    text.lines()
        .filter(said)
        .map(|line| format!("OVS cannot reach the remote tunnel endpoint now: {}", line.trim()))
        .collect()
}

fn passes(text: &str) -> Vec<Pass> {
    let mut list = Vec::new();
    let (mut recirculation, mut tracked) = (None, false);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("recirc(") {
            let (id, rest) = rest.split_once(')').unwrap_or((rest, ""));
            (recirculation, tracked) = (number(id), rest.contains("resume conntrack"));
        } else if let Some(actions) = line.strip_prefix(ACTIONS) {
            list.push(Pass { recirculation, tracked, actions: actions.trim().to_owned() });
            (recirculation, tracked) = (None, false);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape of an answer of OVS 3.5 for two pods of one node, without the tables.
    const LOCAL: &str = "\
Flow: tcp,in_port=4,vlan_tci=0x0000,dl_src=0a:58:0a:f4:00:03

bridge(\"br-int\")
----------------
14. ip,reg0=0x4/0x4,metadata=0x1, priority 110, cookie 0x5fd1ee6b
    ct(table=15,zone=NXM_NX_REG13[0..15],nat)

Final flow: tcp,reg0=0x5
Megaflow: recirc_id=0,eth,tcp,in_port=4
Datapath actions: ct(zone=6,nat),recirc(0xd)

===============================================================================
recirc(0xd) - resume conntrack with ct_state=est|trk
Replacing src/dst IP/ports to simulate NAT:
 Initial flow: 
===============================================================================

Final flow: recirc_id=0xd
Megaflow: recirc_id=0xd
Datapath actions: set(ipv4(ttl=63)),ct(zone=7,nat),recirc(0x11)

===============================================================================
recirc(0x11) - resume conntrack with default ct_state=trk|new (use --ct-next to customize)
===============================================================================

Final flow: recirc_id=0x11
Datapath actions: 7
";

    #[test]
    fn passes_follow_one_another_and_carry_what_was_done_before() {
        let traced = read(LOCAL).unwrap();
        let ids: Vec<_> = traced.passes.iter().map(|p| (p.recirculation, p.tracked)).collect();
        assert_eq!(ids, [(None, false), (Some(0xd), true), (Some(0x11), true)]);
        assert_eq!(traced.zones, [Some(6), Some(7)]);
        let seen: Vec<_> = traced.outputs.iter().map(|o| (o.port.as_str(), o.packet.ttl)).collect();
        assert_eq!(seen, [("7", Some(63))]);
    }

    #[test]
    fn a_tunnel_end_that_ovs_cannot_reach_now_is_a_doubt() {
        let text = "    output:2\n     >> native tunnel routing failed\nDatapath actions: drop\n";
        assert_eq!(read(LOCAL).unwrap().doubts.len(), 0);
        assert_eq!(
            read(text).unwrap().doubts,
            ["OVS cannot reach the remote tunnel endpoint now: >> native tunnel routing failed"]
        );
    }

    #[test]
    fn an_answer_without_actions_is_an_error_with_its_last_words() {
        let error = read("Flow: x\nTrace stopped: too deep\n\n").unwrap_err().to_string();
        assert!(error.ends_with("Trace stopped: too deep"), "{error}");
        assert!(read("").unwrap_err().to_string().ends_with("empty output"));
    }
}
