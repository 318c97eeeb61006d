//! Asks the API server if accepted tokens were revoked. A token's signature stays valid after its
//! pod is deleted.
//!
//! Promises: nothing waits for these reviews. There is one at a time and a few per second at most,
//! for any number of streams. The oldest tokens come first, and all are reviewed again after a
//! while. A token is revoked only after two denials in a row: a stream does not end because the API
//! server was away.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// Time between two reviews.
const SPACING: Duration = Duration::from_millis(200);
/// How long one review may take.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// Time until the next review of a token that was good or could not be reviewed.
const AGAIN: Duration = Duration::from_secs(600);
/// Time until the review that confirms a denial.
const CONFIRM: Duration = Duration::from_secs(3);
/// Most tokens that are remembered. Further ones are not reviewed.
const REMEMBERED: usize = 32 * 1024;

type Digest = [u8; 32];

/// Why a token could not be reviewed.
#[derive(Debug, Error)]
pub enum ReviewError {
    /// The API server refuses, or does not answer.
    #[error("{0}")]
    Api(#[from] Box<kube::Error>),
    /// The API server does not answer in time.
    #[error("no answer within {} s", REVIEW_TIMEOUT.as_secs())]
    Late,
}

/// The result of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    Denied,
    /// The API server refuses, or does not answer.
    Unknown,
}

/// Tells which tokens are good.
#[async_trait]
pub trait Reviewer: Send + Sync + 'static {
    /// True if this token is good.
    ///
    /// # Errors
    /// [`ReviewError`] if that is not known.
    async fn is_good(&self, token: &str) -> Result<bool, ReviewError>;
}

/// The API server of the cluster.
pub struct ClusterReviewer {
    /// Its client.
    pub client: Client,
    /// The audience of the tokens.
    pub audience: String,
}

#[async_trait]
impl Reviewer for ClusterReviewer {
    async fn is_good(&self, token: &str) -> Result<bool, ReviewError> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: Some(vec![self.audience.clone()]),
            },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await;
        let status = answer.map_err(Box::new)?.status;
        Ok(status.is_some_and(|status| status.authenticated == Some(true)))
    }
}

/// The tokens of streams, and earlier ones that are revoked.
pub(super) struct Reviews {
    reviewer: Box<dyn Reviewer>,
    tokens: Mutex<Tokens>,
    added: Notify,
}

#[derive(Default)]
struct Tokens {
    known: HashMap<Digest, Token>,
    due: BTreeSet<(Instant, Digest)>,
}

struct Token {
    /// Empty once it is revoked.
    text: Arc<str>,
    expires: Instant,
    streams: usize,
    due: Instant,
    denied: bool,
    revoked: CancellationToken,
}

impl Reviews {
    pub(super) fn new(reviewer: impl Reviewer) -> Arc<Self> {
        Arc::new(Self {
            reviewer: Box::new(reviewer),
            tokens: Mutex::default(),
            added: Notify::new(),
        })
    }

    /// Watches a token until the returned value is dropped. `None` if it is known to be revoked.
    pub(super) fn watch(self: &Arc<Self>, token: &str, expires: Instant) -> Option<Watched> {
        let digest: Digest = Sha256::digest(token.as_bytes()).into();
        let mut tokens = self.lock();
        let tokens = &mut *tokens;
        let revoked = if let Some(token) = tokens.known.get_mut(&digest) {
            if token.revoked.is_cancelled() {
                return None;
            }
            token.streams += 1;
            token.revoked.clone()
        } else if tokens.known.len() < REMEMBERED {
            let due = Instant::now();
            let token = Token {
                text: token.into(),
                expires,
                streams: 1,
                due,
                denied: false,
                revoked: CancellationToken::new(),
            };
            let revoked = token.revoked.clone();
            tokens.known.insert(digest, token);
            tokens.due.insert((due, digest));
            self.added.notify_one();
            revoked
        } else {
            CancellationToken::new()
        };
        Some(Watched {
            reviews: Arc::clone(self),
            digest,
            revoked,
        })
    }

    /// Reviews tokens until `end`.
    pub(super) async fn run(&self, end: CancellationToken) {
        while end.run_until_cancelled(self.turn()).await.is_some() {}
    }

    async fn turn(&self) {
        let next = self.lock().due.first().map(|(at, _)| *at);
        match next {
            Some(at) if at <= Instant::now() => {}
            Some(at) => {
                tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.added.notified() => return,
                }
            }
            None => return self.added.notified().await,
        }
        let Some((digest, text)) = self.take_due() else {
            return;
        };
        let answer = timeout(REVIEW_TIMEOUT, self.reviewer.is_good(&text)).await;
        let verdict = match answer.unwrap_or(Err(ReviewError::Late)) {
            Ok(true) => Verdict::Good,
            Ok(false) => Verdict::Denied,
            Err(error) => {
                tracing::debug!(%error, "failed to review a token");
                Verdict::Unknown
            }
        };
        self.lock().answered(&digest, verdict);
        sleep(SPACING).await;
    }

    /// The token that is due, if it still needs a review.
    fn take_due(&self) -> Option<(Digest, Arc<str>)> {
        let mut tokens = self.lock();
        let (_, digest) = tokens.due.pop_first()?;
        let token = tokens.known.get(&digest)?;
        // An expired token is useless, revoked or not.
        if token.streams == 0 || token.is_over() {
            tokens.known.remove(&digest);
            return None;
        }
        Some((digest, Arc::clone(&token.text)))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().known.len()
    }

    fn lock(&self) -> MutexGuard<'_, Tokens> {
        // Nothing that holds this lock can leave it half-changed.
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Token {
    fn is_over(&self) -> bool {
        self.expires <= Instant::now()
    }
}

impl Tokens {
    /// Handles the result of a review.
    fn answered(&mut self, digest: &Digest, verdict: Verdict) {
        let Some(token) = self.known.get_mut(digest) else {
            return;
        };
        let now = Instant::now();
        let twice = token.denied && verdict == Verdict::Denied;
        let after = match verdict {
            Verdict::Good => {
                token.denied = false;
                AGAIN
            }
            Verdict::Denied => {
                token.denied = true;
                CONFIRM
            }
            Verdict::Unknown => AGAIN,
        };
        token.due = now + after;
        if twice && !token.is_over() {
            token.revoked.cancel();
            token.text = Arc::default();
            // Remembered, and refused, until it would not be accepted anyway.
            token.due = token.expires + Duration::from_secs(super::token::LEEWAY);
            token.streams = 0;
        }
        self.due.insert((token.due, *digest));
    }
}

/// A stream's hold on its token.
pub(super) struct Watched {
    reviews: Arc<Reviews>,
    digest: Digest,
    revoked: CancellationToken,
}

impl Watched {
    pub(super) fn revoked(&self) -> impl Future<Output = ()> + Send + 'static {
        self.revoked.clone().cancelled_owned()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(token) = self.reviews.lock().known.get_mut(&self.digest) {
            token.streams = token.streams.saturating_sub(1);
        }
    }
}
