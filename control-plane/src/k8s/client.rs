//! The connection to the API server.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{HeaderValue, Request, header};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use thiserror::Error;
use tower::util::MapRequestLayer;
use tower::{BoxError, Service, layer};

use crate::telemetry::metrics::Metrics;
use counting::Counting;
pub(crate) use create_pace::Paced;
pub(crate) use rate::{Rates, limited};

mod counting;
mod create_pace;
pub(crate) mod pages;
mod rate;
mod refusals;

/// How long the API server may take to begin its answer, retries included. Connections die
/// silently, and a caller that waits on a dead one blocks others: a group cannot be released before
/// its status is written. Other products' webhooks may take just as long. The next request shows
/// whether this one took effect after all.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a connection that is being read may stay silent. Watches send a bookmark every minute
/// and end after five minutes.
pub(crate) const SILENCE: Duration = Duration::from_secs(300);

/// The configuration for reaching the API server: from the file if one is given, else from the
/// environment.
pub(crate) async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let mut config = if let Some(file) = kubeconfig {
        let wrong = || format!("--kubeconfig {}", file.display());
        let kubeconfig = Kubeconfig::read_from(file)
            .map_err(|error| unusable(&error))
            .with_context(wrong)?;
        from(kubeconfig).await.with_context(wrong)?
    } else if let Some(kubeconfig) = merged(&listed).context("KUBECONFIG")? {
        from(kubeconfig).await.context("KUBECONFIG")?
    } else {
        Config::infer()
            .await
            .map_err(|error| unusable(&error))
            .context("no API server is configured")?
    };
    trim_token(&mut config)?;
    Ok(config)
}

async fn from(kubeconfig: Kubeconfig) -> anyhow::Result<Config> {
    let options = KubeConfigOptions::default();
    Ok(Config::from_custom_kubeconfig(kubeconfig, &options).await?)
}

/// The merged contents of the files that exist; `None` if fewer than two files are listed, since
/// then there is nothing to skip.
fn merged(listed: &OsStr) -> anyhow::Result<Option<Kubeconfig>> {
    let files: Vec<PathBuf> = std::env::split_paths(listed)
        .filter(|file| !file.as_os_str().is_empty())
        .collect();
    if files.len() < 2 {
        return Ok(None);
    }
    let mut merged: Option<Kubeconfig> = None;
    for file in files.iter().filter(|file| file.exists()) {
        let next = Kubeconfig::read_from(file)
            .map_err(|error| unusable(&error))
            .with_context(|| file.display().to_string())?;
        merged = Some(match merged {
            Some(before) => before.merge(next)?,
            None => next,
        });
    }
    ensure!(merged.is_some(), "none of its files exists");
    Ok(merged)
}

/// Why a kubeconfig cannot be used. The parser prints the lines around a mistake below the first
/// line of its message, and they may contain tokens and keys.
fn unusable(error: &dyn std::error::Error) -> anyhow::Error {
    let said = |error: &dyn std::error::Error| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let mut text = said(error);
    let mut next = error.source();
    while let Some(error) = next {
        let cause = said(error);
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        next = error.source();
    }
    anyhow::anyhow!(text)
}

/// Uses a token file that an editor or `echo` ended with a newline without that newline. Such a
/// file is read only once, with a warning, since kube does not trim tokens that it reads again. The
/// token files that the kubelet renews have no newline.
fn trim_token(config: &mut Config) -> anyhow::Result<()> {
    let auth = &mut config.auth_info;
    let Some(file) = auth.token_file.as_ref().filter(|_| auth.token.is_none()) else {
        return Ok(());
    };
    let token = std::fs::read_to_string(file).with_context(|| format!("tokenFile {file}"))?;
    let trimmed = token.trim();
    if trimmed != token {
        tracing::warn!(
            file,
            "the token file ends with white space: it is read once and not reloaded when the token is renewed"
        );
        auth.token = Some(trimmed.to_owned().into());
    }
    Ok(())
}

/// Our User-Agent. The API server uses the part before the slash as the manager in
/// `metadata.managedFields`.
const USER_AGENT: &str = concat!("lockstep-control-plane/", env!("CARGO_PKG_VERSION"));

/// A client that identifies itself, counts its requests, times out if the API server does not
/// answer, and lists in pages that fit into memory. Requests are limited to `rates` if given.
pub(crate) fn connect(mut config: Config, rates: Option<Rates>, metrics: &Metrics) -> kube::Result<Client> {
    config.read_timeout.get_or_insert(SILENCE);
    let count = Counting::new(metrics.requests(), &config.cluster_url);
    let name = MapRequestLayer::new(move |mut request: Request<Body>| {
        let agent = request.headers_mut().entry(header::USER_AGENT);
        agent.or_insert(HeaderValue::from_static(USER_AGENT));
        request
    });
    let client = ClientBuilder::try_from(config)?.with_layer(&layer::layer_fn(Bounded));
    let client = pages::fitting(client.with_layer(&count).with_layer(&name).build());
    Ok(match rates {
        Some(rates) => limited(client, rates),
        None => client,
    })
}

/// Times out requests that are not answered in time.
#[derive(Clone, Debug)]
struct Bounded<S>(S);

/// The API server, or the network path to it, is silent.
#[derive(Clone, Copy, Debug, Error)]
#[error("no answer from the API server within {ANSWER:?}")]
struct NoAnswer;

/// True if the request failed because the API server did not answer in time.
pub(crate) fn is_unanswered(error: &kube::Error) -> bool {
    let causes = std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| {
        error.source()
    });
    causes.into_iter().any(|cause| cause.is::<NoAnswer>())
}

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
    async fn an_unanswered_request_times_out() {
        let silent = Bounded(service_fn(|_| pending::<Result<(), Infallible>>()));
        let asked = tokio::time::Instant::now();
        let refused = silent.oneshot(request()).await.expect_err("no answer");
        assert_eq!(asked.elapsed(), ANSWER);
        assert_eq!(refused.to_string(), "no answer from the API server within 30s");
    }

    #[test]
    fn files_of_a_list_that_are_not_there_are_left_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = |name: &str, context: &str| {
            let path = dir.path().join(name);
            let text = format!("apiVersion: v1\nkind: Config\ncurrent-context: {context}\n");
            std::fs::write(&path, text).expect("written");
            path
        };
        let (one, other, missing) = (
            file("one", "one"),
            file("other", "other"),
            dir.path().join("missing"),
        );
        let context = |files: &[&Path]| {
            let listed = std::env::join_paths(files).expect("a list");
            merged(&listed).map(|merged| merged.and_then(|merged| merged.current_context))
        };
        assert_eq!(
            context(&[&missing, &one, &other]).expect("merged").as_deref(),
            Some("one")
        );
        assert_eq!(context(&[&one]).expect("none to leave out"), None);
        let refused = context(&[&missing, &missing]).expect_err("nothing to read");
        assert_eq!(refused.to_string(), "none of its files exists");
    }

    #[tokio::test]
    async fn the_lines_around_a_mistake_in_a_kubeconfig_are_not_shown() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("config");
        let text = "apiVersion: v1\nkind: Config\nusers:\n- name: a\n  user: {token: secret\nclusters: []\n";
        std::fs::write(&file, text).expect("written");
        let Err(refused) = config(Some(&file)).await else {
            panic!("it is no YAML");
        };
        let said = format!("{refused:#}");
        assert!(!said.contains("secret") && !said.contains('\n'), "{said}");
        assert!(
            said.starts_with(&format!("--kubeconfig {}: ", file.display())),
            "{said}"
        );
    }

    #[test]
    fn a_token_is_used_without_the_newline_after_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let token = |text: &str| {
            let file = dir.path().join("token");
            std::fs::write(&file, text).expect("written");
            let mut config = Config::new("https://127.0.0.1".parse().expect("an address"));
            config.auth_info.token_file = Some(file.display().to_string());
            trim_token(&mut config).expect("read");
            let said = serde_json::to_value(&config.auth_info).expect("JSON");
            said["token"].as_str().map(str::to_owned)
        };
        assert_eq!(token("secret\n").as_deref(), Some("secret"));
        assert_eq!(token("renewed"), None, "it is read again when it is renewed");
    }

    #[tokio::test]
    async fn an_answer_is_passed_on() {
        let server = Bounded(service_fn(|_| ready(Ok::<_, Infallible>(7))));
        assert_eq!(server.oneshot(request()).await.expect("an answer"), 7);
    }
}
