//! Annotations that users and the controller set, and their values.
//!
//! Keys that only identify objects are in [`crate::labels`].

use std::time::Duration;

pub use lockstep_protocol::pods::{
    IN_PLACE, IN_PLACE_PLAIN, IN_PLACE_SUPERVISED, STANDBY, STOP_WITHOUT_AGENT, SUPERVISE, Standby,
};

use crate::duration::{DurationError, parse_duration, shown};
pub use crate::target::LONGEST_RESTART_REQUEST;
use crate::{JobSet, NoTarget, ReplicatedJob, WorkerRestartRequest};

/// On a JobSet or a Job template: one Job per topology domain; the value is the node label that
/// names the domain.
pub const EXCLUSIVE_TOPOLOGY: &str = "alpha.jobset.sigs.k8s.io/exclusive-topology";
/// On a JobSet, with any value: exclusive placement by node selectors instead of pod affinity.
pub const NODE_SELECTOR_STRATEGY: &str = "alpha.jobset.sigs.k8s.io/node-selector";
/// On a JobSet: restart in place, and recreate if that takes longer than this duration.
pub const IN_PLACE_TIMEOUT: &str = "alpha.jobset.sigs.k8s.io/inplace-timeout";
/// On a JobSet, written by the controller: the restart attempt of its workers. Never read back.
pub const IN_PLACE_RESTARTS: &str = "alpha.jobset.sigs.k8s.io/inplace-restarts";
/// On a pod, written by upstream's in-place restart agent: its restart attempt.
pub const IN_PLACE_RESTART_ATTEMPT: &str = "jobset.sigs.k8s.io/in-place-restart-attempt";
/// On a JobSet: tells upstream's in-place restart agent to run the worker without a barrier.
pub const DISABLE_IN_PLACE_RESTART: &str = "jobset.sigs.k8s.io/disable-in-place-restart";

/// On a JobSet's Jobs and pods, written by the controller: the value of `status.executionAttempts`
/// that they were created or resumed for (KEP-1282).
pub const EXECUTION_ATTEMPT: &str = "jobset.sigs.k8s.io/execution-attempt";

/// On a JobSet: how long a worker may take to end after SIGTERM at a restart in place.
pub const RESTART_GRACE: &str = "lockstep.dev/restart-grace";

/// On a JobSet: the longest wait before a restart in place if the same worker keeps failing, or
/// workers keep ending on their own, within seconds of the release. `0s` disables the wait.
pub const MAX_BACKOFF: &str = "lockstep.dev/max-backoff";
/// On a JobSet: requests a restart in place of all its workers, once per new value (such as the
/// time). Such restarts are not counted.
pub const RESTART_REQUEST: &str = "lockstep.dev/restart-request";
/// On a JobSet: requests a restart of single workers, once per new value
/// ([`crate::WorkerRestartRequest`]). Such restarts are not counted.
pub const RESTART_WORKERS: &str = "lockstep.dev/restart-workers";
/// On a JobSet: a running worker counts as failed if it touched the file that `LOCKSTEP_HEARTBEAT`
/// names once, and then not for this long.
pub const HEARTBEAT_TIMEOUT: &str = "lockstep.dev/heartbeat-timeout";
/// On a JobSet: a started worker that is not up within this time counts as failed. A worker is up
/// when it runs and, with [`HEARTBEAT_TIMEOUT`], has sent its first heartbeat.
pub const READY_TIMEOUT: &str = "lockstep.dev/ready-timeout";

/// On a JobSet: after how many failures of a worker, within which time, its pod is deleted, such as
/// `3/10m` ([`EscalateAfter`]).
pub const ESCALATE_AFTER: &str = "lockstep.dev/escalate-after";

/// In the Job template of a replicatedJob of a JobSet that restarts in place: what a failure of one
/// of its workers restarts ([`RestartScope`]).
pub const RESTART_SCOPE: &str = "lockstep.dev/restart-scope";

/// On a JobSet with a gang, written at admission: its replicatedJobs start one after another.
pub const DEPENDENT_JOB: &str = "dependent-job";
/// On a JobSet's Jobs and pods, written by the controller: the name of their gang.
pub const GANG: &str = "lockstep.dev/gang";
/// On a JobSet's Jobs and pods, written by the controller: how many pods of the Job are part of the
/// gang's minimum.
pub const GANG_MINIMUM: &str = "lockstep.dev/gang-minimum";
/// On a JobSet's Jobs and pods, written by the controller: the name of the PodGroup of the gang's
/// minimum, if kube-scheduler starts the gang.
pub const GANG_POD_GROUP: &str = "lockstep.dev/gang-pod-group";

/// On a CRD: the version of the control plane that installed the definition, with a hash of the
/// definition as build metadata.
pub const CRD_VERSION: &str = "lockstep.dev/crd-version";

/// Value of [`SUPERVISE`] that disables supervision.
pub const SUPERVISE_NONE: &str = "none";

/// The default time limit of a restart in place.
pub const DEFAULT_IN_PLACE_TIMEOUT: Duration = Duration::from_secs(60);

/// The default limit of the backoff.
pub const DEFAULT_MAX_BACKOFF: Duration = Duration::from_secs(60);

/// When the pod of a worker that keeps failing is deleted, so that it may start on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EscalateAfter {
    /// The number of failures that triggers the deletion.
    pub failures: u32,
    /// The time window of these failures.
    pub within: Duration,
}

impl EscalateAfter {
    /// The largest number of failures.
    pub const MOST: u32 = 100;
    /// The shortest time window: no worker fails, starts and fails again in less.
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

/// What a failure of a worker restarts ([`RESTART_SCOPE`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestartScope {
    /// `group`: all workers of the JobSet.
    #[default]
    Group,
    /// `worker`: only that worker.
    Worker,
}

/// Which containers are supervised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Supervise {
    /// None: the JobSet restarts whole containers.
    Nothing,
    /// These, even if they have a probe or a hook that would prevent it.
    Containers(Vec<String>),
}

/// An annotation with an invalid value.
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
    /// A duration of 0 that must be positive.
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
    /// An empty or too long request.
    #[error("annotation {RESTART_REQUEST}: must be 1 to {LONGEST_RESTART_REQUEST} bytes long, not {length}")]
    RestartRequest {
        /// The length in bytes.
        length: usize,
    },
    /// The target or the name of the request is missing.
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
    /// Nothing that can be started ahead.
    #[error("annotation {STANDBY}: {value:?} must be \"python\", \"program\" or \"none\"")]
    Standby {
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

/// Reads [`STANDBY`], if it is there.
fn stated_standby(value: Option<&str>) -> Result<Option<Standby>, AnnotationError> {
    let Some(value) = value else {
        return Ok(None);
    };
    match Standby::from_value(value) {
        Some(standby) => Ok(Some(standby)),
        None => Err(AnnotationError::Standby { value: shown(value) }),
    }
}

impl ReplicatedJob {
    /// What a failure of one of its workers restarts ([`RESTART_SCOPE`]).
    pub fn restart_scope(&self) -> Result<RestartScope, AnnotationError> {
        match self.annotation(RESTART_SCOPE) {
            None => Ok(RestartScope::default()),
            Some("group") => Ok(RestartScope::Group),
            Some("worker") => Ok(RestartScope::Worker),
            Some(value) => Err(AnnotationError::RestartScope { value: shown(value) }),
        }
    }

    /// What its own Job template says about standbys ([`STANDBY`]), if it does.
    pub fn standby(&self) -> Result<Option<Standby>, AnnotationError> {
        stated_standby(self.annotation(STANDBY))
    }

    /// An annotation of its Job template.
    fn annotation(&self, key: &str) -> Option<&str> {
        let metadata = self.template.metadata.as_ref()?;
        metadata.annotations.as_ref()?.get(key).map(String::as_str)
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

    /// How long a worker may take to end after SIGTERM at a restart ([`RESTART_GRACE`]), if set.
    pub fn restart_grace(&self) -> Result<Option<Duration>, AnnotationError> {
        self.duration_annotation(RESTART_GRACE)
    }

    /// The longest wait of a group that keeps failing ([`MAX_BACKOFF`]).
    pub fn max_backoff(&self) -> Result<Duration, AnnotationError> {
        Ok(self
            .duration_annotation(MAX_BACKOFF)?
            .unwrap_or(DEFAULT_MAX_BACKOFF))
    }

    /// When the pod of a worker that keeps failing is deleted ([`ESCALATE_AFTER`]), if set.
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

    /// Which containers are supervised ([`SUPERVISE`]), if set.
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

    /// What the JobSet says about standbys ([`STANDBY`]), if it does. Job templates may say
    /// otherwise.
    pub fn standby(&self) -> Result<Option<Standby>, AnnotationError> {
        stated_standby(self.annotation(STANDBY))
    }

    /// What is started ahead for the workers of a replicatedJob. A value that is not known starts
    /// nothing.
    #[must_use]
    pub fn standby_of(&self, replicated_job: &ReplicatedJob) -> Standby {
        let stated = replicated_job.standby().transpose();
        let stated = stated.or_else(|| self.standby().transpose());
        stated.and_then(Result::ok).unwrap_or_default()
    }

    /// The latest request for a restart ([`RESTART_REQUEST`]), if there is one.
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

    /// How long a worker may be silent after a heartbeat ([`HEARTBEAT_TIMEOUT`]), if set.
    pub fn heartbeat_timeout(&self) -> Result<Option<Duration>, AnnotationError> {
        self.timeout_annotation(HEARTBEAT_TIMEOUT)
    }

    /// How long a started worker may take to be up ([`READY_TIMEOUT`]), if set.
    pub fn ready_timeout(&self) -> Result<Option<Duration>, AnnotationError> {
        self.timeout_annotation(READY_TIMEOUT)
    }

    /// A duration that must be positive.
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
