//! Requests for worker restarts: their checks, and the annotation that asks for the restart.
//!
//! Promises: a request is refused before anything is written. A pending request is never
//! overwritten by another one.

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use lockstep_api::annotations::{RESTART_WORKERS, RestartScope};
use lockstep_api::{JobSet, ReplicatedJob, Target, WorkerRestartRequest};
use lockstep_core::jobset::target::{self, NoWorkers};
use lockstep_core::restart::{Identity, Observed, RestartLevel, Scope, WORKER_RESTARTS_AT_ONCE, Worker};
use serde_json::json;
use tonic::Status;

use super::authorize::location;
use super::error_details::{CallError, Reason};
use super::written::{self, Unwritten};
use crate::controllers::restart::board::Key;
use crate::k8s::watch::lean::Lean;

/// How often to try again if another client has changed the JobSet.
const ATTEMPTS: usize = 5;

/// Checks that these workers may be restarted without the others.
///
/// # Errors
/// `NOT_FOUND` if the JobSet has none of them; `FAILED_PRECONDITION` if they can only be restarted
/// with all others.
pub(super) fn check(target: &Target, jobset: &JobSet, observed: &Observed) -> Result<(), Status> {
    let replicated_job = find(target, jobset)?;
    let name = &replicated_job.name;
    let refused = |reason, why: &str| {
        let message = format!(
            "only: the workers of replicatedJob {name} cannot be restarted without the others: {why}"
        );
        let refused = CallError::new(reason, message).of(jobset.ns(), jobset.name());
        Err(refused.with("field", "only").with("replicatedJob", name).into())
    };
    if replicated_job.restart_scope() != Ok(RestartScope::Worker) {
        return refused(
            Reason::NotWorkerScope,
            "they run in step with others, which would fail without them. Restart the whole group; or, if they need no others, give \
             the Job template the annotation lockstep.dev/restart-scope: worker",
        );
    }
    let is_target = |(identity, worker): &(&Identity, &Worker)| {
        target.takes(&worker.stage, &identity.job, identity.index, &identity.container)
    };
    let targets: Vec<&Worker> = observed
        .workers
        .iter()
        .filter(is_target)
        .map(|(_, worker)| worker)
        .collect();
    if targets.iter().any(|worker| worker.level != RestartLevel::Process) {
        return refused(
            Reason::NotWorkerScope,
            "they have no agent (because of lockstep.dev/supervise, or of a probe or hook that rules one out)",
        );
    }
    if targets.iter().any(|worker| worker.scope != Scope::Worker) {
        return refused(
            Reason::NotWorkerScope,
            "the node daemon of a node with workers of the group has a version without worker restarts",
        );
    }
    if targets.len() > WORKER_RESTARTS_AT_ONCE {
        let count = targets.len();
        let why = format!(
            "{count} workers are more than the {WORKER_RESTARTS_AT_ONCE} that may restart at a time; restart its Jobs one after another"
        );
        return refused(Reason::TooManyWorkers, &why);
    }
    Ok(())
}

/// The replicatedJob of these workers.
///
/// # Errors
/// `NOT_FOUND` if the JobSet has no such workers.
fn find<'j>(target: &Target, jobset: &'j JobSet) -> Result<&'j ReplicatedJob, Status> {
    target::find(target, jobset).map_err(|NoWorkers { field, what }| {
        let field = format!("only.{field}");
        let location = location(jobset.ns(), jobset.name());
        let message = format!("{field}: the JobSet{location} has no {what}");
        let refused = CallError::new(Reason::WorkersNotFound, message).of(jobset.ns(), jobset.name());
        Status::from(refused.with("field", field))
    })
}

/// Writes the annotation that asks for the restart, unless it is there.
///
/// # Errors
/// Why the annotation could not be written.
pub(super) async fn request(
    client: Client,
    key: &Key,
    uid: &str,
    wish: &WorkerRestartRequest,
) -> Result<(), Status> {
    let location = location(&key.namespace, &key.name);
    let api: Api<Lean<JobSet>> = Api::namespaced(client, &key.namespace);
    let refused = |reason, message: String| Status::from(CallError::new(reason, message).of_key(key));
    let unavailable = |error: kube::Error| {
        let message = format!("the API server does not answer: {error}");
        refused(Reason::ApiServerUnavailable, message)
    };
    let aborted = |reason, why: &str| refused(reason, format!("the JobSet{location} {why}; try again"));
    let changed = |why: &str| aborted(Reason::JobsetChanged, why);
    let text = wish.to_string();
    for _ in 0..ATTEMPTS {
        let jobset = api.get_opt(&key.name).await.map_err(unavailable)?;
        let jobset = jobset.map(|Lean(jobset)| jobset);
        let jobset = jobset.filter(|jobset| jobset.uid_str() == uid);
        let jobset = jobset.ok_or_else(|| changed("was deleted or recreated meanwhile"))?;
        if jobset.annotation(RESTART_WORKERS) == Some(&text) {
            return Ok(());
        }
        if is_pending(&jobset) {
            let why = "has another pending request for a worker restart";
            return Err(aborted(Reason::RequestPending, why));
        }
        let patch = json!({"metadata": {
            "uid": uid,
            "resourceVersion": jobset.metadata.resource_version,
            "annotations": {RESTART_WORKERS: text},
        }});
        let patched = api
            .patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match patched {
            Ok(_) => {
                let (namespace, jobset) = (&key.namespace, &key.name);
                tracing::info!(namespace, jobset, request = text, "requested a worker restart");
                return Ok(());
            }
            Err(error) => match written::why(error, key) {
                // Try again with the current object.
                Unwritten::Gone(_) | Unwritten::Raced(_) => {}
                Unwritten::Final(status) => return Err(status),
            },
        }
    }
    Err(changed(&format!(
        "was changed by others {ATTEMPTS} times meanwhile"
    )))
}

/// True if the current request is not handled yet. An unreadable request is never pending.
fn is_pending(jobset: &JobSet) -> bool {
    let Ok(Some(request)) = jobset.worker_restart_request() else {
        return false;
    };
    let state = jobset
        .status
        .as_ref()
        .and_then(|status| status.in_place_restart.as_ref());
    state.and_then(|state| state.handled_worker_restart.as_deref()) != Some(&request.to_string())
}
