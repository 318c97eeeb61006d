//! The operator's view of the control plane: metrics, flags and the configuration file.

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams};
use kube::{Client, Config, ResourceExt};
use lockstep_api::labels;
use lockstep_integration::harness::eventually;
use lockstep_integration::host::free_addresses;
use lockstep_integration::progress::Progress;
use lockstep_integration::tools::Tools;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::control_plane::get as get_plainly;
use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(metrics_are_for_those_who_may_read_them),
        case!(without_election_it_acts_whoever_holds_the_lease alone),
        case!(a_configuration_file_stands_for_the_flags alone),
        case!(a_file_that_cannot_be_is_refused_by_its_field),
        case!(election_is_switched_off_and_on_by_either_kind_of_apply),
    ]
}

/// Helm 3 merges on the client, Helm 4 lets the API server merge.
async fn election_is_switched_off_and_on_by_either_kind_of_apply(scene: Scene) -> Result<()> {
    let with = deployment(&scene, "true").await?;
    let without = deployment(&scene, "false").await?;
    let deployments = scene.api::<Deployment>();
    let server_side = [
        "apply",
        "--server-side",
        "--field-manager=helm",
        "--force-conflicts",
        "--filename=-",
    ];
    for apply in [server_side.as_slice(), &["apply", "--filename=-"]] {
        for (manifest, kind) in [
            (&with, "RollingUpdate"),
            (&without, "Recreate"),
            (&with, "RollingUpdate"),
        ] {
            scene.namespace.kubectl_with(apply, manifest).await?;
            let spec = deployments.get("lockstep-control-plane").await?.spec;
            let strategy = spec.and_then(|spec| spec.strategy).unwrap_or_default();
            ensure!(
                strategy.type_.as_deref() == Some(kind),
                "{apply:?} made {strategy:?}"
            );
            ensure!(
                strategy.rolling_update.is_some() == (kind == "RollingUpdate"),
                "{strategy:?}"
            );
        }
        deployments
            .delete("lockstep-control-plane", &DeleteParams::default())
            .await?;
        eventually("the Deployment is gone", PATIENCE, async || {
            let left = deployments.get_opt("lockstep-control-plane").await?;
            ensure!(left.is_none(), "it is there");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// The chart's Deployment, with election or without.
async fn deployment(scene: &Scene, election: &str) -> Result<String> {
    let tools = Tools::locate(["helm"], &Progress::quiet()).await?;
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/lockstep");
    let output = Command::new(tools.path("helm")?)
        .args([
            "template",
            "lockstep",
            chart,
            "--namespace",
            &scene.namespace.name,
        ])
        .args(["--show-only", "templates/control-plane/deployment.yaml"])
        .args(["--set", &format!("controller.leaderElection.enable={election}")])
        .output()
        .await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
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
    // The API server learns of roles by a watch, and the control plane caches its answers for a
    // while.
    let user = format!("system:serviceaccount:{namespace}:reader");
    eventually("the reader has its rights", PATIENCE, async || {
        let can = ["auth", "can-i", "get", "/metrics", "--as", &user];
        scene.namespace.kubectl(&can).await.map(drop)
    })
    .await?;

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

/// Writes a Configuration with this body, and returns its path.
fn configuration(scene: &Scene, name: &str, body: &str) -> Result<String> {
    let file = scene
        .control_plane()
        .dir()
        .join(format!("{}-{name}.yaml", scene.namespace.name));
    std::fs::write(
        &file,
        format!("apiVersion: config.jobset.x-k8s.io/v1alpha1\nkind: Configuration\n{body}"),
    )?;
    Ok(file.to_string_lossy().into_owned())
}

/// All settings are tested in one start of the control plane, so this is long.
async fn a_configuration_file_stands_for_the_flags(scene: Scene) -> Result<()> {
    const LEASE: &str = "6d4f6a47.jobset.x-k8s.io";
    const SECRET: &str = "secret-of-the-file";
    let control_plane = scene.control_plane().clone();
    control_plane.stop().await?;
    let namespace = &scene.namespace.name;
    let replica = control_plane.replica("by-file", &[])?;
    let [flags_metrics] = free_addresses()?;
    let (health, metrics) = (replica.health_address(), replica.metrics_address());
    let body = format!(
        "
health: {{healthProbeBindAddress: '{health}', readinessEndpointName: is-ready, livenessEndpointName: is-live}}
metrics: {{bindAddress: '{metrics}'}}
webhook: {{port: {}, host: 127.0.0.1}}
internalCertManagement: {{enable: true, webhookServiceName: hooks, webhookSecretName: {SECRET}}}
leaderElection:
  leaderElect: true
  resourceName: {LEASE}
  resourceNamespace: {namespace}
  leaseDuration: 33s
  renewDeadline: 20s
  retryPeriod: 3s
clientConnection: {{qps: 50, burst: 100}}
tls: {{minVersion: VersionTLS13}}
featureGates: {{RestartJob: true, InPlaceRestart: false}}
",
        replica.webhook_port()
    );
    let file = configuration(&scene, "good", &body)?;
    replica.start_by_file(&["--config", &file]).await?;
    let answers = async |address, path: &str, code: &str| {
        let answer = get_plainly(address, path).await?;
        ensure!(
            answer.starts_with(&format!("HTTP/1.1 {code}")),
            "{path}: {answer}"
        );
        anyhow::Ok(answer)
    };
    eventually("it is ready by the path of the file", PATIENCE, async || {
        answers(health, "/is-ready", "200").await
    })
    .await?;
    answers(health, "/is-live", "200").await?;
    answers(health, "/readyz", "404").await?;
    answers(health, "/healthz", "404").await?;
    answers(metrics, "/metrics", "200").await?;
    TcpStream::connect(("127.0.0.1", replica.webhook_port())).await?;

    let leases: Api<Lease> = scene.api();
    eventually("it leads by that lease", PATIENCE, async || {
        let lease = leases.get(LEASE).await?.spec.unwrap_or_default();
        ensure!(
            lease.holder_identity.is_some() && lease.lease_duration_seconds == Some(33),
            "{lease:?}"
        );
        Ok(())
    })
    .await?;
    let secrets: Api<Secret> = Api::namespaced(scene.client(), "lockstep-system");
    let secret = secrets.get(SECRET).await?;
    ensure!(
        secret
            .data
            .is_some_and(|data| data.get("tls.crt").is_some_and(|file| !file.0.is_empty()))
    );

    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    let job = scene.until_jobs(&["js-a-0"], 0).await?.remove(0);
    ensure!(
        job.labels()
            .get(labels::JOB_RESTART_ATTEMPT)
            .is_some_and(|attempt| attempt == "0")
    );
    let other = scene.another().await?;
    let policy = json!({"restartStrategy": "InPlaceRestart"});
    other
        .create(jobset(
            json!({"failurePolicy": policy, "replicatedJobs": [replicated_job("a", 1)]}),
        ))
        .await?;
    let failed = other.until_condition("Failed", "True", "InvalidJobSet").await?;
    let message = failed.condition("Failed").map(|failed| failed.message.clone());
    ensure!(
        message
            .as_ref()
            .is_some_and(|message| message.contains("InPlaceRestart")),
        "{message:?}"
    );
    other.namespace.delete().await?;
    replica.stop().await?;

    // Flags win.
    let flags = [
        "--config",
        &file,
        "--metrics-bind-address",
        &flags_metrics.to_string(),
    ];
    replica.start_by_file(&flags).await?;
    eventually("it serves metrics where the flag says", PATIENCE, async || {
        answers(flags_metrics, "/metrics", "200").await
    })
    .await?;
    ensure!(
        TcpStream::connect(metrics).await.is_err(),
        "and also where the file says"
    );
    replica.stop().await?;
    secrets.delete(SECRET, &<_>::default()).await?;
    control_plane.start().await?;
    control_plane.until_ready().await
}

async fn a_file_that_cannot_be_is_refused_by_its_field(scene: Scene) -> Result<()> {
    for (index, (body, said)) in [
        ("webhok: {}", "unknown field `webhok`"),
        (
            "webhook: {port: many}",
            "webhook.port: invalid type: string \"many\"",
        ),
        (
            "leaderElection: {leaseDuration: soon}",
            "leaderElection.leaseDuration: \"soon\" is not a duration",
        ),
        (
            "metrics: {bindAddress: here}",
            "metrics.bindAddress: \"here\" is not",
        ),
        (
            "featureGates: {TLSOptions: false}",
            "featureGates: cannot set feature gate TLSOptions to false",
        ),
        (
            "clientConnection: {qps: fast}",
            "clientConnection.qps: invalid type: string \"fast\"",
        ),
        (
            "internalCertManagement: {webhookSecretName: A}",
            "internalCertManagement.webhookSecretName: \"A\"",
        ),
        (
            "tls: {minVersion: VersionTLS11}",
            "tls.minVersion: invalid minVersion",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("{}-{index}", scene.namespace.name);
        let replica = scene.control_plane().replica(&name, &[])?;
        let file = configuration(&scene, &index.to_string(), body)?;
        replica.start_by_file(&["--config", &file]).await?;
        let ended = replica.ends().await?;
        ensure!(ended.code() == Some(1), "{body}: {ended}");
        ensure!(replica.log().contains(said), "{body}: {}", replica.log());
    }
    Ok(())
}
