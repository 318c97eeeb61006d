//! Asks the API server whether accepted tokens were revoked: their signature stays good when the
//! pod that they are bound to is deleted.
//!
//! Promises: nothing waits for it; one question at a time and a few per second at most, however
//! many streams there are; those that came first are asked about first, and again after a while;
//! only an answer counts, and only the same one twice: a stream does not end because the API server
//! was away.

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

/// Time between two questions.
const SPACING: Duration = Duration::from_millis(200);
/// How long one may take.
const QUESTION: Duration = Duration::from_secs(10);
/// A token that was good is asked about again after this time, and one that could not be asked
/// about.
const AGAIN: Duration = Duration::from_secs(600);
/// A token that was not is asked about again after this time, before that is believed.
const CONFIRM: Duration = Duration::from_secs(3);
/// Tokens that are remembered at most. Beyond that new ones are not asked about.
const REMEMBERED: usize = 32 * 1024;

type Digest = [u8; 32];

/// Why the API server could not be asked.
#[derive(Debug, Error)]
pub enum ReviewError {
    /// It refuses, or does not answer.
    #[error("{0}")]
    Api(#[from] Box<kube::Error>),
    /// Not within the time that it may take.
    #[error("no answer within {} s", QUESTION.as_secs())]
    Late,
}

/// Knows which tokens are good.
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
    /// How it is reached.
    pub client: Client,
    /// What the tokens are for.
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

/// The tokens of streams, and those of before that are revoked.
pub(super) struct Reviews {
    reviewer: Box<dyn Reviewer>,
    tokens: Mutex<Tokens>,
    news: Notify,
}

#[derive(Default)]
struct Tokens {
    known: HashMap<Digest, Token>,
    due: BTreeSet<(Instant, Digest)>,
}

struct Token {
    /// Not kept once it is revoked.
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
            news: Notify::new(),
        })
    }

    /// Watches over a token, for as long as what it returns is kept. Nothing if it is known to
    /// be revoked.
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
            self.news.notify_one();
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

    /// Asks, until `end`.
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
                    () = self.news.notified() => return,
                }
            }
            None => return self.news.notified().await,
        }
        let Some((digest, text)) = self.take_due() else {
            return;
        };
        let answer = timeout(QUESTION, self.reviewer.is_good(&text)).await;
        let answer = answer.unwrap_or(Err(ReviewError::Late));
        if let Err(error) = &answer {
            tracing::debug!(%error, "a token could not be asked about");
        }
        self.lock().answered(&digest, answer.ok());
        sleep(SPACING).await;
    }

    /// The token that is due, if there is to be asked about it.
    fn take_due(&self) -> Option<(Digest, Arc<str>)> {
        let mut tokens = self.lock();
        let (_, digest) = tokens.due.pop_first()?;
        let token = tokens.known.get(&digest)?;
        // One that has expired is not good to anybody, revoked or not.
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
    /// Takes an answer in: good, not good, or none.
    fn answered(&mut self, digest: &Digest, good: Option<bool>) {
        let Some(token) = self.known.get_mut(digest) else {
            return;
        };
        let now = Instant::now();
        let twice = token.denied && good == Some(false);
        token.denied = good.map_or(token.denied, |good| !good);
        token.due = now + if good == Some(false) { CONFIRM } else { AGAIN };
        if twice && !token.is_over() {
            token.revoked.cancel();
            token.text = Arc::default();
            // Remembered, to be refused, for as long as it would be accepted otherwise.
            token.due = token.expires + Duration::from_secs(super::token::LEEWAY);
            token.streams = 0;
        }
        self.due.insert((token.due, *digest));
    }
}

/// A token that a stream lives on.
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
