//! The chart's webhook configurations for namespaces that ask for them, pointed at a control plane
//! on this machine.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use lockstep_api::JobSet;
use lockstep_integration::harness::eventually;
use lockstep_integration::progress::Progress;
use lockstep_integration::tools::Tools;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

/// The label of namespaces with webhooks.
const SWITCH: &str = "test.lockstep.dev/webhooks";
const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/lockstep");
pub(super) const MUTATING: &str = "jobset-mutating-webhook-configuration";
pub(super) const VALIDATING: &str = "jobset-validating-webhook-configuration";
/// How the API server begins a refusal by the webhook for JobSets.
pub(super) const DENIED: &str =
    "admission webhook \"validate-jobset-x-k8s-io-v1alpha2-jobset.x-k8s.io\" denied the request: ";

static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// Sends the objects of this namespace through the webhooks of the shared control plane.
pub(crate) async fn enable(scene: &Scene) -> Result<()> {
    enable_with(scene, &[]).await
}

/// The same with the chart's webhooks for these values. All cases of a run use the same values.
pub(crate) async fn enable_with(scene: &Scene, values: &[&str]) -> Result<()> {
    let client = &scene.namespace.access.client;
    let install = async || {
        let port = scene.control_plane().webhook_port();
        for manifest in configurations(scene, "", "on", port, values).await? {
            create(client, manifest).await?;
        }
        anyhow::Ok(())
    };
    INSTALLED.get_or_try_init(install).await?;
    switch(scene, "on").await?;
    until_served(scene).await
}

/// Labels the namespace.
pub(super) async fn switch(scene: &Scene, value: &str) -> Result<()> {
    let label = json!({"metadata": {"labels": {SWITCH: value}}});
    Api::<Namespace>::all(scene.namespace.access.client.clone())
        .patch(
            &scene.namespace.name,
            &PatchParams::default(),
            &Patch::Merge(label),
        )
        .await?;
    Ok(())
}

/// Waits until the API server calls both webhooks for JobSets, and trusts them.
pub(super) async fn until_served(scene: &Scene) -> Result<()> {
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let probe = async |spec: Value| {
        let api = scene.api::<JobSet>();
        anyhow::Ok(
            api.create(&dry_run, &serde_json::from_value(jobset(spec))?)
                .await?,
        )
    };
    eventually("the webhooks are served", PATIENCE, async || {
        let good = probe(json!({"replicatedJobs": [replicated_job("a", 1)]})).await?;
        ensure!(good.spec.success_policy.is_some(), "not defaulted");
        let bad = json!({"replicatedJobs": [replicated_job("a", 1)], "successPolicy": {"operator": "All", "targetReplicatedJobs": ["x"]}});
        match probe(bad).await {
            Ok(_) => bail!("not validated"),
            Err(error) => ensure!(error.to_string().contains(DENIED), "{error}"),
        }
        Ok(())
    })
    .await
}

/// The chart's output for these templates and values.
pub(super) async fn rendered(templates: &[&str], values: &[&str]) -> Result<String> {
    let tools = Tools::locate(["helm"], &Progress::quiet()).await?;
    let mut helm = Command::new(tools.path("helm")?);
    helm.args(["template", "lockstep", CHART, "--namespace", "lockstep-system"]);
    for template in templates {
        helm.args(["--show-only", template]);
    }
    for value in values {
        helm.args(["--set", value]);
    }
    let output = helm.output().await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// The chart's configurations with this suffix of their names, for namespaces with this value of
/// the label.
pub(super) async fn configurations(
    scene: &Scene,
    end: &str,
    value: &str,
    port: u16,
    values: &[&str],
) -> Result<Vec<Value>> {
    let rendered = rendered(&["templates/webhook/configurations.yaml"], values).await?;
    // Converts YAML to JSON.
    let read = ["create", "--dry-run=client", "--output=json", "--filename=-"];
    let json = scene.namespace.access.kubectl(&read, &rendered).await?;
    let mut manifests = serde_json::Deserializer::from_str(&json)
        .into_iter::<Value>()
        .collect::<Result<Vec<_>, _>>()?;
    ensure!(manifests.len() == 2, "{json}");
    for manifest in &mut manifests {
        let name = manifest["metadata"]["name"].as_str().context("no name")?;
        manifest["metadata"]["name"] = json!(format!("{name}{end}"));
        for webhook in manifest["webhooks"].as_array_mut().context("no webhooks")? {
            let path = webhook["clientConfig"]["service"]["path"]
                .as_str()
                .context("no path")?;
            let url = format!("https://127.0.0.1:{port}{path}");
            webhook["clientConfig"] = json!({"url": url});
            webhook["namespaceSelector"] = json!({"matchLabels": {SWITCH: value}});
        }
    }
    Ok(manifests)
}

pub(super) async fn create(client: &Client, manifest: Value) -> Result<()> {
    let params = PostParams::default();
    if manifest["kind"] == "MutatingWebhookConfiguration" {
        let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        api.create(&params, &serde_json::from_value(manifest)?).await?;
    } else {
        let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        api.create(&params, &serde_json::from_value(manifest)?).await?;
    }
    Ok(())
}
