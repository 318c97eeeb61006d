//! Admission of JobSets: defaults when they are created, refusal of what cannot be.

use std::collections::BTreeMap;
use std::future::ready;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use kube::{Api, Client};
use lockstep_api::{GROUP, JobSet, KIND, VERSION};
use lockstep_core::admission::{self, Existing};
use lockstep_core::features::Features;
use lockstep_core::network;
use lockstep_core::patterns::Patterns;
use lockstep_core::validation::Violation;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::patch;
use super::refusal::Refusal;
use super::review::{Allowed, Operation, Request};
use crate::apply::said;
use crate::unfit;

/// How many volume claims are looked up at once.
const CLAIMS_AT_ONCE: usize = 8;

/// Who compiles patterns now: two at a time, so that those who state many leave cores to others.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Applies the defaults to a JobSet that is created, and puts back what an update leaves out of its lists.
///
/// One that lacks a required field passes as it is: the API server compares it with the schema next, and answers with 422, as it does where
/// upstream fills in an empty value.
pub(super) fn mutate(request: &Request) -> Result<Allowed, Refusal> {
    let before = match request.operation {
        Operation::Create | Operation::Update => match read(&request.object) {
            Err(Refusal::Incomplete(_)) => return Ok(Allowed::default()),
            read => read?,
        },
        Operation::Delete | Operation::Connect => return Ok(Allowed::default()),
    };
    let after = if request.operation == Operation::Create {
        let mut after = before.clone();
        admission::default(&mut after);
        after
    } else {
        completed(&read(&request.old_object)?, &before)
    };
    let patch = patch::diff(&request.object, &before, &after);
    Ok(Allowed {
        patch: patch.map_err(|error| Refusal::Internal(error.to_string()))?,
        warnings: admission::restated(&before, &after),
    })
}

/// The new JobSet with the defaults that the old one has in its lists.
///
/// `kubectl apply` of the manifest that a JobSet was created from replaces whole lists, and with them the defaults in their items, which
/// are immutable. Upstream refuses that. A JobSet that never had the defaults is not given them. Those that follow from what is changed are made anew.
fn completed(old: &JobSet, new: &JobSet) -> JobSet {
    let with_defaults_in_lists = |jobset: &JobSet| {
        let mut defaulted = jobset.clone();
        admission::default(&mut defaulted);
        let (spec, stated) = (&mut defaulted.spec, jobset.spec.clone());
        spec.network = stated.network;
        spec.success_policy = stated.success_policy;
        spec.startup_policy = stated.startup_policy;
        spec.execution_policy = stated.execution_policy;
        defaulted
    };
    if with_defaults_in_lists(old) == *old {
        let mut new = new.clone();
        admission::restate(old, &mut new);
        with_defaults_in_lists(&new)
    } else {
        new.clone()
    }
}

/// Refuses a JobSet that cannot be, or a change that must not be. What it sees is what is stored: where updates do not pass [`mutate`]
/// first, as with upstream's configuration, one that drops immutable defaults is refused. Returns what the user of one that is not refused
/// should know.
pub(super) async fn validate(
    request: &Request,
    features: Features,
    client: &Client,
) -> Result<Vec<String>, Refusal> {
    let (jobset, violations, warnings) = match request.operation {
        Operation::Create => {
            let (jobset, mut violations) = judged(read(&request.object)?, features).await?;
            // Its names are known to be names by then.
            if violations.is_empty() {
                violations = claims(&jobset, &request.namespace, client).await;
            }
            let mut warnings = admission::create_warnings(&jobset, &features);
            if violations.is_empty() {
                warnings.extend(service_in_the_way(&jobset, &request.namespace, client).await);
            }
            (jobset, violations, warnings)
        }
        Operation::Update => {
            let (old, new) = (read(&request.old_object)?, read(&request.object)?);
            let violations = admission::validate_update(&old, &new, &features);
            let warnings = admission::update_warnings(&old, &new, &features);
            (new, violations, warnings)
        }
        Operation::Delete | Operation::Connect => return Ok(Vec::new()),
    };
    if violations.is_empty() {
        return Ok(warnings);
    }
    Err(Refusal::Invalid {
        group: GROUP,
        kind: KIND.to_owned(),
        name: jobset.name().to_owned(),
        violations,
    })
}

/// A JobSet that is being created, and what is wrong with it. One with patterns takes up to a tenth
/// of a second, on a thread that nobody else needs.
async fn judged(jobset: JobSet, features: Features) -> Result<(JobSet, Vec<Violation>), Refusal> {
    let has_patterns = Patterns::are_stated(&jobset);
    let judge = move || {
        let violations = admission::validate_create(&jobset, &features);
        (jobset, violations)
    };
    if !has_patterns {
        return Ok(judge());
    }
    let internal = |error: &dyn std::error::Error| Refusal::Internal(error.to_string());
    let _turn = TURNS.acquire().await.map_err(|error| internal(&error))?;
    spawn_blocking(judge).await.map_err(|error| internal(&error))
}

/// What is wrong with the volume claims that the JobSet would share with those that exist. One that cannot be looked up is refused as upstream does.
async fn claims(jobset: &JobSet, namespace: &str, client: &Client) -> Vec<Violation> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let look_up = async |name: String| {
        let found = api.get_opt(&name).await.map_err(|error| said(&error));
        Some((name, found.transpose()?))
    };
    let claims: BTreeMap<String, Existing> = stream::iter(admission::claim_names(jobset))
        .map(look_up)
        .buffered(CLAIMS_AT_ONCE)
        .filter_map(ready)
        .collect()
        .await;
    admission::validate_claims(jobset, &claims)
}

/// A warning where the name of the JobSet's Service is taken. The event of its controller says the same; of one that cannot be looked up it says all.
async fn service_in_the_way(jobset: &JobSet, namespace: &str, client: &Client) -> Option<String> {
    if !jobset.dns_hostnames() {
        return None;
    }
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let there = api.get_opt(jobset.subdomain()).await.ok()??;
    network::in_the_way(jobset, &there).map(|fault| format!("spec.network.subdomain: {fault}"))
}

fn read(object: &Value) -> Result<JobSet, Refusal> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let expected = format!("{GROUP}/{VERSION}");
    if (text("apiVersion"), text("kind")) != (expected.as_str(), KIND) {
        return Err(Refusal::Unreadable(format!(
            "expected {expected} {KIND}, not {:?} {:?}",
            text("apiVersion"),
            text("kind")
        )));
    }
    serde_path_to_error::deserialize(object).map_err(|error| {
        let sentence = format!("JobSet: {}", unfit::sentence(&error));
        if unfit::is_missing(&error) {
            Refusal::Incomplete(sentence)
        } else {
            Refusal::Unreadable(sentence)
        }
    })
}
