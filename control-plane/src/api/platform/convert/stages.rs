//! The start-up graph, to the wire.

use lockstep_api::JobSet;
use lockstep_core::jobset::stages::{self, Dependency, Milestone, StageState};
use lockstep_proto::platform::v1 as pb;

/// The replicatedJobs of a JobSet, in the order of the graph.
pub(super) fn stages(jobset: &JobSet) -> Vec<pb::Stage> {
    stages::stages(jobset).iter().map(stage).collect()
}

fn stage(stage: &StageState<'_>) -> pb::Stage {
    let counts = &stage.counts;
    let count = |jobs: i32| u32::try_from(jobs).unwrap_or(0);
    pb::Stage {
        name: stage.name.to_owned(),
        depends_on: stage.depends_on.iter().map(dependency).collect(),
        started: stage.has_started(),
        jobs_expected: count(stage.expected),
        jobs_ready: count(counts.ready),
        jobs_succeeded: count(counts.succeeded),
        jobs_failed: count(counts.failed),
        jobs_active: count(counts.active),
        jobs_suspended: count(counts.suspended),
    }
}

fn dependency(dependency: &Dependency<'_>) -> pb::Dependency {
    let until = match dependency.until {
        Milestone::Ready => pb::Milestone::Ready,
        Milestone::Complete => pb::Milestone::Complete,
        Milestone::Failed => pb::Milestone::Failed,
        Milestone::Active => pb::Milestone::Active,
    };
    pb::Dependency {
        stage: dependency.on.to_owned(),
        until: until.into(),
        reached: dependency.reached,
    }
}
