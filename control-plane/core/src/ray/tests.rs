mod compiled;
mod contradictions;
mod crons;
mod decided;
mod gangs;
mod jobs;
mod limits;
mod schedules;
mod shown;
mod warned;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::{Container, Pod, PodTemplateSpec, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::ray::{HeadInfo, RayCluster};
use lockstep_api::{JobSet, labels};
use serde_json::{Value, json};

use super::cluster::{ClusterPlan, ObservedCluster, plan};
use super::jobset::compile;
use crate::common::testing::at;

/// A pod template of one container.
fn template() -> Value {
    json!({"spec": {"containers": [{
        "name": "ray",
        "image": "rayproject/ray:2.46.0",
        "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "1"}},
    }]}})
}

/// A cluster `ns/rc` with a head and one group `small` of two workers. `spec` is merged into its
/// spec.
fn cluster(spec: Value) -> RayCluster {
    let mut manifest = json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "rc", "namespace": "ns", "uid": "uid-rc", "generation": 1},
        "spec": {
            "headGroupSpec": {"rayStartParams": {}, "template": template()},
            "workerGroupSpecs": [{
                "groupName": "small", "replicas": 2, "minReplicas": 1, "maxReplicas": 5,
                "rayStartParams": {}, "template": template(),
            }],
        },
    });
    merge(&mut manifest["spec"], spec);
    serde_json::from_value(manifest).unwrap()
}

/// RFC 7396.
fn merge(target: &mut Value, patch: Value) {
    match patch {
        Value::Object(patch) if target.is_object() => {
            for (key, value) in patch {
                merge(&mut target[key.as_str()], value);
            }
        }
        patch => *target = patch,
    }
}

/// Takes steps until one returns that nothing has changed.
fn until_rest(steps: usize, mut step: impl FnMut() -> bool) {
    assert!((0..steps).any(|_| step()), "it never comes to rest");
}

/// A cluster and its surroundings.
struct World {
    cluster: RayCluster,
    jobset: Option<JobSet>,
    /// A Service with the name of the head's, if it is not the one of the JobSet.
    service: Option<Service>,
    ready: [i32; 2],
    head_pod: Option<Pod>,
    /// When its Jobs began to create pods, if they have none.
    without_pods: Option<i64>,
    /// The pods that each of its Jobs has, and the number that it wants.
    pods: Option<(i32, i32)>,
    /// True if its Jobs are being deleted.
    jobs_go: bool,
    kuberay: bool,
    /// The API server's refusal to create the JobSet, if any.
    refused: Option<String>,
    seconds: i64,
}

impl World {
    fn new(cluster: RayCluster) -> Self {
        Self {
            cluster,
            jobset: None,
            service: None,
            ready: [0, 0],
            head_pod: None,
            without_pods: None,
            pods: None,
            jobs_go: false,
            kuberay: false,
            refused: None,
            seconds: 0,
        }
    }

    fn now(&self) -> Timestamp {
        at(self.seconds)
    }

    fn plan(&self) -> ClusterPlan {
        plan(&ObservedCluster {
            cluster: Arc::new(self.cluster.clone()),
            jobset: self.jobset.clone().map(Arc::new),
            jobs: self.jobs(),
            service: self.service.clone().map(Arc::new).or_else(|| {
                let jobset = self.jobset.as_ref();
                jobset.map(|_| Arc::new(super::service::head(&self.cluster)))
            }),
            head: self.head(),
            head_pod: self.head_pod.clone().map(Box::new),
            kuberay: self.kuberay,
            refused: self.refused.clone(),
            now: self.now(),
        })
    }

    fn head(&self) -> HeadInfo {
        let Some(pod) = &self.head_pod else {
            return HeadInfo::default();
        };
        HeadInfo {
            pod_name: pod.metadata.name.clone().unwrap_or_default(),
            pod_ip: "10.0.0.1".to_owned(),
            ..HeadInfo::default()
        }
    }

    /// The Jobs of head and workers, with this many ready pods.
    fn jobs(&self) -> Vec<Arc<Job>> {
        let Some(jobset) = &self.jobset else {
            return Vec::new();
        };
        let owner = json!([{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": jobset.name(), "uid": jobset.uid_str(), "controller": true}]);
        let jobs = ["head", "small"].into_iter().zip(self.ready);
        jobs.map(|(name, ready)| {
            let mut job = Job::default();
            job.metadata.labels = Some([(labels::REPLICATED_JOB_NAME.to_owned(), name.to_owned())].into());
            job.metadata.owner_references = serde_json::from_value(owner.clone()).unwrap();
            job.metadata.deletion_timestamp = self.jobs_go.then(|| Time(at(0)));
            job.spec = self.pods.map(|(_, wanted)| JobSpec {
                parallelism: Some(wanted),
                ..JobSpec::default()
            });
            job.status = Some(JobStatus {
                ready: Some(ready),
                start_time: self.without_pods.map(|since| Time(at(since))),
                active: self.pods.map(|(active, _)| active),
                ..JobStatus::default()
            });
            Arc::new(job)
        })
        .collect()
    }

    /// Executes a plan.
    fn act(&mut self, plan: ClusterPlan) {
        if let Some(mut jobset) = plan.create_jobset {
            jobset.metadata.uid = Some("uid-js".to_owned());
            self.jobset = Some(*jobset);
        }
        if let Some(jobset) = plan.update_jobset {
            self.jobset = Some(*jobset);
        }
        if plan.delete_service.is_some() {
            self.service = None;
        }
        if plan.delete_jobset.is_some() {
            self.jobset = None;
            self.ready = [0, 0];
        }
        if let Some(status) = plan.status {
            self.cluster.status = Some(*status);
        }
        self.seconds += 1;
    }

    /// Steps until nothing is left to do.
    fn settle(&mut self) {
        for _ in 0..10 {
            let plan = self.plan();
            let still = ClusterPlan {
                requeue_after: plan.requeue_after,
                ..ClusterPlan::default()
            };
            if plan == still {
                return;
            }
            self.act(plan);
        }
        panic!("it never comes to rest: {:?}", self.plan());
    }

    fn state(&self) -> &str {
        let status = self.cluster.status.as_ref().unwrap();
        status.state.as_ref().map_or("", |state| state.as_str())
    }

    fn is_true(&self, condition: &str) -> bool {
        self.cluster.status.as_ref().unwrap().is_true(condition)
    }
}

/// The pod template of a replicatedJob.
fn pod_template(jobset: &JobSet, name: &str) -> PodTemplateSpec {
    let job = jobset.replicated_job(name).unwrap();
    job.template.spec.as_ref().unwrap().template.clone()
}

/// The Ray container of a replicatedJob.
fn ray_container(jobset: &JobSet, name: &str) -> Container {
    pod_template(jobset, name).spec.unwrap().containers.remove(0)
}

/// The shell's command line of the Ray container of a replicatedJob.
fn command(jobset: &JobSet, name: &str) -> String {
    ray_container(jobset, name).args.unwrap().join(" ")
}
