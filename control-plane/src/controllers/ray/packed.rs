//! Ray's resources as they are cached: as text, so that they take no more memory than their size.
//! An unreadable object does not affect others.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use lockstep_api::ray::{
    RayCluster, RayClusterSpec, RayClusterStatus, RayCronJob, RayCronJobSpec, RayCronJobStatus, RayJob,
    RayJobSpec, RayJobStatus,
};
use lockstep_core::common::extent::Extent;
use lockstep_core::ray::{dashboard_port, names};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::turns::{NoTurn, Turn, Turns};
use crate::k8s::decode_error;
use crate::k8s::huge_lock::{self, Huge};
use crate::k8s::watch::cache_entry::same_kind_as;
use crate::k8s::watch::namespace_budget::{Weighs, bytes_of};
use crate::k8s::watch::packed_parts::Parts;

#[cfg(test)]
mod tests;

/// Larger objects need a turn to be read. Reading an object of this size takes up to 1 MB.
const LARGE: Extent = Extent {
    objects: 256,
    elements: 2_048,
};

/// The most large objects of all kinds that are read at the same time, and the most of these that
/// may be huge. A namespace has one.
const LARGE_AT_ONCE: usize = 4;
const HUGE_AT_ONCE: usize = 2;

/// How much memory an object takes while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Usual,
    Large,
    Huge,
}

impl Size {
    fn of(extent: Extent) -> Self {
        if extent.exceeds(huge_lock::FROM) {
            Self::Huge
        } else if extent.exceeds(LARGE) {
            Self::Large
        } else {
            Self::Usual
        }
    }
}

/// Turns for objects that take much memory while they are read.
#[derive(Clone)]
pub(super) struct LargeTurns {
    large: Turns,
    huge: Turns,
}

impl Default for LargeTurns {
    fn default() -> Self {
        Self {
            large: Turns::new(LARGE_AT_ONCE),
            huge: Turns::new(HUGE_AT_ONCE),
        }
    }
}

/// One of Ray's kinds.
pub(super) trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Send + Sync + 'static
{
    /// The spec.
    type Spec: DeserializeOwned + Default;
    /// The status.
    type Status: DeserializeOwned + Serialize;

    /// An object of these parts.
    fn of(metadata: ObjectMeta, spec: Self::Spec, status: Option<Self::Status>) -> Self;

    /// An otherwise empty spec with these fields.
    fn with(brief: Brief) -> Self::Spec;

    /// True if the object names another controller that manages it.
    fn is_others(&self) -> bool;

    /// The parts of the spec that are needed without parsing the rest.
    fn extract(name: &str, spec: &Self::Spec) -> Extract;
}

/// The parsed parts of a spec that are kept beside its text. Some kinds have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extract {
    /// Port of a cluster's dashboard.
    pub(super) dashboard_port: Option<u16>,
    /// Name of the JobSet to create for a cluster.
    pub(super) jobset: Option<Box<str>>,
}

macro_rules! kind {
    ($kind:ident, $spec:ident, $status:ty, $with:expr, $extract:expr) => {
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

            fn with(brief: Brief) -> $spec {
                $with(brief)
            }

            fn is_others(&self) -> bool {
                self.managed_by_another().is_some()
            }

            fn extract(name: &str, spec: &$spec) -> Extract {
                $extract(name, spec)
            }
        }
    };
}

kind!(
    RayCluster,
    RayClusterSpec,
    RayClusterStatus,
    |brief: Brief| RayClusterSpec {
        managed_by: brief.managed_by,
        ..RayClusterSpec::default()
    },
    |name, spec| Extract {
        dashboard_port: Some(dashboard_port(spec)),
        jobset: Some(names::jobset(name, spec).into()),
    }
);
kind!(
    RayJob,
    RayJobSpec,
    RayJobStatus,
    |brief: Brief| RayJobSpec {
        managed_by: brief.managed_by,
        job_id: brief.job_id.unwrap_or_default(),
        ..RayJobSpec::default()
    },
    |_, _| Extract::default()
);
kind!(
    RayCronJob,
    RayCronJobSpec,
    RayCronJobStatus,
    |brief: Brief| RayCronJobSpec {
        managed_by: brief.managed_by,
        ..RayCronJobSpec::default()
    },
    |_, _| Extract::default()
);

/// A cached object. Reading it parses it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Packed<K> {
    metadata: ObjectMeta,
    /// `{"spec": …, "status": …}`, as far as they can be read; shared by its clones.
    text: Arc<[u8]>,
    size: Size,
    extract: Extract,
    /// The field that cannot be read, and what is wrong with it.
    unfit: Option<Box<str>>,
    kind: PhantomData<fn() -> K>,
}

#[derive(Deserialize)]
struct Body<Spec, Status> {
    #[serde(default)]
    spec: Spec,
    status: Option<Status>,
}

/// The readable part of an unreadable object: the controller that manages it, and its status if
/// that is readable.
#[derive(Deserialize, Serialize)]
struct Rest<Status> {
    #[serde(default)]
    spec: Brief,
    status: Option<Status>,
}

/// The part of a spec that is read if the rest is not needed, or not readable.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Brief {
    #[serde(deserialize_with = "string", skip_serializing_if = "Option::is_none")]
    managed_by: Option<String>,
    /// Only for a RayJob.
    #[serde(deserialize_with = "string", skip_serializing_if = "Option::is_none")]
    job_id: Option<String>,
}

/// A string, or none if the field is something else.
fn string<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Box::<RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(text.get()).ok())
}

impl<K: Kind> Packed<K> {
    /// The object, or its readable part: always its metadata, and nearly always its status and the
    /// controller that manages it.
    pub(super) fn read(&self) -> K {
        let (spec, status) = parsed::<K>(&self.text).unwrap_or_default();
        K::of(self.metadata.clone(), spec, status)
    }

    /// The object without its spec, apart from the fields of a [`Brief`].
    pub(super) fn without_spec(&self) -> K {
        let read = serde_json::from_slice::<Rest<K::Status>>(&self.text);
        let Rest { spec, status } = read.unwrap_or(Rest {
            spec: Brief::default(),
            status: None,
        });
        K::of(self.metadata.clone(), K::with(spec), status)
    }

    /// The unreadable field, and what is wrong with it.
    pub(super) fn unfit(&self) -> Option<&str> {
        self.unfit.as_deref()
    }

    /// The parsed parts of its spec.
    pub(super) fn extract(&self) -> &Extract {
        &self.extract
    }

    /// True if no other huge object may be read at the same time.
    pub(super) fn is_huge(&self) -> bool {
        self.size == Size::Huge
    }

    /// The lock that reading it needs if it is huge.
    pub(super) async fn alone(&self) -> Option<Huge> {
        huge_lock::turn_if(self.is_huge()).await
    }

    /// A turn to read it, if that takes much memory.
    ///
    /// # Errors
    /// It needs a turn, and its namespace has as many as it may have.
    pub(super) fn turn(&self, turns: &LargeTurns) -> Result<Option<Turn>, NoTurn> {
        let turns = match self.size {
            Size::Usual => return Ok(None),
            Size::Large => &turns.large,
            Size::Huge => &turns.huge,
        };
        let namespace = self.metadata.namespace.as_deref().unwrap_or_default();
        turns.take(namespace).map(Some).ok_or(NoTurn)
    }
}

type SpecAndStatus<K> = (<K as Kind>::Spec, Option<<K as Kind>::Status>);

fn parsed<K: Kind>(text: &[u8]) -> serde_json::Result<SpecAndStatus<K>> {
    let body: Body<K::Spec, K::Status> = serde_json::from_slice(text)?;
    Ok((body.spec, body.status))
}

/// Parses the whole object.
///
/// # Errors
/// The field that cannot be read, and what is wrong with it.
fn read<K: Kind>(parts: &Parts) -> Result<K::Spec, String> {
    for (field, extent) in [("spec", parts.spec), ("status", parts.status)] {
        if extent.exceeds(Extent::MOST) {
            return Err(format!("{field}: {}", extent.sentence(Extent::MOST)));
        }
    }
    // Nearly all objects are readable, and tracking the position makes parsing much slower.
    let (spec, _) = parsed::<K>(&parts.text).or_else(|_| {
        let mut text = serde_json::Deserializer::from_slice(&parts.text);
        let read: Result<Body<K::Spec, K::Status>, _> = serde_path_to_error::deserialize(&mut text);
        read.map(|body| (body.spec, body.status))
            .map_err(|error| decode_error::sentence(&error))
    })?;
    Ok(spec)
}

/// The text of the readable part.
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
        let read = read::<K>(&parts);
        let size = match read {
            Ok(_) => Size::of(parts.spec.plus(parts.status)),
            Err(_) => Size::Usual,
        };
        let (spec, unfit) = match read {
            Ok(spec) => (spec, None),
            // The defaults still have the port of a dashboard, because a running one must not look
            // dead.
            Err(error) => (K::Spec::default(), Some(error)),
        };
        let extract = K::extract(parts.metadata.name.as_deref().unwrap_or_default(), &spec);
        drop(spec);
        let text = match unfit {
            None => parts.text,
            Some(_) => rest::<K>(&parts).unwrap_or_default().into(),
        };
        Ok(Self {
            metadata: parts.metadata,
            text,
            size,
            extract,
            unfit: unfit.map(String::into_boxed_str),
            kind: PhantomData,
        })
    }
}

impl<K: Kind> Weighs for Packed<K> {
    fn bytes(&self) -> usize {
        let unfit = self.unfit.as_deref().map_or(0, str::len);
        [self.text.len(), unfit]
            .into_iter()
            .fold(bytes_of(&self.metadata), usize::saturating_add)
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
