//! The surroundings of the model's controllers: the Job controller, kube-scheduler and the
//! kubelets.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::{Pod as K8sPod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::labels;

use super::Model;
use crate::gang::eligible::is_eligible;
use crate::gang::{GroupPolicy, Pod, mutate};
use crate::jobset::jobs::indexes;

impl Model {
    pub(super) fn job_controller(&mut self) {
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
        // What it has counted stays counted, even if the pod disappears.
        let counted = job
            .status
            .as_ref()
            .and_then(|status| status.completed_indexes.as_deref());
        let mut completed: BTreeSet<u32> = indexes(counted.unwrap_or_default())
            .into_iter()
            .flatten()
            .collect();
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
        if self.refused.as_deref() == Some(jobset) {
            return;
        }
        self.serial += 1;
        let name = job.metadata.name.as_deref().unwrap();
        let template = &job.spec.as_ref().unwrap().template;
        let mut metadata = template.metadata.clone().unwrap();
        let uid = format!("pod-{}", self.serial);
        metadata.namespace.clone_from(&job.metadata.namespace);
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
    pub(super) fn schedule(&mut self) {
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
            let minimum = match group.policy {
                GroupPolicy::Gang(minimum) => usize::try_from(minimum).unwrap(),
                GroupPolicy::Basic => {
                    waiting.iter().for_each(|uid| {
                        self.bind(uid);
                    });
                    continue;
                }
            };
            // It ignores ended pods.
            let bound = self.pods.values().filter(|pod| {
                let spec = pod.spec.as_ref().unwrap();
                let named = spec
                    .scheduling_group
                    .as_ref()
                    .and_then(|group| group.pod_group_name.as_ref());
                let is_terminal = Pod::of(pod).unwrap().is_terminal();
                named == Some(&name) && spec.node_name.is_some() && !is_terminal
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

    pub(super) fn kubelets(&mut self) {
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
}

pub(super) fn label<'a>(pod: &'a K8sPod, key: &str) -> &'a str {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(key))
        .map_or("", String::as_str)
}

/// UIDs of Jobs are unique within their JobSet only.
fn controller_uid(jobset: &str, job: &Job) -> String {
    format!("{jobset}.{}", job.metadata.uid.as_deref().unwrap())
}
