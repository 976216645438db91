//! Where the settings of the controller and of the agents come from. Each is a flag with an environment variable `SLIPSTREAM_*`; what
//! neither of them gives is looked up where ovn-kubernetes looks: its own environment variables, its file `ovn_k8s.conf`, and
//! `external_ids` of the node's Open_vSwitch. Old flags are accepted with a warning that names the new one.
//!
//! The order: command line, environment, file, `external_ids`, default. `docs/seeds.md` has every old word.

mod command_line;
mod conversion;
mod external_ids;
mod file;
mod found;
mod shown;
mod words;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Command, Parser};

pub use external_ids::read as read_external_ids;
pub use words::{ENVIRONMENT, EXTERNAL_IDS, FILE, Program, WORDS};

use found::Found;

/// The file of ovn-kubernetes.
pub const CONFIG_FILE: &str = "/etc/openvswitch/ovn_k8s.conf";
/// The socket of the node's OVS database.
pub const OVS_SOCKET: &str = "/run/openvswitch/db.sock";
/// The subcommand that has the settings.
const RUN: &str = "run";

/// Flags that say where settings come from. They are looked at before the others are read.
#[derive(Debug, Clone, clap::Args)]
pub struct SettingsArgs {
    /// File of ovn-kubernetes with settings that neither a flag nor the environment gives; by default
    /// /etc/openvswitch/ovn_k8s.conf where it exists.
    #[arg(long, env = "SLIPSTREAM_CONFIG_FILE")]
    pub config_file: Option<PathBuf>,
    /// Print every setting with its value and where it comes from, and exit.
    #[arg(long)]
    pub print_config: bool,
}

/// How the API server is reached, where neither a kubeconfig nor the pod's service account says so.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ApiAccessArgs {
    /// Bearer token for the API server. Whoever sees the process list sees a flag: prefer --api-token-file.
    #[arg(long, env = "SLIPSTREAM_API_TOKEN", hide_env_values = true)]
    pub api_token: Option<String>,
    /// File with a bearer token for the API server; read again when it changes.
    #[arg(long, env = "SLIPSTREAM_API_TOKEN_FILE", conflicts_with = "api_token")]
    pub api_token_file: Option<PathBuf>,
    /// PEM file with the certificate authority of the API server.
    #[arg(long, env = "SLIPSTREAM_API_CA")]
    pub api_ca: Option<PathBuf>,
}

/// Credentials from flags that have no server to go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "--api-token, --api-token-file and --api-ca need --api-server, the server that they are for, or --kubeconfig in their place"
)]
pub struct NoServer;

impl ApiAccessArgs {
    /// A kubeconfig with `server` and what the flags say, as JSON; `None` when no flag is given.
    ///
    /// # Errors
    /// A flag is given without a server.
    pub fn kubeconfig(&self, server: Option<&str>) -> Result<Option<serde_json::Value>, NoServer> {
        let Self { api_token, api_token_file, api_ca } = self;
        if api_token.is_none() && api_token_file.is_none() && api_ca.is_none() {
            return Ok(None);
        }
        let server = server.ok_or(NoServer)?;
        Ok(Some(serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "flags",
            "contexts": [{ "name": "flags", "context": { "cluster": "flags", "user": "flags" } }],
            "clusters": [{ "name": "flags",
                "cluster": { "server": server, "certificate-authority": api_ca } }],
            "users": [{ "name": "flags", "user": { "token": api_token, "tokenFile": api_token_file } }],
        })))
    }
}

/// Where settings are looked up besides flags and the variables `SLIPSTREAM_*`.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The environment, for the variables of ovn-kubernetes.
    pub environment: BTreeMap<String, String>,
    /// The file, where no flag names one; it may be missing.
    pub file: PathBuf,
    /// The socket of the OVS database, where no flag names one; it may be missing.
    pub ovs: PathBuf,
}

impl Sources {
    /// Sources of settings of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let text =
            |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        Self {
            environment: std::env::vars_os().filter_map(text).collect(),
            file: CONFIG_FILE.into(),
            ovs: OVS_SOCKET.into(),
        }
    }
}

/// The command line, completed from all sources.
#[derive(Debug)]
pub struct Settings<P> {
    /// What the program's own parser made of it.
    pub args: P,
    /// What the operator should know: old words, keys that have no meaning here. To be logged once logging works.
    pub warnings: Vec<String>,
    /// Text of `--print-config`; the program should print it and exit.
    pub shown: Option<String>,
}

/// Reads the settings of this process. Exits as clap does when they are wrong, and after `--help` and `--print-config`.
pub fn read<P: Parser>(program: Program) -> Settings<P> {
    let settings = match read_from::<P>(program, std::env::args_os().collect(), &Sources::of_process()) {
        Ok(settings) => settings,
        Err(error) => error.exit(),
    };
    if let Some(text) = &settings.shown {
        let mut stderr = std::io::stderr().lock();
        for warning in &settings.warnings {
            // A closed standard error or output cannot be reported.
            let _ = writeln!(stderr, "warning: {warning}");
        }
        let _ = std::io::stdout().lock().write_all(text.as_bytes());
        std::process::exit(0);
    }
    settings
}

/// Reads settings from `argv` and `sources`.
///
/// # Errors
/// An old word that has no counterpart, a file or value that cannot be read, or what clap says. The error of a value that is not from
/// the command line names its source.
pub fn read_from<P: Parser>(
    program: Program,
    argv: Vec<OsString>,
    sources: &Sources,
) -> Result<Settings<P>, clap::Error> {
    let command = built::<P>();
    let refuse = |text: String| command.clone().error(ErrorKind::InvalidValue, text);
    let mut found = Found { program, from: BTreeMap::new(), warnings: Vec::new(), argv: Vec::new() };
    found.argv = command_line::rewritten(program, &command, argv, &mut found.warnings).map_err(refuse)?;
    let run = command.find_subcommand(found.subcommand()).filter(|sub| has_settings(sub));
    if let Some(run) = run {
        found.complete(run, sources).map_err(refuse)?;
    }
    let matches = command.clone().try_get_matches_from(&found.argv).map_err(|error| found.explain(error))?;
    let args = P::from_arg_matches(&matches).map_err(|error| error.format(&mut command.clone()))?;
    let shown = matches
        .subcommand()
        .filter(|(_, sub)| sub.try_get_one::<bool>("print_config").is_ok_and(|on| on == Some(&true)))
        .and_then(|(name, sub)| Some(found.show(command.find_subcommand(name)?, sub)));
    Ok(Settings { args, warnings: found.warnings, shown })
}

/// The program's command with everything that clap adds to it.
fn built<P: Parser>() -> Command {
    let mut command = P::command();
    command.build();
    command
}

fn has_settings(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.get_long() == Some("print-config"))
}

#[cfg(test)]
mod tests;
