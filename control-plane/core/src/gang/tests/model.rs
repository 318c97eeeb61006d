//! A model of a cluster with gangs: the reconciler and the gang controller as they are, around them an API server, a Job controller, a scheduler that
//! chooses nodes at random, and kubelets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::{Node as K8sNode, NodeStatus, Pod as K8sPod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use lockstep_api::{
    Gang, GangPhase, GangReplicatedJob, GangStatus, JobSet, ReplicatedJob, conditions, labels,
};

use crate::gang::eligible::is_eligible;
use crate::gang::{
    Decisions, Footprint, GangPod, Node, Pod, PodGroupRef, Word, World, decide, members, mutate,
};
use crate::pod::PodSummary;
use crate::testing::{Cluster, JobSetBuild, ReplicatedJobBuild, at, jobset, replicated_job};

/// A source of chance that gives the same each time.
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
    /// Priority of the pods of a JobSet.
    pub(super) priorities: BTreeMap<String, i32>,
    /// What the gangs were told of, with the JobSet.
    pub(super) words: Vec<(Timestamp, String, Word, String)>,
    /// When the whole minimum of a gang was first bound, by JobSet and gang.
    pub(super) bound_at: BTreeMap<(String, String), Timestamp>,
    /// How long a pod runs, seconds.
    pub(super) run_time: i64,
    /// The same of a JobSet whose pods run otherwise.
    pub(super) run_times: BTreeMap<String, i64>,
    /// How many of the writes of the gang controller get lost, percent.
    pub(super) loss: usize,
    /// Whether pods that are created pass the webhook.
    pub(super) has_webhook: bool,
    pub(super) now: Timestamp,
    pub(super) chance: Chance,
    ends: BTreeMap<String, Timestamp>,
    partial_since: BTreeMap<(String, String), Timestamp>,
    serial: u32,
}

impl Model {
    /// Nodes with so many cores each.
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
            words: Vec::new(),
            bound_at: BTreeMap::new(),
            run_time: 10,
            run_times: BTreeMap::new(),
            loss: 0,
            has_webhook: true,
            now: at(0),
            chance: Chance(0x1234_5678_9abc_def1),
            ends: BTreeMap::new(),
            partial_since: BTreeMap::new(),
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

    pub(super) fn run(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.step();
        }
    }

    /// Until every JobSet has completed.
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
                let restarts = self.clusters[&name].jobset.restarts();
                GangPod::of(&PodSummary::of(pod), restarts)
            });
            let gang_pods: Vec<GangPod> = gang_pods.collect();
            let now = self.now;
            let cluster = self.clusters.get_mut(&name).unwrap();
            cluster.now = now;
            cluster.gang_pods = gang_pods;
            cluster.reconcile();
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
        }
    }

    /// Carries decisions out, but for those that get lost.
    pub(super) fn act(&mut self, decisions: &Decisions) {
        for decision in &decisions.jobsets {
            for group in &decision.groups {
                if !self.chance.percent(self.loss) {
                    self.groups.insert(group.name.clone(), group.clone());
                }
            }
            for pod in &decision.ungate {
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
                    self.words
                        .push((self.now, name, news.word.clone(), news.message.clone()));
                }
            }
        }
    }

    fn job_controller(&mut self) {
        let names: Vec<String> = self.clusters.keys().cloned().collect();
        for name in names {
            let jobs: Vec<Job> = self.clusters[&name].jobs.values().cloned().collect();
            for job in jobs {
                self.sync_job(&name, &job);
            }
            let cluster = self.clusters.get_mut(&name).unwrap();
            cluster.collect_garbage();
            let jobs = cluster.jobs.values();
            let uids: BTreeSet<String> = jobs.map(|job| controller_uid(&name, job)).collect();
            self.pods.retain(|_, pod| {
                label(pod, labels::JOBSET_NAME) != name
                    || uids.contains(label(pod, labels::BATCH_CONTROLLER_UID))
            });
        }
    }

    fn sync_job(&mut self, jobset: &str, job: &Job) {
        if job.metadata.deletion_timestamp.is_some() {
            return;
        }
        let name = job.metadata.name.clone().unwrap();
        let spec = job.spec.as_ref().unwrap();
        let suspended = spec.suspend == Some(true);
        let mut completed: BTreeSet<u32> = BTreeSet::new();
        let mut live: BTreeSet<u32> = BTreeSet::new();
        let (mut ready, mut active) = (0, 0);
        let uid = controller_uid(jobset, job);
        if suspended {
            self.pods.retain(|_, pod| {
                let other = label(pod, labels::BATCH_CONTROLLER_UID) != uid;
                other || Pod::of(pod).unwrap().is_terminal()
            });
        }
        for pod in self
            .pods
            .values()
            .filter(|pod| label(pod, labels::BATCH_CONTROLLER_UID) == uid)
        {
            let index: u32 = label(pod, labels::BATCH_JOB_COMPLETION_INDEX).parse().unwrap();
            match pod.status.as_ref().unwrap().phase.as_deref() {
                Some("Succeeded") => {
                    completed.insert(index);
                }
                Some("Failed") => {}
                phase => {
                    live.insert(index);
                    active += 1;
                    ready += i32::from(phase == Some("Running"));
                }
            }
        }
        let pods = u32::try_from(spec.parallelism.unwrap()).unwrap();
        if !suspended {
            for index in (0..pods).filter(|index| !completed.contains(index) && !live.contains(index)) {
                self.create_pod(jobset, job, index);
                active += 1;
            }
        }
        let indexes = completed
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",");
        let is_complete = u32::try_from(completed.len()).unwrap() == pods;
        let status = JobStatus {
            active: Some(active),
            ready: Some(ready),
            succeeded: Some(i32::try_from(completed.len()).unwrap()),
            completed_indexes: Some(indexes),
            start_time: (!suspended).then(|| {
                let known = job.status.as_ref().and_then(|status| status.start_time.clone());
                known.unwrap_or(Time(self.now))
            }),
            conditions: is_complete.then(|| {
                vec![JobCondition {
                    type_: "Complete".to_owned(),
                    status: "True".to_owned(),
                    ..JobCondition::default()
                }]
            }),
            ..JobStatus::default()
        };
        let cluster = self.clusters.get_mut(jobset).unwrap();
        cluster.jobs.get_mut(&name).unwrap().status = Some(status);
    }

    fn create_pod(&mut self, jobset: &str, job: &Job, index: u32) {
        self.serial += 1;
        let name = job.metadata.name.as_deref().unwrap();
        let template = &job.spec.as_ref().unwrap().template;
        let mut metadata = template.metadata.clone().unwrap();
        let uid = format!("pod-{}", self.serial);
        metadata.name = Some(format!("{name}-{index}-{}", self.serial));
        metadata.uid = Some(uid.clone());
        let mut set = |key: &str, value: &str| {
            for map in [&mut metadata.labels, &mut metadata.annotations] {
                map.get_or_insert_default()
                    .insert(key.to_owned(), value.to_owned());
            }
        };
        set(labels::BATCH_JOB_NAME, name);
        set(labels::BATCH_CONTROLLER_UID, &controller_uid(jobset, job));
        set(labels::BATCH_JOB_COMPLETION_INDEX, &index.to_string());
        let pod = K8sPod {
            metadata,
            spec: Some(PodSpec {
                priority: self.priorities.get(jobset).copied(),
                ..template.spec.clone().unwrap()
            }),
            status: Some(PodStatus {
                phase: Some("Pending".to_owned()),
                ..PodStatus::default()
            }),
        };
        let marked = mutate(&pod).filter(|_| self.has_webhook);
        self.pods.insert(uid, marked.unwrap_or(pod));
    }

    /// kube-scheduler, without any order of its own.
    fn schedule(&mut self) {
        let mut alone = Vec::new();
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (uid, pod) in &self.pods {
            let spec = pod.spec.as_ref().unwrap();
            let gated = spec.scheduling_gates.iter().flatten().next().is_some();
            if gated || spec.node_name.is_some() {
                continue;
            }
            match &spec.scheduling_group {
                None => alone.push(uid.clone()),
                Some(group) => {
                    let name = group.pod_group_name.clone().unwrap();
                    groups.entry(name).or_default().push(uid.clone());
                }
            }
        }
        while !alone.is_empty() {
            let next = self.chance.below(alone.len());
            let uid = alone.swap_remove(next);
            self.bind(&uid);
        }
        for (name, waiting) in groups {
            let Some(group) = self.groups.get(&name) else {
                continue;
            };
            let minimum = usize::try_from(group.min_count).unwrap();
            let bound = self.pods.values().filter(|pod| {
                let spec = pod.spec.as_ref().unwrap();
                let named = spec
                    .scheduling_group
                    .as_ref()
                    .and_then(|group| group.pod_group_name.as_ref());
                named == Some(&name) && spec.node_name.is_some()
            });
            if bound.count() + waiting.len() < minimum {
                continue;
            }
            let placed: Vec<&String> = waiting.iter().filter(|uid| self.bind(uid)).collect();
            if placed.len() < waiting.len() {
                for uid in placed {
                    self.pods.get_mut(uid).unwrap().spec.as_mut().unwrap().node_name = None;
                }
            }
        }
    }

    fn bind(&mut self, uid: &str) -> bool {
        let nodes = self.nodes_now();
        let pod = Pod::of(&self.pods[uid]).unwrap();
        let open: Vec<&String> = nodes
            .iter()
            .filter(|(_, node)| {
                let mut free = node.allocatable.clone();
                free.take(&node.requested, 1);
                free.holds(&pod.needs.requests) > 0 && is_eligible(&pod.needs, node)
            })
            .map(|(name, _)| name)
            .collect();
        if open.is_empty() {
            return false;
        }
        let node = open[self.chance.below(open.len())].clone();
        self.pods.get_mut(uid).unwrap().spec.as_mut().unwrap().node_name = Some(node);
        true
    }

    fn kubelets(&mut self) {
        for (uid, pod) in &mut self.pods {
            if pod.spec.as_ref().unwrap().node_name.is_none() {
                continue;
            }
            let time = self.run_times.get(label(pod, labels::JOBSET_NAME));
            let end = self.now + SignedDuration::from_secs(*time.unwrap_or(&self.run_time));
            let status = pod.status.as_mut().unwrap();
            let end = *self.ends.entry(uid.clone()).or_insert(end);
            if status.phase.as_deref() == Some("Pending") {
                status.phase = Some("Running".to_owned());
            }
            if end <= self.now {
                status.phase = Some("Succeeded".to_owned());
            }
        }
    }

    /// A pod is gone, as with its node.
    pub(super) fn lose(&mut self, uid: &str) {
        self.pods.remove(uid);
    }

    /// What must hold at all times.
    fn watch(&mut self) {
        for jobset in self.world().jobsets {
            for gang in &jobset.gangs {
                let key = (jobset.name.clone(), gang.name.clone());
                let phase = self.phase(&jobset.name, &gang.name);
                let minimum: u32 = gang.parts.iter().map(|part| part.minimum).sum();
                let mut bound = 0;
                let mut ended = 0;
                for part in &gang.parts {
                    for pod in &part.pods {
                        let seat = pod.job_index * part.parallelism + pod.index.unwrap();
                        let is_extra = seat >= part.minimum;
                        if pod.is_terminal() {
                            ended += u32::from(!is_extra);
                            continue;
                        }
                        bound += u32::from(pod.node.is_some() && !is_extra);
                        assert!(
                            phase == Some(GangPhase::Scheduled) || !is_extra || pod.gated,
                            "extra {} may go before its gang is bound: {}",
                            pod.name,
                            self.describe()
                        );
                    }
                }
                if bound + ended >= minimum {
                    self.bound_at.entry(key.clone()).or_insert(self.now);
                }
                let partial = bound > 0 && bound < minimum && phase != Some(GangPhase::Scheduled);
                if !partial {
                    self.partial_since.remove(&key);
                    continue;
                }
                let since = *self.partial_since.entry(key).or_insert(self.now);
                // The time-out, the lost writes, and the time until the pods are gone.
                let longest = gang.timeout + SignedDuration::from_secs(15);
                assert!(
                    self.now.duration_since(since) <= longest,
                    "part of a gang holds nodes: {}",
                    self.describe()
                );
            }
        }
    }
}

fn label<'a>(pod: &'a K8sPod, key: &str) -> &'a str {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(key))
        .map_or("", String::as_str)
}

/// UIDs of Jobs are unique within their JobSet only.
fn controller_uid(jobset: &str, job: &Job) -> String {
    format!("{jobset}.{}", job.metadata.uid.as_deref().unwrap())
}
