//! Sets up the log.

use tracing_subscriber::EnvFilter;

use crate::args::{LogFormat, ZapLevel};

/// Logs to standard error from here on. `level` chooses what, or else `RUST_LOG`, by default `info`.
///
/// # Errors
/// Where `RUST_LOG` cannot be read or a log is set up already.
pub fn init(format: LogFormat, level: Option<ZapLevel>) -> anyhow::Result<()> {
    let filter = match (level, std::env::var(EnvFilter::DEFAULT_ENV)) {
        (None, Ok(directives)) => EnvFilter::try_new(directives)?,
        (level, _) => EnvFilter::try_new(level.unwrap_or(ZapLevel::Info).filter())?,
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|error| anyhow::anyhow!("log: {error}"))
}
