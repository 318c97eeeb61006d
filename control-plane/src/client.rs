//! The connection to the API server.

use std::path::Path;
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::Duration;

use anyhow::Context as _;
use http::Request;
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use thiserror::Error;
use tower::util::MapRequestLayer;
use tower::{BoxError, Service, layer};

use crate::metrics::Metrics;

/// How long the API server may take until it begins to answer, retries included. Connections die without a word, and whoever waits for an answer
/// on one keeps others waiting: a group cannot be released before its status is written. Webhooks of others may take as long. That a request was
/// obeyed after all is found out by the next one.
const ANSWER: Duration = Duration::from_secs(30);
/// How long nothing may come on a connection that is being read. Watches bring a bookmark every minute, and end after five.
const SILENCE: Duration = Duration::from_secs(300);

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

/// A client whose requests are counted, and given up where the API server does not answer.
pub(crate) fn connect(mut config: Config, metrics: &Metrics) -> kube::Result<Client> {
    config.read_timeout.get_or_insert(SILENCE);
    let requests = metrics.requests();
    let count = MapRequestLayer::new(move |request: Request<Body>| {
        requests.sent(request.method());
        request
    });
    let client = ClientBuilder::try_from(config)?.with_layer(&layer::layer_fn(Bounded));
    Ok(client.with_layer(&count).build())
}

/// Gives up requests that are not answered in time.
#[derive(Clone, Debug)]
struct Bounded<S>(S);

/// The API server, or the way to it, is silent.
#[derive(Clone, Copy, Debug, Error)]
#[error("no answer from the API server within {ANSWER:?}")]
struct NoAnswer;

impl<S> Service<Request<Body>> for Bounded<S>
where
    S: Service<Request<Body>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.0.call(request);
        Box::pin(async move {
            let answer = tokio::time::timeout(ANSWER, answer).await;
            answer.map_err(|_| NoAnswer)?.map_err(Into::into)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{pending, ready};

    use tower::{ServiceExt, service_fn};

    use super::*;

    fn request() -> Request<Body> {
        Request::new(Body::empty())
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_nobody_answers_is_given_up() {
        let silent = Bounded(service_fn(|_| pending::<Result<(), Infallible>>()));
        let asked = tokio::time::Instant::now();
        let refused = silent.oneshot(request()).await.expect_err("no answer");
        assert_eq!(asked.elapsed(), ANSWER);
        assert_eq!(refused.to_string(), "no answer from the API server within 30s");
    }

    #[tokio::test]
    async fn an_answer_is_passed_on() {
        let server = Bounded(service_fn(|_| ready(Ok::<_, Infallible>(7))));
        assert_eq!(server.oneshot(request()).await.expect("an answer"), 7);
    }
}
