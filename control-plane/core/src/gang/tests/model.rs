//! A model of a cluster with gangs: the real reconciler and gang controller with a model of an API
//! server, a Job controller, a scheduler that chooses nodes at random, and kubelets.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node as K8sNode, NodeStatus, Pod as K8sPod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use lockstep_api::{
    Gang, GangPhase, GangReplicatedJob, GangStatus, JobSet, JobSetSpec, JobSetStatus, ReplicatedJob,
    conditions, labels,
};

use crate::common::testing::{Cluster, JobSetBuild, ReplicatedJobBuild, at, jobset, replicated_job};
use crate::gang::{Decisions, Footprint, GangEvent, Node, Pod, PodGroupRef, World, decide, members};
use crate::jobset::pod::GangPod;
use crate::jobset::pod::PodSummary;

mod kubernetes;
mod watch;

use kubernetes::label;

/// A deterministic source of random numbers.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % 1_000_003).unwrap() % end.max(1)
    }

    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A replicatedJob of `replicas` Jobs with `pods` pods of `cpu` cores each.
pub(super) fn part(name: &str, replicas: i32, pods: i32, cpu: i32) -> ReplicatedJob {
    replicated_job(name, replicas)
        .job_spec(|spec| {
            spec.parallelism = Some(pods);
            spec.completions = Some(pods);
            spec.completion_mode = Some("Indexed".to_owned());
        })
        .pod_spec(|spec| {
            let requests = BTreeMap::from([("cpu".to_owned(), Quantity(cpu.to_string()))]);
            spec.containers[0].resources.get_or_insert_default().requests = Some(requests);
        })
}

/// A JobSet `ns/name` with a gang of these minimums.
pub(super) fn gang(name: &str, parts: Vec<ReplicatedJob>, minimums: &[(&str, i32)]) -> JobSet {
    let listed = minimums.iter().map(|(name, minimum)| GangReplicatedJob {
        name: (*name).to_owned(),
        min_available: *minimum,
    });
    let listed = listed.collect();
    jobset(parts).with(|js| {
        js.metadata.name = Some(name.to_owned());
        js.metadata.uid = Some(format!("uid-{name}"));
        js.spec.gang = Some(Gang {
            replicated_jobs: listed,
            schedule_timeout_seconds: Some(20),
            ..Gang::default()
        });
    })
}

pub(super) struct Model {
    pub(super) clusters: BTreeMap<String, Cluster>,
    pub(super) pods: BTreeMap<String, K8sPod>,
    pub(super) nodes: BTreeMap<String, i32>,
    pub(super) groups: BTreeMap<String, PodGroupRef>,
    /// The priority of the pods of a JobSet.
    pub(super) priorities: BTreeMap<String, i32>,
    /// The events of the gangs, with the JobSet.
    pub(super) events: Vec<(Timestamp, String, GangEvent, String)>,
    /// When the whole minimum of a gang was first bound, by JobSet and gang.
    pub(super) bound_at: BTreeMap<(String, String), Timestamp>,
    /// How long a pod runs, in seconds.
    pub(super) run_time: i64,
    /// The same for JobSets whose pods run for another time.
    pub(super) run_times: BTreeMap<String, i64>,
    /// The percentage of the gang controller's writes that get lost.
    pub(super) loss: usize,
    /// The percentage of the reconciler's writes after which it is killed.
    pub(super) kills: usize,
    /// True if the API server serves PodGroups.
    pub(super) serves_pod_groups: bool,
    /// True if new pods pass the webhook.
    pub(super) has_webhook: bool,
    /// The JobSet whose pods the API server refuses, as with a quota.
    pub(super) refused: Option<String>,
    pub(super) now: Timestamp,
    pub(super) chance: Chance,
    ends: BTreeMap<String, Timestamp>,
    partial_since: BTreeMap<(String, String), Timestamp>,
    /// Pods that should run and have a gate, by UID.
    held_since: BTreeMap<String, Timestamp>,
    serial: u32,
}

impl Model {
    /// A cluster of nodes with these numbers of cores.
    pub(super) fn new(cores: &[i32]) -> Self {
        let nodes = (0..)
            .zip(cores)
            .map(|(index, cores)| (format!("n{index}"), *cores));
        Self {
            clusters: BTreeMap::new(),
            pods: BTreeMap::new(),
            nodes: nodes.collect(),
            groups: BTreeMap::new(),
            priorities: BTreeMap::new(),
            events: Vec::new(),
            bound_at: BTreeMap::new(),
            run_time: 10,
            run_times: BTreeMap::new(),
            loss: 0,
            kills: 0,
            serves_pod_groups: true,
            has_webhook: true,
            refused: None,
            now: at(0),
            chance: Chance(0x1234_5678_9abc_def1),
            ends: BTreeMap::new(),
            partial_since: BTreeMap::new(),
            held_since: BTreeMap::new(),
            serial: 0,
        }
    }

    pub(super) fn create(&mut self, mut jobset: JobSet, priority: i32, pod_groups: bool) {
        jobset.metadata.creation_timestamp = Some(Time(self.now));
        let name = jobset.name().to_owned();
        self.priorities.insert(name.clone(), priority);
        let mut cluster = Cluster::new(jobset);
        cluster.pod_groups = pod_groups;
        self.clusters.insert(name, cluster);
    }

    /// The spec of a JobSet, for changes by its user.
    pub(super) fn spec_of(&mut self, jobset: &str) -> &mut JobSetSpec {
        &mut self.clusters.get_mut(jobset).unwrap().jobset.spec
    }

    /// The status of a JobSet, for changes by another writer.
    pub(super) fn status_of(&mut self, jobset: &str) -> &mut JobSetStatus {
        let cluster = self.clusters.get_mut(jobset).unwrap();
        cluster.jobset.status.get_or_insert_default()
    }

    pub(super) fn run(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.step();
        }
    }

    /// Steps until every JobSet has completed.
    pub(super) fn finish(&mut self, seconds: u32) {
        for _ in 0..seconds {
            if self.clusters.values().all(|cluster| cluster.jobset.is_finished()) {
                return;
            }
            self.step();
        }
        panic!("not finished: {}", self.describe());
    }

    pub(super) fn describe(&self) -> String {
        let statuses = self.clusters.values().map(|cluster| {
            let status = cluster.jobset.status.clone().unwrap_or_default();
            let pods = self.pods_of(cluster.jobset.name());
            let pods = pods
                .iter()
                .map(|pod| (pod.name.clone(), pod.gated, pod.node.clone(), pod.phase));
            let pods: Vec<_> = pods.collect();
            format!("{}: {:?} {pods:?}", cluster.jobset.name(), status.gangs)
        });
        statuses.collect::<Vec<_>>().join("\n")
    }

    pub(super) fn step(&mut self) {
        self.now += SignedDuration::from_secs(1);
        self.reconcile();
        self.job_controller();
        let decisions = decide(&self.world(), self.now);
        self.act(&decisions);
        self.schedule();
        self.kubelets();
        self.job_controller();
        self.watch();
    }

    fn reconcile(&mut self) {
        let names: Vec<String> = self.clusters.keys().cloned().collect();
        for name in names {
            let pods = self.pods_json(&name);
            let gang_pods = pods.iter().filter_map(|pod| {
                let restarts = self.clusters[&name].jobset.restart_attempt();
                GangPod::of(&PodSummary::of(pod), restarts)
            });
            let gang_pods: Vec<GangPod> = gang_pods.collect();
            let now = self.now;
            let cluster = self.clusters.get_mut(&name).unwrap();
            cluster.now = now;
            cluster.gang_pods = gang_pods;
            if self.chance.percent(self.kills) {
                cluster.reconcile_until_killed(self.chance.below(4));
            } else {
                cluster.reconcile();
            }
            cluster.now = now;
        }
    }

    fn pods_json(&self, jobset: &str) -> Vec<&K8sPod> {
        let own = self.pods.values();
        own.filter(|pod| label(pod, labels::JOBSET_NAME) == jobset)
            .collect()
    }

    pub(super) fn pods_of(&self, jobset: &str) -> Vec<Arc<Pod>> {
        let own = self.pods_json(jobset).into_iter();
        own.map(|pod| Arc::new(Pod::of(pod).unwrap())).collect()
    }

    pub(super) fn status(&self, jobset: &str, gang: &str) -> Option<GangStatus> {
        self.clusters[jobset].jobset.status.as_ref()?.gang(gang).cloned()
    }

    pub(super) fn phase(&self, jobset: &str, gang: &str) -> Option<GangPhase> {
        Some(self.status(jobset, gang)?.phase)
    }

    pub(super) fn bound(&self, jobset: &str) -> usize {
        let pods = self.pods_of(jobset);
        pods.iter()
            .filter(|pod| pod.node.is_some() && !pod.is_terminal())
            .count()
    }

    pub(super) fn is_completed(&self, jobset: &str) -> bool {
        let status = self.clusters[jobset].jobset.status.as_ref();
        status.is_some_and(|status| status.is_true(conditions::COMPLETED))
    }

    fn nodes_now(&self) -> BTreeMap<String, Node> {
        let node = |(name, cores): (&String, &i32)| {
            let allocatable = BTreeMap::from([
                ("cpu".to_owned(), Quantity(cores.to_string())),
                ("pods".to_owned(), Quantity("110".to_owned())),
            ]);
            let node = K8sNode {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    ..ObjectMeta::default()
                },
                status: Some(NodeStatus {
                    allocatable: Some(allocatable),
                    ..NodeStatus::default()
                }),
                ..K8sNode::default()
            };
            (name.clone(), Node::of(&node))
        };
        let mut nodes: BTreeMap<String, Node> = self.nodes.iter().map(node).collect();
        for footprint in self.pods.values().filter_map(Footprint::of) {
            if let Some(node) = nodes.get_mut(&footprint.node) {
                node.take(&footprint);
            }
        }
        nodes
    }

    pub(super) fn world(&self) -> World {
        let jobsets = self.clusters.values().filter_map(|cluster| {
            let jobs: Vec<Arc<Job>> = cluster.jobs.values().cloned().map(Arc::new).collect();
            members(&cluster.jobset, &jobs, &self.pods_of(cluster.jobset.name()))
        });
        World {
            jobsets: jobsets.collect(),
            nodes: self.nodes_now(),
            pod_groups_gone: !self.serves_pod_groups,
        }
    }

    /// Executes decisions, except the writes that get lost.
    pub(super) fn act(&mut self, decisions: &Decisions) {
        for decision in &decisions.jobsets {
            let mut discarded = true;
            for name in &decision.discard {
                discarded &= !self.chance.percent(self.loss);
                if discarded {
                    self.groups.remove(name);
                }
            }
            if !discarded {
                continue;
            }
            for group in &decision.pod_groups {
                let is_to_be = group.exact || !self.groups.contains_key(&group.name);
                if is_to_be && self.serves_pod_groups && !self.chance.percent(self.loss) {
                    self.groups.insert(group.name.clone(), group.clone());
                }
            }
            for pod in decision.ungate.iter().flatten() {
                if !self.chance.percent(self.loss) {
                    let spec = self.pods.get_mut(&pod.uid).unwrap().spec.as_mut().unwrap();
                    spec.scheduling_gates = None;
                }
            }
            if let Some(write) = &decision.write
                && !self.chance.percent(self.loss)
            {
                let cluster = self.clusters.get_mut(&decision.name).unwrap();
                cluster
                    .jobset
                    .status
                    .get_or_insert_default()
                    .gangs
                    .clone_from(&write.gangs);
                for news in &write.announcements {
                    let name = decision.name.clone();
                    self.events
                        .push((self.now, name, news.event.clone(), news.message.clone()));
                }
            }
        }
    }

    /// PodGroups are served from now on, or no longer.
    pub(super) fn serve_pod_groups(&mut self, serves: bool) {
        self.serves_pod_groups = serves;
        self.groups.clear();
        for cluster in self.clusters.values_mut() {
            cluster.pod_groups = serves;
        }
    }

    /// Removes a node with its pods. Its name stays known, so that it may come back.
    pub(super) fn lose_node(&mut self, name: &str) {
        self.nodes.insert(name.to_owned(), 0);
        self.pods.retain(|_, pod| {
            let pod = Pod::of(pod).unwrap();
            pod.is_terminal() || pod.node.as_deref() != Some(name)
        });
    }

    /// Makes the pods of a replicatedJob succeed.
    pub(super) fn end_now(&mut self, replicated_job: &str) {
        for pod in self.pods.values_mut() {
            if label(pod, labels::REPLICATED_JOB_NAME) == replicated_job {
                pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
            }
        }
    }

    /// Removes a pod, as if with its node.
    pub(super) fn lose(&mut self, uid: &str) {
        self.pods.remove(uid);
    }
}
