//! A cluster with the product, installed by its Helm chart as users do.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use lockstep_integration::cluster::{Cluster, Neighbour, Spec, node_name};
use lockstep_integration::harness::group::{Place, container_id, container_status};
use lockstep_integration::harness::{Access, Process, eventually, process};
use lockstep_integration::image::{self, Image, Programs};
use lockstep_integration::progress::Progress;
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::sync::Mutex;

/// The instance of the testbed, unless LOCKSTEP_TESTBED names another. If there are several nodes,
/// their number follows. LOCKSTEP_KEEP=1 leaves it up for the next run.
const INSTANCE: &str = "node-tests";
const NAMESPACE: &str = "lockstep-system";
/// How long a part may take to be ready again: the kubelet backs off when containers end often.
pub(crate) const READY: Duration = Duration::from_secs(300);

/// A program of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The leader, if there are several replicas.
    ControlPlane,
    /// The daemon of this node, counted from 1.
    NodeDaemon(u8),
}

impl Part {
    /// The name of its container.
    pub(crate) fn container(self) -> &'static str {
        match self {
            Self::ControlPlane => "control-plane",
            Self::NodeDaemon(_) => "node-daemon",
        }
    }

    /// Selects the pods of the part.
    fn pods(self) -> ListParams {
        let labels = format!("app.kubernetes.io/component={}", self.container());
        let pods = ListParams::default().labels(&labels);
        match self {
            Self::ControlPlane => pods,
            Self::NodeDaemon(node) => pods.fields(&format!("spec.nodeName={}", node_name(node))),
        }
    }
}

/// What is installed.
#[derive(Clone)]
pub(crate) struct Build {
    pub(crate) chart: PathBuf,
    pub(crate) control_plane: Image,
    pub(crate) node_daemon: Image,
}

impl Build {
    /// The build of cargo.
    pub(crate) fn present() -> Result<Self> {
        Self::of(&Programs::chosen()?)
    }

    /// The chart of this checkout with these programs.
    pub(crate) fn of(programs: &Programs) -> Result<Self> {
        Ok(Self {
            chart: Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/lockstep"),
            control_plane: image::control_plane(programs)?,
            node_daemon: image::node_daemon(programs)?,
        })
    }
}

/// The product in a cluster.
pub(crate) struct Product {
    cluster: Mutex<Option<Cluster>>,
    access: Access,
    /// The initial nodes.
    nodes: u8,
}

impl Product {
    /// Brings up a cluster of this many nodes unless it is up, and installs the build of cargo.
    /// If nodes are `soon_lost`, one that does not report counts as lost after 12 s.
    pub(crate) async fn install(nodes: u8, soon_lost: bool) -> Result<Self> {
        let progress = Progress::new();
        let mut instance = env::var("LOCKSTEP_TESTBED").unwrap_or_else(|_| INSTANCE.to_owned());
        let mut spec = Spec::new(&instance);
        if nodes > 1 {
            instance.push_str(&format!("-{nodes}"));
            spec = Spec::new(&instance).nodes(nodes);
        }
        if soon_lost {
            spec = spec.soon_lost();
        }
        let cluster = Cluster::ensure(spec.progress(progress.clone())).await?;
        let build = Build::present()?;
        progress.say(format_args!("images hold {}", Programs::chosen()?.describe()));
        load_images(&cluster, &build).await?;
        let access = Access {
            client: cluster.client().await?,
            kubectl: cluster.tools().path("kubectl")?.to_owned(),
            kubeconfig: cluster.kubeconfig(),
        };
        progress.say("installing the chart");
        helm(&cluster, &build, &[]).await?;
        let product = Self {
            cluster: Mutex::new(Some(cluster)),
            access,
            nodes,
        };
        product.settled().await?;
        product.ready().await?;
        progress.say("the product is ready");
        Ok(product)
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// The name of the cluster in the testbed.
    pub(crate) async fn instance(&self) -> Result<String> {
        self.with_cluster(async |cluster| Ok(cluster.name().to_owned()))
            .await
    }

    /// The initial number of nodes.
    pub(crate) fn nodes(&self) -> u8 {
        self.nodes
    }

    /// The number of the node of this place.
    pub(crate) fn node_of(&self, place: &Place) -> Result<u8> {
        let mut numbers = 1..=self.nodes;
        let node = numbers.find(|number| node_name(*number) == place.node);
        node.with_context(|| format!("{} is none of the nodes", place.node))
    }

    /// Installs the same build again, with these additional values of the chart.
    pub(crate) async fn reinstall(&self, values: &[&str]) -> Result<()> {
        self.change_to(&Build::present()?, values).await
    }

    /// Installs another build, whose images are on the nodes, with these additional values of the
    /// chart.
    pub(crate) async fn change_to(&self, build: &Build, values: &[&str]) -> Result<()> {
        self.with_cluster(async |cluster| helm(cluster, build, values).await)
            .await?;
        self.settled().await?;
        self.ready().await
    }

    /// Waits until no control plane of a former installation is left: Helm only waits for the new
    /// one, and the old one may still lead.
    async fn settled(&self) -> Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.access.client.clone(), NAMESPACE);
        eventually("nothing of the control plane before is left", READY, async || {
            let deployment = deployments.get("lockstep-control-plane").await?;
            let wanted = deployment.spec.and_then(|spec| spec.replicas).unwrap_or(1);
            let status = deployment.status.unwrap_or_default();
            ensure!(
                status.observed_generation >= deployment.metadata.generation
                    && status.updated_replicas == Some(wanted),
                "{status:?}"
            );
            let (all, ready) = self.replicas().await?;
            ensure!(
                all.len() == ready.len() && i32::try_from(all.len())? == wanted,
                "{} of {} pods are ready and to stay, {wanted} are wanted",
                ready.len(),
                all.len()
            );
            Ok(())
        })
        .await
    }

    /// Removes the product as docs/operations.md says: the chart, and then the objects that it
    /// leaves behind. Waits until no part runs.
    pub(crate) async fn uninstall(&self) -> Result<()> {
        let helm = self
            .with_cluster(async |cluster| Ok(cluster.tools().path("helm")?.to_owned()))
            .await?;
        let output = tokio::process::Command::new(helm)
            .args([
                "uninstall",
                "lockstep",
                "--namespace",
                NAMESPACE,
                "--wait",
                "--timeout",
                "300s",
            ])
            .arg("--kubeconfig")
            .arg(&self.access.kubeconfig)
            .output()
            .await?;
        ensure!(
            output.status.success(),
            "helm: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        eventually("no part runs", READY, async || {
            let api: Api<Pod> = Api::namespaced(self.access.client.clone(), NAMESPACE);
            let parts =
                ListParams::default().labels("app.kubernetes.io/component in (control-plane, node-daemon)");
            let left = api.list(&parts).await?.items.len();
            ensure!(left == 0, "{left} pods");
            Ok(())
        })
        .await?;
        let left = [
            "lease/lockstep-control-plane",
            "configmap/lockstep-hub-ca",
            "secret/lockstep-hub-tls",
            "secret/jobset-webhook-server-cert",
        ];
        let delete = ["--namespace", NAMESPACE, "delete"];
        self.access
            .kubectl(&[delete.as_slice(), &left].concat(), "")
            .await?;
        Ok(())
    }

    /// Puts an image on every node that does not have it.
    pub(crate) async fn load(&self, image: &Image) -> Result<()> {
        self.with_cluster(async |cluster| Ok(cluster.load_image(image).await?))
            .await
    }

    /// The path on this machine of a path on a node.
    pub(crate) async fn node_path(&self, node: u8, path: &str) -> Result<PathBuf> {
        self.with_cluster(async |cluster| Ok(cluster.node_path(node, path)?))
            .await
    }

    /// Runs a controller of another project beside the cluster.
    pub(crate) async fn add(&self, neighbour: Neighbour) -> Result<()> {
        self.with_cluster(async |cluster| Ok(cluster.add_neighbour(neighbour).await?))
            .await
    }

    /// Adds a node with everything that the product needs there, and returns its number.
    pub(crate) async fn add_node(&self) -> Result<u8> {
        let node = self
            .with_cluster(async |cluster| {
                let node = cluster.add_node().await?;
                load_images(cluster, &Build::present()?).await?;
                Ok(node)
            })
            .await?;
        eventually("the daemon of the new node is ready", READY, async || {
            self.check(Part::NodeDaemon(node)).await
        })
        .await?;
        Ok(node)
    }

    /// Adds a node that is a machine, with these settings of its kubelet and everything that the
    /// product needs there, and returns its number.
    pub(crate) async fn add_machine(&self, kubelet: Value) -> Result<u8> {
        let machine = self
            .with_cluster(async |cluster| {
                let machine = cluster.add_machine(kubelet).await?;
                load_images(cluster, &Build::present()?).await?;
                Ok(machine)
            })
            .await?;
        self.daemon_is_ready(machine, None).await?;
        Ok(machine)
    }

    /// Ends a machine at once.
    pub(crate) async fn kill_machine(&self, machine: u8) -> Result<()> {
        self.with_cluster(async |cluster| Ok(cluster.kill_machine(machine).await?))
            .await
    }

    /// Boots a machine again.
    pub(crate) async fn boot_machine(&self, machine: u8) -> Result<()> {
        let before = self.daemon_is_ready(machine, None).await?;
        self.with_cluster(async |cluster| Ok(cluster.boot_machine(machine).await?))
            .await?;
        self.daemon_is_ready(machine, Some(&before)).await?;
        Ok(())
    }

    /// Ends a machine for good.
    pub(crate) async fn remove_machine(&self, machine: u8) -> Result<()> {
        self.kill_machine(machine).await?;
        let delete = ["delete", "node", &node_name(machine)];
        self.access.kubectl(&delete, "").await?;
        Ok(())
    }

    /// Runs a script in a machine, and returns what it writes.
    pub(crate) async fn run_on_machine(&self, machine: u8, script: &str) -> Result<String> {
        self.with_cluster(async |cluster| Ok(cluster.run_on_machine(machine, script).await?))
            .await
    }

    /// Waits until the container of a machine's daemon is ready according to the API server, and is
    /// not the one `before`. Returns its id.
    async fn daemon_is_ready(&self, machine: u8, before: Option<&str>) -> Result<String> {
        let api: Api<Pod> = Api::namespaced(self.access.client.clone(), NAMESPACE);
        let part = Part::NodeDaemon(machine);
        eventually("the daemon of the machine is ready", READY, async || {
            let mut pods = api.list(&part.pods()).await?.items;
            let pod = pods.pop().context("no pod")?;
            let id = container_id(&pod, part.container())?;
            let ready = container_status(&pod, part.container()).is_some_and(|status| status.ready);
            ensure!(ready && Some(id.as_str()) != before, "{id} is not ready");
            Ok(id)
        })
        .await
    }

    /// Kills everything on a node.
    pub(crate) async fn lose_node(&self, node: u8) -> Result<()> {
        self.with_cluster(async |cluster| Ok(cluster.lose_node(node).await?))
            .await
    }

    /// Takes the cluster down, unless it was up before or must be kept.
    pub(crate) async fn remove(product: Arc<Self>) -> Result<()> {
        let cluster = product.cluster.lock().await.take();
        Ok(tokio::task::spawn_blocking(move || drop(cluster)).await?)
    }

    /// Runs `act` with the cluster.
    pub(super) async fn with_cluster<T>(
        &self,
        act: impl AsyncFnOnce(&mut Cluster) -> Result<T>,
    ) -> Result<T> {
        let mut cluster = self.cluster.lock().await;
        act(cluster.as_mut().context("the cluster is down")?).await
    }

    /// Kills a part with SIGKILL.
    pub(crate) async fn kill(&self, part: Part) -> Result<()> {
        let (_, process) = self.part(part).await?;
        process.signal(Signal::SIGKILL)?;
        eventually("a killed process ends", READY, async || {
            ensure!(!process.is_alive(), "{process:?} lives");
            Ok(())
        })
        .await
    }

    /// Replaces the pod of a part, so that the kubelet does not delay it for former deaths.
    pub(crate) async fn renew(&self, part: Part) -> Result<()> {
        let (pod, _) = self.part(part).await?;
        let api: Api<Pod> = Api::namespaced(self.access.client.clone(), NAMESPACE);
        let name = pod.metadata.name.context("no name")?;
        api.delete(&name, &DeleteParams::default()).await?;
        eventually("another pod runs", READY, async || {
            let (now, _) = self.part(part).await?;
            ensure!(now.metadata.uid != pod.metadata.uid, "it is the same");
            Ok(())
        })
        .await?;
        self.settled().await?;
        self.ready().await
    }

    /// Waits until every part runs and is ready.
    pub(crate) async fn ready(&self) -> Result<()> {
        eventually("all parts are ready", READY, async || {
            self.check(Part::ControlPlane).await?;
            for node in 1..=self.nodes {
                self.check(Part::NodeDaemon(node)).await?;
            }
            Ok(())
        })
        .await
    }

    /// Fails unless a part runs and is ready.
    async fn check(&self, part: Part) -> Result<()> {
        let (pod, process) = self.part(part).await?;
        let ready = container_status(&pod, part.container()).is_some_and(|status| status.ready);
        ensure!(ready, "{part:?} ({process:?}) is not ready");
        Ok(())
    }

    /// The process of a part.
    pub(crate) async fn process(&self, part: Part) -> Result<Process> {
        Ok(self.part(part).await?.1)
    }

    /// Replaces the pod of a part if the kubelet has restarted it already, and would delay the next
    /// restart.
    pub(crate) async fn fresh(&self, part: Part) -> Result<()> {
        let (pod, _) = self.part(part).await?;
        match container_status(&pod, part.container()) {
            Some(status) if status.restart_count == 0 => Ok(()),
            _ => self.renew(part).await,
        }
    }

    /// The pod of a part and the process in it. Reads the process table, as the API server may not
    /// know yet that a process has ended.
    pub(crate) async fn part(&self, part: Part) -> Result<(Pod, Process)> {
        let api: Api<Pod> = Api::namespaced(self.access.client.clone(), NAMESPACE);
        let mut pods = api.list(&part.pods()).await?.items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        if part == Part::ControlPlane && pods.len() > 1 {
            let leader = self.leader().await?;
            pods.retain(|pod| pod.metadata.name.as_deref() == Some(&leader));
        }
        ensure!(pods.len() == 1, "{part:?} has {} pods", pods.len());
        let pod = pods.pop().context("no pod")?;
        let id = container_id(&pod, part.container())?;
        // The daemon shares the machine's PID namespace, so its process is not PID 1 there.
        let process = process::in_container(&id)
            .into_iter()
            .min_by_key(|process| process.start);
        let process = process.with_context(|| format!("{part:?} does not run"))?;
        Ok((pod, process))
    }

    /// The pod of the replica that holds the Lease.
    pub(crate) async fn leader(&self) -> Result<String> {
        let leases: Api<Lease> = Api::namespaced(self.access.client.clone(), NAMESPACE);
        let spec = leases.get("lockstep-control-plane").await?.spec;
        let holder = spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let (pod, _) = holder.rsplit_once('_').context("there is no leader")?;
        Ok(pod.to_owned())
    }

    /// The pods of the control plane, and those that are ready and not being deleted.
    pub(crate) async fn replicas(&self) -> Result<(Vec<Pod>, Vec<Pod>)> {
        let api: Api<Pod> = Api::namespaced(self.access.client.clone(), NAMESPACE);
        let pods = api.list(&Part::ControlPlane.pods()).await?.items;
        let is_ready = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && container_status(pod, Part::ControlPlane.container()).is_some_and(|status| status.ready)
        };
        let ready = pods.iter().filter(is_ready).cloned().collect();
        Ok((pods, ready))
    }

    /// The address of a part's pod.
    pub(super) async fn address(&self, part: Part) -> Result<String> {
        let (pod, _) = self.part(part).await?;
        pod.status.and_then(|status| status.pod_ip).context("no address")
    }

    /// The recent logs of the parts.
    pub(crate) async fn logs(&self) -> String {
        let mut text = String::new();
        for component in ["control-plane", "node-daemon"] {
            let said = self
                .log(component, "150")
                .await
                .unwrap_or_else(|error| format!("{error:#}"));
            text.push_str(&format!("--- the end of the log of the {component}\n{said}\n"));
        }
        text
    }

    /// The whole logs of the current pods of this kind of part, on all nodes.
    pub(crate) async fn whole_log(&self, part: Part) -> Result<String> {
        self.log(part.container(), "-1").await
    }

    /// The last `tail` lines of the log of a component.
    async fn log(&self, component: &str, tail: &str) -> Result<String> {
        let labels = format!("app.kubernetes.io/component={component}");
        let args = [
            "--namespace",
            NAMESPACE,
            "logs",
            "--selector",
            &labels,
            "--prefix",
            "--tail",
            tail,
        ];
        self.access.kubectl(&args, "").await
    }
}

/// Puts the images of the product and of the cases on every node that lacks them.
async fn load_images(cluster: &Cluster, build: &Build) -> Result<()> {
    for image in [&build.control_plane, &build.node_daemon, &entrypoint()?] {
        cluster.load_image(image).await?;
    }
    Ok(())
}

async fn helm(cluster: &Cluster, build: &Build, values: &[&str]) -> Result<()> {
    let Build {
        chart,
        control_plane,
        node_daemon,
    } = build;
    let mut command = tokio::process::Command::new(cluster.tools().path("helm")?);
    let (repository, tag) = control_plane
        .name
        .rsplit_once(':')
        .context("an image without a tag")?;
    let (daemon, _) = node_daemon
        .name
        .rsplit_once(':')
        .context("an image without a tag")?;
    command
        .args(["upgrade", "--install", "lockstep"])
        .arg(chart)
        .args([
            "--namespace",
            NAMESPACE,
            "--create-namespace",
            "--wait",
            "--timeout",
            "300s",
        ])
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig());
    // On a kept cluster, a new build must get new pods.
    let build = newest(&[control_plane, node_daemon])?;
    for value in [
        "image.registry=".to_owned(),
        "image.pullPolicy=Never".to_owned(),
        format!("image.repository={repository}"),
        format!("image.tag={tag}"),
        format!("nodeDaemon.image.repository={daemon}"),
        "controller.logFormat=text".to_owned(),
        "nodeDaemon.logFormat=text".to_owned(),
        format!("controller.podAnnotations.build=b{build}"),
        format!("nodeDaemon.podAnnotations.build=b{build}"),
    ] {
        command.args(["--set", &value]);
    }
    for value in values {
        command.args(["--set", value]);
    }
    let output = command.output().await?;
    if !output.status.success() {
        let pods = cluster
            .kubectl(["--namespace", NAMESPACE, "describe", "pods"])
            .await?;
        bail!("helm: {}\n{pods}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// When the newest of the images' files was made, in milliseconds since the Unix epoch.
fn newest(images: &[&Image]) -> Result<u128> {
    let mut newest = UNIX_EPOCH;
    for entry in images.iter().flat_map(|image| image.files.values()) {
        if let image::Entry::File { source, .. } = entry {
            newest = newest.max(fs::metadata(PathBuf::from(source))?.modified()?);
        }
    }
    Ok(newest.duration_since(UNIX_EPOCH)?.as_millis())
}

/// An image whose ENTRYPOINT is the worker. It has words in CMD that the worker logs, and a WORKDIR
/// and a USER of its own.
fn entrypoint() -> Result<Image> {
    let script = r#"echo "attempt $LOCKSTEP_RESTART_ATTEMPT"; echo "words: $*"; exec sleep 1000000"#;
    Ok(image::busybox()?
        .named("localhost/entrypoint:1")
        .entrypoint(["/bin/sh", "-c", script, "worker"])
        .cmd(["of the", "image"])
        .workdir("/srv")
        .user("1234:5678"))
}
