//! Output of `slipctl audit`.

use api::admin::{AuditReply, Audited, Outcome, Verdict};

use super::pod_or_container;
use crate::table::{Column, pairs, table};

/// Renders the result of an audit: details for a single flow, else a table with details of the flows that are not `same`.
pub(crate) fn text(reply: &AuditReply) -> String {
    if reply.flows.is_empty() {
        return "no valid cached flows to audit\n".to_owned();
    }
    if let [one] = reply.flows.as_slice() {
        return details(one);
    }
    let columns =
        [Column::Left("VERDICT"), Column::Left("POD"), Column::Left("FLOW"), Column::Left("OVS VERDICT")];
    let rows: Vec<_> = reply.flows.iter().map(row).collect();
    let mut out = table(&columns, &rows);
    for flow in reply.flows.iter().filter(|flow| flow.verdict != Verdict::Same) {
        out.push('\n');
        out.push_str(&details(flow));
    }
    let AuditReply { same, different, undecided, .. } = reply;
    let all = reply.flows.len();
    out.push_str(&format!("\n{all} flows: {same} same, {different} different, {undecided} undecided\n"));
    out
}

fn row(flow: &Audited) -> Vec<String> {
    vec![
        flow.verdict.name().to_owned(),
        pod_or_container(flow.pod.as_deref(), &flow.endpoint),
        flow.flow.to_string(),
        flow.ovs.as_ref().map_or_else(|| "-".to_owned(), short),
    ]
}

fn short(outcome: &Outcome) -> String {
    [Some(outcome.kind.as_str()), outcome.to.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn details(flow: &Audited) -> String {
    let pod = pod_or_container(flow.pod.as_deref(), &flow.endpoint);
    let mut list =
        vec![("Flow", format!("{} of {pod}", flow.flow)), ("Verdict", flow.verdict.name().to_owned())];
    if !flow.why.is_empty() {
        list.push(("Why", flow.why.join("\n")));
    }
    let columns = [
        Column::Left("VERDICT OF"),
        Column::Left("KIND"),
        Column::Left("TO"),
        Column::Left("VNI"),
        Column::Left("OPTION"),
        Column::Left("TTL STEP"),
        Column::Left("DESTINATION MAC"),
        Column::Left("SOURCE MAC"),
    ];
    let answers = [("cache", &flow.remembered), ("OVS", &flow.ovs)];
    let rows: Vec<_> = answers
        .into_iter()
        .filter_map(|(who, answer)| answer.as_ref().map(|answer| cells(who, answer)))
        .collect();
    let mut out = pairs(&list);
    if !rows.is_empty() {
        out.push_str(&table(&columns, &rows));
    }
    let mut list = Vec::new();
    if !flow.asked.is_empty() {
        list.push(("Commands", flow.asked.join("\n")));
    }
    if !flow.datapath_actions.is_empty() {
        list.push(("Actions", flow.datapath_actions.join("\n")));
    }
    out.push_str(&pairs(&list));
    out
}

fn cells(who: &str, outcome: &Outcome) -> Vec<String> {
    let known = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    vec![
        who.to_owned(),
        outcome.kind.clone(),
        known(outcome.to.clone()),
        known(outcome.vni.map(|vni| vni.to_string())),
        known(outcome.option.map(|option| format!("{option:#x}"))),
        known(outcome.ttl_step.map(|step| step.to_string())),
        known(outcome.destination_mac.clone()),
        known(outcome.source_mac.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> AuditReply {
        serde_json::from_value(serde_json::json!({
            "flows": [
                {"pod": "default/a", "endpoint": "c0ffee01", "protocol": "tcp", "source": "10.244.0.3:40000",
                 "destination": "10.244.1.3:9000", "verdict": "different",
                 "why": ["the cache would send it through the tunnel to 172.18.0.3, OVS would drop it"],
                 "remembered": {"kind": "tunnel", "to": "172.18.0.3", "vni": 4, "option": 131_076, "ttlStep": 1},
                 "ovs": {"kind": "drop"},
                 "asked": ["ofproto/trace br-int x", "zone 6: no connection"], "datapathActions": ["drop"]},
                {"pod": null, "endpoint": "c0ffee02", "protocol": "udp", "source": "10.244.0.4:1",
                 "destination": "10.244.0.3:2", "verdict": "same", "why": [],
                 "remembered": null, "ovs": {"kind": "local", "to": "default/a"}, "asked": [], "datapathActions": []}
            ],
            "same": 1, "different": 1, "undecided": 0
        }))
        .unwrap()
    }

    #[test]
    fn one_flow_shows_both_answers_with_the_question() {
        let mut one = reply();
        one.flows.truncate(1);
        assert_eq!(
            text(&one),
            "Flow     tcp 10.244.0.3:40000 10.244.1.3:9000 of default/a\n\
             Verdict  different\n\
             Why      the cache would send it through the tunnel to 172.18.0.3, OVS would drop it\n\
             VERDICT OF  KIND    TO          VNI  OPTION   TTL STEP  DESTINATION MAC  SOURCE MAC\n\
             cache       tunnel  172.18.0.3  4    0x20004  1         -                -\n\
             OVS         drop    -           -    -        -         -                -\n\
             Commands  ofproto/trace br-int x\n\
             \u{20}         zone 6: no connection\n\
             Actions   drop\n"
        );
    }

    #[test]
    fn many_flows_have_a_line_each_details_of_those_that_differ_and_a_summary() {
        let text = text(&reply());
        assert!(
            text.contains("same       c0ffee02   udp 10.244.0.4:1 10.244.0.3:2         local default/a\n"),
            "{text}"
        );
        assert_eq!(text.matches("Verdict  ").count(), 1);
        assert!(text.ends_with("\n2 flows: 1 same, 1 different, 0 undecided\n"), "{text}");
    }
}
