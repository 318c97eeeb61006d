//! Sets up the log.

use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;

/// Logs to standard error from here on. `RUST_LOG` chooses what, `info` by default.
///
/// # Errors
/// Where `RUST_LOG` cannot be read or a log is set up already.
pub fn init(format: LogFormat) -> anyhow::Result<()> {
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(directives) => EnvFilter::try_new(directives)?,
        Err(_) => EnvFilter::try_new("info")?,
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
