//! Reads JobSets with their Jobs, pods and events, and writes to JobSets.

use anyhow::{Result, anyhow};
use futures::future::try_join3;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use lockstep_api::{JobSet, annotations, labels};
use serde_json::json;

use super::read::{self, list, list_readable};
use super::{Cluster, answer};
use crate::view::status::Observed;

/// Which JobSets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// This one.
    One(String),
    /// Those of the namespace.
    Namespace,
    /// All.
    Everywhere,
}

impl Cluster {
    pub(super) fn api<K>(&self, scope: &Scope) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        match scope {
            Scope::Everywhere => Api::all(self.client.clone()),
            Scope::One(_) | Scope::Namespace => Api::namespaced(self.client.clone(), &self.namespace),
        }
    }

    /// One JobSet. If it does not exist, the error says so.
    pub(crate) async fn jobset(&self, name: &str) -> Result<JobSet> {
        if let Some(jobset) = self.find_jobset(name).await? {
            return Ok(jobset);
        }
        let what = self.named(name);
        let api: Api<JobSet> = self.api(&Scope::Namespace);
        // Without the CRD, every read fails with 404, too.
        match api.list(&ListParams::default().limit(1)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Err(anyhow!(
                "{what}: this cluster has no CRD of JobSets: `kubectl lockstep check` says what is missing"
            )),
            _ => Err(anyhow!(
                "{what} does not exist (kubectl get jobsets -A lists all; -n names another namespace)"
            )),
        }
    }

    /// One JobSet, or `None` if it does not exist.
    pub(crate) async fn find_jobset(&self, name: &str) -> Result<Option<JobSet>> {
        let api: Api<JobSet> = self.api(&Scope::Namespace);
        answer(&self.named(name), read::get(&api, name)).await
    }

    fn named(&self, jobset: &str) -> String {
        format!("JobSet {}/{jobset}", self.namespace)
    }

    /// JobSets with their Jobs, pods and events, sorted by namespace and name. Groups of the
    /// platform API are not included.
    pub(crate) async fn observe(&self, scope: &Scope) -> Result<Vec<Observed>> {
        let jobsets = match scope {
            Scope::One(name) => vec![self.jobset(name).await?],
            scope => list("JobSets", &self.api::<JobSet>(scope), &ListParams::default()).await?,
        };
        let (children, events) = match scope {
            Scope::One(name) => (
                format!("{}={name}", labels::JOBSET_NAME),
                format!("regarding.kind=JobSet,regarding.name={name}"),
            ),
            _ => (labels::JOBSET_NAME.to_owned(), "regarding.kind=JobSet".to_owned()),
        };
        let children = ListParams::default().labels(&children);
        let (jobs_api, pods_api) = (self.api::<Job>(scope), self.api::<Pod>(scope));
        let (events_api, events_of) = (self.api::<Event>(scope), ListParams::default().fields(&events));
        let (jobs, pods, events) = try_join3(
            list("Jobs", &jobs_api, &children),
            list("pods", &pods_api, &children),
            // Events are optional: not every account may read them.
            async {
                Ok(list_readable("events", &events_api, &events_of)
                    .await
                    .unwrap_or_default())
            },
        )
        .await?;
        let mut seen: Vec<Observed> = jobsets
            .into_iter()
            .map(|jobset| {
                let of_it = |object: &dyn Fn() -> (Option<String>, Option<String>)| {
                    let (namespace, owner) = object();
                    namespace.as_deref() == Some(jobset.ns()) && owner.as_deref() == Some(jobset.name())
                };
                let label = |labels: &std::collections::BTreeMap<String, String>| {
                    labels.get(labels::JOBSET_NAME).cloned()
                };
                Observed {
                    jobs: jobs
                        .iter()
                        .filter(|job| of_it(&|| (job.namespace(), label(job.labels()))))
                        .cloned()
                        .collect(),
                    pods: pods
                        .iter()
                        .filter(|pod| of_it(&|| (pod.namespace(), label(pod.labels()))))
                        .cloned()
                        .collect(),
                    events: events
                        .iter()
                        .filter(|event| {
                            let about = event.regarding.clone().unwrap_or_default();
                            of_it(&|| (about.namespace.clone(), about.name.clone()))
                        })
                        .cloned()
                        .collect(),
                    jobset,
                    group: None,
                }
            })
            .collect();
        seen.sort_by(|a, b| (a.jobset.ns(), a.jobset.name()).cmp(&(b.jobset.ns(), b.jobset.name())));
        Ok(seen)
    }

    /// The events about a JobSet.
    pub(crate) async fn events(&self, jobset: &str) -> Result<Vec<Event>> {
        let about = format!("regarding.kind=JobSet,regarding.name={jobset}");
        let api: Api<Event> = self.api(&Scope::Namespace);
        list_readable("events", &api, &ListParams::default().fields(&about)).await
    }

    /// Requests a restart by an annotation. Fails if the JobSet was recreated under the same name.
    pub(crate) async fn annotate(&self, jobset: &JobSet, token: &str) -> Result<JobSet> {
        let api: Api<JobSet> = self.api(&Scope::Namespace);
        let patch = json!({"metadata": {
            "uid": jobset.uid_str(),
            "annotations": {annotations::RESTART_REQUEST: token},
        }});
        let what = format!("restart JobSet {}/{}", jobset.ns(), jobset.name());
        answer(&what, read::patch(&api, jobset.name(), patch)).await
    }

    /// Writes `spec.suspend`. Fails if the JobSet was recreated under the same name.
    pub(crate) async fn set_suspended(&self, jobset: &JobSet, suspended: bool) -> Result<JobSet> {
        let api: Api<JobSet> = self.api(&Scope::Namespace);
        let patch = json!({"metadata": {"uid": jobset.uid_str()}, "spec": {"suspend": suspended}});
        let verb = if suspended { "suspend" } else { "resume" };
        let what = format!("{verb} JobSet {}/{}", jobset.ns(), jobset.name());
        answer(&what, read::patch(&api, jobset.name(), patch)).await
    }
}
