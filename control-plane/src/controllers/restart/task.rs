//! The task of one group: watch, decide, act.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::common::retry::StatusWrites;
use lockstep_core::jobset::in_place::Agents;
use lockstep_core::restart::{Announcement, Coordinator, Durable, Generation, LostPods, UnixNanos};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::blocked_condition;
use super::board::question::Question;
use super::board::{Board, Post, Snapshot};
use super::clock::{Clock, sleep_until};
use super::convert;
use super::input_version::InputVersion;
use super::observation::Observation;
use super::pace;
use super::pod_deleter::PodDeleter;
use super::pod_replacer::{News, Replacer};
use super::recorder::RestartRecorder;
use super::restart_count_annotation::RestartCountAnnotation;
use super::status_writer::{self, Change, WriteError};
use super::view;
use crate::hub::{GroupLink, Registry};
use crate::k8s::backwards::Backwards;
use crate::k8s::watch::light::light;
use crate::k8s::watch::own_writes::version;
use crate::k8s::watch::{Stores, packed};

/// Showing a group of more workers than this takes time.
const LARGE: usize = 256;
/// How often a large group is shown while nothing but its workers changes.
const SHOWN_EVERY: Duration = Duration::from_millis(100);

type Write = Pin<Box<dyn Future<Output = Result<JobSet, WriteError>> + Send>>;

/// What all group tasks share.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) client: kube::Client,
    pub(super) stores: Stores,
    pub(super) clock: Clock,
    pub(super) announcer: RestartRecorder,
    pub(super) agents: Agents,
    /// To create pods in the place of lost ones; `None`: that is left to the Job controller.
    pub(super) replacements: Option<Arc<Semaphore>>,
    pub(super) board: Arc<Board>,
    /// Told where the API server has gone back.
    pub(super) backwards: Backwards,
    /// What daemons say of their nodes.
    pub(super) registry: Arc<Registry>,
}

/// One group.
pub(super) struct Task {
    pub(super) context: Context,
    pub(super) key: ObjectRef<JobSet>,
    pub(super) uid: String,
    pub(super) link: GroupLink,
    pub(super) changed: Arc<Notify>,
}

/// Why a task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It was told to.
    Told,
    /// The API server does not know the JobSet, or not all of it is seen here.
    Gone,
    /// The CRD has no room for the group's state.
    Pruned,
}

/// How far a write has come.
enum Writing {
    Idle,
    Under(Write),
    Retry { at: Instant },
}

impl Writing {
    fn after(pause: Duration) -> Self {
        if pause.is_zero() {
            return Self::Idle;
        }
        Self::Retry {
            at: Instant::now() + pause,
        }
    }
}

/// What is to be looked at before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    /// What the nodes say.
    Nodes,
    /// That, and what the API server shows.
    All,
}

impl Task {
    /// Runs until the group is given up (`stop`), which the nodes are told, or this process ends (`shutdown`), which they are not.
    pub(super) async fn run(self, stop: CancellationToken, shutdown: CancellationToken) -> End {
        let Some(mut known) = self.context.stores.jobset(&self.key).map(kept_of) else {
            return End::Gone;
        };
        let durable = durable_of(&known);
        let recovery_ms = lockstep_core::restart::Policy::default().recovery_ms;
        let mut coordinator =
            Coordinator::recover(self.link.epoch(), &durable, recovery_ms, self.context.clock.now());
        let mut writing = Writing::Idle;
        let mut mirror = RestartCountAnnotation::new(self.context.client.clone());
        let mut lost = LostPods::default();
        let replacements = self.context.replacements.clone();
        let mut replacer = replacements.map(|permits| Replacer::new(self.context.client.clone(), permits));
        let mut executor = PodDeleter::new(self.context.client.clone());
        let mut writes = StatusWrites::default();
        let mut state = "";
        let mut pushed = (durable.generation, UnixNanos::default());
        let mut post = self
            .context
            .board
            .post(known.ns(), known.name(), self.context.clock.now());
        let mut shown: Option<(Instant, &str, Generation)> = None;
        // The last look, and what has to be looked at again.
        let mut kept: Option<(Observation, Again)> = None;
        let mut basis: Option<InputVersion> = None;
        // The last look at the API server: when it began, and how long it and the step after it took.
        let mut whole = (Instant::now(), Duration::ZERO);
        // When the last question was answered, and how long that took.
        let mut asked = (Instant::now(), Duration::ZERO);
        tracing::info!(generation = %durable.generation, restarts = durable.counter, "group taken over");
        let why_without_agents = |node: &str| self.context.registry.why_without_agents(node);
        loop {
            let began = Instant::now();
            let is_whole = !matches!(kept, Some((_, Again::Nodes)));
            let mut observation = match kept.take() {
                Some((mut observation, Again::Nodes)) => {
                    observation.listen(&self.link);
                    observation
                }
                before => {
                    let before = before.map(|(observation, _)| observation);
                    pace::apart(whole.1, || {
                        known = self.freshest(Arc::clone(&known));
                        self.look(&known, before, &mut basis, replacer.is_some())
                    })
                }
            };
            // Some of it may have been left out meanwhile.
            if is_whole && self.context.stores.is_seen_in_part(&self.key) {
                self.link.forget();
                return End::Gone;
            }
            let (view, observed) = (observation.view(), observation.observed());
            let now = self.context.clock.now();
            let out = pace::apart(whole.1, || coordinator.step(observed, now));
            if state != coordinator.state_name() {
                state = coordinator.state_name();
                tracing::info!(state, generation = %coordinator.generation(), "group state");
            }
            if let Some(desired) = out.desired {
                let generation = desired.generation;
                self.link.publish(view::published(view, desired));
                if generation > pushed.0 {
                    pushed = (generation, self.context.clock.now());
                }
            }
            for mut announcement in out.announcements {
                if let Announcement::Restarted { timeline, .. } = &mut announcement
                    && timeline.generation == pushed.0
                {
                    timeline.pushed_at = pushed.1;
                }
                post.note(&announcement, now);
                self.context
                    .announcer
                    .announce(&known, announcement, why_without_agents);
            }
            let change = Change {
                kind: status_writer::kind(&known, out.status.as_ref(), &self.context.agents),
                durable: out.status,
                conditions: blocked_condition::conditions(
                    &known,
                    &out.blocked,
                    why_without_agents,
                    jiff::Timestamp::now(),
                ),
            };
            match (&writing, change.is_empty()) {
                (Writing::Idle, false) => writing = self.begin(&known, change),
                (Writing::Retry { at }, true) if *at <= Instant::now() => writing = Writing::Idle,
                // Never in the way of a restart.
                (Writing::Idle, true) if coordinator.state_name() == "InSync" => {
                    mirror.show(&known, observed.durable.counter);
                }
                _ => {}
            }

            let mut vacant = lost.look(&view.places, coordinator.generation(), now);
            if !out.replace {
                vacant.replacements.clear();
            }
            let retry_at = replacer
                .as_mut()
                .and_then(|replacer| replacer.want(known.ns(), vacant.replacements));
            let wake_at = [out.wake_at, vacant.wake_at].into_iter().flatten().min();
            let wake_at = wake_at.map(|at| self.context.clock.instant(at));
            let delete_at = executor.want(known.ns(), &out.condemned);
            let wake_at = [wake_at, retry_at, delete_at].into_iter().flatten().min();
            // After everything that a restart waits for.
            let generation = coordinator.generation();
            let same = shown.filter(|(_, before, at)| (*before, *at) == (state, generation));
            let show_at = same.map(|(at, ..)| at + SHOWN_EVERY);
            let show_at = show_at.filter(|at| observed.workers.len() > LARGE && Instant::now() < *at);
            if show_at.is_none() {
                post.show(Snapshot {
                    jobset: Arc::clone(&known),
                    observed: Arc::clone(observed),
                    state,
                    generation,
                    released: coordinator.released(),
                    restarts: coordinator.restarts(),
                    cause: coordinator.cause().cloned(),
                    level: coordinator.level(),
                });
                shown = Some((Instant::now(), state, generation));
            }
            observation.wait_for(out.awaited);
            let took = began.elapsed();
            if is_whole {
                whole = (began, took);
            }
            let rested = whole.0 + pace::rest(whole.1);
            let again = tokio::select! {
                biased;
                () = shutdown.cancelled() => return End::Told,
                () = stop.cancelled() => {
                    self.link.forget();
                    return End::Told;
                }
                written = finished(&mut writing) => {
                    match written {
                        Some(Ok(jobset)) => {
                            self.context.stores.wrote_jobset(&jobset);
                            writes.done();
                            writing = Writing::Idle;
                            known = kept_of(jobset);
                        }
                        Some(Err(WriteError::Conflict(jobset))) => {
                            known = kept_of(*jobset);
                            writing = Writing::after(writes.conflicted());
                        }
                        // What is known of this one and of all others may be of what is no more.
                        Some(Err(error @ WriteError::WentBack { .. })) => {
                            self.context.backwards.tell(format!("JobSet {}/{}: {error}", known.ns(), known.name()));
                            writing = retry(&error, writes.failed());
                        }
                        Some(Err(WriteError::Gone)) => {
                            self.link.forget();
                            return End::Gone;
                        }
                        Some(Err(error @ (WriteError::Api(_) | WriteError::Outdated | WriteError::Unchanged))) => {
                            writing = retry(&error, writes.failed());
                        }
                        // Nothing can be made durable, so nothing may be decided: the group is left to the Job controller.
                        Some(Err(error @ WriteError::Pruned)) => {
                            tracing::error!(%error, "group given up");
                            self.link.forget();
                            return End::Pruned;
                        }
                        None => writing = Writing::Idle,
                    }
                    Again::All
                }
                shown = mirror.shown() => {
                    known = kept_of(shown);
                    Again::All
                }
                news = progress(&mut replacer) => {
                    for news in news {
                        self.context.announcer.pod(&known, &news);
                    }
                    Again::All
                }
                () = executor.progress() => Again::All,
                question = asked_after(asked.0 + pace::rest(asked.1), &mut post) => {
                    let observed = observation.observed();
                    let began = Instant::now();
                    let preview = pace::apart(took.max(asked.1), || {
                        question.preview(&coordinator, observed, self.context.clock.now())
                    });
                    asked = (began, began.elapsed());
                    question.answer(preview, Arc::clone(observed));
                    Again::Nodes
                }
                () = changed_after(rested, &self.changed) => Again::All,
                () = sleep_until(wake_at) => Again::All,
                () = sleep_until(show_at) => Again::Nodes,
                () = observation.news(&self.link, took) => Again::Nodes,
            };
            kept = Some((observation, again));
        }
    }

    /// What there is now. Of what the API server shows only the status is looked at anew where the rest is as it was `before`.
    fn look(
        &self,
        known: &Arc<JobSet>,
        before: Option<Observation>,
        basis: &mut Option<InputVersion>,
        replaces_pods: bool,
    ) -> Observation {
        let durable = durable_of(known);
        self.link.heard_of(durable.epoch);
        // Before they are read.
        let version = self.context.stores.version_of(&self.key);
        let now = InputVersion::new(version, known, &durable);
        let is_same = basis.as_ref().is_some_and(|before| before.is_same(&now));
        *basis = Some(now);
        if let Some(mut observation) = before.filter(|_| is_same) {
            observation.renew(&self.link, durable);
            return observation;
        }
        let view = view::view(&self.context.stores, known, &durable);
        Observation::new(view, known, &self.link, durable, replaces_pods)
    }

    fn begin(&self, known: &Arc<JobSet>, change: Change) -> Writing {
        if let Some(wanted) = &change.durable {
            tracing::info!(generation = %wanted.generation, phase = ?wanted.phase, "writing status");
        }
        Writing::Under(Box::pin(status_writer::write(
            self.context.client.clone(),
            Arc::clone(known),
            change,
        )))
    }

    /// The newer of what this task has written or read and what the watch has brought.
    fn freshest(&self, known: Arc<JobSet>) -> Arc<JobSet> {
        let seen = self.context.stores.jobsets.get(&packed(&self.key));
        seen.filter(|seen| {
            seen.meta().uid.as_deref() == Some(&self.uid) && version(seen.meta()) > version(&known.metadata)
        })
        .and_then(|seen| seen.unpack().ok())
        .map_or(known, kept_of)
    }
}

/// The next question about the group, once this time has come. Cancel-safe.
async fn asked_after(at: Instant, post: &mut Post) -> Question {
    tokio::time::sleep_until(at.into()).await;
    post.asked().await
}

/// Something is different that the API server shows, and this time has come. Cancel-safe.
async fn changed_after(at: Instant, changed: &Notify) {
    tokio::time::sleep_until(at.into()).await;
    changed.notified().await;
}

/// What the task keeps of a JobSet.
fn kept_of(jobset: JobSet) -> Arc<JobSet> {
    Arc::new(light(jobset))
}

fn durable_of(jobset: &JobSet) -> Durable {
    convert::durable_of(jobset.status.as_ref())
}

/// After a pause, the next attempt.
fn retry(error: &WriteError, pause: Duration) -> Writing {
    tracing::warn!(%error, ?pause, "status not written, will retry");
    Writing::after(pause)
}

/// Resolves when the write is done, with its result, or when it is time to try again, with nothing. Cancel-safe: the write stays where it is.
async fn finished(writing: &mut Writing) -> Option<Result<JobSet, WriteError>> {
    match writing {
        Writing::Idle => std::future::pending().await,
        Writing::Under(write) => Some(write.as_mut().await),
        Writing::Retry { at } => {
            tokio::time::sleep_until((*at).into()).await;
            None
        }
    }
}

async fn progress(replacer: &mut Option<Replacer>) -> Vec<News> {
    match replacer {
        Some(replacer) => replacer.progress().await,
        None => std::future::pending().await,
    }
}
