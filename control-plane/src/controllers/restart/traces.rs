//! One trace for each restart: a root span, and one span for each phase.

use std::time::{Duration, SystemTime};

use lockstep_api::JobSet;
use lockstep_core::restart::{Announcement, Cause, RestartLevel, Scope, Timeline, UnixNanos};
use opentelemetry::trace::{SpanBuilder, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::SdkTracer;

use super::convert::sentence;
use super::metrics::crash_or_deliberate;
use super::phases::{Phase, phases, total};
use crate::telemetry::traces::Traces;

#[cfg(test)]
mod tests;

/// Makes spans for restarts that have ended. It never waits.
#[derive(Clone)]
pub(super) struct RestartTraces(Traces);

impl RestartTraces {
    pub(super) fn new(traces: Traces) -> Self {
        Self(traces)
    }

    pub(super) fn announced(&self, jobset: &JobSet, announcement: &Announcement) {
        let Some(tracer) = self.0.tracer() else {
            return;
        };
        match announcement {
            Announcement::Restarted {
                scope,
                timeline,
                cause,
                level,
            } => restarted(tracer, jobset, timeline, cause, (*scope, *level)),
            Announcement::Exhausted { cause } => exhausted(tracer, jobset, cause, SystemTime::now()),
            // Each of these leads to one of the announcements above.
            Announcement::Restarting { .. }
            | Announcement::Recreating { .. }
            | Announcement::Escalated { .. }
            | Announcement::Climbed { .. }
            | Announcement::Blocked(_) => {}
        }
    }
}

fn restarted(
    tracer: &SdkTracer,
    jobset: &JobSet,
    timeline: &Timeline,
    cause: &Cause,
    (scope, level): (Scope, RestartLevel),
) {
    let Some(all) = total(timeline) else {
        return;
    };
    let mut attributes = of_group(jobset);
    attributes.extend(of_cause(cause));
    attributes.extend([
        KeyValue::new("lockstep.generation", integer(timeline.generation.0)),
        KeyValue::new("lockstep.scope", scope.as_str()),
        KeyValue::new("lockstep.level", level.as_str()),
        KeyValue::new("lockstep.workers", integer(timeline.workers)),
        KeyValue::new("lockstep.replaced_pods", integer(timeline.replaced)),
        KeyValue::new("lockstep.from_standbys", integer(timeline.from_standbys)),
    ]);
    let root = begin("restart", all.from, attributes);
    // A root span: no span of this process is its parent.
    let root = tracer.build_with_context(root, &Context::new());
    let root = Context::new().with_span(root);
    for Phase { name, from, to } in phases(timeline) {
        let phase = begin(name, from, Vec::new());
        let phase = Context::new().with_span(tracer.build_with_context(phase, &root));
        phase.span().end_with_timestamp(time(to));
    }
    root.span().end_with_timestamp(time(all.to));
}

/// A restart that `maxRestarts` does not allow.
fn exhausted(tracer: &SdkTracer, jobset: &JobSet, cause: &Cause, now: SystemTime) {
    let mut attributes = of_group(jobset);
    attributes.extend(of_cause(cause));
    let failed_at = cause.at.map_or(now, time);
    let root = SpanBuilder::from_name("restart")
        .with_start_time(failed_at)
        .with_attributes(attributes);
    let root = tracer.build_with_context(root, &Context::new());
    let root = Context::new().with_span(root);
    root.span().set_status(Status::error("maxRestarts is used up"));
    root.span().end_with_timestamp(now.max(failed_at));
}

/// The attributes of the restarted group. They have OpenTelemetry's names if these exist.
fn of_group(jobset: &JobSet) -> Vec<KeyValue> {
    let meta = &jobset.metadata;
    let status = jobset.status.as_ref();
    let status = status.and_then(|status| status.in_place_restart.as_ref());
    let text = |key, value: Option<String>| Some(KeyValue::new(key, value?));
    [
        text("k8s.namespace.name", meta.namespace.clone()),
        text("lockstep.jobset.name", meta.name.clone()),
        text("lockstep.jobset.uid", meta.uid.clone()),
        text(
            "lockstep.group.kind",
            status.and_then(|status| Some(status.kind.as_ref()?.to_string())),
        ),
        status.map(|status| KeyValue::new("lockstep.restarts", i64::from(status.restarts))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The attributes of the cause. Unknown ones are left out.
fn of_cause(cause: &Cause) -> impl Iterator<Item = KeyValue> {
    let text = |key, value: &str| (!value.is_empty()).then(|| KeyValue::new(key, value.to_owned()));
    let container = cause.identity.as_ref().map(|identity| &*identity.container);
    let signal = cause.exit.map(|exit| exit.signal).filter(|signal| *signal != 0);
    [
        Some(KeyValue::new("lockstep.kind", crash_or_deliberate(cause.reason))),
        Some(KeyValue::new("lockstep.cause.reason", cause.reason.as_str())),
        Some(KeyValue::new("lockstep.cause.message", sentence(cause))),
        text("k8s.pod.name", &cause.pod),
        text("k8s.container.name", container.unwrap_or_default()),
        text("k8s.node.name", &cause.node),
        cause
            .exit
            .map(|exit| KeyValue::new("lockstep.cause.exit_code", i64::from(exit.code))),
        signal.map(|signal| KeyValue::new("lockstep.cause.signal", i64::from(signal))),
    ]
    .into_iter()
    .flatten()
}

fn begin(name: &'static str, from: UnixNanos, attributes: Vec<KeyValue>) -> SpanBuilder {
    SpanBuilder::from_name(name)
        .with_start_time(time(from))
        .with_attributes(attributes)
}

/// Times before 1970 become 1970.
fn time(at: UnixNanos) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::try_from(at.0).unwrap_or(0))
}

fn integer(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
