//! Decisions about a RayJob: each state, each transition, and complaints of KubeRay's users, by the
//! number of the issue.

mod attempts;
mod crashes;
mod deadlines;
mod gone;
mod last_words;
mod refused;
mod shown;
mod status_annotation;
mod submission;

use jiff::SignedDuration;
use lockstep_api::annotations::RESTART_REQUEST;
use lockstep_api::ray::{
    RayClusterState, RayJob, RayJobDeploymentStatus as Phase, RayJobStatus, conditions, keys,
};

use super::*;
use crate::jobset::pod::PodSummary;
use crate::jobset::upstream_agent::AgentPod;
use crate::ray::job::{
    FINALIZER, JobPlan, ObservedJob, Ray, RayInfo, Recalled, head_failures, plan, question, recall, refused,
};

/// A RayJob `ns/rj` on the cluster of the other tests. `spec` is merged into its spec.
pub(super) fn rayjob(spec: Value) -> RayJob {
    let cluster = serde_json::to_value(cluster(json!({})).spec).unwrap();
    let mut manifest = json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "rj", "namespace": "ns", "uid": "uid-rj", "generation": 1},
        "spec": {"entrypoint": "python main.py", "rayClusterSpec": cluster},
    });
    merge(&mut manifest["spec"], spec);
    serde_json::from_value(manifest).unwrap()
}

/// A RayJob, the objects that it has created, and Ray.
struct Stage {
    job: RayJob,
    cluster: Option<RayCluster>,
    jobset: Option<JobSet>,
    submitter: Option<Job>,
    has_left_pods: bool,
    head_failures: i32,
    ray: Ray,
    seconds: i64,
    kuberay: bool,
    watched_since: i64,
    /// The definition of RayJobs is KubeRay's.
    is_kuberays: bool,
    /// The ids of all jobs that were submitted, or given to a submitter.
    submitted: Vec<String>,
    stopped: Vec<String>,
    /// The names of all clusters that were created.
    clusters: Vec<String>,
    restarts: Vec<String>,
}

impl Stage {
    fn new(spec: Value) -> Self {
        Self {
            job: rayjob(spec),
            cluster: None,
            jobset: None,
            submitter: None,
            has_left_pods: false,
            head_failures: 0,
            ray: Ray::Unasked,
            seconds: 0,
            kuberay: false,
            watched_since: 0,
            is_kuberays: false,
            submitted: Vec::new(),
            stopped: Vec::new(),
            clusters: Vec::new(),
            restarts: Vec::new(),
        }
    }

    fn plan(&self) -> JobPlan {
        plan(&self.observed())
    }

    fn observed(&self) -> ObservedJob {
        let Recalled {
            job,
            is_behind,
            is_whole,
        } = recall(&Arc::new(self.job.clone()));
        ObservedJob {
            ray: question(&job).map_or(Ray::Unasked, |_| self.ray.clone()),
            job,
            is_behind,
            is_whole,
            cluster: self.cluster.clone().map(Arc::new),
            jobset: self.jobset.clone().map(Arc::new),
            submitter: self.submitter.clone().map(Arc::new),
            has_left_pods: self.has_left_pods,
            head_failures: self.head_failures,
            kuberay: self.kuberay,
            watched_since: at(self.watched_since),
            now: at(self.seconds),
        }
    }

    /// Decides once, and executes the plan.
    fn step(&mut self) -> JobPlan {
        let plan = self.plan();
        self.act(plan.clone());
        plan
    }

    fn act(&mut self, plan: JobPlan) {
        if plan.add_finalizer {
            self.job.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
            return;
        }
        self.stopped.extend(plan.stop);
        if plan.delete_submitter.is_some() {
            self.submitter = None;
        }
        if plan.delete_cluster.is_some() {
            (self.cluster, self.jobset, self.ray) = (None, None, Ray::Unreachable);
            self.head_failures = 0;
        }
        if let Some(mut cluster) = plan.create_cluster {
            cluster.metadata.uid = Some("uid-rc".to_owned());
            self.clusters.push(cluster.name().to_owned());
            let mut jobset = compile(&cluster);
            jobset.metadata.uid = Some("uid-js".to_owned());
            self.jobset = Some(jobset);
            self.cluster = Some(*cluster);
        }
        if let Some((_, word)) = plan.restart {
            let annotations = &mut self.jobset.as_mut().unwrap().metadata.annotations;
            annotations
                .get_or_insert_default()
                .insert(RESTART_REQUEST.to_owned(), word.clone());
            self.restarts.push(word);
        }
        if let Some(body) = plan.submit {
            self.submitted
                .push(body["submission_id"].as_str().unwrap().to_owned());
        }
        if let Some(mut submitter) = plan.create_submitter {
            assert!(self.submitter.is_none(), "two submitters");
            submitter.metadata.uid = Some("uid-submitter".to_owned());
            self.submitted
                .push(submitter.metadata.annotations.as_ref().unwrap()["lockstep.dev/ray-job-id"].clone());
            self.submitter = Some(*submitter);
        }
        if let Some(status) = plan.status_annotation {
            let annotations = self.job.metadata.annotations.get_or_insert_default();
            annotations.insert(keys::JOB_STATUS.to_owned(), status);
        }
        if plan.forget {
            assert!(plan.status.is_none(), "two writes of one version");
            let annotations = self.job.metadata.annotations.as_mut().unwrap();
            assert!(annotations.remove(keys::JOB_STATUS).is_some());
        }
        if let Some(status) = plan.status {
            self.job.status = Some(match self.is_kuberays {
                true => status_annotation::pruned(&status),
                false => *status,
            });
        }
        if plan.remove_finalizer {
            self.job.metadata.finalizers = None;
        }
    }

    /// Steps until nothing changes.
    fn settle(&mut self) -> &mut Self {
        until_rest(20, || {
            let plan = self.step();
            let still = JobPlan {
                requeue_after: plan.requeue_after,
                deadline: plan.deadline,
                stop: plan.stop.clone(),
                notice: plan.notice.clone(),
                ..JobPlan::default()
            };
            plan == still
        });
        self
    }

    fn wait(&mut self, seconds: i64) -> &mut Self {
        self.seconds += seconds;
        self.settle()
    }

    fn head_is_ready(&mut self) -> &mut Self {
        let status = self.cluster.as_mut().unwrap().status.get_or_insert_default();
        status.conditions = serde_json::from_value(json!([{
            "type": conditions::HEAD_POD_READY, "status": "True", "reason": "x", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]))
        .unwrap();
        self
    }

    /// Sets Ray to this session, which does not know the job.
    fn session(&mut self, session: &str) -> &mut Self {
        self.ray = Ray::Reached {
            session: session.to_owned(),
            job: None,
        };
        self.settle()
    }

    /// Makes Ray report this of the job.
    fn says(&mut self, status: &str) -> &mut Self {
        let Ray::Reached { job, .. } = &mut self.ray else {
            panic!("out of reach");
        };
        *job = Some(RayInfo {
            status: status.to_owned(),
            message: format!("it is {status}"),
            ..RayInfo::default()
        });
        self.settle()
    }

    /// Brings the head up with Ray in this session, and submits the job.
    fn submits(&mut self, session: &str) -> &mut Self {
        self.settle().head_is_ready().settle().session(session);
        assert_eq!(self.phase(), Phase::Running);
        self
    }

    /// The same, and makes Ray run the job.
    fn runs(&mut self, session: &str) -> &mut Self {
        self.submits(session).says("RUNNING")
    }

    fn submitter_ends(&mut self, type_: &str, reason: &str) -> &mut Self {
        let status = self.submitter.as_mut().unwrap().status.get_or_insert_default();
        status.conditions =
            serde_json::from_value(json!([{"type": type_, "status": "True", "reason": reason}])).unwrap();
        self.settle()
    }

    fn status(&self) -> &RayJobStatus {
        self.job.status.as_ref().unwrap()
    }

    fn phase(&self) -> Phase {
        self.status().job_deployment_status.clone().unwrap()
    }
}

/// A job with a ready head and a submitter.
fn submitted(spec: Value) -> Stage {
    let mut stage = Stage::new(spec);
    stage.submits("s0");
    stage
}

/// A job that Ray runs.
fn running(spec: Value) -> Stage {
    let mut stage = Stage::new(spec);
    stage.runs("s0");
    stage
}

#[test]
fn a_job_that_succeeds() {
    let mut stage = running(json!({}));
    assert_eq!(stage.status().job_status, "RUNNING");
    assert!(
        stage.status().dashboard_url.ends_with("-head-svc.ns.svc:8265"),
        "{}",
        stage.status().dashboard_url
    );
    stage.says("SUCCEEDED").submitter_ends("Complete", "");
    assert_eq!(
        (stage.phase(), stage.status().succeeded, stage.status().failed),
        (Phase::Complete, 1, 0)
    );
    assert!(stage.status().end_time.is_some() && stage.submitter.is_some() && stage.cluster.is_some());
    assert_eq!(stage.submitted.len(), 1);
}

#[test]
fn a_job_that_its_user_stops_is_over() {
    let mut stage = running(json!({"backoffLimit": 3}));
    stage.says("STOPPED");
    assert_eq!((stage.phase(), stage.status().succeeded), (Phase::Complete, 0));
}

#[test]
fn a_job_that_fails_without_retries() {
    let mut stage = running(json!({}));
    stage.says("FAILED");
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "AppFailed")
    );
    assert_eq!(
        (stage.status().message.as_str(), stage.status().failed),
        ("it is FAILED", 1)
    );
}

#[test]
fn the_cluster_goes_in_its_time_and_the_submitter_stays() {
    let mut stage = running(json!({"shutdownAfterJobFinishes": true, "ttlSecondsAfterFinished": 10}));
    stage.says("SUCCEEDED").submitter_ends("Complete", "");
    assert_eq!(stage.plan().requeue_after, Some(SignedDuration::from_secs(10)));
    stage.wait(9);
    assert!(stage.cluster.is_some());
    stage.wait(1);
    assert!(stage.cluster.is_none() && stage.submitter.is_some());
    assert_eq!(stage.phase(), Phase::Complete);
}

#[test]
fn a_suspension_deletes_everything_and_a_resumption_starts_over() {
    let mut stage = running(json!({"shutdownAfterJobFinishes": true, "backoffLimit": 1}));
    stage.job.spec.suspend = Some(true);
    stage.step();
    assert_eq!(stage.phase(), Phase::Suspending);
    stage.settle();
    assert_eq!(stage.phase(), Phase::Suspended);
    assert!(stage.cluster.is_none() && stage.submitter.is_none() && stage.status().job_id.is_empty());
    stage.job.spec.suspend = Some(false);
    stage.runs("s1").says("SUCCEEDED");
    assert_eq!((stage.phase(), stage.status().num_retries), (Phase::Complete, 0));
}

#[test]
fn a_job_that_is_suspended_when_it_has_ended_has_ended() {
    let mut stage = running(json!({"shutdownAfterJobFinishes": true, "backoffLimit": 1}));
    stage.job.spec.suspend = Some(true);
    stage.says("SUCCEEDED");
    assert_eq!((stage.phase(), stage.status().succeeded), (Phase::Complete, 1));
    // There is also something to suspend while the next attempt is prepared.
    let mut stage = running(json!({"shutdownAfterJobFinishes": true, "backoffLimit": 1}));
    stage.job.spec.suspend = Some(true);
    stage.says("FAILED");
    assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Suspended, 1));
    assert!(stage.cluster.is_none() && stage.submitter.is_none());
}

#[test]
fn a_job_that_starts_suspended_makes_nothing() {
    let mut stage = Stage::new(json!({"suspend": true, "shutdownAfterJobFinishes": true}));
    stage.settle();
    assert_eq!((stage.phase(), stage.clusters.len()), (Phase::Suspended, 0));
}

#[test]
fn deletion_stops_the_job_first_and_does_not_wait_for_ever() {
    let mut stage = running(json!({}));
    stage.job.metadata.deletion_timestamp = Some(Time(at(0)));
    assert_eq!(stage.step().stop.as_deref(), Some(stage.status().job_id.as_str()));
    assert!(stage.job.metadata.finalizers.is_some());
    stage.seconds = 30;
    stage.step();
    assert!(stage.job.metadata.finalizers.is_none());
    let mut stage = running(json!({}));
    stage.job.metadata.deletion_timestamp = Some(Time(at(0)));
    stage.says("STOPPED");
    assert!(stage.job.metadata.finalizers.is_none());
}
