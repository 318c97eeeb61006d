//! Conversion of dry runs to the wire.

use lockstep_core::restart::{Effect, Fate, Observed, Preview, Reason, RestartLevel, Unmoved};
use lockstep_proto::platform::v1 as pb;

/// The whole answer, with workers as they were observed.
pub(in crate::endpoints::platform) fn dry_run(preview: &Preview, observed: &Observed) -> pb::DryRun {
    let newest = super::newest_reports(observed);
    let mut answer = head(preview.effect);
    for (identity, fate) in &preview.workers {
        let Some(expected) = observed.workers.get(identity) else {
            continue;
        };
        let worker = super::worker(identity, expected, newest.get(identity).copied());
        let reason = match fate {
            Fate::Stopped => {
                answer.stopped.push(worker);
                continue;
            }
            Fate::Done => pb::LeftAloneReason::Done,
            Fate::Finished => pb::LeftAloneReason::Finished,
            Fate::NotStarted => pb::LeftAloneReason::NotStarted,
            Fate::NotNamed => pb::LeftAloneReason::NotNamed,
            Fate::UnderWay => pb::LeftAloneReason::UnderWay,
        };
        answer.left_alone.push(pb::LeftAlone {
            worker: Some(worker),
            reason: reason.into(),
        });
    }
    answer
}

fn recreated(reason: Reason) -> &'static str {
    match reason {
        Reason::StaysDown => {
            "a policy or a webhook of the cluster has changed a worker's pod so that it has no agent: the Jobs would be recreated"
        }
        Reason::WorkDone => {
            "a worker of an unfinished replicatedJob has already completed and is not run again in place: the Jobs would be recreated"
        }
        // These answer a failure. A request alone never leads to them.
        Reason::WorkerExited
        | Reason::ContainerLost
        | Reason::PodLost
        | Reason::TimedOut
        | Reason::ManualRequest
        | Reason::ProtocolError
        | Reason::ReplacementLate
        | Reason::HeartbeatMissed
        | Reason::ReadyTimeout
        | Reason::FailedAgain
        | Reason::FailedInNewPod
        | Reason::LastResort => "the Jobs would be recreated",
    }
}

fn head(effect: Effect) -> pb::DryRun {
    let (kind, generation, level) = match effect {
        Effect::Nothing(_) => (pb::RestartEffect::Nothing, None, None),
        Effect::InPlace { generation, level } => (pb::RestartEffect::InPlace, Some(generation), Some(level)),
        Effect::Recreate { generation, .. } => (
            pb::RestartEffect::Recreate,
            Some(generation),
            Some(RestartLevel::Recreate),
        ),
    };
    let (reason, message) = match effect {
        Effect::Nothing(why) => unmoved(why),
        Effect::InPlace { .. } => ("", "the workers would be restarted in place"),
        Effect::Recreate { reason, .. } => (reason.as_str(), recreated(reason)),
    };
    pb::DryRun {
        effect: kind.into(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        generation: generation.map_or(0, |generation| generation.0),
        level: level.map(|level| level.as_str().to_owned()).unwrap_or_default(),
        ..pb::DryRun::default()
    }
}

fn unmoved(why: Unmoved) -> (&'static str, &'static str) {
    match why {
        Unmoved::Handled => ("Handled", "this request was already handled"),
        Unmoved::Recovering => ("Recovering", "a new leader is still taking over the group"),
        Unmoved::UnderWay => ("UnderWay", "the workers are already being restarted"),
        Unmoved::NoneRuns => ("NoneRuns", "no worker is running"),
        Unmoved::Suspended => ("Suspended", "the JobSet is suspended"),
        Unmoved::NoRoom => (
            "NoRoom",
            "too many worker restarts are under way: this one would wait",
        ),
        Unmoved::Failed => ("Failed", "maxRestarts is used up"),
    }
}
