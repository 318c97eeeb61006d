//! Converts between `status.inPlaceRestart` and the core's durable state.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{
    InPlaceKind, InPlacePhase, InPlaceRestartStatus, JobSetStatus, RestartCause, RestartedWorker,
};
use lockstep_core::restart::{
    Cause, Durable, DurablePhase, Epoch, Exit, Generation, Identity, Progress, Reason, RestartLevel,
};

/// Reads the status. Impossible numbers are read as 0, from which the generation can only rise.
#[must_use]
pub fn durable_from(status: Option<&InPlaceRestartStatus>) -> Durable {
    let Some(status) = status else {
        return Durable::default();
    };
    let phase = match &status.phase {
        Some(InPlacePhase::Stopping | InPlacePhase::Parked | InPlacePhase::Releasing) => {
            DurablePhase::Stopping
        }
        Some(InPlacePhase::Recreating) => DurablePhase::Recreating,
        Some(InPlacePhase::Failed) => DurablePhase::Failed,
        Some(InPlacePhase::InSync | InPlacePhase::Other(_)) | None => DurablePhase::InSync,
    };
    Durable {
        epoch: Epoch(u64::try_from(status.epoch).unwrap_or(0)),
        generation: Generation(u64::try_from(status.generation).unwrap_or(0)),
        latest: Generation(u64::try_from(status.latest).unwrap_or(0)),
        worker_restarts: status.worker_restarts.iter().map(worker_restart_from).collect(),
        released: Generation(u64::try_from(status.released).unwrap_or(0)),
        counted_restarts: u32::try_from(status.restarts).unwrap_or(0),
        started: status.started.iter().cloned().collect(),
        joined: status.joined.iter().cloned().collect(),
        phase,
        cause: status.cause.as_ref().and_then(cause_from),
        handled_request: status.handled_manual_request.clone(),
        handled_worker_restart: status.handled_worker_restart.clone(),
        level: status
            .level
            .as_ref()
            .and_then(|level| RestartLevel::parse(level.as_str())),
    }
}

/// Reads the status of a JobSet. Restarts from before it was a group still count.
pub(super) fn durable_of(status: Option<&JobSetStatus>) -> Durable {
    let mut durable = durable_from(status.and_then(|status| status.in_place_restart.as_ref()));
    if durable.generation == Generation(0) {
        let before = status.map_or(0, |status| status.restarts_count_towards_max);
        durable.counted_restarts = durable.counted_restarts.max(u32::try_from(before).unwrap_or(0));
    }
    durable
}

/// The status to write.
pub(super) fn status_to(
    durable: &Durable,
    kind: Option<InPlaceKind>,
    before: Option<&InPlaceRestartStatus>,
    now: jiff::Timestamp,
) -> InPlaceRestartStatus {
    let phase = match durable.phase {
        DurablePhase::InSync => InPlacePhase::InSync,
        DurablePhase::Stopping => InPlacePhase::Stopping,
        DurablePhase::Recreating => InPlacePhase::Recreating,
        DurablePhase::Failed => InPlacePhase::Failed,
    };
    // Something else is written while the workers come up for the first time.
    let never_ran = before.is_none_or(|status| status.phase.is_none())
        && phase == InPlacePhase::InSync
        && durable.started.is_empty();
    let kept = before
        .filter(|status| status.phase.as_ref() == Some(&phase))
        .and_then(|status| status.last_transition_time.clone());
    InPlaceRestartStatus {
        kind,
        phase: (!never_ran).then_some(phase),
        generation: i64::try_from(durable.generation.0).unwrap_or(i64::MAX),
        latest: i64::try_from(durable.latest.0).unwrap_or(i64::MAX),
        worker_restarts: durable.worker_restarts.iter().map(worker_restart_to).collect(),
        released: i64::try_from(durable.released.0).unwrap_or(i64::MAX),
        restarts: i32::try_from(durable.counted_restarts).unwrap_or(i32::MAX),
        epoch: i64::try_from(durable.epoch.0).unwrap_or(i64::MAX),
        started: durable.started.iter().cloned().collect(),
        joined: durable.joined.iter().cloned().collect(),
        level: durable.level.map(|level| level.as_str().into()),
        cause: durable.cause.as_ref().map(cause_to),
        handled_manual_request: durable.handled_request.clone(),
        handled_worker_restart: durable.handled_worker_restart.clone(),
        last_transition_time: (!never_ran).then(|| kept.unwrap_or(Time(now))),
    }
}

fn worker_restart_from(worker: &RestartedWorker) -> (Identity, Generation) {
    let identity = Identity {
        job: worker.job.as_str().into(),
        index: u32::try_from(worker.index).unwrap_or(0),
        container: worker.container.as_str().into(),
    };
    (
        identity,
        Generation(u64::try_from(worker.generation).unwrap_or(0)),
    )
}

fn worker_restart_to((identity, generation): (&Identity, &Generation)) -> RestartedWorker {
    RestartedWorker {
        job: identity.job.to_string(),
        index: i32::try_from(identity.index).unwrap_or(i32::MAX),
        container: identity.container.to_string(),
        generation: i64::try_from(generation.0).unwrap_or(i64::MAX),
    }
}

fn cause_from(cause: &RestartCause) -> Option<Cause> {
    let exit = cause.exit_code.map(|code| Exit {
        code,
        signal: cause.signal.unwrap_or(0),
    });
    Some(Cause {
        reason: Reason::parse(cause.reason.as_deref()?)?,
        identity: None,
        pod: cause.pod.clone().unwrap_or_default(),
        node: cause.node.clone().unwrap_or_default(),
        exit,
        at: None,
        said: said_from(cause),
    })
}

/// What is kept of what the worker had said.
fn said_from(cause: &RestartCause) -> Option<Arc<Progress>> {
    let progress = Progress {
        step: cause.step.and_then(|step| u64::try_from(step).ok()),
        error: cause.error.clone().unwrap_or_default(),
        ..Progress::default()
    };
    let progress = progress.bounded();
    (!progress.is_empty()).then(|| Arc::new(progress))
}

fn cause_to(cause: &Cause) -> RestartCause {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let said = cause.said.as_deref();
    RestartCause {
        reason: Some(cause.reason.as_str().to_owned()),
        pod: text(&cause.pod),
        container: cause
            .identity
            .as_ref()
            .map(|identity| identity.container.to_string()),
        node: text(&cause.node),
        exit_code: cause.exit.map(|exit| exit.code),
        signal: cause.exit.map(|exit| exit.signal).filter(|signal| *signal != 0),
        step: said.and_then(|said| i64::try_from(said.step?).ok()),
        error: said.and_then(|said| text(&said.error)),
        message: Some(sentence(cause)),
    }
}

/// What the worker had said of its work, as a part of a sentence.
fn said(cause: &Cause) -> String {
    let Some(said) = cause.said.as_deref() else {
        return String::new();
    };
    let step = said.step.map(|step| format!(" after step {step}"));
    let section = (!said.section.is_empty()).then(|| format!(" in {}", said.section));
    let error = (!said.error.is_empty()).then(|| format!(" with the error \"{}\"", said.error));
    [step, section, error].into_iter().flatten().collect()
}

/// What an exit code usually means. The agent uses these codes for a program that it cannot start.
/// Shells use them for commands of their scripts, too, hence the question mark. The worker's log
/// names the program.
fn hint(code: i32) -> &'static str {
    match code {
        // The kubelet's code for a program that could not be started. No agent was involved.
        128 => " (could not be started: executable not found?)",
        126 => " (not executable, or permission denied?)",
        127 => " (executable not found?)",
        _ => "",
    }
}

/// The cause in a sentence, for status, events and logs.
pub(crate) fn sentence(cause: &Cause) -> String {
    let worker = cause
        .identity
        .as_ref()
        .map_or_else(|| "a worker".to_owned(), |identity| format!("worker {identity}"));
    let ended = match cause.exit {
        Some(Exit { signal, .. }) if signal != 0 => format!("was killed by signal {signal}"),
        Some(Exit { code, .. }) => format!("exited with code {code}{}", hint(code)),
        None => "failed".to_owned(),
    };
    let location = if cause.node.is_empty() {
        String::new()
    } else {
        format!(" (pod {}, node {})", cause.pod, cause.node)
    };
    let location = location + &said(cause);
    match cause.reason {
        Reason::WorkerExited => format!("{worker} {ended}{location}"),
        Reason::FailedAgain => {
            format!(
                "{worker} {ended}{location}: it failed again within 60 s of a restart in place, so its pod is replaced"
            )
        }
        Reason::FailedInNewPod => {
            format!(
                "{worker} {ended}{location}: it failed again within 60 s of getting a new pod, so all Jobs are recreated"
            )
        }
        Reason::LastResort => {
            format!(
                "{worker} {ended}{location} within 60 s of a restart in place, and maxRestarts is used up: all Jobs are recreated once"
            )
        }
        Reason::ContainerLost if cause.exit.is_none() => {
            format!("the container of {worker} was lost{location}")
        }
        Reason::ContainerLost => format!("the container of {worker} was lost: it {ended}{location}"),
        Reason::PodLost => format!("the pod of {worker} is gone"),
        Reason::TimedOut => {
            "not all workers were running again within alpha.jobset.sigs.k8s.io/inplace-timeout".to_owned()
        }
        Reason::WorkDone => {
            "a worker of an unfinished replicatedJob has already completed and is not run again in place"
                .to_owned()
        }
        Reason::StaysDown => {
            "a policy or a webhook of the cluster has changed a worker's pod so that it has no agent"
                .to_owned()
        }
        Reason::ManualRequest => "a restart was requested".to_owned(),
        Reason::ReplacementLate => {
            "the Job controller would replace a lost pod later than alpha.jobset.sigs.k8s.io/inplace-timeout"
                .to_owned()
        }
        Reason::HeartbeatMissed => {
            format!("{worker} sent no heartbeat within lockstep.dev/heartbeat-timeout{location}")
        }
        Reason::ReadyTimeout => {
            format!("{worker} was not up within lockstep.dev/ready-timeout{location}")
        }
        Reason::ProtocolError => "workers run a generation that the status does not name".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_be_run_is_distinguished_from_one_that_failed() {
        let text = |code, signal| {
            sentence(&Cause {
                reason: Reason::WorkerExited,
                identity: None,
                pod: "js-w-0-1-abcde".to_owned(),
                node: "node-7".to_owned(),
                exit: Some(Exit { code, signal }),
                at: None,
                said: None,
            })
        };
        let location = " (pod js-w-0-1-abcde, node node-7)";
        for (code, signal, how) in [
            (3, 0, "exited with code 3"),
            (
                126,
                0,
                "exited with code 126 (not executable, or permission denied?)",
            ),
            (127, 0, "exited with code 127 (executable not found?)"),
            (137, 9, "was killed by signal 9"),
        ] {
            assert_eq!(text(code, signal), format!("a worker {how}{location}"));
        }
    }

    #[test]
    fn what_the_worker_had_said_is_told_and_kept() {
        let cause = |said: Progress| Cause {
            reason: Reason::WorkerExited,
            identity: None,
            pod: String::new(),
            node: String::new(),
            exit: Some(Exit { code: 1, signal: 0 }),
            at: None,
            said: Some(Arc::new(said)),
        };
        let all = cause(Progress {
            step: Some(7),
            section: "load".to_owned(),
            error: "OSError: no space".to_owned(),
        });
        assert_eq!(
            sentence(&all),
            "a worker exited with code 1 after step 7 in load with the error \"OSError: no space\""
        );
        assert_eq!(
            sentence(&cause(Progress::default())),
            "a worker exited with code 1"
        );
        let kept = cause_from(&cause_to(&all)).unwrap();
        let kept = kept.said.unwrap();
        assert_eq!((kept.step, kept.error.as_str()), (Some(7), "OSError: no space"));
    }
}
