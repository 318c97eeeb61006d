//! One step of a group's task: decide, and begin to act.
//!
//! Promises: a step never waits. Writes, creations and deletions begin here and end in the task's
//! loop. What a restart waits for comes first: the decision goes to the nodes before the status is
//! written, and to the platform API last.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockstep_core::restart::{Announcement, Desired, GroupPhase, Observed, Output, UnixNanos};

use super::Task;
use crate::controllers::restart::blocked_condition;
use crate::controllers::restart::board::Snapshot;
use crate::controllers::restart::observation::Observation;
use crate::controllers::restart::pace;
use crate::controllers::restart::status_writer::{self, Change};
use crate::controllers::restart::view::{self, View};

/// A group of more workers than this is exposed less often, because that takes time.
const LARGE: usize = 256;
/// How often a large group is exposed while only its workers change.
const EXPOSE_EVERY: Duration = Duration::from_millis(100);

/// When the next step is due if nothing changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timers {
    /// When the coordinator, the pod replacer or the pod deleter has something to do.
    pub(super) act_at: Option<Instant>,
    /// When a large group is to be exposed again.
    pub(super) expose_at: Option<Instant>,
}

impl Task {
    /// Decides on the observation, and begins to act.
    pub(super) fn step(&mut self, observation: &mut Observation) -> Timers {
        let (view, observed) = (observation.view(), observation.observed());
        let now = self.context.clock.now();
        let mut out = pace::offload_if_slow(self.full_step.took, || self.coordinator.step(observed, now));
        let phase = self.coordinator.phase();
        if self.phase.replace(phase) != Some(phase) {
            tracing::info!(%phase, generation = %self.coordinator.generation(), "group phase");
        }
        if let Some(desired) = out.desired.take() {
            self.publish(view, desired);
        }
        self.announce(std::mem::take(&mut out.announcements), now);
        self.persist(observed, &mut out);
        let act_at = self.repair(view, &out, now);
        // This comes after all that a restart waits for.
        let expose_at = self.expose(observed);
        observation.wait_for(out.step_delay);
        Timers { act_at, expose_at }
    }

    /// Hands the desired state to the streams of the nodes.
    fn publish(&mut self, view: &View, desired: Desired) {
        let generation = desired.generation;
        self.group.link.publish(view::published(view, desired));
        if generation > self.published.0 {
            self.published = (generation, self.context.clock.now());
        }
    }

    /// Records announcements in the history, the log, events, metrics and traces.
    fn announce(&self, announcements: Vec<Announcement>, now: UnixNanos) {
        let registry = &self.context.registry;
        for mut announcement in announcements {
            if let Announcement::Restarted { timeline, .. } = &mut announcement
                && timeline.generation == self.published.0
            {
                timeline.pushed_at = self.published.1;
            }
            self.post.record(&announcement, now);
            self.context
                .recorder
                .announce(&self.jobset, announcement, |node| {
                    registry.why_without_agents(node)
                });
        }
    }

    /// Begins to write the status or, if that is up to date, the annotation.
    fn persist(&mut self, observed: &Observed, out: &mut Output) {
        let registry = &self.context.registry;
        let durable = out.status.take();
        let change = Change {
            kind: status_writer::kind(&self.jobset, durable.as_ref(), &self.context.agents),
            durable,
            conditions: blocked_condition::conditions(
                &self.jobset,
                &out.blocked,
                |node| registry.why_without_agents(node),
                jiff::Timestamp::now(),
            ),
            counts_attempts: self.context.counts_attempts,
        };
        let is_up_to_date = self.status_writer.want(&self.jobset, change);
        // The annotation must not delay a restart.
        if is_up_to_date && self.phase == Some(GroupPhase::InSync) {
            self.restart_count
                .show(&self.jobset, observed.durable.counted_restarts);
        }
    }

    /// Begins to replace lost pods and to delete condemned ones. Returns when to step again.
    fn repair(&mut self, view: &View, out: &Output, now: UnixNanos) -> Option<Instant> {
        let generation = self.coordinator.generation();
        let mut vacant = self.lost_pods.find_vacant(&view.places, generation, now);
        if !out.replace {
            vacant.replacements.clear();
        }
        let namespace = self.jobset.ns();
        let replace_at = self
            .pod_replacer
            .as_mut()
            .and_then(|replacer| replacer.want(namespace, vacant.replacements));
        let delete_at = self.pod_deleter.want(namespace, &out.condemned);
        let wake_at = [out.wake_at, vacant.wake_at].into_iter().flatten().min();
        let wake_at = wake_at.map(|at| self.context.clock.instant(at));
        [wake_at, replace_at, delete_at].into_iter().flatten().min()
    }

    /// Shows the group on the board. If only workers of a large group have changed, this is done
    /// less often: then it returns when to show the group.
    pub(super) fn expose(&mut self, observed: &Arc<Observed>) -> Option<Instant> {
        let (phase, generation) = (self.coordinator.phase(), self.coordinator.generation());
        let same = self
            .exposed
            .filter(|(_, shown, at)| (*shown, *at) == (phase, generation));
        let expose_at = same
            .map(|(at, ..)| at + EXPOSE_EVERY)
            .filter(|at| observed.workers.len() > LARGE && Instant::now() < *at);
        if expose_at.is_none() {
            self.standbys.count_starts(observed);
            self.post.replace_state(Snapshot {
                jobset: Arc::clone(&self.jobset),
                observed: Arc::clone(observed),
                phase,
                generation,
                released: self.coordinator.released(),
                restarts: self.coordinator.counted_restarts(),
                cause: self.coordinator.cause().cloned(),
                level: self.coordinator.level(),
            });
            self.exposed = Some((Instant::now(), phase, generation));
        }
        expose_at
    }
}
