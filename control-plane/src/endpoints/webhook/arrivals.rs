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

/// The time over which a rate is measured. A body that has received nothing for this long has none.
const WINDOW: Duration = Duration::from_millis(100);
/// The shortest time over which a rate is measured, since the first bytes of a body predict
/// nothing.
const SHORTEST: Duration = Duration::from_millis(10);
/// How often a body that needs memory looks for slower ones. The rate of a stalled body falls.
const AGAIN: Duration = Duration::from_millis(50);

/// Memory for bodies.
pub(super) struct Arrivals(Arc<Shared>);

struct Shared {
    /// All bytes that bodies may take.
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
    /// Its declared length.
    declared: usize,
    /// True once all of it has arrived.
    is_whole: bool,
    bytes: usize,
    /// Of these, the bytes since the window began.
    recent: usize,
    since: Instant,
    /// When the last bytes arrived.
    last: Instant,
    /// Since when it waits for memory, and for how many bytes. This time does not lower its rate.
    waits: Option<(Instant, usize)>,
    /// Cuts the body off; `None` once it is kept.
    cut: Option<CancellationToken>,
}

/// A body that arrives. Dropping it frees its memory.
pub(super) struct Arrival {
    id: u64,
    shared: Arc<Shared>,
    cut: CancellationToken,
}

/// The order in which bodies are cut off, the highest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CutOffOrder {
    /// The whole body has arrived, from a sender that holds this many bytes.
    Whole(usize),
    /// The body arrives at this rate, in bytes per second.
    Arrives(Reverse<u64>),
}

impl Body {
    fn cut_off_order(&self, now: Instant, held: usize) -> CutOffOrder {
        match self.is_whole {
            true => CutOffOrder::Whole(held),
            false => CutOffOrder::Arrives(Reverse(self.rate(now))),
        }
    }

    /// The recent rate in bytes per second, with the bytes that the body waits for.
    fn rate(&self, now: Instant) -> u64 {
        let (now, more) = self.waits.unwrap_or((now, 0));
        if more == 0 && now.duration_since(self.last) >= WINDOW {
            return 0;
        }
        let micros = now.duration_since(self.since).max(SHORTEST).as_micros();
        let bytes = u64::try_from(self.recent + more).unwrap_or(u64::MAX);
        bytes.saturating_mul(1_000_000) / u64::try_from(micros).unwrap_or(u64::MAX)
    }

    /// Notes that `more` bytes have arrived.
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
    /// Memory of this many bytes for all bodies.
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
    /// Takes memory for `more` bytes of a body, out of `all`. Returns true if there was enough.
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

    /// Cuts off bodies that come after this one, if together they have the memory that this one and
    /// those before it wait for.
    fn make_room(&self, id: u64, all: usize) {
        let now = Instant::now();
        let Some(own) = self.by_id.get(&id) else {
            return;
        };
        let rate = own.rate(now);
        let held = self.held();
        let of = |body: &Body| held.get(body.sender.as_str()).copied().unwrap_or(0);
        // What its sender will hold once the whole body has arrived.
        let own_share = of(own) + own.declared.saturating_sub(own.bytes);
        let (mut needed, mut freed) = (self.taken, all);
        let mut later = Vec::new();
        for (other, body) in &self.by_id {
            let order = body.cut_off_order(now, of(body));
            let comes_later = match order {
                _ if own.has_priority != body.has_priority => own.has_priority,
                CutOffOrder::Arrives(Reverse(of_other)) => of_other < rate,
                CutOffOrder::Whole(share) => share > own_share,
            };
            match &body.cut {
                // It frees its memory as soon as its task runs.
                Some(cut) if cut.is_cancelled() => freed += body.bytes,
                Some(cut) if *other != id && comes_later => {
                    later.push(((body.has_priority, Reverse(order)), body.bytes, cut.clone()));
                }
                // A body without priority waits for this one, and not the other way round.
                _ if *other != id && own.has_priority && !body.has_priority => {}
                _ => needed += body.waits.map_or(0, |(_, more)| more),
            }
        }
        let mut short = needed.saturating_sub(freed);
        if later.iter().map(|(_, bytes, _)| *bytes).sum::<usize>() < short {
            return;
        }
        later.sort_unstable_by_key(|(order, ..)| *order);
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
    /// Takes memory for `bytes` more, once there is enough. Cancel-safe.
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
            // Others may have become slower meanwhile.
            if timeout(AGAIN, taken).await.is_ok() {
                return;
            }
        }
    }

    /// Notes that the whole body has arrived.
    pub(super) fn whole(&self) {
        if let Some(body) = self.shared.lock().by_id.get_mut(&self.id) {
            body.is_whole = true;
        }
    }

    /// Resolves when this body is cut off. Cancel-safe.
    pub(super) async fn cut_off(&self) {
        self.cut.cancelled().await;
    }

    /// Protects the body from being cut off. False if it was cut off before.
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
