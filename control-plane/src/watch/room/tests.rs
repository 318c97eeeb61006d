use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;

use super::*;
use crate::watch::PackedJobSet;

type Said = watcher::Result<Event<PackedJobSet>>;

/// A JobSet of about so many bytes.
fn jobset(namespace: &str, name: &str, bytes: usize) -> PackedJobSet {
    let mut jobset: JobSet = serde_json::from_value(serde_json::json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"coordinator": {"replicatedJob": ""}},
    }))
    .unwrap();
    let mut text = || {
        let coordinator = jobset.spec.coordinator.as_mut().unwrap();
        coordinator.replicated_job.push_str("0123456789");
        PackedJobSet::of(&jobset).unwrap()
    };
    let mut packed = text();
    while packed.bytes() + ENTRY < bytes {
        packed = text();
    }
    packed
}

/// A watch, as the API server would feed it.
struct Fed {
    news: Arc<Mutex<Option<UnboundedSender<Said>>>>,
    begun: Arc<AtomicUsize>,
    left_out: Arc<Mutex<Vec<String>>>,
}

impl Fed {
    fn by(room: Room) -> (Self, BoxStream<'static, Said>) {
        let fed = Self {
            news: Arc::default(),
            begun: Arc::default(),
            left_out: Arc::default(),
        };
        let (news, begun, left_out) = (fed.news.clone(), fed.begun.clone(), fed.left_out.clone());
        let begin = move || {
            begun.fetch_add(1, Ordering::Relaxed);
            let (sender, events): (_, UnboundedReceiver<Said>) = unbounded();
            *news.lock().unwrap() = Some(sender);
            events.boxed()
        };
        let tell = move |jobset: &PackedJobSet, is_left_out: bool| {
            if is_left_out {
                left_out.lock().unwrap().push(jobset.key().name);
            }
        };
        let events = within((room.clone(), room), begin, tell).boxed();
        (fed, events)
    }

    fn says(&self, event: Event<PackedJobSet>) {
        let news = self.news.lock().unwrap();
        news.as_ref().unwrap().unbounded_send(Ok(event)).unwrap();
    }

    fn left_out(&self) -> Vec<String> {
        std::mem::take(&mut *self.left_out.lock().unwrap())
    }
}

/// What has come so far, in short.
fn come(events: &mut BoxStream<'static, Said>) -> Vec<String> {
    let name = |object: &PackedJobSet| ObjectRef::from(object).name;
    let mut seen = Vec::new();
    while let Some(Some(event)) = events.next().now_or_never() {
        seen.push(match event.unwrap() {
            Event::Init => "list".to_owned(),
            Event::InitDone => "listed".to_owned(),
            Event::InitApply(object) | Event::Apply(object) => format!("+{}", name(&object)),
            Event::Delete(object) => format!("-{}", name(&object)),
        });
    }
    seen
}

/// Room for ten of 10 kB in each of three namespaces.
fn room() -> Room {
    Room::new(100_000, 300_000)
}

#[tokio::test(start_paused = true)]
async fn a_namespace_has_its_share_and_another_one_its_own() {
    let (fed, mut events) = Fed::by(room());
    fed.says(Event::Init);
    for number in 0..12 {
        fed.says(Event::InitApply(jobset("evil", &format!("e{number}"), 9_500)));
    }
    fed.says(Event::InitApply(jobset("good", "g", 9_500)));
    fed.says(Event::InitDone);
    let seen = come(&mut events);
    assert_eq!(fed.left_out(), ["e10", "e11"]);
    assert!(
        seen.contains(&"+e9".to_owned()) && seen.contains(&"+g".to_owned()),
        "{seen:?}"
    );
    assert_eq!(seen.len(), 13);
}

#[tokio::test(start_paused = true)]
async fn all_together_have_no_more_than_there_is() {
    let (fed, mut events) = Fed::by(Room::new(100_000, 150_000));
    for number in 0..20 {
        let namespace = format!("n{}", number % 4);
        fed.says(Event::Apply(jobset(&namespace, &number.to_string(), 9_500)));
    }
    assert_eq!(come(&mut events).len(), 15);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_kept_may_grow_a_little_and_is_gone_where_it_grows_without_bound() {
    let (fed, mut events) = Fed::by(room());
    fed.says(Event::Apply(jobset("ns", "status", 20_000)));
    fed.says(Event::Apply(jobset("ns", "full", 79_000)));
    // Its status grows.
    fed.says(Event::Apply(jobset("ns", "status", 40_000)));
    assert_eq!(come(&mut events), ["+status", "+full", "+status"]);
    fed.says(Event::Apply(jobset("ns", "status", 60_000)));
    assert_eq!(come(&mut events), ["-status"]);
    assert_eq!(fed.left_out(), ["status"]);
    // Nobody is dropped for what others take.
    fed.says(Event::Apply(jobset("ns", "full", 79_000)));
    assert_eq!(come(&mut events), ["+full"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_left_out_is_listed_again_where_there_is_room() {
    let (fed, mut events) = Fed::by(room());
    fed.says(Event::Init);
    fed.says(Event::InitApply(jobset("ns", "large", 90_000)));
    fed.says(Event::InitApply(jobset("ns", "late", 20_000)));
    assert_eq!(come(&mut events), ["list", "+large"]);
    tokio::time::advance(LOOK.0 * 3).await;
    assert!(come(&mut events).is_empty());
    fed.says(Event::InitDone);
    assert_eq!(come(&mut events), ["listed"]);
    tokio::time::advance(LOOK.0 * 3).await;
    assert!(come(&mut events).is_empty());
    assert_eq!(fed.begun.load(Ordering::Relaxed), 1, "there is no room yet");
    fed.says(Event::Delete(jobset("ns", "large", 90_000)));
    assert_eq!(come(&mut events), ["-large"]);
    tokio::time::advance(LOOK.0).await;
    assert!(come(&mut events).is_empty());
    assert_eq!(fed.begun.load(Ordering::Relaxed), 2);
    fed.says(Event::Init);
    fed.says(Event::InitApply(jobset("ns", "late", 20_000)));
    fed.says(Event::InitDone);
    assert_eq!(come(&mut events), ["list", "+late", "listed"]);
    tokio::time::advance(LOOK.0 * 3).await;
    assert!(come(&mut events).is_empty());
    assert_eq!(
        fed.begun.load(Ordering::Relaxed),
        2,
        "nothing is left out any more"
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_list_keeps_what_was_kept_whatever_stands_before_it() {
    let (fed, mut events) = Fed::by(room());
    fed.says(Event::Apply(jobset("ns", "z-known", 60_000)));
    fed.says(Event::Apply(jobset("ns", "gone", 30_000)));
    come(&mut events);
    fed.says(Event::Init);
    fed.says(Event::InitApply(jobset("ns", "a-new", 50_000)));
    fed.says(Event::InitApply(jobset("ns", "z-known", 60_000)));
    fed.says(Event::InitDone);
    assert_eq!(come(&mut events), ["list", "+z-known", "listed"]);
    assert_eq!(fed.left_out(), ["a-new"]);
    // What went while nobody watched takes no room any more.
    fed.says(Event::Apply(jobset("ns", "b-new", 30_000)));
    assert_eq!(come(&mut events), ["+b-new"]);
}

#[tokio::test(start_paused = true)]
async fn watches_of_one_room_share_it_and_leave_nothing_behind() {
    let room = room();
    let (first, mut events) = Fed::by(room.clone());
    let (second, mut others) = Fed::by(room.clone());
    first.says(Event::Apply(jobset("ns", "one", 70_000)));
    second.says(Event::Apply(jobset("ns", "two", 70_000)));
    assert_eq!(come(&mut events), ["+one"]);
    assert!(come(&mut others).is_empty());
    drop(events);
    assert_eq!(room.locked().sum, 0);
    assert!(room.locked().by_namespace.is_empty());
    let _ = pin!(others);
}

#[test]
fn labels_count_and_not_their_text_alone() {
    let mut meta = ObjectMeta::default();
    let bare = bytes_of(&meta);
    let labels = (0..1_000).map(|number| (format!("k{number}"), String::new()));
    meta.labels = Some(labels.collect());
    // As was measured, about 107 bytes for each of these.
    assert!(bytes_of(&meta) - bare > 95_000, "{}", bytes_of(&meta));
}
