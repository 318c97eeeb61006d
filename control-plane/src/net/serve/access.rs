//! Authenticates and authorizes callers through the API server and caches its answers.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::Instant;

mod callers;
#[cfg(test)]
pub(super) mod tests;

use callers::Callers;

/// How long an answer is cached: a permission, and a denial.
const BELIEVED: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(10));
/// How many answers are remembered.
const REMEMBERED: usize = 256;
/// How many reviews run concurrently.
const PARALLELISM: usize = 4;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The request may proceed.
    Allowed,
    /// The token is not valid.
    Unknown,
    /// This user is not allowed.
    Denied(String),
    /// Too many requests from this address are waiting.
    TooMany,
}

/// The action to authorize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Get this URL of the metrics endpoint.
    Get(&'static str),
    /// Do something with JobSets.
    JobSets {
        /// The verb, as in RBAC.
        verb: &'static str,
        /// The namespace; empty for all.
        namespace: String,
        /// The name; empty for all.
        name: String,
    },
}

/// Checks callers with TokenReviews and SubjectAccessReviews.
pub(crate) struct AccessChecker {
    client: Client,
    /// By a digest of token and action, so that tokens are not stored.
    cached: Mutex<HashMap<[u8; 32], CachedVerdict>>,
    questions: Semaphore,
    callers: Callers,
}

struct CachedVerdict {
    verdict: Verdict,
    until: Instant,
}

impl AccessChecker {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            cached: Mutex::default(),
            questions: Semaphore::new(PARALLELISM),
            callers: Callers::default(),
        }
    }

    /// Checks if the bearer of this token may perform the action. `from` is the caller's address.
    pub(crate) async fn check(&self, from: &str, token: &str, action: &Action) -> Result<Verdict, Error> {
        let digest = digest(token, action);
        if let Some(verdict) = self.remembered(&digest) {
            return Ok(verdict);
        }
        let Some(question) = self.callers.question(from) else {
            return Ok(Verdict::TooMany);
        };
        // The address's own limit comes first, so a caller that waits for it delays no other
        // address.
        let _turn = question.turn().await;
        // The semaphore is never closed, so a permit always comes.
        let _permit = self.questions.acquire().await;
        if let Some(verdict) = self.remembered(&digest) {
            return Ok(verdict);
        }
        let verdict = match self.user(token).await? {
            Some(user) => self.may(user, action).await?,
            None => Verdict::Unknown,
        };
        self.remember(digest, verdict.clone());
        Ok(verdict)
    }

    async fn user(&self, token: &str) -> Result<Option<UserInfo>, Error> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: None,
            },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await?.status;
        let status = status.filter(|status| status.authenticated == Some(true));
        Ok(status.and_then(|status| status.user))
    }

    async fn may(&self, user: UserInfo, action: &Action) -> Result<Verdict, Error> {
        let name = user.username.clone().unwrap_or_default();
        let (url, resource) = attributes(action);
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                groups: user.groups,
                uid: user.uid,
                extra: user.extra,
                non_resource_attributes: url,
                resource_attributes: resource,
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let status = reviews.create(&PostParams::default(), &review).await?.status;
        Ok(if status.is_some_and(|status| status.allowed) {
            Verdict::Allowed
        } else {
            Verdict::Denied(name)
        })
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<[u8; 32], CachedVerdict>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remembered(&self, digest: &[u8; 32]) -> Option<Verdict> {
        let cached = self.locked();
        let cached = cached
            .get(digest)
            .filter(|cached| Instant::now() < cached.until)?;
        Some(cached.verdict.clone())
    }

    fn remember(&self, digest: [u8; 32], verdict: Verdict) {
        let now = Instant::now();
        let mut cached = self.locked();
        if cached.len() >= REMEMBERED {
            cached.retain(|_, cached| now < cached.until);
        }
        if cached.len() >= REMEMBERED {
            let soonest = cached
                .iter()
                .min_by_key(|(_, cached)| cached.until)
                .map(|(digest, _)| *digest);
            soonest.map(|digest| cached.remove(&digest));
        }
        let believed = if verdict == Verdict::Allowed {
            BELIEVED.0
        } else {
            BELIEVED.1
        };
        cached.insert(
            digest,
            CachedVerdict {
                verdict,
                until: now + believed,
            },
        );
    }
}

fn attributes(action: &Action) -> (Option<NonResourceAttributes>, Option<ResourceAttributes>) {
    match action {
        Action::Get(path) => {
            let url = NonResourceAttributes {
                path: Some((*path).to_owned()),
                verb: Some("get".to_owned()),
            };
            (Some(url), None)
        }
        Action::JobSets {
            verb,
            namespace,
            name,
        } => {
            let resource = ResourceAttributes {
                verb: Some((*verb).to_owned()),
                group: Some("jobset.x-k8s.io".to_owned()),
                resource: Some("jobsets".to_owned()),
                namespace: Some(namespace.clone()),
                name: Some(name.clone()),
                ..ResourceAttributes::default()
            };
            (None, Some(resource))
        }
    }
}

fn digest(token: &str, action: &Action) -> [u8; 32] {
    let parts = match action {
        Action::Get(path) => ["get", path, ""],
        Action::JobSets {
            verb,
            namespace,
            name,
        } => [*verb, namespace.as_str(), name.as_str()],
    };
    let mut digest = Sha256::new();
    for part in [[token].as_slice(), &parts].concat() {
        // No part can run into the next one.
        digest.update(Sha256::digest(part.as_bytes()));
    }
    digest.finalize().into()
}
