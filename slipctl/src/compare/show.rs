//! Renders a comparison.

use super::figures::{Comparison, Rates, ratio};
use crate::table::{Column, table};
use crate::units::short;

/// A line for each figure, with both paths and their ratio.
pub(crate) fn text(found: &Comparison) -> String {
    let Comparison { service, path, ovs, ebpf, rounds } = found;
    let head = format!(
        "{service}: {:.1} s by OVS and {:.1} s by the flow cache, in {} rounds; now {} as before\n",
        ovs.seconds,
        ebpf.seconds,
        rounds.len(),
        path.name()
    );
    if !found.has_traffic() {
        return format!(
            "{head}no traffic: neither path had a packet of an established TCP or UDP connection to {service} that OVS translates on \
             this node\n"
        );
    }
    let columns =
        [Column::Left("PER SECOND"), Column::Right("OVS"), Column::Right("EBPF"), Column::Right("EBPF/OVS")];
    let row = |name: &str, of: fn(&Rates) -> Option<f64>| {
        let (ovs, ebpf) = (of(ovs), of(ebpf));
        let both = ovs.zip(ebpf).and_then(|(ovs, ebpf)| ratio(ebpf, ovs));
        vec![name.to_owned(), figure(ovs), figure(ebpf), multiple(both)]
    };
    let rows = [
        row("packets to backends", |r| Some(r.packets_to_backend)),
        row("packets from backends", |r| Some(r.packets_from_backend)),
        row("bytes", |r| Some(r.bytes)),
        row("new connections", |r| Some(r.connections)),
        row("CPUs busy, whole machine", |r| r.busy_cpus),
        row("packets per CPU second", |r| r.packets_per_cpu_second),
    ];
    let rounds: Vec<String> = rounds.iter().map(|round| multiple(*round)).collect();
    format!("{head}{}packets, EBPF/OVS in each round: {}\n", table(&columns, &rows), rounds.join(", "))
}

fn figure(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 100.0 => format!("{value:.2}"),
        Some(value) => short(value),
    }
}

fn multiple(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{before, measured};
    use super::*;

    #[test]
    fn both_paths_stand_side_by_side_with_their_ratio() {
        assert_eq!(
            text(&measured()),
            "shop/web: 4.0 s by OVS and 4.0 s by the flow cache, in 2 rounds; now ebpf as before\n\
             PER SECOND                  OVS    EBPF  EBPF/OVS\n\
             packets to backends         150    2.0k     13.33\n\
             packets from backends     75.00    1.0k     13.33\n\
             bytes                     22.5k  300.0k     13.33\n\
             new connections            1.50   20.00     13.33\n\
             CPUs busy, whole machine   2.00    1.00      0.50\n\
             packets per CPU second      112    3.0k     26.67\n\
             packets, EBPF/OVS in each round: 10.00, 15.00\n"
        );
    }

    #[test]
    fn without_traffic_it_says_so() {
        let found = Comparison::new(before(), &[]);
        let text = text(&found);
        assert!(
            text.contains("no traffic") && text.contains("shop/web") && !text.contains("OVS/s"),
            "{text}"
        );
    }
}
