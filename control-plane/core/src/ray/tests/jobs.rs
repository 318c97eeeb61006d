//! What is done about a RayJob: each state, each transition, and what KubeRay's users complained of, by the number of the issue.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::annotations::RESTART_REQUEST;
use lockstep_api::ray::{RayClusterState, RayJob, RayJobDeploymentStatus as Phase, RayJobStatus, conditions};

use super::*;
use crate::ray::job::{FINALIZER, JobPlan, ObservedJob, Ray, RayInfo, plan, question};

/// A RayJob `ns/rj` on the cluster of the other tests, changed by a merge of its spec.
fn rayjob(spec: Value) -> RayJob {
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

/// A RayJob, what it has made, and Ray.
struct Stage {
    job: RayJob,
    cluster: Option<RayCluster>,
    jobset: Option<JobSet>,
    submitter: Option<Job>,
    ray: Ray,
    seconds: i64,
    kuberay: bool,
    /// Ids of all jobs that were submitted, or given to a submitter.
    submitted: Vec<String>,
    stopped: Vec<String>,
    /// Names of all clusters that were made.
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
            ray: Ray::Unasked,
            seconds: 0,
            kuberay: false,
            submitted: Vec::new(),
            stopped: Vec::new(),
            clusters: Vec::new(),
            restarts: Vec::new(),
        }
    }

    fn plan(&self) -> JobPlan {
        plan(&ObservedJob {
            job: Arc::new(self.job.clone()),
            cluster: self.cluster.clone().map(Arc::new),
            jobset: self.jobset.clone().map(Arc::new),
            submitter: self.submitter.clone().map(Arc::new),
            ray: question(&self.job).map_or(Ray::Unasked, |_| self.ray.clone()),
            kuberay: self.kuberay,
            now: at(self.seconds),
        })
    }

    /// Decides once, and carries it out.
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
        if let Some(status) = plan.status {
            self.job.status = Some(*status);
        }
        if plan.remove_finalizer {
            self.job.metadata.finalizers = None;
        }
    }

    /// Until nothing changes any more.
    fn settle(&mut self) -> &mut Self {
        for _ in 0..20 {
            let plan = self.step();
            let still = JobPlan {
                requeue_after: plan.requeue_after,
                stop: plan.stop.clone(),
                notice: plan.notice.clone(),
                ..JobPlan::default()
            };
            if plan == still {
                return self;
            }
        }
        panic!("it never comes to rest: {:?}", self.plan());
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

    /// Ray in this session, which does not know the job.
    fn session(&mut self, session: &str) -> &mut Self {
        self.ray = Ray::Reached {
            session: session.to_owned(),
            job: None,
        };
        self.settle()
    }

    /// Ray says this of the job.
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

/// One whose head is ready, and whose submitter was made.
fn submitted(spec: Value) -> Stage {
    let mut stage = Stage::new(spec);
    stage.settle().head_is_ready().settle().session("s0");
    assert_eq!(stage.phase(), Phase::Running);
    stage
}

/// One that Ray runs.
fn running(spec: Value) -> Stage {
    let mut stage = submitted(spec);
    stage.says("RUNNING");
    stage
}

#[test]
fn kuberay_756_ids_are_written_down_before_anything_is_made() {
    let mut stage = Stage::new(json!({}));
    assert!(stage.step().add_finalizer);
    let plan = stage.step();
    assert!(plan.create_cluster.is_none() && plan.create_submitter.is_none());
    let (id, cluster) = (
        stage.status().job_id.clone(),
        stage.status().ray_cluster_name.clone(),
    );
    assert!(
        id.starts_with("rj-") && cluster.starts_with("rj-") && id.len() == 8,
        "{id} {cluster}"
    );
    assert_eq!(stage.phase(), Phase::Initializing);
    // A status that was lost leads to the same ids.
    stage.job.status = None;
    stage.step();
    assert_eq!(
        (&stage.status().job_id, &stage.status().ray_cluster_name),
        (&id, &cluster)
    );
}

#[test]
fn kuberay_756_a_write_that_conflicts_makes_no_second_job() {
    let mut stage = Stage::new(json!({}));
    stage.settle().head_is_ready().settle();
    stage.ray = Ray::Reached {
        session: "s0".to_owned(),
        job: None,
    };
    stage.step();
    let before = stage.job.status.clone();
    assert!(stage.step().create_submitter.is_some());
    // The status was not written: the submitter is there, and is taken for what it is.
    stage.job.status = before;
    stage.settle();
    assert_eq!(
        (stage.submitted.len(), stage.clusters.len(), stage.phase()),
        (1, 1, Phase::Running)
    );
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
fn kuberay_4668_4971_a_retry_keeps_the_cluster() {
    let mut stage = running(json!({"maxRetries": 1}));
    stage.says("FAILED");
    assert_eq!((stage.phase(), stage.status().num_retries), (Phase::Retrying, 1));
    let id = stage.status().job_id.clone();
    assert_eq!(stage.restarts, std::slice::from_ref(&id));
    stage.session("s1");
    assert_eq!(
        (stage.phase(), stage.status().session.as_str()),
        (Phase::Running, "s1")
    );
    assert_eq!(stage.clusters.len(), 1);
    assert_eq!(stage.submitted.last(), Some(&id));
    stage.says("RUNNING").says("SUCCEEDED");
    assert_eq!(
        (stage.phase(), stage.status().succeeded, stage.status().failed),
        (Phase::Complete, 1, 1)
    );
}

#[test]
fn kuberay_5211_attempts_never_overlap() {
    let mut stage = running(json!({"backoffLimit": 1}));
    stage.says("FAILED");
    assert!(stage.submitter.is_none());
    // The same Ray as before, however ready: nothing is submitted to it.
    stage.session("s0").wait(60);
    assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Retrying, 1));
    stage.session("s1");
    assert_eq!(stage.submitted.len(), 2);
    assert_ne!(stage.submitted[0], stage.submitted[1]);
}

#[test]
fn a_retry_on_a_new_cluster_waits_for_the_old_one_to_be_gone() {
    let mut stage = running(json!({"backoffLimit": 1, "retryPolicy": "NewCluster"}));
    stage.ray = Ray::Reached {
        session: "s0".to_owned(),
        job: Some(RayInfo {
            status: "FAILED".to_owned(),
            ..RayInfo::default()
        }),
    };
    stage.step();
    stage.step();
    let plan = stage.step();
    assert!(plan.delete_cluster.is_some() && plan.create_cluster.is_none());
    stage.settle();
    assert_eq!((stage.clusters.len(), stage.phase()), (2, Phase::Initializing));
    assert_ne!(stage.clusters[0], stage.clusters[1]);
    stage.head_is_ready().settle().session("s0").says("RUNNING");
    assert_eq!(stage.submitted.len(), 2);
}

#[test]
fn a_start_in_place_that_never_comes_becomes_a_new_cluster() {
    let mut stage = running(json!({"backoffLimit": 1}));
    stage.says("FAILED").wait(179);
    assert_eq!(stage.clusters.len(), 1);
    stage.wait(2);
    assert_eq!((stage.clusters.len(), stage.phase()), (2, Phase::Initializing));
}

#[test]
fn kuberay_2314_2317_the_death_of_a_submitter_does_not_touch_the_job() {
    for (type_, reason) in [
        ("Failed", "BackoffLimitExceeded"),
        ("Failed", "DeadlineExceeded"),
        ("Complete", ""),
    ] {
        let mut stage = running(json!({}));
        stage.submitter_ends(type_, reason);
        assert_eq!(
            (stage.phase(), stage.status().failed),
            (Phase::Running, 0),
            "{reason}"
        );
        // Another one, for the same job, to which it attaches.
        assert_eq!(stage.submitted, vec![stage.status().job_id.clone(); 2]);
        assert!(stage.stopped.is_empty());
        stage.submitter = None;
        stage.settle();
        assert!(stage.submitter.is_some());
        stage.says("SUCCEEDED");
        assert_eq!(stage.phase(), Phase::Complete);
    }
}

#[test]
fn kuberay_3211_a_submitter_that_ends_well_does_not_make_a_failed_job_good() {
    let mut stage = running(json!({}));
    stage.submitter_ends("Complete", "");
    stage.says("FAILED");
    assert_eq!((stage.phase(), stage.status().succeeded), (Phase::Failed, 0));
}

#[test]
fn what_the_submitter_saw_counts_where_ray_is_gone() {
    for (type_, reason, phase) in [
        ("Complete", "", Phase::Complete),
        ("Failed", "PodFailurePolicy", Phase::Failed),
    ] {
        let mut stage = running(json!({}));
        stage.ray = Ray::Unreachable;
        stage.submitter_ends(type_, reason);
        assert_eq!(stage.phase(), phase);
    }
}

#[test]
fn kuberay_1489_3903_a_head_that_was_started_anew_is_a_failed_attempt() {
    let mut stage = running(json!({"backoffLimit": 1}));
    stage.ray = Ray::Unreachable;
    stage.settle();
    assert_eq!(stage.phase(), Phase::Running);
    stage.session("s1");
    // It is another Ray already, and needs no restart.
    assert_eq!((stage.phase(), stage.status().num_retries), (Phase::Running, 1));
    assert!(stage.restarts.is_empty() && stage.submitted.len() == 2);
    stage.session("s2");
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "HeadRestarted")
    );
}

#[test]
fn kuberay_1489_ray_that_stays_out_of_reach_is_not_waited_for_for_ever() {
    let mut stage = running(json!({}));
    stage.ray = Ray::Unreachable;
    stage.settle().wait(299);
    assert_eq!(stage.phase(), Phase::Running);
    stage.wait(2);
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "JobStatusCheckTimeoutExceeded")
    );
}

#[test]
fn a_moment_out_of_reach_is_forgotten() {
    let mut stage = running(json!({}));
    for _ in 0..3 {
        stage.ray = Ray::Unreachable;
        stage.settle().wait(200);
        stage.ray = Ray::Reached {
            session: "s0".to_owned(),
            job: None,
        };
        stage.says("RUNNING");
    }
    assert_eq!(stage.phase(), Phase::Running);
}

#[test]
fn kuberay_4637_a_head_that_never_starts_fails_the_job() {
    let mut stage = Stage::new(json!({"backoffLimit": 1}));
    stage.settle();
    let restarted = |stage: &mut Stage, times: i32| {
        let status = stage.jobset.as_mut().unwrap().status.get_or_insert_default();
        status.in_place_restart.get_or_insert_default().restarts = times;
        stage.settle();
    };
    restarted(&mut stage, 4);
    assert_eq!(stage.phase(), Phase::Initializing);
    restarted(&mut stage, 5);
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "SubmissionFailed")
    );
    assert!(
        stage.status().message.contains("5 times"),
        "{}",
        stage.status().message
    );
}

#[test]
fn kuberay_4637_a_cluster_that_fails_uses_up_the_retries() {
    let mut stage = Stage::new(json!({"backoffLimit": 2}));
    stage.settle();
    for _ in 0..3 {
        let status = stage.cluster.as_mut().unwrap().status.get_or_insert_default();
        status.state = Some(RayClusterState::failed);
        stage.settle();
    }
    assert_eq!(
        (stage.phase(), stage.clusters.len(), stage.status().failed),
        (Phase::Failed, 3, 3)
    );
}

#[test]
fn kuberay_4199_the_head_is_enough_unless_all_pods_are_asked_for() {
    let mut stage = Stage::new(json!({"waitForAllPodsHealthy": true}));
    stage.settle().head_is_ready().settle();
    assert_eq!((stage.phase(), question(&stage.job)), (Phase::Initializing, None));
    let status = stage.cluster.as_mut().unwrap().status.as_mut().unwrap();
    let mut provisioned = status.conditions[0].clone();
    provisioned.type_ = conditions::PROVISIONED.to_owned();
    status.conditions.push(provisioned);
    status.desired_worker_replicas = 2;
    status.ready_worker_replicas = 1;
    stage.settle().session("s0");
    assert_eq!(stage.phase(), Phase::Initializing);
    stage
        .cluster
        .as_mut()
        .unwrap()
        .status
        .as_mut()
        .unwrap()
        .ready_worker_replicas = 2;
    stage.settle();
    assert_eq!(stage.phase(), Phase::Running);
}

#[test]
fn the_deadline_beats_the_retries_and_stops_the_job() {
    let mut stage = running(json!({"backoffLimit": 5, "activeDeadlineSeconds": 100}));
    stage.wait(99);
    assert_eq!(stage.phase(), Phase::Running);
    stage.wait(1);
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "DeadlineExceeded")
    );
    assert!(stage.status().deadline_exceeded && stage.status().num_retries == 0);
    assert!(!stage.stopped.is_empty() && stage.restarts.is_empty());
    // It is told again until it has heard.
    let told = stage.stopped.len();
    stage.wait(2);
    assert!(stage.stopped.len() > told);
    stage.says("STOPPED");
    let told = stage.stopped.len();
    assert_eq!(
        (stage.wait(60).stopped.len(), stage.status().job_status.as_str()),
        (told, "STOPPED")
    );
}

#[test]
fn the_deadline_holds_while_a_retry_is_prepared() {
    let mut stage = running(json!({"backoffLimit": 5, "activeDeadlineSeconds": 100}));
    stage.says("FAILED").wait(100);
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "DeadlineExceeded")
    );
}

#[test]
fn the_pre_running_deadline_is_over_once_the_job_runs() {
    let limit = json!({"preRunningDeadlineSeconds": 30, "backoffLimit": 2});
    let mut stage = Stage::new(limit.clone());
    stage.settle().wait(30);
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "PreRunningDeadlineExceeded")
    );
    let mut stage = running(limit);
    stage.wait(60);
    assert_eq!(stage.phase(), Phase::Running);
}

#[test]
fn the_cluster_goes_in_its_time_and_the_submitter_stays() {
    let mut stage = running(json!({"shutdownAfterJobFinishes": true, "ttlSecondsAfterFinished": 10}));
    stage.says("SUCCEEDED");
    assert_eq!(stage.plan().requeue_after, Some(SignedDuration::from_secs(10)));
    stage.wait(9);
    assert!(stage.cluster.is_some());
    stage.wait(1);
    assert!(stage.cluster.is_none() && stage.submitter.is_some());
    assert_eq!(stage.phase(), Phase::Complete);
}

#[test]
fn a_suspension_deletes_all_and_a_resumption_begins_anew() {
    let mut stage = running(json!({"shutdownAfterJobFinishes": true, "backoffLimit": 1}));
    stage.job.spec.suspend = Some(true);
    stage.step();
    assert_eq!(stage.phase(), Phase::Suspending);
    stage.settle();
    assert_eq!(stage.phase(), Phase::Suspended);
    assert!(stage.cluster.is_none() && stage.submitter.is_none() && stage.status().job_id.is_empty());
    stage.job.spec.suspend = Some(false);
    stage
        .settle()
        .head_is_ready()
        .settle()
        .session("s1")
        .says("RUNNING")
        .says("SUCCEEDED");
    assert_eq!((stage.phase(), stage.status().num_retries), (Phase::Complete, 0));
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

#[test]
fn http_mode_submits_once_for_each_attempt() {
    let mut stage = Stage::new(json!({"submissionMode": "HTTPMode", "entrypointNumCpus": 0.5}));
    stage.settle().head_is_ready().settle();
    stage.ray = Ray::Reached {
        session: "s0".to_owned(),
        job: None,
    };
    stage.step();
    let plan = stage.step();
    let body = plan.submit.unwrap();
    assert_eq!(
        (&body["entrypoint"], &body["entrypoint_num_cpus"]),
        (&json!("python main.py"), &json!(0.5))
    );
    assert_eq!(body["runtime_env"]["env_vars"]["RAYJOB_ATTEMPT"], "0");
    assert_eq!(stage.submitted.len(), 1);
    stage.says("RUNNING").wait(60);
    assert_eq!((stage.submitted.len(), stage.phase()), (1, Phase::Running));
    assert!(stage.submitter.is_none());
}

#[test]
fn the_submitter_has_what_the_job_asks_for() {
    let stage = running(json!({
        "runtimeEnvYAML": "env_vars:\n  A: \"1\"\npip: [x]\n",
        "metadata": {"k": "v"},
        "entrypointResources": "{\"slots\": 1}",
        "activeDeadlineSeconds": 100,
    }));
    let job = stage.submitter.as_ref().unwrap().spec.as_ref().unwrap();
    assert_eq!(
        (job.backoff_limit, job.active_deadline_seconds),
        (Some(2), Some(160))
    );
    let pod = job.template.spec.as_ref().unwrap();
    assert_eq!(pod.restart_policy.as_deref(), Some("Never"));
    let container = &pod.containers[0];
    assert_eq!(
        (container.name.as_str(), container.image.as_deref()),
        ("ray-job-submitter", Some("rayproject/ray:2.46.0"))
    );
    assert!(container.lifecycle.is_none());
    let env = |name: &str| {
        let mut env = container.env.iter().flatten();
        env.find(|variable| variable.name == name)
            .and_then(|variable| variable.value.clone())
            .unwrap()
    };
    assert_eq!(
        (env("RAY_JOB_SUBMISSION_ID"), env("RAYJOB_SESSION")),
        (stage.status().job_id.clone(), "s0".to_owned())
    );
    let words: Vec<String> = serde_json::from_str(&env("RAYJOB_SUBMIT")).unwrap();
    let environment: Value = serde_json::from_str(&words[1]).unwrap();
    assert_eq!(
        environment,
        json!({"env_vars": {"A": "1", "RAYJOB_ATTEMPT": "0"}, "pip": ["x"]})
    );
    assert_eq!(words[2..4], ["--metadata-json", "{\"k\":\"v\"}"]);
    assert_eq!(
        words[4..],
        ["--entrypoint-resources", "{\"slots\": 1}", "--", "python main.py"]
    );
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let cases = [
        (
            json!({"submissionMode": "SidecarMode"}),
            "spec.submissionMode: SidecarMode is not supported",
        ),
        (
            json!({"submissionMode": "InteractiveMode"}),
            "spec.submissionMode: InteractiveMode is not supported",
        ),
        (
            json!({"clusterSelector": {"ray.io/cluster": "c"}}),
            "spec.clusterSelector: is not supported",
        ),
        (
            json!({"rayClusterSpec": null}),
            "spec.rayClusterSpec: one of RayClusterSpec or ClusterSelector must be set",
        ),
        (
            json!({"rayClusterSpec": {"enableInTreeAutoscaling": true}}),
            "spec.rayClusterSpec.enableInTreeAutoscaling: is not supported",
        ),
        (
            json!({"suspend": true}),
            "spec.suspend: a RayJob with shutdownAfterJobFinishes set to false",
        ),
        (
            json!({"ttlSecondsAfterFinished": 5}),
            "spec.ttlSecondsAfterFinished: a RayJob with",
        ),
        (
            json!({"activeDeadlineSeconds": 0}),
            "spec.activeDeadlineSeconds: activeDeadlineSeconds must be a positive",
        ),
        (
            json!({"backoffLimit": -1}),
            "spec.backoffLimit: backoffLimit must not be negative",
        ),
        (
            json!({"runtimeEnvYAML": "a: [b"}),
            "spec.runtimeEnvYAML: is no YAML",
        ),
        (
            json!({"runtimeEnvYAML": "just words"}),
            "spec.runtimeEnvYAML: is no YAML",
        ),
        (
            json!({"entrypointResources": "{"}),
            "spec.entrypointResources: must be JSON",
        ),
    ];
    for (spec, expected) in cases {
        let mut stage = Stage::new(spec.clone());
        stage.settle();
        assert_eq!(stage.phase(), Phase::ValidationFailed, "{spec}");
        assert!(
            stage.status().message.contains(expected),
            "{spec}: {}",
            stage.status().message
        );
        assert!(stage.clusters.is_empty());
    }
    let mut long = Stage::new(json!({}));
    long.job.metadata.name = Some("j".repeat(48));
    long.settle();
    assert!(
        long.status()
            .message
            .contains("RayJob name should be no more than 47 characters")
    );
}

#[test]
fn a_spec_that_was_put_right_is_looked_at_again() {
    let mut stage = Stage::new(json!({"submissionMode": "SidecarMode"}));
    stage.settle();
    stage.job.spec.submission_mode = None;
    stage.job.metadata.generation = Some(2);
    stage.settle();
    assert_eq!(stage.phase(), Phase::Initializing);
}

#[test]
fn ignored_fields_are_named() {
    let mut stage = Stage::new(json!({"deletionStrategy": {"onSuccess": {"policy": "DeleteSelf"}}}));
    stage.settle();
    assert_eq!(
        stage.status().conditions[0].message,
        "not supported, and ignored: spec.deletionStrategy"
    );
    assert_eq!(stage.phase(), Phase::Initializing);
}

#[test]
fn jobs_of_other_controllers_are_left_alone() {
    for (manager, kuberay) in [(Some("kueue.x-k8s.io/multikueue"), false), (None, true)] {
        let mut stage = Stage::new(json!({"managedBy": manager}));
        stage.kuberay = kuberay;
        stage.settle();
        assert!(
            stage.plan().notice.is_some()
                && stage.job.status.is_none()
                && stage.job.metadata.finalizers.is_none()
        );
    }
}
