//! What a replica knows of the objects in the API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::JobSet;
use lockstep_core::jobset::pod::PodSummary;

use crate::time::{SEC, Time};
use crate::world::kubernetes::api_server::{Change, KINDS, version_of};

/// How long the replica believes its own write if the watch does not confirm it.
const BELIEVED: Time = 10 * SEC;

/// What the watches have shown, and what this process has written.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    pub(super) read: [usize; KINDS],
    /// Number of changes that it has applied.
    pub(crate) changes: u64,
    pub(crate) jobset: Option<Arc<JobSet>>,
    jobset_version: u64,
    jobs: BTreeMap<String, (u64, Option<Arc<Job>>)>,
    pub(crate) pods: BTreeMap<String, Arc<PodSummary>>,
    wrote_jobset: Option<(Time, Arc<JobSet>)>,
    wrote_jobs: BTreeMap<String, (Time, Arc<Job>)>,
}

impl Cache {
    /// Applies the changes of one kind up to this entry of the log.
    pub(super) fn read(&mut self, log: &[Change], kind: usize, upto: usize) {
        let from = self.read[kind];
        if upto <= from {
            return;
        }
        self.read[kind] = upto;
        for change in log.iter().take(upto).skip(from) {
            if change.kind() == kind {
                self.take(change.clone());
            }
        }
    }

    fn take(&mut self, change: Change) {
        self.changes += 1;
        match change {
            Change::JobSet(version, jobset) => {
                self.jobset = jobset;
                self.jobset_version = version;
            }
            Change::Job(version, name, job) => {
                self.jobs.insert(name, (version, job));
            }
            Change::Pod(uid, Some(pod)) => {
                self.pods.insert(uid, pod);
            }
            Change::Pod(uid, None) => {
                self.pods.remove(&uid);
            }
        }
    }

    /// The Jobs that the watch shows.
    pub(crate) fn seen_jobs(&self) -> Vec<Arc<Job>> {
        self.jobs.values().filter_map(|(_, job)| job.clone()).collect()
    }

    /// The JobSet, with own writes.
    pub(crate) fn completed_jobset(&self, now: Time) -> Option<Arc<JobSet>> {
        let seen = self.jobset.as_ref()?;
        match &self.wrote_jobset {
            Some((at, wrote))
                if now < at + BELIEVED
                    && wrote.metadata.uid == seen.metadata.uid
                    && version_of(&wrote.metadata) > version_of(&seen.metadata) =>
            {
                Some(Arc::clone(wrote))
            }
            _ => Some(Arc::clone(seen)),
        }
    }

    /// The Jobs, with own writes. True if some of these are not confirmed.
    pub(crate) fn completed_jobs(&self, now: Time) -> (Vec<Arc<Job>>, bool) {
        let mut jobs: BTreeMap<String, Arc<Job>> = self
            .jobs
            .iter()
            .filter_map(|(name, (_, job))| Some((name.clone(), job.clone()?)))
            .collect();
        let mut unconfirmed = false;
        for (name, (at, wrote)) in &self.wrote_jobs {
            let seen = self.jobs.get(name).map_or(0, |(version, _)| *version);
            if now < at + BELIEVED && version_of(&wrote.metadata) > seen {
                jobs.insert(name.clone(), Arc::clone(wrote));
                unconfirmed = true;
            }
        }
        (jobs.into_values().collect(), unconfirmed)
    }

    pub(crate) fn wrote_jobset(&mut self, now: Time, jobset: Arc<JobSet>) {
        self.wrote_jobset = Some((now, jobset));
    }

    pub(crate) fn wrote_job(&mut self, now: Time, name: String, job: Arc<Job>) {
        self.wrote_jobs.insert(name, (now, job));
    }
}
