//! Limits how much expensive work runs at once, with a share for each namespace or other party, so
//! that one with many requests never takes more than its share.
//!
//! Promises: no more turns are taken at once than there are, and no more by one namespace than its
//! share. Requests beyond the share wait only for others of the same namespace. A turn may weigh
//! more than one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Hands out turns, in the order of the requests.
#[derive(Debug)]
pub struct Turns {
    all: Arc<Semaphore>,
    of_one: u32,
    lines: Arc<Lines>,
}

/// The lines of namespaces that have turns, or wait for some.
type Lines = Mutex<BTreeMap<String, Line>>;

#[derive(Debug)]
struct Line {
    turns: Arc<Semaphore>,
    /// Turns that are taken or waited for.
    users: usize,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _own: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
    /// Dropped last: a line that is gone has no turns taken.
    _line: LineUser,
}

/// Keeps the line of a namespace until it is dropped.
#[derive(Debug)]
struct LineUser {
    lines: Arc<Lines>,
    namespace: String,
    turns: Arc<Semaphore>,
}

impl Drop for LineUser {
    fn drop(&mut self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get_mut(&self.namespace) {
            line.users -= 1;
            if line.users == 0 {
                lines.remove(&self.namespace);
            }
        }
    }
}

impl Turns {
    /// `all` turns at once, and of these at most `of_one` of one namespace.
    #[must_use]
    pub fn new(all: u32, of_one: u32) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all as usize)),
            of_one: of_one.min(all),
            lines: Arc::default(),
        }
    }

    fn line(&self, namespace: &str) -> LineUser {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry(namespace.to_owned()).or_insert_with(|| Line {
            turns: Arc::new(Semaphore::new(self.of_one as usize)),
            users: 0,
        });
        line.users += 1;
        LineUser {
            lines: Arc::clone(&self.lines),
            namespace: namespace.to_owned(),
            turns: Arc::clone(&line.turns),
        }
    }

    /// A turn of this weight, or of the namespace's whole share if that is less. `None`: it would
    /// have to wait.
    #[must_use]
    pub fn try_take(&self, namespace: &str, weight: u32) -> Option<Turn> {
        let weight = weight.clamp(1, self.of_one);
        let line = self.line(namespace);
        let own = Arc::clone(&line.turns).try_acquire_many_owned(weight).ok()?;
        let of_all = Arc::clone(&self.all).try_acquire_many_owned(weight).ok()?;
        Some(Turn {
            _own: Some(own),
            _of_all: Some(of_all),
            _line: line,
        })
    }

    /// Waits for a turn of this weight, or of the namespace's whole share if that is less.
    /// Cancel-safe; a cancelled caller loses its place in line.
    pub async fn take(&self, namespace: &str, weight: u32) -> Turn {
        let weight = weight.clamp(1, self.of_one);
        let line = self.line(namespace);
        // Neither semaphore is ever closed.
        let own = Arc::clone(&line.turns).acquire_many_owned(weight).await.ok();
        let of_all = Arc::clone(&self.all).acquire_many_owned(weight).await.ok();
        Turn {
            _own: own,
            _of_all: of_all,
            _line: line,
        }
    }
}

impl Turn {
    /// Lets other namespaces go on. Callers of the same namespace wait until what is returned is
    /// dropped.
    #[must_use]
    pub fn keep_own(self) -> Self {
        Self {
            _of_all: None,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// The turns that are available now.
    fn all_of(turns: &Turns, namespace: &str, weight: u32) -> Vec<Turn> {
        std::iter::from_fn(|| turns.take(namespace, weight).now_or_never()).collect()
    }

    #[tokio::test]
    async fn a_namespace_has_its_share_and_leaves_the_rest_to_others() {
        let turns = Turns::new(4, 2);
        let evil = all_of(&turns, "evil", 1);
        assert_eq!(evil.len(), 2);
        assert_eq!(all_of(&turns, "good", 1).len(), 2);
        drop(evil);
        let evil = all_of(&turns, "evil", 1);
        assert_eq!(evil.len(), 2);
        assert_eq!(
            turns.lines.lock().unwrap().len(),
            1,
            "a namespace without turns is forgotten"
        );
    }

    #[tokio::test]
    async fn waiting_in_one_line_takes_no_place_from_others() {
        let turns = Turns::new(2, 1);
        let first = turns.take("evil", 1).await;
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(turns.take("evil", 1))).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        assert!(turns.take("good", 1).now_or_never().is_some());
        drop(first);
        assert!(waiting[0].as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_weight_above_the_share_takes_the_whole_share() {
        let turns = Turns::new(8, 4);
        let heavy = turns.take("ns", 1_000).await;
        assert!(turns.take("ns", 1).now_or_never().is_none());
        assert_eq!(all_of(&turns, "other", 1).len(), 4);
        drop(heavy);
        assert_eq!(all_of(&turns, "ns", 3).len(), 1);
    }

    #[tokio::test]
    async fn try_take_gives_a_turn_at_once_or_none() {
        let turns = Turns::new(4, 3);
        let first = turns.try_take("evil", 3).unwrap();
        assert!(turns.try_take("evil", 1).is_none());
        assert!(turns.try_take("good", 2).is_none());
        assert!(turns.try_take("good", 1).is_some());
        drop(first);
        assert!(turns.try_take("good", 2).is_some());
    }

    #[tokio::test]
    async fn many_requests_of_one_namespace_delay_others_by_one_turn() {
        let turns = Turns::new(1, 1);
        let first = turns.take("loud", 1).await;
        let mut more: Vec<_> = (0..80).map(|_| Box::pin(turns.take("loud", 1))).collect();
        for waits in &mut more {
            assert!(waits.now_or_never().is_none());
        }
        let mut quiet = Box::pin(turns.take("quiet", 1));
        assert!((&mut quiet).now_or_never().is_none(), "one looks at a time");
        let own = first.keep_own();
        drop((&mut quiet).now_or_never().expect("it is next"));
        drop(own);
        drop(quiet);
        drop(more);
        let _last = turns.take("quiet", 1).await;
        assert_eq!(turns.lines.lock().unwrap().len(), 1, "others are forgotten");
    }
}
