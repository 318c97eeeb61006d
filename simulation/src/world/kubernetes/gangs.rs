//! Gangs: JobSets that start with a minimum of their pods or not at all, on nodes where pods of
//! other users come and go.
//!
//! This file has the specs of gangs and the room on nodes. kube-scheduler binds pods without a gate
//! wherever there is room, in any order. The leader's part is in `replica/gang_task.rs`.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::{Gang, GangBackend, GangReplicatedJob, JobSet, ReplicatedJob};

use crate::rng::Rng;
use crate::scenario::{Profile, Room, Scenario};
use crate::time::MS;
use crate::world::World;
use crate::world::event::NodeIndex;
use crate::world::node::container::Identity;

impl Scenario {
    /// A sixth of the scenarios with agents have gangs, except RayClusters and scenarios in which
    /// only workers fail. Nothing else is drawn from `rng`.
    pub(crate) fn choose_gang(&mut self, rng: &mut Rng) {
        if rng.below(6) > 0 || self.plain || self.elastic || self.profile == Profile::Clean {
            return;
        }
        if rng.percent(50) {
            // No worker completes.
            self.work.clear();
        }
        let jobs = &mut self.jobset.spec.replicated_jobs;
        for job in jobs.iter_mut() {
            job.depends_on
                .retain(|on| on.status != "Complete".into() || self.work.contains_key(&on.name));
            request_one_cpu(job);
        }
        let listed = jobs.iter().map(|job| GangReplicatedJob {
            name: job.name.clone(),
            min_available: 1 + i32::try_from(rng.index(job.pods() as usize)).unwrap_or(0),
        });
        let mut gang = Gang {
            min_available: None,
            replicated_jobs: listed.collect(),
            schedule_timeout_seconds: Some([5, 20, 60][rng.index(3)]),
            backend: Some(GangBackend::Gates),
        };
        let pods: i32 = jobs.iter().map(ReplicatedJob::pods).sum();
        let in_stages =
            self.jobset.spec.startup_policy.is_some() || jobs.iter().any(|job| !job.depends_on.is_empty());
        self.gang = Some(Room {
            of_node: u64::try_from(pods).unwrap_or(0),
            // Optional workers of one gang may take the room that the minimum of the next one
            // needs.
            short: !in_stages && rng.percent(40),
        });
        if rng.percent(50) {
            gang.backend = Some(GangBackend::PodGroup);
        }
        self.jobset.spec.gang = Some(gang);
    }
}

/// Makes each pod of this replicatedJob request one CPU.
fn request_one_cpu(job: &mut ReplicatedJob) {
    let pod = job.template.spec.as_mut();
    let Some(pod) = pod.and_then(|spec| spec.template.spec.as_mut()) else {
        return;
    };
    for container in &mut pod.containers {
        container.resources = Some(ResourceRequirements {
            requests: Some([("cpu".to_owned(), Quantity("1".to_owned()))].into()),
            ..ResourceRequirements::default()
        });
    }
}

/// The replicatedJob and the index in a Job's name, `<jobset>-<replicatedJob>-<index>`.
pub(crate) fn stage_and_index(job: &str) -> (&str, u32) {
    let mut parts = job.split('-').skip(1);
    let stage = parts.next().unwrap_or_default();
    (
        stage,
        parts.next().and_then(|index| index.parse().ok()).unwrap_or(0),
    )
}

/// True if this worker is above the minimum of its gang.
pub(crate) fn is_optional(jobset: &JobSet, worker: &Identity) -> bool {
    let (stage, index) = stage_and_index(&worker.0);
    let Some((gang, job)) = jobset.spec.gang.as_ref().zip(jobset.replicated_job(stage)) else {
        return false;
    };
    let minimum = gang.listed(stage).unwrap_or_else(|| job.pods());
    let rank = i64::from(index) * i64::from(job.parallelism()) + i64::from(worker.1);
    rank >= i64::from(minimum)
}

impl World {
    /// True if kube-scheduler finds room on a node for one more pod.
    pub(crate) fn has_room(&self, node: NodeIndex) -> bool {
        self.scenario.gang.is_none() || self.room_on(node) > 0
    }

    /// How many more pods fit on a node, if there are gangs.
    pub(crate) fn room_on(&self, node: NodeIndex) -> u64 {
        let of_node = self.scenario.gang.as_ref().map_or(0, |room| room.of_node);
        let bound = self.api.pods.values();
        let bound = bound.filter(|pod| pod.node == Some(node) && !pod.is_terminal());
        let free = of_node.saturating_sub(self.taken[node]);
        free.saturating_sub(bound.count() as u64)
    }

    /// Pods of other users come to a node, or leave it.
    pub(crate) fn crowd(&mut self, node: NodeIndex) {
        let Some(of_node) = self.scenario.gang.as_ref().map(|room| room.of_node) else {
            return;
        };
        self.taken[node] = self.rng.below(of_node + 1);
        let taken = self.taken[node];
        self.say(|| format!("node-{node} has room for {} pods", of_node - taken));
        self.poke_controllers(MS);
        self.poke_gangs();
    }

    /// Sets the room for the end of the history: enough for all pods, or only for the minimum.
    pub(crate) fn settle_room(&mut self) {
        let Some(room) = self.scenario.gang.clone() else {
            return;
        };
        let minimum = self.scenario.jobset.spec.gang.iter();
        let minimum: i32 = minimum
            .flat_map(|gang| &gang.replicated_jobs)
            .map(|listed| listed.min_available)
            .sum();
        let others = room.of_node.saturating_sub(u64::try_from(minimum).unwrap_or(0));
        let last = (0..self.nodes.len()).find(|node| !self.nodes[*node].gone);
        for node in 0..self.nodes.len() {
            self.taken[node] = match (room.short, Some(node) == last) {
                (false, _) => 0,
                (true, true) => others,
                (true, false) => room.of_node,
            };
        }
        self.poke_controllers(MS);
        self.poke_gangs();
    }
}
