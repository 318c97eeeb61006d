//! Records restarts for people: one log line and one Event per decision that changes the world.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Resource;
use kube::api::{Api, ObjectMeta, PostParams};
use lockstep_api::events::TIMELINE;
use lockstep_api::{JobSet, conditions};
use lockstep_core::jobset::plan::Severity;
use lockstep_core::restart::{Announcement, Cause, Condemned, RestartLevel, Scope, Timeline};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::blocked_condition;
use super::convert::sentence;
use super::metrics::RestartMetrics;
use super::pod_replacer::Replaced;
use super::traces::RestartTraces;
use crate::k8s::apply::events;
use crate::k8s::event_queue;
use crate::telemetry::log_limit::Lines;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;

const CONTROLLER: &str = "lockstep.dev/control-plane";

/// Takes announcements from group tasks. It never makes them wait.
#[derive(Clone)]
pub struct RestartRecorder {
    events: event_queue::Sender<String, Event>,
    dropped: Arc<Lines>,
    metrics: RestartMetrics,
    traces: RestartTraces,
}

impl RestartRecorder {
    /// The recorder, and the future that writes its events until `shutdown` is cancelled.
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

    /// Logs the announcement and queues its Event and its trace. `why_without_agents` says what a
    /// node's daemon reports of its agents.
    pub(super) fn announce(
        &self,
        jobset: &JobSet,
        announcement: Announcement,
        why_without_agents: impl FnOnce(&str) -> Option<String>,
    ) {
        self.metrics.announced(jobset, &announcement);
        self.traces.announced(jobset, &announcement);
        let (severity, reason, note, timeline) = match announcement {
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
                    Severity::Normal,
                    how,
                    restarted(scope, &timeline, &cause, level),
                    Some(to_json(scope, &timeline, &cause, level)),
                )
            }
            Announcement::Recreating { generation, cause } => {
                let note = format!(
                    "All Jobs are recreated for restart attempt {generation}: {}",
                    sentence(&cause)
                );
                (Severity::Warning, "RecreatingJobs", note, None)
            }
            Announcement::Blocked(blocked) => (
                Severity::Warning,
                conditions::RESTART_BLOCKED,
                blocked_condition::message(&blocked, why_without_agents),
                None,
            ),
            Announcement::Escalated { condemned, after } => {
                let why = after.map_or_else(
                    || {
                        "was restarted without its group and is not up within alpha.jobset.sigs.k8s.io/inplace-timeout"
                            .to_owned()
                    },
                    |after| {
                        let within = Duration::from_millis(after.within_ms);
                        format!("has failed {} times within {within:?}", after.failures)
                    },
                );
                (
                    Severity::Warning,
                    "WorkerEscalated",
                    escalated(&condemned, &why),
                    None,
                )
            }
            Announcement::Climbed { condemned } => {
                let why = "failed again within 60 s of a restart in place";
                (
                    Severity::Warning,
                    "WorkerEscalated",
                    escalated(&condemned, why),
                    None,
                )
            }
            // The event follows with the condition Failed.
            Announcement::Exhausted { cause } => {
                tracing::warn!(cause = sentence(&cause), "maxRestarts is used up");
                return;
            }
        };
        self.tell(jobset, severity, reason, note, timeline);
    }

    /// Logs how the replacement of a lost pod went, and queues its Event.
    pub(super) fn pod(&self, jobset: &JobSet, replaced: &Replaced) {
        self.metrics.pod(replaced);
        match replaced {
            Replaced::Created(pod) => {
                let (job, index) = (&pod.place.job, pod.place.index);
                let note = format!(
                    "Created pod {} in the place of a lost pod of {job}[{index}]",
                    pod.name
                );
                self.tell(jobset, Severity::Normal, "ReplacedPod", note, None);
            }
            Replaced::Failed(pod, error) => {
                let (job, index) = (&pod.place.job, pod.place.index);
                let note = format!(
                    "A lost pod of {job}[{index}] cannot be replaced, the Job controller may do it later: {error}"
                );
                self.tell(jobset, Severity::Warning, "PodNotReplaced", note, None);
            }
        }
    }

    fn tell(
        &self,
        jobset: &JobSet,
        severity: Severity,
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
        let event = event(jobset, severity, reason, events::short(note), timeline);
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

/// Says that the pod of a worker is deleted, and why.
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
    severity: Severity,
    reason: &str,
    note: String,
    timeline: Option<serde_json::Value>,
) -> Event {
    let kind = match severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    };
    let annotations = timeline.map(|timeline| [(TIMELINE.to_owned(), timeline.to_string())].into());
    Event {
        metadata: ObjectMeta {
            // Unique, and after its object, as client-go names events.
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
        type_: Some(kind.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use lockstep_core::restart::{Blocked, BlockedReason, Generation, Reason};

    use super::*;

    fn cause() -> Cause {
        Cause {
            reason: Reason::WorkerExited,
            identity: None,
            pod: "js-w-0-1-abcde".to_owned(),
            node: "node-7".to_owned(),
            exit: None,
            at: None,
        }
    }

    /// The reasons and notes of the events that these announcements make, if node-7 has no agents.
    fn events(announcements: Vec<Announcement>) -> Vec<(String, String)> {
        let (events, mut queue) = event_queue::queue();
        let announcer = RestartRecorder {
            events,
            dropped: Arc::default(),
            metrics: RestartMetrics::register(&Metrics::default()),
            traces: RestartTraces::new(Traces::default()),
        };
        for announcement in announcements {
            let why = |node: &str| (node == "node-7").then(|| "no NRI".to_owned());
            announcer.announce(&JobSet::default(), announcement, why);
        }
        drop(announcer);
        std::iter::from_fn(|| queue.next().now_or_never().flatten())
            .filter_map(|turn| turn.event.reason.clone().zip(turn.event.note.clone()))
            .collect()
    }

    #[test]
    fn the_end_of_all_restarts_is_left_to_the_condition() {
        let exhausted = Announcement::Exhausted { cause: cause() };
        let recreating = Announcement::Recreating {
            generation: Generation(2),
            cause: cause(),
        };
        let [(reason, _)] = &events(vec![exhausted, recreating])[..] else {
            panic!("not one event");
        };
        assert_eq!(reason, "RecreatingJobs");
    }

    #[test]
    fn what_blocks_a_restart_is_told_with_what_the_daemon_of_the_node_says() {
        let told = |node: &str| {
            let blocked = Announcement::Blocked(Blocked {
                reason: BlockedReason::WorkerNotReported,
                pod: "js-w-0-1-abcde".to_owned(),
                node: node.to_owned(),
            });
            let mut events = events(vec![blocked]);
            assert_eq!(events.len(), 1);
            events.remove(0)
        };
        let (reason, note) = told("node-7");
        assert_eq!(reason, "RestartBlocked");
        let end = "The daemon says that no agent gets into containers there: no NRI";
        assert!(
            note.starts_with("pod js-w-0-1-abcde runs on node node-7, ") && note.ends_with(end),
            "{note}"
        );
        assert!(!told("node-8").1.contains("The daemon says"));
    }
}
