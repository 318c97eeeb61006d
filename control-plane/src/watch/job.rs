//! What is kept of a Job: its name, and what is read of it as text, a third of the memory of what the text says.

use std::borrow::Cow;

use k8s_openapi::api::batch::v1::Job;
use kube::Resource;
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::runtime::watcher::Event;
use lockstep_api::JobSet;

use super::follow::jobset_of;
use super::kept::Kept;
use super::lean::Lean;
use super::recent::version;

#[cfg(test)]
mod tests;

/// A Job in the cache.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PackedJob {
    name: Box<str>,
    namespace: Box<str>,
    /// Name of its JobSet, by its label.
    jobset: Option<Box<str>>,
    revision: u64,
    text: Box<[u8]>,
}

impl PackedJob {
    /// Packs a Job as the API server has answered it, or as it was parsed leanly.
    pub(super) fn of(job: &Job) -> Self {
        Self {
            name: job.metadata.name.as_deref().unwrap_or_default().into(),
            namespace: job.metadata.namespace.as_deref().unwrap_or_default().into(),
            jobset: jobset_of(job).map(|jobset| jobset.name.into()),
            revision: version(&job.metadata),
            // Maps have strings for keys and numbers are finite: this cannot fail.
            text: serde_json::to_vec(job).unwrap_or_default().into(),
        }
    }

    /// Reads it.
    pub(super) fn unpack(&self) -> Option<Job> {
        let Lean(job) = serde_json::from_slice(&self.text).ok()?;
        Some(job)
    }

    pub(super) fn jobset(&self) -> Option<ObjectRef<JobSet>> {
        Some(ObjectRef::new(self.jobset.as_deref()?).within(&self.namespace))
    }
}

/// The same event, of what is kept.
pub(super) fn packed(event: Event<Job>) -> Event<PackedJob> {
    match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(job) => Event::InitApply(PackedJob::of(&job)),
        Event::Apply(job) => Event::Apply(PackedJob::of(&job)),
        Event::Delete(job) => Event::Delete(PackedJob::of(&job)),
    }
}

impl Kept for PackedJob {
    fn revision(&self) -> u64 {
        self.revision
    }
}

impl Lookup for PackedJob {
    type DynamicType = ();

    fn kind(kind: &()) -> Cow<'_, str> {
        <Job as Resource>::kind(kind)
    }

    fn group(kind: &()) -> Cow<'_, str> {
        <Job as Resource>::group(kind)
    }

    fn version(kind: &()) -> Cow<'_, str> {
        <Job as Resource>::version(kind)
    }

    fn plural(kind: &()) -> Cow<'_, str> {
        <Job as Resource>::plural(kind)
    }

    fn name(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.name))
    }

    fn namespace(&self) -> Option<Cow<'_, str>> {
        Some(Cow::Borrowed(&self.namespace))
    }

    /// Not part of its name in the cache.
    fn resource_version(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Not part of its name in the cache.
    fn uid(&self) -> Option<Cow<'_, str>> {
        None
    }
}
