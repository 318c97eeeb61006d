//! Records restarts for users: one log line and one Event per decision that changes the cluster.

mod note;

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Resource;
use kube::api::{Api, ObjectMeta, PostParams};
use lockstep_api::JobSet;
use lockstep_api::conditions::events::RESTART_CONTROLLER;
use lockstep_api::events::TIMELINE;
use lockstep_core::jobset::plan::Severity;
use lockstep_core::restart::{Announcement, Generation};
use tokio_util::sync::CancellationToken;

use super::metrics::{GroupStandbys, RestartMetrics};
use super::pod_replacer::Replaced;
use super::traces::RestartTraces;
use crate::k8s::apply::events;
use crate::k8s::event_queue;
use crate::telemetry::log_limit::LineLimit;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::Traces;
use note::Note;

/// Takes announcements from group tasks, and never makes them wait.
#[derive(Clone)]
pub struct RestartRecorder {
    events: event_queue::Sender<String, Event>,
    dropped: Arc<LineLimit>,
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

    /// Logs the announcement and queues its Event and its trace. `why_without_agents` returns why a
    /// node has no agents, as its daemon reports it.
    pub(super) fn announce(
        &self,
        jobset: &JobSet,
        announcement: Announcement,
        why_without_agents: impl FnOnce(&str) -> Option<String>,
    ) {
        self.metrics.announced(jobset, &announcement);
        self.traces.announced(jobset, &announcement);
        if let Some(note) = Note::of(announcement, why_without_agents) {
            self.record(jobset, note);
        }
    }

    /// Logs how the replacement of a lost pod went, and queues its Event.
    pub(super) fn pod(&self, jobset: &JobSet, replaced: &Replaced) {
        self.metrics.pod(replaced);
        self.record(jobset, Note::of_replacement(replaced));
    }

    /// The part of a group in the metrics of standbys. Its restarts up to this generation are not
    /// counted.
    pub(super) fn standbys(&self, before: Generation) -> GroupStandbys {
        self.metrics.standbys(before)
    }

    fn record(&self, jobset: &JobSet, note: Note) {
        let reason = note.reason;
        tracing::info!(
            reason,
            note = note.text,
            timeline = note.timeline.as_ref().map(ToString::to_string),
            "announced"
        );
        let event = event(jobset, note);
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
                "too many events are waiting, dropping this one"
            );
        }
    }
}

fn event(jobset: &JobSet, note: Note) -> Event {
    let Note {
        severity,
        reason,
        text,
        timeline,
    } = note;
    let kind = match severity {
        Severity::Normal => "Normal",
        Severity::Warning => "Warning",
    };
    let annotations = timeline.map(|timeline| [(TIMELINE.to_owned(), timeline.to_string())].into());
    Event {
        metadata: ObjectMeta {
            // The name is unique and begins with the object's, as client-go names events.
            name: Some(format!("{}.{}", jobset.name(), uuid::Uuid::new_v4().simple())),
            namespace: Some(jobset.ns().to_owned()),
            annotations,
            ..ObjectMeta::default()
        },
        action: Some("Restarting".to_owned()),
        event_time: Some(MicroTime(jiff::Timestamp::now())),
        note: Some(events::short(text)),
        reason: Some(reason.to_owned()),
        regarding: Some(ObjectReference {
            ..jobset.object_ref(&())
        }),
        reporting_controller: Some(RESTART_CONTROLLER.to_owned()),
        type_: Some(kind.to_owned()),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use lockstep_core::restart::{Blocked, BlockedReason, Cause, Generation, Reason};

    use super::*;

    fn cause() -> Cause {
        Cause {
            reason: Reason::WorkerExited,
            identity: None,
            pod: "js-w-0-1-abcde".to_owned(),
            node: "node-7".to_owned(),
            exit: None,
            at: None,
            said: None,
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
    fn a_blocked_restart_is_reported_with_the_reason_of_the_nodes_daemon() {
        let event_on = |node: &str| {
            let blocked = Announcement::Blocked(Blocked {
                reason: BlockedReason::WorkerNotReported,
                pod: "js-w-0-1-abcde".to_owned(),
                node: node.to_owned(),
            });
            let mut events = events(vec![blocked]);
            assert_eq!(events.len(), 1);
            events.remove(0)
        };
        let (reason, note) = event_on("node-7");
        assert_eq!(reason, "RestartBlocked");
        let end = "The node's daemon reports that agents cannot get into containers: no NRI";
        assert!(
            note.starts_with("pod js-w-0-1-abcde runs on node node-7, ") && note.ends_with(end),
            "{note}"
        );
        assert!(!event_on("node-8").1.contains("daemon reports"));
    }
}
