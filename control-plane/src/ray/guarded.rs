//! Objects of which one that cannot be read does not keep the others from being read.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::unfit;

#[cfg(test)]
mod tests;

/// An object, or why it cannot be read: the field, and what is wrong with it.
#[derive(Clone, Debug)]
pub(super) struct Guarded<K> {
    /// Its metadata, where it cannot be read.
    metadata: Box<ObjectMeta>,
    object: Result<K, String>,
}

impl<K> Guarded<K> {
    /// The object, or its metadata and what is wrong.
    pub(super) fn read(self) -> Result<K, (Box<ObjectMeta>, String)> {
        self.object.map_err(|error| (self.metadata, error))
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        let object = serde_path_to_error::deserialize(&value).map_err(|error| unfit::sentence(&error));
        let metadata = match &object {
            Ok(_) => Box::default(),
            Err(_) => serde_json::from_value(value["metadata"].take()).map_err(D::Error::custom)?,
        };
        Ok(Self { metadata, object })
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(kind: &K::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &K::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &K::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &K::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        self.object.as_ref().map_or(&self.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.as_mut().map_or(&mut self.metadata, K::meta_mut)
    }
}
