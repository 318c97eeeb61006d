//! How large one JobSet may be.
//!
//! A JobSet states its Jobs and pods as numbers of a few bytes, but each Job and pod takes
//! kilobytes once it is expanded: to a Job, to an expected worker, to a pod of a gang. So the
//! numbers are checked at admission, and again before anything is expanded. A JobSet may be older
//! than the webhooks, or have bypassed them.
//!
//! All arithmetic saturates in 64 bits: no product of a tenant's numbers can overflow to a small
//! one.

use lockstep_api::{JobSet, ReplicatedJob};

use crate::common::extent::Extent;
use crate::common::violation::{Violation, path};
use crate::jobset::in_place;

#[cfg(test)]
mod tests;

/// The most replicatedJobs of a JobSet. Each has its own pod template, and a Kubernetes object
/// holds 1.5 MB, so the templates of more would be nearly empty. If they start in order, each waits
/// for all before it: a thousand make half a million gates.
pub const MOST_REPLICATED_JOBS: usize = 1_000;

/// The most Jobs of a JobSet, over all of its replicatedJobs. A Job takes 5 kB and more in etcd and
/// in every cache of Jobs: this many fill 100 MB of the 2 to 8 GB that etcd has for a whole
/// cluster. The number is four times the 5,000 nodes that Kubernetes is tested with. A JobSet
/// usually has one Job for each slice or rack, and the largest clusters have fewer of these.
pub const MOST_JOBS: usize = 20_000;

/// The most workers of a JobSet that run at the same time, over all of its replicatedJobs: its
/// pods, or their worker containers if it restarts in place. An Indexed Job can have no more pods,
/// and Kubernetes is tested with at most 150,000 pods in a cluster. The control plane takes 1.2 kB
/// for each worker that it restarts in place, even before the worker has a pod (`docs/scaling.md`).
pub const MOST_WORKERS: usize = 100_000;

/// The most Jobs that one reconciliation of a JobSet builds. The next one continues.
pub const JOBS_AT_ONCE: usize = 500;

/// The most bytes of Jobs, as they are sent, that one reconciliation of a JobSet builds, unless a
/// single Job is longer. A template may take a megabyte, and 32 JobSets are reconciled at the same
/// time. This many bytes are [`JOBS_AT_ONCE`] Jobs of 8 kB.
pub const BYTES_AT_ONCE: usize = 4 << 20;

/// The most objects and elements that these Jobs have together: those of [`JOBS_AT_ONCE`] Jobs with
/// 16 objects each.
pub const EXTENT_AT_ONCE: Extent = Extent {
    objects: 8_000,
    elements: 64_000,
};

/// What a JobSet asks for. Numbers saturate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Its replicatedJobs.
    pub replicated_jobs: usize,
    /// The Jobs of all replicatedJobs.
    pub jobs: u64,
    /// The workers of all Jobs.
    pub workers: u64,
}

impl Size {
    /// The largest that a JobSet may be.
    pub const LARGEST: Self = Self {
        replicated_jobs: MOST_REPLICATED_JOBS,
        jobs: MOST_JOBS as u64,
        workers: MOST_WORKERS as u64,
    };

    /// What a JobSet asks for.
    #[must_use]
    pub fn of(jobset: &JobSet) -> Self {
        let nothing = Self {
            replicated_jobs: jobset.spec.replicated_jobs.len(),
            jobs: 0,
            workers: 0,
        };
        parts(jobset).fold(nothing, |sum, part| sum.with(&part))
    }

    fn with(self, part: &Part) -> Self {
        Self {
            jobs: self.jobs.saturating_add(part.jobs),
            workers: self.workers.saturating_add(part.workers()),
            ..self
        }
    }

    /// The maximum of each number.
    fn or(self, other: Self) -> Self {
        Self {
            replicated_jobs: self.replicated_jobs.max(other.replicated_jobs),
            jobs: self.jobs.max(other.jobs),
            workers: self.workers.max(other.workers),
        }
    }
}

/// The numbers of one replicatedJob.
struct Part {
    jobs: u64,
    /// Pods of each Job.
    pods: u64,
    /// The field that says how many pods a Job has.
    field: &'static str,
    /// Workers in each pod.
    containers: u64,
}

impl Part {
    fn of(jobset: &JobSet, in_place: bool, replicated_job: &ReplicatedJob) -> Self {
        let spec = replicated_job.template.spec.as_ref();
        let parallelism = count(replicated_job.parallelism());
        let completions = spec.and_then(|spec| spec.completions).map_or(0, count);
        // A group expects one worker for each completion.
        let (pods, field) = match in_place && completions > parallelism {
            true => (completions, ".template.spec.completions"),
            false => (parallelism, ".template.spec.parallelism"),
        };
        let containers = spec
            .filter(|_| in_place)
            .map_or(1, |spec| in_place::workers(jobset, &spec.template).len());
        Self {
            jobs: count(replicated_job.replicas()),
            pods,
            field,
            containers: u64::try_from(containers).unwrap_or(u64::MAX).max(1),
        }
    }

    fn workers(&self) -> u64 {
        self.jobs
            .saturating_mul(self.pods)
            .saturating_mul(self.containers)
    }
}

fn parts(jobset: &JobSet) -> impl Iterator<Item = Part> {
    let in_place = jobset.in_place();
    let all = jobset.spec.replicated_jobs.iter();
    all.map(move |job| Part::of(jobset, in_place, job))
}

/// A count; negative numbers count as 0.
fn count(number: i32) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The field that makes a JobSet exceed the limits, if one does.
#[must_use]
pub fn violation(jobset: &JobSet) -> Option<Violation> {
    above(jobset, Size::LARGEST)
}

/// The field by which a change makes a JobSet exceed the limits. `None` if it does not exceed them,
/// or is no larger than before.
pub(crate) fn raised(old: &JobSet, new: &JobSet) -> Option<Violation> {
    above(new, Size::LARGEST)?;
    above(new, Size::LARGEST.or(Size::of(old)))
}

/// True if a JobSet exceeds the limits.
#[must_use]
pub fn is_over(jobset: &JobSet) -> bool {
    violation(jobset).is_some()
}

/// The first field that makes a JobSet larger than this.
fn above(jobset: &JobSet, most: Size) -> Option<Violation> {
    let replicated_jobs = jobset.spec.replicated_jobs.len();
    if replicated_jobs > most.replicated_jobs {
        return Some(Violation::with_value(
            "spec.replicatedJobs",
            replicated_jobs,
            format!("a JobSet may have at most {MOST_REPLICATED_JOBS} replicatedJobs"),
        ));
    }
    let mut sum = Size {
        replicated_jobs,
        jobs: 0,
        workers: 0,
    };
    for (index, part) in parts(jobset).enumerate() {
        let before = sum;
        sum = sum.with(&part);
        if sum.jobs > most.jobs {
            let (field, jobs) = (path(index, ".replicas"), part.jobs);
            let besides = besides(before.jobs);
            let message = format!("a JobSet may have at most {MOST_JOBS} Jobs{besides}");
            return Some(Violation::with_value(field, jobs, message));
        }
        if sum.workers > most.workers {
            // Name the larger of both numbers.
            let (field, value) = match part.jobs > part.pods {
                true => (".replicas", part.jobs),
                false => (part.field, part.pods),
            };
            let of_each = match part.containers {
                1 => String::new(),
                containers => format!(" with {containers} worker containers"),
            };
            let message = format!(
                "{} x {} pods{of_each} are {} workers, but a JobSet may have at most {MOST_WORKERS}{}",
                part.jobs,
                part.pods,
                part.workers(),
                besides(before.workers),
            );
            return Some(Violation::with_value(path(index, field), value, message));
        }
    }
    None
}

/// What the replicatedJobs before this one have.
fn besides(before: u64) -> String {
    match before {
        0 => String::new(),
        before => format!("; the replicatedJobs before this one have {before}"),
    }
}
