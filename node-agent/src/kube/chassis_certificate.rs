//! Certificate by which ovn-controller shows the node's chassis name to the southbound database. The key is made on the node and stays
//! there; the controller signs a request of the agent (`CertificateSigningRequest`) if the agent's token is bound to the Node that has
//! this chassis.
//!
//! Files are replaced together, by a link to their directory: OVS's programs read key and certificate again when both have changed,
//! and connections that are open stay open.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use api::annotation::NODE_CHASSIS_ID;
use api::certificate::{AUTHORITIES, CA, CERTIFICATE, Facts, KEY, SIGNER};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Node as NodeObject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use ovsdb_client::Uuid;
use rcgen::{CertificateParams, DnType, KeyPair};

use crate::health::Health;
use crate::kube::client::in_time;
use crate::ovs::Ovs;

/// Interval of checks: expiry, chassis name, authorities.
const CHECK: Duration = Duration::from_secs(600);
/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(15));
/// How long a request may take, and the interval at which its answer is asked for.
const SIGNED: Duration = Duration::from_secs(30);
const ASK: Duration = Duration::from_millis(250);
/// Name of the warning.
const WARNING: &str = "southbound certificate";
/// Link to the directory of the files in use.
const CURRENT: &str = "current";

/// Files of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Files {
    key: String,
    certificate: String,
    authorities: String,
}

/// Keeps a valid certificate in `directory`. Never returns.
pub async fn keep(ovs: Ovs, health: Health, name: String, directory: PathBuf, client: kube::Client) {
    let mut wait = RETRY.0;
    loop {
        match check(&ovs, &name, &directory, &client).await {
            Ok(()) => {
                health.warning(WARNING, None);
                wait = RETRY.0;
                tokio::time::sleep(CHECK).await;
            }
            Err(error) => {
                health.warning(WARNING, Some(format!("{error:#}")));
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY.1);
            }
        }
    }
}

/// Removes all files.
///
/// # Errors
/// They cannot be removed.
pub fn remove(directory: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(anyhow::Error::new(error).context(format!("remove {}", directory.display())))
        }
        _ => Ok(()),
    }
}

async fn check(ovs: &Ovs, name: &str, directory: &Path, client: &kube::Client) -> anyhow::Result<()> {
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let map = in_time(maps.get(AUTHORITIES)).await.with_context(|| format!("ConfigMap {AUTHORITIES}"))?;
    let authorities = map.data.unwrap_or_default().remove(CA);
    let authorities = authorities.with_context(|| format!("ConfigMap {AUTHORITIES} has no key {CA}"))?;
    let system = ovs.system().context("the Open_vSwitch database is empty")?;
    let chassis = system.external_ids.get("system-id").cloned().unwrap_or_default();
    let there = read(directory).filter(|files| is_good(&files.certificate, &chassis, SystemTime::now()));
    let files = match there {
        Some(files) if files.authorities == authorities => return Ok(()),
        Some(files) => Files { authorities, ..files },
        None => {
            announced(client, name, &chassis).await?;
            let (key, certificate) = request(client, name, &chassis).await?;
            tracing::info!(node = name, chassis, "certificate for the southbound database received");
            Files { key, certificate, authorities }
        }
    };
    write(directory, &files).with_context(|| format!("{} (--sb-certificates)", directory.display()))
}

/// Fails until the cluster knows the node's chassis: the controller would not sign.
async fn announced(client: &kube::Client, name: &str, chassis: &str) -> anyhow::Result<()> {
    let nodes: Api<NodeObject> = Api::all(client.clone());
    let node = in_time(nodes.get_metadata(name)).await.with_context(|| format!("Node {name}"))?;
    let is_known = node.annotations().get(NODE_CHASSIS_ID).is_some_and(|known| known == chassis);
    anyhow::ensure!(
        is_known && !chassis.is_empty(),
        "Node {name} does not have {NODE_CHASSIS_ID} {chassis:?} yet"
    );
    Ok(())
}

/// Requests a certificate; returns key and certificate.
async fn request(client: &kube::Client, node: &str, chassis: &str) -> anyhow::Result<(String, String)> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let key = KeyPair::generate()?;
    let made = in_time(requests.create(&PostParams::default(), &object(node, chassis, &key)?)).await;
    let name = made.context("request for a certificate")?.name_any();
    let end = tokio::time::Instant::now() + SIGNED;
    loop {
        tokio::time::sleep(ASK).await;
        let status =
            in_time(requests.get(&name)).await.with_context(|| name.clone())?.status.unwrap_or_default();
        if let Some(ByteString(bytes)) = status.certificate {
            return Ok((key.serialize_pem(), String::from_utf8(bytes).context(name)?));
        }
        let refused =
            status.conditions.into_iter().flatten().find(|c| matches!(&*c.type_, "Denied" | "Failed"));
        if let Some(condition) = refused {
            anyhow::bail!(
                "CertificateSigningRequest {name}: {}",
                condition.message.unwrap_or(condition.type_)
            );
        }
        anyhow::ensure!(
            tokio::time::Instant::now() < end,
            "CertificateSigningRequest {name} was not answered within {SIGNED:?}; does the controller run with --certificates?"
        );
    }
}

fn object(node: &str, chassis: &str, key: &KeyPair) -> anyhow::Result<CertificateSigningRequest> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, chassis);
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some(format!("slipstream-{node}-")), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(params.serialize_request(key)?.pem()?.into_bytes()),
            signer_name: SIGNER.to_owned(),
            usages: Some(vec!["digital signature".to_owned(), "client auth".to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

fn is_good(certificate: &str, chassis: &str, now: SystemTime) -> bool {
    Facts::read(certificate).is_ok_and(|facts| facts.name == chassis && !facts.is_due(now))
}

fn read(directory: &Path) -> Option<Files> {
    let read = |name: &str| fs::read_to_string(directory.join(CURRENT).join(name)).ok();
    Some(Files { key: read(KEY)?, certificate: read(CERTIFICATE)?, authorities: read(CA)? })
}

/// Writes a directory with the files, lets the link name it, and removes the others.
fn write(directory: &Path, files: &Files) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let name = Uuid::new_v4().to_string();
    let new = directory.join(&name);
    fs::DirBuilder::new().mode(0o700).create(&new)?;
    for (file, text) in [(KEY, &files.key), (CERTIFICATE, &files.certificate), (CA, &files.authorities)] {
        let mut options = fs::File::options();
        let mut file = options.create_new(true).write(true).mode(0o600).open(new.join(file))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
    }
    let link = directory.join("next");
    let _ = fs::remove_file(&link);
    symlink(&name, &link)?;
    fs::rename(&link, directory.join(CURRENT))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.file_name() != *name {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn files(chassis: &str) -> Files {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, chassis);
        let now = SystemTime::now();
        (params.not_before, params.not_after) = (now.into(), (now + Duration::from_secs(9000)).into());
        let certificate = params.self_signed(&key).unwrap().pem();
        Files { key: key.serialize_pem(), certificate, authorities: "ca".to_owned() }
    }

    #[test]
    fn files_are_replaced_together_and_only_root_reads_them() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("tls");
        assert_eq!(read(&dir), None);
        for _ in 0..2 {
            let files = files("a");
            write(&dir, &files).unwrap();
            assert_eq!(read(&dir), Some(files));
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2, "one directory and the link");
        let mode = fs::metadata(dir.join(CURRENT).join(KEY)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        remove(&dir).unwrap();
        remove(&dir).unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn a_certificate_of_another_chassis_or_near_its_end_is_renewed() {
        let certificate = files("a").certificate;
        let now = SystemTime::now();
        assert!(is_good(&certificate, "a", now));
        assert!(!is_good(&certificate, "b", now));
        assert!(!is_good(&certificate, "a", now + Duration::from_secs(7000)));
        assert!(!is_good("", "a", now));
    }
}
