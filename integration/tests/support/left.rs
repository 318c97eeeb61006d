//! The objects of the upstream controller: `jobset_api/upgrade/upstream.json` holds JobSets, their
//! Jobs and their Services as that controller (08dfbdf) left them on a real API server.

use anyhow::{Context, Result};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

const LEFT: &str = include_str!("../jobset_api/upgrade/upstream.json");

/// Recreates the objects of the JobSets with these names, or of all if there are no names. `change`
/// is applied to each first; it may remove the status and leave it to the controllers. The API
/// server gives objects new UIDs, which replace the old ones in references.
pub(crate) async fn restore(
    (client, namespace): (&Client, &str),
    names: &[&str],
    change: impl Fn(&mut Value),
) -> Result<()> {
    let mut text = LEFT.to_owned();
    for (kind, plural) in [
        (
            GroupVersionKind::gvk("jobset.x-k8s.io", "v1alpha2", "JobSet"),
            "jobsets",
        ),
        (GroupVersionKind::gvk("batch", "v1", "Job"), "jobs"),
        (GroupVersionKind::gvk("", "v1", "Service"), "services"),
    ] {
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let left: Value = serde_json::from_str(&text)?;
        for object in left[plural].as_array().context("no such objects")? {
            let metadata = &object["metadata"];
            let owner = metadata["ownerReferences"][0]["name"].as_str();
            let jobset = owner.or(metadata["name"].as_str()).context("no name")?;
            if !names.is_empty() && !names.contains(&jobset) {
                continue;
            }
            let mut object = object.clone();
            change(&mut object);
            let mut wanted: DynamicObject = serde_json::from_value(object.clone())?;
            wanted.types = Some(TypeMeta {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
            });
            let old = wanted.metadata.uid.take().context("no UID")?;
            let made = api.create(&PostParams::default(), &wanted).await?;
            text = text.replace(&old, &made.uid().context("no UID")?);
            if !object["status"].is_null() {
                let status = Patch::Merge(json!({"status": object["status"]}));
                api.patch_status(&made.name_any(), &PatchParams::default(), &status)
                    .await?;
            }
        }
    }
    Ok(())
}
