//! What a demo makes and removes, and how it kills a worker.

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

/// Bytes of what a command says that failed.
const MAX_STDERR: u64 = 1024;

/// The API server has refused to make something, so nothing was made.
#[derive(Debug)]
pub(crate) struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl Cluster {
    /// The installation, as far as a demo needs it.
    pub(crate) async fn installed(&self) -> Installed {
        Installed {
            now: Timestamp::now(),
            namespace: self.system.clone(),
            jobset_crd: fetched(self.jobset_crd().await),
            lease: fetched(self.lease().await),
            daemons: fetched(self.daemon_pods().await),
        }
    }

    /// Makes this cluster's namespace.
    pub(crate) async fn make_namespace(&self) -> Result<()> {
        let name = &self.namespace;
        let labels = json!({"app.kubernetes.io/part-of": "lockstep-demo"});
        let namespace = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
        let api: Api<Namespace> = Api::all(self.client.clone());
        let what = format!("make namespace {name}");
        make(&what, api.create(&PostParams::default(), &namespace))
            .await
            .context("a namespace that you may use can be named by -n")?;
        Ok(())
    }

    /// Makes a JobSet in it.
    pub(crate) async fn make_jobset(&self, manifest: Value) -> Result<()> {
        let jobset: JobSet = serde_json::from_value(manifest)?;
        let what = format!("make JobSet {}/{}", self.namespace, jobset.name());
        let api: Api<JobSet> = self.api(&Scope::Namespace);
        make(&what, api.create(&PostParams::default(), &jobset)).await
    }

    /// Removes this cluster's namespace, and all that is in it with it. Whether it was there.
    pub(crate) async fn remove_namespace(&self) -> Result<bool> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let name = &self.namespace;
        gone(
            &format!("remove namespace {name}"),
            api.delete(name, &DeleteParams::background()),
        )
        .await
    }

    /// Removes a JobSet, and its Jobs and pods with it. Whether it was there.
    pub(crate) async fn remove_jobset(&self, name: &str) -> Result<bool> {
        let api: Api<JobSet> = self.api(&Scope::Namespace);
        let what = format!("remove JobSet {}/{name}", self.namespace);
        gone(&what, api.delete(name, &DeleteParams::background())).await
    }

    /// Kills the work of a worker of the demo, from within its container.
    pub(crate) async fn kill_work(&self, pod: &str) -> Result<()> {
        let what = format!("kill the worker in pod {}/{pod}", self.namespace);
        let api: Api<Pod> = self.api(&Scope::Namespace);
        let how = AttachParams::default()
            .container(CONTAINER)
            .stdout(false)
            .stderr(true);
        let run = async {
            let mut process = api.exec(pod, KILL, &how).await?;
            let mut said = String::new();
            if let Some(stderr) = process.stderr() {
                // It is closed when the command has ended. A few bytes say enough.
                let _ = stderr.take(MAX_STDERR).read_to_string(&mut said).await;
            }
            let status = match process.take_status() {
                Some(status) => status.await,
                None => None,
            };
            Ok((status, said))
        };
        let (ended, said) = answer(&what, run)
            .await
            .map_err(|error| anyhow!("{error:#} (this takes the rights to get and to create pods/exec)"))?;
        match ended {
            Some(status) if status.status.as_deref() == Some("Success") => Ok(()),
            Some(status) => bail!("{what}: {} {}", status.message.unwrap_or_default(), said.trim()),
            None => Err(anyhow!("{what}: nothing was heard of the command")),
        }
    }
}

/// Waits for the answer to a creation, and keeps a refusal apart from what may have been made all the same.
async fn make<T>(what: &str, creation: impl Future<Output = kube::Result<T>>) -> Result<()> {
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

/// Waits for the answer to a removal. What is not there is removed.
async fn gone<T>(what: &str, removal: impl Future<Output = kube::Result<T>>) -> Result<bool> {
    let removal = async {
        match removal.await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            done => done.map(|_| true),
        }
    };
    answer(what, removal).await
}
