//! Decider at JobSets that may take long, away from the thread on which all of them are looked at.
//!
//! Promises: [`AT_ONCE`] of them are taken at a time, so that they leave cores to others, and
//! [`WAITING`] wait for that, so that most places of those that are worked on are left to others;
//! a namespace has half of these, so that its JobSets keep no other's out; patterns are compiled
//! once for each spec, and those of the last [`KEPT`] specs are kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::common::patterns::Patterns;
use lockstep_core::jobset::observed::Setting;
use lockstep_core::reconcile::{may_take_long, plan};
use lockstep_core::{Observed, Plan};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::k8s::apply::NewJob;
use crate::k8s::huge_lock;
use crate::k8s::turns::Turns;
use crate::k8s::watch::Stores;
use crate::k8s::watch::light::light;

#[cfg(test)]
mod tests;

/// Decider at a time.
const AT_ONCE: u32 = 2;
/// JobSets that wait for one. What comes beyond is looked at later.
const WAITING: u32 = 8;
/// Decider of one namespace, under way and waiting.
const OF_ONE: u32 = (AT_ONCE + WAITING) / 2;
/// How much later.
const LATER: Duration = Duration::from_millis(200);
/// How much later one is looked at of which not all is seen.
pub(super) const IN_PART: Duration = Duration::from_secs(60);
/// Bytes of a JobSet and its Jobs that are read where everybody waits: some hundred Jobs, in one or
/// two milliseconds.
const LARGE: usize = 256 << 10;
/// Specs whose patterns are kept: 16 MiB where each takes all that it may.
const KEPT: usize = 32;

/// What a JobSet is looked at with.
pub(super) struct DecisionInput {
    pub(super) stores: Stores,
    pub(super) setting: Setting,
    pub(super) pod_groups: bool,
    pub(super) is_attended: bool,
}

/// How much work a JobSet is that may take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Large,
    /// One that is decided on while no other is.
    Huge,
}

/// What came of a look.
pub(super) enum Decision {
    /// A decision.
    Decided(Box<Decided>),
    /// There is no such JobSet, or the process ends.
    Gone,
    /// Nothing: too many are looked at. To be tried again after this time.
    Busy(Duration),
    /// Nothing: Jobs of it are left out of what is seen.
    InPart,
}

/// What was seen, and decided. It is kept while the API server is asked, and so has no more of a large JobSet than is needed for that.
pub(super) struct Decided {
    /// Light.
    pub(super) jobset: JobSet,
    /// Some of what was seen is not confirmed by the watch yet.
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

/// Decider at JobSets.
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
    /// Decider at a JobSet and decides.
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
        // Some of it may have been left out meanwhile.
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
        let Some(_place) = self.line.try_take(namespace, 1) else {
            return Decision::Busy(LATER);
        };
        // Before the places, which others need that are not huge.
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
    // One after the other: each may take many times its text.
    let new_jobs = std::mem::take(&mut plan.create_jobs);
    let new_jobs = new_jobs.into_iter().map(|job| NewJob::of(&job)).collect();
    Decided {
        jobset: light(Arc::unwrap_or_clone(observed.jobset)),
        unconfirmed,
        plan,
        new_jobs,
    }
}

/// What tells a spec from all others: the JobSet's UID and generation.
type Spec = (String, Option<i64>);

/// Patterns that were compiled lately, the latest last.
#[derive(Default)]
struct KeptPatterns(Mutex<VecDeque<(Spec, Arc<Patterns>)>>);

impl KeptPatterns {
    /// The patterns of a JobSet, which may have to be compiled.
    fn of(&self, jobset: &JobSet) -> Arc<Patterns> {
        let spec = (jobset.uid_str().to_owned(), jobset.metadata.generation);
        let locked = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = locked().iter().find(|(of, _)| *of == spec).cloned();
        if let Some((_, patterns)) = known {
            return patterns;
        }
        // Not while others wait for these.
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
