//! The state of the start-up graph: what each replicatedJob waits for, and how many of its Jobs are
//! in which state.
//!
//! It is the graph of [`crate::jobset::startup`], by which the reconciler creates Jobs, with the
//! counts from the status.

use lockstep_api::{JobSet, ReplicatedJobStatus};

use crate::jobset::gate::Gate;
pub use crate::jobset::gate::Milestone;
use crate::jobset::startup::{Graph, Stage};

#[cfg(test)]
mod tests;

/// One replicatedJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageState<'a> {
    /// Its name.
    pub name: &'a str,
    /// What its Jobs wait for: the replicatedJobs that it names and, if a policy orders all, the
    /// one before it.
    pub depends_on: Vec<Dependency<'a>>,
    /// How many Jobs it should have.
    pub expected: i32,
    /// How many there are in each state.
    pub counts: ReplicatedJobStatus,
}

/// A replicatedJob that another one waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency<'a> {
    /// Name of the other replicatedJob.
    pub on: &'a str,
    /// What it must have reached.
    pub until: Milestone,
    /// True if it has reached that. If a policy orders all: it and all before it.
    pub reached: bool,
}

impl StageState<'_> {
    /// True if one of its Jobs has run in the current restart attempt.
    #[must_use]
    pub fn has_started(&self) -> bool {
        let counts = &self.counts;
        let all = [counts.active, counts.ready, counts.succeeded, counts.failed];
        all.into_iter().any(|jobs| jobs > 0)
    }
}

/// The replicatedJobs of a JobSet in the order of the graph: none comes before one that it waits
/// for.
#[must_use]
pub fn stages(jobset: &JobSet) -> Vec<StageState<'_>> {
    let counts = match &jobset.status {
        Some(status) => status.replicated_jobs_status.as_slice(),
        None => &[],
    };
    let mut all_before = true;
    let graph = Graph::compile(jobset);
    graph
        .stages
        .iter()
        .map(|stage| state(stage, counts, &mut all_before))
        .collect()
}

/// Leaves out gates on replicatedJobs that do not exist, which validation refuses. If a policy
/// orders all replicatedJobs, the one before stands for all earlier ones, which can be many.
fn state<'a>(stage: &Stage<'a>, counts: &[ReplicatedJobStatus], all_before: &mut bool) -> StageState<'a> {
    let name = stage.replicated_job.name.as_str();
    let dependency = |gate: &Gate<'a>| {
        Some(Dependency {
            on: gate.on?.name.as_str(),
            until: gate.until,
            reached: gate.is_open(counts),
        })
    };
    let named = stage.replicated_job.depends_on.len().min(stage.gates.len());
    let (named, ordered) = stage.gates.split_at(named);
    let mut depends_on: Vec<Dependency<'a>> = named.iter().filter_map(dependency).collect();
    if let Some(mut before) = ordered.last().and_then(dependency) {
        *all_before &= before.reached;
        before.reached = *all_before;
        depends_on.push(before);
    }
    StageState {
        name,
        depends_on,
        expected: stage.replicated_job.replicas(),
        counts: counts
            .iter()
            .find(|counts| counts.name == name)
            .cloned()
            .unwrap_or_default(),
    }
}
