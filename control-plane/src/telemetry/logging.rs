//! Sets up the log.

mod rate_limit;

use lockstep_process::logging::{self, LogFormat};
use tracing_subscriber::EnvFilter;

use crate::config::args::ZapLevel;
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
    Ok(logging::init(format, filter, RateLimit::default())?)
}
