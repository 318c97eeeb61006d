//! What users do: they edit and delete the JobSet and its Jobs, and request restarts.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as MetaTime;
use lockstep_api::{JobSet, Target, annotations};

use crate::time::{MS, Time};
use crate::world::World;
use crate::world::event::Event;

pub(super) fn annotate(jobset: &mut JobSet, key: &str, value: String) {
    jobset
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(key.to_owned(), value);
}

impl World {
    /// A user requests restarts of some workers, of either restart scope.
    pub(super) fn request_worker_restarts(&mut self) {
        let jobs: Vec<(String, i32)> = self
            .scenario
            .jobset
            .spec
            .replicated_jobs
            .iter()
            .map(|job| (job.name.clone(), job.replicas()))
            .collect();
        let Some((name, replicas)) = self.rng.pick(&jobs).cloned() else {
            return;
        };
        let of = self.rng.below(u64::try_from(replicas).unwrap_or(1).max(1));
        let job = format!("js-{name}-{of}");
        let target = match self.rng.below(3) {
            0 => Target::ReplicatedJob(name),
            1 => Target::Job(job),
            _ => Target::Worker {
                job,
                index: u32::from(self.rng.percent(50)),
                container: None,
            },
        };
        self.truth.requested_targets.push(target.clone());
        self.edit(|jobset, now| annotate(jobset, annotations::RESTART_WORKERS, format!("{target} {now}")));
    }

    /// A user changes the JobSet.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut JobSet, Time)) {
        let Some(jobset) = self.api.jobset.clone() else {
            return;
        };
        let mut jobset = JobSet::clone(&jobset);
        change(&mut jobset, self.now);
        self.note_limits(&jobset);
        self.api.put_jobset(jobset);
    }

    pub(super) fn delete_jobset(&mut self) {
        // Rare, since it ends the history.
        if !self.rng.percent(30) {
            return;
        }
        if self.rng.percent(50) {
            self.api.remove_jobset();
        } else {
            let now = self.timestamp();
            self.edit(|jobset, _| {
                jobset.metadata.deletion_timestamp = Some(MetaTime(now));
            });
        }
    }

    pub(super) fn suspend(&mut self) {
        self.note_wish();
        self.edit(|jobset, _| jobset.spec.suspend = Some(true));
    }

    pub(super) fn resume(&mut self) {
        self.note_wish();
        self.edit(|jobset, _| jobset.spec.suspend = Some(false));
    }

    pub(super) fn edit_max_restarts(&mut self) {
        let max = i32::try_from(self.rng.below(8)).unwrap_or(0);
        self.edit(|jobset, _| jobset.spec.failure_policy.get_or_insert_default().max_restarts = Some(max));
    }

    pub(super) fn edit_timeout(&mut self) {
        let seconds = self.rng.span(1, 30);
        self.edit(|jobset, _| annotate(jobset, annotations::IN_PLACE_TIMEOUT, format!("{seconds}s")));
    }

    pub(super) fn some_job_is_deleted(&mut self) {
        let jobs: Vec<String> = self.api.jobs.keys().cloned().collect();
        if let Some(name) = self.rng.pick(&jobs).cloned() {
            self.note_job_failure();
            self.delete_job(&name);
        }
    }

    /// Another client writes the JobSet over and over until this time.
    pub(super) fn contention(&mut self, until: Time) {
        if self.now >= self.api.contended_until {
            self.api.contended_until = until;
            self.contend();
        }
    }

    pub(crate) fn contend(&mut self) {
        if self.now >= self.api.contended_until || !self.faults_on {
            return;
        }
        self.edit(|jobset, now| annotate(jobset, "example.com/touched", now.to_string()));
        let at = self.now + self.rng.span(5 * MS, 40 * MS);
        self.queue.push(at, Event::Contend);
    }
}
