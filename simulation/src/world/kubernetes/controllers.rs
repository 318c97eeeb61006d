//! Kubernetes' controllers: Jobs, scheduling, garbage collection, pods of nodes that are gone.

mod jobs;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as MetaTime;
use lockstep_api::labels;

use crate::time::{MS, SEC, Time, unix};
use crate::world::World;
use crate::world::event::Event;
use crate::world::kubernetes::api_server::{Pod, PodPhase, name_of};

pub(crate) use jobs::{completed, has_condition, width};

/// The pods of a node are marked this long after it is gone.
const NOT_READY: Time = 10 * SEC;
/// The pods of a node are removed by force this long after it is gone.
const POD_GC: Time = 40 * SEC;

/// What the Job controller remembers.
#[derive(Debug, Default)]
pub(crate) struct Controllers {
    pub(crate) due: Option<Time>,
    /// Failed pods of each Job (by UID), and when the last one failed.
    failures: BTreeMap<String, (u32, Time)>,
}

impl World {
    /// Schedules the controllers after this time.
    pub(crate) fn poke_controllers(&mut self, after: Time) {
        let at = self.now + after;
        if self.controllers.due.is_none_or(|due| due > at) {
            self.controllers.due = Some(at);
            self.queue.push(at, Event::Controllers);
        }
    }

    pub(crate) fn controllers(&mut self) {
        if self.controllers.due != Some(self.now) {
            return;
        }
        self.controllers.due = None;
        if self.api.down_until > self.now {
            let after = self.api.down_until - self.now + MS;
            self.poke_controllers(after);
            return;
        }
        self.collect_garbage();
        let names: Vec<String> = self.api.jobs.keys().cloned().collect();
        for name in names {
            if let Some(job) = self.api.jobs.get(&name).cloned() {
                self.sync_job(&name, &job);
            }
        }
        self.finish_pods();
        self.schedule();
    }

    fn collect_garbage(&mut self) {
        let owner = self.api.jobset.as_ref().filter(|jobset| !jobset.is_deleting());
        let owner = owner.map(|jobset| jobset.uid_str().to_owned());
        let orphans: Vec<String> = self
            .api
            .jobs
            .values()
            .filter(|job| job.metadata.deletion_timestamp.is_none())
            .filter(|job| {
                let uid = job
                    .metadata
                    .labels
                    .as_ref()
                    .and_then(|labels| labels.get(labels::JOBSET_UID));
                uid != owner.as_ref()
            })
            .map(|job| name_of(&job.metadata))
            .collect();
        for name in orphans {
            self.delete_job(&name);
        }
        let present = self.api.jobset.as_ref().map(|jobset| jobset.uid_str().to_owned());
        self.collect_pod_groups(present.as_deref());
        let is_deleting = self
            .api
            .jobset
            .as_ref()
            .is_some_and(|jobset| jobset.is_deleting());
        if is_deleting && self.api.jobs.is_empty() {
            self.api.remove_jobset();
        }
        // Pods of Jobs and of nodes that are gone.
        let now = self.now;
        let mut later = None;
        let pods: Vec<Arc<Pod>> = self.api.pods.values().cloned().collect();
        for pod in pods {
            let job = self.api.jobs.get(&pod.job);
            let job_gone = job.is_none_or(|job| job.metadata.uid.as_deref() != Some(pod.job_uid.as_str()));
            if job_gone && pod.deleting.is_none() {
                self.delete_pod(&pod.uid);
            }
            if let Some(since) = pod.node.and_then(|node| self.gone_nodes.get(&node)) {
                if now >= since + POD_GC {
                    self.note_pod_loss(&pod.uid);
                    self.api.change_pod(&pod.uid, |pod| pod.phase = PodPhase::Failed);
                    self.api.change_pod(&pod.uid, |pod| {
                        pod.deleting.get_or_insert(now);
                    });
                } else {
                    let next = if now >= since + NOT_READY {
                        POD_GC
                    } else {
                        NOT_READY
                    };
                    if next == POD_GC && !pod.node_lost {
                        self.api.change_pod(&pod.uid, |pod| pod.node_lost = true);
                    }
                    let wait = since + next - now;
                    later = Some(later.map_or(wait, |later: Time| later.min(wait)));
                }
            }
        }
        if let Some(after) = later {
            self.poke_controllers(after);
        }
    }

    /// Deletes a Job in the foreground: first its pods, then the Job itself.
    pub(crate) fn delete_job(&mut self, name: &str) {
        let now = self.timestamp();
        let is_deleting = |job: &Arc<Job>| job.metadata.deletion_timestamp.is_some();
        if self.api.jobs.get(name).is_some_and(|job| !is_deleting(job)) {
            self.api
                .change_job(name, |job| job.metadata.deletion_timestamp = Some(MetaTime(now)));
        }
    }

    /// Marks a pod as deleted; its node does the rest.
    pub(crate) fn delete_pod(&mut self, uid: &str) {
        let now = self.now;
        let Some(pod) = self.api.pods.get(uid).filter(|pod| pod.deleting.is_none()) else {
            return;
        };
        let unbound = pod.node.is_none();
        let worker = (pod.job.clone(), pod.index);
        if !self.drops_unwanted(&worker, uid) {
            self.note_pod_loss(uid);
        }
        self.api.change_pod(uid, |pod| {
            pod.deleting = Some(now);
            if unbound {
                pod.phase = PodPhase::Failed;
            }
        });
    }

    pub(crate) fn timestamp(&self) -> Timestamp {
        Timestamp::from_nanosecond(i128::from(unix(self.now, 0))).unwrap_or_default()
    }

    /// The Job controller removes its finalizer from pods that have ended; deleted ones then
    /// vanish.
    fn finish_pods(&mut self) {
        let ended: Vec<(String, bool, bool)> = self
            .api
            .pods
            .values()
            .filter(|pod| pod.is_terminal())
            .map(|pod| (pod.uid.clone(), pod.deleting.is_some(), pod.accounted))
            .collect();
        for (uid, deleting, accounted) in ended {
            if deleting {
                self.api.remove_pod(&uid);
            } else if !accounted {
                self.api.change_pod(&uid, |pod| pod.accounted = true);
            }
        }
    }

    fn schedule(&mut self) {
        let nodes: Vec<usize> = (0..self.nodes.len())
            .filter(|node| self.nodes[*node].up && self.node_reaches_api(*node))
            .collect();
        let waiting: Vec<String> = self
            .api
            .pods
            .values()
            .filter(|pod| pod.waits_for_node())
            .filter(|pod| pod.group.is_none())
            .map(|pod| pod.uid.clone())
            .collect();
        if self.api.pods.values().all(|pod| !pod.waits_for_node()) {
            return;
        }
        if nodes.is_empty() {
            self.poke_controllers(SEC);
            return;
        }
        self.schedule_groups(&nodes);
        for uid in waiting {
            let roomy: Vec<usize> = nodes
                .iter()
                .copied()
                .filter(|node| self.has_room(*node))
                .collect();
            if let Some(node) = self.rng.pick(&roomy).copied() {
                self.api.change_pod(&uid, |pod| pod.node = Some(node));
            } else {
                // Nodes may come back.
                self.poke_controllers(5 * SEC);
            }
        }
    }
}
