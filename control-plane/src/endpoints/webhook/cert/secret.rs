//! The generated certificate, in a Secret that all replicas share.
//!
//! Promises: all replicas serve the certificate in the Secret, soon after it is written. The first
//! replica that finds it missing, damaged or about to expire generates another one. If several
//! replicas do so at the same time, one wins, and the others use its certificate.
//!
//! [`crate::net::tls::rotation`] describes how a new CA takes over.
//!
//! ```text
//! seen ──> fits ──────────────────────────> serve it, publish its CA
//!   ^  └─> missing, damaged, expires soon ─> write ──> conflict: wait for the other replica's
//!   └──────────────── watch ────────────────┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

use super::pair::{Pair, PairError};
use super::{Certificate, InjectedBundles, Service};
use crate::k8s::namespace;
use crate::net::tls::rotation::Trust;

#[cfg(test)]
mod tests;

/// How often a certificate's expiry is checked.
const CHECK_EVERY: Duration = Duration::from_secs(60 * 60);
/// How long to wait after a write that failed.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Why there is no certificate yet.
#[derive(Debug, Error)]
enum KeepError {
    #[error("{0}")]
    Pair(#[from] PairError),
    #[error("{0}")]
    Api(#[from] Box<kube::Error>),
}

impl From<kube::Error> for KeepError {
    fn from(error: kube::Error) -> Self {
        Self::Api(Box::new(error))
    }
}

/// What to do about the Secret.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    /// Serve this pair.
    Use(Pair),
    /// Write this pair, for this reason.
    Write(Pair, String),
}

/// Maintains the Secret, serves its certificate, and publishes its CA. Never ends.
pub(super) async fn keep(
    name: &str,
    service: Service<'_>,
    client: &Client,
    certificate: &watch::Sender<Certificate>,
    ca: &watch::Sender<Option<String>>,
    mut injected: watch::Receiver<InjectedBundles>,
) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), service.namespace);
    let watch = watcher::watch_object(secrets.clone(), name).default_backoff();
    let mut watch = std::pin::pin!(watch);
    let mut seen: Option<Option<Secret>> = None;
    let mut next = Instant::now() + CHECK_EVERY;
    loop {
        tokio::select! {
            event = watch.next() => match event {
                Some(Ok(secret)) => seen = Some(secret),
                Some(Err(error)) => {
                    tracing::warn!(secret = name, %error, "failed to watch the Secret of the webhooks' certificate");
                    continue;
                }
                None => return,
            },
            // Its sender lives as long as this.
            _ = injected.changed() => {}
            () = tokio::time::sleep_until(next) => {}
        }
        let Some(secret) = &seen else { continue };
        let bundles = injected.borrow_and_update().clone();
        let done = match settle(name, service, client, &secrets, secret.as_ref(), &bundles).await {
            Ok(Some(pair)) => publish(pair, certificate, ca).map_err(KeepError::from),
            // The watch shows the current object.
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        next = Instant::now() + if done.is_ok() { CHECK_EVERY } else { TRY_AGAIN };
        if let Err(error) = done {
            tracing::warn!(secret = name, %error, "no certificate for the webhooks");
        }
    }
}

/// The pair to serve; `None` if another replica has just written one.
async fn settle(
    name: &str,
    service: Service<'_>,
    client: &Client,
    secrets: &Api<Secret>,
    seen: Option<&Secret>,
    injected: &InjectedBundles,
) -> Result<Option<Pair>, KeepError> {
    let (pair, why) = match decide(seen, service, Timestamp::now(), injected)? {
        Decision::Use(pair) => return Ok(Some(pair)),
        Decision::Write(pair, why) => (pair, why),
    };
    let written = match seen {
        Some(secret) => {
            let mut secret = secret.clone();
            pair.put(secret.data.get_or_insert_default());
            secrets.replace(name, &PostParams::default(), &secret).await
        }
        None => {
            namespace::ensure(client, service.namespace).await?;
            let mut data = BTreeMap::new();
            pair.put(&mut data);
            let secret = Secret {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    ..ObjectMeta::default()
                },
                data: Some(data),
                ..Secret::default()
            };
            secrets.create(&PostParams::default(), &secret).await
        }
    };
    match written {
        Ok(_) => {
            tracing::info!(secret = name, why, "wrote the webhooks' certificate");
            Ok(Some(pair))
        }
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn decide(
    secret: Option<&Secret>,
    service: Service<'_>,
    now: Timestamp,
    injected: &InjectedBundles,
) -> Result<Decision, PairError> {
    let generate = |why: &str| Ok(Decision::Write(Pair::generate(service, now)?, why.to_owned()));
    let Some(secret) = secret else {
        return generate("there was none");
    };
    let pair = match Pair::from_data(secret.data.as_ref().unwrap_or(&Default::default())) {
        Ok(pair) => pair,
        Err(error) => return generate(&error.to_string()),
    };
    let Err(error) = pair.fits(service, now) else {
        let step = pair.step(service, now, Trust::told(injected.are(&pair.authority.trusted())))?;
        return Ok(step.map_or(Decision::Use(pair), |(after, why)| {
            Decision::Write(after, why.to_string())
        }));
    };
    // A CA that can still sign is kept, so that nothing changes for those that trust it.
    match pair.renewed(service, now) {
        Ok(renewed) => Ok(Decision::Write(renewed, error.to_string())),
        Err(_) => generate(&error.to_string()),
    }
}

fn publish(
    pair: Pair,
    certificate: &watch::Sender<Certificate>,
    ca: &watch::Sender<Option<String>>,
) -> Result<(), PairError> {
    // The CA first, so that clients can trust the certificate when they see it.
    ca.send_if_modified(|known| {
        let trusted = pair.authority.trusted();
        let is_new = known.as_ref() != Some(&trusted);
        *known = Some(trusted);
        is_new
    });
    certificate.send_replace(Some(pair.certified()?));
    Ok(())
}
