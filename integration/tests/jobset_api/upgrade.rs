//! Lockstep replaces the upstream controller: it takes over the existing objects unchanged.
//!
//! One JobSet runs, one runs after two restarts, one is in the middle of its stages, and one each
//! is suspended, completed and failed.

#[path = "../support/left.rs"]
mod left;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use lockstep_api::JobSet;
use lockstep_integration::cluster::{Cluster, Spec};
use lockstep_integration::harness::{Access, eventually};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::control_plane::ControlPlane;
use crate::fixture::{Case, UPSTREAM_CRD, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(what_upstream_has_left_is_taken_over_as_it_is),
        case!(jobsets_that_are_made_during_an_upgrade_are_read_whole),
    ]
}

const NAMESPACE: &str = "default";
/// How often the test creates a JobSet during an upgrade, and for how long after it.
const EVERY: Duration = Duration::from_millis(20);
const AFTER: Duration = Duration::from_secs(1);

/// This case has an API server of its own, on which nothing else changes objects.
async fn what_upstream_has_left_is_taken_over_as_it_is(_: Scene) -> Result<()> {
    let cluster = Cluster::up(Spec::api_server()).await?;
    let client = cluster.client().await?;
    let access = Access {
        client: client.clone(),
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    access
        .kubectl(&["create", "--filename", UPSTREAM_CRD], "")
        .await?;
    eventually("JobSets are served", PATIENCE, async || {
        access.kubectl(&["get", "jobsets"], "").await.map(drop)
    })
    .await?;
    left::restore((&client, NAMESPACE), &[], |_| {}).await?;
    let before = everything(&client).await?;
    ensure!(before.len() == 6 + 10 + 6, "{before:?}");

    let control_plane = ControlPlane::new(cluster.kubeconfig(), cluster.dir(), &[]).await?;
    control_plane.start().await?;
    control_plane.until_ready().await?;
    eventually("every JobSet has been looked at", PATIENCE, async || {
        let metrics = control_plane.metrics().await?;
        let looked: f64 = metrics
            .lines()
            .filter(|line| line.starts_with("lockstep_reconciles_total"))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum();
        ensure!(looked >= 6.0, "{looked} times");
        Ok(())
    })
    .await?;
    let after = everything(&client).await?;
    ensure!(after == before, "{before:#?} became {after:#?}");

    goes_on(&client).await?;
    control_plane.stop().await.map(drop)
}

/// After a definition is replaced, the API server serves watches by the former one for a while:
/// they lack fields that it does not know.
async fn jobsets_that_are_made_during_an_upgrade_are_read_whole(_: Scene) -> Result<()> {
    let cluster = Cluster::up(Spec::api_server()).await?;
    let access = Access {
        client: cluster.client().await?,
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    let upstream = ["create", "--filename", UPSTREAM_CRD];
    access.kubectl(&upstream, "").await?;
    let jobsets: Api<JobSet> = Api::namespaced(access.client.clone(), NAMESPACE);
    eventually("JobSets are served", PATIENCE, async || {
        jobsets.list(&ListParams::default()).await?;
        Ok(())
    })
    .await?;
    let control_plane = ControlPlane::new(cluster.kubeconfig(), cluster.dir(), &[]).await?;
    let create = async |name: &str| -> Result<()> {
        let gang = json!({"minAvailable": 1, "backend": "Gates", "replicatedJobs": [{"name": "a", "minAvailable": 1}]});
        let mut manifest = jobset(json!({"gang": gang, "replicatedJobs": [replicated_job("a", 1)]}));
        manifest["metadata"]["name"] = json!(name);
        let jobset = serde_json::from_value(manifest)?;
        jobsets.create(&PostParams::default(), &jobset).await?;
        Ok(())
    };
    create("before").await?;
    control_plane.start().await?;
    let make = async || -> Infallible {
        let mut made = 0;
        loop {
            // The API server may refuse a JobSet while the definition changes.
            if create(&format!("js-{made}")).await.is_ok() {
                made += 1;
            }
            tokio::time::sleep(EVERY).await;
        }
    };
    let until_ready = async {
        control_plane.until_ready().await?;
        tokio::time::sleep(AFTER).await;
        anyhow::Ok(())
    };
    tokio::select! {
        never = make() => match never {},
        result = until_ready => result,
    }?;
    let kept = jobsets.list(&ListParams::default()).await?.items;
    let with_gang: Vec<&JobSet> = kept.iter().filter(|jobset| jobset.spec.gang.is_some()).collect();
    let whole = with_gang.len();
    ensure!(
        0 < whole && whole < kept.len(),
        "{whole} of {} have a gang: not made during the upgrade",
        kept.len()
    );
    let jobs: Api<Job> = Api::namespaced(access.client.clone(), NAMESPACE);
    for jobset in with_gang {
        let name = format!("{}-a-0", jobset.name_any());
        let job = eventually(&format!("Job {name}"), PATIENCE, async || {
            Ok(jobs.get(&name).await?)
        })
        .await?;
        let pod = job.spec.and_then(|spec| spec.template.spec).unwrap_or_default();
        ensure!(pod.scheduling_gates.is_some(), "{name} was made without its gang");
    }
    control_plane.stop().await.map(drop)
}

/// The control plane sees Jobs end, fail and resume afterwards, and touches nothing else until
/// then.
async fn goes_on(client: &Client) -> Result<()> {
    let jobs: Api<Job> = Api::namespaced(client.clone(), NAMESPACE);
    let jobsets: Api<JobSet> = Api::namespaced(client.clone(), NAMESPACE);
    let merge = PatchParams::default();
    let driver = json!({"status": ended("Complete", "CompletionsReached")});
    for job in ["running-workers-0", "running-workers-1"] {
        jobs.patch_status(job, &merge, &Patch::Merge(&driver)).await?;
    }
    has(&jobsets, "running", "/terminalState", json!("Completed")).await?;

    let failure = json!({"status": ended("Failed", "BackoffLimitExceeded")});
    jobs.patch_status("restarted-workers-0", &merge, &Patch::Merge(&failure))
        .await?;
    has(&jobsets, "restarted", "/restarts", json!(3)).await?;
    has(&jobsets, "restarted", "/restartsCountTowardsMax", json!(2)).await?;

    let ready = json!({"status": {"active": 1, "ready": 1, "startTime": "2026-01-01T00:00:00Z"}});
    for job in ["staged-workers-0", "staged-workers-1"] {
        jobs.patch_status(job, &merge, &Patch::Merge(&ready)).await?;
        jobs.patch_status(job, &merge, &Patch::Merge(&driver)).await?;
    }
    eventually("the next stage begins", PATIENCE, async || {
        Ok(jobs.get("staged-report-0").await.map(drop)?)
    })
    .await?;

    let suspended = jobs.get("suspended-workers-0").await?;
    let resume = Patch::Merge(json!({"spec": {"suspend": false}}));
    jobsets.patch("suspended", &merge, &resume).await?;
    eventually("the suspended Job is resumed", PATIENCE, async || {
        let now = jobs.get("suspended-workers-0").await?;
        ensure!(now.uid() == suspended.uid(), "it was recreated");
        ensure!(
            now.spec.and_then(|spec| spec.suspend) == Some(false),
            "still suspended"
        );
        Ok(())
    })
    .await
}

fn ended(how: &str, reason: &str) -> Value {
    let before = if how == "Complete" {
        "SuccessCriteriaMet"
    } else {
        "FailureTarget"
    };
    let time = "2026-01-01T00:00:00Z";
    let condition =
        |type_: &str| json!({"type": type_, "status": "True", "reason": reason, "lastTransitionTime": time});
    let mut status = json!({
        "active": 0, "ready": 0, "startTime": time, "uncountedTerminatedPods": {},
        "conditions": [condition(before), condition(how)],
    });
    if how == "Complete" {
        status["succeeded"] = json!(1);
        status["completionTime"] = json!(time);
    }
    status
}

async fn has(jobsets: &Api<JobSet>, name: &str, pointer: &str, value: Value) -> Result<()> {
    eventually(&format!("{pointer} of {name} is {value}"), PATIENCE, async || {
        let status = serde_json::to_value(jobsets.get(name).await?.status)?;
        ensure!(status.pointer(pointer) == Some(&value), "{status}");
        Ok(())
    })
    .await
}

/// The version of each object, which changes with every write to it.
async fn everything(client: &Client) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    all.extend(versions::<JobSet>(client, "JobSet").await?);
    all.extend(versions::<Job>(client, "Job").await?);
    all.extend(versions::<Service>(client, "Service").await?);
    all.remove("Service kubernetes");
    Ok(all)
}

async fn versions<K>(client: &Client, kind: &str) -> Result<Vec<(String, String)>>
where
    K: Clone + std::fmt::Debug + DeserializeOwned,
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
{
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    let objects = api.list(&ListParams::default()).await?.items;
    Ok(objects
        .into_iter()
        .map(|object| {
            let version = object.resource_version().unwrap_or_default();
            (format!("{kind} {}", object.name_any()), version)
        })
        .collect())
}
