//! A group, driven by orders to measure pushes, and then by the control plane's own coordinator.
//!
//! The code around the coordinator does what the control plane's group task does: observe, step,
//! publish, persist. Jobs and pods are like those of the API server, and a write is durable after a
//! configured time.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{JobSet, annotations, labels};
use lockstep_control_plane::controllers::restart::{Clock, Observation, published, view_of};
use lockstep_control_plane::hub::{GroupLink, GroupPolicy, Published, Registry};
use lockstep_core::jobset::pod::PodSummary;
use lockstep_core::jobset::upstream_agent::AgentPod;
use lockstep_core::restart::{
    Announcement, Coordinator, Desired, Durable, Generation, GroupPhase, Policy, UnixNanos,
};
use serde_json::json;
use tokio::sync::mpsc;

use crate::message::{BenchEvent, Order, now, say};
use crate::names;

/// The number and the size of a group. Groups fill nodes one after another, so two of them may
/// share a node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) group: usize,
    pub(crate) workers: usize,
    /// Workers of each node, of any group.
    pub(crate) each: usize,
}

impl Shape {
    /// Its workers, numbered across all groups.
    fn members(self) -> Range<usize> {
        self.group * self.workers..(self.group + 1) * self.workers
    }

    fn node(self, worker: usize) -> String {
        names::node(worker / self.each)
    }
}

pub(crate) struct Group {
    link: GroupLink,
    shape: Shape,
    /// Duration of a write.
    write: Duration,
    published: Published,
}

impl Group {
    /// A group whose workers run this generation.
    pub(crate) fn new(
        registry: Arc<Registry>,
        shape: Shape,
        write: Duration,
        generation: Generation,
    ) -> Self {
        let published = Published {
            desired: Desired {
                generation,
                release: true,
                fresh: shape.members().map(names::incarnation).collect(),
                ..Desired::default()
            },
            policy: GroupPolicy::default(),
            nodes: Arc::new(shape.members().map(|worker| shape.node(worker)).collect()),
        };
        Self {
            link: registry.claim(&names::group(shape.group)),
            shape,
            write,
            published,
        }
    }

    /// Carries out orders until their channel closes.
    pub(crate) async fn run(mut self, mut orders: mpsc::Receiver<Order>) -> Result<()> {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Start => {
                    self.publish();
                    self.published.desired.fresh.clear();
                }
                Order::Push { value } => {
                    self.published.policy.grace_ms = value;
                    self.publish();
                }
                Order::Raise => {
                    let next = self.published.desired.generation.next();
                    self.published.desired.generation = next;
                    self.publish();
                }
                Order::Coordinate => return self.coordinate(orders).await,
                Order::Await { .. } | Order::Fail { .. } | Order::Steps | Order::Count => {}
            }
        }
        Ok(())
    }

    fn publish(&self) {
        say(BenchEvent::Pushed { at: now() });
        self.link.publish(self.published.clone());
    }

    /// Runs the coordinator as the control plane's group task does.
    async fn coordinate(self, mut orders: mpsc::Receiver<Order>) -> Result<()> {
        let jobset = jobset(self.shape)?;
        let jobs = [Arc::new(job(self.shape)?)];
        let pods: Vec<PodSummary> = self
            .shape
            .members()
            .map(|worker| pod(self.shape, worker))
            .collect();
        let pods: Vec<&PodSummary> = pods.iter().collect();
        let durable = Durable {
            epoch: self.link.epoch(),
            generation: self.published.desired.generation,
            released: self.published.desired.generation,
            started: [names::STAGE.to_owned()].into(),
            ..Durable::default()
        };
        let clock = Clock::start();
        let mut coordinator = Coordinator::recover(
            self.link.epoch(),
            &durable,
            Policy::default().recovery_ms,
            clock.now(),
        );
        let mut writing: Option<(Instant, Durable)> = None;
        let mut in_sync = false;
        let mut view = view_of(&jobset, jobs.to_vec(), &pods, &durable);
        view.gathered.policy.replaces_pods = false;
        let mut observation = Observation::new(view, &jobset, &self.link, durable.clone());
        loop {
            let began = Instant::now();
            let out = coordinator.step(observation.observed(), clock.now());
            if let Some(desired) = out.desired {
                self.link.publish(published(observation.view(), desired));
            }
            for announcement in out.announcements {
                announce(self.shape.group, &announcement);
            }
            if !in_sync && coordinator.phase() == GroupPhase::InSync {
                in_sync = true;
                say(BenchEvent::Coordinating);
            }
            if let (None, Some(wanted)) = (&writing, out.status) {
                writing = Some((Instant::now() + self.write, wanted));
            }
            observation.wait_for(out.step_delay);
            let took = began.elapsed();
            tokio::select! {
                biased;
                order = orders.recv() => if order.is_none() {
                    return Ok(());
                },
                () = until(writing.as_ref().map(|(at, _)| *at)) => if let Some((_, written)) = writing.take() {
                    observation.renew(&self.link, written);
                },
                () = until(out.wake_at.map(|at| clock.instant(at))) => {}
                _ = observation.until_step_due(&self.link, took) => {}
            }
            observation.listen(&self.link);
        }
    }
}

fn announce(group: usize, announcement: &Announcement) {
    let Announcement::Restarted { timeline, .. } = announcement else {
        return;
    };
    let since = |later: UnixNanos| later.0.saturating_sub(timeline.detected_at.0) as f64 / 1e6;
    say(BenchEvent::Synced {
        group,
        generation: timeline.generation.0,
        at: now(),
        parked_ms: since(timeline.parked_at),
    });
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

fn jobset(shape: Shape) -> Result<JobSet> {
    let template = json!({"spec": {
        "parallelism": shape.workers,
        "completions": shape.workers,
        "completionMode": "Indexed",
        "template": {"spec": {
            "restartPolicy": "OnFailure",
            "containers": [{"name": names::CONTAINER, "image": "worker"}],
        }},
    }});
    let replicated = json!({"name": names::STAGE, "replicas": 1, "template": template});
    Ok(serde_json::from_value(json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": names::jobset(shape.group),
            "namespace": names::NAMESPACE,
            "uid": names::group(shape.group),
            // The same worker may fail again soon.
            "annotations": {(annotations::MAX_BACKOFF): "0s"},
        },
        "spec": {
            "replicatedJobs": [replicated],
            "failurePolicy": {"restartStrategy": "InPlaceRestart", "maxRestarts": i32::MAX},
        },
    }))?)
}

fn job(shape: Shape) -> Result<Job> {
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": names::job(shape.group),
            "uid": names::group(shape.group),
            "labels": {(labels::JOBSET_UID): names::group(shape.group), (labels::RESTART_ATTEMPT): "0"},
        },
        "spec": {
            "parallelism": shape.workers,
            "completions": shape.workers,
            "completionMode": "Indexed",
            "template": {},
        },
    }))?)
}

fn pod(shape: Shape, worker: usize) -> PodSummary {
    let index = worker % shape.workers;
    PodSummary {
        name: names::pod(shape.group, index),
        uid: names::pod_uid(worker),
        jobset_uid: Some(names::group(shape.group)),
        restart_attempt: Some(0),
        job: Some(names::job(shape.group)),
        job_uid: Some(names::group(shape.group)),
        index: u32::try_from(index).ok(),
        node: Some(shape.node(worker)),
        running: true,
        node_lost: false,
        deleting: false,
        in_gang: false,
        agent: AgentPod::default(),
        obstacle: None,
    }
}
