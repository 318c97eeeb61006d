//! The token by which the platform API identifies the caller.

use anyhow::{Context as _, Result, anyhow, bail};
use http::header::AUTHORIZATION;
use http::{Request, Response};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use kube::client::{Body, ConfigExt as _};
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};

use super::{Cluster, answer};

#[cfg(test)]
mod tests;

/// Lifetime of a requested token, in seconds: the shortest that Kubernetes allows.
const TOKEN_SECONDS: i64 = 600;

impl Cluster {
    /// The token of the command line, a new one for the named ServiceAccount, or that of the
    /// kubeconfig.
    pub(super) async fn token(&self) -> Result<String> {
        if let Some(token) = &self.args.token {
            return Ok(token.trim().to_owned());
        }
        if let Some(account) = &self.args.service_account {
            return self.token_for(account).await;
        }
        match self.own_token().await? {
            Some(token) => Ok(token),
            None => Err(anyhow!(
                "the kubeconfig has no token (the platform API takes no client certificates): give --service-account NAME, or --token \
                 with what `kubectl create token NAME` prints"
            )),
        }
    }

    async fn token_for(&self, account: &str) -> Result<String> {
        let (namespace, name) = account
            .split_once('/')
            .unwrap_or((self.namespace.as_str(), account));
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let what = format!("a token for ServiceAccount {namespace}/{name}");
        let params = PostParams::default();
        let answer = answer(&what, api.create_token_request(name, &params, &request)).await?;
        let token = answer.status.and_then(|status| status.token);
        token.with_context(|| format!("{what}: the API server returned none"))
    }

    /// The token of the kubeconfig, which may be in it, in a file, or come from a program: the one
    /// that the client sends to the API server.
    async fn own_token(&self) -> Result<Option<String>> {
        let Some(layer) = self.config.auth_layer().context("the kubeconfig's user")? else {
            return Ok(None);
        };
        let echo = service_fn(|request: Request<Body>| {
            let mut response = Response::new(());
            if let Some(value) = request.headers().get(AUTHORIZATION) {
                response.headers_mut().insert(AUTHORIZATION, value.clone());
            }
            std::future::ready(Ok::<_, BoxError>(response))
        });
        let sent = layer.layer(echo).oneshot(Request::new(Body::empty())).await;
        let sent = sent.map_err(|error| anyhow!("the kubeconfig's user: {error}"))?;
        let value = sent
            .headers()
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        match value.and_then(|value| value.split_once(' ')) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
                Ok(Some(token.trim().to_owned()))
            }
            Some((scheme, _)) => {
                bail!(
                    "the kubeconfig's user authenticates by {scheme}, which the platform API does not accept"
                )
            }
            None => Ok(None),
        }
    }
}
