//! Clients of the API server: the service accounts of `deploy/rbac.yaml` with tokens as the kubelet would issue them, and any identity
//! that the administrator impersonates.

use std::collections::HashMap;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use tokio::runtime;

use super::Bed;
use super::pki;
use crate::config::Config;

/// Namespace of the service accounts.
const NAMESPACE: &str = "kube-system";
const CONTROLLER: &str = "slipstream-controller";
const AGENT: &str = "slipstream-node-agent";
/// How the API server tells policies which node a token is bound to.
const NODE_OF_TOKEN: &str = "authentication.kubernetes.io/node-name";
/// How long tokens are good for, seconds: thirty days, longer than any cluster is kept.
const LIFETIME: i64 = 30 * 24 * 3600;

/// An identity that the administrator impersonates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    user: String,
    groups: Vec<String>,
    node: Option<String>,
}

impl Actor {
    /// A user with no rights but those that are bound to that name.
    #[must_use]
    pub fn user(name: &str) -> Self {
        Self { user: name.to_owned(), groups: Vec::new(), node: None }
    }

    /// A service account.
    #[must_use]
    pub fn account(namespace: &str, name: &str) -> Self {
        Self::user(&format!("system:serviceaccount:{namespace}:{name}"))
    }

    /// The controller.
    #[must_use]
    pub fn controller() -> Self {
        Self::account(NAMESPACE, CONTROLLER)
    }

    /// The agent of a node, by a token that is bound to it; without one, by a token that is bound to none.
    #[must_use]
    pub fn agent(node: Option<&str>) -> Self {
        Self { node: node.map(str::to_owned), ..Self::account(NAMESPACE, AGENT) }
    }

    /// The kubelet of a node.
    #[must_use]
    pub fn kubelet(node: &str) -> Self {
        Self { groups: vec!["system:nodes".to_owned()], ..Self::user(&format!("system:node:{node}")) }
    }

    /// The identity with every right of an administrator: only admission still decides what it may write.
    #[must_use]
    pub fn with_all_rights(mut self) -> Self {
        self.groups.push("system:masters".to_owned());
        self
    }

    /// Flags of kubectl that impersonate it.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        let mut flags = vec![format!("--as={}", self.user)];
        flags.extend(self.groups.iter().map(|group| format!("--as-group={group}")));
        flags.extend(self.node.iter().map(|node| format!("--as-user-extra={NODE_OF_TOKEN}={node}")));
        flags
    }

    fn play(&self, auth: &mut AuthInfo) {
        auth.impersonate = Some(self.user.clone());
        auth.impersonate_groups = (!self.groups.is_empty()).then(|| self.groups.clone());
        let extra = |node: &String| HashMap::from([(NODE_OF_TOKEN.to_owned(), vec![node.clone()])]);
        auth.impersonate_user_extra = self.node.as_ref().map(extra);
    }
}

/// A client with the rights of a kubeconfig, or as an identity that its user impersonates.
pub async fn client(kubeconfig: &Path, actor: Option<&Actor>) -> Result<Client> {
    let mut file =
        Kubeconfig::read_from(kubeconfig).with_context(|| format!("kubeconfig {}", kubeconfig.display()))?;
    if let Some(actor) = actor {
        let users = file.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut());
        users.for_each(|auth| actor.play(auth));
    }
    Ok(Client::try_from(config(file).await?)?)
}

/// A client whose watches are given up when they are silent for so long: the machine may have lost the address of their connection.
pub async fn client_of_a_node(kubeconfig: &Path, silence: Duration) -> Result<Client> {
    let file =
        Kubeconfig::read_from(kubeconfig).with_context(|| format!("kubeconfig {}", kubeconfig.display()))?;
    let mut config = config(file).await?;
    config.read_timeout = Some(silence);
    Ok(Client::try_from(config)?)
}

async fn config(file: Kubeconfig) -> Result<kube::Config> {
    Ok(kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)
}

impl Bed {
    /// Asks the API server from its own host, in a thread with a network and a runtime of its own.
    pub fn api<T: Send>(&self, work: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            let ask = || {
                self.enter_network("central")?;
                runtime::Builder::new_current_thread().enable_all().build()?.block_on(work())
            };
            let asking = thread::Builder::new().name("api".into()).spawn_scoped(scope, ask)?;
            asking.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        })
    }

    /// A client of the administrator, or of an identity that they impersonate, for use inside [`Self::api`].
    pub async fn client(&self, actor: Option<&Actor>) -> Result<Client> {
        client(&self.config().kubeconfig("admin"), actor).await
    }

    /// Gives the agent of a node a new token: one that is bound to a Node object is void when that object goes.
    pub fn renew_token(&self, node: &str) -> Result<()> {
        self.api(async || agent_token(self.config(), &self.client(None).await?, node).await)
    }
}

/// Kubeconfigs of the controller and of every agent.
pub(crate) fn issue(bed: &Bed) -> Result<()> {
    let config = bed.config();
    bed.api(async || {
        let client = bed.client(None).await?;
        let spec = TokenRequestSpec { expiration_seconds: Some(LIFETIME), ..TokenRequestSpec::default() };
        token(config, &client, CONTROLLER, "controller", spec).await?;
        for node in config.node_names() {
            agent_token(config, &client, &node).await?;
        }
        Ok(())
    })
}

async fn agent_token(config: &Config, client: &Client, node: &str) -> Result<()> {
    let object = Api::<Node>::all(client.clone()).get(node).await.with_context(|| format!("node {node}"))?;
    let spec = TokenRequestSpec {
        expiration_seconds: Some(LIFETIME),
        bound_object_ref: Some(BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: object.metadata.uid,
        }),
        ..TokenRequestSpec::default()
    };
    token(config, client, AGENT, &format!("agent-{node}"), spec).await
}

/// Asks for a token and writes it, and a kubeconfig that names its file.
async fn token(
    config: &Config,
    client: &Client,
    account: &str,
    file: &str,
    spec: TokenRequestSpec,
) -> Result<()> {
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let granted = accounts
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .with_context(|| format!("token of {account}"))?;
    let token = granted.status.context("the API server gave no token")?.token;
    pki::put_token(config, file, &token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_played_with_the_node_of_its_token() {
        assert_eq!(
            Actor::agent(Some("n1")).flags(),
            [
                "--as=system:serviceaccount:kube-system:slipstream-node-agent",
                "--as-user-extra=authentication.kubernetes.io/node-name=n1",
            ]
        );
        let mut auth = AuthInfo::default();
        Actor::agent(Some("n1")).play(&mut auth);
        assert_eq!(auth.impersonate_user_extra.unwrap()[NODE_OF_TOKEN], ["n1"]);
        assert_eq!(auth.impersonate_groups, None, "the API server adds those of the account");
    }

    #[test]
    fn rights_are_added_by_a_group() {
        let flags = Actor::controller().with_all_rights().flags();
        assert_eq!(
            flags,
            ["--as=system:serviceaccount:kube-system:slipstream-controller", "--as-group=system:masters"]
        );
    }
}
