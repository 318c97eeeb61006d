//! Accessors of a JobSet with defaults applied: objects can arrive undefaulted.

use std::collections::BTreeMap;

use crate::annotations::IN_PLACE_TIMEOUT;
use crate::conditions::{COMPLETED, FAILED};
use crate::naming::{job_name, pod_hostname};
use crate::shared::object;
use crate::{
    CONTROLLER_NAME, Coordinator, ExecutionPolicyOrder, FailurePolicy, FailurePolicyAction, Gang,
    InPlaceKind, JobSet, Network, Operator, ReplicatedJob, ReplicatedJobsStatus, RestartStrategy,
    RetentionPolicy, StartupPolicy, StartupPolicyOrder, VolumeClaimPolicy,
};

/// The default group of replicatedJobs.
pub const DEFAULT_GROUP_NAME: &str = "default";

object!(JobSet);

impl JobSet {
    /// The replicatedJob with this name.
    pub fn replicated_job(&self, name: &str) -> Option<&ReplicatedJob> {
        self.spec.replicated_jobs.iter().find(|job| job.name == name)
    }

    /// Name of a Job of the set: `<jobset>-<replicatedJob>-<job index>`.
    pub fn job_name(&self, replicated_job: &str, job_index: i64) -> String {
        job_name(self.name(), replicated_job, job_index)
    }

    /// Name of the headless Service and domain of the pods' host names. Defaulted here and not at
    /// admission, since the JobSet's name may not be known then.
    pub fn subdomain(&self) -> &str {
        match self
            .spec
            .network
            .as_ref()
            .and_then(|network| network.subdomain.as_deref())
        {
            None | Some("") => self.name(),
            Some(subdomain) => subdomain,
        }
    }

    /// True if pods have host names and the set has its headless Service.
    pub fn dns_hostnames(&self) -> bool {
        self.spec.network.as_ref().is_none_or(Network::dns_hostnames)
    }

    /// True if host names of pods that are not ready are published.
    pub fn publish_not_ready_addresses(&self) -> bool {
        self.spec
            .network
            .as_ref()
            .and_then(|network| network.publish_not_ready_addresses)
            .unwrap_or(true)
    }

    /// True if the set is suspended.
    pub fn is_suspended(&self) -> bool {
        self.spec.suspend.unwrap_or(false)
    }

    /// True if this controller manages the set.
    pub fn is_managed_here(&self) -> bool {
        self.spec
            .managed_by
            .as_deref()
            .is_none_or(|manager| manager == CONTROLLER_NAME)
    }

    /// True if the set has completed or failed for good.
    pub fn is_finished(&self) -> bool {
        self.status
            .as_ref()
            .is_some_and(|status| status.is_true(COMPLETED) || status.is_true(FAILED))
    }

    /// `status.restarts`: how often all Jobs were recreated. Jobs and pods carry it as the label
    /// `restart-attempt`.
    pub fn restart_attempt(&self) -> i32 {
        self.status.as_ref().map_or(0, |status| status.restarts)
    }

    /// How often one Job was recreated on its own.
    pub fn job_restarts(&self, replicated_job: &str, job_index: usize) -> i32 {
        let status = self.status.as_ref();
        let counts = status.and_then(|status| status.replicated_job(replicated_job));
        counts
            .and_then(|counts| counts.job_restarts.get(job_index))
            .copied()
            .unwrap_or(0)
    }

    /// How often the set may restart before it fails.
    pub fn max_restarts(&self) -> i32 {
        self.spec
            .failure_policy
            .as_ref()
            .map_or(0, FailurePolicy::max_restarts)
    }

    /// How the set is restarted. An unknown value means the default.
    pub fn restart_strategy(&self) -> RestartStrategy {
        let policy = self.spec.failure_policy.as_ref();
        match policy.and_then(|policy| policy.restart_strategy.as_ref()) {
            None | Some(RestartStrategy::Other(_)) => RestartStrategy::Recreate,
            Some(strategy) => strategy.clone(),
        }
    }

    /// True if the set restarts in place: by its restart strategy, or by the annotation
    /// [`IN_PLACE_TIMEOUT`]. Once its Jobs were created for it this stays true even if the
    /// annotation is removed: only the coordinator releases its workers.
    pub fn in_place(&self) -> bool {
        self.restart_strategy() == RestartStrategy::InPlaceRestart
            || self.annotation(IN_PLACE_TIMEOUT).is_some()
            || self.is_made_in_place()
    }

    /// True if its Jobs were created for in-place restarts with a coordinator.
    pub fn is_made_in_place(&self) -> bool {
        let status = self
            .status
            .as_ref()
            .and_then(|status| status.in_place_restart.as_ref());
        status.is_some_and(|status| {
            let kind = status.kind.as_ref();
            status.phase.is_some() || matches!(kind, Some(InPlaceKind::Supervised | InPlaceKind::Plain))
        })
    }

    /// True if replicatedJobs start one after another.
    pub fn starts_in_order(&self) -> bool {
        self.spec
            .startup_policy
            .as_ref()
            .is_some_and(StartupPolicy::is_in_order)
    }

    /// What each replicatedJob must reach before the next one is created; `None` if the execution
    /// policy does not order them.
    pub fn executes_in_order(&self) -> Option<ReplicatedJobsStatus> {
        let policy = self.spec.execution_policy.as_ref()?;
        (policy.execution_policy_order == Some(ExecutionPolicyOrder::InOrder))
            .then(|| policy.replicated_jobs_status.clone().unwrap_or_default())
    }

    /// The operator of the success policy; `All` if there is none.
    pub fn success_operator(&self) -> Operator {
        self.spec
            .success_policy
            .as_ref()
            .map_or(Operator::All, |policy| policy.operator.clone())
    }

    /// Host name of the coordinator pod, if the set names one.
    pub fn coordinator_endpoint(&self) -> Option<String> {
        self.spec.coordinator.as_ref().map(|coordinator| {
            let job = self.job_name(&coordinator.replicated_job, coordinator.job_index());
            format!(
                "{}.{}",
                pod_hostname(&job, coordinator.pod_index()),
                self.subdomain()
            )
        })
    }
}

impl ReplicatedJob {
    /// How many Jobs to create; 1 by default.
    pub fn replicas(&self) -> i32 {
        self.replicas.unwrap_or(1)
    }

    /// How many pods each of its Jobs runs concurrently; 1 by default.
    pub fn parallelism(&self) -> i32 {
        let spec = self.template.spec.as_ref();
        spec.and_then(|spec| spec.parallelism).unwrap_or(1).max(0)
    }

    /// How many pods it has when it runs: replicas x parallelism.
    pub fn pods(&self) -> i32 {
        self.replicas().max(0).saturating_mul(self.parallelism())
    }

    /// The group of the replicatedJob.
    pub fn group_name(&self) -> &str {
        match self.group_name.as_deref() {
            None | Some("") => DEFAULT_GROUP_NAME,
            Some(name) => name,
        }
    }
}

impl Gang {
    /// The minimum of each replicatedJob, in pods, by name. A replicatedJob that is not listed
    /// starts with all its pods; a set with a single replicatedJob may state its minimum for the
    /// whole set.
    pub fn minimums<'a>(&self, replicated_jobs: &'a [ReplicatedJob]) -> BTreeMap<&'a str, i32> {
        let alone = replicated_jobs.len() == 1;
        let minimum = |job: &ReplicatedJob| {
            let stated = self.listed(&job.name).or(self.min_available.filter(|_| alone));
            stated.unwrap_or_else(|| job.pods()).clamp(0, job.pods())
        };
        replicated_jobs
            .iter()
            .map(|job| (job.name.as_str(), minimum(job)))
            .collect()
    }
}

impl Network {
    /// True if pods have host names, which is the default.
    pub fn dns_hostnames(&self) -> bool {
        self.enable_dns_hostnames.unwrap_or(true)
    }
}

impl FailurePolicyAction {
    /// True if the action recreates one Job, and leaves the others alone.
    #[must_use]
    pub fn restarts_one_job(&self) -> bool {
        matches!(self, Self::RestartJob | Self::RestartJobAndIgnoreMaxRestarts)
    }
}

impl FailurePolicy {
    /// How often the set may restart; 0 by default.
    pub fn max_restarts(&self) -> i32 {
        self.max_restarts.unwrap_or(0)
    }
}

impl StartupPolicy {
    /// True if replicatedJobs start one after another.
    pub fn is_in_order(&self) -> bool {
        self.startup_policy_order == StartupPolicyOrder::InOrder
    }
}

impl Coordinator {
    /// Index of the Job; 0 by default.
    pub fn job_index(&self) -> i64 {
        self.job_index.unwrap_or(0)
    }

    /// Completion index of the pod; 0 by default.
    pub fn pod_index(&self) -> i64 {
        self.pod_index.unwrap_or(0)
    }
}

impl VolumeClaimPolicy {
    /// What happens to the claims when the JobSet is deleted; `Delete` by default.
    pub fn when_deleted(&self) -> RetentionPolicy {
        self.retention_policy
            .as_ref()
            .and_then(|policy| policy.when_deleted.clone())
            .unwrap_or(RetentionPolicy::Delete)
    }
}

#[cfg(test)]
mod tests;
