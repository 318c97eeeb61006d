use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use k8s_openapi::api::batch::v1::Job;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::JobSet;

use super::*;
use crate::k8s::watch::PackedJobSet;
use crate::k8s::watch::cache_entry::known_by_name;
use crate::k8s::watch::left_out;

type WatchEvent = watcher::Result<Event<PackedJobSet>>;

/// A JobSet of about this many bytes.
fn jobset(namespace: &str, name: &str, bytes: usize) -> PackedJobSet {
    let mut jobset: JobSet = serde_json::from_value(serde_json::json!({
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"coordinator": {"replicatedJob": ""}},
    }))
    .unwrap();
    let mut packed = PackedJobSet::of(&jobset).unwrap();
    while packed.bytes() + ENTRY < bytes {
        let missing = bytes - ENTRY - packed.bytes();
        let coordinator = jobset.spec.coordinator.as_mut().unwrap();
        coordinator.replicated_job.push_str(&"0".repeat(missing));
        packed = PackedJobSet::of(&jobset).unwrap();
    }
    packed
}

/// A watch, fed as by the API server.
struct Fed {
    news: Arc<Mutex<Option<UnboundedSender<WatchEvent>>>>,
    begun: Arc<AtomicUsize>,
    left_out: Arc<Mutex<Vec<String>>>,
}

impl Fed {
    fn by(budget: Budget) -> (Self, BoxStream<'static, WatchEvent>) {
        let fed = Self {
            news: Arc::default(),
            begun: Arc::default(),
            left_out: Arc::default(),
        };
        let (news, begun, left_out) = (fed.news.clone(), fed.begun.clone(), fed.left_out.clone());
        let begin = move || {
            begun.fetch_add(1, Ordering::Relaxed);
            let (sender, events): (_, UnboundedReceiver<WatchEvent>) = unbounded();
            *news.lock().unwrap() = Some(sender);
            events.boxed()
        };
        let tell = move |jobset: &PackedJobSet, is_left_out: bool| {
            if is_left_out {
                left_out.lock().unwrap().push(jobset.key().name);
            }
        };
        let events = within((budget.clone(), budget), begin, tell).boxed();
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

/// A summary of the events so far.
fn come(events: &mut BoxStream<'static, WatchEvent>) -> Vec<String> {
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

/// Room for ten objects of 10 kB in each of three namespaces.
fn budget() -> Budget {
    Budget::new(100_000, 300_000)
}

#[tokio::test(start_paused = true)]
async fn a_namespace_has_its_share_and_another_one_its_own() {
    let (fed, mut events) = Fed::by(budget());
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
    let (fed, mut events) = Fed::by(Budget::new(100_000, 150_000));
    for number in 0..20 {
        let namespace = format!("n{}", number % 4);
        fed.says(Event::Apply(jobset(&namespace, &number.to_string(), 9_500)));
    }
    assert_eq!(come(&mut events).len(), 15);
}

#[tokio::test(start_paused = true)]
async fn a_kept_object_may_grow_a_little_but_not_without_bound() {
    let (fed, mut events) = Fed::by(budget());
    fed.says(Event::Apply(jobset("ns", "status", 20_000)));
    fed.says(Event::Apply(jobset("ns", "full", 79_000)));
    // Its status grows.
    fed.says(Event::Apply(jobset("ns", "status", 40_000)));
    assert_eq!(come(&mut events), ["+status", "+full", "+status"]);
    fed.says(Event::Apply(jobset("ns", "status", 60_000)));
    assert_eq!(come(&mut events), ["-status"]);
    assert_eq!(fed.left_out(), ["status"]);
    // No kept object is dropped to make room for others.
    fed.says(Event::Apply(jobset("ns", "full", 79_000)));
    assert_eq!(come(&mut events), ["+full"]);
}

#[tokio::test(start_paused = true)]
async fn objects_left_out_are_listed_again_when_there_is_room() {
    let (fed, mut events) = Fed::by(budget());
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
    assert_eq!(fed.begun.load(Ordering::Relaxed), 2, "nothing is left out now");
}

#[tokio::test(start_paused = true)]
async fn a_new_list_keeps_the_kept_objects_in_any_order() {
    let (fed, mut events) = Fed::by(budget());
    fed.says(Event::Apply(jobset("ns", "z-known", 60_000)));
    fed.says(Event::Apply(jobset("ns", "gone", 30_000)));
    come(&mut events);
    fed.says(Event::Init);
    fed.says(Event::InitApply(jobset("ns", "a-new", 50_000)));
    fed.says(Event::InitApply(jobset("ns", "z-known", 60_000)));
    fed.says(Event::InitDone);
    assert_eq!(come(&mut events), ["list", "+z-known", "listed"]);
    assert_eq!(fed.left_out(), ["a-new"]);
    // Objects that were deleted while nothing watched no longer take room.
    fed.says(Event::Apply(jobset("ns", "b-new", 30_000)));
    assert_eq!(come(&mut events), ["+b-new"]);
}

#[tokio::test(start_paused = true)]
async fn watches_of_one_room_share_it_and_leave_nothing_behind() {
    let budget = budget();
    let (first, mut events) = Fed::by(budget.clone());
    let (second, mut others) = Fed::by(budget.clone());
    first.says(Event::Apply(jobset("ns", "one", 70_000)));
    second.says(Event::Apply(jobset("ns", "two", 70_000)));
    assert_eq!(come(&mut events), ["+one"]);
    assert!(come(&mut others).is_empty());
    drop(events);
    assert_eq!(budget.locked().sum, 0);
    assert!(budget.locked().by_namespace.is_empty());
    let _ = pin!(others);
}

#[test]
fn labels_count_with_their_overhead() {
    let mut meta = ObjectMeta::default();
    let bare = bytes_of(&meta);
    let labels = (0..1_000).map(|number| (format!("k{number}"), String::new()));
    meta.labels = Some(labels.collect());
    // Each takes about 107 bytes, as measured.
    assert!(bytes_of(&meta) - bare > 95_000, "{}", bytes_of(&meta));
}

/// An object that may be of usual size.
struct SizedObject {
    namespace: String,
    name: String,
    bytes: usize,
    is_usual: bool,
}

impl Lookup for SizedObject {
    known_by_name!(Job, name);
}

impl Weighs for SizedObject {
    fn bytes(&self) -> usize {
        self.bytes - ENTRY
    }

    fn is_usual(&self) -> bool {
        self.is_usual
    }
}

fn thing(name: &str, bytes: usize, is_usual: bool) -> SizedObject {
    SizedObject {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        bytes,
        is_usual,
    }
}

#[tokio::test]
async fn a_kept_object_stays_when_its_size_class_changes() {
    let (budget, usual) = (Budget::new(10_000, 10_000), Budget::new(10_000, 10_000));
    let mut account = Account::new(budget.clone(), usual.clone());
    assert_eq!(account.admit(&thing("grows", 8_000, true)), Fate::Kept);
    assert_eq!(account.admit(&thing("other", 9_000, false)), Fate::Kept);
    assert_eq!(account.admit(&thing("grows", 9_000, false)), Fate::Kept);
    assert_eq!((budget.locked().sum, usual.locked().sum), (9_000, 9_000));
    assert_eq!(account.admit(&thing("other", 7_000, true)), Fate::Kept);
    assert_eq!((budget.locked().sum, usual.locked().sum), (7_000, 9_000));
    account.forget("ns", "grows");
    assert_eq!(account.admit(&thing("other", 7_000, true)), Fate::Kept);
    assert_eq!((budget.locked().sum, usual.locked().sum), (0, 7_000));
}

#[tokio::test(start_paused = true)]
async fn objects_left_out_are_listed_again_when_either_budget_has_room() {
    for is_usual in [false, true] {
        let (budget, usual) = (Budget::new(10_000, 10_000), Budget::new(10_000, 10_000));
        let mut account = Account::new(budget, usual);
        for of_usual in [false, true] {
            account.admit(&thing(&format!("full-{of_usual}"), 10_000, of_usual));
            let late = thing(&format!("late-{of_usual}"), 2_000, of_usual);
            assert_eq!(account.admit(&late), Fate::LeftOut { was_kept: false });
        }
        tokio::time::advance(LOOK.0).await;
        assert!(!account.needs_list());
        account.forget("ns", &format!("full-{is_usual}"));
        assert!(account.needs_list());
    }
}

#[tokio::test(start_paused = true)]
async fn everything_is_listed_again_if_too_many_objects_are_left_out() {
    let mut account = Account::new(Budget::new(1_000, 1_000), Budget::new(1_000, 1_000));
    for _ in 0..=left_out::MOST {
        tokio::time::advance(Duration::from_millis(10)).await;
        assert!(!account.needs_list());
        account.admit(&thing("late", 2_000, false));
    }
    assert!(account.needs_list());
    account.begin_list();
    account.end_list();
    assert!(!account.needs_list());
}

#[tokio::test(start_paused = true)]
async fn a_list_that_was_broken_off_does_not_shorten_the_wait() {
    let mut account = Account::new(Budget::new(1_000, 1_000), Budget::new(1_000, 1_000));
    let mut list = |is_whole: bool| {
        account.begin_list();
        account.admit(&thing("late", 2_000, false));
        if is_whole {
            account.end_list();
        }
        account.shortage["ns"].wait
    };
    assert_eq!(list(true), LOOK.0);
    assert_eq!(list(true), LOOK.0 * 2);
    list(false);
    assert_eq!(list(true), LOOK.0 * 4);
}

#[test]
fn a_jobset_of_as_many_jobs_as_there_may_be_has_room_in_a_small_process() {
    let budgets = NamespaceBudgets::of(128 << 20);
    assert!(budgets.usual.has("ns", MOST_JOBS * USUAL_JOB));
}
