//! The JobSets that can be decoded. Those that cannot are reported in the log and as an event on
//! the object.

use std::collections::{HashMap, HashSet};
use std::future::ready;

use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use lockstep_core::jobset::plan::{self, Severity};

use super::follow::patient;
use super::namespace_budget::{Budget, within};
use super::packed::{PackedJobSet, Unreadable};
use crate::k8s::apply::events::{self, Queue};

/// How many objects that exceeded the memory budget are remembered.
const MOST_REPORTED: usize = 4096;
/// Reason of the event on a JobSet that cannot be decoded.
const UNREADABLE: &str = "UnreadableJobSet";

/// Reason of the event on an object that exceeds the memory budget.
pub(crate) const NO_ROOM: &str = "NoRoom";

/// All JobSets. One that cannot be decoded, or exceeds the memory budget, counts as absent: it is
/// not touched.
pub(super) fn jobsets(
    client: &Client,
    budget: Budget,
    events: Queue,
) -> impl Stream<Item = watcher::Result<Event<PackedJobSet>>> + Send + use<> {
    let api = Api::<PackedJobSet>::all(client.clone());
    let begin = move || patient(watcher(api.clone(), watcher::Config::default())).boxed();
    let mut reported = Reported::default();
    within(
        (budget.clone(), budget.clone()),
        begin,
        left_out(budget, events.clone()),
    )
    .filter_map(move |event| {
        let event = event.map(|event| {
            reported.follow(&event);
            let (event, unreadable) = split(event);
            // A new list contains the same objects again.
            if let Some((object, error)) = unreadable
                && reported.is_new(&object)
            {
                let why = format!("this JobSet cannot be decoded and is ignored: {error}");
                ignore(&events, &object, UNREADABLE, why);
            }
            event
        });
        ready(event.transpose())
    })
}

/// Reports objects that exceed the memory budget, once for each generation.
pub(crate) fn left_out<K>(budget: Budget, events: Queue) -> impl FnMut(&K, bool) + Send
where
    K: Resource<DynamicType = ()>,
{
    let mut reported = Reported::default();
    move |object, is_left_out| {
        if !is_left_out {
            return;
        }
        reported.bound();
        if reported.is_new(object) {
            let why = format!(
                "the JobSets and Ray resources of this namespace take more memory than its share of {} MiB; this one is ignored until others are \
                 removed (the share grows with the control plane's memory limit)",
                budget.share >> 20
            );
            ignore(&events, object, NO_ROOM, why);
        }
    }
}

/// The objects that were reported, with their generation. Objects that are gone are forgotten.
#[derive(Default)]
pub(crate) struct Reported {
    by_uid: HashMap<String, Option<i64>>,
    /// UIDs that the current list has shown so far.
    listed: HashSet<String>,
}

impl Reported {
    /// Takes an event into account.
    pub(crate) fn follow<K: Resource>(&mut self, event: &Event<K>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => self.listed.extend(object.meta().uid.clone()),
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listed);
                self.by_uid.retain(|uid, _| listed.contains(uid));
            }
            Event::Apply(_) => {}
            Event::Delete(object) => {
                let uid = object.meta().uid.as_ref();
                uid.and_then(|uid| self.by_uid.remove(uid));
            }
        }
    }

    /// Forgets everything at the limit. Objects are then reported again.
    fn bound(&mut self) {
        if self.by_uid.len() >= MOST_REPORTED {
            self.by_uid.clear();
        }
    }

    /// True if this generation was not reported yet.
    pub(crate) fn is_new<K: Resource>(&mut self, object: &K) -> bool {
        let meta = object.meta();
        let uid = meta.uid.clone().unwrap_or_default();
        self.by_uid.insert(uid, meta.generation) != Some(meta.generation)
    }
}

/// Separates objects that cannot be decoded from the rest.
fn split(event: Event<PackedJobSet>) -> (Option<Event<PackedJobSet>>, Option<(PackedJobSet, Unreadable)>) {
    let (Event::InitApply(object) | Event::Apply(object)) = &event else {
        return (Some(event), None);
    };
    let Err(error) = object.unpack() else {
        return (Some(event), None);
    };
    match event {
        Event::InitApply(object) => (None, Some((object, error))),
        Event::Apply(object) => (Some(Event::Delete(object.clone())), Some((object, error))),
        event => (Some(event), None),
    }
}

/// Reports that an object is ignored, in the log and as an event.
pub(crate) fn ignore<K>(events: &Queue, object: &K, reason: &str, why: String)
where
    K: Resource<DynamicType = ()>,
{
    let (regarding, event) = fault(object, reason, why);
    events.add(regarding, event);
}

/// Logs what is wrong with an object and builds the event about it.
pub(crate) fn fault<K>(object: &K, reason: &str, why: String) -> (ObjectReference, plan::Event)
where
    K: Resource<DynamicType = ()>,
{
    let regarding = events::regarding(object);
    tracing::error!(
        kind = regarding.kind,
        namespace = regarding.namespace,
        name = regarding.name,
        "{why}"
    );
    let event = plan::Event {
        severity: Severity::Warning,
        reason: reason.to_owned(),
        message: why,
    };
    (regarding, event)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: serde_json::Value) -> PackedJobSet {
        read_at(1, spec)
    }

    fn read_at(generation: i64, spec: serde_json::Value) -> PackedJobSet {
        serde_json::from_value(json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "js", "namespace": "ns", "uid": "u", "generation": generation},
            "spec": spec,
        }))
        .unwrap()
    }

    fn good() -> PackedJobSet {
        read(json!({"replicatedJobs": []}))
    }

    fn bad() -> PackedJobSet {
        read(json!({"replicatedJobs": "none"}))
    }

    #[test]
    fn an_object_that_cannot_be_read_is_named_and_counts_as_absent() {
        let (event, unreadable) = split(Event::Apply(bad()));
        let Some(Event::Delete(jobset)) = event else {
            panic!("{event:?}")
        };
        assert_eq!(jobset.key().name, "js");
        assert_eq!(
            unreadable.unwrap().1.to_string(),
            "spec.replicatedJobs: Invalid value: \"none\": must be of type array"
        );
        let (event, unreadable) = split(Event::InitApply(bad()));
        assert!(event.is_none() && unreadable.is_some());
        let (event, unreadable) = split(Event::Delete(bad()));
        assert!(matches!(event, Some(Event::Delete(_))) && unreadable.is_none());
    }

    #[test]
    fn readable_objects_pass_unchanged() {
        assert!(matches!(
            split(Event::Apply(good())),
            (Some(Event::Apply(_)), None)
        ));
        assert!(matches!(
            split(Event::InitApply(good())),
            (Some(Event::InitApply(_)), None)
        ));
        assert!(matches!(
            split(Event::Delete(good())),
            (Some(Event::Delete(_)), None)
        ));
        assert!(matches!(split(Event::Init), (Some(Event::Init), None)));
        assert!(matches!(split(Event::InitDone), (Some(Event::InitDone), None)));
    }

    #[test]
    fn each_version_of_an_object_is_reported_once_and_deleted_objects_are_forgotten() {
        let mut reported = Reported::default();
        let version = |generation| read_at(generation, json!({"replicatedJobs": "none"}));
        for (generation, is_new) in [(1, true), (1, false), (2, true)] {
            assert_eq!(reported.is_new(&version(generation)), is_new, "{generation}");
        }
        // A list that brings it again.
        for event in [Event::Init, Event::InitApply(version(2)), Event::InitDone] {
            reported.follow(&event);
        }
        assert!(!reported.is_new(&version(2)));
        reported.follow(&Event::Delete(version(2)));
        assert!(reported.by_uid.is_empty());
        reported.is_new(&version(2));
        for event in [Event::<PackedJobSet>::Init, Event::InitDone] {
            reported.follow(&event);
        }
        assert!(reported.by_uid.is_empty());
    }
}
