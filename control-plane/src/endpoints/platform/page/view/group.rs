//! One group with its graph and its workers.

use std::collections::BTreeMap;

use lockstep_proto::platform::v1 as pb;
use serde::Serialize;

use super::{Detail, Key, Snapshot, Summary, convert, millis, summary};

mod standby;

/// Workers that are shown one by one. Further ones are only counted.
const WORKERS: usize = 10_000;

/// One group.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupView {
    #[serde(flatten)]
    summary: Summary,
    /// In the order in which they start.
    stages: Vec<Stage>,
    /// Workers that are not shown.
    more_workers: usize,
}

/// A replicatedJob.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stage {
    name: String,
    depends_on: Vec<Dependency>,
    started: bool,
    jobs_expected: u32,
    jobs_ready: u32,
    jobs_succeeded: u32,
    jobs_failed: u32,
    jobs: Vec<Job>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Dependency {
    stage: String,
    until: &'static str,
    reached: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    name: String,
    workers: Vec<Worker>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Worker {
    index: u32,
    container: String,
    pod: String,
    node: String,
    phase: &'static str,
    generation: u64,
    /// Milliseconds since the Unix epoch; 0: not known.
    since: i64,
    /// How it was started, and what is started ahead for it, as text. Without standbys neither is
    /// there.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    standbys: Option<String>,
    /// The last step that it has named.
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    section: String,
}

impl GroupView {
    pub(super) fn new(key: &Key, state: &Snapshot) -> Self {
        let mut group = convert::group(key, state, Detail::Full);
        let workers = std::mem::take(&mut group.workers);
        let mut stages: Vec<Stage> = std::mem::take(&mut group.stages).into_iter().map(stage).collect();
        let more_workers = workers.len().saturating_sub(WORKERS);
        let mut indexes: BTreeMap<String, usize> = stages
            .iter()
            .enumerate()
            .map(|(index, stage)| (stage.name.clone(), index))
            .collect();
        // In the same order as the converted workers.
        for (expected, worker) in state.observed.workers.values().zip(workers).take(WORKERS) {
            // Workers of a stage that the graph lacks are shown as well.
            let index = *indexes.entry(expected.stage.clone()).or_insert_with(|| {
                stages.push(Stage {
                    name: expected.stage.clone(),
                    ..Stage::default()
                });
                stages.len() - 1
            });
            if let Some(stage) = stages.get_mut(index) {
                stage.add(worker);
            }
        }
        Self {
            summary: summary(group, state),
            stages,
            more_workers,
        }
    }
}

impl Stage {
    /// Workers of one Job come one after the other.
    fn add(&mut self, worker: pb::Worker) {
        let phase = phase(worker.phase());
        let identity = worker.identity.unwrap_or_default();
        let shown = Worker {
            index: identity.completion_index,
            container: identity.container,
            pod: worker.pod,
            node: worker.node,
            phase,
            generation: worker.generation,
            since: millis(worker.since_unix_nanos),
            started: worker.starts.and_then(standby::started),
            standbys: worker.standbys.as_ref().map(standby::standbys),
            step: worker.step,
            section: worker.section,
        };
        match self.jobs.last_mut().filter(|job| job.name == identity.job) {
            Some(job) => job.workers.push(shown),
            None => self.jobs.push(Job {
                name: identity.job,
                workers: vec![shown],
            }),
        }
    }
}

fn stage(stage: pb::Stage) -> Stage {
    Stage {
        name: stage.name,
        depends_on: stage.depends_on.into_iter().map(dependency).collect(),
        started: stage.started,
        jobs_expected: stage.jobs_expected,
        jobs_ready: stage.jobs_ready,
        jobs_succeeded: stage.jobs_succeeded,
        jobs_failed: stage.jobs_failed,
        jobs: Vec::new(),
    }
}

fn dependency(dependency: pb::Dependency) -> Dependency {
    Dependency {
        until: match dependency.until() {
            pb::Milestone::Ready => "ready",
            pb::Milestone::Complete => "complete",
            pb::Milestone::Failed => "failed",
            pb::Milestone::Active => "active",
            pb::Milestone::Unspecified => "",
        },
        stage: dependency.stage,
        reached: dependency.reached,
    }
}

fn phase(phase: pb::WorkerPhase) -> &'static str {
    match phase {
        pb::WorkerPhase::Pending | pb::WorkerPhase::Unspecified => "Pending",
        pb::WorkerPhase::Fresh => "Fresh",
        pb::WorkerPhase::Starting => "Starting",
        pb::WorkerPhase::Running => "Running",
        pb::WorkerPhase::AwaitingHeartbeat => "AwaitingHeartbeat",
        pb::WorkerPhase::Hung => "Hung",
        pb::WorkerPhase::Stopping => "Stopping",
        pb::WorkerPhase::Parked => "Parked",
        pb::WorkerPhase::Exited => "Exited",
        pb::WorkerPhase::Done => "Done",
        pb::WorkerPhase::Unlinked => "Unlinked",
        pb::WorkerPhase::Lost => "Lost",
    }
}
