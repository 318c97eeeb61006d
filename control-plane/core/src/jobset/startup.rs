//! The order in which the replicatedJobs of a JobSet start.
//!
//! Every kind of order is compiled into the same graph: each replicatedJob is a stage with
//! [gates](crate::jobset::gate), and its Jobs are created and resumed once all gates are open.
//!
//! - `dependsOn` waits for the replicatedJobs that it names, until they are ready or complete. Its
//!   gates hold while the JobSet is suspended.
//! - [`executionPolicy: InOrder`](crate::jobset::execution_policy) waits for all earlier
//!   replicatedJobs, until they are what the policy says. Its gates hold while the JobSet is
//!   suspended.
//! - `startupPolicy: InOrder` waits for all earlier replicatedJobs, until they are ready. Its gates
//!   do not hold while the JobSet is suspended, since the Jobs are created suspended.

use lockstep_api::{
    JobSet, ReplicatedJob, ReplicatedJobStatus,
    conditions::{STARTUP_POLICY_COMPLETED, STARTUP_POLICY_IN_PROGRESS, messages, reasons},
};

use crate::{
    jobset::execution_policy,
    jobset::gate::{self, Gate, Milestone, has_reached},
    jobset::plan::Severity,
    jobset::status::{Draft, NewCondition},
};

#[cfg(test)]
mod tests;

/// The replicatedJobs of a JobSet in their order, with what each waits for.
pub(crate) struct Graph<'a> {
    pub(crate) stages: Vec<Stage<'a>>,
}

/// One replicatedJob.
pub(crate) struct Stage<'a> {
    pub(crate) replicated_job: &'a ReplicatedJob,
    pub(crate) gates: Vec<Gate<'a>>,
}

impl<'a> Graph<'a> {
    pub(crate) fn compile(jobset: &'a JobSet) -> Self {
        let all = &jobset.spec.replicated_jobs;
        let in_order = jobset.starts_in_order();
        let stages = all.iter().enumerate().map(|(index, replicated_job)| {
            let mut gates = gate::of_depends_on(jobset, replicated_job);
            gates.extend(execution_policy::gates(jobset, replicated_job));
            if in_order {
                let earlier = all.iter().take(index);
                gates.extend(earlier.map(|on| Gate {
                    on: Some(on),
                    until: Milestone::Ready,
                    holds_while_suspended: false,
                }));
            }
            Stage {
                replicated_job,
                gates,
            }
        });
        Self {
            stages: stages.collect(),
        }
    }
}

impl Stage<'_> {
    /// True if the Jobs of the stage may run.
    pub(crate) fn may_run(&self, counts: &[ReplicatedJobStatus]) -> bool {
        self.gates.iter().all(|gate| gate.is_open(counts))
    }

    /// True if the Jobs of the stage may be created.
    pub(crate) fn may_be_created(&self, suspended: bool, counts: &[ReplicatedJobStatus]) -> bool {
        self.gates
            .iter()
            .all(|gate| suspended && !gate.holds_while_suspended || gate.is_open(counts))
    }
}

/// True if `startupPolicy: InOrder` still has replicatedJobs to start.
pub(crate) fn is_in_progress(jobset: &JobSet, counts: &[ReplicatedJobStatus]) -> bool {
    jobset.starts_in_order()
        && !jobset
            .spec
            .replicated_jobs
            .iter()
            .all(|job| has_reached(job, Milestone::Ready, counts))
}

/// Reports the progress of `startupPolicy: InOrder` as a condition.
pub(crate) fn report(jobset: &JobSet, counts: &[ReplicatedJobStatus], draft: &mut Draft<'_>) {
    if !jobset.starts_in_order() || jobset.is_suspended() {
        return;
    }
    let (type_, reason, message) = if is_in_progress(jobset, counts) {
        (
            STARTUP_POLICY_IN_PROGRESS,
            reasons::IN_ORDER_STARTUP_POLICY_IN_PROGRESS,
            messages::IN_ORDER_STARTUP_POLICY_IN_PROGRESS,
        )
    } else {
        (
            STARTUP_POLICY_COMPLETED,
            reasons::IN_ORDER_STARTUP_POLICY_COMPLETED,
            messages::IN_ORDER_STARTUP_POLICY_COMPLETED,
        )
    };
    draft.set_condition(&NewCondition {
        severity: Severity::Normal,
        type_,
        status: true,
        reason,
        message,
    });
}
