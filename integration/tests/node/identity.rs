//! Tokens of real kubelets: the hub accepts those of node daemons, and refuses that of another pod.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, PostParams};
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Manifest, eventually};
use lockstep_integration::image;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Case, Part, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(the_daemon_in_somebody_elses_pod_is_refused)]
}

const PRODUCT: &str = "lockstep-system";
const CA: &str = "lockstep-hub-ca";
/// How long a pod may take to start and be refused several times.
const PATIENCE: Duration = Duration::from_secs(180);

async fn the_daemon_in_somebody_elses_pod_is_refused(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(2, IDLE)).await?;
    let before = group.running(2).await?;

    // Any pod may have a token for the hub's audience, and know its CA.
    let client = scene.access().client.clone();
    let ca = Api::<ConfigMap>::namespaced(client.clone(), PRODUCT)
        .get(CA)
        .await?;
    let copy = serde_json::from_value(json!({"metadata": {"name": CA}, "data": ca.data}))?;
    let namespace = &scene.namespace.name;
    Api::<ConfigMap>::namespaced(client.clone(), namespace)
        .create(&PostParams::default(), &copy)
        .await?;
    let pod = serde_json::from_value(impostor()?)?;
    Api::<Pod>::namespaced(client, namespace)
        .create(&PostParams::default(), &pod)
        .await?;

    let reason = format!("the token belongs to system:serviceaccount:{namespace}:default");
    eventually("the impostor is told why", PATIENCE, async || {
        let log = scene.namespace.kubectl(&["logs", "impostor"]).await?;
        ensure!(log.matches(&reason).count() >= 3, "{log}");
        ensure!(!log.contains("linked to the hub"), "{log}");
        Ok(())
    })
    .await?;
    let log = scene.product.whole_log(Part::ControlPlane).await?;
    let refused: Vec<&str> = log.lines().filter(|line| line.contains(&reason)).collect();
    ensure!(refused.len() == 1, "not logged once: {refused:#?}");

    // No other connection is disturbed, and daemons are identified by their tokens: the group's
    // node is heard.
    let now = group.running(2).await?;
    ensure!(now == before, "{before:#?} became {now:#?}");
    now[0].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&before, 1).await?;
    group.status_has("/inPlaceRestart/level", "Process").await
}

/// The product's own daemon without access to a node, with a token of the namespace's default
/// ServiceAccount.
fn impostor() -> Result<serde_json::Value> {
    let image = image::node_daemon(&image::Programs::chosen()?)?.name;
    Ok(json!({
        "metadata": {"name": "impostor"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "impostor",
                "image": image,
                "imagePullPolicy": "Never",
                "args": [
                    format!("--hub=https://lockstep-control-plane.{PRODUCT}.svc:9444"),
                    "--hub-ca=/ca/ca.crt",
                    "--token-file=/token/token",
                    "--containerd-socket=/state/none.sock",
                    "--nri-socket=/state/none.sock",
                    "--state-dir=/state",
                    "--agent-binary=/lockstep-pod-agent",
                ],
                "env": [{"name": "NODE_NAME", "value": "node-1"}],
                "volumeMounts": [
                    {"name": "ca", "mountPath": "/ca"},
                    {"name": "token", "mountPath": "/token"},
                    {"name": "state", "mountPath": "/state"},
                ],
            }],
            "volumes": [
                {"name": "ca", "configMap": {"name": CA}},
                {"name": "token", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token", "audience": "lockstep-hub", "expirationSeconds": 600}},
                ]}},
                {"name": "state", "emptyDir": {}},
            ],
        },
    }))
}
