//! Tells people: one log line and one Event per decision that changes the world.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Resource;
use kube::api::{Api, ObjectMeta, PostParams};
use lockstep_api::events::TIMELINE;
use lockstep_api::{JobSet, conditions};
use lockstep_core::restart::{Announcement, Cause, Condemned, RestartLevel, Scope, Timeline};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::blocked_condition;
use super::convert::sentence;
use super::metrics::RestartMetrics;
use super::replace::News;
use super::traces::RestartTraces;
use crate::k8s::apply::events;
use crate::k8s::event_queue;
use crate::telemetry::log_limit::LineLimit;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

const CONTROLLER: &str = "lockstep.dev/control-plane";

#[cfg(test)]
mod tests;

/// Takes announcements from group tasks without ever making them wait.
#[derive(Clone)]
pub struct RestartRecorder {
    events: event_queue::Sender<String, Event>,
    dropped: Arc<LineLimit>,
    metrics: RestartMetrics,
    traces: RestartTraces,
}

impl RestartRecorder {
    /// The announcer, and the future that writes its events until `shutdown` is cancelled.
    pub fn new(
        client: kube::Client,
        instance: String,
        metrics: &Metrics,
        traces: Traces,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (events, mut queue) = event_queue::queue::<String, Event>();
        let write = async move {
            loop {
                let turn = tokio::select! {
                    () = shutdown.cancelled() => return,
                    turn = queue.next() => turn,
                };
                let Some(mut turn) = turn else { return };
                let event = &mut turn.event;
                event.reporting_instance = Some(instance.clone());
                let namespace = event.metadata.namespace.clone().unwrap_or_default();
                let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
                if let Err(error) = api.create(&PostParams::default(), event).await {
                    tracing::warn!(%error, namespace, "event not written");
                }
            }
        };
        let metrics = RestartMetrics::register(metrics);
        let traces = RestartTraces::new(traces);
        (
            Self {
                events,
                dropped: Arc::default(),
                metrics,
                traces,
            },
            write,
        )
    }

    /// Logs the announcement and queues its Event and its trace; `why_without_agents`: what the daemon of a node says of its agents.
    pub(super) fn announce(
        &self,
        jobset: &JobSet,
        announcement: Announcement,
        why_without_agents: impl FnOnce(&str) -> Option<String>,
    ) {
        self.metrics.announced(jobset, &announcement);
        self.traces.announced(jobset, &announcement);
        let (warning, reason, note, timeline) = match announcement {
            Announcement::Restarting {
                scope,
                generation,
                cause,
            } => {
                tracing::info!(scope = scope.as_str(), %generation, cause = sentence(&cause), "restarting in place");
                return;
            }
            Announcement::Restarted {
                scope,
                timeline,
                cause,
                level,
            } => {
                let how = match level {
                    RestartLevel::Recreate => "Recreated",
                    RestartLevel::Process | RestartLevel::Container | RestartLevel::Pod => "RestartedInPlace",
                };
                (
                    false,
                    how,
                    restarted(scope, &timeline, &cause, level),
                    Some(to_json(scope, &timeline, &cause, level)),
                )
            }
            Announcement::Recreating { generation, cause } => {
                let note = format!(
                    "All Jobs are made anew for restart attempt {generation}: {}",
                    sentence(&cause)
                );
                (true, "RecreatingJobs", note, None)
            }
            Announcement::Blocked(blocked) => (
                true,
                conditions::RESTART_BLOCKED,
                blocked_condition::message(&blocked, why_without_agents),
                None,
            ),
            Announcement::Escalated { condemned, after } => {
                let why = after.map_or_else(
                    || {
                        "was restarted alone and is not up within alpha.jobset.sigs.k8s.io/inplace-timeout"
                            .to_owned()
                    },
                    |after| {
                        let within = Duration::from_millis(after.within_ms);
                        format!("has failed {} times within {within:?}", after.failures)
                    },
                );
                (true, "WorkerEscalated", escalated(&condemned, &why), None)
            }
            Announcement::Climbed { condemned } => {
                let why = "failed again within 60 s of a restart in place";
                (true, "WorkerEscalated", escalated(&condemned, why), None)
            }
            // The event comes with the condition Failed, once that is written.
            Announcement::Exhausted { cause } => {
                tracing::warn!(cause = sentence(&cause), "maxRestarts is used up");
                return;
            }
        };
        self.tell(jobset, warning, reason, note, timeline);
    }

    /// The same of a lost pod.
    pub(super) fn pod(&self, jobset: &JobSet, news: &News) {
        self.metrics.pod(news);
        match news {
            News::Created(pod) => {
                let (job, index) = (&pod.place.job, pod.place.index);
                let note = format!(
                    "Created pod {} in the place of a lost pod of {job}[{index}]",
                    pod.name
                );
                self.tell(jobset, false, "ReplacedPod", note, None);
            }
            News::Failed(pod, error) => {
                let (job, index) = (&pod.place.job, pod.place.index);
                let note = format!(
                    "A lost pod of {job}[{index}] cannot be replaced, the Job controller may do it later: {error}"
                );
                self.tell(jobset, true, "PodNotReplaced", note, None);
            }
        }
    }

    fn tell(
        &self,
        jobset: &JobSet,
        warning: bool,
        reason: &str,
        note: String,
        timeline: Option<serde_json::Value>,
    ) {
        tracing::info!(
            reason,
            note,
            timeline = timeline.as_ref().map(ToString::to_string),
            "announced"
        );
        let event = event(jobset, warning, reason, events::short(note), timeline);
        let (namespace, name) = (jobset.ns(), jobset.name());
        if self
            .events
            .add(namespace, format!("{namespace}/{name}"), event)
            .is_err()
            && let Some(unsaid) = self.dropped.next()
        {
            tracing::warn!(
                namespace,
                reason,
                unsaid,
                "too many events are waiting, this one is dropped"
            );
        }
    }
}

/// That the pod of a worker is deleted, and why.
fn escalated(condemned: &Condemned, why: &str) -> String {
    format!(
        "Worker {} {why} on node {}: its pod {} is deleted, to be replaced where the scheduler sees fit",
        condemned.identity, condemned.node, condemned.pod
    )
}

fn restarted(scope: Scope, timeline: &Timeline, cause: &Cause, level: RestartLevel) -> String {
    let how = match level {
        RestartLevel::Process | RestartLevel::Pod => "in place",
        RestartLevel::Container => "in place, by container,",
        RestartLevel::Recreate => "by recreation",
    };
    let replaced = match timeline.replaced {
        0 => String::new(),
        pods => format!(" ({pods} in a new pod)"),
    };
    let who = match scope {
        Scope::Group => format!("{} workers", timeline.workers),
        Scope::Worker => "one worker alone".to_owned(),
    };
    format!(
        "Restarted {who}{replaced} {how} to attempt {} in {:.1} ms: {}",
        timeline.generation,
        millis(timeline.running_at.0.saturating_sub(timeline.failed_at.0)),
        sentence(cause)
    )
}

#[expect(clippy::cast_precision_loss, reason = "shown to people with one decimal")]
fn millis(nanos: i64) -> f64 {
    nanos as f64 / 1e6
}

fn to_json(scope: Scope, timeline: &Timeline, cause: &Cause, level: RestartLevel) -> serde_json::Value {
    json!({
        "scope": scope.as_str(),
        "level": level.as_str(),
        "generation": timeline.generation.0,
        "causePod": cause.pod,
        "failedAt": timeline.failed_at.0,
        "detectedAt": timeline.detected_at.0,
        "stopPushedAt": timeline.pushed_at.0,
        "writtenAt": timeline.written_at.0,
        "stoppedAt": timeline.stopped_at.0,
        "parkedAt": timeline.parked_at.0,
        "releasedAt": timeline.released_at.0,
        "runningAt": timeline.running_at.0,
        "workers": timeline.workers,
        "replacedPods": timeline.replaced,
    })
}

fn event(
    jobset: &JobSet,
    warning: bool,
    reason: &str,
    note: String,
    timeline: Option<serde_json::Value>,
) -> Event {
    let annotations = timeline.map(|timeline| [(TIMELINE.to_owned(), timeline.to_string())].into());
    Event {
        metadata: ObjectMeta {
            // Unique, and telling whose it is, as client-go names its events.
            name: Some(format!("{}.{}", jobset.name(), uuid::Uuid::new_v4().simple())),
            namespace: Some(jobset.ns().to_owned()),
            annotations,
            ..ObjectMeta::default()
        },
        action: Some("Restarting".to_owned()),
        event_time: Some(MicroTime(jiff::Timestamp::now())),
        note: Some(note),
        reason: Some(reason.to_owned()),
        regarding: Some(ObjectReference {
            ..jobset.object_ref(&())
        }),
        reporting_controller: Some(CONTROLLER.to_owned()),
        type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
        ..Event::default()
    }
}
