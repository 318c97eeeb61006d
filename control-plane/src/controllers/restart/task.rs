//! The task of one group: watch, decide, act.
//!
//! ```text
//! take_over ──> observe ──> coordinator ──> publish ──> announce ──> persist ──> repair ──> expose
//!                  ^                                                                           │
//!                  └──────────────────────────────── wait <────────────────────────────────────┘
//! ```

mod act;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::jobset::in_place::Agents;
use lockstep_core::restart::{
    Coordinator, Durable, Generation, GroupPhase, LostPods, Observed, Policy, UnixNanos,
};
use lockstep_process::turns::Turns;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::board::question::Question;
use super::board::{Board, Post};
use super::clock::{Clock, sleep_until};
use super::convert;
use super::input_version::InputVersion;
use super::metrics::GroupStandbys;
use super::observation::{Due, Observation};
use super::pace::{self, LastRun};
use super::pod_deleter::PodDeleter;
use super::pod_replacer::{PodReplacer, Replaced};
use super::recorder::RestartRecorder;
use super::restart_count_annotation::RestartCountAnnotation;
use super::status_writer::{StatusWriter, WriteError};
use super::view;
use crate::hub::{GroupLink, Registry};
use crate::k8s::backwards::Backwards;
use crate::k8s::watch::cache_entry::version;
use crate::k8s::watch::light::light;
use crate::k8s::watch::{Stores, packed};

/// What all group tasks share.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) client: kube::Client,
    pub(super) stores: Stores,
    pub(super) clock: Clock,
    pub(super) recorder: RestartRecorder,
    pub(super) agents: Agents,
    /// True if execution attempts are counted (KEP-1282).
    pub(super) counts_attempts: bool,
    /// Permits to create pods in place of lost ones. `None` if the Job controller does that.
    pub(super) replacement_permits: Option<Arc<Turns>>,
    pub(super) board: Arc<Board>,
    /// Takes reports of an API server that has gone back to an older state.
    pub(super) backwards: Backwards,
    /// The node daemons and their reports.
    pub(super) registry: Arc<Registry>,
}

/// The group that a task coordinates.
pub(super) struct Assignment {
    pub(super) key: ObjectRef<JobSet>,
    pub(super) uid: String,
    pub(super) link: GroupLink,
    /// Notified when the API server shows a change of the group.
    pub(super) changed: Arc<Notify>,
    /// Cancelled when the JobSet is no longer a group. The task then withdraws it from the nodes.
    pub(super) stop: CancellationToken,
    /// Cancelled when this process ends. The task leaves the nodes as they are.
    pub(super) shutdown: CancellationToken,
}

/// Why a task has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It was stopped, or this process ends.
    Stopped,
    /// The API server does not know the JobSet, or not all of it is cached.
    Gone,
    /// The CRD lacks the group's state.
    Pruned,
}

/// What to observe before the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reobserve {
    /// Nothing: there is no next step, and what was observed is only to be shown.
    Nothing,
    /// The reports of the nodes.
    Nodes,
    /// The reports and the API server's objects.
    All,
}

/// One group's task, with its state from one step to the next.
struct Task {
    context: Context,
    group: Assignment,
    /// The newest JobSet that this task knows.
    jobset: Arc<JobSet>,
    coordinator: Coordinator,
    /// The coordinator's phase that was logged last.
    phase: Option<GroupPhase>,
    /// The inputs of the last observation of the API server.
    input_version: Option<InputVersion>,
    /// The newest generation that was published to the nodes, and the time.
    published: (Generation, UnixNanos),
    status_writer: StatusWriter,
    restart_count: RestartCountAnnotation,
    lost_pods: LostPods,
    pod_replacer: Option<PodReplacer>,
    pod_deleter: PodDeleter,
    post: Post,
    standbys: GroupStandbys,
    /// The phase and the generation that were exposed last, and the time.
    exposed: Option<(Instant, GroupPhase, Generation)>,
    /// The last step that observed the API server.
    full_step: LastRun,
    /// The duration of the last step.
    step_took: Duration,
    last_preview: LastRun,
}

/// Coordinates a group until its task is stopped, or until it has to give the group up.
pub(super) async fn run(context: Context, group: Assignment) -> End {
    let Some(task) = Task::take_over(context, group) else {
        return End::Gone;
    };
    task.run().await
}

impl Task {
    /// Recovers the coordinator from the JobSet's status. Returns `None` if there is no such
    /// JobSet.
    fn take_over(context: Context, group: Assignment) -> Option<Self> {
        let jobset = context.stores.jobset(&group.key).map(kept_of)?;
        let durable = durable_of(&jobset);
        let now = context.clock.now();
        let recovery_ms = Policy::default().recovery_ms;
        let coordinator = Coordinator::recover(group.link.epoch(), &durable, recovery_ms, now);
        let client = &context.client;
        let permits = context.replacement_permits.clone();
        let task = Self {
            coordinator,
            phase: None,
            input_version: None,
            published: (durable.generation, UnixNanos::default()),
            status_writer: StatusWriter::new(client.clone()),
            restart_count: RestartCountAnnotation::new(client.clone()),
            lost_pods: LostPods::default(),
            pod_replacer: permits.map(|permits| PodReplacer::new(client.clone(), permits)),
            pod_deleter: PodDeleter::new(client.clone()),
            post: context
                .board
                .open_post(jobset.ns(), jobset.name(), context.clock.now()),
            standbys: context.recorder.standbys(durable.generation.max(durable.latest)),
            exposed: None,
            full_step: LastRun::none(),
            step_took: Duration::ZERO,
            last_preview: LastRun::none(),
            context,
            group,
            jobset,
        };
        tracing::info!(generation = %durable.generation, restarts = durable.counted_restarts, "group taken over");
        Some(task)
    }

    async fn run(mut self) -> End {
        let mut before = None;
        loop {
            let began = Instant::now();
            let is_full = !matches!(before, Some((_, Reobserve::Nodes)));
            let Some(mut observation) = self.observe(before) else {
                self.group.link.withdraw();
                return End::Gone;
            };
            let mut timers = self.step(&mut observation);
            self.step_took = began.elapsed();
            if is_full {
                self.full_step = LastRun {
                    began,
                    took: self.step_took,
                };
            }
            let reobserve = loop {
                match self.wait(&mut observation, timers).await {
                    ControlFlow::Continue(Reobserve::Nothing) => {
                        timers.expose_at = self.expose(observation.observed());
                    }
                    ControlFlow::Continue(reobserve) => break reobserve,
                    ControlFlow::Break(end) => return end,
                }
            };
            before = Some((observation, reobserve));
        }
    }

    /// Observes what may have changed since `before`. Returns `None` if not all of the JobSet is
    /// cached.
    fn observe(&mut self, before: Option<(Observation, Reobserve)>) -> Option<Observation> {
        let before = match before {
            Some((mut observation, Reobserve::Nothing | Reobserve::Nodes)) => {
                observation.listen(&self.group.link);
                return Some(observation);
            }
            Some((observation, Reobserve::All)) => Some(observation),
            None => None,
        };
        if self.context.stores.is_seen_in_part(&self.group.key) {
            return None;
        }
        let observation = pace::offload_if_slow(self.full_step.took, || {
            self.jobset = self.freshest();
            self.observe_all(before)
        });
        // Some of it may have been left out of the cache in between.
        let is_complete = !self.context.stores.is_seen_in_part(&self.group.key);
        is_complete.then_some(observation)
    }

    /// Observes the nodes and the API server. The rest of `before` is kept if only the durable
    /// state has changed.
    fn observe_all(&mut self, before: Option<Observation>) -> Observation {
        let durable = durable_of(&self.jobset);
        let link = &self.group.link;
        link.note_epoch(durable.epoch);
        // The version is read before the Jobs and pods.
        let version = self.context.stores.version_of(&self.group.key);
        let inputs = InputVersion::new(version, &self.jobset, &durable);
        let is_same = self
            .input_version
            .as_ref()
            .is_some_and(|before| before.is_same(&inputs));
        self.input_version = Some(inputs);
        if let Some(mut observation) = before.filter(|_| is_same) {
            observation.renew(link, durable);
            return observation;
        }
        let mut view = view::view(&self.context.stores, &self.jobset, &durable);
        view.gathered.policy.replaces_pods = self.pod_replacer.is_some();
        Observation::new(view, &self.jobset, link, durable)
    }

    /// The newer of the known JobSet and the one that the watch shows.
    fn freshest(&self) -> Arc<JobSet> {
        let seen = self.context.stores.jobsets.get(&packed(&self.group.key));
        seen.filter(|seen| {
            seen.meta().uid.as_deref() == Some(&self.group.uid)
                && version(seen.meta()) > version(&self.jobset.metadata)
        })
        .and_then(|seen| seen.unpack().ok())
        .map_or_else(|| Arc::clone(&self.jobset), kept_of)
    }

    /// Waits until the next step is due. Returns what to observe for it.
    async fn wait(
        &mut self,
        observation: &mut Observation,
        timers: act::Timers,
    ) -> ControlFlow<End, Reobserve> {
        let group = &self.group;
        let reobserve = tokio::select! {
            biased;
            () = group.shutdown.cancelled() => return ControlFlow::Break(End::Stopped),
            () = group.stop.cancelled() => {
                group.link.withdraw();
                return ControlFlow::Break(End::Stopped);
            }
            written = self.status_writer.progress() => {
                if let Some(written) = written {
                    self.on_written(written)?;
                }
                Reobserve::All
            }
            jobset = self.restart_count.shown() => {
                self.jobset = kept_of(jobset);
                Reobserve::All
            }
            replaced = replaced_pods(&mut self.pod_replacer) => {
                for replaced in replaced {
                    self.context.recorder.pod(&self.jobset, &replaced);
                }
                Reobserve::All
            }
            () = self.pod_deleter.progress() => Reobserve::All,
            question = asked_after(self.last_preview.rested(), &mut self.post) => {
                self.answer(question, observation.observed());
                Reobserve::Nodes
            }
            () = changed_after(self.full_step.rested(), &group.changed) => Reobserve::All,
            () = sleep_until(timers.act_at) => Reobserve::All,
            () = sleep_until(timers.expose_at) => Reobserve::Nodes,
            due = observation.until_step_due(&group.link, self.step_took) => match due {
                Due::Step => Reobserve::Nodes,
                Due::Show => Reobserve::Nothing,
            },
        };
        ControlFlow::Continue(reobserve)
    }

    /// Handles the result of a write of the status.
    fn on_written(&mut self, written: Result<JobSet, WriteError>) -> ControlFlow<End> {
        match written {
            Ok(jobset) => {
                self.context.stores.wrote_jobset(&jobset);
                self.jobset = kept_of(jobset);
            }
            Err(WriteError::Conflict(jobset)) => self.jobset = kept_of(*jobset),
            // All that is cached, for all JobSets, may belong to a state that no longer exists.
            Err(error @ WriteError::WentBack { .. }) => {
                let (namespace, name) = (self.jobset.ns(), self.jobset.name());
                self.context
                    .backwards
                    .tell(format!("JobSet {namespace}/{name}: {error}"));
            }
            Err(WriteError::Gone) => {
                self.group.link.withdraw();
                return ControlFlow::Break(End::Gone);
            }
            Err(WriteError::Api(_) | WriteError::Outdated | WriteError::Unchanged) => {}
            // No decision can be made durable, so none may be made. The Job controller takes over.
            Err(error @ WriteError::Pruned) => {
                tracing::error!(%error, "stopped coordinating the group");
                self.group.link.withdraw();
                return ControlFlow::Break(End::Pruned);
            }
        }
        ControlFlow::Continue(())
    }

    /// Answers a question with what a restart would do now.
    fn answer(&mut self, question: Question, observed: &Arc<Observed>) {
        let began = Instant::now();
        let preview = pace::offload_if_slow(self.step_took.max(self.last_preview.took), || {
            question.preview(&self.coordinator, observed, self.context.clock.now())
        });
        self.last_preview = LastRun {
            began,
            took: began.elapsed(),
        };
        question.answer(preview, Arc::clone(observed));
    }
}

/// The next question about the group, not before this time. Cancel-safe.
async fn asked_after(at: Instant, post: &mut Post) -> Question {
    tokio::time::sleep_until(at.into()).await;
    post.next_question().await
}

/// Resolves after this time once the API server shows a change. Cancel-safe.
async fn changed_after(at: Instant, changed: &Notify) {
    tokio::time::sleep_until(at.into()).await;
    changed.notified().await;
}

/// The part of a JobSet that the task keeps.
fn kept_of(jobset: JobSet) -> Arc<JobSet> {
    Arc::new(light(jobset))
}

fn durable_of(jobset: &JobSet) -> Durable {
    convert::durable_of(jobset.status.as_ref())
}

async fn replaced_pods(replacer: &mut Option<PodReplacer>) -> Vec<Replaced> {
    match replacer {
        Some(replacer) => replacer.progress().await,
        None => std::future::pending().await,
    }
}
