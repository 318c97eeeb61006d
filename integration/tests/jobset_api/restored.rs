//! etcd is restored from a copy of its data directory while a leader runs: the leader's process
//! ends, and the next one continues from the restored state.
//!
//! Each case has a cluster of its own.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use lockstep_api::JobSet;
use lockstep_integration::cluster::{Cluster, Spec};
use lockstep_integration::harness::{Access, eventually};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::process::Command;

use crate::control_plane::ControlPlane;
use crate::fixture::{Case, case};
use crate::pods::{in_place, start};
use crate::restarts::{ALL, create};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_leader_under_whom_the_store_goes_back_ends_and_the_next_one_goes_on),
        case!(where_the_api_server_is_started_again_later_so_must_be_the_control_plane),
    ]
}

/// With this lease a leader outlasts the absence of the API server.
const PATIENT: [&str; 3] = [
    "--leader-elect-lease-duration=90s",
    "--leader-elect-renew-deadline=80s",
    "--leader-elect-retry-period=1s",
];
/// What the leader logs before it ends.
const WENT_BACK: &str = "the API server went back to an older state";
/// The components that Kubernetes asks to restart after a restore: their caches hold the former
/// state.
const PARTS: [&str; 2] = ["kube-apiserver", "kube-controller-manager"];
/// More refused writes than this are a storm. Hardly any are expected.
const CONFLICTS: u64 = 10;
const JOB: [&str; 1] = ["js-a-0"];

/// A cluster, a copy of its etcd, and the changes since then.
struct World {
    cluster: Cluster,
    access: Access,
    control_plane: ControlPlane,
    copy: PathBuf,
    /// Has restarted with new Jobs since the copy.
    kept: Scene,
    /// Restarts in place. It handled a request since the copy, under this epoch.
    group: Scene,
    epoch: i64,
    /// Its JobSet was deleted since the copy.
    deleted: Scene,
    /// Created since the copy.
    later: Scene,
}

async fn a_leader_under_whom_the_store_goes_back_ends_and_the_next_one_goes_on(_: Scene) -> Result<()> {
    let mut world = World::make().await?;
    // Nothing reads etcd while it is replaced.
    world.restore(&PARTS).await?;
    world.ends().await?;
    // Starts it as a service manager would.
    world.start().await?;
    world.goes_on().await.with_context(|| world.control_plane.log())
}

async fn where_the_api_server_is_started_again_later_so_must_be_the_control_plane(_: Scene) -> Result<()> {
    let mut world = World::make().await?;
    world.restore(&[]).await?;
    world.ends().await?;
    // It reads the API server's cache, which holds the former state.
    ensure!(world.later.jobs().await?.len() == JOB.len());
    world.start().await?;
    let stopped = world.kill(&PARTS).await?;
    world.start_again(&stopped).await?;
    world.control_plane.stop().await?;
    world.start().await?;
    world.goes_on().await.with_context(|| world.control_plane.log())
}

impl World {
    async fn make() -> Result<Self> {
        let cluster = Cluster::up(Spec::api_server().with_controllers().brisk()).await?;
        let access = Access {
            client: cluster.client().await?,
            kubectl: cluster.tools().path("kubectl")?.to_owned(),
            kubeconfig: cluster.kubeconfig(),
        };
        let control_plane = ControlPlane::new(cluster.kubeconfig(), cluster.dir(), &[]).await?;
        let scene = async || {
            let namespace = access.namespace("jobset").await?;
            anyhow::Ok(Scene::new(namespace, control_plane.clone()))
        };
        let (kept, group, deleted) = (scene().await?, scene().await?, scene().await?);
        start(&kept, &PATIENT).await?;
        create(&kept, "Recreate", 5).await?;
        group.create(in_place()).await?;
        makes_a_job(&deleted).await?;
        kept.until_jobs(&ALL, 0).await?;
        kept.all_pods_become("Running").await?;
        handles(&group, "before").await?;

        let copy = cluster.dir().join("etcd-copy");
        copy_as_it_is(&cluster, &copy).await?;

        kept.pods_become("js-a-1", "Failed").await?;
        kept.until_jobs(&ALL, 1).await?;
        handles(&group, "after").await?;
        let jobsets = deleted.api::<JobSet>();
        jobsets.delete("js", &DeleteParams::default()).await?;
        let later = scene().await?;
        makes_a_job(&later).await?;
        let epoch = epoch(&group).await?;
        Ok(Self {
            cluster,
            access,
            control_plane,
            copy,
            kept,
            group,
            epoch,
            deleted,
            later,
        })
    }

    /// Replaces etcd's data with the copy, while etcd and `beside` are down.
    async fn restore(&mut self, beside: &[&'static str]) -> Result<()> {
        let mut stopped = self.kill(beside).await?;
        stopped.splice(..0, self.kill(&["etcd"]).await?);
        let data = self.cluster.dir().join("etcd");
        tokio::fs::remove_dir_all(&data).await?;
        copy_dir(&self.copy, &data).await?;
        self.start_again(&stopped).await
    }

    async fn kill(&mut self, names: &[&'static str]) -> Result<Vec<Killed>> {
        let mut killed = Vec::new();
        for name in names {
            killed.push((*name, self.cluster.kill_daemon(name).await?));
        }
        Ok(killed)
    }

    /// Starts these daemons. Those that need the API server start once it serves.
    async fn start_again(&mut self, killed: &[Killed]) -> Result<()> {
        for (name, args) in killed {
            self.cluster.start_daemon(name, args).await?;
            if *name == "etcd" {
                continue;
            }
            self.until_served().await?;
        }
        self.until_served().await
    }

    async fn until_served(&self) -> Result<()> {
        eventually("the API server is ready", PATIENCE, async || {
            self.access.kubectl(&["get", "--raw", "/readyz"], "").await
        })
        .await
        .map(drop)
    }

    async fn start(&self) -> Result<()> {
        start(&self.kept, &PATIENT).await
    }

    /// Checks that the control plane ends by itself, and says why.
    async fn ends(&self) -> Result<()> {
        let ended = self.control_plane.ends().await;
        let ended = ended.with_context(|| self.control_plane.log())?;
        let said = self.control_plane.logged(WENT_BACK);
        ensure!(
            !ended.success() && said == 1,
            "{ended}: {}",
            self.control_plane.log()
        );
        Ok(())
    }

    /// Checks that the state is that of the copy, and that everything continues from there.
    async fn goes_on(&self) -> Result<()> {
        let before = self.control_plane.logged(WENT_BACK);
        self.deleted.until_jobs(&JOB, 0).await?;
        ensure!(self.later.jobs().await?.is_empty(), "it was not there yet");
        self.kept.until_jobs(&ALL, 0).await?;
        self.kept.pods_become("js-a-1", "Failed").await?;
        self.kept.until_jobs(&ALL, 1).await?;
        let status = self.kept.status().await?;
        ensure!(status.restarts == 1, "{status:?}");
        handles(&self.group, "again").await?;
        let epoch = epoch(&self.group).await?;
        ensure!(
            epoch > self.epoch,
            "nodes know {}, and the next leader has {epoch}",
            self.epoch
        );
        let namespace = self.access.namespace("jobset").await?;
        makes_a_job(&Scene::new(namespace, self.control_plane.clone())).await?;
        let (written, refused) = self.writes().await?;
        println!("     {written} writes since the API server was started, {refused} of them refused");
        ensure!(written > 0 && refused <= CONFLICTS, "{refused} of {written}");
        // A process that was started before the API server went back may still have to notice.
        let said = self.control_plane.logged(WENT_BACK);
        ensure!(said <= before + 1, "{}", self.control_plane.log());
        self.control_plane.stop().await.map(drop)
    }

    /// The number of writes of JobSets and Jobs since the API server was started, and of those
    /// refused with a conflict.
    async fn writes(&self) -> Result<(u64, u64)> {
        let metrics = self.access.kubectl(&["get", "--raw", "/metrics"], "").await?;
        let (mut written, mut refused) = (0, 0);
        for line in metrics.lines() {
            let has = |label: &str, values: &[&str]| {
                let mut values = values.iter();
                values.any(|value| line.contains(&format!("{label}=\"{value}\"")))
            };
            if line.starts_with("apiserver_request_total{")
                && has("resource", &["jobsets", "jobs"])
                && has("verb", &["APPLY", "PATCH", "POST", "PUT"])
            {
                let count: u64 = line.rsplit(' ').next().context("no number")?.parse()?;
                written += count;
                refused += if has("code", &["409"]) { count } else { 0 };
            }
        }
        Ok((written, refused))
    }
}

/// A daemon that was killed, and its command line.
type Killed = (&'static str, Vec<std::ffi::OsString>);

async fn makes_a_job(scene: &Scene) -> Result<()> {
    let one = json!({"replicatedJobs": [replicated_job("a", 1)]});
    scene.create(jobset(one)).await?;
    scene.until_jobs(&JOB, 0).await.map(drop)
}

/// Requests a restart of the group, and waits until the control plane has handled it.
async fn handles(group: &Scene, request: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {"lockstep.dev/restart-request": request}}});
    let jobsets = group.api::<JobSet>();
    jobsets
        .patch("js", &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    let handled = format!("the request {request} is handled");
    let status = group.until_status(&handled, |status| {
        let state = status.in_place_restart.as_ref();
        state.is_some_and(|state| state.handled_manual_request.as_deref() == Some(request))
    });
    status.await.map(drop)
}

/// The epoch of the leader that last wrote the group.
async fn epoch(group: &Scene) -> Result<i64> {
    let status = group.status().await?;
    Ok(status.in_place_restart.context("no restart in place")?.epoch)
}

/// Copies etcd's data directory as a crash at this moment would leave it.
async fn copy_as_it_is(cluster: &Cluster, copy: &Path) -> Result<()> {
    let etcd = cluster.daemon("etcd").context("no etcd")?;
    ensure!(etcd.signal(Signal::SIGSTOP), "etcd has ended");
    let copied = copy_dir(&cluster.dir().join("etcd"), copy).await;
    ensure!(etcd.signal(Signal::SIGCONT), "etcd has ended");
    copied
}

async fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().await?;
    ensure!(status.success(), "cp: {status}");
    Ok(())
}
