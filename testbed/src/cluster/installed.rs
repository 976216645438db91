//! Slipstream as its chart installs it: OVN's databases, OVS, controller and agents are pods of the image, and kubelets start them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Bed;
use super::config::{Config, GatewayMode, Install, POD_MTU, node_ip, node_name};
use crate::bed::NAMESPACE;
use crate::exec;

/// The chart. The test bed runs beside its sources.
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/chart");
const RELEASE: &str = "slipstream";
/// The image's name without its tag, which is the version.
const IMAGE: &str = "localhost/slipstream";
/// The label of nodes that run OVN's databases.
const LABEL: &str = "slipstream.dev/ovn-central=";

/// The chart that is installed.
fn chart(config: &Config) -> PathBuf {
    config.release.as_ref().map_or_else(|| CHART.into(), |release| release.join("source/deploy/chart"))
}

/// The archive of the image that is installed.
fn archive(config: &Config) -> PathBuf {
    config.release.as_ref().map_or_else(|| built(config), |release| release.join("slipstream.tar"))
}

/// The archive of the image that was built here, which `cargo xtask image --dev` puts beside the programs.
fn built(config: &Config) -> PathBuf {
    config.bin.parent().unwrap_or(Path::new("/")).join("image/slipstream.tar")
}

fn helm(config: &Config) -> PathBuf {
    config.cache.join("helm/helm")
}

/// Fails early if what is needed is not there.
pub(super) fn check(config: &Config) -> Result<()> {
    if config.install != Install::Chart {
        return Ok(());
    }
    let made_by = if config.release.is_some() { "cargo xtask release" } else { "cargo xtask image --dev" };
    let needed = [(archive(config), made_by), (chart(config), made_by), (helm(config), "cargo xtask setup")];
    match needed.iter().find(|(path, _)| !path.exists()) {
        Some((path, made_by)) => bail!("{} is missing; run `{made_by}`", path.display()),
        None => Ok(()),
    }
}

/// Gives a node the image, as there is no registry.
pub(super) fn import(bed: &Bed, node: &str) -> Result<()> {
    if bed.config().install != Install::Chart {
        return Ok(());
    }
    import_archive(bed, node, &archive(bed.config()))
}

/// Gives a node the images of an archive.
pub(crate) fn import_archive(bed: &Bed, node: &str, archive: &Path) -> Result<()> {
    let archive = archive.display().to_string();
    ctr_image(bed, node, &["import", "--local", &archive]).with_context(|| format!("image {archive}"))
}

/// Runs `ctr image` on a node, on the images that its kubelet sees.
fn ctr_image(bed: &Bed, node: &str, args: &[&str]) -> Result<()> {
    let mut command = bed.host(node).command(bed.config().containerd("ctr"))?;
    command.args(["--namespace", "k8s.io", "image"]).args(args);
    exec::output(&mut command).map(drop)
}

/// The addresses of the nodes with OVN's databases: three of three or more nodes, else one.
fn central(config: &Config) -> Vec<u8> {
    if config.nodes >= 3 { vec![1, 2, 3] } else { vec![1] }
}

/// Values of the chart in which a bed differs from the defaults.
fn values(config: &Config) -> serde_json::Value {
    let ranges = |text: String| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    serde_json::json!({
        "apiServer": format!("https://{}", config.api()),
        "ovnCentral": {"addresses": central(config).into_iter().map(|i| config.underlay_ip(node_ip(i))).collect::<Vec<_>>()},
        // It is imported, and in no registry.
        "image": {"pullPolicy": "Never"},
        "network": {
            "clusterSubnets": ranges(config.cluster_subnets.clone()),
            "serviceCIDRs": ranges(config.service_cidrs()),
            "mtu": POD_MTU,
        },
        "controller": {
            "replicas": config.nodes.min(2),
            "networkPolicy": config.network_policy,
            "verifyIntervalSeconds": config.verify_interval,
        },
        "agent": agent_values(config),
        "ovs": {"datapath": config.ovs_datapath.as_str()},
    })
}

fn agent_values(config: &Config) -> serde_json::Value {
    let mut values =
        serde_json::json!({"datapath": config.datapath.as_str(), "attachMode": config.attach_mode.as_str()});
    // Charts of earlier releases do not know it.
    if config.gateway_mode == GatewayMode::Local {
        values["gatewayMode"] = "local".into();
    }
    values
}

/// Installs the chart; the pods come when the kubelets start them.
pub(super) fn install(bed: &Bed) -> Result<()> {
    let config = bed.config();
    for index in central(config) {
        bed.kubectl(&["label", "node", &node_name(index), LABEL])?;
    }
    let file = config.kubeconfig("values");
    std::fs::write(&file, values(config).to_string())
        .with_context(|| format!("cannot write {}", file.display()))?;
    let mut install = bed.helm_command()?;
    install.args(["install", RELEASE]).arg(chart(config)).arg("--values").arg(&file);
    exec::output(&mut install).map(drop)
}

impl Bed {
    /// Gives all nodes the image that was built here under another tag, beside that which is installed and keeps its own.
    ///
    /// # Errors
    /// There is none, or a node does not take it.
    pub fn add_built_image(&self, tag: &str) -> Result<()> {
        let (built, kept) = (built(self.config()), format!("{IMAGE}:kept"));
        let (usual, tag) = (format!("{IMAGE}:{}", env!("CARGO_PKG_VERSION")), format!("{IMAGE}:{tag}"));
        for node in self.config().node_names() {
            // The archive has the usual name.
            ctr_image(self, &node, &["tag", "--force", &usual, &kept])?;
            import_archive(self, &node, &built)?;
            ctr_image(self, &node, &["tag", "--force", &usual, &tag])?;
            ctr_image(self, &node, &["tag", "--force", &kept, &usual])?;
        }
        Ok(())
    }

    /// Helm as the administrator, for the namespace of the release.
    pub fn helm_command(&self) -> Result<Command> {
        let config = self.config();
        let mut command = self.host("central").network_command(helm(config))?;
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, config.dir.join("helm"));
        }
        command.arg("--kubeconfig").arg(config.kubeconfig("admin")).args(["--namespace", NAMESPACE]);
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_nodes_have_a_cluster_of_databases() {
        let addresses =
            |nodes| values(&Config::new("t", nodes).unwrap())["ovnCentral"]["addresses"].to_string();
        assert_eq!(addresses(2), "[\"172.18.0.2\"]");
        assert_eq!(addresses(4), "[\"172.18.0.2\",\"172.18.0.3\",\"172.18.0.4\"]");
    }

    #[test]
    fn values_follow_the_bed() {
        let config = Config::new("t", 1).unwrap().with_dual_stack();
        let values = values(&config);
        assert_eq!(values["network"]["clusterSubnets"].as_array().unwrap().len(), 2);
        assert_eq!(values["controller"]["replicas"], 1);
        assert_eq!(values["ovs"]["datapath"], "netdev");
    }
}
