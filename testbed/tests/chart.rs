//! The chart and the manifests that are rendered from it, before a real API server: it would take every object as it is, fields that it
//! does not know included. Needs root and `cargo xtask setup`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testbed::cluster::config;
use testbed::exec;

const NAME: &str = "chart";
/// Objects that exist while a release is removed.
const HOOKS: usize = 8;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn testbed(args: &[&str]) -> Command {
    let mut command = exec::command(env!("CARGO_BIN_EXE_testbed"));
    command.args(["--name", NAME]).args(args);
    command
}

/// What the chart makes of values beside those of the example.
fn template(sets: &[&str]) -> Command {
    let mut command = exec::command(config::cache().expect("a cache").join("helm/helm"));
    command.arg("template").arg("slipstream").arg(deploy().join("chart"));
    command.args(["--namespace", "kube-system", "--values"]).arg(deploy().join("values-example.yaml"));
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    command
}

/// The number of objects that the API server would take.
fn accepted(file: &Path) -> usize {
    let path = file.display().to_string();
    let mut apply = testbed(&["kubectl", "apply", "--dry-run=server", "--validate=strict", "-f", &path]);
    let said = exec::output(&mut apply).unwrap_or_else(|error| panic!("{path}: {error:#}"));
    said.lines().filter(|line| line.ends_with("(server dry run)")).count()
}

#[test]
fn an_api_server_takes_every_object_of_the_chart() {
    exec::output(&mut testbed(&["down"])).unwrap();
    exec::output(&mut testbed(&["up", "--no-plugin", "--nodes", "1"])).unwrap();
    let plain = accepted(&deploy().join("slipstream.yaml"));
    assert!(plain > 20, "{plain} objects");
    assert_eq!(accepted(&deploy().join("slipstream-cleanup.yaml")), HOOKS);
    let dir = tempfile::tempdir().unwrap();
    for (name, sets) in [
        ("three", &["ovnCentral.addresses={10.0.0.1,10.0.0.2,10.0.0.3}", "agent.flowTableSize=1024"][..]),
        ("hosts-ovs", &["ovs.inContainer=false", "controller.nodeSelector.a=b", "node.maxUnavailable=10%"]),
        (
            "userspace",
            &["ovs.datapath=netdev", "network.joinSubnets={100.64.0.0/16}", "imagePullSecrets[0].name=a"],
        ),
    ] {
        let rendered = exec::output(&mut template(sets)).unwrap();
        let file = dir.path().join(name).with_extension("yaml");
        fs::write(&file, rendered).unwrap();
        // With the hooks, which are no objects of the plain manifest, and without Open vSwitch where it is the host's.
        assert_eq!(accepted(&file), plain + HOOKS - usize::from(name == "hosts-ovs"), "{name}");
    }
    exec::output(&mut testbed(&["down"])).unwrap();
}

#[test]
fn a_wrong_value_is_refused_with_its_place() {
    for (set, place) in [
        ("apiServer=10.0.0.1:6443", "/apiServer"),
        ("ovnCentral.addresses={10.0.0.1,10.0.0.2}", "/ovnCentral/addresses"),
        ("ovnCentral.addresses={n1}", "/ovnCentral/addresses/0"),
        ("network.mtu=1", "/network/mtu"),
        ("network.clusterSubnets={10.244.0.0}", "/network/clusterSubnets/0"),
        ("agent.datapath=xdp", "/agent/datapath"),
        ("ovs.datapath=kernel", "/ovs/datapath"),
        ("ovs.updateStrategy=Recreate", "/ovs/updateStrategy"),
        ("agent.privileged=true", "/agent"),
        ("logLevel=loud", "/logLevel"),
    ] {
        let refused = exec::output(&mut template(&[set])).unwrap_err().to_string();
        assert!(refused.contains(&format!("'{place}'")), "{set}: {refused}");
    }
}

#[test]
fn open_vswitch_is_not_replaced_by_itself_with_the_userspace_datapath() {
    let sets = ["ovs.datapath=netdev,ovs.updateStrategy=RollingUpdate"];
    let refused = exec::output(&mut template(&sets)).unwrap_err().to_string();
    assert!(refused.contains("ovs.updateStrategy") && refused.contains("set OnDelete"), "{refused}");
    let rendered = exec::output(&mut template(&["ovs.updateStrategy=RollingUpdate"])).unwrap();
    assert!(daemon_set(&rendered, "slipstream-ovs").contains("type: RollingUpdate"));
}

/// One of the DaemonSets that were rendered.
fn daemon_set<'a>(rendered: &'a str, name: &str) -> &'a str {
    let is =
        |object: &&str| object.contains("kind: DaemonSet") && object.contains(&format!("\n  name: {name}\n"));
    rendered.split("\n---\n").find(is).unwrap_or_else(|| panic!("no DaemonSet {name}"))
}

#[test]
fn settings_of_others_leave_open_vswitch_alone() {
    let before = exec::output(&mut template(&["ovs.image.tag=v1"])).unwrap();
    let sets = "logLevel=debug,logFormat=json,image.tag=v2,ovs.image.tag=v1,network.mtu=1300,agent.datapath=ovs,\
                agent.metricsPort=9500,controller.replicas=1,monitoring.enabled=true,tls.enabled=false";
    let after = exec::output(&mut template(&[sets])).unwrap();
    assert_eq!(daemon_set(&before, "slipstream-ovs"), daemon_set(&after, "slipstream-ovs"));
    let [before, after] = [&before, &after].map(|all| daemon_set(all, "slipstream-node"));
    assert_ne!(before, after);
    for agents in [before, after] {
        assert!(agents.contains("type: RollingUpdate") && !agents.contains("- name: ovs\n"), "{agents}");
    }
    let moved = exec::output(&mut template(&["ovs.image.tag=v1,ovs.runDir=/run/ovs"])).unwrap();
    assert!(daemon_set(&moved, "slipstream-ovs").contains("path: /run/ovs,"));
}

#[test]
fn no_container_is_privileged() {
    let rendered = exec::output(&mut template(&[])).unwrap();
    assert!(!rendered.contains("privileged: true") && !rendered.contains("hostPID: true"));
    let containers = rendered.matches("image: localhost/slipstream:").count();
    assert_eq!(rendered.matches("drop: [ALL]").count(), containers, "each drops what it does not need");
}
