//! One watch: what it has sent, and what it sends next.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use lockstep_proto::platform::v1 as pb;
use lockstep_proto::platform::v1::watch_groups_response::Event;
use prost::Message as _;
use tokio::sync::watch;

use super::convert::{self, Detail};
use super::large::{NamespaceLine, Size, Unread};
use crate::controllers::restart::board::{Board, Filter, Key};

/// Changes within this time are sent as one.
const MERGE: Duration = Duration::from_millis(20);

/// The state of a watch. It keeps a digest of each group that it has sent, and no message.
pub(super) struct Follower {
    board: Arc<Board>,
    filter: Filter,
    detail: Detail,
    changes: watch::Receiver<u64>,
    /// Number of the last change that was read.
    seen: u64,
    removals: u64,
    sent: BTreeMap<Key, Sent>,
    synced: bool,
    line: Arc<NamespaceLine>,
    /// Room for the last message, until the reader asks for the next one.
    unread: Option<Unread>,
}

/// A changed group.
struct GroupUpdate {
    change: u64,
    key: Key,
    group: pb::Group,
    digest: u64,
}

struct Sent {
    uid: String,
    digest: u64,
}

impl Follower {
    /// A watch in this line.
    pub(super) fn new(board: Arc<Board>, filter: Filter, detail: Detail, line: Arc<NamespaceLine>) -> Self {
        Self {
            changes: board.subscribe_changes(),
            removals: board.removal_count(),
            board,
            filter,
            detail,
            seen: 0,
            sent: BTreeMap::new(),
            synced: false,
            line,
            unread: None,
        }
    }

    /// The next message, once there is one. Cancel-safe: nothing is taken before it is returned.
    pub(super) async fn next(&mut self) -> pb::WatchGroupsResponse {
        self.unread = None;
        loop {
            // Marked before reading, so that later changes wake this task.
            self.changes.borrow_and_update();
            if let Some(event) = self.next_event().await {
                return pb::WatchGroupsResponse { event: Some(event) };
            }
            // The board lives as long as this does, so there is always another change to wait for.
            if self.changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(MERGE).await;
        }
    }

    async fn next_event(&mut self) -> Option<Event> {
        while let Some((update, unread)) = self.next_update().await {
            let GroupUpdate {
                change,
                key,
                group,
                digest,
            } = update;
            let uid = group.uid.clone();
            if self.sent.get(&key).is_some_and(|sent| sent.uid != uid) {
                // Another JobSet of the same name: report the former one as removed first.
                return self.removed(key);
            }
            self.seen = change;
            let before = self.sent.insert(key, Sent { uid, digest });
            if before.is_none_or(|before| before.digest != digest) {
                self.unread = unread;
                return Some(Event::Changed(group));
            }
        }
        if let Some(key) = self.first_removed() {
            return self.removed(key);
        }
        (!std::mem::replace(&mut self.synced, true)).then_some(Event::Synced(pb::Synced {}))
    }

    /// The next changed group. Large groups take turns, and wait for room.
    async fn next_update(&self) -> Option<(GroupUpdate, Option<Unread>)> {
        let (_, _, state) = self.board.next_change(&self.filter, self.seen)?;
        let size = Size::of(&state, self.detail);
        // A waiting watch must not keep an old state alive.
        drop(state);
        let (board, filter) = (Arc::clone(&self.board), self.filter.clone());
        let (seen, detail) = (self.seen, self.detail);
        let convert = move |size: Size| {
            // Another group may come first by now.
            let (change, key, state) = board.next_change(&filter, seen)?;
            let now = Size::of(&state, detail);
            if !size.holds(now) {
                return Some(Err(now));
            }
            let group = convert::group(&key, &state, detail);
            let digest = digest(&group);
            Some(Ok(GroupUpdate {
                change,
                key,
                group,
                digest,
            }))
        };
        self.line.convert(size, convert).await
    }

    /// The event that a group which was sent is gone.
    fn removed(&mut self, key: Key) -> Option<Event> {
        let uid = self.sent.remove(&key)?.uid;
        Some(Event::Removed(pb::GroupKey {
            namespace: key.namespace,
            name: key.name,
            uid,
        }))
    }

    /// The first group that was sent and is gone.
    fn first_removed(&mut self) -> Option<Key> {
        let removals = self.board.removal_count();
        if removals == self.removals {
            return None;
        }
        let missing = self.board.first_missing(self.sent.keys()).cloned();
        if missing.is_none() {
            self.removals = removals;
        }
        missing
    }
}

fn digest(group: &pb::Group) -> u64 {
    let mut hasher = DefaultHasher::new();
    group.encode_to_vec().hash(&mut hasher);
    hasher.finish()
}
