//! Where certificates are kept: Secrets, a ConfigMap, and the controller's own files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use api::certificate::{self, AUTHORITIES, CA, CERTIFICATE, Facts, KEY};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};

use super::Settings;
use super::authority::{Authority, Pair};

/// Secret of the authority that signs servers, northd and controllers.
const CENTRAL_AUTHORITY: &str = "slipstream-central-ca";
/// Secret of the authority that signs nodes.
const NODE_AUTHORITY: &str = "slipstream-node-ca";
/// Secret with what the databases' servers show, and whom they accept.
const CENTRAL: &str = "slipstream-ovn-central";
/// All of them.
pub const SECRETS: [&str; 3] = [CENTRAL_AUTHORITY, NODE_AUTHORITY, CENTRAL];
/// Key of the authorities whose clients the southbound database accepts.
const CLIENTS: &str = "clients.crt";

type Data = BTreeMap<String, ByteString>;

/// Keeper of the objects and files.
#[derive(Debug)]
pub(super) struct Store {
    secrets: Api<Secret>,
    maps: Api<ConfigMap>,
    settings: Settings,
}

impl Store {
    pub(super) fn new(client: kube::Client, settings: Settings) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), &settings.namespace),
            maps: Api::namespaced(client, &settings.namespace),
            settings,
        }
    }

    /// Makes what is missing and renews what is due; returns the authority that signs nodes.
    pub(super) async fn keep(&self) -> Result<Authority> {
        let central = self.authority(CENTRAL_AUTHORITY, "Slipstream OVN central").await?;
        let nodes = self.authority(NODE_AUTHORITY, "Slipstream OVN nodes").await?;
        let trusted = self.servers(&central, &nodes).await?;
        self.publish(&trusted).await?;
        own_files(&self.settings.directory, &central, &trusted)?;
        Ok(nodes)
    }

    async fn authority(&self, secret: &str, name: &str) -> Result<Authority> {
        let at = || format!("Secret {}/{secret}", self.settings.namespace);
        if let Some(there) = self.secrets.get_opt(secret).await.with_context(at)? {
            let data = there.data.unwrap_or_default();
            let pair = Pair { certificate: text(&data, CERTIFICATE), key: text(&data, KEY) };
            return Authority::load(&pair).with_context(at);
        }
        if !self.settings.create {
            bail!("{} is not there; whoever makes authorities (cert-manager) has not made it yet", at());
        }
        let pair = Authority::generate(name)?;
        let object = Secret {
            metadata: named(secret),
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(data([(CERTIFICATE, &pair.certificate), (KEY, &pair.key)])),
            ..Secret::default()
        };
        // Another replica may be faster: then this fails, and the next attempt finds that one's.
        self.secrets.create(&PostParams::default(), &object).await.with_context(at)?;
        tracing::info!(secret, "certificate authority made");
        Authority::load(&pair)
    }

    /// The Secret of the databases' servers; returns the authorities by which they are trusted.
    async fn servers(&self, central: &Authority, nodes: &Authority) -> Result<String> {
        let at = || format!("Secret {}/{CENTRAL}", self.settings.namespace);
        let there = self.secrets.get_opt(CENTRAL).await.with_context(at)?;
        let old = there.as_ref().and_then(|secret| secret.data.clone()).unwrap_or_default();
        let now = SystemTime::now();
        let trusted = certificate::bundle(central.certificate(), &text(&old, CA), now);
        let known = certificate::bundle(nodes.certificate(), &text(&old, CLIENTS), now);
        let clients = certificate::bundle(&trusted, &known, now);
        let is_good = text(&old, CA) == trusted
            && text(&old, CLIENTS) == clients
            && is_good(&text(&old, CERTIFICATE), now);
        if is_good {
            return Ok(trusted);
        }
        let pair = central.issue("slipstream-ovn-central", &[ServerAuth, ClientAuth])?;
        let new =
            data([(CA, &trusted), (CLIENTS, &clients), (CERTIFICATE, &pair.certificate), (KEY, &pair.key)]);
        let params = PostParams::default();
        match there {
            Some(secret) => {
                let object = Secret { data: Some(new), ..secret };
                self.secrets.replace(CENTRAL, &params, &object).await.with_context(at)?;
            }
            None => {
                let object = Secret { metadata: named(CENTRAL), data: Some(new), ..Secret::default() };
                self.secrets.create(&params, &object).await.with_context(at)?;
            }
        }
        tracing::info!(secret = CENTRAL, "certificate of the databases' servers made");
        Ok(trusted)
    }

    /// Tells nodes whom to trust.
    async fn publish(&self, trusted: &str) -> Result<()> {
        let at = || format!("ConfigMap {}/{AUTHORITIES}", self.settings.namespace);
        let there = self.maps.get_opt(AUTHORITIES).await.with_context(at)?;
        let said = there.as_ref().and_then(|map| map.data.as_ref()?.get(CA).cloned());
        if said.as_deref() == Some(trusted) {
            return Ok(());
        }
        let data = Some(BTreeMap::from([(CA.to_owned(), trusted.to_owned())]));
        let params = PostParams::default();
        let done = match there {
            Some(map) => self.maps.replace(AUTHORITIES, &params, &ConfigMap { data, ..map }).await,
            None => {
                let object = ConfigMap { metadata: named(AUTHORITIES), data, ..ConfigMap::default() };
                self.maps.create(&params, &object).await
            }
        };
        done.map(drop).with_context(at)
    }
}

/// The controller's own certificate. The database client reads the files at each attempt to connect.
fn own_files(directory: &Path, central: &Authority, trusted: &str) -> Result<()> {
    let at = || format!("{} (--certificates)", directory.display());
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
    if read(CA) == trusted && is_good(&read(CERTIFICATE), SystemTime::now()) {
        return Ok(());
    }
    fs::create_dir_all(directory).with_context(at)?;
    let pair = central.issue("slipstream-controller", &[ClientAuth])?;
    for (name, text) in [(KEY, pair.key.as_str()), (CERTIFICATE, &pair.certificate), (CA, trusted)] {
        write(&directory.join(name), text).with_context(at)?;
    }
    Ok(())
}

/// Replaces a file that only its owner reads.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let new = path.with_extension("new");
    let mut file = fs::File::options().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(new, path)
}

fn is_good(certificate: &str, now: SystemTime) -> bool {
    Facts::read(certificate).is_ok_and(|facts| !facts.is_due(now))
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

fn data<const N: usize>(texts: [(&str, &String); N]) -> Data {
    texts.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))).into()
}

fn text(data: &Data, key: &str) -> String {
    data.get(key).map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::extract::{Request, State};
    use axum::http::StatusCode;
    use axum::response::{IntoResponse, Response};
    use serde_json::{Value, json};

    use super::*;
    use crate::kubernetes::fake;

    type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

    /// A server that keeps what it is sent, by path.
    async fn answer(State(objects): State<Objects>, request: Request) -> Response {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
        let mut objects = objects.lock().unwrap();
        if parts.method == "GET" {
            return match objects.get(&path) {
                Some(object) => fake::object(object.clone()),
                None => {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                        "reason": "NotFound"});
                    (StatusCode::NOT_FOUND, axum::Json(status)).into_response()
                }
            };
        }
        let object: Value = serde_json::from_slice(&body).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        let path = if path.ends_with(name) { path } else { format!("{path}/{name}") };
        objects.insert(path, object.clone());
        fake::object(object)
    }

    async fn store(objects: &Objects, directory: &Path, create: bool) -> Store {
        let client = fake::serve(Router::new().fallback(answer).with_state(Arc::clone(objects))).await;
        let settings = Settings { namespace: "kube-system".into(), directory: directory.to_owned(), create };
        Store::new(client, settings)
    }

    fn certificates(objects: &Objects) -> Vec<Value> {
        objects.lock().unwrap().values().cloned().collect()
    }

    #[tokio::test]
    async fn everything_is_made_once_and_a_new_authority_is_trusted_beside_the_old_one() {
        let (objects, dir) = (Objects::default(), tempfile::tempdir().unwrap());
        let store = store(&objects, dir.path(), true).await;
        store.keep().await.unwrap();
        let first = certificates(&objects);
        assert_eq!(first.len(), 4);
        let own = fs::read_to_string(dir.path().join(CERTIFICATE)).unwrap();
        assert_eq!(Facts::read(&own).unwrap().name, "slipstream-controller");
        store.keep().await.unwrap();
        assert_eq!(certificates(&objects), first);
        assert_eq!(fs::read_to_string(dir.path().join(CERTIFICATE)).unwrap(), own);

        let path = format!("/api/v1/namespaces/kube-system/secrets/{CENTRAL_AUTHORITY}");
        objects.lock().unwrap().remove(&path).unwrap();
        store.keep().await.unwrap();
        let map = &objects.lock().unwrap()["/api/v1/namespaces/kube-system/configmaps/slipstream-ovn-ca"];
        assert_eq!(certificate::split(map["data"][CA].as_str().unwrap()).len(), 2);
    }

    #[tokio::test]
    async fn an_authority_of_others_is_waited_for_by_its_name() {
        let (objects, dir) = (Objects::default(), tempfile::tempdir().unwrap());
        let error = store(&objects, dir.path(), false).await.keep().await.unwrap_err().to_string();
        assert!(error.contains("Secret kube-system/slipstream-central-ca"), "{error}");
        assert!(certificates(&objects).is_empty());
    }
}
