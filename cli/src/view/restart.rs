//! Progress of a requested restart.

use lockstep_api::annotations::{RESTART_REQUEST, RESTART_WORKERS};
use lockstep_api::{InPlacePhase, JobSet, Target, WorkerRestartRequest};
use lockstep_proto::platform::v1 as pb;

#[cfg(test)]
mod tests;

/// A request that a command waits for.
///
/// A later request replaces it, and may be handled before this command sees this one handled.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// UID of the JobSet: another one may take its name.
    uid: String,
    /// The value of the annotation, which the status repeats once it is handled.
    text: String,
    /// The request that was handled last before it.
    before: Option<String>,
}

impl Request {
    /// A request to restart all workers. `jobset` is the JobSet before the request.
    pub(crate) fn of_all(jobset: &JobSet, token: &str) -> Self {
        Self::new(jobset, token.to_owned(), handled(jobset))
    }

    /// A request to restart some workers.
    pub(crate) fn of_workers(jobset: &JobSet, request: &WorkerRestartRequest) -> Self {
        Self::new(jobset, request.to_string(), handled_worker_restart(jobset))
    }

    fn new(jobset: &JobSet, text: String, before: Option<&str>) -> Self {
        Self {
            uid: jobset.uid_str().to_owned(),
            text,
            before: before.map(str::to_owned),
        }
    }

    /// True if this request or a later one was handled. `current` is the request in the annotation
    /// now, and `handled` the one that was handled last.
    fn is_handled(&mut self, current: Option<&str>, handled: Option<&str>) -> bool {
        let handled = handled.filter(|handled| !handled.is_empty());
        if handled == Some(self.text.as_str()) {
            return true;
        }
        if current == Some(self.text.as_str()) {
            // This request is still pending, so the handled one is an earlier one.
            self.before = handled.map(str::to_owned);
        }
        handled.is_some() && handled != self.before.as_deref()
    }
}

fn handled(jobset: &JobSet) -> Option<&str> {
    let status = jobset.status.as_ref()?.in_place_restart.as_ref()?;
    status.handled_manual_request.as_deref()
}

fn handled_worker_restart(jobset: &JobSet) -> Option<&str> {
    let status = jobset.status.as_ref()?.in_place_restart.as_ref()?;
    status.handled_worker_restart.as_deref()
}

/// The state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The control plane has not handled it.
    Requested,
    /// The restart is under way.
    UnderWay(ProgressDetail),
    /// All workers run at this restart attempt.
    Done(i64),
    /// Why there is nothing to wait for.
    Ended(String),
}

/// Progress in words, and in numbers if it can be counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgressDetail {
    /// The progress in a few words.
    pub(crate) words: String,
    /// How many of how many are done.
    pub(crate) part: Option<(u32, u32)>,
}

impl ProgressDetail {
    /// Progress that cannot be counted.
    pub(crate) fn uncounted(words: impl Into<String>) -> Self {
        Self {
            words: words.into(),
            part: None,
        }
    }
}

/// Why a JobSet cannot restart in place; `None` if it can.
pub(crate) fn refusal(jobset: &JobSet) -> Option<String> {
    let name = format!("JobSet {}/{}", jobset.ns(), jobset.name());
    if jobset.is_deleting() {
        return Some(format!("{name} is being deleted"));
    }
    if let Some(state) = jobset
        .status
        .as_ref()
        .and_then(|status| status.terminal_state.as_ref())
    {
        return Some(format!(
            "{name} has ended ({state}): it has no workers to restart"
        ));
    }
    if jobset.is_suspended() {
        return Some(format!("{name} is suspended: it has no workers to restart"));
    }
    if !jobset.is_managed_here() {
        return Some(format!(
            "{name} is managed by another controller (spec.managedBy)"
        ));
    }
    (!jobset.in_place()).then(|| {
        format!(
            "{name} does not restart in place: set spec.failurePolicy.restartStrategy to InPlaceRestart in its manifest, \
             and create it again"
        )
    })
}

/// Why there is nothing to wait for; `None` if there is.
fn over(jobset: &JobSet, request: &Request) -> Option<String> {
    let name = format!("JobSet {}/{}", jobset.ns(), jobset.name());
    let is_another = jobset.uid_str() != request.uid;
    is_another
        .then(|| format!("{name} was deleted and created again"))
        .or_else(|| refusal(jobset))
}

/// The progress of a request to restart all workers. `group` is the group in the platform API, if
/// that is used.
pub(crate) fn progress(jobset: &JobSet, group: Option<&pb::Group>, request: &mut Request) -> Progress {
    if let Some(why) = over(jobset, request) {
        return Progress::Ended(why);
    }
    let status = jobset
        .status
        .as_ref()
        .and_then(|status| status.in_place_restart.as_ref());
    let is_handled = request.is_handled(jobset.annotation(RESTART_REQUEST), handled(jobset));
    let Some(status) = status.filter(|_| is_handled) else {
        return Progress::Requested;
    };
    let up = group.map(|group| {
        // The platform API's answer may be older than the status.
        let is_recent = i64::try_from(group.generation).is_ok_and(|it| it >= status.generation);
        (
            if is_recent { group.workers_up } else { 0 },
            group.workers_expected,
        )
    });
    match &status.phase {
        Some(InPlacePhase::Failed) => Progress::Ended("maxRestarts is used up".to_owned()),
        Some(InPlacePhase::InSync)
            if status.released >= status.generation && up.is_none_or(|(up, all)| up >= all) =>
        {
            Progress::Done(status.generation)
        }
        phase => {
            let phase = phase
                .as_ref()
                .map_or_else(|| "starting".to_owned(), ToString::to_string);
            Progress::UnderWay(ProgressDetail {
                words: match up {
                    Some((up, all)) => format!("{phase}, {up} of {all} workers up"),
                    None => phase,
                },
                part: up,
            })
        }
    }
}

/// The progress of a request to restart the `target` workers. A restart of all workers includes
/// them. A later request implies that this one was handled, since the platform API replaces no
/// pending request.
pub(crate) fn worker_restart_progress(jobset: &JobSet, target: &Target, request: &mut Request) -> Progress {
    if let Some(why) = over(jobset, request) {
        return Progress::Ended(why);
    }
    let status = jobset.status.as_ref();
    let Some(status) = status.and_then(|status| status.in_place_restart.as_ref()) else {
        return Progress::Requested;
    };
    if status.phase == Some(InPlacePhase::Failed) {
        return Progress::Ended("maxRestarts is used up".to_owned());
    }
    if !request.is_handled(jobset.annotation(RESTART_WORKERS), handled_worker_restart(jobset)) {
        return Progress::Requested;
    }
    // The name of a Job contains that of its replicatedJob.
    let named = |job: &str, index: i32, container: &str| match target {
        Target::ReplicatedJob(name) => job
            .strip_prefix(&format!("{}-{name}-", jobset.name()))
            .is_some_and(|index| index.parse::<u32>().is_ok()),
        target => target.takes("", job, u32::try_from(index).unwrap_or(u32::MAX), container),
    };
    let left = status
        .worker_restarts
        .iter()
        .filter(|worker| named(&worker.job, worker.index, &worker.container))
        .count();
    match (&status.phase, left) {
        (Some(InPlacePhase::InSync), 0) => Progress::Done(status.generation.max(status.latest)),
        (Some(InPlacePhase::InSync), left) => {
            Progress::UnderWay(ProgressDetail::uncounted(format!("{left} do not run again yet")))
        }
        (phase, _) => Progress::UnderWay(ProgressDetail::uncounted(
            phase
                .as_ref()
                .map_or_else(|| "restarting".to_owned(), ToString::to_string),
        )),
    }
}
