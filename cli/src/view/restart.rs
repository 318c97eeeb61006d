//! Progress of a requested restart.

use lockstep_api::annotations::{RESTART_REQUEST, RESTART_WORKERS};
use lockstep_api::{InPlacePhase, JobSet, Target, WorkerRestartRequest};
use lockstep_proto::platform::v1 as pb;

/// A request that a command waits for.
///
/// A later request replaces it, and may be handled before this command sees that this one was.
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
    Asked,
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

/// Why a JobSet cannot restart in place, if it cannot.
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

/// Why there is nothing to wait for, if so.
fn over(jobset: &JobSet, request: &Request) -> Option<String> {
    let name = format!("JobSet {}/{}", jobset.ns(), jobset.name());
    let is_another = jobset.uid_str() != request.uid;
    is_another
        .then(|| format!("{name} was deleted and created again"))
        .or_else(|| refusal(jobset))
}

/// The progress of a request to restart all workers. `group` is the group in the platform API, if
/// that was asked.
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
        return Progress::Asked;
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
                .map_or_else(|| "restarting".to_owned(), ToString::to_string);
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

/// The progress of a request to restart the `target` workers. A restart of all workers includes it.
/// A later request implies that it was handled, since the platform API does not replace a pending
/// one.
pub(crate) fn worker_restart_progress(jobset: &JobSet, target: &Target, request: &mut Request) -> Progress {
    if let Some(why) = over(jobset, request) {
        return Progress::Ended(why);
    }
    let status = jobset.status.as_ref();
    let Some(status) = status.and_then(|status| status.in_place_restart.as_ref()) else {
        return Progress::Asked;
    };
    if status.phase == Some(InPlacePhase::Failed) {
        return Progress::Ended("maxRestarts is used up".to_owned());
    }
    if !request.is_handled(jobset.annotation(RESTART_WORKERS), handled_worker_restart(jobset)) {
        return Progress::Asked;
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::view::testing::object;

    fn jobset(spec: Value, status: Value) -> JobSet {
        object(
            json!({"metadata": {"name": "ring", "namespace": "team", "uid": "1"}, "spec": spec, "status": status}),
        )
    }

    fn in_place() -> Value {
        json!({"failurePolicy": {"restartStrategy": "InPlaceRestart"}, "replicatedJobs": []})
    }

    #[test]
    fn named_workers_run_again_once_the_status_does_not_list_them() {
        let request: WorkerRestartRequest = "replicatedJob/ps t".parse().unwrap();
        let other = json!({"job": "ring-ps-eval-0", "index": 0, "container": "w", "generation": 2});
        let named = json!({"job": "ring-ps-1", "index": 0, "container": "w", "generation": 3});
        for (phase, handled, worker_restarts, expected) in [
            ("InSync", "replicatedJob/ps s", vec![], Progress::Asked),
            (
                "InSync",
                "replicatedJob/ps t",
                vec![&other, &named],
                Progress::UnderWay(ProgressDetail::uncounted("1 do not run again yet")),
            ),
            ("InSync", "replicatedJob/ps t", vec![&other], Progress::Done(3)),
            (
                "Stopping",
                "replicatedJob/ps t",
                vec![],
                Progress::UnderWay(ProgressDetail::uncounted("Stopping")),
            ),
            (
                "Failed",
                "",
                vec![],
                Progress::Ended("maxRestarts is used up".to_owned()),
            ),
        ] {
            let status = json!({"restarts": 0, "inPlaceRestart": {
                "phase": phase, "latest": 3, "workerRestarts": worker_restarts, "handledWorkerRestart": handled}});
            let mut asked = Request::of_workers(
                &jobset(
                    in_place(),
                    json!({"restarts": 0, "inPlaceRestart": {
                "handledWorkerRestart": "replicatedJob/ps s"}}),
                ),
                &request,
            );
            let seen = jobset(in_place(), status);
            assert_eq!(
                worker_restart_progress(&seen, &request.target, &mut asked),
                expected
            );
        }
    }

    /// A JobSet with this request in its annotation, and that one in its status.
    fn asks(annotation: &str, asked: &str, handled: &str, phase: &str) -> JobSet {
        let field = match annotation {
            RESTART_REQUEST => "handledManualRequest",
            _ => "handledWorkerRestart",
        };
        let status = json!({"restarts": 0, "inPlaceRestart": {
            "phase": phase, "generation": 4, "released": 4, "latest": 4, field: handled}});
        let mut jobset = jobset(in_place(), status);
        jobset.metadata.annotations = Some([(annotation.to_owned(), asked.to_owned())].into());
        jobset
    }

    #[test]
    fn a_later_request_that_is_handled_implies_the_earlier_one() {
        let worker_restarts: WorkerRestartRequest = "replicatedJob/ps mine".parse().unwrap();
        for (annotation, mine, later) in [
            (RESTART_REQUEST, "mine", "later"),
            (RESTART_WORKERS, "replicatedJob/ps mine", "job/ring-ev-0 later"),
        ] {
            let seen = |asked: &str, handled: &str, phase: &str, request: &mut Request| {
                let jobset = asks(annotation, asked, handled, phase);
                match annotation {
                    RESTART_REQUEST => progress(&jobset, None, request),
                    _ => worker_restart_progress(&jobset, &worker_restarts.target, request),
                }
            };
            let before = asks(annotation, "", "first", "InSync");
            let mut request = match annotation {
                RESTART_REQUEST => Request::of_all(&before, mine),
                _ => Request::of_workers(&before, &worker_restarts),
            };
            assert_eq!(seen(mine, "first", "InSync", &mut request), Progress::Asked);
            // A request that was made just before it is handled first.
            assert_eq!(seen(mine, "second", "InSync", &mut request), Progress::Asked);
            assert_eq!(seen(later, "second", "InSync", &mut request), Progress::Asked);
            let stopping = seen("latest", later, "Stopping", &mut request);
            assert_eq!(
                stopping,
                Progress::UnderWay(ProgressDetail::uncounted("Stopping"))
            );
            assert_eq!(seen("latest", later, "InSync", &mut request), Progress::Done(4));
        }
    }

    #[test]
    fn another_jobset_of_the_name_is_not_waited_for() {
        let before = asks(RESTART_REQUEST, "", "first", "InSync");
        let mut request = Request::of_all(&before, "mine");
        let mut another = asks(RESTART_REQUEST, "", "other", "InSync");
        another.metadata.uid = Some("2".into());
        assert_eq!(
            progress(&another, None, &mut request),
            Progress::Ended("JobSet team/ring was deleted and created again".into())
        );
    }

    #[test]
    fn what_cannot_be_restarted_says_why() {
        for (spec, status, why) in [
            (
                in_place(),
                json!({"restarts": 0, "terminalState": "Completed"}),
                "has ended (Completed)",
            ),
            (
                json!({"replicatedJobs": []}),
                json!({"restarts": 0}),
                "does not restart in place",
            ),
            (
                json!({"suspend": true, "failurePolicy": {"restartStrategy": "InPlaceRestart"}, "replicatedJobs": []}),
                json!({"restarts": 0}),
                "is suspended",
            ),
        ] {
            let said = refusal(&jobset(spec, status)).unwrap();
            assert!(
                said.contains(why) && said.starts_with("JobSet team/ring "),
                "{said}"
            );
        }
        assert_eq!(refusal(&jobset(in_place(), json!({"restarts": 0}))), None);
    }

    #[test]
    fn it_is_done_when_all_workers_are_seen_to_run() {
        let at = |request: &str, phase: &str, released: i64| {
            jobset(
                in_place(),
                json!({"restarts": 0, "inPlaceRestart": {
                    "phase": phase, "generation": 4, "released": released, "handledManualRequest": request}}),
            )
        };
        let mut now = Request::of_all(&at("before", "InSync", 3), "now");
        let mut progress = |jobset: &JobSet, group: Option<&pb::Group>| progress(jobset, group, &mut now);
        assert_eq!(progress(&at("before", "InSync", 4), None), Progress::Asked);
        assert_eq!(
            progress(&at("now", "Stopping", 3), None),
            Progress::UnderWay(ProgressDetail::uncounted("Stopping"))
        );
        assert_eq!(progress(&at("now", "InSync", 4), None), Progress::Done(4));
        let group = |up| pb::Group {
            generation: 4,
            workers_up: up,
            workers_expected: 2,
            ..pb::Group::default()
        };
        assert_eq!(
            progress(&at("now", "InSync", 4), Some(&group(1))),
            Progress::UnderWay(ProgressDetail {
                words: "InSync, 1 of 2 workers up".into(),
                part: Some((1, 2)),
            })
        );
        assert_eq!(
            progress(&at("now", "InSync", 4), Some(&group(2))),
            Progress::Done(4)
        );
        assert!(matches!(
            progress(&at("now", "Failed", 3), None),
            Progress::Ended(_)
        ));
    }
}
