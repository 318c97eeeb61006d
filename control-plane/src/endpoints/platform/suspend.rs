//! Writes `spec.suspend` through the API server.
//!
//! Promises: the decision is made on the same object that the write changes, by its
//! resourceVersion. A JobSet that is already in the requested state is not written. Other fields
//! stay as they are.

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use lockstep_api::JobSet;
use serde_json::json;
use tonic::Status;

use super::authorize::location;
use super::error_details::{CallError, Reason};
use super::written::{self, Unwritten};
use crate::controllers::restart::board::Key;
use crate::k8s::watch::lean::Lean;

/// How often to try again if another client has changed the JobSet.
const ATTEMPTS: usize = 5;

/// The result.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Done {
    /// UID of the JobSet.
    pub(super) uid: String,
    /// True if the JobSet was in the other state before.
    pub(super) changed: bool,
}

/// Suspends or resumes a JobSet. `fits` checks it first.
///
/// # Errors
/// The error of `fits`, or why the JobSet could not be written.
pub(super) async fn set(
    client: Client,
    key: &Key,
    suspended: bool,
    fits: impl Fn(&JobSet) -> Result<(), Status>,
) -> Result<Done, Status> {
    let location = location(&key.namespace, &key.name);
    let api: Api<Lean<JobSet>> = Api::namespaced(client, &key.namespace);
    let refused = |reason, message: String| Status::from(CallError::new(reason, message).of_key(key));
    let unavailable = |error: kube::Error| {
        let message = format!("the API server does not answer: {error}");
        refused(Reason::ApiServerUnavailable, message)
    };
    let missing = || {
        let message = format!("name: there is no JobSet{location}");
        refused(Reason::JobsetNotFound, message)
    };
    for _ in 0..ATTEMPTS {
        let jobset = api.get_opt(&key.name).await.map_err(unavailable)?;
        let jobset = jobset.map(|Lean(jobset)| jobset);
        let jobset = jobset.ok_or_else(missing)?;
        fits(&jobset)?;
        let uid = jobset.uid_str().to_owned();
        if jobset.is_suspended() == suspended {
            return Ok(Done { uid, changed: false });
        }
        let patch = json!({
            "metadata": {"uid": uid, "resourceVersion": jobset.metadata.resource_version},
            "spec": {"suspend": suspended},
        });
        let patched = api
            .patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match patched {
            Ok(_) => {
                let (namespace, jobset) = (&key.namespace, &key.name);
                tracing::info!(namespace, jobset, suspended, "wrote spec.suspend on request");
                return Ok(Done { uid, changed: true });
            }
            Err(error) => match written::why(error, key) {
                Unwritten::Raced(_) => {}
                Unwritten::Gone(_) => return Err(missing()),
                Unwritten::Final(status) => return Err(status),
            },
        }
    }
    let message = format!("the JobSet{location} was changed by others {ATTEMPTS} times meanwhile; try again");
    Err(refused(Reason::JobsetChanged, message))
}
