//! The log of a process: as text or JSON, to standard error or a file, at a level that can be changed while it runs.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// Level when none is given.
const DEFAULT: &str = "info";
/// Level that the first SIGUSR1 sets.
const MORE: &str = "debug";

/// Flags of the log.
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// Level of the log: error, warn, info, debug, trace, or directives such as info,node_agent::gateway=debug; without it the
    /// environment's RUST_LOG, else info. SIGUSR1 switches to debug and back.
    #[arg(long, env = "SLIPSTREAM_LOG_LEVEL")]
    pub log_level: Option<String>,
    /// Form of the log.
    #[arg(long, env = "SLIPSTREAM_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// File that the log is appended to, in place of standard error.
    #[arg(long, env = "SLIPSTREAM_LOGFILE")]
    pub logfile: Option<PathBuf>,
}

/// Value of `--log-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Why there is no log as the flags want it, or no other level.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The level is none.
    #[error(
        "log level `{level}`: {problem}; must be error, warn, info, debug, trace, or directives such as info,node_agent=debug"
    )]
    Level {
        /// The text.
        level: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The file cannot be opened.
    #[error("--logfile {path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// The process has no log of ours.
    #[error("the log of this process was not set up by its flags")]
    None,
}

struct Control {
    handle: reload::Handle<EnvFilter, Registry>,
    first: String,
    now: Mutex<String>,
}

static CONTROL: OnceLock<Control> = OnceLock::new();

/// Sets the log up. A log that is there already, as in a test, stays.
///
/// # Errors
/// The level is none, or the file cannot be opened.
pub fn start(args: &LogArgs) -> Result<(), LogError> {
    let given = args.log_level.clone().filter(|level| !level.trim().is_empty());
    let level = given.or_else(|| std::env::var("RUST_LOG").ok().filter(|level| !level.trim().is_empty()));
    let level = level.unwrap_or_else(|| DEFAULT.to_owned());
    let writer = match &args.logfile {
        None => BoxMakeWriter::new(std::io::stderr),
        Some(path) => {
            let file = OpenOptions::new().append(true).create(true).open(path);
            BoxMakeWriter::new(Mutex::new(
                file.map_err(|source| LogError::File { path: path.clone(), source })?,
            ))
        }
    };
    let (filter, handle) = reload::Layer::new(filter(&level)?);
    let layer = fmt::layer().with_writer(writer);
    let layer = match args.log_format {
        LogFormat::Text => {
            // Colours are for a terminal: who collects logs wants none.
            let colours = args.logfile.is_none() && std::env::var_os("NO_COLOR").is_none();
            layer.with_ansi(colours && std::io::stderr().is_terminal()).boxed()
        }
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    if tracing_subscriber::registry().with(filter).with(layer).try_init().is_ok() {
        let _ = CONTROL.set(Control { handle, first: level.clone(), now: Mutex::new(level) });
    }
    Ok(())
}

fn filter(level: &str) -> Result<EnvFilter, LogError> {
    let wrong = |problem: String| LogError::Level { level: level.to_owned(), problem };
    if level.trim().is_empty() {
        return Err(wrong("it is empty".to_owned()));
    }
    let unknown = level.split(',').find(|part| {
        !part.contains(['=', '[']) && part.trim().parse::<tracing::Level>().is_err() && *part != "off"
    });
    if let Some(part) = unknown {
        return Err(wrong(format!("`{part}` is no level")));
    }
    EnvFilter::try_new(level).map_err(|error| wrong(error.to_string()))
}

/// The level in force.
#[must_use]
pub fn level() -> Option<String> {
    Some(CONTROL.get()?.now.lock().ok()?.clone())
}

/// Changes the level from now on, until the process ends.
///
/// # Errors
/// It is none, or the process has no log of ours.
pub fn set_level(level: &str) -> Result<(), LogError> {
    let filter = filter(level)?;
    let control = CONTROL.get().ok_or(LogError::None)?;
    control.handle.reload(filter).map_err(|_gone| LogError::None)?;
    if let Ok(mut now) = control.now.lock() {
        level.clone_into(&mut now);
    }
    tracing::info!(level, "log level changed");
    Ok(())
}

/// Switches to debug and back with each SIGUSR1. Never returns.
///
/// # Errors
/// The signal cannot be listened for.
pub async fn follow_signal() -> std::io::Result<()> {
    let mut asked = signal(SignalKind::user_defined1())?;
    while asked.recv().await.is_some() {
        let Some(control) = CONTROL.get() else { continue };
        let next = if level().as_deref() == Some(&control.first) { MORE } else { &control.first };
        if let Err(error) = set_level(next) {
            tracing::warn!(%error, "SIGUSR1");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_level_changes_while_the_process_runs_and_a_wrong_one_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let args = LogArgs {
            log_level: Some("info".to_owned()),
            log_format: LogFormat::Json,
            logfile: Some(file.path().to_owned()),
        };
        start(&args).unwrap();
        tracing::debug!("hidden");
        set_level("info,supervision=debug").unwrap();
        tracing::debug!(pod = "a", "seen");
        assert_eq!(level().as_deref(), Some("info,supervision=debug"));
        for bad in ["loud", "", "info,loud"] {
            assert!(set_level(bad).unwrap_err().to_string().contains("must be error, warn, info"), "{bad}");
        }
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(
            !text.contains("hidden") && text.contains(r#""message":"seen""#) && text.contains(r#""pod":"a""#),
            "{text}"
        );
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let args =
            LogArgs { log_level: None, log_format: LogFormat::Text, logfile: Some("/nothing/log".into()) };
        assert!(start(&args).unwrap_err().to_string().contains("/nothing/log"));
    }
}
