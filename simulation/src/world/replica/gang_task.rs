//! The leader's task that starts gangs. It does what the control plane's task does around the real
//! decisions.
//!
//! This model is simpler: it sees the current state of nodes and gates, not that of a moment ago.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::JobSet;
use lockstep_core::common::retry::delay;
use lockstep_core::gang::{
    Footprint, GroupPolicy, Needs, Node, Pod, PodGroupRef, PodPhase, Resources, World as Cluster, decide,
    members,
};
use lockstep_core::jobset::completed;
use lockstep_core::jobset::pod::PodSummary;
use serde_json::json;

use crate::time::{MS, SEC, Time, span, unix};
use crate::world::World;
use crate::world::event::request::{Fate, GangRequest};
use crate::world::event::{Event, ReplicaIndex};
use crate::world::kubernetes::api_server::{Refusal, node_name};
use crate::world::kubernetes::gangs::stage_and_index;

/// How often a status is written if only its message has changed.
const REPEAT: Time = 10 * SEC;
/// Time between looks at nodes while a gang waits.
const LOOK_AGAIN: Time = 5 * SEC;
/// Time after which a PodGroup is created again if it is not known to be gone.
const MAKE_AGAIN: Time = 300 * SEC;
/// The longest wait after a write that failed.
const LONGEST: Time = 30 * SEC;

/// The state of the task.
#[derive(Debug, Default)]
pub(crate) struct GangTask {
    due: Option<Time>,
    /// Number of requests without an answer.
    under_way: u32,
    /// Set if one of them has failed.
    failed: bool,
    failures: u32,
    /// The task does nothing before then.
    retry_at: Time,
    /// When a message was last written.
    message_written_at: Option<Time>,
    /// PodGroups that were created, with their policy, if it is known, and the time.
    made: BTreeMap<String, (Option<GroupPolicy>, Time)>,
}

impl World {
    /// Something may have changed for the gangs.
    pub(crate) fn poke_gangs(&mut self) {
        for replica in 0..self.replicas.len() {
            let at = self.now + 20 * MS;
            self.gang_step_at(replica, at);
        }
    }

    fn gang_step_at(&mut self, replica: ReplicaIndex, at: Time) {
        let life = self.replicas[replica].life;
        let Some(leader) = &mut self.replicas[replica].leader else {
            return;
        };
        if self.scenario.gang.is_some() && leader.gangs.due.is_none_or(|due| at < due) {
            leader.gangs.due = Some(at);
            self.queue.push(
                at,
                Event::GangStep {
                    replica,
                    life,
                    due: at,
                },
            );
        }
    }

    /// The time by the wall clock of this replica's machine.
    fn wall_clock(&self, replica: ReplicaIndex) -> Timestamp {
        let nanos = unix(self.now, self.replica_clocks[replica]);
        Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or_default()
    }

    pub(crate) fn gang_step(&mut self, replica: ReplicaIndex, due: Time) {
        let (now, clock) = (self.now, self.wall_clock(replica));
        let Some(leader) = &mut self.replicas[replica].leader else {
            return;
        };
        if leader.gangs.due != Some(due) {
            return;
        }
        leader.gangs.due = None;
        let (retry_at, written_at) = (leader.gangs.retry_at, leader.gangs.message_written_at);
        if leader.gangs.under_way > 0 {
            return;
        }
        if now < retry_at {
            return self.gang_step_at(replica, retry_at);
        }
        let cache = &self.replicas[replica].cache;
        let Some(jobset) = cache.completed_jobset(now) else {
            return;
        };
        let (jobs, _) = cache.completed_jobs(now);
        let jobs = completed::with_gone(&jobset, jobs);
        let pods: Vec<Arc<Pod>> = cache.pods.values().filter_map(|pod| self.pod_of(pod)).collect();
        let Some(gangs) = members(&jobset, &jobs, &pods) else {
            return;
        };
        let cluster = Cluster {
            nodes: self.cluster_nodes(),
            jobsets: vec![gangs],
            pod_groups_gone: false,
        };
        let decisions = decide(&cluster, clock);
        if let Some(wake_at) = decisions.wake_at {
            let after = wake_at.as_nanosecond() - clock.as_nanosecond();
            self.gang_step_at(replica, now + u64::try_from(after).unwrap_or(0).max(MS));
        }
        if decisions.waiting > 0 {
            // Nodes may come back.
            self.gang_step_at(replica, now + LOOK_AGAIN);
        }
        for decision in decisions.jobsets {
            let mut requests = Vec::new();
            if let Some(write) = decision.write {
                let again = written_at.map(|at| at + REPEAT).filter(|again| now < *again);
                match again.filter(|_| !write.urgent) {
                    Some(again) => self.gang_step_at(replica, again),
                    None => {
                        requests.push(GangRequest::Write(Arc::clone(&jobset), write.gangs));
                        if !write.urgent {
                            self.note_message_written(replica);
                        }
                    }
                }
            }
            if !decision.ungate.is_empty() {
                requests.push(GangRequest::Ungate(decision.ungate.concat()));
            }
            let groups = self.groups_to_make(replica, &decision.discard, decision.pod_groups);
            let uid = jobset.uid_str();
            requests.extend(
                groups
                    .into_iter()
                    .map(|group| GangRequest::Make(uid.to_owned(), group)),
            );
            if !requests.is_empty() && !decision.discard.is_empty() {
                requests = vec![GangRequest::Discard(decision.discard, requests)];
            }
            for request in requests {
                self.send_gang_request(replica, request);
            }
        }
    }

    fn note_message_written(&mut self, replica: ReplicaIndex) {
        let now = self.now;
        if let Some(leader) = &mut self.replicas[replica].leader {
            leader.gangs.message_written_at = Some(now);
        }
    }

    /// The PodGroups that the leader has not created yet, as far as it knows.
    fn groups_to_make(
        &mut self,
        replica: ReplicaIndex,
        discard: &[String],
        mut wanted: Vec<PodGroupRef>,
    ) -> Vec<PodGroupRef> {
        let now = self.now;
        let Some(leader) = &mut self.replicas[replica].leader else {
            return Vec::new();
        };
        let made = &mut leader.gangs.made;
        made.retain(|name, (_, at)| {
            let is_asked_for = wanted.iter().any(|group| group.name == *name);
            is_asked_for && !discard.contains(name) && now < *at + MAKE_AGAIN
        });
        wanted.retain(|group| {
            let known = made.get(&group.name);
            known.is_none_or(|(policy, _)| group.exact && *policy != Some(group.policy))
        });
        wanted
    }

    fn pod_of(&self, pod: &PodSummary) -> Option<Arc<Pod>> {
        let (stage, job_index) = stage_and_index(pod.job.as_deref()?);
        let replicated_job = self.scenario.jobset.replicated_job(stage)?;
        let template = &replicated_job.template.spec.as_ref()?.template;
        let phase = match (pod.agent.failed, pod.agent.succeeded, pod.running) {
            (true, _, _) => PodPhase::Failed,
            (_, true, _) => PodPhase::Succeeded,
            (_, _, true) => PodPhase::Running,
            _ => PodPhase::Pending,
        };
        Some(Arc::new(Pod {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            namespace: self.scenario.jobset.ns().to_owned(),
            jobset_uid: pod.jobset_uid.clone()?,
            restart_attempt: pod.restart_attempt?,
            replicated_job: stage.to_owned(),
            job_index,
            index: pod.index,
            gated: self.api.pods.get(&pod.uid).is_some_and(|pod| pod.gated),
            in_group: self.api.pods.get(&pod.uid).is_some_and(|pod| pod.group.is_some()),
            node: pod.node.clone(),
            phase,
            deleting: pod.deleting,
            node_lost: pod.node_lost,
            priority: 0,
            needs: Arc::new(Needs::of(
                &template.metadata.clone().unwrap_or_default(),
                template.spec.as_ref()?,
            )),
        }))
    }

    fn cluster_nodes(&self) -> BTreeMap<String, Node> {
        let of_node = self.scenario.gang.as_ref().map_or(0, |room| room.of_node);
        let cpus = |number: u64| {
            let of = |name: &str, number: String| (name.to_owned(), Quantity(number));
            Resources::of(&[of("cpu", number.to_string()), of("pods", "1".to_owned())].into())
        };
        let nodes = (0..self.nodes.len()).filter(|node| self.nodes[*node].up && self.node_reaches_api(*node));
        nodes
            .map(|index| {
                let name = node_name(index);
                let mut node = Node::of(&k8s::Node::default());
                node.labels.insert(Node::NAME.to_owned(), name.clone());
                node.allocatable = cpus(of_node);
                node.allocatable.set("pods", 1_000_000_000);
                let mut take = |requests, job| {
                    node.take(&Footprint {
                        node: name.clone(),
                        requests,
                        job,
                    });
                };
                take(cpus(self.taken[index]), None);
                let bound = self.api.pods.values();
                for pod in bound.filter(|pod| pod.node == Some(index) && !pod.is_terminal()) {
                    take(cpus(1), Some((pod.job.clone(), None)));
                }
                (name, node)
            })
            .collect()
    }

    fn send_gang_request(&mut self, replica: ReplicaIndex, request: GangRequest) {
        let (now, life) = (self.now, self.replicas[replica].life);
        let Some(leader) = &mut self.replicas[replica].leader else {
            return;
        };
        leader.gangs.under_way += 1;
        let (kind, number) = request.kind_and_number();
        let (fate, after) = self.request(kind, number);
        let event = Event::GangRequest {
            replica,
            life,
            request: Box::new(request),
            fate,
        };
        self.queue.push(now + after, event);
    }

    /// The request reaches the API server or is lost.
    pub(crate) fn gang_request(
        &mut self,
        (replica, life): (ReplicaIndex, u32),
        request: GangRequest,
        fate: Fate,
    ) {
        let (kind, _) = request.kind_and_number();
        let (mut known, mut made, mut then) = (None, None, Vec::new());
        let mut done = self.is_carried_out(replica, fate);
        if done {
            match request {
                GangRequest::Write(base, gangs) => {
                    let patch = json!({
                        "metadata": {"resourceVersion": base.metadata.resource_version},
                        "status": {"gangs": gangs},
                    });
                    let before = self.api.jobset.clone();
                    known = match self.api.patch_status(base.uid_str(), &patch) {
                        Ok(jobset) => {
                            let phases: Vec<_> = gangs.iter().map(|gang| (&gang.name, &gang.phase)).collect();
                            self.say(|| format!("replica {replica} writes gangs {phases:?}"));
                            self.check_status(before.as_deref(), &jobset);
                            self.note_gangs(&jobset, &gangs);
                            Some(jobset)
                        }
                        Err(Refusal::Conflict(jobset)) => Some(jobset),
                        Err(Refusal::Gone) => None,
                    };
                }
                GangRequest::Ungate(pods) => {
                    for pod in pods {
                        self.say(|| format!("replica {replica} removes the gate of {}", pod.uid));
                        self.check_ungated(&pod.uid);
                        self.api.change_pod(&pod.uid, |pod| pod.gated = false);
                    }
                }
                GangRequest::Make(uid, group) => {
                    let policy = self.make_pod_group(&uid, &group);
                    made = Some((group.name, policy));
                }
                GangRequest::Discard(names, rest) => {
                    for name in names {
                        self.say(|| format!("replica {replica} discards PodGroup {name}"));
                        self.api.pod_groups.remove(&name);
                    }
                    then = rest;
                }
            }
        }
        let after;
        (after, done) = self.answer(replica, kind, fate, done);
        let event = Event::GangAnswered {
            replica,
            life,
            known: known.filter(|_| done),
            made: made.filter(|_| done),
            then: if done { then } else { Vec::new() },
            done,
        };
        self.queue.push(self.now + after, event);
    }

    pub(crate) fn gang_answered(
        &mut self,
        replica: ReplicaIndex,
        known: Option<Arc<JobSet>>,
        made: Option<(String, Option<GroupPolicy>)>,
        then: Vec<GangRequest>,
        done: bool,
    ) {
        for request in then {
            self.send_gang_request(replica, request);
        }
        let now = self.now;
        let at = &mut self.replicas[replica];
        if let Some(known) = known {
            at.cache.wrote_jobset(now, known);
        }
        let Some(leader) = &mut at.leader else { return };
        let task = &mut leader.gangs;
        task.made.extend(made.map(|(name, policy)| (name, (policy, now))));
        task.failed |= !done;
        task.under_way = task.under_way.saturating_sub(1);
        if task.under_way > 0 {
            return;
        }
        if std::mem::take(&mut task.failed) {
            task.failures += 1;
            task.retry_at = now + span(delay(task.failures)).min(LONGEST);
        } else {
            task.failures = 0;
        }
        let again = task.retry_at.max(now + 20 * MS);
        self.gang_step_at(replica, again);
    }
}
