//! A JobSet in the cluster: its workers as the host sees them, and its state in the API.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use serde_json::Value;

use super::access::Namespace;
use super::manifest::CONTAINER;
use super::{Manifest, eventually};
use worker::{index, is_rejected, worker};

mod worker;

pub use worker::{Place, Worker, container_id, container_status, places};

/// How long pods may take to run: the machine is small, and other tests start pods too.
pub const START: Duration = Duration::from_secs(180);
/// How long a restart in place may take before a test fails. Benchmarks measure how long it should
/// take.
pub const RESTART: Duration = Duration::from_secs(90);

/// A JobSet that was applied.
#[derive(Clone)]
pub struct Group {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
}

impl Group {
    /// Applies a JobSet with `kubectl apply`, once the webhooks are reached: right after a rollout,
    /// the Service may still lead to old pods.
    ///
    /// # Errors
    /// What kubectl wrote to standard error.
    pub async fn apply(namespace: &Namespace, manifest: &Manifest) -> Result<Self> {
        let manifest_text = manifest.0.to_string();
        let applied = eventually("the webhooks are reached", START, async || {
            let applied = namespace
                .kubectl_with(&["apply", "--filename", "-"], &manifest_text)
                .await;
            match applied {
                Err(error) if is_unreached_webhook(&error) => Err(error),
                done => Ok(done),
            }
        });
        applied.await??;
        Ok(Self {
            namespace: namespace.clone(),
            name: manifest.name().to_owned(),
        })
    }

    fn jobsets(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("jobset.x-k8s.io", "v1alpha2", "JobSet");
        let resource = ApiResource::from_gvk_with_plural(&kind, "jobsets");
        Api::namespaced_with(
            self.namespace.access.client.clone(),
            &self.namespace.name,
            &resource,
        )
    }

    fn mine(&self) -> ListParams {
        ListParams::default().labels(&format!("jobset.sigs.k8s.io/jobset-name={}", self.name))
    }

    /// The pods, by index.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        let api: Api<Pod> = Api::namespaced(self.namespace.access.client.clone(), &self.namespace.name);
        let mut pods = api.list(&self.mine()).await?.items;
        pods.sort_by_key(index);
        Ok(pods)
    }

    /// The Jobs.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub async fn jobs(&self) -> Result<Vec<Job>> {
        let api: Api<Job> = Api::namespaced(self.namespace.access.client.clone(), &self.namespace.name);
        Ok(api.list(&self.mine()).await?.items)
    }

    /// The status; null if there is none.
    ///
    /// # Errors
    /// If the JobSet does not exist.
    pub async fn status(&self) -> Result<Value> {
        Ok(self.jobsets().get(&self.name).await?.data["status"].clone())
    }

    /// Merges `patch` into the JobSet.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn patch(&self, patch: Value) -> Result<()> {
        self.jobsets()
            .patch(&self.name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// The workers that run now, by index, and for each other pod why its worker does not run.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub async fn workers(&self) -> Result<(Vec<Worker>, Vec<String>)> {
        let (mut workers, mut others) = (Vec::new(), Vec::new());
        for pod in self.pods().await?.iter().filter(|pod| !is_rejected(pod)) {
            match worker(pod) {
                Ok(worker) => workers.push(worker),
                Err(reason) => {
                    let name = pod.metadata.name.as_deref().unwrap_or_default();
                    others.push(format!("{name}: {reason:#}"));
                }
            }
        }
        Ok((workers, others))
    }

    /// Waits until exactly `count` workers run, all at the same generation.
    ///
    /// # Errors
    /// If they do not.
    pub async fn running(&self, count: usize) -> Result<Vec<Worker>> {
        eventually(
            &format!("{count} workers of {} run", self.name),
            START,
            async || {
                let (workers, others) = self.workers().await?;
                ensure!(others.is_empty(), "{}", others.join("; "));
                ensure!(workers.len() == count, "{} run", workers.len());
                let attempts: Vec<_> = workers.iter().map(|worker| worker.attempt).collect();
                ensure!(
                    attempts.windows(2).all(|pair| pair[0] == pair[1]),
                    "their attempts are {attempts:?}"
                );
                Ok(workers)
            },
        )
        .await
    }

    /// Waits until as many workers as `before` run at `generation`, none of them with a process of
    /// `before`.
    ///
    /// # Errors
    /// If they do not within `within`.
    pub async fn at_generation(
        &self,
        before: &[Worker],
        generation: u64,
        within: Duration,
    ) -> Result<Vec<Worker>> {
        eventually(
            &format!("{} new workers run at generation {generation}", before.len()),
            within,
            async || {
                let (workers, others) = self.workers().await?;
                ensure!(others.is_empty(), "{}", others.join("; "));
                ensure!(workers.len() == before.len(), "{} run", workers.len());
                for worker in &workers {
                    let pod = &worker.place.pod;
                    ensure!(
                        before.iter().all(|old| old.process != worker.process),
                        "the worker of {pod} is an old one"
                    );
                    ensure!(
                        worker.attempt == generation,
                        "the worker of {pod} is at {}",
                        worker.attempt
                    );
                }
                Ok(workers)
            },
        )
        .await
    }

    /// [`Self::at_generation`] with all workers in the pods and containers of `before`.
    ///
    /// # Errors
    /// If they do not run in time, or are elsewhere.
    pub async fn restarted_in_place(&self, before: &[Worker], generation: u64) -> Result<Vec<Worker>> {
        let after = self.at_generation(before, generation, RESTART).await?;
        ensure!(
            places(before) == places(&after),
            "pods or containers have changed: {:#?} became {:#?}",
            places(before),
            places(&after)
        );
        for worker in before {
            ensure!(
                !worker.process.is_alive(),
                "an old process of {} is alive",
                worker.place.pod
            );
        }
        Ok(after)
    }

    /// Waits until the status has `value` at `pointer` (RFC 6901). Absent numbers are 0.
    ///
    /// # Errors
    /// If it does not.
    pub async fn status_has(&self, pointer: &str, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        eventually(
            &format!("{pointer} of {} is {value}", self.name),
            RESTART,
            async || {
                let status = self.status().await?;
                let found = status.pointer(pointer).cloned().unwrap_or_else(|| {
                    if value.is_number() {
                        Value::from(0)
                    } else {
                        Value::Null
                    }
                });
                ensure!(found == value, "it is {found}");
                Ok(())
            },
        )
        .await
    }

    /// Waits for a condition to be True, and returns its reason and message.
    ///
    /// # Errors
    /// If it does not become True within `within`.
    pub async fn condition(&self, kind: &str, within: Duration) -> Result<(String, String)> {
        eventually(&format!("{} is {kind}", self.name), within, async || {
            let status = self.status().await?;
            let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions
                .iter()
                .find(|condition| condition["type"] == kind && condition["status"] == "True");
            let Some(found) = found else {
                bail!("conditions are {}", Value::from(conditions))
            };
            let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
            Ok((text("reason"), text("message")))
        })
        .await
    }

    /// The events about the JobSet with this reason.
    ///
    /// # Errors
    /// If the API server does not answer.
    pub async fn events(&self, reason: &str) -> Result<Vec<Event>> {
        let api: Api<Event> = Api::namespaced(self.namespace.access.client.clone(), &self.namespace.name);
        let mut events = api.list(&ListParams::default()).await?.items;
        events.retain(|event| {
            event.reason.as_deref() == Some(reason) && event.involved_object.name.as_ref() == Some(&self.name)
        });
        Ok(events)
    }

    /// Waits for an event about the JobSet with this reason.
    ///
    /// # Errors
    /// If there is none in time.
    pub async fn event(&self, reason: &str) -> Result<Event> {
        eventually(&format!("an event {reason}"), RESTART, async || {
            self.events(reason).await?.pop().context("there is none")
        })
        .await
    }

    /// What `kubectl logs` prints for the worker container of a pod.
    ///
    /// # Errors
    /// What kubectl wrote to standard error.
    pub async fn logs(&self, pod: &str) -> Result<String> {
        self.namespace
            .kubectl(&["logs", pod, "--container", CONTAINER])
            .await
    }

    /// Waits until the log of the pod's worker container has `text`.
    ///
    /// # Errors
    /// If it does not.
    pub async fn logged(&self, pod: &str, text: &str) -> Result<String> {
        eventually(&format!("{pod} logs {text:?}"), RESTART, async || {
            let log = self.logs(pod).await?;
            ensure!(log.contains(text), "the log is {log:?}");
            Ok(log)
        })
        .await
    }
}

/// True if a webhook refused the API server's connection.
fn is_unreached_webhook(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    text.contains("failed calling webhook") && text.contains("connection refused")
}
