//! The places of a group's pods that have work left, from API objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::labels;

use super::{Occupancy, Place};
use crate::children::label;
use crate::jobset::IN_PLACE_BACKOFF_LIMIT;
use crate::pod::PodSummary;
use crate::restart::gather::{attempt, completed_indexes, has_condition};

/// Value of `managedBy` that means the same as none.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// The places of the Jobs of the present recreation. `recreations` is `status.restarts`; `started` names the stages all of whose workers have run.
#[must_use]
pub fn places<'a>(
    jobs: &[Arc<Job>],
    pods: impl IntoIterator<Item = &'a PodSummary>,
    recreations: i32,
    started: &BTreeSet<String>,
) -> BTreeMap<Place, Occupancy> {
    let mut places = BTreeMap::new();
    for job in jobs {
        if attempt(job.metadata.labels.as_ref()) != Some(recreations) {
            continue;
        }
        let (Some(name), Some(uid)) = (&job.metadata.name, &job.metadata.uid) else {
            continue;
        };
        let stage = label(job, labels::REPLICATED_JOB_NAME).unwrap_or_default();
        let completions = job.spec.as_ref().and_then(|spec| spec.completions).unwrap_or(0);
        for index in 0..u32::try_from(completions).unwrap_or(0) {
            if is_open(job, index) {
                let place = Place {
                    job: name.clone(),
                    index,
                };
                let occupancy = Occupancy {
                    job_uid: uid.clone(),
                    started: started.contains(stage),
                    ..Occupancy::default()
                };
                places.insert(place, occupancy);
            }
        }
    }
    for pod in pods {
        put(pod, &mut places);
    }
    places
}

/// Whether the Job wants a pod at this index and lets others than its controller create it: an Indexed Job with as many pods as indexes, which has
/// nothing against another failure, is not suspended, not ending, and has not completed the index.
///
/// Jobs with `backoffLimitPerIndex` are left to the Job controller: it counts the failures of an index in the pod that comes next.
#[must_use]
pub fn is_open(job: &Job, index: u32) -> bool {
    let Some(spec) = &job.spec else { return false };
    let in_range = spec
        .completions
        .and_then(|completions| u32::try_from(completions).ok())
        .is_some_and(|completions| index < completions);
    let ending = ["Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"]
        .into_iter()
        .any(|type_| has_condition(job, type_));
    let completed = || completed_indexes(job).iter().any(|range| range.contains(&index));
    in_range
        && spec.completion_mode.as_deref() == Some("Indexed")
        && spec.parallelism == spec.completions
        && spec.backoff_limit == Some(IN_PLACE_BACKOFF_LIMIT)
        && spec.backoff_limit_per_index.is_none()
        && spec
            .managed_by
            .as_deref()
            .is_none_or(|manager| manager == JOB_CONTROLLER)
        && spec.suspend != Some(true)
        && job.metadata.deletion_timestamp.is_none()
        && !ending
        && !completed()
}

fn put(pod: &PodSummary, places: &mut BTreeMap<Place, Occupancy>) {
    let (Some(job), Some(index)) = (&pod.job, pod.index) else {
        return;
    };
    let place = Place {
        job: job.clone(),
        index,
    };
    let Some(occupancy) = places.get_mut(&place) else {
        return;
    };
    let is_present = pod.job_uid.as_ref() == Some(&occupancy.job_uid);
    if pod.agent.succeeded && is_present {
        // The Job's status will say so too.
        places.remove(&place);
        return;
    }
    occupancy.names.insert(pod.name.clone());
    if !pod.is_terminal() {
        // Of a Job that is gone as well, or of none.
        occupancy.live.insert(pod.uid.clone(), pod.running);
    } else if is_present && pod.agent.failed {
        occupancy.failed.insert(pod.uid.clone());
    } else if !is_present {
        occupancy.strays.insert(pod.uid.clone());
    }
}
