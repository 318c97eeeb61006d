//! What who runs the control plane sees: metrics, flags and its configuration file.

use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use kube::{Client, Config};
use serde_json::json;

use crate::fixture::{Case, case};
use crate::scene::{Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(metrics_are_for_those_who_may_read_them),
        case!(without_election_it_acts_whoever_holds_the_lease alone),
    ]
}

async fn metrics_are_for_those_who_may_read_them(scene: Scene) -> Result<()> {
    let namespace = scene.namespace.name.clone();
    let role = format!("metrics-reader-{namespace}");
    let reader = format!("{namespace}:reader");
    for args in [
        &["create", "serviceaccount", "reader"][..],
        &[
            "create",
            "clusterrole",
            &role,
            "--verb=get",
            "--non-resource-url=/metrics",
        ],
        &[
            "create",
            "clusterrolebinding",
            &role,
            "--clusterrole",
            &role,
            "--serviceaccount",
            &reader,
        ],
    ] {
        scene.namespace.kubectl(args).await?;
    }
    let reader = scene.namespace.kubectl(&["create", "token", "reader"]).await?;
    let stranger = scene.namespace.kubectl(&["create", "token", "default"]).await?;

    let metrics = get(&scene, Some(&reader)).await?;
    ensure!(
        metrics.contains("# TYPE lockstep_reconcile_seconds histogram"),
        "{metrics}"
    );
    for (token, code) in [
        (Some(stranger.as_str()), 403),
        (Some("guessed"), 401),
        (None, 401),
    ] {
        match get(&scene, token).await {
            Err(kube::Error::Api(status)) => ensure!(status.code == code, "{status}, not {code}"),
            other => ensure!(false, "{other:?}, not {code}"),
        }
    }
    Ok(())
}

/// The metrics, over TLS.
async fn get(scene: &Scene, token: Option<&str>) -> kube::Result<String> {
    let url = format!("https://{}", scene.control_plane().metrics_address());
    let mut config = Config::new(url.parse().expect("a URL"));
    config.accept_invalid_certs = true;
    config.auth_info.token = token.map(|token| token.trim().to_owned().into());
    let request = http::Request::get("/metrics")
        .body(Vec::new())
        .expect("a request");
    Client::try_from(config)?.request_text(request).await
}

async fn without_election_it_acts_whoever_holds_the_lease(scene: Scene) -> Result<()> {
    let control_plane = scene.control_plane().clone();
    control_plane.stop().await?;
    let leases: Api<Lease> = Api::namespaced(scene.namespace.access.client.clone(), "lockstep-system");
    let somebody = json!({"spec": {
        "holderIdentity": "somebody", "leaseDurationSeconds": 3600, "renewTime": "2100-01-01T00:00:00.000000Z",
    }});
    let patch = kube::api::Patch::Merge(&somebody);
    let before = leases
        .patch("lockstep-control-plane", &<_>::default(), &patch)
        .await?;

    control_plane.start_with(&["--leader-elect=false"]).await?;
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    let after = leases.get("lockstep-control-plane").await?;
    let holder = |lease: &Lease| lease.spec.clone().and_then(|spec| spec.holder_identity);
    ensure!(
        holder(&after) == holder(&before),
        "the lease was taken: {after:?}"
    );
    ensure!(
        after.metadata.annotations != before.metadata.annotations,
        "no new epoch: {after:?}"
    );
    control_plane.stop().await?;

    leases.delete("lockstep-control-plane", &<_>::default()).await?;
    control_plane.start().await?;
    control_plane.until_ready().await
}
