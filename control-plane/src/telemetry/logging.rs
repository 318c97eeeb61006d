//! Sets up the log, with a rate limit per namespace: whatever a tenant repeats, the lines of others
//! stay visible.
//!
//! Promises: each namespace may log a burst of lines, and some each second. A line says how many
//! were dropped, at most every ten seconds. Warnings and errors, info lines, and debug lines count
//! separately, so none of them starves the others. Each library has such a share too, since
//! untrusted input may make it warn. Other lines without a namespace are always logged. A line
//! belongs to the namespace that it names, or else to that of its span.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockstep_process::logging::{self, LogFormat};
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer};

use crate::config::args::ZapLevel;
use crate::telemetry::log_limit::LineLimit;

#[cfg(test)]
mod tests;

/// The field with the namespace.
const NAMESPACE: &str = "namespace";
/// The burst of lines per namespace. A line has at most a kilobyte.
const AT_ONCE: u32 = 200;
/// The interval between lines after the burst.
const EACH: Duration = Duration::from_millis(200);
/// The interval between lines that say how many were dropped.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// How many shares are remembered. While that many are in use, all others count as one.
const REMEMBERED: usize = 16_384;
/// The interval between searches for unused shares.
const SWEEP: Duration = Duration::from_secs(1);
/// The prefix of our own crates' targets.
const OWN: &str = "lockstep";
/// The name of the share for everything that is not remembered.
const OTHERS: &str = "others";

/// Logs to standard error from now on, within the limits. `level` selects the lines, else
/// `RUST_LOG`, by default `info`.
///
/// # Errors
/// `RUST_LOG` is invalid, or a log is set up already.
pub fn init(format: LogFormat, level: Option<ZapLevel>) -> anyhow::Result<()> {
    let wanted = match (level, std::env::var(EnvFilter::DEFAULT_ENV)) {
        (None, Ok(directives)) => directives,
        (level, _) => level.unwrap_or(ZapLevel::Info).filter().to_owned(),
    };
    Ok(logging::init(format, filter(&wanted)?, RateLimit::default())?)
}

/// The filter for these directives. kube logs answers that it cannot parse in full, with the
/// objects of every tenant, unless a directive asks for just that. The caller logs the error.
fn filter(directives: &str) -> anyhow::Result<EnvFilter> {
    let filter = EnvFilter::try_new(directives)?;
    if directives.contains("kube_client") {
        return Ok(filter);
    }
    Ok(filter.add_directive("kube_client::client=error".parse()?))
}

/// Drops lines of namespaces that exceed their share.
#[derive(Default)]
struct RateLimit(Mutex<Shares>);

#[derive(Default)]
struct Shares {
    lines: HashMap<(String, Class), LineLimit>,
    others: LineLimit,
    swept: Option<Instant>,
}

/// The classes of lines that count separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Class {
    Warnings,
    Info,
    Debug,
}

impl Class {
    fn of(level: Level) -> Self {
        match level {
            Level::ERROR | Level::WARN => Self::Warnings,
            Level::INFO => Self::Info,
            _ => Self::Debug,
        }
    }
}

/// The namespace of a span.
struct SpanNamespace(String);

impl RateLimit {
    /// Takes a line of a namespace if its share allows it. Returns how many dropped lines are to be
    /// reported before it, and the name of the share.
    fn next(&self, namespace: &str, class: Class) -> Option<(u64, String)> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (namespace.to_owned(), class);
        if let Some(lines) = known.lines.get(&key) {
            return Some((lines.next_reporting(REPORT_EVERY)?, key.0));
        }
        let is_full = known.lines.len() >= REMEMBERED;
        if is_full && known.swept.is_none_or(|at| at.elapsed() >= SWEEP) {
            known.lines.retain(|_, lines| !lines.is_fresh());
            known.swept = Some(Instant::now());
        }
        if known.lines.len() >= REMEMBERED {
            return Some((known.others.next_reporting(REPORT_EVERY)?, OTHERS.to_owned()));
        }
        let lines = LineLimit::new(AT_ONCE, EACH);
        let left_out = lines.next();
        known.lines.insert(key, lines);
        Some((left_out?, namespace.to_owned()))
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for RateLimit {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut named = Named::default();
        attributes.record(&mut named);
        if let (Some(namespace), Some(span)) = (named.0, context.span(id)) {
            span.extensions_mut().insert(SpanNamespace(namespace));
        }
    }

    fn event_enabled(&self, event: &Event<'_>, context: Context<'_, S>) -> bool {
        let mut named = Named::default();
        event.record(&mut named);
        let of_span = || {
            let mut spans = context.event_scope(event)?;
            spans.find_map(|span| span.extensions().get::<SpanNamespace>().map(|of| of.0.clone()))
        };
        let class = Class::of(*event.metadata().level());
        let target = event.metadata().target();
        let library = target.split(':').next().unwrap_or(target);
        let namespace = named.0.or_else(of_span);
        let is_of_namespace = namespace.is_some();
        if !is_of_namespace && target.starts_with(OWN) {
            return true;
        }
        // No namespace can have such a name.
        let share = namespace.unwrap_or_else(|| format!("library {library}"));
        let Some((left_out, of)) = self.next(&share, class) else {
            return false;
        };
        // Both warnings have no `namespace` and no span, so they count for none.
        match left_out {
            0 => {}
            _ if is_of_namespace => {
                tracing::warn!(parent: None, of, left_out, "log lines of a namespace were dropped");
            }
            _ => tracing::warn!(parent: None, library, left_out, "log lines of a library were dropped"),
        }
        true
    }
}

/// Extracts the namespace from fields.
#[derive(Default)]
struct Named(Option<String>);

impl Visit for Named {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == NAMESPACE {
            self.0 = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == NAMESPACE {
            self.0 = Some(format!("{value:?}"));
        }
    }
}
