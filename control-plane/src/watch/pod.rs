//! What is kept of a pod: a tenth of what the API server says of it.

use std::borrow::Cow;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Event;
use lockstep_api::JobSet;
use lockstep_core::pod::PodSummary;

use super::follow::jobset_of;

#[cfg(test)]
mod tests;

/// A pod in the cache.
#[derive(Clone, Debug)]
pub struct WatchedPod {
    /// Name, namespace and version; nothing else.
    metadata: ObjectMeta,
    /// Name of its JobSet, by its label.
    jobset: Option<String>,
    /// What is read of it.
    pub summary: PodSummary,
}

impl WatchedPod {
    fn of(pod: Pod) -> Self {
        Self {
            jobset: jobset_of(&pod).map(|jobset| jobset.name),
            summary: PodSummary::of(&pod),
            metadata: ObjectMeta {
                name: pod.metadata.name,
                namespace: pod.metadata.namespace,
                resource_version: pod.metadata.resource_version,
                ..ObjectMeta::default()
            },
        }
    }

    pub(super) fn jobset(&self) -> Option<ObjectRef<JobSet>> {
        let jobset = ObjectRef::new(self.jobset.as_deref()?);
        Some(jobset.within(self.metadata.namespace.as_deref()?))
    }
}

/// The same event, of what is kept.
pub(super) fn watched(event: Event<Pod>) -> Event<WatchedPod> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(pod) => Event::InitApply(WatchedPod::of(pod)),
        Event::Apply(pod) => Event::Apply(WatchedPod::of(pod)),
        Event::Delete(pod) => Event::Delete(WatchedPod::of(pod)),
    }
}

impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(kind: &()) -> Cow<'_, str> {
        Pod::kind(kind)
    }

    fn group(kind: &()) -> Cow<'_, str> {
        Pod::group(kind)
    }

    fn version(kind: &()) -> Cow<'_, str> {
        Pod::version(kind)
    }

    fn plural(kind: &()) -> Cow<'_, str> {
        Pod::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
