//! This process's own writes, until the watch shows them.
//!
//! Promises: a reader sees its own writes at once, so a lagging watch does not cause a write to be
//! repeated. Newer state from the watch (a newer version, a deletion) wins. A write that the watch
//! does not confirm is believed for at most [`BELIEVED`].

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use tokio::time::Instant;

use super::cache_entry::CacheEntry;

/// How long a write is believed without confirmation by the watch.
pub const BELIEVED: Duration = Duration::from_secs(10);

type ByJobSet<K> = HashMap<ObjectRef<JobSet>, HashMap<String, Written<K>>>;

/// Objects of one kind, by JobSet and name.
pub(super) struct OwnWrites<K> {
    written: Mutex<ByJobSet<K>>,
}

struct Written<K> {
    object: Arc<K>,
    until: Instant,
}

impl<K> Default for OwnWrites<K> {
    fn default() -> Self {
        Self {
            written: Mutex::default(),
        }
    }
}

impl<K: CacheEntry> OwnWrites<K> {
    fn locked(&self) -> MutexGuard<'_, ByJobSet<K>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the API server's answer to a write.
    pub(super) fn put(&self, jobset: ObjectRef<JobSet>, object: Arc<K>) {
        let name = object.named();
        let mut written = self.locked();
        let of_jobset = written.entry(jobset).or_default();
        if of_jobset
            .get(&name)
            .is_none_or(|known| known.object.revision() < object.revision())
        {
            of_jobset.insert(
                name,
                Written {
                    object,
                    until: Instant::now() + BELIEVED,
                },
            );
        }
    }

    /// Drops writes that the watch confirmed by showing the object or its deletion.
    pub(super) fn confirm(&self, jobset: &ObjectRef<JobSet>, seen: &K) {
        self.retain(jobset, |name, written| {
            seen.name().as_deref() != Some(name) || written.object.revision() > seen.revision()
        });
    }

    fn retain(&self, jobset: &ObjectRef<JobSet>, keep: impl Fn(&str, &Written<K>) -> bool) {
        let mut written = self.locked();
        if let Some(of_jobset) = written.get_mut(jobset) {
            of_jobset.retain(|name, written| keep(name, written));
            if of_jobset.is_empty() {
                written.remove(jobset);
            }
        }
    }

    /// Completes the watch's view of a JobSet with newer own writes. True if any of them awaits
    /// confirmation.
    pub(super) fn complete(&self, jobset: &ObjectRef<JobSet>, mut seen: Vec<Arc<K>>) -> (Vec<Arc<K>>, bool) {
        let now = Instant::now();
        let versions: HashMap<String, u64> = seen
            .iter()
            .map(|object| (object.named(), object.revision()))
            .collect();
        self.retain(jobset, |name, written| {
            written.until > now
                && versions
                    .get(name)
                    .is_none_or(|seen| written.object.revision() > *seen)
        });
        let written = self.locked();
        let Some(of_jobset) = written.get(jobset) else {
            return (seen, false);
        };
        seen.retain(|object| !of_jobset.contains_key(&object.named()));
        seen.extend(of_jobset.values().map(|written| Arc::clone(&written.object)));
        (seen, true)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::Job;

    use super::*;
    use crate::k8s::watch::cache_entry::version;

    fn key() -> ObjectRef<JobSet> {
        ObjectRef::new("js").within("ns")
    }

    fn job(name: &str, version: &str) -> Arc<Job> {
        let mut job = Job::default();
        job.metadata.name = Some(name.to_owned());
        job.metadata.resource_version = Some(version.to_owned());
        Arc::new(job)
    }

    fn complete(recent: &OwnWrites<Job>, seen: &[(&str, &str)]) -> (Vec<(String, u64)>, bool) {
        let seen = seen.iter().map(|(name, version)| job(name, version)).collect();
        let (jobs, unconfirmed) = recent.complete(&key(), seen);
        let mut jobs: Vec<_> = jobs
            .iter()
            .map(|job| (job.metadata.name.clone().unwrap(), version(&job.metadata)))
            .collect();
        jobs.sort();
        (jobs, unconfirmed)
    }

    fn of(jobs: &[(&str, u64)]) -> Vec<(String, u64)> {
        jobs.iter()
            .map(|(name, version)| ((*name).to_owned(), *version))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn own_writes_are_seen_until_the_watch_knows_better() {
        let recent = OwnWrites::default();
        recent.put(key(), job("a", "10"));
        recent.put(key(), job("a", "9"));
        assert_eq!(complete(&recent, &[]), (of(&[("a", 10)]), true));
        assert_eq!(
            complete(&recent, &[("a", "9"), ("b", "1")]),
            (of(&[("a", 10), ("b", 1)]), true)
        );
        assert_eq!(complete(&recent, &[("a", "10")]), (of(&[("a", 10)]), false));
        assert_eq!(complete(&recent, &[]), (of(&[]), false));
    }

    #[tokio::test(start_paused = true)]
    async fn the_watch_confirms_or_refutes_a_write() {
        let recent = OwnWrites::default();
        recent.put(key(), job("a", "10"));
        recent.confirm(&key(), &job("b", "20"));
        recent.confirm(&key(), &job("a", "9"));
        assert_eq!(complete(&recent, &[]), (of(&[("a", 10)]), true));
        // The watch has shown the Job, or its deletion, at a later version.
        recent.confirm(&key(), &job("a", "11"));
        assert_eq!(complete(&recent, &[]), (of(&[]), false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_the_watch_never_shows_is_not_believed_for_ever() {
        let recent = OwnWrites::default();
        recent.put(key(), job("a", "10"));
        tokio::time::advance(BELIEVED).await;
        assert_eq!(complete(&recent, &[]), (of(&[]), false));
    }
}
