//! Fields that ask for protection, which is not implemented. A user who sets one would be
//! unprotected without knowing, so they are refused when they are applied. Objects that were stored
//! before the webhook run on, and these fields are reported like other ignored ones.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::ray::{RayCluster, RayClusterSpec, RayCronJob, RayJob, RayJobSpec};
use serde_json::Value;

use crate::common::violation::Violation;

pub(in crate::ray) fn cluster(cluster: &RayCluster) -> Vec<Violation> {
    if is_made_by_another(&cluster.metadata) {
        return Vec::new();
    }
    of("spec", &cluster.spec)
}

pub(in crate::ray) fn job(job: &RayJob) -> Vec<Violation> {
    if is_made_by_another(&job.metadata) {
        return Vec::new();
    }
    of_job("spec", &job.spec)
}

pub(in crate::ray) fn cron(cron: &RayCronJob) -> Vec<Violation> {
    of_job("spec.jobTemplate", &cron.spec.job_template)
}

/// True if a RayJob or a RayCronJob controls it. The user of that one was warned.
fn is_made_by_another(metadata: &ObjectMeta) -> bool {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.api_version.starts_with("ray.io/"))
}

fn of_job(path: &str, job: &RayJobSpec) -> Vec<Violation> {
    let cluster = job.ray_cluster_spec.as_ref();
    cluster.map_or_else(Vec::new, |cluster| of(&format!("{path}.rayClusterSpec"), cluster))
}

/// The fields that ask for protection. An empty one may too, by KubeRay's defaults.
fn of(path: &str, spec: &RayClusterSpec) -> Vec<Violation> {
    let stated = |name: &str| spec.other.0.get(name).unwrap_or(&Value::Null);
    let (auth, network, tls) = (
        stated("authOptions"),
        stated("networkPolicy"),
        stated("tlsOptions"),
    );
    let no_tokens = auth["mode"] == "disabled" && auth["enableK8sTokenAuth"] != true;
    [
        (
            "authOptions",
            !auth.is_null() && !no_tokens,
            "Ray would not require a token",
        ),
        (
            "networkPolicy",
            !network.is_null(),
            "no NetworkPolicy would be created; create one that selects the label ray.io/cluster",
        ),
        (
            "tlsOptions",
            !tls.is_null() && tls["enabled"] != false,
            "Ray would not use TLS; set RAY_USE_TLS and mount certificates in the pod templates",
        ),
    ]
    .into_iter()
    .filter(|(_, asks, _)| *asks)
    .map(|(name, _, why)| {
        let message = format!("is not supported and would protect nothing: {why}");
        Violation::new(format!("{path}.{name}"), message)
    })
    .collect()
}
