//! How far a restart has come that was asked for.

use lockstep_api::{AloneRequest, InPlacePhase, JobSet, Target};
use lockstep_proto::platform::v1 as pb;

/// Where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The control plane has not acted upon it.
    Asked,
    /// It is under way.
    UnderWay(Far),
    /// All workers run at this restart attempt.
    Done(i64),
    /// There is nothing to wait for any more, and why.
    Ended(String),
}

/// How far something has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Far {
    /// In a few words.
    pub(crate) words: String,
    /// How many, of how many, where that is known.
    pub(crate) part: Option<(u32, u32)>,
}

impl Far {
    /// Nothing can be counted.
    pub(crate) fn words(words: impl Into<String>) -> Self {
        Self {
            words: words.into(),
            part: None,
        }
    }
}

/// Why a JobSet cannot be asked to restart in place, where that is so.
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
            "{name} is looked after by another controller (spec.managedBy)"
        ));
    }
    (!jobset.in_place()).then(|| {
        format!(
            "{name} does not restart in place: set spec.failurePolicy.restartStrategy to InPlaceRestart in its manifest, \
             and create it anew"
        )
    })
}

/// What the status says of the request `token`; `group` is what the platform API says, where it was asked.
pub(crate) fn progress(jobset: &JobSet, group: Option<&pb::Group>, token: &str) -> Progress {
    if let Some(why) = refusal(jobset) {
        return Progress::Ended(why);
    }
    let status = jobset
        .status
        .as_ref()
        .and_then(|status| status.in_place_restart.as_ref());
    let Some(status) = status.filter(|status| status.handled_manual_request.as_deref() == Some(token)) else {
        return Progress::Asked;
    };
    let up = group.map(|group| {
        // What the platform API shows may be older than the status.
        let known = i64::try_from(group.generation).is_ok_and(|known| known >= status.generation);
        (if known { group.workers_up } else { 0 }, group.workers_expected)
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
            Progress::UnderWay(Far {
                words: match up {
                    Some((up, all)) => format!("{phase}, {up} of {all} workers up"),
                    None => phase,
                },
                part: up,
            })
        }
    }
}

/// What the status says of a request to restart some workers alone. A restart of all workers stands for it.
pub(crate) fn progress_of_some(jobset: &JobSet, request: &AloneRequest) -> Progress {
    if let Some(why) = refusal(jobset) {
        return Progress::Ended(why);
    }
    let status = jobset.status.as_ref();
    let Some(status) = status.and_then(|status| status.in_place_restart.as_ref()) else {
        return Progress::Asked;
    };
    if status.phase == Some(InPlacePhase::Failed) {
        return Progress::Ended("maxRestarts is used up".to_owned());
    }
    if status.handled_alone_request.as_deref() != Some(&request.to_string()) {
        return Progress::Asked;
    }
    // Which replicatedJob a Job is of stands in its name.
    let named = |job: &str, index: i32, container: &str| match &request.target {
        Target::ReplicatedJob(name) => job
            .strip_prefix(&format!("{}-{name}-", jobset.name()))
            .is_some_and(|index| index.parse::<u32>().is_ok()),
        target => target.takes("", job, u32::try_from(index).unwrap_or(u32::MAX), container),
    };
    let left = status
        .alone
        .iter()
        .filter(|worker| named(&worker.job, worker.index, &worker.container))
        .count();
    match (&status.phase, left) {
        (Some(InPlacePhase::InSync), 0) => Progress::Done(status.generation.max(status.latest)),
        (Some(InPlacePhase::InSync), left) => {
            Progress::UnderWay(Far::words(format!("{left} do not run again yet")))
        }
        (phase, _) => Progress::UnderWay(Far::words(
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
        object(json!({"metadata": {"name": "ring", "namespace": "team"}, "spec": spec, "status": status}))
    }

    fn in_place() -> Value {
        json!({"failurePolicy": {"restartStrategy": "InPlaceRestart"}, "replicatedJobs": []})
    }

    #[test]
    fn some_workers_run_again_once_the_status_does_not_name_them() {
        let request: AloneRequest = "replicatedJob/ps t".parse().unwrap();
        let other = json!({"job": "ring-ps-eval-0", "index": 0, "container": "w", "generation": 2});
        let named = json!({"job": "ring-ps-1", "index": 0, "container": "w", "generation": 3});
        for (phase, handled, alone, expected) in [
            ("InSync", "replicatedJob/ps s", vec![], Progress::Asked),
            (
                "InSync",
                "replicatedJob/ps t",
                vec![&other, &named],
                Progress::UnderWay(Far::words("1 do not run again yet")),
            ),
            ("InSync", "replicatedJob/ps t", vec![&other], Progress::Done(3)),
            (
                "Stopping",
                "replicatedJob/ps t",
                vec![],
                Progress::UnderWay(Far::words("Stopping")),
            ),
            (
                "Failed",
                "",
                vec![],
                Progress::Ended("maxRestarts is used up".to_owned()),
            ),
        ] {
            let status = json!({"restarts": 0, "inPlaceRestart": {
                "phase": phase, "latest": 3, "alone": alone, "handledAloneRequest": handled}});
            assert_eq!(progress_of_some(&jobset(in_place(), status), &request), expected);
        }
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
        assert_eq!(progress(&at("before", "InSync", 4), None, "now"), Progress::Asked);
        assert_eq!(
            progress(&at("now", "Stopping", 3), None, "now"),
            Progress::UnderWay(Far::words("Stopping"))
        );
        assert_eq!(progress(&at("now", "InSync", 4), None, "now"), Progress::Done(4));
        let group = |up| pb::Group {
            generation: 4,
            workers_up: up,
            workers_expected: 2,
            ..pb::Group::default()
        };
        assert_eq!(
            progress(&at("now", "InSync", 4), Some(&group(1)), "now"),
            Progress::UnderWay(Far {
                words: "InSync, 1 of 2 workers up".into(),
                part: Some((1, 2)),
            })
        );
        assert_eq!(
            progress(&at("now", "InSync", 4), Some(&group(2)), "now"),
            Progress::Done(4)
        );
        assert!(matches!(
            progress(&at("now", "Failed", 3), None, "now"),
            Progress::Ended(_)
        ));
    }
}
