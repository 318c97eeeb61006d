//! Writes of Ray's controllers.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions, Request};
use kube::core::request;
use kube::{Client, Resource};
use lockstep_api::JobSet;
use lockstep_api::annotations::RESTART_REQUEST;
use lockstep_api::ray::RayJob;
use lockstep_api::ray::keys::JOB_STATUS;
use lockstep_core::jobset::plan::{self, JobRef};
use lockstep_core::ray::job::{FINALIZER, Pods};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;
use thiserror::Error;

use crate::k8s::apply::{error_message, is_status};

/// Why an object could not be reconciled.
#[derive(Debug, Error)]
pub(super) enum RayError {
    /// Another client wrote in between, or the watch lags. The next decision takes that into
    /// account.
    #[error("{0} has changed since it was read")]
    Conflict(String),
    /// Ray's dashboard did not accept a job.
    #[error("the dashboard: {0}")]
    Dashboard(String),
    /// Ray's dashboard will never accept the job.
    #[error("the dashboard: {0}")]
    Refused(String),
    /// The API server refused to create an object, because of a quota, a policy, or a missing
    /// permission.
    #[error("{what} cannot be created: {}", error_message(error))]
    Create {
        /// Its kind.
        kind: String,
        /// Its kind and name.
        what: String,
        /// The API server's error.
        error: kube::Error,
    },
    /// The API server, or a webhook, refused to change an object.
    #[error("{what} cannot be changed: {}", error_message(error))]
    Change {
        /// Its kind.
        kind: String,
        /// Its kind and name.
        what: String,
        /// The API server's error.
        error: kube::Error,
    },
    /// The API server did not answer, or refused the request.
    #[error("{what}: {}", error_message(error))]
    Api {
        /// The object of the request.
        what: String,
        /// The API server's error.
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

    /// The event for users, with KubeRay's reason.
    pub(super) fn event(&self) -> Option<plan::Event> {
        let reason = match self {
            Self::Create { kind, .. } => match kind.as_str() {
                "Job" => "FailedToCreateRayJobSubmitter".to_owned(),
                // A RayCronJob's event has the reason that CronJobs use.
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

/// Reads an object from the API server, not from a watch.
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

/// The URL of objects of this kind in a namespace.
fn collection<K: Resource<DynamicType = ()>>(meta: &ObjectMeta) -> Request {
    Request::new(K::url_path(&(), meta.namespace.as_deref()))
}

/// Sends an object or a part of one. The answer is as long as the object, so it is not parsed.
async fn send(client: &Client, request: Result<http::Request<Vec<u8>>, request::Error>) -> kube::Result<()> {
    let request = request.map_err(kube::Error::BuildRequest)?;
    client.request::<IgnoredAny>(request).await.map(drop)
}

/// An object to write, as text, because a parsed object takes far more memory.
pub(super) struct Text {
    kind: String,
    /// Its kind and name.
    what: String,
    name: String,
    collection: Request,
    body: serde_json::Result<Vec<u8>>,
}

impl Text {
    pub(super) fn of<K>(object: &K) -> Self
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
    {
        Self {
            kind: K::kind(&()).into_owned(),
            what: described(object),
            name: object.meta().name.clone().unwrap_or_default(),
            collection: collection::<K>(object.meta()),
            body: serde_json::to_vec(object),
        }
    }
}

/// Creates an object. One that exists already is a conflict, and the watch shows it soon.
pub(super) async fn create(client: &Client, text: Text) -> Result<(), RayError> {
    let Text { kind, what, .. } = text;
    let request = |body| text.collection.create(&PostParams::default(), body);
    let written = write(client, &what, "created", text.body, request).await;
    written.map_err(|error| match error {
        error @ kube::Error::Api(_) if !is_status(&error, 409) => RayError::Create { kind, what, error },
        error => RayError::of(what)(error),
    })
}

/// Replaces an object on top of exactly the version that it was made from. If the object is gone,
/// the caller decides again.
pub(super) async fn replace(client: &Client, text: Text) -> Result<(), RayError> {
    let Text { kind, what, .. } = text;
    let request = |body| text.collection.replace(&text.name, &PostParams::default(), body);
    let written = write(client, &what, "changed", text.body, request).await;
    written.map_err(|error| match error {
        error @ kube::Error::Api(_) if !is_status(&error, 409) && !is_status(&error, 404) => {
            RayError::Change { kind, what, error }
        }
        error => RayError::of(what)(error),
    })
}

/// Sends a whole object, and logs the write.
async fn write(
    client: &Client,
    what: &str,
    done: &'static str,
    body: serde_json::Result<Vec<u8>>,
    request: impl FnOnce(Vec<u8>) -> Result<http::Request<Vec<u8>>, request::Error>,
) -> kube::Result<()> {
    send(client, request(body.map_err(kube::Error::SerdeError)?)).await?;
    tracing::info!(object = what, "{done}");
    Ok(())
}

/// Writes the status of the object with this metadata, on top of exactly its version. An object
/// that is gone needs no status. The endpoint ignores the rest of the object.
pub(super) async fn write_status<K>(
    client: &Client,
    meta: &ObjectMeta,
    status: &impl Serialize,
) -> Result<(), RayError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let name = meta.name.as_deref().unwrap_or_default();
    let update = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        },
        "status": status,
    });
    let body = update.to_string().into_bytes();
    let request = collection::<K>(meta).replace_subresource("status", name, &PostParams::default(), body);
    match send(client, request).await {
        Err(error) if is_status(&error, 404) => Ok(()),
        written => written.map_err(RayError::of(format!("status of {} {name}", K::kind(&())))),
    }
}

/// Deletes an object, after all objects that belong to it.
pub(super) async fn delete<K>(client: &Client, namespace: &str, object: &JobRef) -> Result<(), RayError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Clone + Debug,
{
    delete_with::<K>(client, namespace, object, DeleteParams::foreground()).await
}

/// Deletes a submitter, before or after its pods.
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

/// Requests a restart of all workers of a JobSet. A token takes effect once.
pub(super) async fn request_restart(
    client: &Client,
    namespace: &str,
    jobset: &JobRef,
    token: &str,
) -> Result<(), RayError> {
    let api: Api<JobSet> = Api::namespaced(client.clone(), namespace);
    let patch = json!({"metadata": {"uid": jobset.uid, "annotations": {RESTART_REQUEST: token}}});
    // The answer is not read, and metadata is the shortest.
    let patched = api
        .patch_metadata(&jobset.name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    patched.map_err(RayError::of(format!("JobSet {}", jobset.name)))?;
    tracing::info!(jobset = jobset.name, token, "requested a restart in place");
    Ok(())
}

/// Writes or removes the annotation for status fields that the CRD of RayJobs drops, on top of
/// exactly this version. Returns the new version.
pub(super) async fn write_status_annotation(
    client: &Client,
    job: &RayJob,
    value: Option<&str>,
) -> Result<Option<String>, RayError> {
    let patch = json!({"metadata": {
        "uid": job.metadata.uid,
        "resourceVersion": job.metadata.resource_version,
        "annotations": {JOB_STATUS: value},
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

/// Adds the finalizer to a RayJob, on top of exactly this version.
pub(super) async fn add_finalizer(client: &Client, job: &RayJob) -> Result<(), RayError> {
    let mut finalizers = other_finalizers(job);
    finalizers.push(FINALIZER.to_owned());
    write_finalizers(client, job, &finalizers).await
}

/// Removes the finalizer of a RayJob, on top of exactly this version.
pub(super) async fn remove_finalizer(client: &Client, job: &RayJob) -> Result<(), RayError> {
    write_finalizers(client, job, &other_finalizers(job)).await
}

fn other_finalizers(job: &RayJob) -> Vec<String> {
    let mut finalizers = job.metadata.finalizers.clone().unwrap_or_default();
    finalizers.retain(|name| name != FINALIZER);
    finalizers
}

async fn write_finalizers(client: &Client, job: &RayJob, finalizers: &[String]) -> Result<(), RayError> {
    let patch = json!({"metadata": {
        "uid": job.metadata.uid,
        "resourceVersion": job.metadata.resource_version,
        "finalizers": finalizers,
    }});
    // The patch has only metadata, because the rest may be unreadable.
    let patched = api(client, job)
        .patch_metadata(job.name(), &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched {
        Err(error) if !is_status(&error, 404) => Err(RayError::of(described(job))(error)),
        _ => Ok(()),
    }
}
