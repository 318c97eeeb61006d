//! The replicatedJobs whose Jobs the API server refuses, when they are created or resumed.
//!
//! All Jobs of a replicatedJob have one template, so what refuses one mostly refuses the others: a
//! field that is not valid, or an exhausted quota. A refusal may take the API server seconds. So
//! once a Job is refused, the others are not sent, and the next try begins with one Job alone. In
//! case only that one is refused, it is the first and the last Job in turn. (Any other in turn
//! would make an event of its own each time.)
//!
//! Once Jobs of [`MOST`] replicatedJobs are refused, the try ends, so that the next decision is not
//! too late. Jobs of others come first in the next one.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;

use super::is_status;
use crate::k8s::client::is_unanswered;

/// With this many refused replicatedJobs a try ends.
const MOST: usize = 16;

/// What is sent for a Job with the template of its replicatedJob.
pub(super) trait OfTemplate {
    /// The name of the Job.
    fn job(&self) -> &str;

    /// The name of its replicatedJob.
    fn replicated_job(&self) -> &str;
}

/// By replicatedJob, the Job that was refused last.
type RefusedJobs = HashMap<String, String>;

/// The refused replicatedJobs of each JobSet. JobSets without any are not in it.
#[derive(Default)]
pub(super) struct RefusedTemplates(Mutex<HashMap<ObjectRef<JobSet>, RefusedJobs>>);

impl RefusedTemplates {
    fn locked(&self) -> MutexGuard<'_, HashMap<ObjectRef<JobSet>, RefusedJobs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to create or resume Jobs of a JobSet.
    pub(super) fn begin(&self, key: &ObjectRef<JobSet>) -> TemplateRefusals {
        let refused = self.locked().get(key).cloned().unwrap_or_default();
        TemplateRefusals(Mutex::new(Progress {
            refused,
            ..Progress::default()
        }))
    }

    /// Remembers what was refused for the next try. Returns how many Jobs were not sent.
    pub(super) fn end(&self, key: &ObjectRef<JobSet>, refusals: &TemplateRefusals) -> usize {
        let Progress { refused, skipped, .. } = std::mem::take(&mut *refusals.locked());
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

/// What is refused while Jobs of one JobSet are created or resumed.
pub(super) struct TemplateRefusals(Mutex<Progress>);

#[derive(Default)]
struct Progress {
    refused: RefusedJobs,
    /// The replicatedJobs of which a Job was refused in this try.
    in_this_try: HashSet<String>,
    /// How many Jobs were not sent for that.
    skipped: usize,
}

/// Jobs in the order in which they are sent, and whether each is a probe.
pub(super) struct Order<T> {
    /// All Jobs of replicatedJobs that are not refused, then one of each that is, as a probe.
    pub(super) first: Vec<(T, bool)>,
    /// The other Jobs of refused replicatedJobs, which are sent if the probe is accepted.
    pub(super) then: Vec<(T, bool)>,
}

impl TemplateRefusals {
    fn locked(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts these Jobs in order.
    pub(super) fn order<T: OfTemplate>(&self, jobs: Vec<T>) -> Order<T> {
        let progress = self.locked();
        let refused = &progress.refused;
        let probe_of = |(replicated_job, refused): (&String, &String)| {
            let mut names = jobs
                .iter()
                .filter(|job| job.replicated_job() == replicated_job)
                .map(OfTemplate::job);
            let first = names.next()?;
            let last = names.next_back().unwrap_or(first);
            Some(if first == refused { last } else { first }.to_owned())
        };
        let probes: HashSet<String> = refused.iter().filter_map(probe_of).collect();
        let (mut first, mut probing, mut then) = (Vec::new(), Vec::new(), Vec::new());
        for job in jobs {
            let is_probe = probes.contains(job.job());
            let of_kind = match refused.contains_key(job.replicated_job()) {
                _ if is_probe => &mut probing,
                true => &mut then,
                false => &mut first,
            };
            of_kind.push((job, is_probe));
        }
        first.extend(probing);
        Order { first, then }
    }

    /// A probe was accepted.
    pub(super) fn accepted(&self, replicated_job: &str) {
        self.locked().refused.remove(replicated_job);
    }

    /// A probe was not accepted, for whatever reason.
    pub(super) fn still_refused(&self, job: &str, replicated_job: &str) {
        let (job, replicated_job) = (job.to_owned(), replicated_job.to_owned());
        self.locked().refused.insert(replicated_job, job);
    }

    /// True if a Job of this replicatedJob is not sent, since others are refused.
    pub(super) fn skips(&self, replicated_job: &str, is_probe: bool) -> bool {
        let mut progress = self.locked();
        let skips =
            progress.in_this_try.len() >= MOST || !is_probe && progress.refused.contains_key(replicated_job);
        progress.skipped += usize::from(skips);
        skips
    }

    /// A Job was refused.
    pub(super) fn failed(&self, job: &str, replicated_job: &str, error: &kube::Error) {
        if concerns_all(error) {
            let mut progress = self.locked();
            progress.in_this_try.insert(replicated_job.to_owned());
            progress.refused.insert(replicated_job.to_owned(), job.to_owned());
        }
    }
}

/// True if other Jobs of the same template are likely to fail alike: this one is invalid, forbidden
/// or too large, or the API server takes too long or has too much to do.
fn concerns_all(error: &kube::Error) -> bool {
    [403, 413, 422, 429]
        .into_iter()
        .any(|code| is_status(error, code))
        || is_unanswered(error)
}
