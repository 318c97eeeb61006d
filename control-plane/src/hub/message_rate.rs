//! How fast a node may send, over all of its streams.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockstep_process::rate_limit::{Rate, SharedRateLimit};

/// Messages that a node may send per second, and at once. Further messages wait. Its daemon merges
/// what changes meanwhile, so nothing is lost.
const MESSAGES: (u32, u32) = (200, 400);
/// How many messages a Hello counts as, since it touches every group: twenty at once, and ten per
/// second. A daemon sends one.
pub(super) const HELLO: u32 = 20;
/// Nodes whose pace is kept before idle ones are dropped.
const REMEMBERED: usize = 1024;

/// The pace of each node. A new stream continues with the pace of the one before.
#[derive(Default)]
pub(super) struct MessageRates(Mutex<Nodes>);

#[derive(Default)]
struct Nodes {
    paces: HashMap<String, Arc<SharedRateLimit>>,
    /// The number of nodes at which idle ones are dropped.
    full: usize,
}

impl MessageRates {
    /// The pace of this node.
    pub(super) fn of(&self, node: &str) -> Arc<SharedRateLimit> {
        // Nothing that holds this lock can leave it half-changed.
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pace) = nodes.paces.get(node) {
            return Arc::clone(pace);
        }
        if nodes.paces.len() >= nodes.full.max(REMEMBERED) {
            nodes
                .paces
                .retain(|_, pace| Arc::strong_count(pace) > 1 || !pace.is_full());
            nodes.full = 2 * nodes.paces.len();
        }
        let (per_second, burst) = MESSAGES;
        let pace = Arc::new(SharedRateLimit::new(Rate {
            burst: burst + 1,
            every: Duration::from_secs(1) / per_second,
        }));
        nodes.paces.insert(node.to_owned(), Arc::clone(&pace));
        pace
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn another_stream_of_a_node_has_no_burst_of_its_own_and_another_node_has() {
        let paces = MessageRates::default();
        let began = Instant::now();
        for _ in 0..401 {
            let pace = paces.of("n1");
            pace.ready().await;
            pace.take();
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        paces.of("n1").acquire(HELLO).await;
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(4), "{waited:?}");
        paces.of("n1").ready().await;
        let waited = began.elapsed() - waited;
        assert!((99..=101).contains(&waited.as_millis()), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn ten_thousand_nodes_come_at_once_and_none_waits() {
        let paces = MessageRates::default();
        let began = Instant::now();
        for node in 0..10_000 {
            paces.of(&node.to_string()).acquire(HELLO).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        // A quiet node is forgotten, which loses nothing; the others are kept.
        tokio::time::advance(Duration::from_secs(1)).await;
        let busy = paces.of("busy");
        for _ in 0..1000 {
            busy.take();
        }
        drop(busy);
        for node in 0..10_000 {
            paces.of(&format!("other-{node}"));
        }
        let kept = paces.0.lock().unwrap().paces.len();
        assert!(kept < 12_000, "{kept}");
        let waiting = Instant::now();
        paces.of("busy").acquire(HELLO).await;
        assert!(waiting.elapsed() > Duration::from_secs(2));
    }
}
