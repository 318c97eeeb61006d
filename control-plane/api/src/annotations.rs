//! Annotations that ask for something, and their values.
//!
//! The annotations that merely identify are in [`crate::labels`].

use std::time::Duration;

use crate::duration::{DurationError, parse_duration, shown};
pub use crate::target::LONGEST_RESTART_REQUEST;
use crate::{JobSet, NoTarget, ReplicatedJob, WorkerRestartRequest};

/// On a JobSet or a Job template: one Job per topology domain; the value is the node label that
/// names the domain.
pub const EXCLUSIVE_TOPOLOGY: &str = "alpha.jobset.sigs.k8s.io/exclusive-topology";
/// On a JobSet, with any value: exclusive placement by node selectors instead of pod affinity.
pub const NODE_SELECTOR_STRATEGY: &str = "alpha.jobset.sigs.k8s.io/node-selector";
/// On a JobSet: restart in place, and recreate when that takes longer than this duration.
pub const IN_PLACE_TIMEOUT: &str = "alpha.jobset.sigs.k8s.io/inplace-timeout";
/// On a JobSet, written by the controller: the restart attempt of its workers. Never read back.
pub const IN_PLACE_RESTARTS: &str = "alpha.jobset.sigs.k8s.io/inplace-restarts";
/// On a pod, written by upstream's in-place restart agent: its restart attempt.
pub const IN_PLACE_RESTART_ATTEMPT: &str = "jobset.sigs.k8s.io/in-place-restart-attempt";
/// On a JobSet: tells upstream's in-place restart agent to run the worker without a barrier.
pub const DISABLE_IN_PLACE_RESTART: &str = "jobset.sigs.k8s.io/disable-in-place-restart";

/// On pods, written by the controller: restart in place. The value is [`IN_PLACE_SUPERVISED`] or
/// [`IN_PLACE_PLAIN`].
pub const IN_PLACE: &str = "lockstep.dev/in-place";
/// Value of [`IN_PLACE`]: node daemons inject the agent.
pub const IN_PLACE_SUPERVISED: &str = "supervised";
/// Value of [`IN_PLACE`]: node daemons kill the containers at a restart, and kubelet starts them
/// again.
pub const IN_PLACE_PLAIN: &str = "plain";
/// On a JobSet: the containers that are workers, see [`Supervise`]. On pods of an in-place JobSet,
/// written by the controller: the same, always as a list.
pub const SUPERVISE: &str = "lockstep.dev/supervise";
/// On pods, written by the controller, with the value `true`: kubelet starts each worker again that
/// is stopped, so one that was started without its agent may be.
pub const STOP_WITHOUT_AGENT: &str = "lockstep.dev/stop-without-agent";
/// On a JobSet: how long a worker may take to end after SIGTERM when it is restarted in place.
pub const RESTART_GRACE: &str = "lockstep.dev/restart-grace";

/// On a JobSet: the longest wait before a restart in place where the same worker fails again and
/// again, or workers end by themselves again and again, each time within seconds of the release.
/// `0s`: nobody ever waits.
pub const MAX_BACKOFF: &str = "lockstep.dev/max-backoff";
/// On a JobSet: asks for a restart in place of all its workers, once for each new value (such as
/// the time). It is not counted.
pub const RESTART_REQUEST: &str = "lockstep.dev/restart-request";
/// On a JobSet: asks for a restart of some of its workers, each alone, once for each new value
/// ([`crate::WorkerRestartRequest`]). It is not counted.
pub const RESTART_WORKERS: &str = "lockstep.dev/restart-workers";
/// On a JobSet: a running worker that does not touch the file which `LOCKSTEP_HEARTBEAT` names for
/// this long, after it has once, counts as failed.
pub const HEARTBEAT_TIMEOUT: &str = "lockstep.dev/heartbeat-timeout";
/// On a JobSet: a worker that was started and is not up within this time counts as failed. Up is
/// who runs, and, with [`HEARTBEAT_TIMEOUT`], has given its first heartbeat.
pub const READY_TIMEOUT: &str = "lockstep.dev/ready-timeout";

/// On a JobSet: how often, and within which time, a worker has to fail for its pod to be deleted,
/// such as `3/10m` ([`EscalateAfter`]).
pub const ESCALATE_AFTER: &str = "lockstep.dev/escalate-after";

/// In the Job template of a replicatedJob of a JobSet that restarts in place: what the failure of
/// one of its workers restarts ([`RestartScope`]).
pub const RESTART_SCOPE: &str = "lockstep.dev/restart-scope";

/// On a JobSet with a gang, written at admission: its replicatedJobs start one after another.
pub const DEPENDENT_JOB: &str = "dependent-job";
/// On a JobSet's Jobs and pods, written by the controller: name of the gang that they belong to.
pub const GANG: &str = "lockstep.dev/gang";
/// On a JobSet's Jobs and pods, written by the controller: how many pods of the Job are below the
/// minimum of the gang.
pub const GANG_MINIMUM: &str = "lockstep.dev/gang-minimum";
/// On a JobSet's Jobs and pods, written by the controller: name of the PodGroup of the pods below
/// the minimum, where kube-scheduler starts the gang.
pub const GANG_POD_GROUP: &str = "lockstep.dev/gang-pod-group";

/// Value of [`SUPERVISE`] that refuses supervision.
pub const SUPERVISE_NONE: &str = "none";

/// How long a restart in place may take where the JobSet does not say.
pub const DEFAULT_IN_PLACE_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest back-off where the JobSet does not say.
pub const DEFAULT_MAX_BACKOFF: Duration = Duration::from_secs(60);

/// When the pod of a worker that fails again and again is deleted, so that it may come up
/// elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EscalateAfter {
    /// The failure that is one too many.
    pub failures: u32,
    /// The time that they must all lie in.
    pub within: Duration,
}

impl EscalateAfter {
    /// The most failures that are counted.
    pub const MOST: u32 = 100;
    /// The shortest time: no worker fails, starts and fails again in less.
    pub const SHORTEST: Duration = Duration::from_secs(1);

    /// Reads `<failures>/<duration>`.
    fn parse(value: &str) -> Option<Self> {
        let (failures, within) = value.split_once('/')?;
        let failures = failures.trim().parse().ok()?;
        let within = parse_duration(within.trim()).ok()?;
        ((1..=Self::MOST).contains(&failures) && within >= Self::SHORTEST)
            .then_some(Self { failures, within })
    }
}

/// What the failure of a worker restarts ([`RESTART_SCOPE`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartScope {
    /// `group`: all workers of the JobSet.
    #[default]
    Group,
    /// `worker`: that worker alone.
    Worker,
}

/// Which containers the user wants to have supervised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Supervise {
    /// None: the JobSet restarts by container.
    Nothing,
    /// These, even where they have a probe or a hook that speaks against it.
    Containers(Vec<String>),
}

/// An annotation with a value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationError {
    /// Not a duration.
    #[error("annotation {key}: invalid duration {value:?}: {source}")]
    Duration {
        /// The annotation.
        key: &'static str,
        /// The beginning of its value.
        value: String,
        /// What is wrong.
        source: DurationError,
    },
    /// A duration of 0 where something must have time to happen.
    #[error("annotation {key}: duration {value:?} must be greater than 0")]
    ZeroDuration {
        /// The annotation.
        key: &'static str,
        /// The beginning of its value.
        value: String,
    },
    /// Not a number of failures and a duration.
    #[error(
        "annotation {key}: {value:?} must be a number of failures from 1 to {} and a duration of at least {:?}, such as \"3/10m\"",
        EscalateAfter::MOST,
        EscalateAfter::SHORTEST
    )]
    FailuresWithin {
        /// The annotation.
        key: &'static str,
        /// The beginning of its value.
        value: String,
    },
    /// Nothing that could be told from another request, or too much.
    #[error("annotation {RESTART_REQUEST}: must be 1 to {LONGEST_RESTART_REQUEST} bytes long, not {length}")]
    RestartRequest {
        /// How long it is.
        length: usize,
    },
    /// Nobody is named, or the request is not.
    #[error("annotation {RESTART_WORKERS}: {value:?} {NoTarget}, a space, and a name for the request")]
    RestartWorkers {
        /// The beginning of its value.
        value: String,
    },
    /// Not a scope.
    #[error("annotation {RESTART_SCOPE}: {value:?} must be \"group\" or \"worker\"")]
    RestartScope {
        /// The beginning of its value.
        value: String,
    },
    /// A list with a missing name.
    #[error("annotation {key}: {value:?} must be \"none\" or a comma-separated list of container names")]
    ContainerList {
        /// The annotation.
        key: &'static str,
        /// The beginning of its value.
        value: String,
    },
}

impl ReplicatedJob {
    /// What the failure of one of its workers restarts ([`RESTART_SCOPE`]).
    pub fn restart_scope(&self) -> Result<RestartScope, AnnotationError> {
        let metadata = self.template.metadata.as_ref();
        let annotations = metadata.and_then(|metadata| metadata.annotations.as_ref());
        match annotations.and_then(|annotations| annotations.get(RESTART_SCOPE)) {
            None => Ok(RestartScope::default()),
            Some(value) if value == "group" => Ok(RestartScope::Group),
            Some(value) if value == "worker" => Ok(RestartScope::Worker),
            Some(value) => Err(AnnotationError::RestartScope { value: shown(value) }),
        }
    }
}

impl JobSet {
    /// How long a restart in place may take before the Jobs are recreated instead
    /// ([`IN_PLACE_TIMEOUT`]).
    pub fn in_place_timeout(&self) -> Result<Duration, AnnotationError> {
        Ok(self
            .timeout_annotation(IN_PLACE_TIMEOUT)?
            .unwrap_or(DEFAULT_IN_PLACE_TIMEOUT))
    }

    /// How long a worker may take to end after SIGTERM at a restart ([`RESTART_GRACE`]), where the
    /// JobSet says.
    pub fn restart_grace(&self) -> Result<Option<Duration>, AnnotationError> {
        self.duration_annotation(RESTART_GRACE)
    }

    /// How long a group that fails again and again may be made to wait at most ([`MAX_BACKOFF`]).
    pub fn max_backoff(&self) -> Result<Duration, AnnotationError> {
        Ok(self
            .duration_annotation(MAX_BACKOFF)?
            .unwrap_or(DEFAULT_MAX_BACKOFF))
    }

    /// When the pod of a worker that fails again and again is deleted ([`ESCALATE_AFTER`]), where
    /// the JobSet says.
    pub fn escalate_after(&self) -> Result<Option<EscalateAfter>, AnnotationError> {
        let Some(value) = self.annotation(ESCALATE_AFTER) else {
            return Ok(None);
        };
        match EscalateAfter::parse(value) {
            Some(read) => Ok(Some(read)),
            None => Err(AnnotationError::FailuresWithin {
                key: ESCALATE_AFTER,
                value: shown(value),
            }),
        }
    }

    /// Which containers the user wants to have supervised ([`SUPERVISE`]), where the JobSet says.
    pub fn supervise(&self) -> Result<Option<Supervise>, AnnotationError> {
        let Some(value) = self.annotation(SUPERVISE) else {
            return Ok(None);
        };
        if value.trim() == SUPERVISE_NONE {
            return Ok(Some(Supervise::Nothing));
        }
        let names: Vec<String> = value.split(',').map(|name| name.trim().to_owned()).collect();
        if names.iter().any(|name| name.is_empty() || name == SUPERVISE_NONE) {
            return Err(AnnotationError::ContainerList {
                key: SUPERVISE,
                value: shown(value),
            });
        }
        Ok(Some(Supervise::Containers(names)))
    }

    /// The latest request for a restart ([`RESTART_REQUEST`]), where there is one.
    pub fn restart_request(&self) -> Result<Option<&str>, AnnotationError> {
        match self.annotation(RESTART_REQUEST) {
            Some(value) if !(1..=LONGEST_RESTART_REQUEST).contains(&value.len()) => {
                Err(AnnotationError::RestartRequest { length: value.len() })
            }
            value => Ok(value),
        }
    }

    /// The latest request to restart single workers ([`RESTART_WORKERS`]), if there is one.
    pub fn worker_restart_request(&self) -> Result<Option<WorkerRestartRequest>, AnnotationError> {
        let Some(value) = self.annotation(RESTART_WORKERS) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(request) => Ok(Some(request)),
            Err(NoTarget) => Err(AnnotationError::RestartWorkers {
                value: value.chars().take(80).collect(),
            }),
        }
    }

    /// How long a worker may be silent after a heartbeat ([`HEARTBEAT_TIMEOUT`]), where the JobSet
    /// asks for heartbeats.
    pub fn heartbeat_timeout(&self) -> Result<Option<Duration>, AnnotationError> {
        self.timeout_annotation(HEARTBEAT_TIMEOUT)
    }

    /// How long a worker that was started may take until it is up ([`READY_TIMEOUT`]), where the
    /// JobSet says.
    pub fn ready_timeout(&self) -> Result<Option<Duration>, AnnotationError> {
        self.timeout_annotation(READY_TIMEOUT)
    }

    /// A duration in which something must have time to happen.
    fn timeout_annotation(&self, key: &'static str) -> Result<Option<Duration>, AnnotationError> {
        match self.duration_annotation(key)? {
            Some(timeout) if timeout.is_zero() => Err(AnnotationError::ZeroDuration {
                key,
                value: shown(self.annotation(key).unwrap_or_default()),
            }),
            timeout => Ok(timeout),
        }
    }

    fn duration_annotation(&self, key: &'static str) -> Result<Option<Duration>, AnnotationError> {
        self.annotation(key)
            .map(|value| {
                parse_duration(value).map_err(|source| AnnotationError::Duration {
                    key,
                    value: shown(value),
                    source,
                })
            })
            .transpose()
    }
}

#[cfg(test)]
mod tests;
