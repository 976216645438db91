//! The cluster's keys, and kubeconfigs of the users that have a certificate. Controller and agents have tokens, which
//! [`super::access`] asks for.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::config::{API_SERVICE_IP, API_SERVICE_IP_6, Config, Runtime, node_ip, node_name, underlay_ip6};

/// The user of Multus, and the name of its kubeconfig.
pub(crate) const MULTUS: &str = "multus";

/// A user of the API server: file name, user name, groups.
struct User {
    file: String,
    name: String,
    groups: Vec<&'static str>,
}

/// Writes everything.
pub(crate) fn write(config: &Config) -> Result<()> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, format!("slipstream test bed {}", config.name));
    params.key_usages =
        vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    put(&config.pki("ca.crt"), &certificate.pem())?;
    put(&config.pki("ca.key"), &key.serialize_pem())?;
    let issuer = Issuer::new(params, key);

    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ];
    let mut server = CertificateParams::new(names.map(str::to_owned).to_vec())?;
    server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    let ips: [IpAddr; 4] =
        [API_SERVICE_IP.into(), config.api().ip(), Ipv4Addr::LOCALHOST.into(), API_SERVICE_IP_6.into()];
    server.subject_alt_names.extend(ips.map(SanType::IpAddress));
    issue(config, "apiserver", server, ExtendedKeyUsagePurpose::ServerAuth, &issuer)?;
    // Signs service account tokens.
    let accounts = KeyPair::generate()?;
    put(&config.pki("sa.key"), &accounts.serialize_pem())?;
    put(&config.pki("sa.pub"), &accounts.public_key_pem())?;

    for user in users(config) {
        let mut client = CertificateParams::default();
        client.distinguished_name.push(DnType::CommonName, user.name.as_str());
        for group in &user.groups {
            client.distinguished_name.push(DnType::OrganizationName, *group);
        }
        issue(config, &user.file, client, ExtendedKeyUsagePurpose::ClientAuth, &issuer)?;
        let file = |end: &str| config.pki(&format!("{}.{end}", user.file));
        let certificate = serde_json::json!({"client-certificate": file("crt"), "client-key": file("key")});
        put(&config.kubeconfig(&user.file), &kubeconfig(config, &user.file, &certificate))?;
    }
    if config.runtime == Runtime::Containerd {
        kubelets(config, &issuer)?;
    }
    Ok(())
}

/// What kubelets serve with.
fn kubelets(config: &Config, issuer: &Issuer<'_, KeyPair>) -> Result<()> {
    for index in 1..=config.nodes {
        let (name, ip) = (node_name(index), node_ip(index));
        let mut params = CertificateParams::new(vec![name.clone()])?;
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{name}"));
        let ips: [IpAddr; 2] = [ip.into(), underlay_ip6(ip).into()];
        params.subject_alt_names.extend(ips.map(SanType::IpAddress));
        issue(config, &format!("serving-{name}"), params, ExtendedKeyUsagePurpose::ServerAuth, issuer)?;
    }
    Ok(())
}

fn users(config: &Config) -> Vec<User> {
    let user = |file: &str, name: &str, groups: &[&'static str]| User {
        file: file.to_owned(),
        name: name.to_owned(),
        groups: groups.to_vec(),
    };
    // The complete controller manager uses the accounts of its controllers; the reduced one must not wait for them.
    let manager: &[_] = if config.runtime == Runtime::Netns { &["system:masters"] } else { &[] };
    let mut users = vec![
        user("admin", "admin", &["system:masters"]),
        user("kube-controller-manager", "system:kube-controller-manager", manager),
    ];
    if config.multus.is_some() {
        users.push(user(MULTUS, MULTUS, &[]));
    }
    if config.runtime == Runtime::Containerd {
        users.push(user("kube-scheduler", "system:kube-scheduler", &[]));
        // The API server, as kubelets and as aggregated servers see it.
        users.push(user("kubelet-client", "kube-apiserver-kubelet-client", &["system:masters"]));
        users.push(user("front-proxy", "front-proxy", &[]));
        for node in config.node_names() {
            let name = format!("system:node:{node}");
            users.push(user(&format!("kubelet-{node}"), &name, &["system:nodes"]));
        }
    }
    users
}

fn issue(
    config: &Config,
    file: &str,
    mut params: CertificateParams,
    purpose: ExtendedKeyUsagePurpose,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<()> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer).with_context(|| format!("certificate {file}"))?;
    put(&config.pki(&format!("{file}.crt")), &certificate.pem())?;
    put(&config.pki(&format!("{file}.key")), &key.serialize_pem())
}

/// Writes the token of a user, and a kubeconfig that names its file.
pub(crate) fn put_token(config: &Config, user: &str, token: &str) -> Result<()> {
    let file = config.pki(&format!("{user}.token"));
    // A process that reads it meanwhile must not see half of it.
    let new = file.with_extension("new");
    put(&new, token)?;
    fs::rename(&new, &file).with_context(|| format!("cannot write {}", file.display()))?;
    let credential = serde_json::json!({"tokenFile": file});
    put(&config.kubeconfig(user), &kubeconfig(config, user, &credential))
}

fn kubeconfig(config: &Config, user: &str, credential: &serde_json::Value) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": {
            "server": format!("https://{}", config.api()),
            "certificate-authority": config.pki("ca.crt"),
        }}],
        "users": [{"name": user, "user": credential}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": user}}],
        "current-context": "bed",
    })
    .to_string()
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(())
}
