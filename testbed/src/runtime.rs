//! Where asynchronous parts run.

use anyhow::Result;

/// Runs an asynchronous part on a small runtime, with logging.
pub fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    // Both of the libraries' providers may be compiled in; a second call finds the first one's choice.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let filter =
        tracing_subscriber::EnvFilter::try_from_env("SLIPSTREAM_LOG").unwrap_or_else(|_| "info".into());
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).try_init();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(work)
}
