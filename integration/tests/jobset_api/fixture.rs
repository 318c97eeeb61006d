//! Runs cases against one API server, and one control plane that was started before its CRD
//! existed.
//!
//! Each case has a namespace of its own, and its state is printed when the case fails. Cases that
//! kill the control plane run by themselves.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use futures::FutureExt;
use libtest_mimic::{Arguments, Failed, Trial};
use lockstep_integration::cluster::{Cluster, Neighbour, Spec};
use lockstep_integration::harness::{Access, eventually};
use tokio::runtime::Runtime;
use tokio::sync::RwLock;

use crate::control_plane::ControlPlane;
use crate::scene::{PATIENCE, Scene};

/// How many cases run at once: most of the time they wait.
const AT_ONCE: usize = 8;
/// A case that takes this long hangs: each of its waits has a limit of its own.
const LIMIT: Duration = Duration::from_secs(600);
/// Some exclusive cases start the control plane many times.
const LIMIT_ALONE: Duration = Duration::from_secs(1800);
pub(crate) const UPSTREAM_CRD: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../control-plane/api/vendor/jobset.x-k8s.io_jobsets.yaml"
);

type Body = fn(Scene) -> Pin<Box<dyn Future<Output = Result<()>>>>;

/// A test.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) alone: bool,
    pub(crate) body: Body,
}

/// Makes a [`Case`] of an `async fn(Scene) -> Result<()>`. `alone` is for cases that must not run
/// beside others.
macro_rules! case {
    ($body:ident) => {
        case!($body, false)
    };
    ($body:ident alone) => {
        case!($body, true)
    };
    ($body:ident, $alone:expr) => {
        $crate::fixture::Case {
            name: concat!(module_path!(), "::", stringify!($body)),
            alone: $alone,
            body: |scene| Box::pin($body(scene)),
        }
    };
}
pub(crate) use case;

/// What all cases share.
struct World {
    /// The cluster goes down when this is dropped.
    _cluster: Cluster,
    access: Access,
    control_plane: ControlPlane,
    gate: RwLock<()>,
}

impl World {
    async fn make(spec: Spec, flags: &[&str], neighbours: &[Neighbour]) -> Result<Self> {
        let mut cluster = Cluster::up(spec).await?;
        let access = Access {
            client: cluster.client().await?,
            kubectl: cluster.tools().path("kubectl")?.to_owned(),
            kubeconfig: cluster.kubeconfig(),
        };
        let control_plane = ControlPlane::new(cluster.kubeconfig(), cluster.dir(), flags).await?;
        installs_its_definition(&access, &control_plane).await?;
        if flags.contains(&"--ray") {
            until_ray_is_served(&access).await?;
        }
        for neighbour in neighbours {
            cluster.add_neighbour(*neighbour).await?;
        }
        Ok(Self {
            _cluster: cluster,
            access,
            control_plane,
            gate: RwLock::default(),
        })
    }

    async fn attempt(&self, case: &Case) -> Result<(), Failed> {
        let (_exclusive, _shared) = if case.alone {
            (Some(self.gate.write().await), None)
        } else {
            (None, Some(self.gate.read().await))
        };
        let namespace = self
            .access
            .namespace("jobset")
            .await
            .map_err(|error| format!("{error:#}"))?;
        let scene = Scene::new(namespace.clone(), self.control_plane.clone());
        let limit = if case.alone { LIMIT_ALONE } else { LIMIT };
        let body = AssertUnwindSafe((case.body)(scene)).catch_unwind();
        let result = match tokio::time::timeout(limit, body).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(anyhow!("it panicked, see above")),
            Err(_) => Err(anyhow!("not done after {} s", limit.as_secs())),
        };
        if case.alone {
            // Whatever the result, the next case needs a control plane that runs, and reaches the
            // API server directly.
            let restored = self.control_plane.restore(self.access.kubeconfig.clone()).await;
            restored.map_err(|error| format!("{error:#}"))?;
        }
        let failed = match result {
            Ok(()) => Ok(()),
            Err(error) => Err(format!(
                "{error:#}\nin namespace {}:\n{}",
                namespace.name,
                namespace.dump().await
            )
            .into()),
        };
        // Anything left of it goes with the cluster.
        let _ = namespace.delete().await;
        failed
    }
}

/// Starts the control plane first without a definition of JobSets, and then with upstream's: in
/// both cases it installs its own before it is ready.
async fn installs_its_definition(access: &Access, control_plane: &ControlPlane) -> Result<()> {
    control_plane.start().await?;
    control_plane.until_ready().await?;
    let ours = definition(access).await?;
    ensure!(ours.contains("executionPolicy"), "not ours: {ours}");
    control_plane.stop().await?;

    access
        .kubectl(&["replace", "--filename", UPSTREAM_CRD], "")
        .await?;
    let theirs = definition(access).await?;
    ensure!(!theirs.contains("executionPolicy"), "not upstream's: {theirs}");
    control_plane.start().await?;
    control_plane.until_ready().await?;
    let upgraded = definition(access).await?;
    ensure!(upgraded == ours, "not brought up to date: {upgraded}");
    Ok(())
}

/// Waits for Ray's definitions: the leader installs them, and a replica is ready before it leads.
async fn until_ray_is_served(access: &Access) -> Result<()> {
    for resource in ["rayclusters", "rayjobs", "raycronjobs"] {
        let path = format!("/apis/ray.io/v1/{resource}");
        eventually(&format!("{resource} are served"), PATIENCE, async || {
            access.kubectl(&["get", "--raw", &path], "").await
        })
        .await?;
    }
    Ok(())
}

/// Which control plane has installed the definition of JobSets, and what it says of their spec.
async fn definition(access: &Access) -> Result<String> {
    let path = "jsonpath={.metadata.annotations.lockstep\\.dev/crd-version} \
        {.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties}";
    let crd = ["get", "crd", "jobsets.jobset.x-k8s.io", "--output", path];
    access.kubectl(&crd, "").await
}

/// The whole run, on such a cluster, with these flags of the control plane too, and beside these
/// controllers of other projects.
pub(crate) fn run(mut cases: Vec<Case>, spec: Spec, flags: &[&str], neighbours: &[Neighbour]) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    cases.sort_by_key(|case| case.alone);
    if arguments.list {
        let trials = cases
            .iter()
            .map(|case| Trial::test(short(case.name), || Ok(())))
            .collect();
        return libtest_mimic::run(&arguments, trials).exit_code();
    }
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let world = match runtime.block_on(World::make(spec, flags, neighbours)) {
        Ok(world) => Arc::new(world),
        Err(error) => {
            eprintln!("cannot set the API server up: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let trials = cases.into_iter().map(|case| {
        let (runtime, world) = (Arc::clone(&runtime), Arc::clone(&world));
        Trial::test(short(case.name), move || runtime.block_on(world.attempt(&case)))
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if conclusion.has_failed() {
        eprintln!(
            "--- the end of the control plane's log\n{}",
            world.control_plane.log()
        );
    }
    let ended = runtime.block_on(world.control_plane.stop());
    // All trials have ended, so this is the last handle, and the cluster goes with it.
    drop(world);
    match ended {
        Ok(status) if status.success() => conclusion.exit_code(),
        ended => {
            eprintln!("the control plane did not end well: {ended:?}");
            ExitCode::FAILURE
        }
    }
}

/// The name without that of the test binary.
fn short(name: &str) -> &str {
    name.split_once("::").map_or(name, |(_, rest)| rest)
}
