use std::io;
use std::sync::Arc;

use tracing::subscriber::with_default;
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The log lines of `say`.
fn logged(say: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    let written = fmt::layer().with_writer(log.clone()).with_ansi(false);
    let subscriber = tracing_subscriber::registry()
        .with(RateLimit::default())
        .with(written);
    with_default(subscriber, say);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn count(lines: &[String], word: &str) -> usize {
    lines.iter().filter(|line| line.contains(word)).count()
}

#[tokio::test(start_paused = true)]
async fn a_busy_namespace_leaves_others_their_lines() {
    let lines = logged(|| {
        for _ in 0..2000 {
            tracing::info!(namespace = "loud", "a");
            let _span = tracing::info_span!("reconcile", namespace = Some("deep".to_owned())).entered();
            tracing::warn_span!("inner").in_scope(|| tracing::error!("b"));
        }
        tracing::info!(namespace = %"quiet", "c");
        tracing::info!("d");
    });
    let most = AT_ONCE as usize;
    assert_eq!(count(&lines, "loud"), most);
    assert_eq!(count(&lines, "deep"), most);
    assert_eq!((count(&lines, "quiet"), lines.len()), (1, 2 * most + 2));
}

#[tokio::test(start_paused = true)]
async fn info_lines_leave_warnings_their_share() {
    let lines = logged(|| {
        let _span = tracing::error_span!("group", namespace = "a").entered();
        for _ in 0..2000 {
            tracing::info!("news");
            tracing::debug!("detail");
        }
        tracing::error!("the definition is at fault");
    });
    let most = AT_ONCE as usize;
    assert_eq!((count(&lines, "news"), count(&lines, "detail")), (most, most));
    assert_eq!(count(&lines, "at fault"), 1);
}

#[tokio::test(start_paused = true)]
async fn dropped_lines_are_counted_before_the_next_line() {
    let share = RateLimit::default();
    let next = |namespace| share.next(namespace, Class::Info).map(|(left_out, _)| left_out);
    let said = (0..700).filter_map(|_| next("a")).count();
    assert_eq!(said, AT_ONCE as usize);
    tokio::time::advance(EACH).await;
    assert_eq!((next("a"), next("a")), (Some(700 - u64::from(AT_ONCE)), None));
    assert_eq!(next("b"), Some(0));
}

#[tokio::test(start_paused = true)]
async fn no_more_namespaces_are_remembered_than_fit() {
    let share = RateLimit::default();
    let known = || share.0.lock().unwrap().lines.len();
    for namespace in 0..2 * REMEMBERED {
        share.next(&namespace.to_string(), Class::Info);
    }
    assert_eq!(known(), REMEMBERED);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(
        share.next("another", Class::Info),
        Some((0, "another".to_owned()))
    );
    assert_eq!(known(), 1);
}

#[tokio::test(start_paused = true)]
async fn those_that_are_not_remembered_share_lines() {
    let share = RateLimit::default();
    for namespace in 0..REMEMBERED {
        share.next(&namespace.to_string(), Class::Info);
    }
    let next = |namespace| share.next(namespace, Class::Info);
    assert_eq!(next("x"), Some((0, OTHERS.to_owned())));
    while next("x").is_some() {}
    assert_eq!(next("z"), None);
    tokio::time::advance(Duration::from_secs(1)).await;
    // Namespaces that logged only once have their full share again.
    assert_eq!(next("y"), Some((0, "y".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_library_has_a_share_of_its_own() {
    let lines = logged(|| {
        for _ in 0..2000 {
            tracing::warn!(target: "h2::proto::streams::recv", "reset");
            tracing::info!("own");
        }
        tracing::warn!(target: "hyper::server", "closed");
    });
    assert_eq!(count(&lines, "reset"), AT_ONCE as usize);
    assert_eq!(count(&lines, "own"), 2000);
    assert_eq!(count(&lines, "closed"), 1);
}

#[test]
fn answers_that_cannot_be_parsed_are_logged_only_on_request() {
    let logged = |directives: &str| {
        let log = Log::default();
        let written = fmt::layer().with_writer(log.clone()).with_ansi(false);
        let subscriber = tracing_subscriber::registry()
            .with(filter(directives).unwrap())
            .with(written);
        with_default(subscriber, || {
            tracing::warn!(target: "kube_client::client", "an object");
            tracing::error!(target: "kube_client::client", "an error");
            tracing::info!("of our own");
        });
        String::from_utf8(log.0.lock().unwrap().clone()).unwrap()
    };
    // The chart always sets RUST_LOG.
    for usual in ["info", "info,kube=warn", "debug", "trace"] {
        let lines = logged(usual);
        assert!(!lines.contains("an object"), "{usual}: {lines}");
        assert!(
            lines.contains("an error") && lines.contains("of our own"),
            "{usual}: {lines}"
        );
    }
    assert!(logged("info,kube_client::client=debug").contains("an object"));
}
