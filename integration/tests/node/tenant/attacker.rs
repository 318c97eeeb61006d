//! The attacker: a ServiceAccount that has the ClusterRole `edit`, with all that the chart
//! aggregates to it, in one namespace.
//!
//! Promises: in a phase it sends no more than a bound of requests, few at a time, and none after
//! the end of the phase.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use lockstep_integration::harness::{Access, Namespace, eventually};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until, timeout};

use super::ledger::Ledger;
use crate::support::{READY, Scene};

mod cleaning;

/// Requests under way at once.
const AT_ONCE: usize = 8;
/// Requests of a phase.
const REQUESTS: usize = 20_000;
/// When a request counts as lost.
const ANSWER: Duration = Duration::from_secs(60);
/// Refusals of a phase that are printed.
const TOLD: usize = 5;
/// The name of the ServiceAccount.
const ACCOUNT: &str = "mallory";

/// A kind of objects: its apiVersion and name.
pub(super) type Kind = (&'static str, &'static str);
pub(super) const JOBSET: Kind = ("jobset.x-k8s.io/v1alpha2", "JobSet");
pub(super) const JOB: Kind = ("batch/v1", "Job");
pub(super) const POD: Kind = ("v1", "Pod");
pub(super) const SERVICE: Kind = ("v1", "Service");
pub(super) const RAY_CLUSTER: Kind = ("ray.io/v1", "RayCluster");
pub(super) const RAY_JOB: Kind = ("ray.io/v1", "RayJob");
pub(super) const RAY_CRON_JOB: Kind = ("ray.io/v1", "RayCronJob");

/// How requests ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) requests: usize,
    pub(super) taken: usize,
    pub(super) refused: usize,
    /// Without an answer, or turned away for the load.
    pub(super) lost: usize,
}

/// How one request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Taken,
    /// The API server or a webhook refused it, and says why.
    Refused(String),
    /// There was no answer, or none that says what is wrong with it.
    Lost,
    /// It was not sent, as the phase is over.
    Over,
}

struct Phase {
    until: Instant,
    tally: Tally,
    /// Refusals that were printed.
    told: usize,
}

impl Phase {
    fn until(until: Instant) -> Self {
        Self {
            until,
            tally: Tally::default(),
            told: 0,
        }
    }
}

/// The attacker, and what it may still do in this phase.
pub(super) struct Attacker {
    /// Its namespace, reached with its own rights.
    pub(super) namespace: Namespace,
    /// The names of the nodes that run pods.
    pub(super) nodes: Vec<String>,
    ledger: Arc<Ledger>,
    gate: Semaphore,
    names: AtomicUsize,
    phase: Mutex<Phase>,
    /// Holds its kubeconfig.
    _folder: tempfile::TempDir,
}

impl Attacker {
    /// Creates the namespace, and the account with its rights.
    pub(super) async fn new(scene: &Scene, ledger: Arc<Ledger>) -> Result<Self> {
        let admin = scene.access().namespace("mallory").await?;
        let account = format!("--serviceaccount={}:{ACCOUNT}", admin.name);
        admin.kubectl(&["create", "serviceaccount", ACCOUNT]).await?;
        admin
            .kubectl(&["create", "rolebinding", "edit", "--clusterrole=edit", &account])
            .await?;
        let token = admin
            .kubectl(&["create", "token", ACCOUNT, "--duration=24h"])
            .await?;
        let folder = tempfile::tempdir()?;
        let kubeconfig = folder.path().join("kubeconfig");
        let mut config: Value = serde_yaml_ng::from_str(&std::fs::read_to_string(&admin.access.kubeconfig)?)?;
        config["users"][0]["user"] = json!({"token": token.trim()});
        std::fs::write(&kubeconfig, config.to_string())?;
        let config = Kubeconfig::read_from(&kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        let access = Access {
            client: Client::try_from(config)?,
            kubectl: admin.access.kubectl.clone(),
            kubeconfig,
        };
        let numbers = 1..=scene.product.nodes();
        let attacker = Self {
            namespace: Namespace {
                access,
                name: admin.name,
            },
            nodes: numbers.map(lockstep_integration::cluster::node_name).collect(),
            ledger,
            gate: Semaphore::new(AT_ONCE),
            names: AtomicUsize::new(0),
            phase: Mutex::new(Phase::until(Instant::now())),
            _folder: folder,
        };
        attacker.has_its_rights_and_no_others().await?;
        Ok(attacker)
    }

    async fn has_its_rights_and_no_others(&self) -> Result<()> {
        for resource in [
            "pods",
            "jobs",
            "services",
            "jobsets",
            "rayclusters",
            "rayjobs",
            "raycronjobs",
        ] {
            eventually(&format!("the tenant may create {resource}"), READY, async || {
                let said = self
                    .namespace
                    .kubectl(&["auth", "can-i", "create", resource])
                    .await?;
                ensure!(said.trim() == "yes", "{said}");
                Ok(())
            })
            .await?;
        }
        let others: Api<Pod> = Api::all(self.namespace.access.client.clone());
        let listed = others.list(&ListParams::default().limit(1)).await;
        ensure!(listed.is_err(), "the tenant sees other namespaces");
        Ok(())
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A phase of this length begins. Returns its end.
    pub(super) fn begin(&self, length: Duration) -> Instant {
        let until = Instant::now() + length;
        *self.phase() = Phase::until(until);
        until
    }

    /// The requests of this phase.
    pub(super) fn tally(&self) -> Tally {
        self.phase().tally.clone()
    }

    /// True until the phase is over or its requests are used up.
    pub(super) fn goes_on(&self) -> bool {
        let phase = self.phase();
        Instant::now() < phase.until && phase.tally.requests < REQUESTS
    }

    /// How long the phase goes on.
    pub(super) fn left(&self) -> Duration {
        self.phase().until.saturating_duration_since(Instant::now())
    }

    /// Lets what was created take effect until the phase is over.
    pub(super) async fn rest(&self) {
        let until = self.phase().until;
        sleep_until(until).await;
    }

    /// A name that no other object has.
    pub(super) fn unique(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn api(&self, (version, kind): Kind) -> Api<DynamicObject> {
        let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(
            self.namespace.access.client.clone(),
            &self.namespace.name,
            &resource,
        )
    }

    /// Sends a request, if the phase goes on.
    async fn send<T>(&self, request: impl Future<Output = kube::Result<T>>) -> (Answer, Option<T>) {
        // Never closed.
        let Ok(_permit) = self.gate.acquire().await else {
            return (Answer::Over, None);
        };
        if !self.goes_on() {
            return (Answer::Over, None);
        }
        self.phase().tally.requests += 1;
        let answer = timeout(ANSWER, request).await;
        let mut phase = self.phase();
        match answer {
            Ok(Ok(made)) => {
                phase.tally.taken += 1;
                (Answer::Taken, Some(made))
            }
            Ok(Err(kube::Error::Api(status))) if (400..500).contains(&status.code) && status.code != 429 => {
                phase.tally.refused += 1;
                (Answer::Refused(status.message.clone()), None)
            }
            _ => {
                phase.tally.lost += 1;
                (Answer::Lost, None)
            }
        }
    }

    /// Creates an object. Prints the first refusals of a phase: what is refused attacks nothing.
    pub(super) async fn create(&self, kind: Kind, manifest: Value) -> Result<Answer> {
        let answer = self.post(kind, manifest, false).await?;
        if let Answer::Refused(message) = &answer {
            let mut phase = self.phase();
            phase.told += 1;
            if phase.told <= TOLD {
                println!("     a {} is refused: {message:.200}", kind.1);
            }
        }
        Ok(answer)
    }

    /// Asks what would become of an object.
    pub(super) async fn try_out(&self, kind: Kind, manifest: Value) -> Result<Answer> {
        self.post(kind, manifest, true).await
    }

    async fn post(&self, kind: Kind, mut manifest: Value, dry_run: bool) -> Result<Answer> {
        (manifest["apiVersion"], manifest["kind"]) = (json!(kind.0), json!(kind.1));
        let object: DynamicObject = serde_json::from_value(manifest)?;
        let params = PostParams {
            dry_run,
            ..PostParams::default()
        };
        let api = self.api(kind);
        Ok(self.send(api.create(&params, &object)).await.0)
    }

    /// Creates an object that must be refused, with this text in the message.
    pub(super) async fn must_fail(&self, kind: Kind, manifest: Value, said: &str) -> Result<()> {
        match self.post(kind, manifest, false).await? {
            Answer::Taken => self
                .ledger
                .complain(format!("a {} was taken that must be refused: {said}", kind.1)),
            Answer::Refused(message) if !message.contains(said) => {
                let start: String = message.chars().take(500).collect();
                self.ledger
                    .complain(format!("not refused as {said:?}, but: {start}"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Creates what `make` makes of 0, 1 and so on, several at a time, until the phase is over or
    /// there are `most`. Returns how many were taken.
    pub(super) async fn flood(
        &self,
        kind: Kind,
        most: usize,
        make: impl Fn(usize) -> Value,
    ) -> Result<usize> {
        let numbers = (0..most).take_while(|_| self.goes_on());
        let sent = stream::iter(numbers.map(|number| self.create(kind, make(number))));
        let answers: Vec<Result<Answer>> = sent.buffer_unordered(AT_ONCE).collect().await;
        let mut taken = 0;
        for answer in answers {
            taken += usize::from(answer? == Answer::Taken);
        }
        Ok(taken)
    }

    /// Merges a patch into an object.
    pub(super) async fn patch(&self, kind: Kind, name: &str, patch: Value) -> Answer {
        let api = self.api(kind);
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        self.send(api.patch(name, &params, &patch)).await.0
    }

    /// Deletes an object at once.
    pub(super) async fn delete(&self, kind: Kind, name: &str) -> Answer {
        let api = self.api(kind);
        let params = cleaning::at_once(kind);
        self.send(api.delete(name, &params)).await.0
    }

    /// An object, if the phase goes on and the API server answers.
    pub(super) async fn get(&self, kind: Kind, name: &str) -> Option<Value> {
        let api = self.api(kind);
        let object = self.send(api.get(name)).await.1?;
        serde_json::to_value(object).ok()
    }

    /// The names of the objects of a kind.
    pub(super) async fn names(&self, kind: Kind) -> Vec<String> {
        let api = self.api(kind);
        let listed = self.send(api.list_metadata(&ListParams::default())).await.1;
        let listed = listed.into_iter().flatten();
        listed.filter_map(|object| object.metadata.name).collect()
    }
}
