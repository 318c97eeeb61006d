use std::time::Instant;

use opentelemetry::trace::{Span as _, Tracer as _};
use tokio::net::TcpListener;

use super::collector::{Collector, endpoint, plain};
use super::*;

#[tokio::test]
async fn without_a_collector_there_is_nothing() {
    let traces = Traces::to(None).unwrap();
    assert!(traces.tracer().is_none());
    traces.end().await;
}

#[tokio::test]
async fn spans_are_sent_at_shutdown_with_their_origin() {
    let mut collector = Collector::start().await;
    let traces = Traces::to(Some(&collector.endpoint)).unwrap();
    traces.tracer().unwrap().start("it").end();
    traces.end().await;
    let request = collector.next().await;
    let [spans] = request.resource_spans.as_slice() else {
        panic!("{request:?}")
    };
    let who = plain(&spans.resource.as_ref().unwrap().attributes);
    assert!(who.contains(&("service.name", SERVICE.to_owned())), "{who:?}");
    assert!(
        who.contains(&("service.version", env!("CARGO_PKG_VERSION").to_owned())),
        "{who:?}"
    );
    assert_eq!(spans.scope_spans[0].spans[0].name, "it");
    assert!(collector.is_empty());
}

#[tokio::test]
async fn spans_are_sent_soon_without_an_end() {
    let mut collector = Collector::start().await;
    let traces = Traces::to(Some(&collector.endpoint)).unwrap();
    traces.tracer().unwrap().start("it").end();
    collector.next().await;
    traces.end().await;
}

/// More spans than can wait, to no collector and to one that never answers.
#[tokio::test]
async fn an_unreachable_or_stuck_collector_delays_no_task() {
    let away = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = away.local_addr().unwrap().port();
    drop(away);
    let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for port in [closed, hangs.local_addr().unwrap().port()] {
        let traces = Traces::to(Some(&endpoint(port))).unwrap();
        let start = Instant::now();
        for _ in 0..3 * BACKLOG {
            traces.tracer().unwrap().start("it").end();
        }
        // Half of the wait for a single batch.
        let bound = Duration::from_secs(5);
        assert!(start.elapsed() < bound, "{:?}", start.elapsed());
        traces.end().await;
        assert!(start.elapsed() < bound + LONGEST_END, "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn an_invalid_endpoint_is_reported_by_its_source() {
    let endpoint = OtlpEndpoint {
        url: "http://a b".to_owned(),
        given_by: "--otlp-endpoint",
    };
    let error = format!("{:#}", Traces::to(Some(&endpoint)).unwrap_err());
    assert!(error.starts_with("--otlp-endpoint: http://a b: "), "{error}");
}

#[test]
fn the_log_tells_of_the_first_loss_and_then_once_a_minute() {
    let mut lost = quiet::UnsentSpans::default();
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(lost.add(3, at(0)), Some(3));
    assert_eq!(lost.add(4, at(5)), None);
    assert_eq!(lost.add(5, at(59)), None);
    assert_eq!(lost.add(6, at(60)), Some(15));
    assert_eq!(lost.add(7, at(61)), None);
}
