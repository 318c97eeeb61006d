//! The Jobs of submitters and the Services of heads as they are cached: as text, with only the
//! fields that are needed.

use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::{Job, JobSpec, JobStatus};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::{Resource, ResourceExt};
use lockstep_api::ray::{RayCluster, RayJob, keys};
use serde::{Deserialize, Serialize};

use super::packed::Packed;
use crate::k8s::watch::cache_entry::{known_by_name, same_kind_as};
use crate::k8s::watch::lean::{Lean, Meta, Slim};
use crate::k8s::watch::namespace_budget::Weighs;

/// A kind of object that belongs to one of Ray's resources.
pub(super) trait Belongs: Slim + Serialize {
    /// The kind of its owner.
    type Owner;
    /// The object.
    type Object: Resource<DynamicType = ()>;

    /// The name of its owner, from its labels.
    fn owner(&self) -> Option<&str>;

    /// The object with only the fields that are needed.
    fn into_object(self) -> Self::Object;
}

/// Gives a wrapper the API kind that it wraps.
macro_rules! wraps {
    ($wrapper:ident, $kind:ty) => {
        impl Resource for $wrapper {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            same_kind_as!($kind);

            fn meta(&self) -> &ObjectMeta {
                &self.0.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.0.metadata
            }
        }
    };
}

/// The Job of a submitter.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Submitter(Job);

wraps!(Submitter, Job);

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SeenSubmitter {
    metadata: Meta,
    spec: SeenJobSpec,
    status: Option<JobStatus>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SeenJobSpec {
    suspend: Option<bool>,
}

impl From<SeenSubmitter> for Submitter {
    fn from(seen: SeenSubmitter) -> Self {
        Self(Job {
            metadata: seen.metadata.into(),
            spec: Some(JobSpec {
                suspend: seen.spec.suspend,
                ..JobSpec::default()
            }),
            status: seen.status,
        })
    }
}

impl Slim for Submitter {
    type Seen = SeenSubmitter;
}

impl Belongs for Submitter {
    type Owner = RayJob;
    type Object = Job;

    fn owner(&self) -> Option<&str> {
        let labels = self.labels();
        let is_job = labels
            .get(keys::ORIGINATED_FROM_CRD)
            .is_some_and(|kind| kind == "RayJob");
        let name = labels.get(keys::ORIGINATED_FROM_NAME).filter(|_| is_job);
        name.map(String::as_str)
    }

    fn into_object(self) -> Job {
        self.0
    }
}

/// The Service of a head.
#[derive(Clone, Debug, Serialize)]
pub(super) struct HeadService(Service);

wraps!(HeadService, Service);

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SeenService {
    metadata: Meta,
    spec: SeenServiceSpec,
}

/// The fields of a Service that its cluster determines, and the address.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SeenServiceSpec {
    r#type: Option<String>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    ports: Option<Vec<SeenPort>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SeenPort {
    name: Option<String>,
    port: i32,
}

impl From<SeenService> for HeadService {
    fn from(seen: SeenService) -> Self {
        let port = |seen: SeenPort| ServicePort {
            name: seen.name,
            port: seen.port,
            ..ServicePort::default()
        };
        Self(Service {
            metadata: seen.metadata.into(),
            spec: Some(ServiceSpec {
                type_: seen.spec.r#type,
                cluster_ip: seen.spec.cluster_ip,
                ports: seen.spec.ports.map(|ports| ports.into_iter().map(port).collect()),
                ..ServiceSpec::default()
            }),
            status: None,
        })
    }
}

impl Slim for HeadService {
    type Seen = SeenService;
}

impl Belongs for HeadService {
    type Owner = RayCluster;
    type Object = Service;

    fn owner(&self) -> Option<&str> {
        self.labels().get(keys::CLUSTER).map(String::as_str)
    }

    fn into_object(self) -> Service {
        self.0
    }
}

/// A cached object that belongs to one of Ray's resources. Reading it parses it.
#[derive(Clone, Debug)]
pub(super) struct Belonging<K> {
    name: Box<str>,
    namespace: Box<str>,
    owner: Option<Box<str>>,
    /// Shared by its clones.
    text: Arc<[u8]>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Belongs> Belonging<K> {
    pub(super) fn of(Lean(object): &Lean<K>) -> Self {
        Self {
            name: object.meta().name.as_deref().unwrap_or_default().into(),
            namespace: object.meta().namespace.as_deref().unwrap_or_default().into(),
            owner: object.owner().map(Into::into),
            // This cannot fail: maps have strings for keys, and numbers are finite.
            text: serde_json::to_vec(object).unwrap_or_default().into(),
            kind: PhantomData,
        }
    }

    /// Parses the object.
    pub(super) fn read(&self) -> Option<K::Object> {
        let Lean(object) = serde_json::from_slice::<Lean<K>>(&self.text).ok()?;
        Some(object.into_object())
    }
}

impl<K: Belongs> Belonging<K>
where
    Packed<K::Owner>: Resource<DynamicType = ()>,
{
    /// Its owner, from its labels.
    pub(super) fn owner(&self) -> Option<ObjectRef<Packed<K::Owner>>> {
        Some(ObjectRef::new(self.owner.as_deref()?).within(&self.namespace))
    }
}

impl<K: Belongs + 'static> Weighs for Belonging<K> {
    fn bytes(&self) -> usize {
        self.text.len().saturating_add(size_of::<Self>())
    }
}

impl<K> PartialEq for Belonging<K> {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            name,
            namespace,
            owner,
            text,
            kind: _,
        } = self;
        *name == other.name && *namespace == other.namespace && *owner == other.owner && *text == other.text
    }
}

impl<K: Belongs> Lookup for Belonging<K> {
    known_by_name!(K, name);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn kept<K: Belongs>(object: &Value) -> Belonging<K> {
        Belonging::of(&serde_json::from_value(object.clone()).expect("an object"))
    }

    #[test]
    fn a_submitter_is_kept_with_the_fields_that_show_its_state() {
        let labels = json!({keys::ORIGINATED_FROM_NAME: "train", keys::ORIGINATED_FROM_CRD: "RayJob"});
        let status = json!({"ready": 1, "active": 1, "terminating": 2,
            "conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]});
        let metadata = json!({"name": "train", "namespace": "a", "labels": labels, "annotations": {keys::JOB_ID: "1"},
            "finalizers": ["foregroundDeletion"], "deletionTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "train", "uid": "u", "controller": true}]});
        let pods = json!({"metadata": {}, "spec": {"containers": [{"name": "c", "env": [{"name": "A", "value": "x".repeat(9_999)}]}]}});
        let job =
            json!({"metadata": metadata, "spec": {"suspend": true, "template": pods}, "status": status});
        let found: Belonging<Submitter> = kept(&job);
        assert!(found.text.len() < 1_500, "{} bytes", found.text.len());
        assert_eq!(found.owner(), Some(ObjectRef::new("train").within("a")));
        let read = serde_json::to_value(found.read()).expect("JSON");
        assert_eq!(read["metadata"], metadata);
        assert_eq!(read["spec"]["suspend"], true);
        assert_eq!(read["status"]["conditions"][0]["reason"], "PodFailurePolicy");
        assert_eq!(read["status"]["terminating"], 2);
    }

    #[test]
    fn a_job_of_another_kind_belongs_to_no_rayjob() {
        let labels = json!({keys::ORIGINATED_FROM_NAME: "train", keys::ORIGINATED_FROM_CRD: "RayService"});
        let found: Belonging<Submitter> =
            kept(&json!({"metadata": {"name": "train", "namespace": "a", "labels": labels}}));
        assert_eq!(found.owner(), None);
    }

    #[test]
    fn a_service_is_kept_with_the_fields_that_are_compared() {
        let metadata = json!({"name": "c-head-svc", "namespace": "a", "labels": {keys::CLUSTER: "c"}, "annotations": {"a": "b"}});
        let spec = json!({"type": "NodePort", "clusterIP": "10.0.0.1", "selector": {"a": "b"}, "sessionAffinity": "None",
            "ports": [{"name": "dashboard", "port": 8265, "protocol": "TCP", "targetPort": 8265}]});
        let service = json!({"metadata": metadata, "spec": spec, "status": {"loadBalancer": {}}});
        let found: Belonging<HeadService> = kept(&service);
        assert_eq!(found.owner(), Some(ObjectRef::new("c").within("a")));
        let read = serde_json::to_value(found.read()).expect("JSON");
        assert_eq!(read["metadata"], metadata);
        let ports = json!([{"name": "dashboard", "port": 8265}]);
        assert_eq!(
            read["spec"],
            json!({"type": "NodePort", "clusterIP": "10.0.0.1", "ports": ports})
        );
        // Kept again, it is the same.
        let again: Belonging<HeadService> = kept(&read);
        assert_eq!(again.text, found.text);
    }
}
