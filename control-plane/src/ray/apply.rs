//! Writes of Ray's controllers.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource};
use lockstep_api::JobSet;
use lockstep_api::annotations::RESTART_REQUEST;
use lockstep_api::ray::RayJob;
use lockstep_api::ray::keys::JOB_STATUS;
use lockstep_core::plan::{self, JobRef};
use lockstep_core::ray::job::{FINALIZER, Pods};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use thiserror::Error;

use crate::apply::{is_status, said};

/// Why an object could not be brought closer to what it asks for.
#[derive(Debug, Error)]
pub(super) enum RayError {
    /// Somebody else has written in between, or the watch is behind: the next decision will be about what is there then.
    #[error("{0} has changed meanwhile")]
    Conflict(String),
    /// Ray's dashboard did not take a job.
    #[error("the dashboard: {0}")]
    Dashboard(String),
    /// Ray's dashboard will not take the job, however often it is asked.
    #[error("the dashboard: {0}")]
    Refused(String),
    /// The API server would not have an object created: by a quota, a policy, or for want of a permission.
    #[error("{what} cannot be created: {}", said(error))]
    Create {
        /// Its kind.
        kind: String,
        /// Its kind and name.
        what: String,
        /// What the API server said.
        error: kube::Error,
    },
    /// The API server, or a webhook, would not have an object changed.
    #[error("{what} cannot be changed: {}", said(error))]
    Change {
        /// Its kind.
        kind: String,
        /// Its kind and name.
        what: String,
        /// What the API server said.
        error: kube::Error,
    },
    /// The API server did not answer, or refused.
    #[error("{what}: {error}")]
    Api {
        /// What was to be read or written.
        what: String,
        /// What it said.
        error: kube::Error,
    },
}

impl RayError {
    pub(super) fn of(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        |error| {
            if is_status(&error, 409) {
                Self::Conflict(what)
            } else {
                Self::Api { what, error }
            }
        }
    }

    /// What users are to be told of it, by the reason that KubeRay gives.
    pub(super) fn event(&self) -> Option<plan::Event> {
        let reason = match self {
            Self::Create { kind, .. } => match kind.as_str() {
                "Job" => "FailedToCreateRayJobSubmitter".to_owned(),
                // Its RayCronJob is told by the word that CronJobs have for it.
                "RayJob" => return None,
                kind => format!("FailedToCreate{kind}"),
            },
            Self::Change { kind, .. } => format!("FailedToUpdate{kind}"),
            _ => return None,
        };
        Some(plan::Event {
            severity: plan::Severity::Warning,
            reason,
            message: self.to_string(),
        })
    }
}

fn described<K: Resource<DynamicType = ()>>(object: &K) -> String {
    format!(
        "{} {}",
        K::kind(&()),
        object.meta().name.as_deref().unwrap_or_default()
    )
}

fn api<K>(client: &Client, object: &K) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(
        client.clone(),
        object.meta().namespace.as_deref().unwrap_or_default(),
    )
}

/// Reads an object, not from a watch.
pub(super) async fn get<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<Arc<K>>, RayError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let found = api.get_opt(name).await;
    Ok(found
        .map_err(RayError::of(format!("{} {name}", K::kind(&()))))?
        .map(Arc::new))
}

/// Creates an object. One that exists already is a conflict: the watch shows it soon.
pub(super) async fn create<K>(client: &Client, object: &K) -> Result<(), RayError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug,
{
    let created = api(client, object).create(&PostParams::default(), object).await;
    match created {
        Ok(_) => {
            tracing::info!(object = described(object), "created");
            Ok(())
        }
        Err(error @ kube::Error::Api(_)) if !is_status(&error, 409) => Err(RayError::Create {
            kind: K::kind(&()).into_owned(),
            what: described(object),
            error,
        }),
        Err(error) => Err(RayError::of(described(object))(error)),
    }
}

/// Puts an object in the place of the version that it was made from.
pub(super) async fn replace<K>(client: &Client, object: &K) -> Result<(), RayError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug,
{
    let name = object.meta().name.clone().unwrap_or_default();
    let replaced = api(client, object)
        .replace(&name, &PostParams::default(), object)
        .await;
    match replaced {
        Ok(_) => {
            tracing::info!(object = described(object), "changed");
            Ok(())
        }
        // One that is gone is made anew.
        Err(error @ kube::Error::Api(_)) if !is_status(&error, 409) && !is_status(&error, 404) => {
            Err(RayError::Change {
                kind: K::kind(&()).into_owned(),
                what: described(object),
                error,
            })
        }
        Err(error) => Err(RayError::of(described(object))(error)),
    }
}

/// Writes a status on top of exactly the version that `object` was made from. What is gone needs none.
pub(super) async fn write_status<K>(client: &Client, object: &K) -> Result<(), RayError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Serialize
        + DeserializeOwned
        + Clone
        + Debug,
{
    let name = object.meta().name.clone().unwrap_or_default();
    match api(client, object)
        .replace_status(&name, &PostParams::default(), object)
        .await
    {
        Err(error) if is_status(&error, 404) => Ok(()),
        written => written
            .map(drop)
            .map_err(RayError::of(format!("status of {}", described(object)))),
    }
}

/// Deletes one object, and all that belongs to it before.
pub(super) async fn delete<K>(client: &Client, namespace: &str, object: &JobRef) -> Result<(), RayError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    delete_with::<K>(client, namespace, object, DeleteParams::foreground()).await
}

/// Deletes one submitter, after its pods or before.
pub(super) async fn delete_submitter(
    client: &Client,
    namespace: &str,
    submitter: &JobRef,
    pods: Pods,
) -> Result<(), RayError> {
    let params = match pods {
        Pods::First => DeleteParams::foreground(),
        Pods::Later => DeleteParams::background(),
    };
    delete_with::<Job>(client, namespace, submitter, params).await
}

async fn delete_with<K>(
    client: &Client,
    namespace: &str,
    object: &JobRef,
    params: DeleteParams,
) -> Result<(), RayError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let exactly = Preconditions {
        uid: Some(object.uid.clone()),
        resource_version: None,
    };
    let params = params.preconditions(exactly);
    let what = format!("{} {}", K::kind(&()), object.name);
    match api.delete(&object.name, &params).await {
        Err(error) if !is_status(&error, 404) => Err(RayError::of(what)(error)),
        _ => {
            tracing::info!(object = what, "deleted");
            Ok(())
        }
    }
}

/// Has all workers of one JobSet started anew, once for each word.
pub(super) async fn request_restart(
    client: &Client,
    namespace: &str,
    jobset: &JobRef,
    word: &str,
) -> Result<(), RayError> {
    let api: Api<JobSet> = Api::namespaced(client.clone(), namespace);
    let patch = json!({"metadata": {"uid": jobset.uid, "annotations": {RESTART_REQUEST: word}}});
    let patched = api
        .patch(&jobset.name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    patched.map_err(RayError::of(format!("JobSet {}", jobset.name)))?;
    tracing::info!(jobset = jobset.name, word, "asked for a restart in place");
    Ok(())
}

/// Writes the annotation that stands for what the definition of RayJobs drops of the status, or takes it away, on top of exactly this version.
/// Gives the version that it makes.
pub(super) async fn remember(
    client: &Client,
    job: &RayJob,
    memory: Option<&str>,
) -> Result<Option<String>, RayError> {
    let patch = json!({"metadata": {
        "uid": job.metadata.uid,
        "resourceVersion": job.metadata.resource_version,
        "annotations": {JOB_STATUS: memory},
    }});
    let patched = api(client, job)
        .patch_metadata(job.name(), &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        Err(error) if is_status(&error, 404) => Ok(None),
        patched => {
            let patched = patched.map_err(RayError::of(described(job)))?;
            Ok(patched.metadata.resource_version)
        }
    }
}

/// Puts the finalizer on a RayJob, or takes it away, on top of exactly this version.
pub(super) async fn set_finalizer(client: &Client, job: &RayJob, there: bool) -> Result<(), RayError> {
    let mut finalizers = job.metadata.finalizers.clone().unwrap_or_default();
    finalizers.retain(|name| name != FINALIZER);
    if there {
        finalizers.push(FINALIZER.to_owned());
    }
    let patch = json!({"metadata": {
        "uid": job.metadata.uid,
        "resourceVersion": job.metadata.resource_version,
        "finalizers": finalizers,
    }});
    // Of its metadata alone: what there is of it otherwise may be nothing that can be read.
    let patched = api(client, job)
        .patch_metadata(job.name(), &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        Err(error) if !is_status(&error, 404) => Err(RayError::of(described(job))(error)),
        _ => Ok(()),
    }
}
