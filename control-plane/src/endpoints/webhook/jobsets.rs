//! Admission of JobSets: defaults at creation, and validation.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::LazyLock;
use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use kube::{Api, Client, Resource};
use lockstep_api::{GROUP, JobSet, KIND, VERSION};
use lockstep_core::admission::{self, Existing};
use lockstep_core::common::features::Features;
use lockstep_core::common::patterns::Patterns;
use lockstep_core::common::violation::Violation;
use lockstep_core::jobset::network;
use lockstep_process::turns::Turns;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::patch;
use super::refusal::Refusal;
use super::review::{Allowed, Operation, Request};
use crate::k8s::apply::error_message;
use crate::k8s::decode_error;
use crate::k8s::watch::lean::fetch::{self, ClaimSeen, SelectorSeen};

/// Objects that are looked up at once, over all reviews. Each may be a text of 3 MB until the
/// compared fields are read.
const AT_ONCE: u32 = 8;
/// Volume claims of one review that are held at once.
const HELD: usize = 64;

/// Of these, look-ups for one namespace, so that they cannot block other namespaces.
const OF_ONE: u32 = 2;

/// How long the look-ups of one review may take, since other reviews may wait for it.
const LOOKED_UP_WITHIN: Duration = Duration::from_secs(4);

/// Turns for look-ups. A review waits for its turn within its time limit.
static LOOK_UPS: LazyLock<Turns> = LazyLock::new(|| Turns::new(AT_ONCE, OF_ONE));

/// Turns for compiling patterns: two at a time, so that JobSets with many patterns leave cores
/// free.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Applies the defaults to a JobSet that is created, and puts back what an update leaves out of its
/// lists.
///
/// A JobSet that lacks a required field passes unchanged: the API server checks it against the
/// schema next, and answers with 422, just as when upstream fills in an empty value.
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
/// `kubectl apply` of a JobSet's original manifest replaces whole lists, and with them the defaults
/// in their items, which are immutable. Upstream refuses that. A JobSet that never had the defaults
/// does not get them. Defaults that depend on changed fields are computed again.
fn completed(old: &JobSet, new: &JobSet) -> JobSet {
    if with_defaults_in_lists(old.clone()) == *old {
        let mut new = new.clone();
        admission::restate(old, &mut new);
        with_defaults_in_lists(new)
    } else {
        new.clone()
    }
}

/// The JobSet with the defaults of list items only. It copies as little as possible, since a JobSet
/// may take 25 MB.
fn with_defaults_in_lists(mut jobset: JobSet) -> JobSet {
    let spec = &jobset.spec;
    let network = spec.network.clone();
    let success_policy = spec.success_policy.clone();
    let startup_policy = spec.startup_policy.clone();
    let execution_policy = spec.execution_policy.clone();
    admission::default(&mut jobset);
    let spec = &mut jobset.spec;
    spec.network = network;
    spec.success_policy = success_policy;
    spec.startup_policy = startup_policy;
    spec.execution_policy = execution_policy;
    jobset
}

/// Refuses an invalid JobSet, or a forbidden change. Returns the warnings for a valid one.
///
/// It sees the object as it would be stored. Updates may not pass [`mutate`] first, for example
/// with upstream's configuration; then an update that drops immutable defaults is refused.
pub(super) async fn validate(
    request: &Request,
    features: Features,
    client: &Client,
) -> Result<Vec<String>, Refusal> {
    let (jobset, violations, warnings) = match request.operation {
        Operation::Create => {
            let (jobset, mut violations) = validated(read(&request.object)?, features).await?;
            // Its names are valid by then.
            if violations.is_empty() {
                let claims = claims(&jobset, &request.namespace, client);
                violations = tokio::time::timeout(LOOKED_UP_WITHIN, claims)
                    .await
                    .unwrap_or_else(|_| vec![not_looked_up()]);
            }
            let mut warnings = admission::create_warnings(&jobset, &features);
            if violations.is_empty() {
                let there = service_in_the_way(&jobset, &request.namespace, client);
                warnings.extend(tokio::time::timeout(LOOKED_UP_WITHIN, there).await.ok().flatten());
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

/// Validates a JobSet that is being created. One with patterns takes up to a tenth of a second, on
/// a thread that may block.
async fn validated(jobset: JobSet, features: Features) -> Result<(JobSet, Vec<Violation>), Refusal> {
    let has_patterns = Patterns::are_stated(&jobset);
    let validate = move || {
        let violations = admission::validate_create(&jobset, &features);
        (jobset, violations)
    };
    if !has_patterns {
        return Ok(validate());
    }
    let internal = |error: &dyn std::error::Error| Refusal::Internal(error.to_string());
    let _turn = TURNS.acquire().await.map_err(|error| internal(&error))?;
    spawn_blocking(validate).await.map_err(|error| internal(&error))
}

/// The violations of volume claims that already exist. A claim that cannot be looked up is refused,
/// as upstream does.
async fn claims(jobset: &JobSet, namespace: &str, client: &Client) -> Vec<Violation> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = async |name: String| {
        let found = look_up::<ClaimSeen, _>(&api, namespace, &name).await;
        let found = found.map_err(|error| error_message(&error));
        Some((name, found.transpose()?))
    };
    let mut violations = Vec::new();
    for names in admission::claim_names(jobset).chunks(HELD) {
        let claims: BTreeMap<String, Existing> = stream::iter(names.to_vec())
            .map(&claim)
            .buffered(OF_ONE as usize)
            .filter_map(ready)
            .collect()
            .await;
        if !claims.is_empty() {
            violations.extend(admission::validate_claims(jobset, &claims));
        }
    }
    violations
}

/// The violation if the look-up of claims takes too long.
fn not_looked_up() -> Violation {
    let seconds = LOOKED_UP_WITHIN.as_secs();
    let message = format!("the existing claims could not be looked up within {seconds} s; try again");
    Violation::internal("spec.volumeClaimPolicies", message)
}

/// Looks an object up in turn, and reads only the fields of `Seen`.
async fn look_up<Seen, K>(api: &Api<K>, namespace: &str, name: &str) -> kube::Result<Option<K>>
where
    Seen: DeserializeOwned + Into<K>,
    K: Resource + Clone,
{
    let _turn = LOOK_UPS.take(namespace, 1).await;
    fetch::get::<Seen, K>(api, name).await
}

/// A warning if the name of the JobSet's Service is taken. The controller's event says the same. If
/// the look-up fails, only the event says it.
async fn service_in_the_way(jobset: &JobSet, namespace: &str, client: &Client) -> Option<String> {
    if !jobset.dns_hostnames() {
        return None;
    }
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let there = look_up::<SelectorSeen, _>(&api, namespace, jobset.subdomain())
        .await
        .ok()??;
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
        let sentence = format!("JobSet: {}", decode_error::sentence(&error));
        if decode_error::is_missing(&error) {
            Refusal::Incomplete(sentence)
        } else {
            Refusal::Unreadable(sentence)
        }
    })
}
