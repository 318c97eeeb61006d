//! The owners of an object. Tenants write them, and Kubernetes limits neither the number nor the
//! size of references.
//!
//! Promises: at most [`MOST`] references of [`LONGEST`] bytes are kept of one object. The
//! controller is among them wherever it is in the list, unless it is longer.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserializer;
use serde::de::{SeqAccess, Visitor};

/// How many references are kept.
const MOST: usize = 16;
/// The limit of a reference's four strings, in bytes. Names and API groups have up to 253, kinds up
/// to 63, and Kubernetes' own UIDs 36.
const LONGEST: usize = 1_024;

/// Parses a list of owners, or null.
pub(super) fn owners<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<OwnerReference>>, D::Error> {
    deserializer.deserialize_option(Owners { most: MOST })
}

/// Parses the controller of a list of owners, or null. The controller is all that decisions about
/// Jobs, Services and claims need.
pub(super) fn controller<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<OwnerReference>>, D::Error> {
    deserializer
        .deserialize_option(Owners { most: 1 })
        .map(|owners| owners.map(|owners| owners.into_iter().filter(controls).collect()))
}

/// Parses this many owners.
struct Owners {
    most: usize,
}

impl<'de> Visitor<'de> for Owners {
    type Value = Option<Vec<OwnerReference>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of owners")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut owners: Vec<OwnerReference> = Vec::new();
        while let Some(owner) = list.next_element::<OwnerReference>()? {
            if bytes(&owner) > LONGEST {
                continue;
            }
            if owners.len() < self.most {
                owners.push(owner);
            } else if controls(&owner) && !owners.iter().any(controls) {
                owners.truncate(self.most.saturating_sub(1));
                owners.push(owner);
            }
        }
        Ok(Some(owners))
    }
}

fn controls(owner: &OwnerReference) -> bool {
    owner.controller == Some(true)
}

fn bytes(owner: &OwnerReference) -> usize {
    let texts = [&owner.api_version, &owner.kind, &owner.name, &owner.uid];
    texts.into_iter().map(String::len).sum()
}
