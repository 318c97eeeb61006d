//! In which order the replicatedJobs of a JobSet start.
//!
//! Every kind of order is compiled into the same graph: each replicatedJob is a stage with gates,
//! and its Jobs are created and resumed once all gates are open.
//!
//! | asked for by | gates of a replicatedJob | while the JobSet is suspended |
//! |---|---|---|
//! | `dependsOn` (see [`crate::jobset::depends_on`]) | the replicatedJobs it names: ready or complete | hold |
//! | `executionPolicy: InOrder` (see [`crate::jobset::execution_policy`]) | all earlier replicatedJobs: what the policy says | hold |
//! | `startupPolicy: InOrder` | all earlier replicatedJobs: ready | do not hold, for the Jobs are created suspended |
//! | neither | none | |

use lockstep_api::{
    JobSet, ReplicatedJob, ReplicatedJobStatus,
    conditions::{STARTUP_POLICY_COMPLETED, STARTUP_POLICY_IN_PROGRESS, messages, reasons},
};

use crate::{
    jobset::depends_on,
    jobset::execution_policy,
    jobset::gate::{Gate, Milestone},
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
            let mut gates = depends_on::gates(jobset, replicated_job);
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

impl Gate<'_> {
    pub(crate) fn is_open(&self, counts: &[ReplicatedJobStatus]) -> bool {
        self.on
            .is_some_and(|replicated_job| has_reached(replicated_job, self.until, counts))
    }
}

fn has_reached(replicated_job: &ReplicatedJob, milestone: Milestone, counts: &[ReplicatedJobStatus]) -> bool {
    counts
        .iter()
        .find(|counts| counts.name == replicated_job.name)
        .is_some_and(|counts| {
            let ended = i64::from(counts.succeeded) + i64::from(counts.failed);
            let reached = match milestone {
                Milestone::Ready => i64::from(counts.ready) + ended,
                Milestone::Complete => i64::from(counts.succeeded),
                Milestone::Failed => i64::from(counts.failed),
                Milestone::Active => i64::from(counts.active) + ended,
            };
            reached == i64::from(replicated_job.replicas())
        })
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

/// States how far `startupPolicy: InOrder` has come.
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
