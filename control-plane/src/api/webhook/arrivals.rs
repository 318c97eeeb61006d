//! Memory for the bodies of requests while they arrive.
//!
//! Promises: all bodies together hold no more bytes than the limit; a growing buffer may reserve as
//! many again. A body takes memory for the bytes that have arrived, whatever length it declares. If
//! memory is short, the slowest bodies are cut off: first those that have received nothing for
//! [`WINDOW`]. So a client that sends slowly, or not at all, delays no other. A body that has
//! arrived whole and waits for its review is cut off after those, and only for a client that holds
//! less: of such bodies, those of the client that holds most go first. Nothing of an API server is
//! cut off for what others send, and everything of others for what it sends.
//!
//! ```text
//! begin ──grow (bytes arrive)──> grow ... ──whole──> waits for its review ──keep──> kept until dropped
//!            │ memory is short, and this is the slowest     │ memory is short for a client that holds less
//!            └──> cut off                                   └──> cut off
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::api_servers::SenderClass;

/// The time over which a rate is taken. What has sent nothing for as long has none.
const WINDOW: Duration = Duration::from_millis(100);
/// The shortest time over which a rate is taken: the first bytes of a body say nothing about the
/// next ones.
const SHORTEST: Duration = Duration::from_millis(10);
/// How often a body that needs memory looks for slower ones: the rate of a body that does not go on
/// falls.
const AGAIN: Duration = Duration::from_millis(50);

/// Memory for bodies.
pub(super) struct Arrivals(Arc<Shared>);

struct Shared {
    /// Bytes that there are.
    bytes: usize,
    bodies: Mutex<Bodies>,
    freed: Notify,
}

#[derive(Default)]
struct Bodies {
    taken: usize,
    next: u64,
    by_id: BTreeMap<u64, Body>,
}

struct Body {
    /// The address that sends it.
    sender: String,
    /// True if it has priority over those without.
    has_priority: bool,
    /// How long it says that it is.
    declared: usize,
    /// True once all of it has arrived.
    is_whole: bool,
    bytes: usize,
    /// Of these, what has arrived since the window began.
    recent: usize,
    since: Instant,
    /// When bytes arrived last.
    last: Instant,
    /// Since when it waits for memory, which is no fault of its own, and for how many bytes.
    waits: Option<(Instant, usize)>,
    /// `None`: it is kept.
    cut: Option<CancellationToken>,
}

/// A body that arrives. Dropping it gives its memory back.
pub(super) struct Arrival {
    id: u64,
    shared: Arc<Shared>,
    cut: CancellationToken,
}

/// The last one is cut off first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// All of it has arrived, from a sender that holds so many bytes.
    Whole(usize),
    /// So many bytes of it arrive a second.
    Arrives(Reverse<u64>),
}

impl Body {
    fn rank(&self, now: Instant, held: usize) -> Rank {
        match self.is_whole {
            true => Rank::Whole(held),
            false => Rank::Arrives(Reverse(self.rate(now))),
        }
    }

    /// Bytes a second of late, with those that it waits for.
    fn rate(&self, now: Instant) -> u64 {
        let (now, more) = self.waits.unwrap_or((now, 0));
        if more == 0 && now.duration_since(self.last) >= WINDOW {
            return 0;
        }
        let micros = now.duration_since(self.since).max(SHORTEST).as_micros();
        let bytes = u64::try_from(self.recent + more).unwrap_or(u64::MAX);
        bytes.saturating_mul(1_000_000) / u64::try_from(micros).unwrap_or(u64::MAX)
    }

    /// So many more have arrived.
    fn arrived(&mut self, now: Instant, more: usize) {
        if let Some((since, _)) = self.waits.take() {
            self.since += now.duration_since(since);
        }
        if now.duration_since(self.since) >= WINDOW {
            (self.recent, self.since) = (0, now);
        }
        self.last = now;
        self.bytes += more;
        self.recent += more;
    }
}

impl Arrivals {
    /// So many bytes for all bodies.
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Shared {
            bytes,
            bodies: Mutex::default(),
            freed: Notify::new(),
        }))
    }

    /// A body of `declared` bytes begins to arrive from this address.
    pub(super) fn begin(&self, sender: &str, class: SenderClass, declared: usize) -> Arrival {
        let cut = CancellationToken::new();
        let mut bodies = self.0.lock();
        let id = bodies.next;
        bodies.next += 1;
        let now = Instant::now();
        let body = Body {
            sender: sender.to_owned(),
            has_priority: class.has_priority(),
            declared,
            is_whole: false,
            bytes: 0,
            recent: 0,
            since: now,
            last: now,
            waits: None,
            cut: Some(cut.clone()),
        };
        bodies.by_id.insert(id, body);
        Arrival {
            id,
            shared: Arc::clone(&self.0),
            cut,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Bodies> {
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bodies {
    /// Takes memory for `more` bytes of a body, of `all` that there is. Whether there was enough.
    fn take(&mut self, id: u64, more: usize, all: usize) -> bool {
        let now = Instant::now();
        let has_room = self.taken + more <= all;
        let Some(own) = self.by_id.get_mut(&id) else {
            return false;
        };
        if has_room {
            self.taken += more;
            own.arrived(now, more);
        } else {
            own.waits.get_or_insert((now, more));
        }
        has_room
    }

    /// Cuts off bodies, if those that come after this one have the memory that it and those before
    /// it wait for.
    fn make_room(&self, id: u64, all: usize) {
        let now = Instant::now();
        let Some(own) = self.by_id.get(&id) else {
            return;
        };
        let rate = own.rate(now);
        let held = self.held();
        let of = |body: &Body| held.get(body.sender.as_str()).copied().unwrap_or(0);
        // What its sender will hold, if it lets the body come.
        let own_share = of(own) + own.declared.saturating_sub(own.bytes);
        let (mut needed, mut freed) = (self.taken, all);
        let mut later = Vec::new();
        for (other, body) in &self.by_id {
            let rank = body.rank(now, of(body));
            let comes_later = match rank {
                _ if own.has_priority != body.has_priority => own.has_priority,
                Rank::Arrives(Reverse(of_other)) => of_other < rate,
                Rank::Whole(share) => share > own_share,
            };
            match &body.cut {
                // It gives its memory back as soon as its task runs.
                Some(cut) if cut.is_cancelled() => freed += body.bytes,
                Some(cut) if *other != id && comes_later => {
                    later.push(((body.has_priority, Reverse(rank)), body.bytes, cut.clone()));
                }
                // What comes later waits for this one, and not the other way round.
                _ if *other != id && own.has_priority && !body.has_priority => {}
                _ => needed += body.waits.map_or(0, |(_, more)| more),
            }
        }
        let mut short = needed.saturating_sub(freed);
        if later.iter().map(|(_, bytes, _)| *bytes).sum::<usize>() < short {
            return;
        }
        later.sort_unstable_by_key(|(rank, ..)| *rank);
        for (_, bytes, cut) in later {
            if short == 0 {
                break;
            }
            if bytes > 0 {
                short = short.saturating_sub(bytes);
                cut.cancel();
            }
        }
    }

    /// How many bytes each sender holds.
    fn held(&self) -> HashMap<&str, usize> {
        let mut held = HashMap::new();
        for body in self.by_id.values() {
            *held.entry(body.sender.as_str()).or_default() += body.bytes;
        }
        held
    }
}

impl Arrival {
    /// Takes memory for `bytes` more, when there is any. Cancel-safe.
    pub(super) async fn grow(&self, bytes: usize) {
        let take = || self.shared.lock().take(self.id, bytes, self.shared.bytes);
        loop {
            let taken = async {
                let mut has_looked = false;
                loop {
                    let freed = self.shared.freed.notified();
                    if take() {
                        return;
                    }
                    if !has_looked {
                        self.shared.lock().make_room(self.id, self.shared.bytes);
                        has_looked = true;
                    }
                    freed.await;
                }
            };
            // Meanwhile others have become slower.
            if timeout(AGAIN, taken).await.is_ok() {
                return;
            }
        }
    }

    /// All of this body has arrived.
    pub(super) fn whole(&self) {
        if let Some(body) = self.shared.lock().by_id.get_mut(&self.id) {
            body.is_whole = true;
        }
    }

    /// Resolves when this body is cut off. Cancel-safe.
    pub(super) async fn cut_off(&self) {
        self.cut.cancelled().await;
    }

    /// Has the body stay: it is not cut off any more. `false`: it was before.
    pub(super) fn keep(&self) -> bool {
        let mut bodies = self.shared.lock();
        let is_cut = self.cut.is_cancelled();
        if let Some(body) = bodies.by_id.get_mut(&self.id).filter(|_| !is_cut) {
            body.cut = None;
        }
        !is_cut
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut bodies = self.shared.lock();
        if let Some(body) = bodies.by_id.remove(&self.id) {
            bodies.taken = bodies.taken.saturating_sub(body.bytes);
        }
        drop(bodies);
        self.shared.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
