//! The sample of the Valkey design (KEP-876), and what its users and their tools see. The test
//! plays the scheduler and the node.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};
use lockstep_api::{InPlacePhase, JobSet, annotations};
use lockstep_integration::harness::eventually;
use lockstep_integration::host::free_addresses;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::fixture::{Case, case};
use crate::platform::daemon::{Daemon, NODE};
use crate::platform::with_the_node;
use crate::scene::{PATIENCE, Scene, hub_ca_in};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(the_sample_of_the_valkey_design_works_as_it_is alone)]
}

const NAME: &str = "in-place-restart-example";
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/inplace-timeout.yaml");

/// A collector of traces.
struct Collector(mpsc::UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        // The test may be over.
        let _ = self.0.send(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn the_sample_of_the_valkey_design_works_as_it_is(scene: Scene) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let (tx, mut traces) = mpsc::unbounded_channel();
    let collector = tonic::transport::Server::builder().add_service(TraceServiceServer::new(Collector(tx)));
    tokio::spawn(collector.serve_with_incoming(TcpListenerStream::new(listener)));

    let [hub] = free_addresses()?;
    let control_plane = scene.control_plane();
    let dir = control_plane.dir().join("valkey");
    std::fs::create_dir_all(&dir)?;
    let (hub_flag, dir_flag) = (hub.to_string(), dir.display().to_string());
    let flags = [
        "--hub-bind-address",
        &hub_flag,
        "--hub-tls-dir",
        &dir_flag,
        "--otlp-endpoint",
        &endpoint,
    ];
    control_plane.restart_with(&flags).await?;
    let result = with_the_node(&scene, async || {
        restarts_in_place_and_counts(&scene, hub, &dir).await
    })
    .await;
    // Other cases expect a control plane without a hub. Unsent traces are sent now.
    control_plane.stop().await?;
    let made = result?;
    each_restart_is_a_trace(&made, &mut traces)
}

/// Causes two failures, and returns the JobSet.
async fn restarts_in_place_and_counts(
    scene: &Scene,
    hub: std::net::SocketAddr,
    dir: &Path,
) -> Result<JobSet> {
    scene.namespace.kubectl(&["apply", "--filename", SAMPLE]).await?;
    let pods = eventually("four pods", PATIENCE, async || {
        let pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
        ensure!(pods.len() == 4, "{}", pods.len());
        Ok(pods)
    })
    .await?;
    for pod in &pods {
        ensure!(
            pod.annotations().get(annotations::IN_PLACE).map(String::as_str)
                == Some(annotations::IN_PLACE_SUPERVISED),
            "{:?}",
            pod.annotations()
        );
        schedule(scene, pod).await?;
    }
    scene.all_pods_become("Running").await?;
    let made = scene.api::<JobSet>().get(NAME).await?;
    let ca = hub_ca_in(dir).await?;
    let daemon = Daemon::connect(scene, hub, &ca, &made.uid().context("no uid")?, &pods).await?;

    until_restarts(scene, 0).await?;
    daemon.exit(1, 3).await?;
    until_restarts(scene, 1).await?;
    daemon.exit(2, 4).await?;
    until_restarts(scene, 2).await?;

    let now = scene.api::<Pod>().list(&ListParams::default()).await?.items;
    let uids = |pods: &[Pod]| pods.iter().filter_map(ResourceExt::uid).collect::<BTreeSet<_>>();
    ensure!(uids(&now) == uids(&pods), "not the same pods as before");
    let after = scene.api::<JobSet>().get(NAME).await?;
    let status = after.status.context("no status")?;
    ensure!(status.restarts == 0, "recreated {} times", status.restarts);
    Ok(made)
}

/// Binds pods as a scheduler does.
async fn schedule(scene: &Scene, pod: &Pod) -> Result<()> {
    let name = pod.name_any();
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    });
    let _: serde_json::Value = scene
        .api::<Pod>()
        .create_subresource("binding", &name, &PostParams::default(), &binding)
        .await?;
    Ok(())
}

/// Waits for the annotation that the design's users read, and for the end of that restart: a worker
/// that fails earlier is part of it.
async fn until_restarts(scene: &Scene, expected: i64) -> Result<()> {
    eventually(&format!("inplace-restarts is {expected}"), PATIENCE, async || {
        let jobset = scene.api::<JobSet>().get(NAME).await?;
        let shown = jobset.annotation("alpha.jobset.sigs.k8s.io/inplace-restarts");
        ensure!(shown == Some(expected.to_string().as_str()), "{shown:?}");
        let state = jobset.status.and_then(|status| status.in_place_restart);
        let state = state.context("no state yet")?;
        let is_over = state.phase == Some(InPlacePhase::InSync) && state.released == expected;
        ensure!(is_over, "{state:?}");
        Ok(())
    })
    .await
}

/// What the collector has received when the process has ended.
fn each_restart_is_a_trace(
    made: &JobSet,
    traces: &mut mpsc::UnboundedReceiver<ExportTraceServiceRequest>,
) -> Result<()> {
    let mut spans = Vec::new();
    while let Ok(request) = traces.try_recv() {
        let scopes = request.resource_spans.into_iter().flat_map(|of| of.scope_spans);
        spans.extend(scopes.flat_map(|scope| scope.spans));
    }
    let text = |span: &Span, key: &str| {
        let found = span.attributes.iter().find(|pair| pair.key == key)?;
        match found.value.clone()?.value? {
            Attribute::StringValue(text) => Some(text),
            Attribute::IntValue(number) => Some(number.to_string()),
            _ => None,
        }
    };
    let mut roots: Vec<&Span> = spans.iter().filter(|span| span.name == "restart").collect();
    roots.sort_by_key(|root| root.start_time_unix_nano);
    let codes: Vec<_> = roots
        .iter()
        .filter_map(|root| text(root, "lockstep.cause.exit_code"))
        .collect();
    ensure!(codes == ["3", "4"], "{roots:?}");
    for root in roots {
        let uid = text(root, "lockstep.jobset.uid");
        ensure!(
            uid == made.uid() && text(root, "k8s.node.name").as_deref() == Some(NODE),
            "{root:?}"
        );
        let phases: BTreeSet<&str> = spans
            .iter()
            .filter(|span| span.parent_span_id == root.span_id && span.trace_id == root.trace_id)
            .map(|span| span.name.as_str())
            .collect();
        let all = ["detect", "push", "write", "stop", "park", "release", "run"];
        ensure!(phases == all.into(), "{phases:?}");
    }
    Ok(())
}
