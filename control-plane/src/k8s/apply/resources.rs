//! Requests and limits of containers that changed while their JobSet was suspended (KEP-1150).
//!
//! Promises: only what differs from the Job is written, so that a Job whose resources have not
//! changed is resumed by every API server. A Job keeps its claims.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kube::Resource;
use kube::api::{GetParams, Request};
use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::jobset::plan::{ContainerResources, JobRef};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Applier, ApplyError, is_status};

/// What is read of a Job. The caches do not have its containers.
#[derive(Deserialize, Default)]
#[serde(default)]
struct SeenJob {
    spec: SeenJobSpec,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SeenJobSpec {
    template: SeenTemplate,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SeenTemplate {
    spec: SeenPodSpec,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct SeenPodSpec {
    containers: Vec<SeenContainer>,
    init_containers: Vec<SeenContainer>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SeenContainer {
    name: String,
    resources: ResourceRequirements,
}

impl Applier {
    /// Those of the wanted resources that the Job does not have. None if the Job is gone.
    pub(super) async fn differing_resources(
        &self,
        key: &ObjectRef<JobSet>,
        job: &JobRef,
        wanted: Vec<ContainerResources>,
    ) -> Result<Vec<ContainerResources>, ApplyError> {
        let failed = |error| ApplyError::write(format!("job {}", job.name), error);
        let request = Request::new(Job::url_path(&(), key.namespace.as_deref()))
            .get(&job.name, &GetParams::default())
            .map_err(|error| failed(kube::Error::BuildRequest(error)))?;
        match self.client.request::<SeenJob>(request).await {
            Ok(seen) => Ok(differing(wanted, seen.spec.template.spec)),
            Err(error) if is_status(&error, 404) => Ok(Vec::new()),
            Err(error) => Err(failed(error)),
        }
    }
}

fn differing(wanted: Vec<ContainerResources>, seen: SeenPodSpec) -> Vec<ContainerResources> {
    // There may be thousands of containers.
    let by_name = |list: Vec<SeenContainer>| -> BTreeMap<String, ResourceRequirements> {
        list.into_iter().map(|one| (one.name, one.resources)).collect()
    };
    let (init, regular) = (by_name(seen.init_containers), by_name(seen.containers));
    let differs = |mut one: ContainerResources| {
        let list = if one.is_init { &init } else { &regular };
        let now = list.get(&one.container)?;
        let same = one.resources.requests.clone().unwrap_or_default()
            == now.requests.clone().unwrap_or_default()
            && one.resources.limits.clone().unwrap_or_default() == now.limits.clone().unwrap_or_default();
        one.resources.claims.clone_from(&now.claims);
        (!same).then_some(one)
    };
    wanted.into_iter().filter_map(differs).collect()
}

/// A container with its resources, for a strategic merge patch. The directive replaces those of the
/// Job, which an API server always shows, if only as an empty object. It would drop a part that the
/// Job does not have.
pub(super) fn patch(one: &ContainerResources) -> Value {
    let mut whole = json!(one.resources);
    whole["$patch"] = json!("replace");
    json!({"name": one.container, "resources": whole})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(container: &str, is_init: bool, resources: Value) -> ContainerResources {
        ContainerResources {
            container: container.to_owned(),
            is_init,
            resources: serde_json::from_value(resources).unwrap(),
        }
    }

    #[test]
    fn what_differs_from_the_job_is_written_and_its_claims_stay() {
        let seen = json!({"spec": {"template": {"spec": {
            "initContainers": [{"name": "init", "image": "i", "resources": {}}],
            "containers": [
                {"name": "same", "resources": {"requests": {"cpu": "1"}}},
                {"name": "worker", "resources": {"requests": {"cpu": "4"}, "claims": [{"name": "gpu"}]}},
            ],
        }}}});
        let seen: SeenJob = serde_json::from_value(seen).unwrap();
        let all = vec![
            wanted("init", true, json!({})),
            wanted("same", false, json!({"requests": {"cpu": "1"}, "limits": {}})),
            wanted("worker", false, json!({"requests": {"cpu": "2"}})),
            wanted("init", false, json!({"requests": {"cpu": "2"}})),
        ];
        let written = differing(all, seen.spec.template.spec);
        let container = json!({"name": "worker", "resources": {
            "requests": {"cpu": "2"}, "claims": [{"name": "gpu"}], "$patch": "replace",
        }});
        assert_eq!(written.iter().map(patch).collect::<Vec<_>>(), [container]);
    }
}
