//! The flags of upstream's log library, which its deployments use.

use clap::{Args, ValueEnum};

use super::{LogFormat, go};

/// `--zap-*`. The encoder and the level have an effect; the rest is accepted for compatibility.
#[derive(Clone, Debug, Default, Args)]
pub struct Zap {
    /// Log as text (true) or as JSON (false), unless another flag says which.
    #[arg(long, env = "LOCKSTEP_ZAP_DEVEL", value_parser = go::boolean, value_name = "BOOL",
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub zap_devel: Option<bool>,

    /// Format of the log; overrides --log-format.
    #[arg(long, env = "LOCKSTEP_ZAP_ENCODER", value_enum)]
    pub zap_encoder: Option<ZapEncoder>,

    /// Verbosity: debug, info, error, panic, or a number above 0 for more detail. Overrides
    /// RUST_LOG.
    #[arg(long, env = "LOCKSTEP_ZAP_LOG_LEVEL", value_name = "LEVEL")]
    pub zap_log_level: Option<ZapLevel>,

    /// Accepted for compatibility: errors are logged with their causes, never with a stack.
    #[arg(long, env = "LOCKSTEP_ZAP_STACKTRACE_LEVEL", value_enum)]
    pub zap_stacktrace_level: Option<StacktraceLevel>,

    /// Accepted for compatibility: times are logged in RFC 3339.
    #[arg(long, env = "LOCKSTEP_ZAP_TIME_ENCODING", value_enum)]
    pub zap_time_encoding: Option<TimeEncoding>,
}

/// Values of `--zap-encoder`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ZapEncoder {
    /// One JSON object per line.
    Json,
    /// For people.
    Console,
}

/// Values of `--zap-stacktrace-level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "upstream's words, without effect")]
pub enum StacktraceLevel {
    Info,
    Error,
    Panic,
}

/// Values of `--zap-time-encoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "upstream's words, without effect")]
pub enum TimeEncoding {
    Epoch,
    Millis,
    Nano,
    Iso8601,
    Rfc3339,
    Rfc3339nano,
}

/// The verbosity of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZapLevel {
    /// Errors.
    Error,
    /// Changes.
    Info,
    /// More detail, from 1 upwards.
    Verbose(u8),
}

impl std::str::FromStr for ZapLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match (text.to_ascii_lowercase().as_str(), text.parse()) {
            ("debug", _) => Ok(Self::Verbose(1)),
            ("info", _) => Ok(Self::Info),
            ("error" | "panic", _) => Ok(Self::Error),
            (_, Ok(level @ 1..)) => Ok(Self::Verbose(level)),
            _ => Err("it must be debug, info, error, panic or a number above 0".to_owned()),
        }
    }
}

impl ZapLevel {
    /// The level as a `RUST_LOG` filter.
    #[must_use]
    pub fn filter(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Info => "info,kube=warn",
            // Upstream's chart sets 2, which must not flood the log with lines of libraries.
            Self::Verbose(..4) => "info,lockstep_control_plane=debug,kube=warn",
            Self::Verbose(4..8) => "debug",
            Self::Verbose(_) => "trace",
        }
    }
}

impl Zap {
    /// The format of the log: from these flags, unless `log_format` takes precedence.
    #[must_use]
    pub fn format(&self, log_format: Option<LogFormat>) -> LogFormat {
        match (self.zap_encoder, log_format, self.zap_devel) {
            (Some(ZapEncoder::Json), _, _) => LogFormat::Json,
            (Some(ZapEncoder::Console), _, _) => LogFormat::Text,
            (None, Some(format), _) => format,
            (None, None, Some(false)) => LogFormat::Json,
            (None, None, _) => LogFormat::Text,
        }
    }
}
