use futures::stream;
use k8s_openapi::api::batch::v1::Job;

use super::super::job::PackedJob;
use super::super::notify;
use super::*;

fn key(name: &str) -> ObjectRef<JobSet> {
    ObjectRef::new(name).within("ns")
}

fn job(name: &str, jobset: &str, version: u32) -> Job {
    let mut job = Job::default();
    job.metadata.name = Some(name.to_owned());
    job.metadata.namespace = Some("ns".to_owned());
    job.metadata.resource_version = Some(version.to_string());
    job.metadata.labels = Some([(labels::JOBSET_NAME.to_owned(), jobset.to_owned())].into());
    job
}

/// Follows the events to their end. Returns the cache for each JobSet, and the notifications.
async fn follow(cache: &Arc<Cache<Job>>, writer: Writer<Job>, events: Vec<Event<Job>>) -> Vec<String> {
    let (notifier, mut notified) = notify::channel();
    let follow = Follow {
        kind: "Job",
        cache: Arc::clone(cache),
        writer,
        owner: jobset_of::<Job>,
        subscribers: vec![Subscriber::all(&notifier)],
    };
    // The notifications end with their last sender.
    drop(notifier);
    follow
        .run(stream::iter(events.into_iter().map(Ok)), CancellationToken::new())
        .await;
    let mut told = Vec::new();
    while let Some(key) = notified.next().await {
        told.push(key.name);
    }
    told.sort();
    told
}

fn seen(cache: &Cache<Job>, jobset: &str) -> Vec<String> {
    let mut names: Vec<_> = cache
        .seen(&key(jobset))
        .iter()
        .map(|job| job.name_any())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn objects_are_found_by_their_jobset_and_changes_are_notified() {
    let (cache, writer) = Cache::new();
    let events = vec![
        Event::Init,
        Event::InitApply(job("a-0", "a", 1)),
        Event::InitApply(job("b-0", "b", 2)),
        Event::InitDone,
        Event::Apply(job("a-1", "a", 3)),
        Event::Delete(job("b-0", "b", 4)),
    ];
    assert_eq!(follow(&cache, writer, events).await, ["a", "b"]);
    assert_eq!(seen(&cache, "a"), ["a-0", "a-1"]);
    assert_eq!(seen(&cache, "b"), Vec::<String>::new());
}

#[tokio::test]
async fn objects_missing_from_a_new_list_are_notified_too() {
    let (cache, writer) = Cache::new();
    let events = vec![
        Event::Init,
        Event::InitApply(job("a-0", "a", 1)),
        Event::InitDone,
        Event::Init,
        Event::InitApply(job("b-0", "b", 2)),
        Event::InitDone,
    ];
    assert_eq!(follow(&cache, writer, events).await, ["a", "b"]);
    assert_eq!(seen(&cache, "a"), Vec::<String>::new());
    assert_eq!(seen(&cache, "b"), ["b-0"]);
}

#[tokio::test]
async fn the_version_of_a_jobset_changes_with_its_own_objects() {
    let (cache, mut writer) = Cache::new();
    let mut apply = |event| {
        cache.apply(&mut writer, &event, jobset_of::<Job>);
        ["a", "b"].map(|jobset| cache.version(&key(jobset)))
    };
    apply(Event::Init);
    apply(Event::InitApply(job("a-0", "a", 1)));
    let listed = apply(Event::InitDone);
    assert_eq!(listed[1], 0);
    let changed = apply(Event::Apply(job("a-0", "a", 2)));
    assert_ne!(changed[0], listed[0]);
    let other = apply(Event::Apply(job("b-0", "b", 3)));
    assert_eq!(other[0], changed[0]);
    assert_ne!(other[1], 0);
    let deleted = apply(Event::Delete(job("b-0", "b", 4)));
    assert_eq!(deleted, [changed[0], 0]);
    apply(Event::Init);
    apply(Event::InitApply(job("a-0", "a", 2)));
    assert_ne!(apply(Event::InitDone)[0], changed[0]);
}

#[test]
fn a_list_takes_no_memory_for_what_it_repeats() {
    let (cache, mut writer) = Cache::new();
    let mut listed = |version| {
        let job = PackedJob::of(&job("a-0", "a", version));
        for event in [Event::Init, Event::InitApply(job), Event::InitDone] {
            cache.apply(&mut writer, &event, PackedJob::jobset);
        }
        let name = ObjectRef::new("a-0").within("ns");
        cache.store.get(&name).unwrap()
    };
    let first = listed(1);
    assert!(listed(1).shares_with(&first));
    let changed = listed(2);
    assert!(!changed.shares_with(&first));
    assert_eq!(changed.revision(), 2);
}

#[tokio::test]
async fn an_object_whose_label_changes_moves_to_the_other_jobset() {
    let (cache, writer) = Cache::new();
    let events = vec![
        Event::Init,
        Event::InitDone,
        Event::Apply(job("j", "a", 1)),
        Event::Apply(job("j", "b", 2)),
    ];
    assert_eq!(follow(&cache, writer, events).await, ["a", "b"]);
    assert_eq!(seen(&cache, "a"), Vec::<String>::new());
    assert_eq!(seen(&cache, "b"), ["j"]);
    assert_eq!(cache.version(&key("a")), 0);
}

#[tokio::test]
async fn the_watch_confirms_own_writes() {
    let (cache, writer) = Cache::new();
    for (name, jobset) in [("a-0", "a"), ("b-0", "b"), ("c-0", "c")] {
        cache.recent.put(key(jobset), Arc::new(job(name, jobset, 10)));
    }
    let events = vec![
        Event::Apply(job("a-0", "a", 10)),
        Event::Apply(job("b-0", "b", 9)),
        Event::Delete(job("c-0", "c", 11)),
    ];
    follow(&cache, writer, events).await;
    let unconfirmed = |jobset: &str| cache.recent.complete(&key(jobset), Vec::new()).1;
    assert_eq!(["a", "b", "c"].map(unconfirmed), [false, true, false]);
}

#[tokio::test]
async fn all_waiters_for_the_first_list_are_woken() {
    let (cache, writer) = Cache::new();
    let waiting = || {
        let cache = Arc::clone(&cache);
        tokio::spawn(async move { cache.wait_until_ready().await })
    };
    let waiters = [waiting(), waiting(), waiting()];
    tokio::task::yield_now().await;
    assert!(!cache.is_ready());
    follow(&cache, writer, vec![Event::Init, Event::InitDone]).await;
    assert!(cache.is_ready());
    for waiter in waiters {
        waiter.await.unwrap();
    }
}

#[test]
fn a_new_list_never_hides_existing_objects() {
    const LISTS: u32 = 300;
    let (cache, mut writer) = Cache::new();
    let list = |version: u32| {
        let jobs = (0..50).map(move |job_index| job(&format!("a-{job_index}"), "a", version));
        let jobs = jobs.map(Event::InitApply);
        [Event::Init].into_iter().chain(jobs).chain([Event::InitDone])
    };
    let mut apply = |cache: &Cache<Job>, version| {
        for event in list(version) {
            cache.apply(&mut writer, &event, jobset_of::<Job>);
        }
    };
    apply(&cache, 1);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                assert_eq!(cache.seen(&key("a")).len(), 50);
            }
        });
        for version in 2..LISTS {
            apply(&cache, version);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        reader.join().unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_is_relisted_at_once_but_only_once_in_a_row() {
    let gone = || {
        let status = kube::core::Status::failure("too old resource version", "Expired").with_code(410);
        Err(watcher::Error::WatchError(status.boxed()))
    };
    let events = [
        gone(),
        Ok(Event::Init),
        Ok(Event::InitDone),
        gone(),
        Ok(Event::Init),
    ];
    let seen: Vec<_> = patient::<Job>(stream::iter(events))
        .map(|event| (event.is_ok(), tokio::time::Instant::now()))
        .collect()
        .await;
    let (ok, at): (Vec<bool>, Vec<_>) = seen.into_iter().unzip();
    assert_eq!(ok, [true, true, false, true]);
    assert_eq!(at[0], at[2], "the first is answered at once");
    assert!(
        at[3] > at[2],
        "the list that came of it was of no use: now it waits"
    );
}
