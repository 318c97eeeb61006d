//! What waits to be reported: at most the latest state of each incarnation, so that a slow or absent control plane costs no memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use super::types::{ContainerId, WorkerState};

/// Written by the driver, emptied by the link. Nothing waits for more to come: whoever takes gets what is there.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: Mutex<BTreeMap<ContainerId, WorkerState>>,
    filled: Notify,
}

impl Outbox {
    /// Adds states; each replaces an older one of its incarnation.
    pub fn put(&self, states: impl IntoIterator<Item = WorkerState>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        for state in states {
            waiting.insert(state.incarnation.container.clone(), state);
        }
        let filled = !waiting.is_empty();
        drop(waiting);
        if filled {
            self.filled.notify_one();
        }
    }

    /// Takes what waits, up to `most` states.
    #[must_use]
    pub fn take(&self, most: usize) -> Vec<WorkerState> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = most.min(waiting.len());
        std::iter::from_fn(|| waiting.pop_first())
            .take(count)
            .map(|(_, state)| state)
            .collect()
    }

    /// Returns once there may be something to take. For one waiter; cancel safe.
    pub async fn filled(&self) {
        loop {
            let filled = self.filled.notified();
            let empty = self
                .waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_empty();
            if !empty {
                return;
            }
            filled.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::types::{AgentPhase, Heartbeat, Incarnation, Phase};

    fn state(container: &str, revision: u64) -> WorkerState {
        WorkerState {
            group: "g".into(),
            job: "job".into(),
            index: 0,
            container: "worker".into(),
            incarnation: Incarnation {
                pod: "p".into(),
                container: container.into(),
            },
            namespace: "default".into(),
            pod_name: "pod".into(),
            phase: Phase::Agent(AgentPhase::Running),
            generation: 1,
            epoch: 1,
            counter: 1,
            revision,
            since: 0,
            detail: String::new(),
            heartbeat: Heartbeat::Well,
            released_at: None,
        }
    }

    #[tokio::test]
    async fn keeps_the_latest_state_of_each_incarnation() {
        let outbox = Outbox::default();
        outbox.put([state("a", 1), state("b", 2), state("c", 4)]);
        outbox.put([state("a", 3)]);
        outbox.filled().await;
        outbox.filled().await;
        let revisions: Vec<u64> = outbox.take(2).iter().map(|state| state.revision).collect();
        assert_eq!(revisions, [3, 2]);
        outbox.filled().await;
        assert_eq!(outbox.take(usize::MAX), [state("c", 4)]);
    }

    #[tokio::test]
    async fn a_waiter_is_woken() {
        let outbox = std::sync::Arc::new(Outbox::default());
        let waiter = tokio::spawn({
            let outbox = outbox.clone();
            async move {
                outbox.filled().await;
                outbox.take(usize::MAX).len()
            }
        });
        tokio::task::yield_now().await;
        outbox.put([state("a", 1)]);
        assert_eq!(waiter.await.unwrap(), 1);
    }
}
