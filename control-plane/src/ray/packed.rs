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
use lockstep_core::ray::names;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::turns::{NoTurn, Turn, Turns};
use crate::huge::{self, Huge};
use crate::unfit;
use crate::watch::kept::same_kind_as;
use crate::watch::parts::Parts;
use crate::watch::room::{Weighs, bytes_of};

#[cfg(test)]
mod tests;

/// Larger objects take turns: reading one of these takes up to 1 MB.
const LARGE: Extent = Extent {
    objects: 256,
    elements: 2_048,
};

/// Of still larger ones few are read at a time. One that may be written now takes 12 MB, one of before twice that, and what is made of it as much once more.
const HUGE: Extent = Extent {
    objects: 2_048,
    elements: 16_384,
};
/// Large objects, of all kinds, that are read at the same time, and of these huge ones: one of a namespace.
const LARGE_AT_ONCE: usize = 4;
const HUGE_AT_ONCE: usize = 2;

/// How much memory reading an object takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Usual,
    Large,
    Huge,
}

impl Size {
    fn of(extent: Extent) -> Self {
        if extent.exceeds(HUGE) {
            Self::Huge
        } else if extent.exceeds(LARGE) {
            Self::Large
        } else {
            Self::Usual
        }
    }
}

/// Turns of objects that take much memory while they are read.
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
    /// What is asked for.
    type Spec: DeserializeOwned + Default;
    /// What is observed.
    type Status: DeserializeOwned + Serialize;

    /// An object of these parts.
    fn of(metadata: ObjectMeta, spec: Self::Spec, status: Option<Self::Status>) -> Self;

    /// A spec that says nothing else.
    fn with(brief: Brief) -> Self::Spec;

    /// Whether it states that somebody else looks after it.
    fn is_others(&self) -> bool;

    /// Port of the dashboard, which RayJobs ask for without reading the rest of a cluster's spec.
    fn dashboard_port(&self) -> Option<u16>;
}

macro_rules! kind {
    ($kind:ident, $spec:ident, $status:ty, $with:expr, $port:expr) => {
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

            fn dashboard_port(&self) -> Option<u16> {
                $port(self)
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
    |cluster| Some(names::dashboard_port(cluster))
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
    |_| None
);
kind!(
    RayCronJob,
    RayCronJobSpec,
    RayCronJobStatus,
    |brief: Brief| RayCronJobSpec {
        managed_by: brief.managed_by,
        ..RayCronJobSpec::default()
    },
    |_| None
);

/// An object in a cache. Reading it parses it.
#[derive(Clone, Debug)]
pub(super) struct Packed<K> {
    metadata: ObjectMeta,
    /// `{"spec": …, "status": …}`, as far as it can be read.
    text: Box<[u8]>,
    size: Size,
    dashboard_port: Option<u16>,
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

/// What is known of an object that cannot be read: who looks after it, and its status, if that can be read.
#[derive(Deserialize, Serialize)]
struct Rest<Status> {
    #[serde(default)]
    spec: Brief,
    status: Option<Status>,
}

/// What is read of a spec where no more is wanted, or can be read.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Brief {
    #[serde(deserialize_with = "string", skip_serializing_if = "Option::is_none")]
    managed_by: Option<String>,
    /// Of a RayJob.
    #[serde(deserialize_with = "string", skip_serializing_if = "Option::is_none")]
    job_id: Option<String>,
}

/// A string; none where there is something else.
fn string<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Box::<RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(text.get()).ok())
}

impl<K: Kind> Packed<K> {
    /// The object, or what can be read of it: always its metadata, its status and who looks after it nearly so.
    pub(super) fn read(&self) -> K {
        let (spec, status) = parsed::<K>(&self.text).unwrap_or_default();
        K::of(self.metadata.clone(), spec, status)
    }

    /// The same without its spec, but for what little there is of it in a [`Brief`].
    pub(super) fn without_spec(&self) -> K {
        let read = serde_json::from_slice::<Rest<K::Status>>(&self.text);
        let Rest { spec, status } = read.unwrap_or(Rest {
            spec: Brief::default(),
            status: None,
        });
        K::of(self.metadata.clone(), K::with(spec), status)
    }

    /// Which field cannot be read, and what is wrong with it.
    pub(super) fn unfit(&self) -> Option<&str> {
        self.unfit.as_deref()
    }

    /// Port of a cluster's dashboard.
    pub(super) fn dashboard_port(&self) -> Option<u16> {
        self.dashboard_port
    }

    /// The turn to read it, where nothing else of this process may be read meanwhile.
    pub(super) async fn alone(&self) -> Option<Huge> {
        match self.size {
            Size::Huge => Some(huge::turn().await),
            Size::Usual | Size::Large => None,
        }
    }

    /// A turn to read it, where that takes much memory.
    ///
    /// # Errors
    /// It needs one, and its namespace has as many as it may.
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

/// Reads all of it.
///
/// # Errors
/// The field that cannot be read, and what is wrong with it.
fn read<K: Kind>(parts: &Parts) -> Result<K, String> {
    for (field, extent) in [("spec", parts.spec), ("status", parts.status)] {
        if extent.exceeds(Extent::MOST) {
            return Err(format!("{field}: {}", extent.sentence(Extent::MOST)));
        }
    }
    // Nearly all can be read, and to keep track of where it stands costs a parser half its time again.
    let (spec, status) = parsed::<K>(&parts.text).or_else(|_| {
        let mut text = serde_json::Deserializer::from_slice(&parts.text);
        let read: Result<Body<K::Spec, K::Status>, _> = serde_path_to_error::deserialize(&mut text);
        read.map(|body| (body.spec, body.status))
            .map_err(|error| unfit::sentence(&error))
    })?;
    Ok(K::of(ObjectMeta::default(), spec, status))
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
        let read = read::<K>(&parts);
        let size = match read {
            Ok(_) => Size::of(parts.spec.plus(parts.status)),
            Err(_) => Size::Usual,
        };
        let (dashboard_port, unfit) = match read {
            Ok(object) => (object.dashboard_port(), None),
            // Where it runs all the same: of one that was begun before, who asks must not think that nobody answers.
            Err(error) => {
                let usual = K::of(ObjectMeta::default(), K::Spec::default(), None);
                (usual.dashboard_port(), Some(error))
            }
        };
        let text = match unfit {
            None => parts.text,
            Some(_) => rest::<K>(&parts).unwrap_or_default().into(),
        };
        Ok(Self {
            metadata: parts.metadata,
            text,
            size,
            dashboard_port,
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
