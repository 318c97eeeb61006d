//! Watches of Ray's resources and of what belongs to them.

use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use lockstep_api::ray::{RayCluster, RayCronJob, RayJob, keys};
use std::fmt::Debug;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

use super::belonging::{Belonging, Belongs};
use super::packed::{Kind, Packed};
use crate::k8s::apply::events::{Queue, short};
use crate::k8s::watch::cache_entry::{self, mapped};
use crate::k8s::watch::decode::{Reported, ignore, left_out};
use crate::k8s::watch::follow::{Health, patient};
use crate::k8s::watch::lean::Lean;
use crate::k8s::watch::namespace_budget::{Budget, NamespaceBudgets, within};
use crate::k8s::watch::sized;

/// Objects in one page of a list.
pub(super) const PAGE: u32 = 100;
/// The reason of the event on an unreadable object.
const UNREADABLE: &str = "Unreadable";

/// All readable objects of a kind. An unreadable object causes an event, once for each change of
/// its spec, and counts as absent. While it is being deleted, its readable part is used, so that
/// its controller can clean up.
pub(super) fn readable<K: Kind>(
    api: Api<Packed<K>>,
    room: Budget,
    queue: Queue,
) -> impl Stream<Item = watcher::Result<Event<Packed<K>>>> + Send {
    let config = watcher::Config::default().page_size(PAGE);
    let begin = move || patient(watcher(api.clone(), config.clone())).boxed();
    let mut reported = Reported::default();
    within((room.clone(), room.clone()), begin, left_out(room, queue.clone())).filter_map(move |event| {
        let event = event.map(|event| {
            reported.follow(&event);
            let (Event::InitApply(object) | Event::Apply(object)) = &event else {
                return Some(event);
            };
            let Some(error) = object.unfit() else {
                return Some(event);
            };
            if object.meta().deletion_timestamp.is_some() {
                return Some(event);
            }
            if reported.is_new(object) && !object.read().is_others() {
                publish_unreadable(&queue, object, error);
            }
            match event {
                // The cached object is outdated.
                Event::Apply(object) => Some(Event::Delete(object)),
                _ => None,
            }
        });
        std::future::ready(event.transpose())
    })
}

/// Publishes that an object is unreadable and therefore left unchanged.
fn publish_unreadable<K: Kind>(queue: &Queue, object: &Packed<K>, error: &str) {
    let why = short(format!("cannot be read and is left unchanged: {error}"));
    ignore(queue, object, UNREADABLE, why);
}

/// All objects of a kind that have this label, as far as there is room.
pub(super) fn labelled<K>(
    kind: &'static str,
    api: Api<Lean<K>>,
    budgets: &NamespaceBudgets,
    label: &str,
) -> BoxStream<'static, watcher::Result<Event<Belonging<K>>>>
where
    K: Belongs + Clone + Debug + Send + Sync + 'static,
{
    let config = watcher::Config::default().labels(label).page_size(PAGE);
    sized(
        kind,
        budgets.of_made(),
        move || {
            patient(watcher(api.clone(), config.clone()))
                .map_ok(|event| mapped(event, |object| Belonging::of(&object)))
                .boxed()
        },
        |_, _| {},
    )
}

/// Maintains the cache of a kind until `shutdown`, and calls `changed` for each changed object. An
/// object that is missing from a new list has changed, too.
pub(super) async fn follow<K>(
    kind: &'static str,
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
    mut writer: Writer<K>,
    changed: impl Fn(&K) + Send,
    shutdown: CancellationToken,
) where
    K: reflector::Lookup<DynamicType = ()> + Clone + Debug + PartialEq + 'static,
{
    let store = writer.as_reader();
    let mut health = Health::default();
    let mut events = std::pin::pin!(events.take_until(shutdown.cancelled_owned()));
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let before = match &event {
                    Event::InitDone => store.state(),
                    _ => Vec::new(),
                };
                cache_entry::store(&mut writer, &event, K::eq);
                match &event {
                    Event::Apply(object) | Event::Delete(object) => changed(object),
                    Event::InitDone => {
                        health.recovered(kind, store.len());
                        let is_gone = |object: &&Arc<K>| store.get(&ObjectRef::from(&***object)).is_none();
                        before.iter().filter(is_gone).for_each(|object| changed(object));
                        store.state().iter().for_each(|object| changed(object));
                    }
                    Event::Init | Event::InitApply(_) => {}
                }
            }
            Err(error) => health.failed(kind, &error),
        }
    }
}

/// The RayJob that a cluster was created for, from its labels.
pub(super) fn originator(cluster: &Packed<RayCluster>) -> Option<ObjectRef<Packed<RayJob>>> {
    let label = |key: &str| cluster.labels().get(key).map(String::as_str);
    let job = label(keys::ORIGINATED_FROM_NAME)?;
    let is_job = label(keys::ORIGINATED_FROM_CRD) == Some("RayJob");
    Some(ObjectRef::new(job).within(&cluster.namespace()?)).filter(|_| is_job)
}

/// The RayCronJob that a RayJob was created for, from its label.
pub(super) fn cron_of(job: &Packed<RayJob>) -> Option<ObjectRef<Packed<RayCronJob>>> {
    let cron = job.labels().get(keys::CRON_JOB_NAME)?;
    Some(ObjectRef::new(cron).within(&job.namespace()?))
}
