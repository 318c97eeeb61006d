//! Decisions about a RayCronJob.

mod refused;

use jiff::SignedDuration;
use lockstep_api::ray::{RayCronJob, RayCronJobStatus, RayJob, RayJobDeploymentStatus as Phase, conditions};

use super::jobs::rayjob;
use super::*;
use crate::jobset::plan::Event;
use crate::ray::cron::{CronPlan, ObservedCron, plan};

/// 20 seconds past a full minute. This is the number of that minute since 1970.
const MINUTE: i64 = 28_333_333;

/// A RayCronJob `ns/nightly` for every minute that was created at 0, its jobs, and the time.
struct Stage {
    cron: RayCronJob,
    jobs: Vec<RayJob>,
    seconds: i64,
    kuberay: bool,
    /// All events.
    told: Vec<Event>,
}

impl Stage {
    fn new(spec: Value) -> Self {
        let template = serde_json::to_value(rayjob(json!({})).spec).unwrap();
        let mut manifest = json!({
            "apiVersion": "ray.io/v1",
            "kind": "RayCronJob",
            "metadata": {
                "name": "nightly", "namespace": "ns", "uid": "uid-cron", "generation": 1,
                "creationTimestamp": at(0).to_string(),
                "annotations": {"lockstep.dev/restart-grace": "1s", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
            },
            "spec": {"schedule": "* * * * *", "jobTemplate": template},
        });
        merge(&mut manifest["spec"], spec);
        Self {
            cron: serde_json::from_value(manifest).unwrap(),
            jobs: Vec::new(),
            seconds: 0,
            kuberay: false,
            told: Vec::new(),
        }
    }

    fn plan(&self) -> CronPlan {
        plan(&ObservedCron {
            cron: Arc::new(self.cron.clone()),
            jobs: self.jobs.iter().cloned().map(Arc::new).collect(),
            kuberay: self.kuberay,
            now: at(self.seconds),
        })
    }

    /// Decides once, and executes the plan.
    fn step(&mut self) -> CronPlan {
        let plan = self.plan();
        let deleted: Vec<&str> = plan
            .replace
            .iter()
            .chain(&plan.forget)
            .map(|job| job.uid.as_str())
            .collect();
        self.jobs.retain(|job| !deleted.contains(&job.uid_str()));
        if let Some(mut job) = plan.create.clone() {
            job.metadata.uid = Some(format!("uid-{}", job.name()));
            assert!(
                self.jobs.iter().all(|other| other.name() != job.name()),
                "{} twice",
                job.name()
            );
            self.jobs.push(*job);
        }
        if let Some(status) = plan.status.clone() {
            self.cron.status = Some(*status);
        }
        self.told.extend(plan.events.iter().chain(&plan.notice).cloned());
        plan
    }

    /// Steps until nothing changes.
    fn settle(&mut self) -> &mut Self {
        until_rest(10, || {
            let plan = self.step();
            let still = CronPlan {
                notice: plan.notice.clone(),
                requeue_after: plan.requeue_after,
                deadline: plan.deadline,
                ..CronPlan::default()
            };
            plan == still
        });
        self
    }

    fn wait(&mut self, seconds: i64) -> &mut Self {
        self.seconds += seconds;
        self.settle()
    }

    /// Ends a job this way.
    fn ends(&mut self, minute: i64, phase: Phase, says: &str) -> &mut Self {
        let name = format!("nightly-{}", MINUTE + minute);
        let now = at(self.seconds);
        let job = self.jobs.iter_mut().find(|job| job.name() == name).unwrap();
        let status = job.status.get_or_insert_default();
        status.job_deployment_status = Some(phase);
        status.job_status = says.to_owned();
        status.end_time = Some(Time(now));
        self.settle()
    }

    fn succeeds(&mut self, minute: i64) -> &mut Self {
        self.ends(minute, Phase::Complete, "SUCCEEDED")
    }

    fn fails(&mut self, minute: i64) -> &mut Self {
        self.ends(minute, Phase::Failed, "FAILED")
    }

    fn status(&self) -> &RayCronJobStatus {
        self.cron.status.as_ref().unwrap()
    }

    /// The minutes whose jobs exist.
    fn minutes(&self) -> Vec<i64> {
        let names = self.jobs.iter().map(|job| job.name());
        names
            .map(|name| name.strip_prefix("nightly-").unwrap().parse::<i64>().unwrap() - MINUTE)
            .collect()
    }

    fn active(&self) -> Vec<&str> {
        let active = self.status().active.iter();
        active.map(|job| job.name.as_deref().unwrap()).collect()
    }

    fn heard(&self, reason: &str) -> Option<&str> {
        let event = self.told.iter().find(|event| event.reason == reason)?;
        Some(&event.message)
    }
}

#[test]
fn a_job_is_started_at_its_time() {
    let mut stage = Stage::new(json!({}));
    stage.settle();
    assert_eq!(
        (stage.minutes(), stage.status().last_schedule_time.as_ref()),
        (vec![], None)
    );
    let next = Some(SignedDuration::from_secs(40));
    assert_eq!((stage.plan().requeue_after, stage.plan().deadline), (next, next));
    stage.wait(39);
    assert!(stage.minutes().is_empty());
    stage.wait(1);
    assert_eq!(stage.minutes(), [1]);
    let due = at(40);
    assert_eq!(stage.status().last_schedule_time, Some(Time(due)));
    let job = &stage.jobs[0];
    assert_eq!(job.name(), format!("nightly-{}", MINUTE + 1));
    assert_eq!(job.spec, stage.cron.spec.job_template);
    let metadata = serde_json::to_value(&job.metadata).unwrap();
    assert_eq!(metadata["labels"], json!({"ray.io/cronjob-name": "nightly"}));
    assert_eq!(
        metadata["annotations"],
        json!({"lockstep.dev/restart-grace": "1s", "ray.io/cronjob-scheduled-timestamp": "2023-11-14T22:14:00Z"})
    );
    assert_eq!(
        metadata["ownerReferences"],
        json!([{
            "apiVersion": "ray.io/v1", "kind": "RayCronJob", "name": "nightly", "uid": "uid-cron",
            "controller": true, "blockOwnerDeletion": true,
        }])
    );
    assert_eq!(stage.active(), [job.name()]);
    assert_eq!(
        stage.heard("SuccessfulCreate"),
        Some(format!("Created job {}", job.name()).as_str())
    );
    stage.wait(60);
    assert_eq!(stage.minutes(), [1, 2]);
}

#[test]
fn a_start_that_could_not_be_written_down_is_not_made_again() {
    let mut stage = Stage::new(json!({}));
    stage.settle();
    let before = stage.cron.status.clone();
    stage.wait(45);
    stage.cron.status = before;
    assert!(stage.step().create.is_none());
    assert_eq!(stage.status().last_schedule_time, Some(Time(at(40))));
    // The job is gone meanwhile, but it was started.
    stage.jobs.clear();
    stage.settle();
    assert!(stage.minutes().is_empty());
}

#[test]
fn of_missed_starts_only_the_latest_is_made_up_for() {
    let mut stage = Stage::new(json!({}));
    stage.wait(60 * 90);
    assert_eq!(
        (stage.minutes(), stage.heard("TooManyMissedTimes")),
        (vec![90], None)
    );
    stage.wait(60 * 101);
    assert_eq!(stage.minutes(), [90, 191]);
    assert!(
        stage
            .heard("TooManyMissedTimes")
            .unwrap()
            .starts_with("too many missed start times")
    );
}

#[test]
fn a_start_that_is_too_late_is_missed() {
    let mut stage = Stage::new(json!({"schedule": "0 * * * *", "startingDeadlineSeconds": 100}));
    // 23:00 is 2800 s from now.
    stage.wait(2901);
    assert!(stage.minutes().is_empty());
    assert_eq!(
        stage.heard("MissSchedule"),
        Some("Missed scheduled time to start a job: 2023-11-14T23:00:00Z")
    );
    stage.seconds = 0;
    stage.wait(2900);
    assert_eq!(stage.minutes(), [47]);
    // Those before the deadline are not counted.
    let mut stage = Stage::new(json!({"startingDeadlineSeconds": 100}));
    stage.wait(60 * 1000);
    assert_eq!(
        (stage.minutes(), stage.heard("TooManyMissedTimes")),
        (vec![1000], None)
    );
}

#[test]
fn suspended_nothing_is_started_and_what_runs_runs_on() {
    let mut stage = Stage::new(json!({}));
    stage.wait(60);
    stage.cron.spec.suspend = Some(true);
    stage.wait(600);
    assert_eq!((stage.minutes(), stage.active().len()), (vec![1], 1));
    assert_eq!((stage.plan().requeue_after, stage.plan().deadline), (None, None));
    stage.succeeds(1);
    assert_eq!(stage.status().last_successful_time, Some(Time(at(660))));
    // The starts in between were missed.
    stage.cron.spec.suspend = Some(false);
    stage.settle();
    assert_eq!(stage.minutes(), [1, 11]);
}

#[test]
fn jobs_may_run_at_the_same_time() {
    let mut stage = Stage::new(json!({}));
    stage.wait(60).wait(60).wait(60);
    assert_eq!((stage.minutes(), stage.active().len()), (vec![1, 2, 3], 3));
}

#[test]
fn forbid_waits_for_the_job_that_runs() {
    let mut stage = Stage::new(json!({"concurrencyPolicy": "Forbid"}));
    stage.wait(60).wait(60).wait(60);
    assert_eq!(stage.minutes(), [1]);
    assert!(
        stage
            .heard("JobAlreadyActive")
            .unwrap()
            .contains("concurrency policy is Forbid")
    );
    // A job that is being deleted still runs.
    stage.jobs[0].metadata.deletion_timestamp = Some(Time(at(180)));
    stage.settle();
    assert_eq!(stage.minutes(), [1]);
    stage.jobs.clear();
    stage.settle();
    assert_eq!(stage.minutes(), [3]);
    // A job with an invalid spec never ends by itself.
    stage.wait(60).ends(3, Phase::ValidationFailed, "");
    assert_eq!(stage.minutes(), [3, 4]);
}

#[test]
fn replace_deletes_the_job_that_runs() {
    let mut stage = Stage::new(json!({"concurrencyPolicy": "Replace"}));
    stage.wait(60).succeeds(1).wait(60);
    assert_eq!(stage.minutes(), [1, 2]);
    stage.seconds += 60;
    let plan = stage.step();
    assert_eq!(plan.replace.len(), 1);
    assert_eq!(plan.replace[0].name, format!("nightly-{}", MINUTE + 2));
    assert!(plan.create.is_some() && plan.status.unwrap().active.is_empty());
    stage.settle();
    assert_eq!(stage.minutes(), [1, 3]);
}

#[test]
fn jobs_that_have_ended_are_kept_up_to_the_limits() {
    let mut stage = Stage::new(json!({}));
    for minute in 1..=6 {
        stage.wait(60).succeeds(minute);
    }
    assert_eq!(stage.minutes(), [4, 5, 6]);
    for minute in 7..=8 {
        stage.wait(60).fails(minute);
    }
    assert_eq!(stage.minutes(), [4, 5, 6, 8]);
    assert_eq!(stage.status().last_successful_time, Some(Time(at(360))));
    // A stopped job has not succeeded.
    stage.wait(60).ends(9, Phase::Complete, "STOPPED");
    assert_eq!(stage.minutes(), [4, 5, 6, 9]);
    assert_eq!(stage.status().last_successful_time, Some(Time(at(360))));
    stage.cron.spec.successful_jobs_history_limit = Some(0);
    stage.cron.spec.failed_jobs_history_limit = Some(0);
    stage.settle();
    assert!(stage.minutes().is_empty());
    assert!(
        stage
            .heard("SawCompletedJob")
            .unwrap()
            .ends_with("condition: Complete")
    );
    let deleted = stage
        .told
        .iter()
        .filter(|event| event.reason == "SuccessfulDelete");
    assert_eq!(deleted.count(), 9);
}

/// A deleted job stays deleted, even if its start is the latest one.
#[test]
fn a_job_that_was_forgotten_does_not_come_back() {
    let mut stage = Stage::new(json!({"successfulJobsHistoryLimit": 0}));
    stage.wait(60).succeeds(1);
    assert!(stage.minutes().is_empty());
    stage.wait(10);
    assert!(stage.minutes().is_empty());
}

#[test]
fn one_that_is_being_deleted_starts_nothing() {
    let mut stage = Stage::new(json!({}));
    stage.cron.metadata.deletion_timestamp = Some(Time(at(0)));
    stage.seconds = 60;
    assert_eq!(stage.plan(), CronPlan::default());
}

/// For rare starts too, and any setting of the clock.
#[test]
fn it_is_looked_at_again_within_minutes() {
    let stage = Stage::new(json!({"schedule": "@yearly"}));
    assert_eq!(stage.plan().requeue_after, Some(SignedDuration::from_mins(10)));
    assert!(stage.plan().deadline > stage.plan().requeue_after);
    let mut stage = Stage::new(json!({}));
    stage.wait(60);
    stage.seconds = -600;
    assert!(stage.plan().create.is_none());
}
