//! JobSets as they are kept: the metadata at hand, spec and status as text, a fifth of the memory of what they say.

use std::fmt;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::annotations::IN_PLACE_TIMEOUT;
use lockstep_api::{JobSet, JobSetSpec, JobSetStatus};
use lockstep_core::extent::Extent;
use memchr::memmem;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error as ThisError;

use super::kept::same_kind_as;
use super::lean::{LAST_APPLIED, Meta};
use crate::unfit;

#[cfg(test)]
mod tests;

/// A JobSet in the cache. Reading it parses it; whether it can be read is known only then.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedJobSet {
    metadata: ObjectMeta,
    /// `{"spec": …, "status": …}`
    text: Box<[u8]>,
    /// What it consists of.
    extent: Extent,
}

/// The JobSet does not have the form that its kind prescribes.
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
    /// Packs a JobSet as the API server has answered it.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn of(jobset: &JobSet) -> serde_json::Result<Self> {
        #[derive(Serialize)]
        struct Body<'a> {
            spec: &'a JobSetSpec,
            #[serde(skip_serializing_if = "Option::is_none")]
            status: &'a Option<JobSetStatus>,
        }
        let mut metadata = jobset.metadata.clone();
        metadata.managed_fields = None;
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove(LAST_APPLIED);
        }
        let text = serde_json::to_vec(&Body {
            spec: &jobset.spec,
            status: &jobset.status,
        })?;
        Ok(Self {
            metadata,
            extent: Extent::of_text(&text),
            text: text.into(),
        })
    }

    /// Its name.
    #[must_use]
    pub fn key(&self) -> ObjectRef<JobSet> {
        let meta = &self.metadata;
        let key = ObjectRef::new(meta.name.as_deref().unwrap_or_default());
        key.within(meta.namespace.as_deref().unwrap_or_default())
    }

    /// Bytes that reading it takes time in proportion to.
    pub(super) fn size(&self) -> usize {
        self.text.len().max(self.extent.as_bytes_of_text())
    }

    /// False: it has no gangs. Most have none, and to tell costs less than to read them.
    pub(super) fn may_have_gangs(&self) -> bool {
        memmem::find(&self.text, b"\"gang\":").is_some()
    }

    /// False: it does not restart in place. True is no promise.
    pub(super) fn may_restart_in_place(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        // The strategy, and the status of those whose Jobs were made for it.
        annotations.is_some_and(|all| all.contains_key(IN_PLACE_TIMEOUT))
            || memmem::find(&self.text, b"nPlaceRestart").is_some()
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`Unreadable`], with the field that is wrong, or where it is too large.
    pub fn unpack(&self) -> Result<JobSet, Unreadable> {
        if self.extent.exceeds(Extent::MOST) {
            let sentence = self.extent.sentence(Extent::MOST);
            return Err(Unreadable(format!(
                "what spec and status say is too much: it {sentence}"
            )));
        }
        // Nearly all can be read. To keep track of where it stands costs a parser half its time again, so only what cannot be read is read so.
        let Body { spec, status } = serde_json::from_slice(&self.text).or_else(|_| self.read_by_path())?;
        Ok(JobSet {
            metadata: self.metadata.clone(),
            spec,
            status,
        })
    }

    /// Reads it, and knows which field is wrong.
    fn read_by_path(&self) -> Result<Body, Unreadable> {
        let mut text = serde_json::Deserializer::from_slice(&self.text);
        serde_path_to_error::deserialize(&mut text).map_err(|error| Unreadable(unfit::sentence(&error)))
    }
}

impl<'de> Deserialize<'de> for PackedJobSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Packer)
    }
}

struct Packer;

impl<'de> Visitor<'de> for Packer {
    type Value = PackedJobSet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JobSet")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = Meta::default();
        let mut text = vec![b'{'];
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "metadata" => metadata = map.next_value()?,
                "spec" | "status" => {
                    if text.len() > 1 {
                        text.push(b',');
                    }
                    text.push(b'"');
                    text.extend_from_slice(field.as_bytes());
                    text.extend_from_slice(b"\":");
                    map.next_value_seed(Copied(&mut text))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        text.push(b'}');
        Ok(PackedJobSet {
            metadata: metadata.into(),
            extent: Extent::of_text(&text),
            text: text.into(),
        })
    }
}

/// Appends what is parsed to a text, whatever it is.
struct Copied<'a>(&'a mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for Copied<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let mut text = serde_json::Serializer::new(self.0);
        serde_transcode::transcode(deserializer, &mut text).map_err(D::Error::custom)
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
