//! Writes `status.inPlaceRestart`, fenced by resourceVersion.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, Patch, PatchParams};
use lockstep_api::{InPlaceKind, InPlaceRestartStatus, JobSet};
use lockstep_core::common::retry::StatusWrites;
use lockstep_core::jobset::in_place::{self, Agents};
use lockstep_core::restart::{Durable, DurablePhase};
use serde_json::{Value, json};
use thiserror::Error;

use super::convert;
use crate::k8s::watch::cache_entry::version;
use crate::k8s::watch::lean::Lean;

/// Why a write did not happen.
#[derive(Debug, Error)]
pub(super) enum WriteError {
    /// Another client wrote in between. A new decision on this JobSet is due.
    #[error("the JobSet has changed")]
    Conflict(Box<JobSet>),
    /// The API server has dropped the state: its CustomResourceDefinition lacks
    /// `status.inPlaceRestart`.
    #[error(
        "the API server drops status.inPlaceRestart: install Lockstep's CustomResourceDefinition of JobSets"
    )]
    Pruned,
    /// The API server has dropped a newer field, so new worker restart requests would look handled.
    #[error(
        "the API server drops status.inPlaceRestart.handledWorkerRestart: install Lockstep's CustomResourceDefinition of JobSets"
    )]
    Outdated,
    /// The API server has kept the old status.
    #[error("the status is as it was before")]
    Unchanged,
    /// The API server shows an older version than before. Anything that is cached may no longer
    /// exist.
    #[error("it was at resourceVersion {before}, and is at {now}")]
    WentBack {
        /// The version that the write was based on.
        before: u64,
        /// The version that the API server shows now.
        now: u64,
    },
    /// The JobSet is gone.
    #[error("the JobSet is gone")]
    Gone,
    /// The API server did not answer, or refused the request.
    #[error(transparent)]
    Api(Box<kube::Error>),
}

/// A change of the status.
#[derive(Debug, Default)]
pub struct Change {
    /// The new durable state.
    pub durable: Option<Durable>,
    /// The kind of the group, written beside `durable`.
    pub kind: Option<InPlaceKind>,
    /// All conditions, if one of them changes.
    pub conditions: Option<Vec<Condition>>,
    /// True if execution attempts are counted (KEP-1282).
    pub counts_attempts: bool,
}

impl Change {
    /// True if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.durable.is_none() && self.conditions.is_none()
    }
}

type Write = Pin<Box<dyn Future<Output = Result<JobSet, WriteError>> + Send>>;

/// Writes the status of one group, one change at a time.
pub(super) struct StatusWriter {
    client: kube::Client,
    state: State,
    writes: StatusWrites,
}

enum State {
    Idle,
    Writing(Write),
    /// After a failure or a conflict.
    Pausing {
        until: Instant,
    },
}

impl StatusWriter {
    pub(super) fn new(client: kube::Client) -> Self {
        Self {
            client,
            state: State::Idle,
            writes: StatusWrites::default(),
        }
    }

    /// Begins to write `change`, unless another write is in progress or writes pause. Returns true
    /// if the status is up to date.
    pub(super) fn want(&mut self, known: &Arc<JobSet>, change: Change) -> bool {
        match (&self.state, change.is_empty()) {
            (State::Idle, true) => return true,
            (State::Idle, false) => {
                if let Some(wanted) = &change.durable {
                    tracing::info!(generation = %wanted.generation, phase = ?wanted.phase, "writing status");
                }
                let write = write(self.client.clone(), Arc::clone(known), change);
                self.state = State::Writing(Box::pin(write));
            }
            (State::Pausing { until }, true) if *until <= Instant::now() => self.state = State::Idle,
            (State::Writing(_) | State::Pausing { .. }, _) => {}
        }
        false
    }

    /// Resolves with its result when a write has ended, or with `None` when a pause is over.
    /// Cancel-safe: the write stays in `self`.
    pub(super) async fn progress(&mut self) -> Option<Result<JobSet, WriteError>> {
        let written = match &mut self.state {
            State::Idle => std::future::pending().await,
            State::Writing(write) => Some(write.as_mut().await),
            State::Pausing { until } => {
                tokio::time::sleep_until((*until).into()).await;
                None
            }
        };
        let pause = written
            .as_ref()
            .map_or(Duration::ZERO, |written| self.pause_after(written));
        self.state = if pause.is_zero() {
            State::Idle
        } else {
            State::Pausing {
                until: Instant::now() + pause,
            }
        };
        written
    }

    fn pause_after(&mut self, written: &Result<JobSet, WriteError>) -> Duration {
        match written {
            Ok(_) => {
                self.writes.done();
                Duration::ZERO
            }
            Err(WriteError::Conflict(_)) => self.writes.conflicted(),
            // The group's task ends.
            Err(WriteError::Gone | WriteError::Pruned) => Duration::ZERO,
            Err(
                error @ (WriteError::WentBack { .. }
                | WriteError::Api(_)
                | WriteError::Outdated
                | WriteError::Unchanged),
            ) => {
                let pause = self.writes.failed();
                tracing::warn!(%error, ?pause, "status not written, will retry");
                pause
            }
        }
    }
}

/// Writes `change` on top of exactly `known`.
async fn write(client: kube::Client, known: Arc<JobSet>, change: Change) -> Result<JobSet, WriteError> {
    let api: Api<Lean<JobSet>> = Api::namespaced(client, known.ns());
    let patch = patch(&known, &change, jiff::Timestamp::now());
    let patched = api
        .patch_status(known.name(), &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    match patched {
        Ok(Lean(jobset)) if jobset.metadata.uid == known.metadata.uid => {
            let status = jobset.status.as_ref();
            let state = status.and_then(|status| status.in_place_restart.as_ref());
            let wanted = change
                .durable
                .as_ref()
                .map(|durable| &durable.handled_worker_restart);
            let outdated = |state: &InPlaceRestartStatus| {
                wanted.is_some_and(|wanted| state.handled_worker_restart != *wanted)
            };
            if state.is_some_and(outdated) {
                Err(WriteError::Outdated)
            } else if change.durable.is_some() && jobset.status == known.status {
                Err(WriteError::Unchanged)
            } else if state.is_some() || change.durable.is_none() {
                Ok(jobset)
            } else {
                Err(WriteError::Pruned)
            }
        }
        Ok(_) => Err(WriteError::Gone),
        Err(kube::Error::Api(error)) if error.code == 404 => Err(WriteError::Gone),
        Err(kube::Error::Api(error)) if error.code == 409 => match api.get_opt(known.name()).await {
            Ok(Some(Lean(jobset))) if jobset.metadata.uid == known.metadata.uid => {
                // This was read from etcd after `known`, so only a store that has gone back holds
                // an older version.
                let (before, now) = (version(&known.metadata), version(&jobset.metadata));
                if (1..before).contains(&now) {
                    return Err(WriteError::WentBack { before, now });
                }
                Err(WriteError::Conflict(Box::new(jobset)))
            }
            Ok(_) => Err(WriteError::Gone),
            Err(error) => Err(WriteError::Api(Box::new(error))),
        },
        Err(error) => Err(WriteError::Api(Box::new(error))),
    }
}

/// The merge patch for a change. A recreation raises `status.restarts` in the same write, once per
/// generation.
#[must_use]
pub fn patch(known: &JobSet, change: &Change, now: jiff::Timestamp) -> Value {
    let before = known
        .status
        .as_ref()
        .and_then(|status| status.in_place_restart.as_ref());
    let mut status = json!({});
    if let Some(conditions) = &change.conditions {
        status["conditions"] = json!(conditions);
    }
    if let Some(wanted) = &change.durable {
        status["inPlaceRestart"] = whole(&convert::status_to(wanted, change.kind.clone(), before, now));
        if begins_recreation(known, wanted) {
            let (counted, attempts) = known.status.as_ref().map_or((0, None), |status| {
                (status.restarts_count_towards_max, status.execution_attempts)
            });
            status["restarts"] = json!(known.restart_attempt().saturating_add(1));
            status["restartsCountTowardsMax"] = json!(counted.saturating_add(1));
            if let Some(attempts) = attempts.filter(|_| change.counts_attempts) {
                status["executionAttempts"] = json!(attempts.saturating_add(1));
            }
        }
    }
    json!({"metadata": {"resourceVersion": known.metadata.resource_version}, "status": status})
}

/// The kind of the group after this write. A recreation determines it again for the new Jobs.
pub(super) fn kind(known: &JobSet, wanted: Option<&Durable>, agents: &Agents) -> Option<InPlaceKind> {
    let group = if wanted.is_some_and(|wanted| begins_recreation(known, wanted)) {
        in_place::mode_of_new_jobs(known, agents)
    } else {
        in_place::mode(known, agents)
    };
    group.map(|group| group.kind)
}

fn begins_recreation(known: &JobSet, wanted: &Durable) -> bool {
    let before = known
        .status
        .as_ref()
        .and_then(|status| status.in_place_restart.as_ref());
    // The status holds it as an `i64`.
    let after = i64::try_from(wanted.generation.0).unwrap_or(i64::MAX);
    wanted.phase == DurablePhase::Recreating && after > before.map_or(0, |before| before.generation.max(0))
}

/// All fields of the status, with null for absent ones, because a merge patch keeps a field that it
/// does not name.
fn whole(status: &InPlaceRestartStatus) -> Value {
    let mut value = json!(status);
    if let Some(fields) = value.as_object_mut() {
        for name in [
            "generation",
            "latest",
            "workerRestarts",
            "released",
            "restarts",
            "epoch",
            "started",
            "joined",
            "level",
            "cause",
            "handledManualRequest",
            "handledWorkerRestart",
        ] {
            fields.entry(name).or_insert(Value::Null);
        }
        if let Some(cause) = fields.get_mut("cause").and_then(Value::as_object_mut) {
            for name in ["pod", "container", "node", "exitCode", "signal", "step", "error"] {
                cause.entry(name).or_insert(Value::Null);
            }
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use http::{Method, Request, Response};
    use kube::client::Body;
    use lockstep_core::restart::{Cause, Generation, Reason};
    use serde_json::from_value;

    use super::*;

    fn at(version: &str) -> JobSet {
        let mut jobset = JobSet::default();
        jobset.metadata.name = Some("js".to_owned());
        jobset.metadata.uid = Some("u".to_owned());
        jobset.metadata.resource_version = Some(version.to_owned());
        jobset
    }

    /// The error of a write on version 20 that is refused while the JobSet is at this version.
    async fn refused(shown: &'static str) -> WriteError {
        let service = tower::service_fn(move |request: Request<Body>| async move {
            let (code, answer) = if request.method() == Method::GET {
                (200, json!(at(shown)))
            } else {
                let status = json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409, "message": "m"});
                (409, status)
            };
            let answer = Response::builder()
                .status(code)
                .body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, tower::BoxError>(answer?)
        });
        let client = kube::Client::new(service, "default");
        let change = Change {
            durable: Some(Durable::default()),
            ..Change::default()
        };
        write(client, Arc::new(at("20")), change).await.unwrap_err()
    }

    #[tokio::test]
    async fn an_older_version_than_the_one_that_was_known_is_no_conflict() {
        for shown in ["20", "21", "opaque", "0"] {
            let refused = refused(shown).await;
            assert!(matches!(refused, WriteError::Conflict(_)), "{shown}: {refused}");
        }
        let refused = refused("9").await;
        assert_eq!(refused.to_string(), "it was at resourceVersion 20, and is at 9");
    }

    #[tokio::test]
    async fn a_write_succeeds_whatever_the_field_managers_have_written() {
        let service = tower::service_fn(|_: Request<Body>| async {
            let mut answer = json!(at("21"));
            answer["status"] = json!({"inPlaceRestart": {"generation": 1}});
            answer["metadata"]["managedFields"] = json!([
                {"manager": "evil", "operation": "Update", "time": "9999-12-31T23:59:59Z"},
            ]);
            Ok::<_, tower::BoxError>(Response::new(Body::from(answer.to_string().into_bytes())))
        });
        let client = kube::Client::new(service, "default");
        let change = Change {
            durable: Some(Durable::default()),
            ..Change::default()
        };
        let written = write(client, Arc::new(at("20")), change).await.unwrap();
        assert_eq!(written.metadata.resource_version.as_deref(), Some("21"));
    }

    #[test]
    fn the_kind_is_determined_again_only_for_recreated_jobs() {
        let container = json!({"name": "worker", "image": "image"});
        let template = json!({"spec": {"containers": [container]}});
        let job = json!({"name": "w", "template": {"spec": {"template": template}}});
        let known: JobSet = from_value(json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "js"},
            "spec": {"replicatedJobs": [job], "failurePolicy": {"restartStrategy": "InPlaceRestart"}},
            "status": {"inPlaceRestart": {"kind": "Supervised", "generation": 3}},
        }))
        .unwrap();
        // The container states no command.
        let by_template = Agents::ByTemplate("image".to_owned());
        let at = |phase, generation| {
            let wanted = Durable {
                phase,
                generation: Generation(generation),
                ..Durable::default()
            };
            kind(&known, Some(&wanted), &by_template)
        };
        assert_eq!(at(DurablePhase::Stopping, 4), Some(InPlaceKind::Supervised));
        assert_eq!(at(DurablePhase::Recreating, 4), Some(InPlaceKind::Plain));
        assert_eq!(at(DurablePhase::Recreating, 3), Some(InPlaceKind::Supervised));
        assert_eq!(kind(&known, None, &by_template), Some(InPlaceKind::Supervised));
    }

    #[test]
    fn a_recreation_raises_the_restarts_and_the_execution_attempts_if_they_are_counted() {
        let patched = |status: Value, counts_attempts| {
            let mut known = at("20");
            known.status = Some(from_value(status).unwrap());
            let durable = Durable {
                phase: DurablePhase::Recreating,
                generation: Generation(4),
                ..Durable::default()
            };
            let change = Change {
                durable: Some(durable),
                counts_attempts,
                ..Change::default()
            };
            let mut patch = patch(&known, &change, jiff::Timestamp::UNIX_EPOCH);
            let status = &mut patch["status"];
            (status["restarts"].take(), status["executionAttempts"].take())
        };
        let uncounted = json!({"restarts": 1});
        assert_eq!(patched(uncounted, true), (json!(2), Value::Null));
        let counted = json!({"restarts": 1, "executionAttempts": 5});
        assert_eq!(patched(counted.clone(), true), (json!(2), json!(6)));
        assert_eq!(patched(counted, false), (json!(2), Value::Null));
    }

    #[test]
    fn the_phase_is_written_once_the_workers_have_run() {
        let phase = |known: &JobSet, durable: Durable| {
            let change = Change {
                durable: Some(durable),
                ..Change::default()
            };
            let patch = patch(known, &change, jiff::Timestamp::UNIX_EPOCH);
            patch["status"]["inPlaceRestart"]["phase"].clone()
        };
        let asked = Durable {
            handled_request: Some("now".to_owned()),
            ..Durable::default()
        };
        assert_eq!(phase(&at("20"), asked.clone()), Value::Null);
        let started = Durable {
            started: ["a".to_owned()].into(),
            ..Durable::default()
        };
        assert_eq!(phase(&at("20"), started), json!("InSync"));
        let mut known = at("20");
        known.status = Some(from_value(json!({"inPlaceRestart": {"phase": "InSync"}})).unwrap());
        assert_eq!(phase(&known, asked), json!("InSync"));
    }

    #[test]
    fn a_cause_keeps_nothing_of_the_one_before() {
        let cause = Cause {
            reason: Reason::ManualRequest,
            identity: None,
            pod: String::new(),
            node: String::new(),
            exit: None,
            at: None,
            said: None,
        };
        let change = Change {
            durable: Some(Durable {
                cause: Some(cause),
                ..Durable::default()
            }),
            ..Change::default()
        };
        let patch = patch(&JobSet::default(), &change, jiff::Timestamp::UNIX_EPOCH);
        let cause = &patch["status"]["inPlaceRestart"]["cause"];
        for name in ["pod", "container", "node", "exitCode", "signal", "step", "error"] {
            assert!(cause.get(name).is_some_and(Value::is_null), "{name}: {cause}");
        }
    }
}
