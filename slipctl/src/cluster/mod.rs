//! What is asked of the whole cluster: by kubectl, by commands in the pods of nodes, and by OVN's own programs beside its databases.

pub(crate) mod bundle;
pub(crate) mod nodes;
mod redact;

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::client::Error;

/// How programs are reached.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Reach {
    /// kubectl, with flags such as --kubeconfig FILE or --context NAME.
    #[arg(long, env = "SLIPSTREAM_KUBECTL", default_value = "kubectl")]
    kubectl: String,
    /// Namespace of Slipstream's pods.
    #[arg(long, env = "SLIPSTREAM_NAMESPACE", default_value = "kube-system")]
    namespace: String,
    /// Command that runs another one on a node, {node} being its name; by default kubectl exec in the agent's pod.
    #[arg(long, env = "SLIPSTREAM_NODE_EXEC")]
    node_exec: Option<String>,
    /// Command that runs another one beside OVN's databases; by default kubectl exec in a pod of slipstream-ovn-central.
    #[arg(long, env = "SLIPSTREAM_CENTRAL_EXEC")]
    central_exec: Option<String>,
}

impl Reach {
    /// For what needs no pod of ours.
    pub(crate) fn by(kubectl: &str) -> Self {
        Self { kubectl: kubectl.to_owned(), namespace: String::new(), node_exec: None, central_exec: None }
    }

    /// Output of kubectl.
    ///
    /// # Errors
    /// kubectl cannot be started or fails; the error has its words.
    pub(crate) fn kubectl(&self, args: &[&str]) -> Result<String, Error> {
        let words: Vec<&str> = self.kubectl.split_whitespace().chain(args.iter().copied()).collect();
        output(&words)
    }

    /// Output of kubectl, with `input` on its standard input.
    ///
    /// # Errors
    /// As of [`Self::kubectl`].
    pub(crate) fn kubectl_with(&self, args: &[&str], input: &str) -> Result<String, Error> {
        let words: Vec<&str> = self.kubectl.split_whitespace().chain(args.iter().copied()).collect();
        run(&words, Some(input))
    }

    /// Objects as JSON: `kubectl get ARGS -o json`.
    ///
    /// # Errors
    /// As of [`Self::kubectl`], or it is no JSON.
    pub(crate) fn get(&self, args: &[&str]) -> Result<Value, Error> {
        let text = self.kubectl(&[&["get"], args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text)
            .map_err(|error| Error::Program(format!("kubectl get {}: {error}", args.join(" "))))
    }

    /// The items of a list of objects.
    ///
    /// # Errors
    /// As of [`Self::get`].
    pub(crate) fn list(&self, args: &[&str]) -> Result<Vec<Value>, Error> {
        Ok(self.get(args)?["items"].as_array().cloned().unwrap_or_default())
    }

    /// Runs a command on a node.
    ///
    /// # Errors
    /// The node has no pod of the agent, or the command fails.
    pub(crate) fn on_node(&self, node: &str, command: &[&str]) -> Result<String, Error> {
        if let Some(prefix) = &self.node_exec {
            let prefix = prefix.replace("{node}", node);
            return output(&prefix.split_whitespace().chain(command.iter().copied()).collect::<Vec<_>>());
        }
        let field = format!("spec.nodeName={node}");
        let pod = self.pod(&["--selector=app.kubernetes.io/component=node", "--field-selector", &field])?;
        let pod =
            pod.ok_or_else(|| Error::Program(format!("node {node}: no pod of slipstream-node runs there")))?;
        let exec = ["exec", "-n", &self.namespace, &pod, "-c", "node-agent", "--"];
        self.kubectl(&[&exec, command].concat())
    }

    /// Runs a command beside OVN's databases.
    ///
    /// # Errors
    /// There is no such pod, or the command fails.
    pub(crate) fn on_central(&self, command: &[&str]) -> Result<String, Error> {
        if let Some(prefix) = &self.central_exec {
            return output(&prefix.split_whitespace().chain(command.iter().copied()).collect::<Vec<_>>());
        }
        let pod = self.pod(&["--selector=app.kubernetes.io/component=ovn-central"])?;
        let pod = pod.ok_or_else(|| {
            Error::Program(format!(
                "namespace {}: no pod of slipstream-ovn-central; where OVN runs otherwise, say how with --central-exec",
                self.namespace
            ))
        })?;
        let exec = ["exec", "-n", &self.namespace, &pod, "--"];
        self.kubectl(&[&exec, command].concat())
    }

    /// The first running pod of ours.
    fn pod(&self, which: &[&str]) -> Result<Option<String>, Error> {
        let pods = self.list(&[&["pods", "-n", &self.namespace], which].concat())?;
        let running = pods.iter().find(|pod| pod["status"]["phase"] == "Running");
        Ok(running.and_then(|pod| Some(pod["metadata"]["name"].as_str()?.to_owned())))
    }
}

/// Output of a program.
fn output(words: &[&str]) -> Result<String, Error> {
    run(words, None)
}

/// Output of a program that reads `input`.
fn run(words: &[&str], input: Option<&str>) -> Result<String, Error> {
    let shown = words.join(" ");
    let (program, args) = words.split_first().ok_or_else(|| Error::Usage("an empty command".to_owned()))?;
    #[expect(
        clippy::disallowed_methods,
        reason = "kubectl is how slipctl asks the cluster; nothing here is on a hot path"
    )]
    let begun = Command::new(program)
        .args(args)
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let done = begun.and_then(|mut child| {
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // A program that ends without reading says itself why.
            let _ = stdin.write_all(input.as_bytes());
        }
        child.wait_with_output()
    });
    let done = done.map_err(|error| Error::Program(format!("cannot run `{shown}`: {error}")))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let said = String::from_utf8_lossy(&done.stderr);
    let said = said.trim();
    // slipctl on a node says by its exit code what it found; kubectl exec adds a line about that.
    let answered =
        !text.trim().is_empty() && (said.is_empty() || said.starts_with("command terminated with exit code"));
    match done.status.success() || answered {
        true => Ok(text),
        false => Err(Error::Program(format!("`{shown}`: {said}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_run_behind_its_prefix_and_its_words_are_in_the_error() {
        let reach = Reach {
            kubectl: "echo".to_owned(),
            namespace: "kube-system".to_owned(),
            node_exec: Some("echo on {node}".to_owned()),
            central_exec: Some("false".to_owned()),
        };
        assert_eq!(reach.on_node("n1", &["slipctl", "status"]).unwrap(), "on n1 slipctl status\n");
        assert_eq!(reach.kubectl(&["get", "pods"]).unwrap(), "get pods\n");
        let error = reach.on_central(&["ovn-trace"]).unwrap_err().to_string();
        assert!(error.contains("`false ovn-trace`"), "{error}");
        assert_eq!(run(&["cat"], Some("read")).unwrap(), "read");
        let found = output(&["sh", "-c", "echo found; echo command terminated with exit code 6 >&2; exit 6"]);
        assert_eq!(found.unwrap(), "found\n");
        let gone = output(&["/nothing/here"]).unwrap_err().to_string();
        assert!(gone.contains("/nothing/here"), "{gone}");
    }
}
