//! Sets up the log: one line per event on standard error, as text or as JSON. No line is longer
//! than a bound.

use std::io::{self, IsTerminal as _};

use clap::ValueEnum;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::{Layered, SubscriberExt as _};
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, registry};

mod line;

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The directives of the filter cannot be read.
    #[error(transparent)]
    Filter(#[from] ParseError),
    /// A log is set up already.
    #[error("log: {0}")]
    AlreadySet(#[from] TryInitError),
}

/// The filter that `RUST_LOG` asks for, or else `default`.
///
/// # Errors
/// When the directives cannot be read.
pub fn filter(default: &str) -> Result<EnvFilter, LogError> {
    let directives = std::env::var(EnvFilter::DEFAULT_ENV);
    Ok(EnvFilter::try_new(directives.as_deref().unwrap_or(default))?)
}

/// Logs to standard error from now on: what passes `filter` and then `limit`.
///
/// # Errors
/// When a log is set up already.
pub fn init<L>(format: LogFormat, filter: EnvFilter, limit: L) -> Result<(), LogError>
where
    L: Layer<Layered<EnvFilter, Registry>> + Send + Sync + 'static,
{
    let log = registry().with(filter).with(limit);
    let layer = fmt::layer().with_writer(line::Bounded {
        inner: io::stderr,
        format,
    });
    match format {
        LogFormat::Text => log.with(layer.with_ansi(io::stderr().is_terminal())).try_init()?,
        LogFormat::Json => log.with(layer.json().flatten_event(true)).try_init()?,
    }
    Ok(())
}
