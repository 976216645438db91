//! Virtual networks over HTTP: the controller's API, with the rights of who asks.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::harness::Checks;
use testbed::cluster::Bed;
use testbed::cluster::config::NETWORK_API_PORT;
use testbed::exec;

use super::life::{eventually, running};
use super::scene::{HEAL, RED, Scene, asking};

/// A service account that may do everything with virtual networks, and one that may only look.
const EDITOR: &str = "network-editor";
const VIEWER: &str = "network-viewer";

fn rights() -> String {
    let one = |name: &str, verbs: &Value| {
        [
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": RED, "name": name}}),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"namespace": RED, "name": name},
                "rules": [{"apiGroups": ["slipstream.dev"], "resources": ["virtualnetworks"], "verbs": verbs}]}),
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"namespace": RED, "name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "namespace": RED, "name": name}]}),
        ]
    };
    let all = [
        one(EDITOR, &json!(["get", "list", "create", "patch", "delete"])),
        one(VIEWER, &json!(["get", "list"])),
    ];
    all.concat().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n")
}

/// One request: the code and the answer.
fn ask(bed: &Bed, token: &str, method: &str, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
    let mut curl = bed.host("central").network_command("curl")?;
    let url = format!("http://{}:{NETWORK_API_PORT}{path}", Ipv4Addr::LOCALHOST);
    curl.args([
        "--silent",
        "--show-error",
        "--max-time",
        "60",
        "--write-out",
        "\n%{http_code}",
        "--request",
        method,
    ]);
    curl.args([
        "--header",
        &format!("Authorization: Bearer {token}"),
        "--header",
        "Content-Type: application/json",
    ]);
    if let Some(body) = body {
        curl.args(["--data", &body.to_string()]);
    }
    let said = exec::output(curl.arg(&url)).with_context(|| format!("{method} {url}"))?;
    let (text, code) =
        said.trim_end().rsplit_once('\n').with_context(|| format!("{method} {url}: {said:?}"))?;
    let answer = serde_json::from_str(text).with_context(|| format!("{method} {url}: {said:?}"))?;
    Ok((code.parse()?, answer))
}

/// All of it.
pub(super) fn check(scene: &Scene<'_>, checks: &mut Checks) -> Result<()> {
    let (bed, red) = (scene.bed(), &scene.red);
    red.apply(rights())?;
    let token = |name: &str| bed.kubectl(&["create", "token", "-n", RED, name]);
    let (editor, viewer) = (token(EDITOR)?, token(VIEWER)?);
    let (all, one) =
        (format!("/v1/namespaces/{RED}/networks"), format!("/v1/namespaces/{RED}/networks/http"));
    let told = |found: Result<(u16, Value)>, code: u16, words: &str| -> Result<String, String> {
        let (found, answer) = found.map_err(|error| format!("{error:#}"))?;
        let text = format!("{found}: {answer}");
        if found == code && text.contains(words) { Ok(text.chars().take(160).collect()) } else { Err(text) }
    };
    let body = json!({"name": "http", "spec": {"subnets": ["172.16.80.0/24"]}});
    // Rights that are new take a moment.
    let made = eventually(|| {
        let found = ask(bed, editor.trim(), "POST", &all, Some(&body))?;
        ensure!(found.0 != 403, "{found:?}");
        told(Ok(found), 201, "\"ready\":true").map_err(anyhow::Error::msg)
    });
    checks.check("who may create networks makes one, which is ready then", made);
    let ask = |token: &str, method: &str, path: &str, body: Option<&Value>| {
        ask(bed, token.trim(), method, path, body)
    };
    checks.check(
        "a second one of the name is refused",
        told(ask(&editor, "POST", &all, Some(&body)), 409, "already exists"),
    );
    let overlap = json!({"name": "wrong", "spec": {"subnets": ["10.244.3.0/24"]}});
    checks.check(
        "one that the controller refuses is removed again",
        told(ask(&editor, "POST", &all, Some(&overlap)), 422, "it is removed again"),
    );
    checks.check(
        "and is not there",
        told(ask(&editor, "GET", &format!("{all}/wrong"), None), 404, "not found"),
    );
    checks.check("who may only look sees it", told(ask(&viewer, "GET", &one, None), 200, "172.16.80.0/24"));
    checks.check("and changes nothing", told(ask(&viewer, "DELETE", &one, None), 403, "forbidden"));
    checks.check(
        "nor sees other namespaces",
        told(ask(&viewer, "GET", "/v1/networks", None), 403, "forbidden"),
    );
    checks.check("a token that is none is refused", told(ask("nonsense", "GET", &one, None), 401, "error"));
    let change = json!({"spec": {"mtu": 1300}});
    checks
        .check("a field that may change does", told(ask(&editor, "PATCH", &one, Some(&change)), 200, "1300"));
    let fixed = json!({"spec": {"subnets": ["172.16.81.0/24"]}});
    checks.check(
        "one that may not is refused",
        told(ask(&editor, "PATCH", &one, Some(&fixed)), 422, "cannot be changed"),
    );
    red.apply(asking(RED, "user", Some("n1"), &json!([{"name": "http", "interface": "net1"}])))?;
    checks.check("a pod attaches to it", running(red, "user"));
    checks.check("in use it stays", told(ask(&editor, "DELETE", &one, None), 202, "attached to it"));
    red.delete(&["user"])?;
    let gone = eventually(|| {
        let found = ask(&editor, "GET", &one, None)?;
        ensure!(found.0 == 404, "{found:?}");
        Ok(String::new())
    });
    checks.check("and goes with its last pod", gone);
    let legacy = json!({"name": "http", "config": r#"{"cnitype": "ovn", "subnet": "172.16.80.0/24", "gateway": "172.16.80.1"}"#});
    checks.check(
        "the older form makes one, too",
        told(ask(&editor, "POST", &all, Some(&legacy)), 201, "\"Outside\""),
    );
    checks.check(
        "which nobody uses and is deleted at once",
        told(ask(&editor, "DELETE", &one, None), 200, "\"deleted\":true"),
    );
    bed.remove(&rights(), HEAL)
}
