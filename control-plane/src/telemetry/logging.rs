//! Sets up the log.

mod rate_limit;

use std::io::{self, IsTerminal as _};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt, registry};

use crate::config::args::{LogFormat, ZapLevel};
use rate_limit::RateLimit;

/// Logs to standard error from here on, and no more of one namespace than its share. `level`
/// chooses what, or else `RUST_LOG`, by default `info`.
///
/// # Errors
/// If `RUST_LOG` cannot be read or a log is set up already.
pub fn init(format: LogFormat, level: Option<ZapLevel>) -> anyhow::Result<()> {
    let filter = match (level, std::env::var(EnvFilter::DEFAULT_ENV)) {
        (None, Ok(directives)) => EnvFilter::try_new(directives)?,
        // kube logs an answer that it cannot parse in full, with the objects of every tenant. The
        // caller logs the error.
        (level, _) => EnvFilter::try_new(level.unwrap_or(ZapLevel::Info).filter())?
            .add_directive("kube_client::client=error".parse()?),
    };
    let log = registry().with(filter).with(RateLimit::default());
    let layer = fmt::layer().with_writer(io::stderr);
    match format {
        LogFormat::Text => log.with(layer.with_ansi(io::stderr().is_terminal())).try_init(),
        LogFormat::Json => log.with(layer.json().flatten_event(true)).try_init(),
    }
    .map_err(|error| anyhow::anyhow!("log: {error}"))
}
