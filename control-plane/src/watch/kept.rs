//! What caches need to know of an object. Kubernetes' own metadata takes 400 bytes of each, mostly empty.

use std::fmt::Debug;

use kube::Resource;
use kube::runtime::reflector::Lookup;

use super::recent::version;

/// An object in a cache.
pub(super) trait Kept: Lookup<DynamicType = ()> + Clone + Debug + Send + Sync + 'static {
    /// Its version, higher than that of all former states. 0: unknown.
    fn revision(&self) -> u64;

    /// Its name; empty where it has none.
    fn named(&self) -> String {
        self.name().unwrap_or_default().into_owned()
    }
}

impl<K> Kept for K
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    fn revision(&self) -> u64 {
        version(self.meta())
    }
}
