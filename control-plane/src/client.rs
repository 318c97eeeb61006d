//! The connection to the API server.

use std::path::Path;

use anyhow::Context as _;
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::util::MapRequestLayer;

use crate::metrics::Metrics;

/// How to reach the API server: as the file says, or else the environment.
pub(crate) async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let Some(file) = kubeconfig else {
        return Config::infer().await.context("no API server is configured");
    };
    let wrong = || format!("--kubeconfig {}", file.display());
    let kubeconfig = Kubeconfig::read_from(file).with_context(wrong)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(wrong)
}

/// A client whose requests are counted.
pub(crate) fn connect(config: Config, metrics: &Metrics) -> kube::Result<Client> {
    let requests = metrics.requests();
    let count = MapRequestLayer::new(move |request: http::Request<Body>| {
        requests.sent(request.method());
        request
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&count).build())
}
