//! Decides on JobSets. Decisions on large ones run on threads of their own.
//!
//! Promises: at most [`AT_ONCE`] large JobSets are decided on at a time, so that other work has
//! cores. At most [`WAITING`] more wait, so that most reconciles are free for other JobSets. A
//! namespace has at most half of these turns. Patterns are compiled once for each spec, and those
//! of the last [`KEPT`] specs are kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::common::patterns::Patterns;
use lockstep_core::jobset::observed::Setting;
use lockstep_core::reconcile::{may_take_long, plan};
use lockstep_core::{Observed, Plan};
use lockstep_process::turns::Turns;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::k8s::apply::NewJob;
use crate::k8s::huge_lock;
use crate::k8s::watch::Stores;
use crate::k8s::watch::light::light;

#[cfg(test)]
mod tests;

/// Large JobSets that are decided on at a time.
const AT_ONCE: u32 = 2;
/// Large JobSets that may wait. Any other is tried again after [`LATER`].
const WAITING: u32 = 8;
/// Large JobSets of one namespace, in progress and waiting.
const OF_ONE: u32 = (AT_ONCE + WAITING) / 2;
/// When a JobSet without a turn is tried again.
const LATER: Duration = Duration::from_millis(200);
/// When a JobSet is tried again if some of its Jobs or pods are not cached.
pub(super) const IN_PART: Duration = Duration::from_secs(60);
/// The most bytes of a JobSet and its Jobs that are read while all others wait: a few hundred Jobs,
/// in one or two milliseconds.
const LARGE: usize = 256 << 10;
/// Specs whose patterns are kept: 16 MiB if each has the maximum size.
const KEPT: usize = 32;

/// What a decision takes into account besides the JobSet's key.
pub(super) struct DecisionInput {
    pub(super) stores: Stores,
    pub(super) setting: Setting,
    pub(super) pod_groups: bool,
    pub(super) is_attended: bool,
}

/// The size of a JobSet whose decision may take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Large,
    /// No other large JobSet is decided on at the same time.
    Huge,
}

/// The result of trying to decide on a JobSet.
pub(super) enum Decision {
    /// A decision.
    Decided(Box<Decided>),
    /// There is no such JobSet, or the process is shutting down.
    Gone,
    /// No decision: too many JobSets wait. Try again after this time.
    Busy(Duration),
    /// No decision: some of its Jobs or pods are not cached.
    InPart,
}

/// What was observed and decided. It is kept during the requests that follow, so it has only the
/// parts of a large JobSet that these need.
pub(super) struct Decided {
    /// Light.
    pub(super) jobset: JobSet,
    /// Set if the watch does not yet confirm all that was observed.
    pub(super) unconfirmed: bool,
    /// Without the Jobs to create.
    pub(super) plan: Plan,
    pub(super) new_jobs: Vec<NewJob>,
}

impl DecisionInput {
    fn observe(&self, key: &ObjectRef<JobSet>) -> Option<(Observed, bool)> {
        let seen = self.stores.observe(key, &self.setting, jiff::Timestamp::now());
        let (mut observed, unconfirmed) = seen?;
        observed.pod_groups = self.pod_groups;
        observed.is_attended = self.is_attended;
        Some((observed, unconfirmed))
    }
}

/// Decides on JobSets, with limits for large ones.
pub(super) struct Decider {
    turns: Semaphore,
    line: Turns,
    patterns: Arc<KeptPatterns>,
}

impl Default for Decider {
    fn default() -> Self {
        Self {
            turns: Semaphore::new(AT_ONCE as usize),
            line: Turns::new(AT_ONCE + WAITING, OF_ONE),
            patterns: Arc::default(),
        }
    }
}

impl Decider {
    /// Observes a JobSet and decides.
    pub(super) async fn decide(&self, key: &ObjectRef<JobSet>, look: DecisionInput) -> Decision {
        if look.stores.is_seen_in_part(key) {
            return Decision::InPart;
        }
        if look.stores.weight(key) > LARGE {
            let (of, stores) = (key.clone(), look.stores.clone());
            let size = match stores.is_huge(key) {
                true => Size::Huge,
                false => Size::Large,
            };
            let looked = self
                .elsewhere(key, size, move |patterns| {
                    let (observed, unconfirmed) = look.observe(&of)?;
                    Some(decided(observed, unconfirmed, patterns))
                })
                .await;
            return if stores.is_seen_in_part(key) {
                Decision::InPart
            } else {
                looked
            };
        }
        let Some((observed, unconfirmed)) = look.observe(key) else {
            return Decision::Gone;
        };
        // Some may have been left out of the cache in between.
        if look.stores.is_seen_in_part(key) {
            return Decision::InPart;
        }
        if may_take_long(&observed) {
            return self
                .elsewhere(key, Size::Large, move |patterns| {
                    Some(decided(observed, unconfirmed, patterns))
                })
                .await;
        }
        Decision::Decided(Box::new(decided(observed, unconfirmed, &self.patterns)))
    }

    async fn elsewhere(
        &self,
        key: &ObjectRef<JobSet>,
        size: Size,
        decide: impl FnOnce(&KeptPatterns) -> Option<Decided> + Send + 'static,
    ) -> Decision {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let Some(_turn) = self.line.try_take(namespace, 1) else {
            return Decision::Busy(LATER);
        };
        // This comes first, because other JobSets need the turns.
        let _alone = huge_lock::turn_if(size == Size::Huge).await;
        let turns = match size {
            Size::Large => 1,
            Size::Huge => AT_ONCE,
        };
        let Ok(_turns) = self.turns.acquire_many(turns).await else {
            return Decision::Gone;
        };
        let patterns = Arc::clone(&self.patterns);
        match spawn_blocking(move || decide(&patterns)).await {
            Ok(Some(decided)) => Decision::Decided(Box::new(decided)),
            Ok(None) | Err(_) => Decision::Gone,
        }
    }
}

fn decided(mut observed: Observed, unconfirmed: bool, patterns: &KeptPatterns) -> Decided {
    if may_take_long(&observed) {
        observed.patterns = Some(patterns.of(&observed.jobset));
    }
    let mut plan = plan(&observed);
    // They are serialized one by one, because each may take many times the memory of its text.
    let new_jobs = std::mem::take(&mut plan.create_jobs);
    let new_jobs = new_jobs.into_iter().map(|job| NewJob::of(&job)).collect();
    Decided {
        jobset: light(Arc::unwrap_or_clone(observed.jobset)),
        unconfirmed,
        plan,
        new_jobs,
    }
}

/// Identifies a spec: the JobSet's UID and generation.
type Spec = (String, Option<i64>);

/// The patterns that were compiled last, the latest at the end.
#[derive(Default)]
struct KeptPatterns(Mutex<VecDeque<(Spec, Arc<Patterns>)>>);

impl KeptPatterns {
    /// The patterns of a JobSet. They are compiled unless they are kept.
    fn of(&self, jobset: &JobSet) -> Arc<Patterns> {
        let spec = (jobset.uid_str().to_owned(), jobset.metadata.generation);
        let locked = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = locked().iter().find(|(of, _)| *of == spec).cloned();
        if let Some((_, patterns)) = known {
            return patterns;
        }
        // They are compiled without the lock, so that others need not wait.
        let patterns = Arc::new(Patterns::of(jobset));
        let mut kept = locked();
        kept.retain(|(of, _)| of.0 != spec.0);
        kept.push_back((spec, Arc::clone(&patterns)));
        if kept.len() > KEPT {
            kept.pop_front();
        }
        patterns
    }
}
