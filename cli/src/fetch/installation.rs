//! Reads the installation, for `check` and `nodes`.

use anyhow::Result;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use lockstep_api::annotations::CRD_VERSION;
use lockstep_proto::platform::v1 as pb;
use serde_json::Value;

use super::read::list;
use super::{Cluster, answer};
use crate::view::api_error;
use crate::view::check::{Crd, Fetched, Observed, REQUIRED_RIGHTS, Right};

/// Name of the Deployment and of the Lease.
const CONTROL_PLANE: &str = "lockstep-control-plane";
const NODE_DAEMON: &str = "lockstep-node-daemon";
const CRD: &str = "jobsets.jobset.x-k8s.io";
/// Name of the Lease for KubeRay's leader election.
const KUBERAY: &str = "ray-operator-leader";

impl Cluster {
    /// The Lease of the leader.
    pub(crate) async fn lease(&self) -> Result<Option<Lease>> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.system);
        answer("the Lease of the leader", leases.get_opt(CONTROL_PLANE)).await
    }

    /// The replicas of the control plane.
    pub(crate) async fn control_plane_pods(&self) -> Result<Vec<Pod>> {
        self.pods_of("control-plane").await
    }

    /// The pods of the node daemons.
    pub(crate) async fn daemon_pods(&self) -> Result<Vec<Pod>> {
        self.pods_of("node-daemon").await
    }

    async fn pods_of(&self, component: &str) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.system);
        let labels = format!("app.kubernetes.io/name=lockstep,app.kubernetes.io/component={component}");
        list("pods of Lockstep", &pods, &ListParams::default().labels(&labels)).await
    }

    /// The nodes.
    pub(crate) async fn nodes(&self) -> Result<Vec<Node>> {
        list("nodes", &Api::all(self.client.clone()), &ListParams::default()).await
    }

    /// Reads everything about the installation. Failed reads are part of the answer.
    pub(crate) async fn installation(&self, now: Timestamp) -> Observed {
        let client = || self.client.clone();
        let all = ListParams::default();
        let of_system = |name| ListParams::default().fields(&format!("metadata.name={name}"));
        let daemon_sets: Api<DaemonSet> = Api::namespaced(client(), &self.system);
        let maps: Api<ConfigMap> = Api::namespaced(client(), &self.system);
        let services: Api<Service> = Api::namespaced(client(), &self.system);
        let (deployments, mutating, validating, leases) = (
            Api::all(client()),
            Api::all(client()),
            Api::all(client()),
            Api::all(client()),
        );
        let (platform, connected) = self.platform_answers().await.unzip();
        let nodes = self.nodes().await;
        let known = nodes.as_deref().unwrap_or_default();
        let kills_of_whole_containers = self.kills_of_whole_containers(known).await;
        Observed {
            now,
            namespace: self.system.clone(),
            version: self.version().await,
            jobset_crd: fetched(self.jobset_crd().await),
            deployments: fetched(list::<Deployment>("Deployments", &deployments, &all).await),
            control_plane_pods: fetched(self.control_plane_pods().await),
            lease: fetched(self.lease().await),
            hub_ca: fetched(answer("the ConfigMap", maps.get_opt("lockstep-hub-ca")).await),
            mutating: fetched(list("MutatingWebhookConfigurations", &mutating, &all).await),
            validating: fetched(list("ValidatingWebhookConfigurations", &validating, &all).await),
            services: fetched(list("Services", &services, &all).await),
            daemon_set: fetched(answer("the DaemonSet", daemon_sets.get_opt(NODE_DAEMON)).await),
            daemon_pods: fetched(self.daemon_pods().await),
            nodes: fetched(nodes),
            kills_of_whole_containers,
            kuberay: fetched(list("Leases", &leases, &of_system(KUBERAY)).await),
            rights: join_all(REQUIRED_RIGHTS.iter().map(|right| self.may(right))).await,
            platform,
            connected,
        }
    }

    async fn version(&self) -> Fetched<(u32, u32, String)> {
        let info = answer("the API server", self.client.apiserver_version());
        let info = info.await.map_err(|error| format!("{error:#}"))?;
        // Some clusters report a minor version such as `32+`.
        let number = |text: &str| {
            text.trim_end_matches(|c: char| !c.is_ascii_digit())
                .parse()
                .unwrap_or(0)
        };
        Ok((number(&info.major), number(&info.minor), info.git_version))
    }

    /// The CRD of JobSets.
    pub(crate) async fn jobset_crd(&self) -> Result<Option<Crd>> {
        // As a typed object, a schema of this size takes many times the memory.
        let resource = ApiResource::erase::<CustomResourceDefinition>(&());
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let found = answer("the CRD of JobSets", api.get_opt(CRD)).await?;
        Ok(found.map(|definition| crd(&definition)))
    }

    async fn may(&self, right: &Right) -> Fetched<bool> {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let namespace = if right.of_system {
            &self.system
        } else {
            &self.namespace
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(namespace.clone()),
                    verb: text(right.verb),
                    group: text(right.group),
                    resource: text(right.resource),
                    subresource: text(right.subresource),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let review = answer("your rights", api.create(&PostParams::default(), &review)).await;
        let review = review.map_err(|error| format!("{error:#}"))?;
        Ok(review.status.is_some_and(|status| status.allowed))
    }

    /// How the platform API is reached, and the nodes whose daemons are connected. `None` if it may
    /// not be asked.
    async fn platform_answers(&self) -> Option<(Fetched<String>, Vec<pb::Node>)> {
        if !self.may_ask_platform() {
            return None;
        }
        let answered = async {
            let platform = self.platform().await?;
            let groups = platform.groups(&self.namespace).await;
            groups.map_err(|status| anyhow::anyhow!("{}", api_error::words(&status)))?;
            let connected = platform.nodes().await.unwrap_or_default();
            Ok::<_, anyhow::Error>((platform.how, connected))
        };
        Some(match answered.await {
            Ok((how, connected)) => (Ok(how), connected),
            Err(error) => (fetched(Err(error)), Vec::new()),
        })
    }
}

pub(crate) fn fetched<T>(answer: Result<T>) -> Fetched<T> {
    answer.map_err(|error| format!("{error:#}"))
}

fn crd(definition: &DynamicObject) -> Crd {
    let annotations = definition.metadata.annotations.as_ref();
    let conditions = definition.data["status"]["conditions"].as_array();
    let versions = definition.data["spec"]["versions"].as_array();
    let keeps = |version: &Value| {
        let status = &version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"];
        status["inPlaceRestart"].is_object()
    };
    Crd {
        version: annotations.and_then(|all| all.get(CRD_VERSION)).cloned(),
        established: conditions.is_some_and(|all| {
            all.iter()
                .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
        }),
        keeps_in_place: versions.is_some_and(|all| all.iter().any(keeps)),
    }
}
