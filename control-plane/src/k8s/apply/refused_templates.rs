//! The replicatedJobs whose Jobs the API server refuses.
//!
//! All Jobs of a replicatedJob have one template, so what refuses one mostly refuses the others: a
//! field that is not valid, or an exhausted quota. A refusal may take the API server seconds. So
//! once a Job is refused, the others are not sent, and the next try begins with one Job alone. In
//! case only that one is refused, it is the first and the last Job in turn. (Any other in turn
//! would make an event of its own each time.)

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;

use super::is_status;
use super::new_job::NewJob;
use crate::k8s::client::is_unanswered;

/// By replicatedJob, the Job that was refused last.
type RefusedJobs = HashMap<String, String>;

/// The refused replicatedJobs of each JobSet. JobSets without any are not in it.
#[derive(Default)]
pub(super) struct RefusedTemplates(Mutex<HashMap<ObjectRef<JobSet>, RefusedJobs>>);

impl RefusedTemplates {
    fn locked(&self) -> MutexGuard<'_, HashMap<ObjectRef<JobSet>, RefusedJobs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to create Jobs of a JobSet.
    pub(super) fn begin(&self, key: &ObjectRef<JobSet>) -> TemplateRefusals {
        let refused = self.locked().get(key).cloned().unwrap_or_default();
        TemplateRefusals(Mutex::new(Progress { refused, skipped: 0 }))
    }

    /// Remembers what was refused for the next try. Returns how many Jobs were not sent.
    pub(super) fn end(&self, key: &ObjectRef<JobSet>, refusals: &TemplateRefusals) -> usize {
        let Progress { refused, skipped } = std::mem::take(&mut *refusals.locked());
        if refused.is_empty() {
            self.forget(key);
        } else {
            self.locked().insert(key.clone(), refused);
        }
        skipped
    }

    /// Forgets a JobSet that is gone.
    pub(super) fn forget(&self, key: &ObjectRef<JobSet>) {
        self.locked().remove(key);
    }
}

/// What is refused while Jobs of one JobSet are created.
pub(super) struct TemplateRefusals(Mutex<Progress>);

#[derive(Default)]
struct Progress {
    refused: RefusedJobs,
    /// How many Jobs were not sent for that.
    skipped: usize,
}

/// Jobs in the order in which they are sent, and whether each is a probe.
pub(super) struct Order {
    /// One Job of each refused replicatedJob, as a probe, and all Jobs of the others.
    pub(super) first: Vec<(NewJob, bool)>,
    /// The other Jobs of refused replicatedJobs, which are sent if the probe is accepted.
    pub(super) then: Vec<(NewJob, bool)>,
}

impl TemplateRefusals {
    fn locked(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts these Jobs in order.
    pub(super) fn order(&self, jobs: Vec<NewJob>) -> Order {
        let progress = self.locked();
        let refused = &progress.refused;
        let probe_of = |(replicated_job, refused): (&String, &String)| {
            let mut names = jobs
                .iter()
                .filter(|job| job.replicated_job == *replicated_job)
                .map(|job| &job.name);
            let first = names.next()?;
            let last = names.next_back().unwrap_or(first);
            Some(if first == refused { last } else { first }.clone())
        };
        let probes: HashSet<String> = refused.iter().filter_map(probe_of).collect();
        let (mut first, mut then) = (Vec::new(), Vec::new());
        for job in jobs {
            let is_probe = probes.contains(&job.name);
            let waits = refused.contains_key(&job.replicated_job) && !is_probe;
            if waits { &mut then } else { &mut first }.push((job, is_probe));
        }
        Order { first, then }
    }

    /// A probe was accepted.
    pub(super) fn accepted(&self, replicated_job: &str) {
        self.locked().refused.remove(replicated_job);
    }

    /// True if Jobs of this replicatedJob are refused, so that the next one is not sent.
    pub(super) fn skips(&self, replicated_job: &str) -> bool {
        let mut progress = self.locked();
        let skips = progress.refused.contains_key(replicated_job);
        progress.skipped += usize::from(skips);
        skips
    }

    /// A Job was not created.
    pub(super) fn failed(&self, job: &str, replicated_job: &str, error: &kube::Error) {
        if concerns_all(error) {
            let mut progress = self.locked();
            progress.refused.insert(replicated_job.to_owned(), job.to_owned());
        }
    }
}

/// True if other Jobs of the same template are likely to fail alike: this one is invalid, forbidden
/// or too large, or the API server takes too long or has too much to do.
pub(super) fn concerns_all(error: &kube::Error) -> bool {
    [403, 413, 422, 429]
        .into_iter()
        .any(|code| is_status(error, code))
        || is_unanswered(error)
}
