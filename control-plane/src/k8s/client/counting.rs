//! Counts requests to the API server and their answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use http::{Request, Response, Uri};
use tower::{Layer, Service};

use crate::telemetry::metrics::Requests;

/// Counts requests. A request that a lower layer retries counts once.
#[derive(Clone, Debug)]
pub(super) struct Counting {
    requests: Requests,
    /// The destination: host and port.
    host: Arc<str>,
}

impl Counting {
    pub(super) fn new(requests: Requests, server: &Uri) -> Self {
        let host = server.authority().map_or("", |authority| authority.as_str());
        Self {
            requests,
            host: host.into(),
        }
    }
}

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted {
            inner,
            counting: self.clone(),
        }
    }
}

/// A service whose requests are counted.
#[derive(Clone, Debug)]
pub(super) struct Counted<S> {
    inner: S,
    counting: Counting,
}

impl<S, B, R> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.method().clone();
        let Counting { requests, host } = self.counting.clone();
        requests.sent(&method);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let status = answer.as_ref().ok().map(Response::status);
            requests.answered(&method, &host, status);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use http::StatusCode;
    use tower::{ServiceBuilder, ServiceExt, service_fn};

    use super::*;
    use crate::telemetry::metrics::Metrics;

    #[tokio::test]
    async fn answers_are_counted_by_status_as_those_of_client_go() {
        let metrics = Metrics::default();
        let server = Uri::from_static("https://10.96.0.1:443/");
        let answers = |request: Request<&'static str>| {
            ready(match *request.body() {
                "" => Err("cut off"),
                body => {
                    let status: StatusCode = body.parse().expect("a status");
                    Ok(Response::builder().status(status).body(()).expect("a response"))
                }
            })
        };
        let service = ServiceBuilder::new()
            .layer(Counting::new(metrics.requests(), &server))
            .service(service_fn(answers));
        for body in ["200", "200", "409", ""] {
            let _ = service.clone().oneshot(Request::new(body)).await;
        }
        let text = metrics.encode().expect("text");
        for (code, times) in [("200", 2), ("409", 1), ("<error>", 1)] {
            let line = format!(
                "rest_client_requests_total{{code=\"{code}\",method=\"GET\",host=\"10.96.0.1:443\"}} {times}"
            );
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
        assert!(
            text.contains("lockstep_api_requests_total{method=\"GET\"} 4\n"),
            "{text}"
        );
    }
}
