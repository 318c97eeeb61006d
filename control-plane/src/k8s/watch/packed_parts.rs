//! The packed form of an object: parsed metadata, and spec and status as text. It takes a fifth of
//! the memory of the parsed object, and far less for text that expands a lot.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_core::common::extent::Extent;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::lean::Meta;

/// An object whose spec and status are kept as text.
pub(crate) struct Parts {
    /// The metadata without the bookkeeping of field managers and kubectl.
    pub(crate) metadata: ObjectMeta,
    /// `{"spec": …, "status": …}`
    pub(crate) text: Arc<[u8]>,
    /// The number of objects and elements in the spec.
    pub(crate) spec: Extent,
    /// The number of objects and elements in the status.
    pub(crate) status: Extent,
}

impl<'de> Deserialize<'de> for Parts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Packer)
    }
}

struct Packer;

impl<'de> Visitor<'de> for Packer {
    type Value = Parts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata = Meta::default();
        let mut text = Text::default();
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "metadata" => metadata = map.next_value()?,
                "spec" => text.copy(Field::Spec, &map.next_value::<Box<RawValue>>()?),
                "status" => text.copy(Field::Status, &map.next_value::<Box<RawValue>>()?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(text.of(metadata.into()))
    }
}

/// A field that is kept as text.
pub(crate) enum Field {
    Spec,
    Status,
}

/// The text of an object, under construction.
#[derive(Default)]
pub(crate) struct Text {
    fields: Vec<u8>,
    spec: Extent,
    status: Extent,
}

impl Text {
    /// Adds a field; `write` appends its value.
    pub(crate) fn add<E>(
        &mut self,
        field: Field,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (name, extent): (&[u8], _) = match field {
            Field::Spec => (b"\"spec\":", &mut self.spec),
            Field::Status => (b"\"status\":", &mut self.status),
        };
        self.fields.push(if self.fields.is_empty() { b'{' } else { b',' });
        self.fields.extend_from_slice(name);
        let before = self.fields.len();
        write(&mut self.fields)?;
        *extent = Extent::of_text(&self.fields[before..]);
        Ok(())
    }

    /// Copies a field unparsed. Deep nesting takes no stack here; parsing detects it.
    fn copy(&mut self, field: Field, value: &RawValue) {
        let copied: Result<(), Infallible> = self.add(field, |text| {
            text.extend_from_slice(value.get().as_bytes());
            Ok(())
        });
        match copied {
            Ok(()) => {}
            Err(never) => match never {},
        }
    }

    /// The object with this metadata.
    pub(crate) fn of(mut self, metadata: ObjectMeta) -> Parts {
        if self.fields.is_empty() {
            self.fields.push(b'{');
        }
        self.fields.push(b'}');
        Parts {
            metadata,
            text: self.fields.into(),
            spec: self.spec,
            status: self.status,
        }
    }
}
