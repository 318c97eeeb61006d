//! The status page without a cluster: it shows the groups that standard input tells of, for its
//! tests and for those who work on it.
//!
//! `cargo run -p lockstep-control-plane --example status_page [ADDRESS]` prints where it listens,
//! then takes one command per line, each a JSON object ([`Command`]), and answers each with `ok`.
//! It ends with its input.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use lockstep_control_plane::controllers::restart::{Board, Post, Snapshot};
use lockstep_control_plane::endpoints::platform::{Replica, StatusPage};
use lockstep_core::restart::{
    Announcement, Cause, Exit, Generation, GroupPhase, Heartbeat, Identity, Incarnation, Observed, Phase,
    PodFact, Reason, Report, RestartLevel, Scope, StandbyReport, Standbys, Starts, Timeline, UnixNanos,
    Worker,
};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What may be told.
#[derive(Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
enum Command {
    /// This replica leads from now on.
    Lead,
    /// Another one does.
    Leader { name: String },
    /// This is how a group is now.
    Show(Box<Group>),
    /// It is gone.
    Gone { namespace: String, name: String },
    /// It has restarted.
    Restarted {
        namespace: String,
        name: String,
        generation: u64,
        cause: Why,
        workers: usize,
        /// Milliseconds after the failure at which it was detected, pushed, written, stopped,
        /// parked, released, running.
        at: [i64; 7],
    },
}

/// A group.
#[derive(Deserialize)]
struct Group {
    namespace: String,
    name: String,
    /// State of the coordinator.
    phase: String,
    generation: u64,
    #[serde(default)]
    restarts: u32,
    /// In their order, each waits for the one before.
    stages: Vec<Stage>,
    /// Phases of workers that do not run, by `JOB/INDEX`.
    #[serde(default)]
    but: BTreeMap<String, String>,
    /// How many standbys are ready and wanted, by `JOB/INDEX`, of workers that were started from
    /// one.
    #[serde(default)]
    standbys: BTreeMap<String, (u32, u32)>,
    cause: Option<Why>,
}

#[derive(Deserialize)]
struct Stage {
    name: String,
    jobs: u32,
    /// Of each Job.
    workers: u32,
}

/// Why a worker failed.
#[derive(Clone, Deserialize)]
struct Why {
    job: String,
    index: u32,
    pod: String,
    node: String,
    /// How long ago.
    seconds: i64,
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn before(seconds: i64) -> UnixNanos {
    UnixNanos(now() - seconds * 1_000_000_000)
}

fn cause(why: &Why) -> Cause {
    Cause {
        reason: Reason::WorkerExited,
        identity: Some(identity(&why.job, why.index)),
        pod: why.pod.clone(),
        node: why.node.clone(),
        exit: Some(Exit { code: 3, signal: 0 }),
        at: Some(before(why.seconds)),
        said: None,
    }
}

fn identity(job: &str, index: u32) -> Identity {
    Identity {
        job: job.into(),
        index,
        container: "worker".into(),
    }
}

fn phase(name: &str) -> Option<Phase> {
    Some(match name {
        "Fresh" => Phase::Fresh,
        "Starting" => Phase::Starting,
        "Running" => Phase::Running,
        "Stopping" => Phase::Stopping,
        "Parked" => Phase::Parked,
        "Exited" => Phase::Exited(Exit { code: 3, signal: 0 }),
        "Done" => Phase::Done,
        "Unlinked" => Phase::Unlinked,
        "Lost" => Phase::Lost(Exit { code: 137, signal: 9 }),
        _ => return None,
    })
}

fn standby((ready, wanted): (u32, u32)) -> StandbyReport {
    StandbyReport {
        starts: Some(Starts {
            standby: wanted,
            cold: 0,
            ahead_ms: 1234,
        }),
        standbys: Some(Standbys {
            wanted,
            ready,
            reason: "memory is short".to_owned(),
            ..Standbys::default()
        }),
    }
}

fn group_phase(name: &str) -> GroupPhase {
    use GroupPhase::{Failed, Parked, Recovering, Recreating, Releasing, Stopping, Suspended};
    let known = [
        Recovering, Stopping, Parked, Releasing, Recreating, Suspended, Failed,
    ];
    let known = known.into_iter().find(|known| known.as_str() == name);
    known.unwrap_or(GroupPhase::InSync)
}

impl Group {
    fn snapshot(&self) -> anyhow::Result<Snapshot> {
        let generation = Generation(self.generation);
        let mut observed = Observed::default();
        observed.policy.max_restarts = 100;
        let (mut jobs, mut counts, mut earlier) = (Vec::new(), Vec::new(), None);
        for stage in &self.stages {
            for job in 0..stage.jobs {
                for index in 0..stage.workers {
                    let identity = identity(&format!("{}-{}-{job}", self.name, stage.name), index);
                    self.add(&mut observed, stage, identity, generation);
                }
            }
            let after: Vec<_> = earlier
                .iter()
                .map(|name| json!({"name": name, "status": "Ready"}))
                .collect();
            jobs.push(json!({
                "name": stage.name, "replicas": stage.jobs, "dependsOn": after,
                "template": {"spec": {"template": {"spec": {"containers": []}}}},
            }));
            counts.push(json!({
                "name": stage.name, "ready": stage.jobs, "active": stage.jobs, "succeeded": 0, "failed": 0, "suspended": 0,
            }));
            earlier = Some(stage.name.clone());
        }
        let jobset = serde_json::from_value(json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {"namespace": self.namespace, "name": self.name, "uid": format!("uid of {}", self.name)},
            "spec": {"replicatedJobs": jobs}, "status": {"replicatedJobsStatus": counts},
        }))?;
        Ok(Snapshot {
            jobset: Arc::new(jobset),
            observed: Arc::new(observed),
            phase: group_phase(&self.phase),
            generation,
            released: generation,
            restarts: self.restarts,
            cause: self.cause.as_ref().map(cause),
            level: self.cause.as_ref().map(|_| RestartLevel::Process),
        })
    }

    fn add(&self, observed: &mut Observed, stage: &Stage, identity: Identity, generation: Generation) {
        let place = identity.place();
        let standby = self.standbys.get(&place).map(|standbys| standby(*standbys));
        let phase = phase(self.but.get(&place).map_or("Running", String::as_str));
        let pod = PodFact {
            uid: format!("uid of {place}"),
            name: format!("{}-{}-x7k2p", identity.job, identity.index),
            node: Some(format!("node-{}", identity.index % 16)),
            running: true,
            node_lost: false,
            deleting: false,
        };
        if let Some(phase) = phase {
            let incarnation = Incarnation {
                pod_uid: pod.uid.clone(),
                container_id: place,
            };
            let report = Report {
                identity: identity.clone(),
                node: pod.node.clone().unwrap_or_default(),
                pod_name: pod.name.clone(),
                phase,
                generation,
                counted_restarts: 0,
                since: before(5),
                heartbeat: Heartbeat::Well,
                released_generation: None,
                standby: standby.map(Arc::new),
                progress: None,
            };
            observed.reports.insert(incarnation, report);
        }
        let worker = Worker {
            stage: stage.name.clone(),
            pods: vec![pod],
            ..Worker::default()
        };
        observed.workers.insert(identity, worker);
    }
}

fn timeline(generation: u64, workers: usize, failed: UnixNanos, at: [i64; 7]) -> Timeline {
    let [
        detected_at,
        pushed_at,
        written_at,
        stopped_at,
        parked_at,
        released_at,
        running_at,
    ] = at.map(|millis| UnixNanos(failed.0 + millis * 1_000_000));
    Timeline {
        generation: Generation(generation),
        failed_at: failed,
        detected_at,
        pushed_at,
        written_at,
        stopped_at,
        parked_at,
        released_at,
        running_at,
        workers,
        replaced: 0,
        from_standbys: 0,
        ahead_ms: 0,
    }
}

type Posts = BTreeMap<(String, String), Post>;

fn post<'p>(board: &Arc<Board>, posts: &'p mut Posts, namespace: &str, name: &str) -> &'p Post {
    let key = (namespace.to_owned(), name.to_owned());
    posts
        .entry(key)
        .or_insert_with(|| board.open_post(namespace, name, before(7200)))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let (board, shutdown) = (Board::new(), CancellationToken::new());
    let leader: Arc<Mutex<Option<String>>> = Arc::default();
    let replica = Replica {
        name: "lockstep-control-plane-7d9f8-abcde".to_owned(),
        namespace: "lockstep-system".to_owned(),
    };
    let who = Arc::clone(&leader);
    let leads = move || who.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let page = StatusPage::new(Arc::clone(&board), replica, Arc::new(leads), shutdown.clone());
    let listener = TcpListener::bind(&address).await.context(address)?;
    println!("http://{}", listener.local_addr()?);
    let served = tokio::spawn(page.serve(listener));
    let mut posts = Posts::new();
    // The page is served by other threads.
    for line in std::io::stdin().lines() {
        let line = line?;
        match serde_json::from_str(&line).with_context(|| line.clone())? {
            Command::Lead => board.set_leading(),
            Command::Leader { name } => {
                *leader.lock().unwrap_or_else(PoisonError::into_inner) = Some(name);
            }
            Command::Show(group) => {
                post(&board, &mut posts, &group.namespace, &group.name).replace_state(group.snapshot()?);
            }
            Command::Gone { namespace, name } => drop(posts.remove(&(namespace, name))),
            Command::Restarted {
                namespace,
                name,
                generation,
                cause: why,
                workers,
                at,
            } => {
                let cause = cause(&why);
                let failed = cause.at.unwrap_or_default();
                let announcement = Announcement::Restarted {
                    scope: Scope::Group,
                    timeline: timeline(generation, workers, failed, at),
                    cause,
                    level: RestartLevel::Process,
                };
                post(&board, &mut posts, &namespace, &name).record(&announcement, failed);
            }
        }
        println!("ok");
    }
    shutdown.cancel();
    served.await?
}
