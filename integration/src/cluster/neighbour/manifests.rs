//! A neighbour's definitions, rights and webhooks, as its Go module has them.

use std::fs;
use std::path::{Component, Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::ClusterError;
use super::Neighbour;

/// What is applied, in this order. The rest (Deployments, Services, Secrets) is not needed: the
/// neighbour is a process beside the API server.
const KINDS: [&str; 9] = [
    "Namespace",
    "CustomResourceDefinition",
    "ServiceAccount",
    "ClusterRole",
    "Role",
    "ClusterRoleBinding",
    "RoleBinding",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// The folder for `kubectl kustomize`.
///
/// Trainer's own kustomization includes the manifests of upstream's JobSet, which the module lacks.
/// So this writes one without them to `dir`.
pub(super) fn kustomization(
    neighbour: Neighbour,
    source: &Path,
    dir: &Path,
) -> Result<PathBuf, ClusterError> {
    match neighbour {
        Neighbour::Kueue => Ok(source.join("config/default")),
        Neighbour::Trainer => {
            let base = relative(dir, &source.join("manifests"));
            let parts = [
                "overlays/manager/namespace.yaml",
                "base/crds",
                "base/rbac",
                "base/webhook",
            ];
            // kustomize reads files only below its own folder.
            let namespace = source.join("manifests").join(parts[0]);
            let text = fs::read(&namespace).map_err(ClusterError::io(&namespace))?;
            let copy = dir.join("namespace.yaml");
            fs::write(&copy, text).map_err(ClusterError::io(&copy))?;
            let resources = parts[1..].iter().map(|part| base.join(part));
            let resources: Vec<PathBuf> = [PathBuf::from("namespace.yaml")]
                .into_iter()
                .chain(resources)
                .collect();
            let text = json!({
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "namespace": neighbour.namespace(),
                "resources": resources,
            });
            let path = dir.join("kustomization.yaml");
            fs::write(&path, text.to_string()).map_err(ClusterError::io(&path))?;
            Ok(dir.to_owned())
        }
    }
}

/// The path from one absolute folder to another: kustomize takes no absolute path.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let depth = from
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .count();
    let up = std::iter::repeat_n("..", depth);
    up.map(PathBuf::from)
        .chain([to.strip_prefix("/").unwrap_or(to).to_owned()])
        .collect()
}

/// The objects to apply from kustomize's output. All webhooks are called at `url`, whose authority
/// is `ca`.
pub(super) fn parse(rendered: &str, url: &str, ca: &str) -> Result<Vec<Value>, ClusterError> {
    let mut objects = Vec::new();
    for document in serde_yaml_ng::Deserializer::from_str(rendered) {
        let mut object =
            Value::deserialize(document).map_err(|error| invalid(Path::new("manifests"), error))?;
        let hooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
        for hook in hooks.into_iter().flatten() {
            call_at(&mut hook["clientConfig"], url, ca);
        }
        if let Some(conversion) = object.pointer_mut("/spec/conversion/webhook/clientConfig") {
            call_at(conversion, url, ca);
        }
        objects.push(object);
    }
    let rank = |object: &Value| KINDS.iter().position(|kind| object["kind"] == **kind);
    objects.retain(|object| rank(object).is_some());
    objects.sort_by_key(rank);
    Ok(objects)
}

/// True for the configurations of webhooks.
pub(super) fn is_webhook(object: &Value) -> bool {
    let kind = object["kind"].as_str();
    kind.is_some_and(|kind| kind.ends_with("WebhookConfiguration"))
}

/// Replaces a reference to a Service by an address.
fn call_at(client: &mut Value, url: &str, ca: &str) {
    let path = client["service"]["path"].as_str().unwrap_or("/convert");
    *client = json!({"url": format!("{url}{path}"), "caBundle": STANDARD.encode(ca)});
}

/// A YAML document that is in the file at `path`.
pub(super) fn yaml(text: &str, path: &Path) -> Result<Value, ClusterError> {
    serde_yaml_ng::from_str(text).map_err(|error| invalid(path, error))
}

fn invalid(path: &Path, error: serde_yaml_ng::Error) -> ClusterError {
    ClusterError::io(path)(std::io::Error::other(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_from_one_folder_to_another() {
        let path = relative(
            Path::new("/tmp/testbed/dev/trainer"),
            Path::new("/go/mod/trainer"),
        );
        assert_eq!(path, Path::new("../../../../go/mod/trainer"));
    }

    #[test]
    fn webhooks_and_conversions_are_called_at_the_address_and_the_rest_is_left_out() {
        let rendered = "\
kind: ValidatingWebhookConfiguration
webhooks: [{clientConfig: {service: {name: s, namespace: n, path: /check}}}]
---
kind: Deployment
---
kind: CustomResourceDefinition
spec: {conversion: {webhook: {clientConfig: {service: {name: s, namespace: n, path: /convert}}}}}
";
        let objects = parse(rendered, "https://127.0.0.1:1", "ca").unwrap();
        let kinds: Vec<_> = objects
            .iter()
            .map(|object| object["kind"].as_str().unwrap())
            .collect();
        assert_eq!(
            kinds,
            ["CustomResourceDefinition", "ValidatingWebhookConfiguration"]
        );
        let ca = STANDARD.encode("ca");
        assert_eq!(
            objects[1]["webhooks"][0]["clientConfig"],
            json!({"url": "https://127.0.0.1:1/check", "caBundle": ca})
        );
        assert_eq!(
            objects[0].pointer("/spec/conversion/webhook/clientConfig"),
            Some(&json!({"url": "https://127.0.0.1:1/convert", "caBundle": ca}))
        );
    }
}
