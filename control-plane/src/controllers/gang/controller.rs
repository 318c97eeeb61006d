//! The task that decides about all gangs.

mod view;

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use kube::Client;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;
use lockstep_core::gang::Decision;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::PodGroups;
use super::metrics::GangMetrics;
use super::task::{Outcome, Task, carry_out};
use super::watch::Watched;
use super::writer::Writer;
use crate::controllers::restart::pace;
use crate::k8s::apply::events;
use crate::k8s::watch::Stores;
use crate::k8s::watch::notify::Notified;
use crate::telemetry::metrics::Metrics;
use view::{Decided, View};

#[cfg(test)]
mod tests;

/// The shortest pause between two decisions. Changes in between are decided on together.
const PAUSE: Duration = Duration::from_millis(20);
/// JobSets that are written at the same time.
const AT_ONCE: usize = 32;

/// Starts gangs.
pub(crate) struct Controller {
    writer: Writer,
    publisher: events::Publisher,
    view: View,
}

impl Controller {
    pub(crate) fn new(client: Client, stores: Stores, pod_groups: PodGroups, metrics: Arc<Metrics>) -> Self {
        let (queue, publisher) = events::queue(client.clone());
        let gangs = GangMetrics::register(&metrics);
        Self {
            view: View::new(stores.clone()),
            writer: Writer {
                client,
                stores,
                watched: Watched::default(),
                pod_groups,
                metrics,
                gangs,
                queue,
            },
            publisher,
        }
    }

    /// Starts the gangs of the JobSets that `changes` names until `shutdown` is cancelled, then
    /// finishes work in progress.
    pub(crate) async fn run(self, changes: Notified<ObjectRef<JobSet>>, shutdown: CancellationToken) {
        let Self {
            writer,
            publisher,
            view,
        } = self;
        let decide = async move {
            let mut watches = JoinSet::new();
            let end = shutdown.child_token();
            follow(&writer, view, changes, &mut watches, &end).await;
            end.cancel();
            while watches.join_next().await.is_some() {}
        };
        tokio::join!(decide, publisher.run());
    }
}

/// Decides in a loop, until `end` or until no more changes can come.
async fn follow(
    writer: &Writer,
    mut view: View,
    mut changes: Notified<ObjectRef<JobSet>>,
    watches: &mut JoinSet<()>,
    end: &CancellationToken,
) {
    let mut wake: Option<Instant> = None;
    let mut took = Duration::ZERO;
    let mut served = writer.pod_groups.changes().fuse();
    loop {
        let mut changed = Vec::new();
        tokio::select! {
            () = end.cancelled() => return,
            key = changes.next() => match key {
                Some(key) => changed.push(key),
                None => return,
            },
            () = writer.watched.changed.notified() => {}
            Some(()) = served.next() => view.forget_pod_groups(),
            () = sleep_until(wake) => {}
        }
        while let Some(Some(key)) = changes.next().now_or_never() {
            changed.push(key);
        }
        let began = Instant::now();
        let look_again = pace::offload_if_slow(took, || {
            changed.iter().for_each(|key| view.refresh(key));
            view.look_again()
        });
        for (regarding, event) in view.events.drain(..) {
            writer.queue.add(regarding, event);
        }
        let (pause, decide_again) = if view.jobsets.is_empty() {
            took = began.elapsed();
            writer.gangs.waiting(0);
            (pace::rest(took), None)
        } else {
            if watches.is_empty() {
                writer.watched.start(&writer.client, watches, end);
            }
            let decided = pace::offload_if_slow(took, || view.decide(writer));
            took = began.elapsed();
            let again = match decided {
                Some(decided) => act(writer, &mut view, decided).await,
                None => None,
            };
            (PAUSE.max(pace::rest(took)), again)
        };
        wake = [decide_again, look_again].into_iter().flatten().min();
        if end.run_until_cancelled(sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Resolves at this time, or never without one.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Carries out decisions. Returns when to decide again if nothing changes.
async fn act(writer: &Writer, view: &mut View, decided: Decided) -> Option<Instant> {
    let done = carry_out_all(writer, view, decided.jobsets).await;
    // A write may allow the next decision before the watches show it.
    let at_once = done.then_some(Duration::ZERO);
    [
        decided.wake,
        view.next_message(),
        view.write_failures.next(),
        at_once,
    ]
    .into_iter()
    .flatten()
    .min()
    .map(|after| Instant::now() + after)
}

/// Carries out decisions. Returns true if something was done.
async fn carry_out_all(writer: &Writer, view: &mut View, decisions: Vec<Decision>) -> bool {
    let mut tasks: Vec<Task> = decisions.into_iter().filter_map(|one| view.task(one)).collect();
    // Messages must not delay a gang that can start. They follow with the next decision.
    if !tasks.iter().all(Task::only_tells) {
        tasks.retain(|task| !task.only_tells());
    }
    tasks.iter().for_each(|task| view.begins(task));
    let done: Vec<Outcome> = stream::iter(tasks)
        .map(|task| carry_out(writer, task))
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let any = !done.is_empty();
    for done in done {
        for (jobset, event) in view.done(done) {
            writer.queue.add(events::regarding(&*jobset), event);
        }
    }
    any
}
