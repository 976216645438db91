//! Tests of the API against an API server that the test plays.

use std::collections::BTreeMap;
use std::sync::Mutex;

use axum::body::Body;
use axum::http::{Method, Request, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use super::*;

/// What the API server has, and what it does with a network that is made.
#[derive(Default)]
struct Server {
    networks: BTreeMap<String, Value>,
    /// What the controller says of a network that is made; nothing if there is none.
    verdict: Option<Result<(), &'static str>>,
    /// Methods with the tokens that came with them.
    calls: Vec<(Method, String)>,
}

impl Server {
    fn refusal(code: u16, message: &str) -> Response {
        let reason = if code == 404 { "NotFound" } else { "Test" };
        let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message, "reason": reason});
        (StatusCode::from_u16(code).unwrap(), Json(body)).into_response()
    }

    fn answer(&mut self, method: &Method, uri: &Uri, headers: &HeaderMap, body: &str) -> Response {
        let token = headers.get(header::AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned());
        self.calls.push((method.clone(), token.clone().unwrap_or_default()));
        if token.as_deref() != Some("Bearer good") {
            return Self::refusal(403, "virtualnetworks is forbidden: User cannot");
        }
        let name = uri.path().rsplit('/').next().unwrap().to_owned();
        let sent: Value = serde_json::from_str(body).unwrap_or_default();
        match *method {
            Method::POST => {
                let name = sent["metadata"]["name"].as_str().unwrap().to_owned();
                if self.networks.contains_key(&name) {
                    return Self::refusal(409, "virtualnetworks \"blue\" already exists");
                }
                let mut made = sent;
                made["metadata"]["uid"] = json!("made");
                made["metadata"]["generation"] = json!(1);
                self.networks.insert(name.clone(), made);
                self.judge(&name);
                Json(self.networks[&name].clone()).into_response()
            }
            Method::PATCH => {
                let Some(found) = self.networks.get_mut(&name) else {
                    return Self::refusal(404, "not found");
                };
                for (key, value) in sent["spec"].as_object().unwrap() {
                    found["spec"][key] = value.clone();
                }
                found["metadata"]["generation"] =
                    json!(found["metadata"]["generation"].as_i64().unwrap() + 1);
                self.judge(&name);
                Json(self.networks[&name].clone()).into_response()
            }
            Method::DELETE => match self.networks.remove(&name) {
                Some(gone) => {
                    assert_eq!(sent["preconditions"]["uid"], gone["metadata"]["uid"]);
                    Json(gone).into_response()
                }
                None => Self::refusal(404, "not found"),
            },
            _ if name == "virtualnetworks" => {
                let items: Vec<&Value> = self.networks.values().collect();
                let list = json!({"kind": "VirtualNetworkList", "apiVersion": "slipstream.dev/v1alpha1", "metadata": {}, "items": items});
                Json(list).into_response()
            }
            _ => match self.networks.get(&name) {
                Some(found) => Json(found.clone()).into_response(),
                None => Self::refusal(404, "virtualnetworks \"blue\" not found"),
            },
        }
    }

    fn judge(&mut self, name: &str) {
        let Some(verdict) = &self.verdict else { return };
        let network = self.networks.get_mut(name).unwrap();
        let (status, message) = match verdict {
            Ok(()) => ("True", "pods may attach to it"),
            Err(message) => ("False", *message),
        };
        let condition = json!({"type": "Ready", "status": status, "reason": "Test", "message": message});
        network["status"] =
            json!({"observedGeneration": network["metadata"]["generation"], "conditions": [condition]});
    }
}

/// The API in front of this server.
async fn api(server: Server) -> (Router, Arc<Mutex<Server>>) {
    let state = Arc::new(Mutex::new(server));
    let kept = Arc::clone(&state);
    let pages =
        Router::new().fallback(async move |method: Method, uri: Uri, headers: HeaderMap, body: String| {
            kept.lock().unwrap().answer(&method, &uri, &headers, &body)
        });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, pages).await });
    let mut config = kube::Config::new(Uri::try_from(format!("http://{address}")).unwrap());
    // The controller's own credentials, which must not be used.
    config.auth_info.token = Some("controllers-own".to_owned().into());
    (super::pages(config, Duration::from_secs(1), Metrics::default()), state)
}

async fn ask(pages: &Router, method: Method, path: &str, token: Option<&str>, body: Value) -> (u16, Value) {
    let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let text = if body.is_null() { String::new() } else { body.to_string() };
    let answer = pages.clone().oneshot(request.body(Body::from(text)).unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

const ALL: &str = "/v1/namespaces/shop/networks";
const ONE: &str = "/v1/namespaces/shop/networks/blue";

fn blue() -> Value {
    json!({"name": "blue", "spec": {"subnets": ["172.16.24.0/24"]}})
}

#[tokio::test]
async fn a_network_is_made_queried_changed_and_deleted_with_the_callers_token() {
    let (pages, state) = api(Server { verdict: Some(Ok(())), ..Server::default() }).await;
    let (code, made) = ask(&pages, Method::POST, ALL, Some("good"), blue()).await;
    assert_eq!((code, &made["ready"], &made["name"]), (201, &json!(true), &json!("blue")), "{made}");
    let (code, again) = ask(&pages, Method::POST, ALL, Some("good"), blue()).await;
    assert!(code == 409 && again["error"].as_str().unwrap().contains("already exists"), "{again}");
    for path in ["/v1/networks", ALL] {
        let (code, all) = ask(&pages, Method::GET, path, Some("good"), Value::Null).await;
        assert_eq!((code, all["networks"].as_array().unwrap().len()), (200, 1), "{path}");
    }
    let (code, changed) = ask(&pages, Method::PATCH, ONE, Some("good"), json!({"spec": {"mtu": 1300}})).await;
    assert_eq!((code, &changed["spec"]["mtu"]), (200, &json!(1300)), "{changed}");
    assert_eq!(ask(&pages, Method::GET, ONE, Some("good"), Value::Null).await.1["spec"]["mtu"], 1300);
    let (code, gone) = ask(&pages, Method::DELETE, ONE, Some("good"), Value::Null).await;
    assert_eq!((code, &gone["deleted"]), (200, &json!(true)), "{gone}");
    assert_eq!(ask(&pages, Method::DELETE, ONE, Some("good"), Value::Null).await.0, 404);
    assert!(state.lock().unwrap().calls.iter().all(|(_, token)| token == "Bearer good"));
}

#[tokio::test]
async fn what_the_controller_refuses_or_does_not_see_is_removed_again() {
    for (verdict, code, words) in [
        (
            Some(Err("spec.subnets[0]: 172.16.24.0/24 overlaps something")),
            422,
            "overlaps something; it is removed again",
        ),
        (None, 504, "said nothing of it within 1 s; it is removed again"),
    ] {
        let (pages, state) = api(Server { verdict, ..Server::default() }).await;
        let (found, answer) = ask(&pages, Method::POST, ALL, Some("good"), blue()).await;
        assert!(found == code && answer["error"].as_str().unwrap().contains(words), "{found}: {answer}");
        assert!(state.lock().unwrap().networks.is_empty());
    }
}

#[tokio::test]
async fn what_a_caller_that_goes_away_began_is_brought_to_its_end() {
    let (pages, state) = api(Server::default()).await;
    let asking = tokio::spawn(async move { ask(&pages, Method::POST, ALL, Some("good"), blue()).await });
    for _ in 0..100 {
        if !state.lock().unwrap().networks.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    asking.abort();
    assert!(asking.await.is_err());
    for _ in 0..300 {
        if state.lock().unwrap().networks.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the network that nobody judged is still there");
}

#[tokio::test]
async fn without_a_token_nothing_is_asked_and_with_a_bad_one_the_api_server_says_no() {
    let (pages, state) = api(Server::default()).await;
    for (method, path) in
        [(Method::GET, ONE), (Method::POST, ALL), (Method::DELETE, ONE), (Method::PATCH, ONE)]
    {
        let (code, answer) = ask(&pages, method.clone(), path, None, blue()).await;
        assert!(
            code == 401 && answer["error"].as_str().unwrap().contains("Authorization: Bearer"),
            "{answer}"
        );
        assert_eq!(ask(&pages, method, path, Some(" "), blue()).await.0, 401);
    }
    assert!(state.lock().unwrap().calls.is_empty());
    let (code, answer) = ask(&pages, Method::POST, ALL, Some("bad"), blue()).await;
    assert!(code == 403 && answer["error"].as_str().unwrap().contains("is forbidden"), "{answer}");
}

#[tokio::test]
async fn bad_requests_are_told_and_the_older_form_is_converted() {
    let (pages, state) = api(Server { verdict: Some(Ok(())), ..Server::default() }).await;
    for (body, words) in [
        (json!({}), "`name` is missing"),
        (json!({"name": "blue"}), "`spec` is missing"),
        (json!({"name": "blue", "spec": {"subnets": 7}}), "spec.subnets"),
        (json!({"name": "blue", "spec": {"subnet": []}}), "unknown field"),
        (json!({"name": "blue", "spec": {}, "config": "{}"}), "one of them is needed"),
        (json!({"name": "blue", "config": "{"}), "spec.config: EOF while parsing"),
    ] {
        let (code, answer) = ask(&pages, Method::POST, ALL, Some("good"), body).await;
        assert!(code == 400 && answer["error"].as_str().unwrap().contains(words), "{code} {answer}");
    }
    assert_eq!(ask(&pages, Method::PATCH, ONE, Some("good"), json!({"spec": {}})).await.0, 400);
    assert_eq!(ask(&pages, Method::PUT, ONE, Some("good"), blue()).await.0, 405);
    assert_eq!(ask(&pages, Method::GET, "/v2", Some("good"), Value::Null).await.0, 404);
    for path in [
        "/v1/namespaces/a%2F..%2Fb/networks",
        "/v1/namespaces/shop/networks/%2E%2E",
        "/v1/namespaces/shop/networks/b%3Fx",
    ] {
        let method = if path.ends_with("networks") { Method::POST } else { Method::DELETE };
        let (code, answer) = ask(&pages, method, path, Some("good"), blue()).await;
        assert!(code == 400 && answer["error"].as_str().unwrap().contains("name"), "{path}: {code} {answer}");
    }
    let (code, answer) =
        ask(&pages, Method::POST, ALL, Some("good"), json!({"name": "a/b", "spec": {"subnets": []}})).await;
    assert!(code == 400 && answer["error"].as_str().unwrap().contains("name"), "{code} {answer}");
    assert!(state.lock().unwrap().calls.is_empty(), "nothing of that is asked of the API server");
    let large = json!({"name": "x".repeat(MAX_BODY)});
    assert_eq!(ask(&pages, Method::POST, ALL, Some("good"), large).await.0, 413);
    let config = r#"{"cnitype": "ovn", "subnet": "172.16.24.0/24", "gateway": "172.16.24.1"}"#;
    let (code, made) =
        ask(&pages, Method::POST, ALL, Some("good"), json!({"name": "blue", "config": config})).await;
    assert_eq!(
        (code, &made["spec"]["reach"], &made["spec"]["scope"]),
        (201, &json!("Outside"), &json!("Cluster"))
    );
    assert_eq!(state.lock().unwrap().networks.len(), 1);
}

#[test]
fn tokens_go_over_a_network_only_with_a_certificate() {
    let settings = |address: &str| Settings { address: address.parse().unwrap(), tls: None };
    assert!(settings("127.0.0.1:9412").check().is_ok() && settings("[::1]:9412").check().is_ok());
    let error = settings("0.0.0.0:9412").check().unwrap_err().to_string();
    assert!(error.contains("--network-api-cert"), "{error}");
}

/// Writes a certificate and its key.
fn certificate(directory: &std::path::Path) -> (PathBuf, PathBuf) {
    let key = rcgen::KeyPair::generate().unwrap();
    let cert =
        rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    let files = (directory.join("tls.crt"), directory.join("tls.key"));
    std::fs::write(&files.0, cert.pem()).unwrap();
    std::fs::write(&files.1, key.serialize_pem()).unwrap();
    files
}

/// One request over TLS; the certificate that the server showed.
async fn over_tls(address: SocketAddr, roots: &std::path::Path) -> Result<String, String> {
    use rustls::pki_types::pem::PemObject;
    let mut store = rustls::RootCertStore::empty();
    for one in rustls::pki_types::CertificateDer::pem_file_iter(roots).unwrap() {
        store.add(one.unwrap()).unwrap();
    }
    let config = rustls::ClientConfig::builder().with_root_certificates(store).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
    stream
        .write_all(b"GET /v1/networks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut said = String::new();
    // A server that closes without a word of TLS is an error here.
    let _ = stream.read_to_string(&mut said).await;
    Ok(said)
}

#[tokio::test]
async fn tls_is_served_beside_clients_that_say_nothing_and_with_a_renewed_certificate() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let directory = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(directory.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let files = tls::Files::read(cert.clone(), key.clone(), Metrics::default()).unwrap();
    let (pages, _) = api(Server::default()).await;
    let (served, _accepting) = tls::Listener::start(listener, files).unwrap();
    tokio::spawn(async move { axum::serve(served, pages).await });
    let _silent = tokio::net::TcpStream::connect(address).await.unwrap();
    let said = over_tls(address, &cert).await.unwrap();
    assert!(said.starts_with("HTTP/1.1 401"), "{said}");
    let old = directory.path().join("old.crt");
    std::fs::copy(&cert, &old).unwrap();
    // File times may be as coarse as the kernel's clock tick.
    tokio::time::sleep(Duration::from_millis(20)).await;
    certificate(directory.path());
    assert!(over_tls(address, &cert).await.unwrap().starts_with("HTTP/1.1 401"), "the new one");
    assert!(over_tls(address, &old).await.is_err(), "not the old one");
    std::fs::write(&cert, "nothing").unwrap();
    let error = format!("{:#}", tls::Files::read(cert, key, Metrics::default()).err().unwrap());
    assert!(error.contains("--network-api-cert"), "{error}");
}
