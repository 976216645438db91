//! Everything that talks to the API server: watches, annotations, events, the lease.

pub mod annotate;
mod claim_status;
pub mod events;
#[cfg(test)]
pub(crate) mod fake;
pub mod lease;
mod network_status;
pub mod onap_networks;
pub mod reports;
pub mod watch;

use std::time::Duration;

use anyhow::{Context, ensure};
use api::settings::ApiAccessArgs;
use axum::http::Uri;

/// Limit for one API call of any kind. Lists and watches have limits of their own.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence on a connection while an answer or a watch's next event is due. Longer than a watch lasts, so that a live
/// watch is never cut off.
const READ_TIMEOUT: Duration = Duration::from_secs(44);

/// The API server's address and our credentials for it.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Kubeconfig file; without it the pod's service account.
    pub kubeconfig: Option<std::path::PathBuf>,
    /// Replaces the server that either of them names.
    pub server: Option<Uri>,
    /// Token and certificate authority from flags, which go with a server of the flags, and replace the service account.
    pub flags: ApiAccessArgs,
}

impl Access {
    /// A client.
    ///
    /// # Errors
    /// Fails as [`Self::config`], or the client cannot be set up with these settings.
    pub async fn client(&self) -> anyhow::Result<kube::Client> {
        let config = self.config().await?;
        let server = config.cluster_url.clone();
        tracing::info!(%server, "Kubernetes API");
        kube::Client::try_from(config)
            .with_context(|| format!("API server {server}: the client cannot be set up"))
    }

    /// The settings of a client.
    ///
    /// # Errors
    /// The kubeconfig, the flags or the service account cannot be read or used.
    pub async fn config(&self) -> anyhow::Result<kube::Config> {
        let server = self.server.as_ref().map(Uri::to_string);
        let mut config = match &self.kubeconfig {
            None if let Some(made) = self.flags.kubeconfig(server.as_deref())? => {
                let made = serde_json::from_value(made).context("--api-token, --api-ca")?;
                kube::Config::from_custom_kubeconfig(made, &kube::config::KubeConfigOptions::default())
                    .await
                    .context("--api-server with --api-token, --api-token-file or --api-ca")?
            }
            Some(path) => {
                let shown = path.display();
                let file = kube::config::Kubeconfig::read_from(path)
                    .with_context(|| format!("--kubeconfig {shown}: a readable kubeconfig file is needed"))?;
                kube::Config::from_custom_kubeconfig(file, &kube::config::KubeConfigOptions::default())
                    .await
                    .with_context(|| format!("--kubeconfig {shown}: its current context cannot be used"))?
            }
            None => kube::Config::incluster()
                .context("no --kubeconfig given and not running in a pod with a service account")?,
        };
        if let Some(server) = &self.server {
            config.cluster_url = server.clone();
        }
        // A server that went away without closing the connection is noticed, even if its address moved to another server.
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        Ok(config)
    }
}

/// Reads the address of an API server from the command line.
///
/// # Errors
/// The text is no `https://HOST[:PORT]`.
pub fn parse_server(text: &str) -> anyhow::Result<Uri> {
    let form = "the form is https://HOST[:PORT], as in https://192.0.2.1:6443";
    let uri: Uri = text.parse().context(form)?;
    ensure!(matches!(uri.scheme_str(), Some("https" | "http")) && uri.host().is_some(), form);
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: 'http://192.0.2.1:6443'}}]
users: [{name: me, user: {token: secret}}]
";

    #[tokio::test]
    async fn the_servers_address_of_the_command_line_goes_before_the_kubeconfigs() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), KUBECONFIG).unwrap();
        let access = Access {
            kubeconfig: Some(file.path().to_owned()),
            server: Some(parse_server(&format!("http://{address}")).unwrap()),
            flags: ApiAccessArgs::default(),
        };
        let client = access.client().await.unwrap();
        let asked = tokio::spawn(async move { client.apiserver_version().await });
        listener.accept().await.unwrap();
        asked.abort();
    }

    #[tokio::test]
    async fn a_token_of_the_flags_is_shown_to_the_server_of_the_flags() {
        use tokio::io::AsyncReadExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let flags = ApiAccessArgs { api_token: Some("of-the-flag".to_owned()), ..ApiAccessArgs::default() };
        let without = Access { flags: flags.clone(), ..Access::default() };
        assert!(without.client().await.err().unwrap().to_string().contains("--api-server"));
        let access = Access { kubeconfig: None, server: Some(parse_server(&server).unwrap()), flags };
        let client = access.client().await.unwrap();
        let asked = tokio::spawn(async move { client.apiserver_version().await });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 2048];
        let length = stream.read(&mut request).await.unwrap();
        let request = String::from_utf8_lossy(&request[..length]).to_lowercase();
        assert!(request.contains("authorization: bearer of-the-flag"), "{request}");
        asked.abort();
    }

    #[test]
    fn an_address_without_scheme_or_host_is_refused_with_the_form() {
        assert!(parse_server("https://[fd00::1]:6443").is_ok());
        for bad in ["192.0.2.1:6443", "kubernetes", "/path", "ftp://x", ""] {
            let error = format!("{:#}", parse_server(bad).unwrap_err());
            assert!(error.contains("https://192.0.2.1:6443"), "{bad}: {error}");
        }
    }
}
