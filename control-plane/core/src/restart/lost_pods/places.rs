//! The places with work left of a group, from API objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::labels;

use super::{Occupancy, PodPlace};
use crate::jobset::children::label;
use crate::jobset::jobs::{IN_PLACE_BACKOFF_LIMIT, completed_indexes, has_condition};
use crate::jobset::limits::MOST_WORKERS;
use crate::jobset::pod::PodSummary;
use crate::restart::gather::attempt;

/// Value of `managedBy` that means the same as an absent field.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";

/// The places of the Jobs of this `restart_attempt` (`status.restarts`). `started` names the stages
/// whose workers have all run.
#[must_use]
pub fn places<'a>(
    jobs: &[Arc<Job>],
    pods: impl IntoIterator<Item = &'a PodSummary>,
    restart_attempt: i32,
    started: &BTreeSet<String>,
) -> BTreeMap<PodPlace, Occupancy> {
    let mut places = BTreeMap::new();
    for job in jobs {
        if attempt(job.metadata.labels.as_ref()) != Some(restart_attempt) {
            continue;
        }
        let (Some(name), Some(uid)) = (&job.metadata.name, &job.metadata.uid) else {
            continue;
        };
        let stage = label(job, labels::REPLICATED_JOB_NAME).unwrap_or_default();
        let completed = completed_indexes(job);
        for index in 0..open_indexes(job) {
            // A foreign Job may claim to be the JobSet's. Places above the limit are left to the
            // Job controller.
            if places.len() >= MOST_WORKERS {
                break;
            }
            if !completed.iter().any(|range| range.contains(&index)) {
                let place = PodPlace {
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

/// True if the Job wants a pod at this index that others than its controller may create. It must be
/// an Indexed Job with as many pods as indexes, allow another failure, be neither suspended nor
/// ending, and must not have completed the index.
///
/// Jobs with `backoffLimitPerIndex` are left to the Job controller: it counts the failures of an
/// index in the next pod.
#[must_use]
pub fn is_open(job: &Job, index: u32) -> bool {
    let completed = || completed_indexes(job).iter().any(|range| range.contains(&index));
    index < open_indexes(job) && !completed()
}

/// The indexes below this one are open unless they are completed. 0: the Job wants no pod from
/// others.
fn open_indexes(job: &Job) -> u32 {
    let Some(spec) = &job.spec else { return 0 };
    let ending = ["Complete", "Failed", "FailureTarget", "SuccessCriteriaMet"]
        .into_iter()
        .any(|type_| has_condition(job, type_));
    let is_open = spec.completion_mode.as_deref() == Some("Indexed")
        && spec.parallelism == spec.completions
        && spec.backoff_limit == Some(IN_PLACE_BACKOFF_LIMIT)
        && spec.backoff_limit_per_index.is_none()
        && spec
            .managed_by
            .as_deref()
            .is_none_or(|manager| manager == JOB_CONTROLLER)
        && spec.suspend != Some(true)
        && job.metadata.deletion_timestamp.is_none()
        && !ending;
    let completions = spec.completions.filter(|_| is_open);
    completions
        .and_then(|completions| u32::try_from(completions).ok())
        .unwrap_or(0)
}

fn put(pod: &PodSummary, places: &mut BTreeMap<PodPlace, Occupancy>) {
    let (Some(job), Some(index)) = (&pod.job, pod.index) else {
        return;
    };
    let place = PodPlace {
        job: job.clone(),
        index,
    };
    let Some(occupancy) = places.get_mut(&place) else {
        return;
    };
    let is_present = pod.job_uid.as_ref() == Some(&occupancy.job_uid);
    if pod.agent.succeeded && is_present {
        // The Job's status will show that too.
        places.remove(&place);
        return;
    }
    occupancy.names.insert(pod.name.clone());
    if !pod.is_terminal() {
        // It belongs to a former Job, or to none.
        occupancy.live.insert(pod.uid.clone(), pod.running);
    } else if is_present && pod.agent.failed {
        occupancy.failed.insert(pod.uid.clone());
    } else if !is_present {
        occupancy.strays.insert(pod.uid.clone());
    }
}
