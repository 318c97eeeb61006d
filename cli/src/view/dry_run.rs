//! A dry run: what a restart would do, according to the platform API.

use lockstep_proto::platform::v1 as pb;
use serde::Serialize;

/// The answer of a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DryRun {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) effect: Effect,
    /// Why, in a word; empty for a restart in place.
    pub(crate) reason: String,
    /// Why, in a sentence.
    pub(crate) message: String,
    /// The restart attempt that it would lead to; `None` if nothing would be done.
    pub(crate) generation: Option<u64>,
    /// The restart level that it would begin with.
    pub(crate) level: String,
    /// All workers; first those that would be stopped.
    pub(crate) workers: Vec<Row>,
}

/// The effect of a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Effect {
    Nothing,
    InPlace,
    Recreate,
    /// An effect that only a later version knows.
    Unknown,
}

/// What would happen to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// Job, completion index and container.
    pub(crate) worker: String,
    pub(crate) pod: String,
    pub(crate) node: String,
    pub(crate) stopped: bool,
    /// Why it would be left unchanged; empty if it would be stopped.
    pub(crate) because: &'static str,
}

/// The view of the platform API's answer.
pub(crate) fn dry_run(namespace: &str, name: &str, answer: &pb::DryRun) -> DryRun {
    let effect = match answer.effect() {
        pb::RestartEffect::Nothing => Effect::Nothing,
        pb::RestartEffect::InPlace => Effect::InPlace,
        pb::RestartEffect::Recreate => Effect::Recreate,
        pb::RestartEffect::Unspecified => Effect::Unknown,
    };
    let stopped = answer.stopped.iter().map(|worker| row(worker, None));
    let left = answer.left_alone.iter().map(|left| {
        let because = match left.reason() {
            pb::LeftAloneReason::Done => "it is done",
            pb::LeftAloneReason::Finished => "its replicatedJob has finished",
            pb::LeftAloneReason::NotStarted => "it has not started",
            pb::LeftAloneReason::NotNamed => "it is not named",
            pb::LeftAloneReason::UnderWay => "it is already being restarted",
            pb::LeftAloneReason::Unspecified => "for a reason that this version does not know",
        };
        row(&left.worker.clone().unwrap_or_default(), Some(because))
    });
    DryRun {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        effect,
        reason: answer.reason.clone(),
        message: answer.message.clone(),
        generation: (answer.generation > 0).then_some(answer.generation),
        level: answer.level.clone(),
        workers: stopped.chain(left).collect(),
    }
}

fn row(worker: &pb::Worker, because: Option<&'static str>) -> Row {
    let identity = worker.identity.clone().unwrap_or_default();
    Row {
        worker: format!(
            "{}[{}]/{}",
            identity.job, identity.completion_index, identity.container
        ),
        pod: worker.pod.clone(),
        node: worker.node.clone(),
        stopped: because.is_none(),
        because: because.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(index: u32) -> pb::Worker {
        pb::Worker {
            identity: Some(pb::WorkerIdentity {
                job: "ring-w-0".into(),
                completion_index: index,
                container: "worker".into(),
            }),
            pod: format!("pod-{index}"),
            ..pb::Worker::default()
        }
    }

    #[test]
    fn stopped_workers_come_before_unchanged_ones() {
        let answer = pb::DryRun {
            effect: pb::RestartEffect::InPlace.into(),
            generation: 3,
            level: "Process".into(),
            stopped: vec![worker(1)],
            left_alone: vec![pb::LeftAlone {
                worker: Some(worker(0)),
                reason: pb::LeftAloneReason::Done.into(),
            }],
            ..pb::DryRun::default()
        };
        let view = dry_run("team", "ring", &answer);
        assert_eq!((view.effect, view.generation), (Effect::InPlace, Some(3)));
        let rows: Vec<_> = view
            .workers
            .iter()
            .map(|row| (row.worker.as_str(), row.stopped, row.because))
            .collect();
        assert_eq!(
            rows,
            [
                ("ring-w-0[1]/worker", true, ""),
                ("ring-w-0[0]/worker", false, "it is done")
            ]
        );
    }
}
