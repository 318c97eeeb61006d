//! Ray's resources as they are kept: as text, so that nobody's take more memory than they have bytes. One that cannot be read keeps no other from being read.

use std::fmt::Debug;
use std::marker::PhantomData;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use lockstep_api::ray::{
    RayCluster, RayClusterSpec, RayClusterStatus, RayCronJob, RayCronJobSpec, RayCronJobStatus, RayJob,
    RayJobSpec, RayJobStatus,
};
use lockstep_core::extent::Extent;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};

use crate::unfit;
use crate::watch::kept::same_kind_as;
use crate::watch::parts::Parts;

#[cfg(test)]
mod tests;

/// What more than this is read of takes turns.
const LARGE: Extent = Extent {
    objects: 1_024,
    elements: 8_192,
};

/// One of Ray's kinds.
pub(super) trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Send + Sync + 'static
{
    /// What is asked for.
    type Spec: DeserializeOwned + Default;
    /// What is observed.
    type Status: DeserializeOwned + Serialize;

    /// An object of these parts.
    fn of(metadata: ObjectMeta, spec: Self::Spec, status: Option<Self::Status>) -> Self;

    /// Whether it states that somebody else looks after it.
    fn is_others(&self) -> bool;
}

macro_rules! kind {
    ($kind:ident, $spec:ty, $status:ty) => {
        impl Kind for $kind {
            type Spec = $spec;
            type Status = $status;

            fn of(metadata: ObjectMeta, spec: $spec, status: Option<$status>) -> Self {
                Self {
                    metadata,
                    spec,
                    status,
                }
            }

            fn is_others(&self) -> bool {
                self.managed_by_another().is_some()
            }
        }
    };
}

kind!(RayCluster, RayClusterSpec, RayClusterStatus);
kind!(RayJob, RayJobSpec, RayJobStatus);
kind!(RayCronJob, RayCronJobSpec, RayCronJobStatus);

/// An object in a cache. Reading it parses it.
#[derive(Clone, Debug)]
pub(super) struct Packed<K> {
    metadata: ObjectMeta,
    /// `{"spec": …, "status": …}`, as far as it can be read.
    text: Box<[u8]>,
    is_large: bool,
    /// The field that cannot be read, and what is wrong with it.
    unfit: Option<Box<str>>,
    kind: PhantomData<fn() -> K>,
}

#[derive(Deserialize)]
struct Body<Spec, Status> {
    spec: Spec,
    status: Option<Status>,
}

/// What is known of an object that cannot be read: who looks after it, and its status, if that can be read.
#[derive(Deserialize, Serialize)]
struct Rest<Status> {
    #[serde(default)]
    spec: Claim,
    status: Option<Status>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Claim {
    managed_by: Option<String>,
}

impl<K: Kind> Packed<K> {
    /// The object, or what can be read of it: always its metadata, its status and who looks after it nearly so.
    pub(super) fn read(&self) -> K {
        let (spec, status) = parsed::<K>(&self.text).unwrap_or_default();
        K::of(self.metadata.clone(), spec, status)
    }

    /// The same without its spec.
    pub(super) fn without_spec(&self) -> K {
        let body = serde_json::from_slice::<Body<IgnoredAny, K::Status>>(&self.text);
        let status = body.ok().and_then(|body| body.status);
        K::of(self.metadata.clone(), K::Spec::default(), status)
    }

    /// Which field cannot be read, and what is wrong with it.
    pub(super) fn unfit(&self) -> Option<&str> {
        self.unfit.as_deref()
    }

    /// Whether reading it takes much memory.
    pub(super) fn is_large(&self) -> bool {
        self.is_large
    }
}

type SpecAndStatus<K> = (<K as Kind>::Spec, Option<<K as Kind>::Status>);

fn parsed<K: Kind>(text: &[u8]) -> serde_json::Result<SpecAndStatus<K>> {
    let body: Body<K::Spec, K::Status> = serde_json::from_slice(text)?;
    Ok((body.spec, body.status))
}

/// Why it cannot be read, if it cannot.
fn unfit<K: Kind>(parts: &Parts) -> Option<String> {
    for (field, extent) in [("spec", parts.spec), ("status", parts.status)] {
        if extent.exceeds(Extent::MOST) {
            return Some(format!("{field}: {}", extent.sentence(Extent::MOST)));
        }
    }
    let mut text = serde_json::Deserializer::from_slice(&parts.text);
    let read: Result<Body<K::Spec, K::Status>, _> = serde_path_to_error::deserialize(&mut text);
    read.err().map(|error| unfit::sentence(&error))
}

/// The text of what can be read of it.
fn rest<K: Kind>(parts: &Parts) -> Option<Vec<u8>> {
    let whole = serde_json::from_slice::<Rest<K::Status>>(&parts.text);
    let whole = whole.ok().filter(|_| !parts.status.exceeds(Extent::MOST));
    let known = whole.or_else(|| {
        let Rest { spec, .. } = serde_json::from_slice::<Rest<IgnoredAny>>(&parts.text).ok()?;
        Some(Rest { spec, status: None })
    });
    serde_json::to_vec(&known?).ok()
}

impl<'de, K: Kind> Deserialize<'de> for Packed<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = Parts::deserialize(deserializer)?;
        let unfit = unfit::<K>(&parts);
        let is_large = unfit.is_none() && parts.spec.plus(parts.status).exceeds(LARGE);
        let text = match unfit {
            None => parts.text,
            Some(_) => rest::<K>(&parts).unwrap_or_default().into(),
        };
        Ok(Self {
            metadata: parts.metadata,
            text,
            is_large,
            unfit: unfit.map(String::into_boxed_str),
            kind: PhantomData,
        })
    }
}

impl<K: Kind> Resource for Packed<K> {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    same_kind_as!(K);

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
