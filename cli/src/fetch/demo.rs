//! What the demo creates and removes, and how it kills a worker.

use anyhow::{Context as _, Result, anyhow, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, AttachParams, DeleteParams, PostParams};
use lockstep_api::JobSet;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use super::installation::fetched;
use super::jobsets::Scope;
use super::{Cluster, answer, words};
use crate::view::demo::{CONTAINER, Installed, KILL};

/// Bytes that are read from the standard error of a failed command.
const MAX_STDERR: u64 = 1024;

/// The API server has refused to create something, so nothing was created.
#[derive(Debug)]
pub(crate) struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl Cluster {
    /// The parts of the installation that the demo needs.
    pub(crate) async fn installed(&self) -> Installed {
        Installed {
            now: Timestamp::now(),
            namespace: self.system.clone(),
            jobset_crd: fetched(self.jobset_crd().await),
            lease: fetched(self.lease().await),
            daemons: fetched(self.daemon_pods().await),
        }
    }

    /// Creates this cluster's namespace.
    pub(crate) async fn create_namespace(&self) -> Result<()> {
        let name = &self.namespace;
        let labels = json!({"app.kubernetes.io/part-of": "lockstep-demo"});
        let namespace = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
        let api: Api<Namespace> = Api::all(self.client.clone());
        let what = format!("create namespace {name}");
        create(&what, api.create(&PostParams::default(), &namespace))
            .await
            .context("name a namespace that you may use with -n")?;
        Ok(())
    }

    /// Creates a JobSet in this cluster's namespace.
    pub(crate) async fn create_jobset(&self, manifest: Value) -> Result<()> {
        let jobset: JobSet = serde_json::from_value(manifest)?;
        let what = format!("create JobSet {}/{}", self.namespace, jobset.name());
        let api: Api<JobSet> = self.api(&Scope::Namespace);
        create(&what, api.create(&PostParams::default(), &jobset)).await
    }

    /// Removes this cluster's namespace with everything in it. Returns false if it did not exist.
    pub(crate) async fn remove_namespace(&self) -> Result<bool> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let name = &self.namespace;
        remove(
            &format!("remove namespace {name}"),
            api.delete(name, &DeleteParams::background()),
        )
        .await
    }

    /// Removes a JobSet with its Jobs and pods. Returns false if it did not exist.
    pub(crate) async fn remove_jobset(&self, name: &str) -> Result<bool> {
        let api: Api<JobSet> = self.api(&Scope::Namespace);
        let what = format!("remove JobSet {}/{name}", self.namespace);
        remove(&what, api.delete(name, &DeleteParams::background())).await
    }

    /// Kills the process of a worker of the demo, from within its container.
    pub(crate) async fn kill_work(&self, pod: &str) -> Result<()> {
        let what = format!("kill the worker in pod {}/{pod}", self.namespace);
        let api: Api<Pod> = self.api(&Scope::Namespace);
        let how = AttachParams::default()
            .container(CONTAINER)
            .stdout(false)
            .stderr(true);
        let run = async {
            let mut process = api.exec(pod, KILL, &how).await?;
            let mut errors = String::new();
            if let Some(stderr) = process.stderr() {
                // The stream ends with the command.
                let _ = stderr.take(MAX_STDERR).read_to_string(&mut errors).await;
            }
            let status = match process.take_status() {
                Some(status) => status.await,
                None => None,
            };
            Ok((status, errors))
        };
        let (ended, errors) = answer(&what, run)
            .await
            .map_err(|error| anyhow!("{error:#} (this needs the rights to get and to create pods/exec)"))?;
        match ended {
            Some(status) if status.status.as_deref() == Some("Success") => Ok(()),
            Some(status) => bail!("{what}: {} {}", status.message.unwrap_or_default(), errors.trim()),
            None => Err(anyhow!("{what}: the command has no exit status")),
        }
    }
}

/// Creates an object. A refusal is a [`Refused`]; after any other error the object may exist.
async fn create<T>(what: &str, creation: impl Future<Output = kube::Result<T>>) -> Result<()> {
    let creation = async {
        match creation.await {
            Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                Ok(Err(kube::Error::Api(status)))
            }
            done => done.map(|_| Ok(())),
        }
    };
    match answer(what, creation).await? {
        Ok(()) => Ok(()),
        Err(error) => Err(Refused(format!("{what}: {}", words(&error))).into()),
    }
}

/// Removes an object. Returns false if it did not exist.
async fn remove<T>(what: &str, removal: impl Future<Output = kube::Result<T>>) -> Result<bool> {
    let removal = async {
        match removal.await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            done => done.map(|_| true),
        }
    };
    answer(what, removal).await
}
