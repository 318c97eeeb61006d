//! RayCronJobs. The test writes the status so that starts in the past are missed: only one case
//! waits for the clock.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use lockstep_api::ray::{RayCronJob, RayCronJobStatus, RayJob, conditions};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::ray::{raycronjob, rayjob};
use crate::scene::{PATIENCE, Scene};
use crate::webhooks::permissions;

/// How long the next full minute may take, on a busy machine.
const A_MINUTE: Duration = Duration::from_secs(120);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_job_starts_at_the_full_minute),
        case!(each_start_makes_one_job),
        case!(forbid_waits_for_the_job_that_runs),
        case!(replace_deletes_the_job_that_runs),
        case!(what_has_ended_is_kept_up_to_the_limits),
        case!(many_missed_starts_make_one_job),
        case!(suspended_nothing_starts),
        case!(a_schedule_that_cannot_be_is_named),
        case!(the_example_applies),
        case!(a_control_plane_that_is_killed_makes_one_job alone),
        case!(the_chart_allows_what_raycronjobs_take alone),
    ]
}

/// A time of the schedule, this many days ago.
struct Start(Timestamp);

impl Start {
    fn days_ago(days: i64) -> Result<Self> {
        let minutes = Timestamp::now().as_second() / 60 - days * 24 * 60;
        Ok(Self(Timestamp::from_second(minutes * 60)?))
    }

    /// The schedule for this time of each year.
    fn schedule(&self) -> String {
        self.0.strftime("%-M %-H %-d %-m *").to_string()
    }

    fn job(&self) -> String {
        format!("cj-{}", self.0.as_second() / 60)
    }
}

async fn create(scene: &Scene, schedule: &str, more: Value) -> Result<()> {
    let manifest = raycronjob(schedule, &rayjob(0, json!({})), more);
    scene.make::<RayCronJob>(manifest).await?;
    Ok(())
}

async fn patch(scene: &Scene, patch: Value) -> Result<()> {
    scene.merge::<RayCronJob>("cj", patch).await?;
    Ok(())
}

/// Changes the status as if the last job had started this long ago.
async fn last_started(scene: &Scene, ago: SignedDuration) -> Result<()> {
    let last = Timestamp::from_second((Timestamp::now() - ago).as_second())?;
    let status = json!({"status": {"lastScheduleTime": last}});
    let api = scene.api::<RayCronJob>();
    api.patch_status("cj", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

/// Creates one with yearly starts. It missed the latest start two days ago, and has created the job
/// for it.
async fn started(scene: &Scene, more: Value) -> Result<Start> {
    let start = Start::days_ago(2)?;
    create(scene, &start.schedule(), more).await?;
    last_started(scene, SignedDuration::from_hours(72)).await?;
    until_jobs(scene, &[&start]).await?;
    Ok(start)
}

/// Makes it miss another start: one of yesterday.
async fn another(scene: &Scene) -> Result<Start> {
    let start = Start::days_ago(1)?;
    patch(scene, json!({"spec": {"schedule": start.schedule()}})).await?;
    Ok(start)
}

async fn jobs(scene: &Scene) -> Result<Vec<RayJob>> {
    let named = ListParams::default().labels("ray.io/cronjob-name=cj");
    Ok(scene.api::<RayJob>().list(&named).await?.items)
}

/// Waits until these jobs exist, and no others.
async fn until_jobs(scene: &Scene, starts: &[&Start]) -> Result<()> {
    let expected: Vec<String> = starts.iter().map(|start| start.job()).collect();
    eventually(&format!("jobs {expected:?}"), PATIENCE, async || {
        let mut names: Vec<String> = jobs(scene).await?.iter().map(ResourceExt::name_any).collect();
        names.sort();
        ensure!(names == expected, "{names:?}");
        Ok(())
    })
    .await
}

async fn until(
    scene: &Scene,
    what: &str,
    expected: impl Fn(&RayCronJobStatus) -> bool,
) -> Result<RayCronJobStatus> {
    eventually(what, PATIENCE, async || {
        let cron = scene.api::<RayCronJob>().get("cj").await?;
        let status = cron.status.context("no status yet")?;
        ensure!(expected(&status), "{}", serde_json::to_string(&status)?);
        Ok(status)
    })
    .await
}

async fn until_last(scene: &Scene, start: &Start) -> Result<RayCronJobStatus> {
    until(scene, "the start is written down", |status| {
        status.last_schedule_time.as_ref().map(|time| time.0) == Some(start.0)
    })
    .await
}

/// Makes the job of a start succeed.
async fn succeeds(scene: &Scene, start: &Start) -> Result<()> {
    let end = Timestamp::from_second(Timestamp::now().as_second())?;
    let status =
        json!({"status": {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED", "endTime": end}});
    scene
        .api::<RayJob>()
        .patch_status(&start.job(), &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

async fn a_job_starts_at_the_full_minute(scene: Scene) -> Result<()> {
    create(&scene, "* * * * *", json!({})).await?;
    let jobs = eventually("a job", A_MINUTE, async || {
        let jobs = jobs(&scene).await?;
        ensure!(!jobs.is_empty());
        Ok(jobs)
    })
    .await?;
    let due: Timestamp = jobs[0].annotations()["ray.io/cronjob-scheduled-timestamp"].parse()?;
    ensure!(due.as_second() % 60 == 0 && jobs[0].name_any() == Start(due).job());
    let made = jobs[0].creation_timestamp().context("no time")?.0;
    let late = made.duration_since(due);
    ensure!(
        !late.is_negative() && late < SignedDuration::from_secs(30),
        "{late} late"
    );
    Ok(())
}

async fn each_start_makes_one_job(scene: Scene) -> Result<()> {
    let first = started(&scene, json!({"timeZone": "Etc/UTC"})).await?;
    let status = until_last(&scene, &first).await?;
    ensure!(status.conditions.is_empty(), "{status:?}");
    let status = until(&scene, "the job is active", |status| !status.active.is_empty()).await?;
    let job = scene.api::<RayJob>().get(&first.job()).await?;
    ensure!(
        status.active[0].name == Some(first.job()) && status.active[0].uid == job.uid(),
        "{status:?}"
    );
    let owner = job.owner_references().first().context("no owner")?;
    ensure!(
        owner.kind == "RayCronJob" && owner.controller == Some(true),
        "{owner:?}"
    );
    let note = scene.until_event_of("RayCronJob", "SuccessfulCreate").await?;
    ensure!(note == format!("Created job {}", first.job()), "{note}");
    let second = another(&scene).await?;
    until_jobs(&scene, &[&first, &second]).await?;
    until_last(&scene, &second).await?;
    let shown = scene.namespace.kubectl(&["get", "raycronjob", "cj"]).await?;
    ensure!(
        shown.contains(&second.schedule()) && shown.contains(&second.0.to_string()),
        "{shown}"
    );
    // The jobs are deleted with it.
    scene
        .api::<RayCronJob>()
        .delete("cj", &DeleteParams::background())
        .await?;
    until_jobs(&scene, &[]).await
}

async fn forbid_waits_for_the_job_that_runs(scene: Scene) -> Result<()> {
    let first = started(&scene, json!({"concurrencyPolicy": "Forbid"})).await?;
    let second = another(&scene).await?;
    let note = scene.until_event_of("RayCronJob", "JobAlreadyActive").await?;
    ensure!(note.contains(&second.job()), "{note}");
    until_jobs(&scene, &[&first]).await?;
    succeeds(&scene, &first).await?;
    until_jobs(&scene, &[&first, &second]).await
}

async fn replace_deletes_the_job_that_runs(scene: Scene) -> Result<()> {
    started(&scene, json!({"concurrencyPolicy": "Replace"})).await?;
    let second = another(&scene).await?;
    until_jobs(&scene, &[&second]).await
}

async fn what_has_ended_is_kept_up_to_the_limits(scene: Scene) -> Result<()> {
    let first = started(&scene, json!({"successfulJobsHistoryLimit": 1})).await?;
    succeeds(&scene, &first).await?;
    until(&scene, "it is seen", |status| {
        status.last_successful_time.is_some() && status.active.is_empty()
    })
    .await?;
    let second = another(&scene).await?;
    until_jobs(&scene, &[&first, &second]).await?;
    succeeds(&scene, &second).await?;
    until_jobs(&scene, &[&second]).await
}

async fn many_missed_starts_make_one_job(scene: Scene) -> Result<()> {
    create(&scene, "* * * * *", json!({"concurrencyPolicy": "Forbid"})).await?;
    last_started(&scene, SignedDuration::from_hours(5)).await?;
    scene.until_event_of("RayCronJob", "TooManyMissedTimes").await?;
    let found = jobs(&scene).await?.len();
    ensure!(found == 1, "{found}");
    Ok(())
}

async fn suspended_nothing_starts(scene: Scene) -> Result<()> {
    let start = Start::days_ago(2)?;
    create(&scene, &start.schedule(), json!({"suspend": true})).await?;
    last_started(&scene, SignedDuration::from_hours(72)).await?;
    // The condition of a later generation names the field, which shows that it was reconciled.
    patch(&scene, json!({"spec": {"jitterSeconds": 5}})).await?;
    let status = until(&scene, "the field is named", |status| {
        !status.conditions.is_empty()
    })
    .await?;
    ensure!(
        status.conditions[0].message.contains("spec.jitterSeconds"),
        "{status:?}"
    );
    until_jobs(&scene, &[]).await?;
    patch(&scene, json!({"spec": {"suspend": false}})).await?;
    until_jobs(&scene, &[&start]).await
}

async fn a_schedule_that_cannot_be_is_named(scene: Scene) -> Result<()> {
    create(&scene, "TZ=UTC 0 * * * *", json!({"timeZone": "Mars/Phobos"})).await?;
    let status = until(&scene, "it is refused", |status| !status.conditions.is_empty()).await?;
    let refused = &status.conditions[0];
    ensure!(refused.type_ == conditions::VALIDATION_FAILED, "{refused:?}");
    let note = scene
        .until_event_of("RayCronJob", "InvalidRayCronJobSpec")
        .await?;
    ensure!(
        note.contains("spec.schedule: cannot use TZ")
            && note.contains("spec.timeZone: invalid time zone: unknown time zone"),
        "{note}"
    );
    patch(&scene, json!({"spec": {"schedule": "@yearly", "timeZone": null}})).await?;
    until(&scene, "it is taken", |status| status.conditions.is_empty()).await?;
    Ok(())
}

async fn the_example_applies(scene: Scene) -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/ray/cronjob.yaml");
    let file = file.to_string_lossy();
    scene.namespace.kubectl(&["apply", "--filename", &file]).await?;
    eventually("it is looked after", PATIENCE, async || {
        let cron = scene.api::<RayCronJob>().get("nightly").await?;
        let status = cron.status.context("no status yet")?;
        ensure!(status.conditions.is_empty(), "{status:?}");
        Ok(())
    })
    .await
}

async fn a_control_plane_that_is_killed_makes_one_job(scene: Scene) -> Result<()> {
    async fn again(scene: &Scene) -> Result<()> {
        scene.control_plane().kill().await?;
        scene.control_plane().start().await
    }
    let first = Start::days_ago(2)?;
    create(&scene, &first.schedule(), json!({})).await?;
    scene.control_plane().kill().await?;
    last_started(&scene, SignedDuration::from_hours(72)).await?;
    scene.control_plane().start().await?;
    until_jobs(&scene, &[&first]).await?;
    again(&scene).await?;
    // As if it had died after it created the job and before it wrote the status.
    last_started(&scene, SignedDuration::from_hours(72)).await?;
    let uid = scene.api::<RayJob>().get(&first.job()).await?.uid();
    until_last(&scene, &first).await?;
    let second = another(&scene).await?;
    until_jobs(&scene, &[&first, &second]).await?;
    ensure!(scene.api::<RayJob>().get(&first.job()).await?.uid() == uid);
    Ok(())
}

async fn the_chart_allows_what_raycronjobs_take(scene: Scene) -> Result<()> {
    let control_plane = scene.control_plane();
    permissions::grant(&scene, &["ray.enabled=true"]).await?;
    let file = control_plane.dir().join("raycron.kubeconfig");
    permissions::kubeconfig(&scene, &file).await?;
    control_plane.kill().await?;
    control_plane.restore(file).await?;
    let more = json!({"concurrencyPolicy": "Replace", "successfulJobsHistoryLimit": 0});
    started(&scene, more).await?;
    let second = another(&scene).await?;
    until_jobs(&scene, &[&second]).await?;
    succeeds(&scene, &second).await?;
    until_jobs(&scene, &[]).await?;
    scene.until_event_of("RayCronJob", "SuccessfulDelete").await?;
    Ok(())
}
