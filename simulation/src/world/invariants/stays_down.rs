//! Invariants of workers that nothing starts at a release. They have no agent, and the kubelet
//! starts their containers by itself or not at all. They never keep their group waiting.
//!
//! No restart in place begins while a leader sees such a worker, since the worker would end in it,
//! and that would be a second failure. Once the worker has ended, the Jobs are recreated, unless
//! another pod takes its place or the failure policy decides.

use lockstep_api::JobSet;
use lockstep_core::restart::{Announcement, Scope};

use crate::time::Time;
use crate::world::World;
use crate::world::event::ReplicaIndex;
use crate::world::kubernetes::controllers::{completed, has_condition};

impl World {
    /// A leader has made this decision about the JobSet that it knows.
    pub(crate) fn check_in_place(
        &mut self,
        replica: ReplicaIndex,
        known: &JobSet,
        announcement: &Announcement,
    ) {
        let Announcement::Restarting {
            scope: Scope::Group,
            generation,
            ..
        } = announcement
        else {
            return;
        };
        let cache = &self.replicas[replica].cache;
        let jobs = cache.seen_jobs();
        let stays_down = cache.pods.values().find(|pod| {
            let is_open = jobs.iter().any(|job| {
                job.metadata.name == pod.job
                    && job.metadata.uid == pod.job_uid
                    && !has_condition(job, "Complete")
            });
            pod.obstacle.is_some()
                && !pod.is_terminal()
                && pod.restart_attempt == Some(known.restart_attempt())
                && pod.jobset_uid.as_deref() == Some(known.uid_str())
                && is_open
        });
        if let Some(pod) = stays_down.map(|pod| pod.uid.clone()) {
            self.violate(format!(
                "the group is restarted in place for generation {generation}, but nothing starts {pod} at its release"
            ));
        }
    }

    /// A container has ended. If it failed and nothing starts it again, its group has to act.
    pub(crate) fn note_down(&mut self, id: &str) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let failed = container.exit.is_some_and(|(code, _)| code != 0);
        // A container that belonged to no generation had no peers: the Job controller replaces it
        // in its own time. It also does so after a suspension.
        let was_peer = container.started.is_some() && !self.truth.was_suspended;
        if failed && was_peer && self.is_changed(&container.identity.0) {
            self.truth.down.insert(id.to_owned(), self.now);
        }
    }

    /// True if the group of this container is about to act, or no longer has to.
    fn is_answered(&self, id: &str) -> bool {
        let Some(container) = self.containers.get(id) else {
            return true;
        };
        let (job, index) = &container.identity;
        let jobset = self.api.jobset.as_ref();
        let stands = jobset.is_some_and(|jobset| {
            jobset.uid_str() == container.jobset_uid
                && jobset.restart_attempt() == container.restart_attempt
                && !(jobset.is_deleting() || jobset.is_finished() || jobset.is_suspended())
        });
        let is_open = self.api.jobs.get(job).is_some_and(|job| {
            !completed(job).contains(index)
                && job.metadata.deletion_timestamp.is_none()
                && !["Complete", "FailureTarget", "Failed"]
                    .iter()
                    .any(|condition| has_condition(job, condition))
        });
        let is_followed = self.containers.values().any(|other| {
            other.identity == container.identity
                && other.restart_attempt == container.restart_attempt
                && other.exit.is_none()
        });
        // No part can tell what has become of workers on a node that is down.
        let is_seen = self.nodes[container.node].up;
        !stands || !is_open || !is_seen || is_followed || self.truth.was_suspended
    }

    /// Checks those that have ended, if leader and API server were healthy since then.
    pub(super) fn check_down(&mut self, well: Time, longest: Time) {
        let now = self.now;
        let mut down = self.truth.down.iter();
        let waits = down.find(|(id, since)| {
            let node = self.containers.get(*id).map(|container| container.node);
            let booted = node.map_or(0, |node| self.nodes[node].booted_at);
            now > well.max(**since).max(booted) + longest && !self.is_answered(id)
        });
        if let Some(id) = waits.map(|(id, _)| id.clone()) {
            self.violate(format!(
                "{id} has ended, nothing starts it again, and its group waits for it"
            ));
        }
    }
}
