//! Lockstep replaces the upstream controller while workers run on a real node: it touches neither
//! them nor any object.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use lockstep_api::JobSet;
use lockstep_integration::harness::group::{START, container_id, container_status};
use lockstep_integration::harness::manifest::IMAGE;
use lockstep_integration::harness::{Group, Process, eventually, process};
use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::{Case, Scene, case, left};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case {
        limit: Duration::from_secs(900),
        ..case!(workers_of_upstreams_jobs_run_on_when_lockstep_takes_over alone)
    }]
}

const CRD: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../control-plane/api/vendor/jobset.x-k8s.io_jobsets.yaml"
);
/// A JobSet that runs, and one that runs after two restarts: two Jobs of one worker each.
const JOBSETS: [&str; 2] = ["running", "restarted"];
const PODS: usize = 4;
/// A worker that exits with 0 on SIGTERM.
const SCRIPT: &str = "trap 'exit 0' TERM; while :; do sleep 1000000 & wait $!; done";

async fn workers_of_upstreams_jobs_run_on_when_lockstep_takes_over(scene: Scene) -> Result<()> {
    scene.product.uninstall().await?;
    let before = async {
        // Deletes the definition, and then creates upstream's objects again.
        let delete = ["delete", "crd", "jobsets.jobset.x-k8s.io", "--timeout=180s"];
        scene.access().kubectl(&delete, "").await?;
        as_upstream_has_it(&scene).await?;
        At::look(&scene).await
    };
    let before = before.await;
    // This is restored whatever the result: other cases need it.
    scene.product.reinstall(&[]).await?;
    let before = before?;

    eventually("every JobSet has been looked at", START, async || {
        let metrics = scene.product.metrics().await?;
        let looks = metrics
            .lines()
            .filter(|line| line.starts_with("lockstep_reconciles_total"));
        let looks: f64 = looks
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        ensure!(looks >= JOBSETS.len() as f64, "{looks} times");
        Ok(())
    })
    .await?;
    let definition = scene
        .access()
        .kubectl(&["get", "crd", "jobsets.jobset.x-k8s.io", "-o", "yaml"], "")
        .await?;
    ensure!(
        definition.contains("executionPolicy"),
        "the CRD is still upstream's"
    );
    let after = At::look(&scene).await?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    goes_on(&scene, &before).await
}

/// The control plane sees workers end and fail afterwards, and touches nothing else until then.
async fn goes_on(scene: &Scene, before: &At) -> Result<()> {
    for worker in before.of("restarted").take(1) {
        worker.process.signal(Signal::SIGKILL)?;
    }
    let [running, restarted] = JOBSETS.map(|name| Group {
        namespace: scene.namespace.clone(),
        name: name.to_owned(),
    });
    restarted.status_has("/restarts", 3).await?;
    let after = eventually("both workers run again", START, async || At::look(scene).await).await?;
    ensure!(
        after
            .of("restarted")
            .all(|now| before.of("restarted").all(|old| old.uid != now.uid))
    );
    ensure!(
        after.of("running").eq(before.of("running")),
        "{before:#?} became {after:#?}"
    );

    for worker in before.of("running") {
        worker.process.signal(Signal::SIGTERM)?;
    }
    running.condition("Completed", START).await?;
    running.status_has("/restarts", 0).await
}

/// The state of everything, once all workers run.
#[derive(Debug, PartialEq)]
struct At {
    /// The version of each object, which changes with every write to it.
    versions: BTreeMap<String, String>,
    workers: Vec<Worker>,
}

/// A worker without an agent.
#[derive(Debug, PartialEq)]
struct Worker {
    jobset: String,
    uid: String,
    container: String,
    restarts: i32,
    process: Process,
}

impl At {
    async fn look(scene: &Scene) -> Result<Self> {
        eventually("all workers run, and everybody knows", START, async || {
            for job in list::<Job>(scene).await? {
                let ready = job.status.as_ref().and_then(|status| status.ready);
                ensure!(ready == Some(1), "{}: {ready:?}", job.name_any());
            }
            let mut workers = Vec::new();
            for pod in list::<Pod>(scene).await? {
                workers.push(worker(&pod)?);
            }
            ensure!(workers.len() == PODS, "{workers:?}");
            let mut versions = BTreeMap::new();
            versions.extend(seen::<JobSet>(scene, "JobSet").await?);
            versions.extend(seen::<Job>(scene, "Job").await?);
            versions.extend(seen::<Service>(scene, "Service").await?);
            versions.extend(seen::<Pod>(scene, "Pod").await?);
            ensure!(versions.len() == JOBSETS.len() * 2 + 2 * PODS, "{versions:?}");
            Ok(Self { versions, workers })
        })
        .await
    }

    fn of<'a>(&'a self, jobset: &'a str) -> impl Iterator<Item = &'a Worker> {
        self.workers.iter().filter(move |worker| worker.jobset == jobset)
    }
}

fn worker(pod: &Pod) -> Result<Worker> {
    let container = container_id(pod, "worker")?;
    let status = container_status(pod, "worker").context("no status")?;
    ensure!(status.ready, "{} is not ready", pod.name_any());
    let jobset = pod.labels().get("jobset.sigs.k8s.io/jobset-name");
    Ok(Worker {
        jobset: jobset.context("of no JobSet")?.clone(),
        uid: pod.uid().context("no UID")?,
        restarts: status.restart_count,
        process: process::init_of(&container).context("it does not run")?,
        container,
    })
}

async fn list<K>(scene: &Scene) -> Result<Vec<K>>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    let api: Api<K> = Api::namespaced(scene.access().client.clone(), &scene.namespace.name);
    Ok(api.list(&ListParams::default()).await?.items)
}

async fn seen<K>(scene: &Scene, kind: &str) -> Result<Vec<(String, String)>>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    let objects = list::<K>(scene).await?.into_iter();
    let version = |object: K| {
        let version = object.resource_version().unwrap_or_default();
        (format!("{kind} {}", object.name_any()), version)
    };
    Ok(objects.map(version).collect())
}

/// Upstream's CRD, and its JobSets with workers that run.
async fn as_upstream_has_it(scene: &Scene) -> Result<()> {
    scene.access().kubectl(&["create", "--filename", CRD], "").await?;
    eventually("JobSets are served", START, async || {
        scene.access().kubectl(&["get", "jobsets"], "").await.map(drop)
    })
    .await?;
    let here = (&scene.access().client, scene.namespace.name.as_str());
    left::restore(here, &JOBSETS, with_workers).await
}

/// Gives the pods of a JobSet or Job a command. It leaves the status of a Job to the Job
/// controller, which runs here.
fn with_workers(object: &mut Value) {
    if object.pointer("/spec/template").is_some() {
        object["status"] = Value::Null;
    }
    let templates = [
        "/spec/template/spec",
        "/spec/replicatedJobs/0/template/spec/template/spec",
    ];
    for template in templates {
        if let Some(container) = object.pointer_mut(&format!("{template}/containers/0")) {
            container["image"] = json!(IMAGE);
            container["imagePullPolicy"] = json!("Never");
            container["command"] = json!(["sh", "-c", SCRIPT]);
        }
    }
}
