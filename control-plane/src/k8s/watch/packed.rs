//! JobSets as the cache keeps them: parsed metadata, and spec and status as text. The text takes a
//! fifth of the memory of the parsed object.

use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::annotations::IN_PLACE_TIMEOUT;
use lockstep_api::{JobSet, JobSetSpec, JobSetStatus};
use lockstep_core::common::extent::Extent;
use memchr::memmem;
use serde::{Deserialize, Deserializer};
use thiserror::Error as ThisError;

use super::cache_entry::same_kind_as;
use super::lean::LAST_APPLIED;
use super::namespace_budget::{Weighs, bytes_of};
use super::packed_parts::{Field, Parts, Text};
use crate::k8s::{decode_error, huge_lock};

#[cfg(test)]
mod tests;

/// A JobSet in the cache. Unpacking parses it, and only then shows whether it can be decoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedJobSet {
    metadata: ObjectMeta,
    /// `{"spec": …, "status": …}`, shared by its clones.
    text: Arc<[u8]>,
    /// The number of objects and elements in the spec.
    spec: Extent,
    /// The number of objects and elements in the status.
    status: Extent,
}

/// The JobSet does not fit its schema.
#[derive(Clone, Debug, ThisError, PartialEq, Eq)]
#[error("{0}")]
pub struct Unreadable(String);

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    spec: JobSetSpec,
    status: Option<JobSetStatus>,
}

impl PackedJobSet {
    /// Packs a JobSet from an answer of the API server.
    ///
    /// # Errors
    /// The JobSet cannot be serialized.
    pub fn of(jobset: &JobSet) -> serde_json::Result<Self> {
        let mut metadata = jobset.metadata.clone();
        metadata.managed_fields = None;
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove(LAST_APPLIED);
        }
        let mut text = Text::default();
        text.add(Field::Spec, |text| serde_json::to_writer(text, &jobset.spec))?;
        if let Some(status) = &jobset.status {
            text.add(Field::Status, |text| serde_json::to_writer(text, status))?;
        }
        Ok(text.of(metadata).into())
    }

    /// Its name.
    #[must_use]
    pub fn key(&self) -> ObjectRef<JobSet> {
        let meta = &self.metadata;
        let key = ObjectRef::new(meta.name.as_deref().unwrap_or_default());
        key.within(meta.namespace.as_deref().unwrap_or_default())
    }

    /// A measure for the cost of unpacking, in bytes of usual text.
    pub(super) fn size(&self) -> usize {
        self.text
            .len()
            .max(self.spec.plus(self.status).as_bytes_of_text())
    }

    /// True if unpacking needs the huge-object lock.
    pub(crate) fn is_huge(&self) -> bool {
        self.size() > huge_lock::FROM_BYTES
    }

    /// False if it certainly has no gangs. Most have none, and this is cheaper than parsing.
    pub(super) fn may_have_gangs(&self) -> bool {
        memmem::find(&self.text, b"\"gang\":").is_some()
    }

    /// False if it certainly does not restart in place; true promises nothing.
    pub(super) fn may_restart_in_place(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        // The strategy, or the status of JobSets whose Jobs were created with it.
        annotations.is_some_and(|all| all.contains_key(IN_PLACE_TIMEOUT))
            || memmem::find(&self.text, b"nPlaceRestart").is_some()
    }

    /// Parses the JobSet.
    ///
    /// # Errors
    /// [`Unreadable`] names the wrong field, or says that the JobSet is too large.
    pub fn unpack(&self) -> Result<JobSet, Unreadable> {
        for (field, extent) in [("spec", self.spec), ("status", self.status)] {
            if extent.exceeds(Extent::MOST) {
                return Err(Unreadable(format!("{field}: {}", extent.sentence(Extent::MOST))));
            }
        }
        // Nearly all can be decoded. Tracking the path costs half the parsing time again, so it is
        // done only after a failure.
        let Body { spec, status } = serde_json::from_slice(&self.text).or_else(|_| self.read_by_path())?;
        Ok(JobSet {
            metadata: self.metadata.clone(),
            spec,
            status,
        })
    }

    /// The JobSet without its spec, and without a status that cannot be decoded.
    pub(crate) fn without_spec(&self) -> JobSet {
        #[derive(Deserialize)]
        struct Status {
            status: Option<JobSetStatus>,
        }
        let body = serde_json::from_slice::<Status>(&self.text);
        JobSet {
            metadata: self.metadata.clone(),
            spec: JobSetSpec::default(),
            status: body.ok().and_then(|body| body.status),
        }
    }

    /// Parses the text with the path of the wrong field.
    fn read_by_path(&self) -> Result<Body, Unreadable> {
        let mut text = serde_json::Deserializer::from_slice(&self.text);
        serde_path_to_error::deserialize(&mut text)
            .map_err(|error| Unreadable(decode_error::sentence(&error)))
    }
}

impl<'de> Deserialize<'de> for PackedJobSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Parts::deserialize(deserializer).map(Self::from)
    }
}

impl From<Parts> for PackedJobSet {
    fn from(parts: Parts) -> Self {
        let Parts {
            metadata,
            text,
            spec,
            status,
        } = parts;
        Self {
            metadata,
            text,
            spec,
            status,
        }
    }
}

impl Weighs for PackedJobSet {
    fn bytes(&self) -> usize {
        self.text.len().saturating_add(bytes_of(&self.metadata))
    }
}

impl Resource for PackedJobSet {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    same_kind_as!(JobSet);

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
