//! Which network plugin a cluster has, from its DaemonSets and the annotations of its nodes. Pure.

/// A container of a DaemonSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// Namespace and name of the DaemonSet.
    pub(crate) set: String,
    pub(crate) image: String,
    /// Command, arguments and environment, as `KEY=VALUE` or words.
    pub(crate) words: Vec<String>,
}

/// Names of DaemonSets, and of whom they are. The first that is there counts.
const KNOWN: &[(&str, &str)] = &[
    ("slipstream-node", "Slipstream"),
    ("ovnkube-node", "ovn-kubernetes"),
    ("cilium", "Cilium"),
    ("canal", "Canal"),
    ("calico-node", "Calico"),
    ("kube-flannel", "Flannel"),
    ("antrea-agent", "Antrea"),
    ("kube-ovn-cni", "Kube-OVN"),
    ("kube-router", "kube-router"),
    ("weave-net", "Weave Net"),
    ("aws-node", "Amazon VPC CNI"),
    ("azure-cni", "Azure CNI"),
    ("kindnet", "kindnet"),
];
/// Also of interest: who serves Services where the plugin does not.
const PROXY: &str = "kube-proxy";
/// Parts of arguments that say by which way packets go.
const WAYS: &[&str] = &["datapath", "attach", "proxy-mode", "tunnel", "encap", "backend-type"];

/// The plugin of the pods' first interfaces, as far as it can be told, and what says so. `secondary`: Slipstream is there for further networks
/// alone, and is none of those.
pub(crate) fn plugin(
    programs: Result<&[Program], &str>,
    annotations: &[&str],
    secondary: bool,
) -> (String, Vec<String>) {
    let by_annotations = |annotations: &[&str]| match secondary {
        true => "not known; Slipstream has further networks alone".to_owned(),
        false => by_annotations(annotations),
    };
    let programs = match programs {
        Ok(programs) => programs,
        Err(reason) => {
            return (by_annotations(annotations), vec![format!("DaemonSets are not known: {reason}")]);
        }
    };
    let is = |program: &&Program, name: &str| {
        program.set.rsplit('/').next().is_some_and(|set| set.starts_with(name))
    };
    let found = KNOWN
        .iter()
        .filter(|(_, plugin)| !secondary || *plugin != "Slipstream")
        .find(|(name, _)| programs.iter().any(|program| is(&program, name)));
    let name = found.map_or_else(|| by_annotations(annotations), |(_, plugin)| (*plugin).to_owned());
    let mut evidence = Vec::new();
    let sets = found.map(|(set, _)| *set).into_iter().chain([PROXY]);
    for program in sets.flat_map(|set| programs.iter().filter(move |program| is(program, set))) {
        let ways = program.words.iter().filter(|word| {
            let key = word.split('=').next().unwrap_or_default().to_lowercase().replace('_', "-");
            WAYS.iter().any(|way| key.contains(way))
        });
        let ways: Vec<_> = ways.map(String::as_str).collect();
        evidence.push(
            format!("DaemonSet {}: {} {}", program.set, program.image, ways.join(" ")).trim_end().to_owned(),
        );
    }
    if found.is_none() {
        evidence.push("no DaemonSet of a plugin that is known by its name".to_owned());
    }
    if !annotations.is_empty() {
        evidence.push(format!("annotations of nodes: {}", annotations.join(", ")));
    }
    evidence.dedup();
    (name, evidence)
}

fn by_annotations(annotations: &[&str]) -> String {
    let has = |prefix: &str| annotations.iter().any(|key| key.starts_with(prefix));
    // Slipstream writes the annotations of ovn-kubernetes, too.
    match (
        has("slipstream.dev/"),
        has("k8s.ovn.org/"),
        has("projectcalico.org/"),
        has("flannel.alpha.coreos.com/"),
    ) {
        (true, ..) => "Slipstream, by annotations of nodes".to_owned(),
        (_, true, ..) => "ovn-kubernetes or Slipstream, by annotations of nodes".to_owned(),
        (.., true, _) => "Calico, by annotations of nodes".to_owned(),
        (.., true) => "Flannel, by annotations of nodes".to_owned(),
        _ => "not known".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(set: &str, words: &[&str]) -> Program {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Program { set: set.to_owned(), image: "registry/image:1".to_owned(), words }
    }

    #[test]
    fn a_daemon_set_names_the_plugin_and_how_it_forwards() {
        let all = [
            program("kube-system/kube-proxy", &["--proxy-mode=nftables"]),
            program(
                "kube-system/slipstream-node-ovs",
                &["--datapath=ebpf", "--v=2", "SLIPSTREAM_ATTACH=interposed"],
            ),
        ];
        let (name, evidence) = plugin(Ok(&all), &[], false);
        assert_eq!(name, "Slipstream");
        assert!(
            evidence[0].ends_with("registry/image:1 --datapath=ebpf SLIPSTREAM_ATTACH=interposed"),
            "{evidence:?}"
        );
        assert!(evidence[1].contains("--proxy-mode=nftables"), "{evidence:?}");
    }

    #[test]
    fn without_one_annotations_say_what_they_can() {
        let (name, evidence) = plugin(Err("no right"), &["k8s.ovn.org/node-subnets"], false);
        assert_eq!(name, "ovn-kubernetes or Slipstream, by annotations of nodes");
        assert!(evidence[0].contains("no right"));
        assert_eq!(
            plugin(Ok(&[]), &["slipstream.dev/cluster-network"], false).0,
            "Slipstream, by annotations of nodes"
        );
        assert_eq!(plugin(Ok(&[program("a/other", &[])]), &[], false).0, "not known");
    }

    #[test]
    fn slipstream_beside_another_plugin_is_not_what_is_measured() {
        let both =
            [program("kube-system/slipstream-node", &[]), program("kube-flannel/kube-flannel-ds", &[])];
        assert_eq!(plugin(Ok(&both), &[], true).0, "Flannel");
        let (name, _) = plugin(Ok(&both[..1]), &["slipstream.dev/cluster-network"], true);
        assert_eq!(name, "not known; Slipstream has further networks alone");
    }
}
