//! One JobSet in a namespace of its own. The test plays the kubelet.

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use lockstep_api::{JobSet, JobSetStatus, labels};
use lockstep_integration::harness::{Namespace, eventually};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::control_plane::ControlPlane;

/// How long any wait may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long a refused pod may take: the Job controller tries again after a minute at most.
pub(crate) const REFUSED: Duration = Duration::from_secs(120);

/// The hub's CA, once the control plane has written it into this folder.
pub(crate) async fn hub_ca_in(dir: &Path) -> Result<String> {
    eventually("the hub's CA", PATIENCE, async || {
        Ok(std::fs::read_to_string(dir.join("ca.crt"))?)
    })
    .await
}

/// A JobSet under test.
pub(crate) struct Scene {
    pub(crate) namespace: Namespace,
    control_plane: ControlPlane,
}

/// A replicatedJob of Jobs with one pod each, which must not fail.
pub(crate) fn replicated_job(name: &str, replicas: i32) -> Value {
    json!({
        "name": name,
        "replicas": replicas,
        "template": {"spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 0,
            "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "worker", "image": "none"}],
            }},
        }},
    })
}

/// A JobSet `js`.
pub(crate) fn jobset(spec: Value) -> Value {
    json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "js"}, "spec": spec})
}

impl Scene {
    pub(crate) fn new(namespace: Namespace, control_plane: ControlPlane) -> Self {
        Self {
            namespace,
            control_plane,
        }
    }

    pub(crate) fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// A scene beside this one.
    pub(crate) async fn another(&self) -> Result<Self> {
        Ok(Self::new(
            self.namespace.access.namespace("jobset").await?,
            self.control_plane.clone(),
        ))
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client(), &self.namespace.name)
    }

    pub(crate) fn client(&self) -> Client {
        self.namespace.access.client.clone()
    }

    /// The hub's CA as daemons receive it.
    pub(crate) async fn hub_ca(&self) -> Result<String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client(), "lockstep-system");
        eventually("the hub's CA", PATIENCE, async || {
            let map = maps.get("lockstep-hub-ca").await?;
            map.data
                .and_then(|mut data| data.remove("ca.crt"))
                .context("no ca.crt")
        })
        .await
    }

    pub(crate) async fn create(&self, manifest: Value) -> Result<JobSet> {
        Ok(self
            .api()
            .create(&PostParams::default(), &serde_json::from_value(manifest)?)
            .await?)
    }

    /// Waits until a quota refuses another object like this. Until the quota has counted existing
    /// objects it refuses all of them, with another message.
    pub(crate) async fn until_quota_refuses<K>(&self, object: Value) -> Result<()>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + DeserializeOwned
            + Serialize
            + Clone
            + Debug,
    {
        let object: K = serde_json::from_value(object)?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        eventually("the quota holds", PATIENCE, async || {
            let made = self.api().create(&dry_run, &object).await;
            let holds =
                matches!(&made, Err(kube::Error::Api(status)) if status.message.contains("exceeded quota"));
            ensure!(holds, "{made:?}");
            Ok(())
        })
        .await
    }

    /// Changes the JobSet by a merge patch.
    pub(crate) async fn patch(&self, patch: Value) -> Result<JobSet> {
        Ok(self
            .api()
            .patch("js", &PatchParams::default(), &Patch::Merge(patch))
            .await?)
    }

    pub(crate) async fn status(&self) -> Result<JobSetStatus> {
        self.api::<JobSet>()
            .get("js")
            .await?
            .status
            .context("no status yet")
    }

    /// Waits until the status meets `expected`.
    pub(crate) async fn until_status(
        &self,
        what: &str,
        expected: impl Fn(&JobSetStatus) -> bool,
    ) -> Result<JobSetStatus> {
        eventually(what, PATIENCE, async || {
            let status = self.status().await?;
            ensure!(expected(&status), "{}", serde_json::to_string(&status)?);
            Ok(status)
        })
        .await
    }

    /// Waits for a condition to have this status and reason.
    pub(crate) async fn until_condition(
        &self,
        type_: &str,
        status: &str,
        reason: &str,
    ) -> Result<JobSetStatus> {
        let what = format!("{type_} is {status}, {reason}");
        self.until_status(&what, |seen| {
            seen.condition(type_)
                .is_some_and(|condition| condition.status == status && condition.reason == reason)
        })
        .await
    }

    pub(crate) async fn jobs(&self) -> Result<Vec<Job>> {
        let mut jobs = self.api::<Job>().list(&ListParams::default()).await?.items;
        jobs.sort_by_key(ResourceExt::name_any);
        Ok(jobs)
    }

    /// Waits until exactly these Jobs exist, all of this restart attempt and none being deleted.
    pub(crate) async fn until_jobs(&self, names: &[&str], attempt: i32) -> Result<Vec<Job>> {
        let wanted: Vec<String> = names.iter().map(|name| format!("{name} {attempt}")).collect();
        self.until_seen(&wanted).await
    }

    /// Waits until these Jobs are there and no others, each with its restart attempt, as `<name>
    /// <attempt>`; those on their way out with ` going` after that.
    pub(crate) async fn until_seen<S: AsRef<str> + Debug>(&self, wanted: &[S]) -> Result<Vec<Job>> {
        eventually(&format!("jobs {wanted:?}"), PATIENCE, async || {
            let jobs = self.jobs().await?;
            let seen = jobs.iter().map(|job| {
                let going = if job.meta().deletion_timestamp.is_some() {
                    " going"
                } else {
                    ""
                };
                let attempt = &job.labels()[labels::RESTART_ATTEMPT];
                format!("{} {attempt}{going}", job.name_any())
            });
            let seen: Vec<String> = seen.collect();
            ensure!(seen.iter().eq(wanted.iter().map(AsRef::as_ref)), "{seen:?}");
            Ok(jobs)
        })
        .await
    }

    /// Plays the kubelet: every pod of the Job gets this phase.
    pub(crate) async fn pods_become(&self, job: &str, phase: &str) -> Result<()> {
        let ready = if phase == "Running" { "True" } else { "False" };
        let status = json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]});
        self.pods_show(job, |_| status.clone()).await
    }

    /// Plays the kubelet: the first container of every pod of the Job has ended with this code.
    pub(crate) async fn pods_exit(&self, job: &str, code: i32) -> Result<()> {
        let ended = |pod: &Pod| {
            let name = pod.spec.as_ref().map(|spec| &spec.containers[0].name);
            json!({
                "phase": "Failed",
                "conditions": [{"type": "Ready", "status": "False"}],
                "containerStatuses": [{
                    "name": name, "image": "none", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": code}},
                }],
            })
        };
        self.pods_show(job, ended).await
    }

    /// Plays the kubelet: writes the status of every pod of the Job.
    async fn pods_show(&self, job: &str, status: impl Fn(&Pod) -> Value) -> Result<()> {
        let of_job = ListParams::default().labels(&format!("{}={job}", labels::BATCH_JOB_NAME));
        eventually(
            &format!("the pods of {job} show their status"),
            PATIENCE,
            async || {
                let pods = self.api::<Pod>().list(&of_job).await?.items;
                let pods: Vec<Pod> = pods
                    .into_iter()
                    .filter(|pod| pod.meta().deletion_timestamp.is_none())
                    .collect();
                ensure!(!pods.is_empty(), "no pod yet");
                for pod in pods {
                    let api = self.api::<Pod>();
                    let status = Patch::Merge(json!({"status": status(&pod)}));
                    api.patch_status(&pod.name_any(), &PatchParams::default(), &status)
                        .await?;
                }
                Ok(())
            },
        )
        .await
    }

    pub(crate) async fn all_pods_become(&self, phase: &str) -> Result<()> {
        for job in self.jobs().await? {
            self.pods_become(&job.name_any(), phase).await?;
        }
        Ok(())
    }

    /// Waits until the Job controller has deleted all pods of suspended Jobs, which is some time
    /// after it marks the Jobs suspended. A Job that resumes earlier still has its former pods, and
    /// loses them.
    pub(crate) async fn until_no_pods(&self) -> Result<()> {
        eventually("no pod is left", PATIENCE, async || {
            let pods = self.api::<Pod>().list(&ListParams::default()).await?.items;
            let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
            ensure!(names.is_empty(), "{names:?}");
            Ok(())
        })
        .await
    }

    /// Waits for an event with this reason about the JobSet; returns its note.
    pub(crate) async fn until_event(&self, reason: &str) -> Result<String> {
        eventually(&format!("an event {reason}"), PATIENCE, async || {
            let events = self.api::<Event>().list(&ListParams::default()).await?.items;
            let found = events.into_iter().find(|event| {
                event.reason.as_deref() == Some(reason)
                    && event
                        .regarding
                        .as_ref()
                        .is_some_and(|object| object.kind.as_deref() == Some("JobSet"))
            });
            let event = found.context("no such event")?;
            ensure!(
                event.action.as_deref() == Some("Reconciling"),
                "action {:?}",
                event.action
            );
            Ok(event.note.unwrap_or_default())
        })
        .await
    }
}
