//! What every cached object provides. Entries are slim: Kubernetes' own metadata takes 400 bytes
//! each, mostly empty.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::runtime::watcher::Event;

/// An object in a cache.
pub(super) trait CacheEntry: Lookup<DynamicType = ()> + Clone + Debug + Send + Sync + 'static {
    /// Its version, which increases with every change. 0 if unknown.
    fn revision(&self) -> u64;

    /// True if it holds the same, so that a clone of it takes less memory than `other`.
    fn is_same(&self, other: &Self) -> bool;

    /// Its name; empty if it has none.
    fn named(&self) -> String {
        self.name().unwrap_or_default().into_owned()
    }
}

impl<K> CacheEntry for K
where
    K: Resource<DynamicType = ()> + Clone + Debug + PartialEq + Send + Sync + 'static,
{
    fn revision(&self) -> u64 {
        version(self.meta())
    }

    fn is_same(&self, other: &Self) -> bool {
        self == other
    }
}

/// The version of an object. Versions of one resource are ordered (Kubernetes KEP-5504).
pub(crate) fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}

/// Maps the object of an event.
pub(crate) fn mapped<A, B>(event: Event<A>, of: impl FnOnce(A) -> B) -> Event<B> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(object) => Event::InitApply(of(object)),
        Event::Apply(object) => Event::Apply(of(object)),
        Event::Delete(object) => Event::Delete(of(object)),
    }
}

/// Stores an event. Until a list ends, a store also holds the objects of the list before. So an
/// object that `is_same` is stored as a clone of what is known, which shares its text. Versions are
/// not enough to tell that: a restored etcd gives them again.
pub(crate) fn store<K>(writer: &mut Writer<K>, event: &Event<K>, is_same: impl Fn(&K, &K) -> bool)
where
    K: Lookup<DynamicType = ()> + Clone + 'static,
{
    let known = match event {
        Event::InitApply(object) => {
            let known = writer.as_reader().get(&ObjectRef::from(object));
            known.filter(|known| is_same(known, object))
        }
        _ => None,
    };
    match known {
        Some(known) => writer.apply_watcher_event(&Event::InitApply((*known).clone())),
        None => writer.apply_watcher_event(event),
    }
}

/// The API names of the kind that a type was read from, for `Resource` and for `Lookup`.
macro_rules! same_kind_as {
    ($kind:ty) => {
        fn kind(kind: &()) -> std::borrow::Cow<'_, str> {
            <$kind as kube::Resource>::kind(kind)
        }

        fn group(kind: &()) -> std::borrow::Cow<'_, str> {
            <$kind as kube::Resource>::group(kind)
        }

        fn version(kind: &()) -> std::borrow::Cow<'_, str> {
            <$kind as kube::Resource>::version(kind)
        }

        fn plural(kind: &()) -> std::borrow::Cow<'_, str> {
            <$kind as kube::Resource>::plural(kind)
        }
    };
}
pub(crate) use same_kind_as;

/// How a cache looks up an entry: by the field with its name, and by its `namespace`.
macro_rules! known_by_name {
    ($kind:ty, $($name:ident).+) => {
        type DynamicType = ();

        $crate::k8s::watch::cache_entry::same_kind_as!($kind);

        fn name(&self) -> Option<std::borrow::Cow<'_, str>> {
            Some(std::borrow::Cow::Borrowed(&self.$($name).+))
        }

        fn namespace(&self) -> Option<std::borrow::Cow<'_, str>> {
            Some(std::borrow::Cow::Borrowed(&self.namespace))
        }

        /// Not part of its name in the cache.
        fn resource_version(&self) -> Option<std::borrow::Cow<'_, str>> {
            None
        }

        /// Not part of its name in the cache.
        fn uid(&self) -> Option<std::borrow::Cow<'_, str>> {
            None
        }
    };
}
pub(crate) use known_by_name;
