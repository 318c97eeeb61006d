//! Writes of Ray's controllers.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::{Client, Resource};
use lockstep_api::JobSet;
use lockstep_core::plan::JobRef;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::apply::is_status;

/// Why an object could not be brought closer to what it asks for.
#[derive(Debug, Error)]
pub(super) enum RayError {
    /// Somebody else has written in between, or the watch is behind: the next decision will be about what is there then.
    #[error("{0} has changed meanwhile")]
    Conflict(String),
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
    created.map(drop).map_err(RayError::of(described(object)))?;
    tracing::info!(object = described(object), "created");
    Ok(())
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
    replaced.map(drop).map_err(RayError::of(described(object)))?;
    tracing::info!(object = described(object), "changed");
    Ok(())
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
        Err(error) if !is_status(&error, 404) => {
            Err(RayError::of(format!("status of {}", described(object)))(error))
        }
        _ => Ok(()),
    }
}

/// Deletes one JobSet, and all that belongs to it before.
pub(super) async fn delete_jobset(client: &Client, namespace: &str, jobset: &JobRef) -> Result<(), RayError> {
    let api: Api<JobSet> = Api::namespaced(client.clone(), namespace);
    let exactly = Preconditions {
        uid: Some(jobset.uid.clone()),
        resource_version: None,
    };
    let params = DeleteParams::foreground().preconditions(exactly);
    match api.delete(&jobset.name, &params).await {
        Err(error) if !is_status(&error, 404) => Err(RayError::of(format!("JobSet {}", jobset.name))(error)),
        _ => {
            tracing::info!(jobset = jobset.name, "deleted");
            Ok(())
        }
    }
}
