//! Objects of which one that cannot be read does not keep the others from being read.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use lockstep_core::extent::Extent;
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::unfit;

#[cfg(test)]
mod tests;

/// An object, or why it cannot be read: the field, and what is wrong with it.
#[derive(Clone, Debug)]
pub(super) struct Guarded<K>(Result<K, Box<(K, String)>>);

impl<K> Guarded<K> {
    /// The object; or what can be read of it, and what is wrong. Its metadata can be read always, its status and who looks after it nearly so.
    pub(super) fn read(self) -> Result<K, Box<(K, String)>> {
        self.0
    }

    /// The object, or what can be read of it.
    pub(super) fn known(self) -> K {
        self.0.unwrap_or_else(|unread| unread.0)
    }
}

impl<'de, K: Resource<DynamicType = ()> + DeserializeOwned + Default> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        let extent = Extent::of(&value["spec"]);
        let error = if extent.exceeds(Extent::MOST) {
            format!("spec: {}", extent.sentence(Extent::MOST))
        } else {
            match serde_path_to_error::deserialize(&value) {
                Ok(object) => return Ok(Self(Ok(object))),
                Err(error) => unfit::sentence(&error),
            }
        };
        let spec = json!({"managedBy": value["spec"]["managedBy"].as_str()});
        if let Some(fields) = value.as_object_mut() {
            fields.insert("spec".to_owned(), spec);
        }
        let rest = match K::deserialize(&value) {
            Ok(rest) => rest,
            Err(_) => bare(ObjectMeta::deserialize(&value["metadata"]).map_err(D::Error::custom)?),
        };
        Ok(Self(Err(Box::new((rest, error)))))
    }
}

/// An object of which nothing but its metadata is known.
fn bare<K: Resource<DynamicType = ()> + Default>(metadata: ObjectMeta) -> K {
    let mut object = K::default();
    *object.meta_mut() = metadata;
    object
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
        self.0.as_ref().map_or_else(|unread| unread.0.meta(), K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0
            .as_mut()
            .map_or_else(|unread| unread.0.meta_mut(), K::meta_mut)
    }
}
