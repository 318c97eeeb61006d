//! Builders of JobSets and child Jobs, and a model of the cluster, for tests.

mod cluster;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        batch::v1::{Job, JobCondition, JobSpec, JobStatus, JobTemplateSpec},
        core::v1::{Container, PodSpec, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use lockstep_api::{
    DependsOn, FailurePolicy, FailurePolicyAction, FailurePolicyRule, JobSet, JobSetSpec, JobSetStatus,
    ReplicatedJob, RestartStrategy, StartupPolicy, StartupPolicyOrder,
};

pub(crate) use cluster::Cluster;

use crate::common::features::Features;
use crate::jobset::in_place::Agents;
use crate::jobset::observed::Observed;
use crate::reconcile::jobs::Jobs;

/// The current time of all tests, plus some seconds.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap() + SignedDuration::from_secs(seconds)
}

/// A JobSet `ns/js` with UID `uid-js`.
pub(crate) fn jobset(replicated_jobs: impl IntoIterator<Item = ReplicatedJob>) -> JobSet {
    JobSet {
        metadata: ObjectMeta {
            name: Some("js".to_owned()),
            namespace: Some("ns".to_owned()),
            uid: Some("uid-js".to_owned()),
            ..ObjectMeta::default()
        },
        spec: JobSetSpec {
            replicated_jobs: replicated_jobs.into_iter().collect(),
            ..JobSetSpec::default()
        },
        status: None,
    }
}

/// A replicatedJob of Jobs with one pod of one container called `worker`.
pub(crate) fn replicated_job(name: &str, replicas: i32) -> ReplicatedJob {
    let pod = PodSpec {
        containers: vec![Container {
            name: "worker".to_owned(),
            ..Container::default()
        }],
        ..PodSpec::default()
    };
    ReplicatedJob {
        name: name.to_owned(),
        replicas: Some(replicas),
        template: JobTemplateSpec {
            metadata: None,
            spec: Some(JobSpec {
                parallelism: Some(1),
                completions: Some(1),
                template: PodTemplateSpec {
                    metadata: None,
                    spec: Some(pod),
                },
                ..JobSpec::default()
            }),
        },
        ..ReplicatedJob::default()
    }
}

/// Changes of JobSets, to be chained.
pub(crate) trait JobSetBuild: Sized {
    fn with(self, change: impl FnOnce(&mut JobSet)) -> Self;

    fn annotated(self, key: &str, value: &str) -> Self {
        self.with(|js| {
            js.metadata
                .annotations
                .get_or_insert_default()
                .insert(key.to_owned(), value.to_owned());
        })
    }

    fn suspended(self, suspended: bool) -> Self {
        self.with(|js| js.spec.suspend = Some(suspended))
    }

    fn restarting(self, strategy: RestartStrategy, max_restarts: i32) -> Self {
        self.with(|js| {
            js.spec.failure_policy = Some(FailurePolicy {
                max_restarts: Some(max_restarts),
                restart_strategy: Some(strategy),
                rules: Vec::new(),
            });
        })
    }

    fn rule(self, rule: FailurePolicyRule) -> Self {
        self.with(|js| js.spec.failure_policy.get_or_insert_default().rules.push(rule))
    }

    fn in_order(self) -> Self {
        self.with(|js| {
            js.spec.startup_policy = Some(StartupPolicy {
                startup_policy_order: StartupPolicyOrder::InOrder,
            });
        })
    }

    fn status(self, change: impl FnOnce(&mut JobSetStatus)) -> Self {
        self.with(|js| change(js.status.get_or_insert_default()))
    }
}

impl JobSetBuild for JobSet {
    fn with(mut self, change: impl FnOnce(&mut JobSet)) -> Self {
        change(&mut self);
        self
    }
}

/// Changes of replicatedJobs, to be chained.
pub(crate) trait ReplicatedJobBuild: Sized {
    fn with(self, change: impl FnOnce(&mut ReplicatedJob)) -> Self;

    fn job_spec(self, change: impl FnOnce(&mut JobSpec)) -> Self {
        self.with(|job| change(job.template.spec.get_or_insert_default()))
    }

    fn pod_spec(self, change: impl FnOnce(&mut PodSpec)) -> Self {
        self.job_spec(|spec| change(spec.template.spec.get_or_insert_default()))
    }

    fn depends_on(self, name: &str, status: &str) -> Self {
        self.with(|job| {
            job.depends_on.push(DependsOn {
                name: name.to_owned(),
                status: status.into(),
            })
        })
    }
}

impl ReplicatedJobBuild for ReplicatedJob {
    fn with(mut self, change: impl FnOnce(&mut ReplicatedJob)) -> Self {
        change(&mut self);
        self
    }
}

/// A failure policy rule for any failure.
pub(crate) fn rule(name: &str, action: FailurePolicyAction) -> FailurePolicyRule {
    FailurePolicyRule {
        name: name.to_owned(),
        action,
        ..FailurePolicyRule::default()
    }
}

/// The state of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pending,
    Running,
    Ready,
    Succeeded,
    Failed,
}

/// The Job that the JobSet creates, in some later state.
pub(crate) fn child(jobset: &JobSet, replicated_job: &str, index: i32, fate: Fate) -> Job {
    let mut job = Jobs::new(jobset, Features::default(), &Agents::ByNode)
        .make(jobset.replicated_job(replicated_job).unwrap(), index);
    job.metadata.uid = Some(format!(
        "uid-{}-{}",
        job.metadata.name.as_deref().unwrap(),
        jobset.restart_attempt()
    ));
    job.metadata.resource_version = Some("1".to_owned());
    set_fate(&mut job, fate, at(0));
    job
}

pub(crate) fn set_fate(job: &mut Job, fate: Fate, now: Timestamp) {
    let pods = job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1);
    let (active, ready) = match fate {
        Fate::Running => (pods, 0),
        Fate::Ready => (pods, pods),
        Fate::Pending | Fate::Succeeded | Fate::Failed => (0, 0),
    };
    let finished = match fate {
        Fate::Succeeded => Some("Complete"),
        Fate::Failed => Some("Failed"),
        _ => None,
    };
    job.status = Some(JobStatus {
        active: Some(active),
        ready: Some(ready),
        start_time: (fate != Fate::Pending).then_some(Time(now)),
        conditions: finished.map(|type_| {
            vec![JobCondition {
                type_: type_.to_owned(),
                status: "True".to_owned(),
                last_transition_time: Some(Time(now)),
                ..JobCondition::default()
            }]
        }),
        ..JobStatus::default()
    });
}

/// A failed Job with the reason, message and time of its failure.
pub(crate) fn failed(mut job: Job, reason: &str, message: &str, when: i64) -> Job {
    set_fate(&mut job, Fate::Failed, at(when));
    let condition = &mut job.status.as_mut().unwrap().conditions.as_mut().unwrap()[0];
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message.to_owned());
    job
}

/// An observation of a JobSet whose Service exists.
pub(crate) fn observe(jobset: &JobSet, jobs: impl IntoIterator<Item = Job>) -> Observed {
    let bare = Observed::new(Arc::new(jobset.clone()), Vec::new(), Vec::new(), at(100));
    let services = crate::jobset::network::missing_service(&bare)
        .map(Arc::new)
        .into_iter()
        .collect();
    Observed::new(
        bare.jobset,
        jobs.into_iter().map(Arc::new).collect(),
        services,
        at(100),
    )
}
