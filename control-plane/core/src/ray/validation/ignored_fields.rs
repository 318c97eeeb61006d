//! Contradictions within ignored fields. KubeRay refuses them, so they are refused here too, except
//! in network policies and TLS.
//!
//! The messages are KubeRay's. A message that advises a field that is ignored here is cut before
//! the advice. Fields that ask for protection are refused separately ([`super::protection`]).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use lockstep_api::ray::{HeadGroupSpec, RayClusterSpec, WorkerGroupSpec, keys};
use serde_json::Value;

use crate::common::violation::Violation;

/// Annotations of an object.
pub(super) type Annotations<'a> = Option<&'a BTreeMap<String, String>>;

/// Environment variable of the head with the password of Redis.
const REDIS_PASSWORD: &str = "REDIS_PASSWORD";
/// Environment variable with KubeRay's command of the autoscaler.
const AUTOSCALER_COMMAND: &str = "KUBERAY_GEN_AUTOSCALER_START_CMD";
/// First versions of Ray with tokens, and with tokens of Kubernetes.
const TOKENS: (u64, u64, u64) = (2, 52, 0);
const KUBERNETES_TOKENS: (u64, u64, u64) = (2, 55, 0);

/// An environment variable of the head's container.
pub(super) fn head_variable<'a>(head: &'a HeadGroupSpec, name: &str) -> Option<&'a EnvVar> {
    let pod = head.template.spec.as_ref();
    let env = pod.and_then(|pod| pod.containers.first()?.env.as_ref());
    env?.iter().find(|variable| variable.name == name)
}

/// The path of the annotation that asks for an unsupported feature, if it is set.
pub(crate) fn unsupported_annotation(annotations: Annotations<'_>) -> Option<String> {
    let value = annotations?.get(keys::FAULT_TOLERANCE)?;
    let path = format!("metadata.annotations[{}]", keys::FAULT_TOLERANCE);
    value.eq_ignore_ascii_case("true").then_some(path)
}

/// What creates a RayCluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CreatedBy {
    User,
    RayJob,
}

/// Adds the contradictions in the cluster spec at `path`.
pub(super) fn validate(
    path: &str,
    spec: &RayClusterSpec,
    annotations: Annotations<'_>,
    created_by: CreatedBy,
    violations: &mut Vec<Violation>,
) {
    let mut wrong = |field: &str, message: String| {
        violations.push(Violation::new(format!("{path}.{field}"), message));
    };
    let options = |name: &str| spec.other.0.get(name).filter(|value| value.is_object());
    if let Some(options) = options("gcsFaultToleranceOptions") {
        for message in fault_tolerance(options, spec, annotations) {
            wrong("gcsFaultToleranceOptions", message);
        }
    }
    if let Some(options) = options("authOptions") {
        for message in authentication(options, spec.ray_version.as_deref(), created_by) {
            wrong("authOptions", message);
        }
    }
    if let Some(options) = options("autoscalerOptions") {
        if let Some(seconds) = options["idleTimeoutSeconds"]
            .as_i64()
            .filter(|seconds| *seconds < 0)
        {
            let message = format!("autoscalerOptions.idleTimeoutSeconds must be non-negative, got {seconds}");
            wrong("autoscalerOptions.idleTimeoutSeconds", message);
        }
        let env = options["env"].as_array().into_iter().flatten();
        if env
            .into_iter()
            .any(|variable| variable["name"] == AUTOSCALER_COMMAND)
        {
            let message = format!("autoscalerOptions.env must not contain {AUTOSCALER_COMMAND}");
            wrong("autoscalerOptions.env", message);
        }
    }
    if let Some(strategy) = options("upgradeStrategy").and_then(|options| options["type"].as_str()) {
        if created_by == CreatedBy::RayJob {
            let message = "upgradeStrategy cannot be set when RayCluster is created by RayJob";
            wrong("upgradeStrategy", message.to_owned());
        } else if !["Recreate", "None"].contains(&strategy) {
            let message = format!(
                "Spec.UpgradeStrategy.Type value {strategy} is invalid, valid options are Recreate or None"
            );
            wrong("upgradeStrategy.type", message);
        }
    }
}

/// Adds the contradictions in a worker group's settings for Ray's autoscaler, which is not
/// supported. `has_version_2` is set if the cluster asks for autoscaler v2.
pub(super) fn group(group: &WorkerGroupSpec, has_version_2: bool, wrong: &mut Vec<(&str, String)>) {
    let name = &group.group_name;
    let number = |field: &str| group.other.0.get(field).and_then(Value::as_i64);
    if let Some(seconds) = number("idleTimeoutSeconds") {
        if seconds < 0 {
            let message =
                format!("worker group {name}: idleTimeoutSeconds must be non-negative, got {seconds}");
            wrong.push((".idleTimeoutSeconds", message));
        } else if !has_version_2 {
            let message =
                format!("worker group {name}: idleTimeoutSeconds is set, but autoscaler v2 is not enabled");
            wrong.push((".idleTimeoutSeconds", message));
        }
    }
    if let Some(priority) = number("priority").filter(|priority| *priority != 0 && !has_version_2) {
        let message = format!(
            "worker group {name}: priority is set to {priority}, but autoscaler v2 is not enabled. Priority is only supported with autoscaler \
             v2 enabled"
        );
        wrong.push((".priority", message));
    }
}

fn fault_tolerance(options: &Value, spec: &RayClusterSpec, annotations: Annotations<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_annotated =
        |key: &str| annotations.is_some_and(|all| all.get(key).is_some_and(|value| !value.is_empty()));
    if is_annotated(keys::FAULT_TOLERANCE) {
        wrong.push(format!(
            "{} annotation and GcsFaultToleranceOptions are both set. Please use only GcsFaultToleranceOptions to configure GCS fault tolerance",
            keys::FAULT_TOLERANCE
        ));
    }
    let head = &spec.head_group_spec;
    let params = head.ray_start_params.as_ref();
    if params.is_some_and(|params| {
        params
            .get("redis-password")
            .is_some_and(|value| !value.is_empty())
    }) {
        wrong.push(
            "cannot set `redis-password` in rayStartParams when GcsFaultToleranceOptions is enabled"
                .to_owned(),
        );
    }
    if head_variable(head, REDIS_PASSWORD).is_some() {
        wrong.push(format!(
            "cannot set `{REDIS_PASSWORD}` env var in head Pod when GcsFaultToleranceOptions is enabled"
        ));
    }
    if is_annotated(keys::EXTERNAL_STORAGE) {
        wrong.push(format!(
            "cannot set `{}` annotation when GcsFaultToleranceOptions is enabled",
            keys::EXTERNAL_STORAGE
        ));
    }
    let is_set =
        |value: &Value| !value.is_null() && value != "" && value.as_array().is_none_or(|all| !all.is_empty());
    if options["backend"] == "rocksdb" {
        for (field, name) in [
            ("redisAddress", "RedisAddress"),
            ("redisUsername", "RedisUsername"),
            ("redisPassword", "RedisPassword"),
            ("externalStorageNamespace", "ExternalStorageNamespace"),
        ] {
            if is_set(&options[field]) {
                wrong.push(format!(
                    "cannot set GcsFaultToleranceOptions.{name} when backend is 'rocksdb'"
                ));
            }
        }
        let storage = &options["storage"];
        let mut of_a_new_one = ["size", "storageClassName", "accessModes"].iter();
        if is_set(&storage["claimName"]) && of_a_new_one.any(|field| is_set(&storage[field])) {
            wrong.push(
                "GcsFaultToleranceOptions.Storage.ClaimName is mutually exclusive with size, storageClassName, and accessModes"
                    .to_owned(),
            );
        }
    } else if is_set(&options["storage"]) {
        wrong.push(
            "cannot set GcsFaultToleranceOptions.Storage when backend is 'redis' - it only applies to the 'rocksdb' backend"
                .to_owned(),
        );
    }
    wrong
}

fn authentication(options: &Value, version: Option<&str>, created_by: CreatedBy) -> Vec<String> {
    let by_kubernetes = options["enableK8sTokenAuth"] == true;
    let mut wrong = Vec::new();
    if by_kubernetes && created_by == CreatedBy::RayJob {
        wrong.push("K8s token auth mode is currently not supported for RayJob".to_owned());
    }
    if options["mode"] != "token" {
        if by_kubernetes {
            wrong.push(
                "authOptions.enableK8sTokenAuth is enabled but authOptions.mode not set to 'token'"
                    .to_owned(),
            );
        }
        return wrong;
    }
    let stated = version.unwrap_or_default();
    let Some(parsed) = parse(stated) else {
        wrong.push(match stated {
            "" => "authOptions.mode is 'token' but RayVersion was not specified. Ray version 2.52.0 or later is required".to_owned(),
            stated => format!("authOptions.mode is 'token' but RayVersion format is invalid: {stated}"),
        });
        return wrong;
    };
    if parsed < TOKENS {
        wrong.push(format!(
            "authOptions.mode is 'token' but minimum Ray version is 2.52.0, got {stated}"
        ));
    } else if by_kubernetes && parsed < KUBERNETES_TOKENS {
        wrong.push(format!(
            "authOptions.enableK8sTokenAuth is enabled but minimum Ray version is 2.55.0, got {stated}"
        ));
    }
    if by_kubernetes
        && options["secretName"]
            .as_str()
            .is_some_and(|name| !name.is_empty())
    {
        wrong.push(
            "authOptions.enableK8sTokenAuth is enabled and authOptions.secretName is also set".to_owned(),
        );
    }
    wrong
}

/// The three numbers of a version. The last one may be missing, and a suffix is ignored.
fn parse(version: &str) -> Option<(u64, u64, u64)> {
    let version = version.trim_start();
    let version = version.strip_prefix('v').unwrap_or(version);
    let end = version.find(|sign: char| !sign.is_ascii_digit() && sign != '.');
    let mut numbers = version[..end.unwrap_or(version.len())]
        .split('.')
        .filter(|number| !number.is_empty());
    let (major, minor) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    let patch = numbers.next().map_or(Ok(0), str::parse);
    Some((major, minor, patch.ok()?))
}

/// The contradictions in KubeRay's rules for deletion after a job's end. `shuts_down` is the job's
/// `shutdownAfterJobFinishes`.
pub(super) fn deletion(strategy: &Value, shuts_down: bool) -> Vec<String> {
    let rules = strategy["deletionRules"]
        .as_array()
        .filter(|rules| !rules.is_empty());
    let (success, failure) = (&strategy["onSuccess"], &strategy["onFailure"]);
    let is_legacy = !success.is_null() || !failure.is_null();
    match rules {
        Some(_) if is_legacy => vec![
            "Cannot use both legacy onSuccess/onFailure fields and deletionRules simultaneously".to_owned(),
        ],
        Some(_) if shuts_down => vec![
            "spec.shutdownAfterJobFinishes and spec.deletionStrategy.deletionRules are mutually exclusive"
                .to_owned(),
        ],
        Some(rules) => rules_of(rules),
        None if success.is_null() != failure.is_null() => vec![
            "both DeletionStrategy.OnSuccess and DeletionStrategy.OnFailure must be set when using the legacy deletion policy fields of \
             DeletionStrategy"
                .to_owned(),
        ],
        None if is_legacy => legacy(success, failure, shuts_down),
        None => vec![
            "DeletionStrategy requires either BOTH onSuccess and onFailure, OR the deletionRules field (cannot be empty)"
                .to_owned(),
        ],
    }
}

fn legacy(success: &Value, failure: &Value, shuts_down: bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, policy) in [("OnSuccess", success), ("OnFailure", failure)] {
        if policy["policy"].is_null() {
            wrong.push(format!(
                "the DeletionPolicyType field of DeletionStrategy.{name} cannot be unset when DeletionStrategy is enabled"
            ));
        }
    }
    if shuts_down
        && [success, failure]
            .iter()
            .any(|policy| policy["policy"] == "DeleteNone")
    {
        wrong.push(
            "shutdownAfterJobFinshes is set to 'true' while deletion policy is 'DeleteNone'".to_owned(),
        );
    }
    wrong
}

/// The order of deletion policies.
const ORDER: [&str; 3] = ["DeleteWorkers", "DeleteCluster", "DeleteSelf"];

fn rules_of(rules: &[Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    // Seconds by policy, for each kind and value of a status.
    let mut known: BTreeMap<(&str, &str), BTreeMap<&str, i64>> = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        let condition = &rule["condition"];
        let mut refuse = |message: &str| wrong.push(format!("deletionRules[{index}]: {message}"));
        let status = match (
            condition["jobStatus"].as_str(),
            condition["jobDeploymentStatus"].as_str(),
        ) {
            (Some(status), None) => ("JobStatus", status),
            (None, Some(status)) => ("JobDeploymentStatus", status),
            (Some(_), Some(_)) => {
                refuse("cannot set both JobStatus and JobDeploymentStatus at the same time");
                continue;
            }
            (None, None) => {
                refuse("exactly one of JobStatus and JobDeploymentStatus must be set");
                continue;
            }
        };
        let seconds = condition["ttlSeconds"].as_i64().unwrap_or(0);
        if seconds < 0 {
            refuse("TTLSeconds must be non-negative");
            continue;
        }
        let policy = rule["policy"].as_str().unwrap_or_default();
        let policies = known.entry(status).or_default();
        if policies.contains_key(policy) {
            let (kind, value) = status;
            refuse(&format!(
                "duplicate rule for DeletionPolicyType '{policy}' and {kind} '{value}'"
            ));
        } else {
            policies.insert(policy, seconds);
        }
    }
    for ((kind, value), policies) in known {
        let in_order = ORDER
            .iter()
            .filter_map(|policy| Some((*policy, *policies.get(policy)?)));
        let in_order: Vec<(&str, i64)> = in_order.collect();
        for pair in in_order.windows(2) {
            if let [(before, earlier), (policy, seconds)] = pair
                && seconds < earlier
            {
                wrong.push(format!(
                    "for {kind} '{value}': {policy} TTL ({seconds}) must be >= {before} TTL ({earlier})"
                ));
            }
        }
    }
    wrong
}
