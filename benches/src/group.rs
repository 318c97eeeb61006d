//! The only group: driven by hand to measure pushes, then by the control plane's own coordinator.
//!
//! What is around the coordinator is what the control plane's task of a group does: gather, step, publish, make durable. Jobs and pods are as the
//! API server would show them, and a write is durable after a time that is given.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{JobSet, annotations, labels};
use lockstep_control_plane::group::{Clock, Sight, published, rest, view_of};
use lockstep_control_plane::hub::{GroupLink, GroupPolicy, Published, Registry};
use lockstep_core::observed::AgentPod;
use lockstep_core::pod::PodSummary;
use lockstep_core::restart::{Announcement, Coordinator, Desired, Durable, Policy, UnixNanos};
use serde_json::json;
use tokio::sync::mpsc;

use crate::message::{News, Order, now, say};
use crate::names;

/// How large the group is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) nodes: usize,
    /// Workers of each node.
    pub(crate) each: usize,
}

impl Shape {
    fn workers(self) -> usize {
        self.nodes * self.each
    }
}

pub(crate) struct Group {
    link: GroupLink,
    shape: Shape,
    /// How long a write takes.
    write: Duration,
    published: Published,
}

impl Group {
    pub(crate) fn new(registry: Arc<Registry>, shape: Shape, write: Duration) -> Self {
        let published = Published {
            desired: Desired {
                release: true,
                fresh: (0..shape.workers()).map(names::incarnation).collect(),
                ..Desired::default()
            },
            policy: GroupPolicy::default(),
            nodes: Arc::new((0..shape.nodes).map(names::node).collect()),
        };
        Self {
            link: registry.claim(names::GROUP),
            shape,
            write,
            published,
        }
    }

    /// Does as it is told, until nobody tells any more.
    pub(crate) async fn run(
        mut self,
        mut orders: mpsc::Receiver<Order>,
        connected: impl AsyncFn(usize),
    ) -> Result<()> {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Await { connected: count } => connected(count).await,
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
                Order::Fail { .. } => {}
            }
        }
        Ok(())
    }

    fn publish(&self) {
        say(News::Pushed { at: now() });
        self.link.publish(self.published.clone());
    }

    /// As the control plane's task of a group.
    async fn coordinate(self, mut orders: mpsc::Receiver<Order>) -> Result<()> {
        let jobset = jobset(self.shape)?;
        let jobs = [Arc::new(job(self.shape)?)];
        let pods: Vec<PodSummary> = (0..self.shape.workers())
            .map(|worker| pod(self.shape, worker))
            .collect();
        let pods: Vec<&PodSummary> = pods.iter().collect();
        let mut durable = Durable {
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
        let mut kept: Option<Sight> = None;
        loop {
            let began = Instant::now();
            let sight = if let Some(mut sight) = kept.take() {
                sight.listen(&self.link);
                sight
            } else {
                let view = view_of(&jobset, &jobs, &pods, &durable);
                Sight::new(view, &jobset, &self.link, durable.clone(), false)
            };
            let out = coordinator.step(sight.observed(), clock.now());
            if let Some(desired) = out.desired {
                self.link.publish(published(sight.view(), desired));
            }
            for announcement in out.announcements {
                announce(&announcement);
            }
            if !in_sync && coordinator.state_name() == "InSync" {
                in_sync = true;
                say(News::Coordinating);
            }
            if let (None, Some(wanted)) = (&writing, out.status) {
                writing = Some((Instant::now() + self.write, wanted));
            }
            let rested = Instant::now() + rest(began.elapsed());
            tokio::select! {
                biased;
                order = orders.recv() => if order.is_none() {
                    return Ok(());
                },
                () = until(writing.as_ref().map(|(at, _)| *at)) => if let Some((_, written)) = writing.take() {
                    durable = written;
                },
                () = until(out.wake_at.map(|at| clock.instant(at))) => {}
                () = self.link.changed_after(rested) => kept = Some(sight),
            }
        }
    }
}

fn announce(announcement: &Announcement) {
    let Announcement::Restarted { timeline, .. } = announcement else {
        return;
    };
    let since = |later: UnixNanos| later.0.saturating_sub(timeline.detected_at.0) as f64 / 1e6;
    say(News::Synced {
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
        "parallelism": shape.workers(),
        "completions": shape.workers(),
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
            "name": names::JOBSET,
            "namespace": names::NAMESPACE,
            "uid": names::GROUP,
            // The same worker may fail soon again.
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
            "name": names::JOB,
            "uid": names::GROUP,
            "labels": {(labels::JOBSET_UID): names::GROUP, (labels::RESTART_ATTEMPT): "0"},
        },
        "spec": {
            "parallelism": shape.workers(),
            "completions": shape.workers(),
            "completionMode": "Indexed",
            "template": {},
        },
    }))?)
}

fn pod(shape: Shape, worker: usize) -> PodSummary {
    PodSummary {
        name: names::pod(worker),
        uid: names::pod_uid(worker),
        jobset_uid: Some(names::GROUP.to_owned()),
        recreation: Some(0),
        job: Some(names::JOB.to_owned()),
        job_uid: Some(names::GROUP.to_owned()),
        index: u32::try_from(worker).ok(),
        node: Some(names::node(worker / shape.each)),
        running: true,
        node_lost: false,
        in_gang: false,
        agent: AgentPod::default(),
    }
}
