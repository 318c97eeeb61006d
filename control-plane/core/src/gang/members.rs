//! From API objects to gangs.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::JobSet;

use super::{JobSetGangs, Pod};

/// The gangs of a JobSet, from its Jobs and the pods that carry its UID; `None`: it has none that are to be looked after, as it asks for
/// none, is suspended, has finished or is being deleted.
#[must_use]
pub fn members(jobset: &JobSet, jobs: &[Arc<Job>], pods: &[Arc<Pod>]) -> Option<JobSetGangs> {
    let _ = (jobs, pods);
    jobset.spec.gang.as_ref()?;
    None
}
