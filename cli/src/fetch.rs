//! Reads and writes the cluster with the caller's own rights.

mod changes;
mod demo;
mod installation;
mod jobsets;
mod kubelets;
mod platform;
mod read;
mod retry;
mod token;

use std::error::Error;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::args;

pub(crate) use changes::Changes;
pub(crate) use demo::Refused;
pub(crate) use jobsets::Scope;
pub(crate) use platform::Platform;

/// Time limit for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for connecting to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Access to a cluster.
pub(crate) struct Cluster {
    config: Config,
    client: Client,
    /// Namespace of the JobSets.
    pub(crate) namespace: String,
    /// Namespace in which Lockstep is installed.
    pub(crate) system: String,
    args: args::Cluster,
}

impl Cluster {
    /// Access as the arguments and the kubeconfig say. Sends no request yet.
    pub(crate) async fn open(args: args::Cluster) -> Result<Self> {
        let options = KubeConfigOptions {
            context: args.context.clone(),
            ..KubeConfigOptions::default()
        };
        let mut config = match &args.kubeconfig {
            Some(file) => {
                let what = format!("--kubeconfig {}", file.display());
                let kubeconfig = Kubeconfig::read_from(file).map_err(|error| unusable(&what, &error))?;
                Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .map_err(|error| unusable(&what, &error))?
            }
            None if args.context.is_some() => Config::from_kubeconfig(&options).await.map_err(|error| {
                unusable(
                    "the kubeconfig cannot be used (see --kubeconfig and --context)",
                    &error,
                )
            })?,
            None => Config::infer().await.map_err(|error| {
                unusable(
                    "no cluster is configured: set KUBECONFIG, or give --kubeconfig",
                    &error,
                )
            })?,
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        impersonate(&mut config, &args)?;
        let client = Client::try_from(config.clone()).context("the kubeconfig cannot be used")?;
        Ok(Self {
            namespace: args
                .namespace
                .clone()
                .unwrap_or_else(|| config.default_namespace.clone()),
            system: args.system_namespace.clone(),
            config,
            client,
            args,
        })
    }

    /// A cluster with a fake API server: `answer` responds to each request.
    #[cfg(test)]
    pub(crate) fn with_fake_api(
        namespace: &str,
        answer: impl Fn(&http::Request<kube::client::Body>) -> http::Response<kube::client::Body>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let answer = std::sync::Arc::new(answer);
        let service =
            tower::service_fn(move |request| std::future::ready(Ok::<_, tower::BoxError>(answer(&request))));
        Self {
            config: Config::new(http::Uri::from_static("http://fake")),
            client: Client::new(service, namespace),
            namespace: namespace.to_owned(),
            system: namespace.to_owned(),
            args: args::Cluster::default(),
        }
    }

    /// The same cluster, with JobSets of another namespace.
    pub(crate) fn in_namespace(self, namespace: String) -> Self {
        Self { namespace, ..self }
    }

    /// True if the platform API may be asked. It identifies callers by their own token, so it
    /// cannot be asked on behalf of an impersonated user.
    pub(crate) fn may_ask_platform(&self) -> bool {
        let impersonates = self.config.auth_info.impersonate.is_some();
        !self.args.no_platform && (!impersonates || self.args.service_account.is_some())
    }
}

/// Sets the user and the groups to impersonate. As in kubectl, groups need a user.
fn impersonate(config: &mut Config, args: &args::Cluster) -> Result<()> {
    if let Some(user) = &args.as_user {
        config.auth_info.impersonate = Some(user.clone());
        config.auth_info.impersonate_groups = None;
    }
    if !args.as_group.is_empty() {
        if config.auth_info.impersonate.is_none() {
            bail!("--as-group: needs a user (--as)");
        }
        config.auth_info.impersonate_groups = Some(args.as_group.clone());
    }
    Ok(())
}

/// The error for a kubeconfig that cannot be used.
fn unusable(what: &str, error: &dyn Error) -> anyhow::Error {
    anyhow!("{what}: {}", causes(error))
}

/// An error and its causes, outermost first. Each is written once, since many errors repeat their
/// cause. Only the first line of each is used: further lines of the kubeconfig parser quote the
/// file around a mistake, which may contain tokens and keys.
fn causes(error: &dyn Error) -> String {
    let mut all: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        let text = text.lines().next().unwrap_or_default();
        if let Some(last) = all.last_mut().filter(|last| text.starts_with(last.as_str())) {
            text.clone_into(last);
        } else if !all.iter().any(|before| before.contains(text)) {
            all.push(text.to_owned());
        }
        next = error.source();
    }
    all.join(": ")
}

/// The answer to a request for `what`.
///
/// # Errors
/// If the request fails or takes too long. The error names `what`.
pub(crate) async fn answer<T>(what: &str, request: impl Future<Output = kube::Result<T>>) -> Result<T> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(anyhow!("{what}: {}", words(&error))),
        Err(_) => Err(anyhow!(
            "{what}: the API server did not answer within {} s",
            REQUEST_TIMEOUT.as_secs()
        )),
    }
}

/// An error of the API server, in words.
pub(crate) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => causes(other),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{self, Display, Formatter};

    use super::*;

    /// An error with this message and cause.
    #[derive(Debug)]
    struct TestError(&'static str, Option<Box<Self>>);

    impl Display for TestError {
        fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for TestError {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn each_cause_is_written_once() {
        for (words, expected) in [
            (
                "transport error|tcp connect error|tcp connect error|refused",
                "transport error: tcp connect error: refused",
            ),
            (
                "client error (Connect)|tcp connect error|tcp connect error: refused|refused",
                "client error (Connect): tcp connect error: refused",
            ),
            ("refused", "refused"),
        ] {
            let error = words
                .split('|')
                .rev()
                .fold(None, |cause, words| Some(Box::new(TestError(words, cause))));
            assert_eq!(causes(&*error.unwrap()), expected);
        }
    }
}
