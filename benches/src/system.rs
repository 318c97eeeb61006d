//! The whole system: a JobSet on a real API server with its controllers and scheduler, the real
//! control plane, and hollow nodes with the product's daemons. Measures the failure of a worker,
//! the loss of a pod and of all pods of a node, and recreations of the same JobSet.

mod api;
mod crew;
mod daemons;
mod report;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use lockstep_integration::cluster::{Cluster, Spec};
use lockstep_integration::harness::hollow::{self, Kubelets};
use lockstep_integration::harness::{Access, ControlPlane, Webhooks, eventually};
use lockstep_integration::host::{free_port, target_dir};
use lockstep_node_daemon::worker::driver::Handle;
use serde_json::json;
use tokio::sync::mpsc;

use crate::message::{BenchEvent, now};
use crate::samples::Times;
use api::Restarts;
use crew::{Crew, Member};

/// Workers of a node.
const EACH: usize = 8;
/// Spare nodes.
const SPARE: usize = 8;
/// Time limit for each step.
const LIMIT: Duration = Duration::from_secs(900);
/// Time for the last writes after a restart.
const SETTLE: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Numbers of pods, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "10,1000,5000")]
    pods: Vec<usize>,
    /// Failures of workers, one after another
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Losses of pods and nodes, one after another
    #[arg(long, default_value_t = 3)]
    losses: usize,
    /// Recreations
    #[arg(long, default_value_t = 3)]
    recreations: usize,
    /// The control plane [default: the release build]
    #[arg(long)]
    program: Option<PathBuf>,
}

/// Results for one number of pods.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) pods: usize,
    /// From the JobSet's creation until all workers run.
    pub(crate) start: Times,
    pub(crate) worker: Times,
    pub(crate) pod: Times,
    pub(crate) node: Times,
    pub(crate) recreate: Times,
    /// Write requests to the API server per failed worker.
    pub(crate) writes: f64,
    /// CPU seconds of the control plane per failed worker.
    pub(crate) cpu: f64,
    /// Its peak memory before the recreations, in MiB.
    pub(crate) peak: f64,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    ensure!(
        !args.pods.is_empty() && args.pods.iter().all(|pods| *pods > 0),
        "nothing to measure"
    );
    crate::child::raise_files()?;
    let mut all = Vec::new();
    for pods in &args.pods {
        // A new API server for each, so that they do not affect each other.
        let cluster = Cluster::up(Spec::api_server().with_controllers().with_scheduler()).await?;
        let measured = Box::pin(size(&args, &cluster, *pods)).await;
        all.push(measured.with_context(|| format!("{pods} pods"))?);
    }
    report::print(&all);
    report::write(&args, &all)
}

/// Measures one number of pods.
async fn size(args: &Args, cluster: &Cluster, pods: usize) -> Result<Measured> {
    let dir = tempfile::tempdir()?;
    let client = cluster.client().await?;
    let access = Access {
        client: client.clone(),
        kubectl: cluster.tools().path("kubectl")?.to_owned(),
        kubeconfig: cluster.kubeconfig(),
    };
    let nodes = pods.div_ceil(EACH) + SPARE;
    hollow::create_nodes(&client, "node", nodes, u32::try_from(EACH)?).await?;
    let nodes: Vec<String> = (0..nodes).map(|number| format!("node-{number}")).collect();
    daemons::introduce(&client, dir.path(), &nodes).await?;
    let port = free_port()?;
    let control_plane = start(args, cluster, dir.path(), port).await?;
    eventually("the hub's CA", LIMIT, async || {
        Ok(std::fs::read(dir.path().join("tls/ca.crt")).map(drop)?)
    })
    .await?;
    let daemons: HashMap<String, Handle> = nodes
        .iter()
        .map(|node| (node.clone(), daemons::start(dir.path(), port, node)))
        .collect();
    let namespace = access.namespace("bench").await?.name;
    let mut scene = Scene::new(&access, &namespace, daemons, pods);
    let mut measured = Measured {
        pods,
        ..Measured::default()
    };
    Box::pin(scene.in_place(args, &control_plane, &mut measured)).await?;
    measured.peak = control_plane.usage()?.peak;
    Box::pin(scene.recreate(args, &mut measured)).await?;
    drop(scene);
    control_plane.stop().await?;
    Ok(measured)
}

async fn start(args: &Args, cluster: &Cluster, dir: &Path, port: u16) -> Result<ControlPlane> {
    let program = args
        .program
        .clone()
        .unwrap_or_else(|| target_dir().join("release/lockstep-control-plane"));
    std::fs::create_dir_all(target_dir().join("bench"))?;
    let log = target_dir().join("bench/control-plane.log");
    let (address, tls) = (format!("127.0.0.1:{port}"), dir.join("tls").display().to_string());
    let more = [
        ["--namespace", daemons::NAMESPACE],
        ["--hub-bind-address", &address],
        ["--hub-tls-dir", &tls],
    ];
    ControlPlane::start(
        &program,
        &cluster.kubeconfig(),
        &log,
        Webhooks::Disabled,
        more.as_flattened(),
    )
    .await
}

/// A JobSet, its pods, and their events.
struct Scene {
    client: Client,
    pods: Api<Pod>,
    jobsets: Api<DynamicObject>,
    crew: Crew,
    count: usize,
    events: mpsc::UnboundedReceiver<BenchEvent>,
    _kubelets: Kubelets,
}

impl Scene {
    fn new(access: &Access, namespace: &str, daemons: HashMap<String, Handle>, count: usize) -> Self {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("jobset.x-k8s.io", "v1alpha2", "JobSet"));
        let pods: Api<Pod> = Api::namespaced(access.client.clone(), namespace);
        // The benchmark reads the event of each restart and failure at once.
        let (sender, events) = mpsc::unbounded_channel();
        let say = move |event| {
            let _ = sender.send(event);
        };
        Self {
            client: access.client.clone(),
            jobsets: Api::namespaced_with(access.client.clone(), namespace, &kind),
            crew: Crew::start(pods.clone(), daemons, count, say),
            _kubelets: Kubelets::start(access.client.clone(), pods.clone()),
            pods,
            count,
            events,
        }
    }

    /// Measures failures of a worker, a pod and a node.
    async fn in_place(
        &mut self,
        args: &Args,
        control_plane: &ControlPlane,
        measured: &mut Measured,
    ) -> Result<()> {
        let began = now();
        self.create(Restarts::InPlace).await?;
        let mut generation = 0;
        measured.start.add(began, self.all_run(generation).await?);
        self.settled(generation).await?;

        let before = (api::writes(&self.client).await?, control_plane.usage()?.cpu);
        for round in 0..args.rounds {
            generation += 1;
            let victim = self.victim(round)?;
            victim.fail();
            let failed = self.failure().await?;
            measured.worker.add(failed, self.all_run(generation).await?);
            self.settled(generation).await?;
        }
        let after = (api::writes(&self.client).await?, control_plane.usage()?.cpu);
        measured.writes = (after.0 - before.0) / args.rounds as f64;
        measured.cpu = (after.1 - before.1) / args.rounds as f64;

        for loss in 0..args.losses {
            generation += 1;
            let victim = self.victim(loss)?;
            let began = now();
            self.delete(&victim).await?;
            measured.pod.add(began, self.all_run(generation).await?);
            self.settled(generation).await?;
        }
        for loss in 0..args.losses {
            generation += 1;
            let node = self.victim(loss)?.node;
            let began = now();
            for victim in self.crew.on(&node) {
                self.delete(&victim).await?;
            }
            // A pod that ends after the others were released causes another restart.
            let (reached, ran) = self.all_run_from(generation).await?;
            generation = reached;
            measured.node.add(began, ran);
            self.settled(generation).await?;
        }
        self.clear(Restarts::InPlace).await
    }

    /// Measures recreations of the same JobSet.
    async fn recreate(&mut self, args: &Args, measured: &mut Measured) -> Result<()> {
        if args.recreations == 0 {
            return Ok(());
        }
        self.create(Restarts::Recreate).await?;
        self.all_run(0).await?;
        for recreation in 1..=args.recreations {
            let victim = self.victim(recreation)?;
            let began = now();
            let status = json!({"status": {"phase": "Failed"}});
            let params = PatchParams::default();
            self.pods
                .patch_status(&victim.name, &params, &Patch::Strategic(status))
                .await?;
            measured
                .recreate
                .add(began, self.all_run(recreation as u64).await?);
            tokio::time::sleep(SETTLE).await;
        }
        self.clear(Restarts::Recreate).await
    }

    async fn create(&self, restarts: Restarts) -> Result<()> {
        let jobset = serde_json::from_value(api::jobset(self.count, restarts))?;
        self.jobsets.create(&PostParams::default(), &jobset).await?;
        Ok(())
    }

    async fn delete(&self, victim: &Member) -> Result<()> {
        self.pods
            .delete(&victim.name, &DeleteParams::default())
            .await
            .map(drop)?;
        Ok(())
    }

    /// A pod, a different one in each round.
    fn victim(&self, round: usize) -> Result<Member> {
        let all = self.crew.one_of_each_node();
        let place = (round * 7919) % all.len().max(1);
        all.get(place).cloned().context("there is no pod")
    }

    async fn wait_for<T>(&mut self, what: &str, wanted: impl Fn(&BenchEvent) -> Option<T>) -> Result<T> {
        let found = async {
            while let Some(event) = self.events.recv().await {
                if let Some(found) = wanted(&event) {
                    return Ok(found);
                }
            }
            bail!("there are no more events")
        };
        tokio::time::timeout(LIMIT, found)
            .await
            .with_context(|| what.to_owned())?
    }

    async fn failure(&mut self) -> Result<u64> {
        self.wait_for("a worker fails", |event| match event {
            BenchEvent::Failed { at, .. } => Some(*at),
            _ => None,
        })
        .await
    }

    /// The time at which the last worker ran this generation or recreation.
    async fn all_run(&mut self, wanted: u64) -> Result<u64> {
        self.all_run_from(wanted).await.map(|(_, at)| at)
    }

    /// The time at which the last worker ran this generation or a later one, and that generation.
    async fn all_run_from(&mut self, wanted: u64) -> Result<(u64, u64)> {
        self.wait_for(&format!("all run {wanted}"), |event| match event {
            BenchEvent::Runs { generation, at, .. } if *generation >= wanted => Some((*generation, *at)),
            _ => None,
        })
        .await
    }

    /// Waits until the status has this generation, and for the last writes.
    async fn settled(&self, generation: u64) -> Result<()> {
        eventually("the status has the generation", LIMIT, async || {
            let jobset = self.jobsets.get(Restarts::InPlace.name()).await?;
            let status = &jobset.data["status"]["inPlaceRestart"];
            let reached = status["generation"].as_u64().unwrap_or(0);
            ensure!(
                status["phase"] == "InSync" && reached == generation,
                "{status} is not {generation}"
            );
            Ok(())
        })
        .await?;
        tokio::time::sleep(SETTLE).await;
        Ok(())
    }

    async fn clear(&self, restarts: Restarts) -> Result<()> {
        self.jobsets
            .delete(restarts.name(), &DeleteParams::background())
            .await?;
        eventually("nothing is left", LIMIT, async || {
            let left = self.pods.list_metadata(&ListParams::default().limit(1)).await?;
            ensure!(left.items.is_empty(), "there are pods");
            Ok(())
        })
        .await
    }
}
