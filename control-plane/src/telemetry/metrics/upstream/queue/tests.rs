use super::*;
use crate::telemetry::metrics::Metrics;

const STEP: Duration = Duration::from_secs(1);

#[test]
fn a_waiting_item_is_in_the_queue_once() {
    let now = Instant::now();
    let mut items = Items::default();
    assert!(items.named(&"a", now));
    assert!(!items.named(&"a", now + STEP));
    assert!(items.named(&"b", now + STEP));
    assert_eq!(items.depth(now), 1);
    assert_eq!(items.depth(now + STEP), 2);
    // It has waited since it was first enqueued.
    assert_eq!(items.waiting[&"a"].due, now);
}

#[test]
fn a_scheduled_item_does_not_wait_yet() {
    let now = Instant::now();
    let mut items = Items::default();
    items.again(&"a", now + 5 * STEP);
    assert_eq!([items.depth(now), items.depth(now + 5 * STEP)], [0, 1]);
    // A change before the due time is an add; a change after it is not.
    assert!(items.named(&"a", now + STEP));
    assert_eq!(items.depth(now + STEP), 1);
    items.again(&"b", now + STEP);
    assert!(!items.named(&"b", now + 2 * STEP));
    assert!(!items.waiting[&"b"].counted);
    // The earlier time stays.
    items.again(&"a", now + 9 * STEP);
    assert_eq!(items.waiting[&"a"].due, now + STEP);
}

#[test]
fn an_item_in_progress_is_not_in_the_queue() {
    let now = Instant::now();
    let mut items = Items::default();
    items.working.insert("a", now);
    items.working.insert("b", now + STEP);
    assert!(items.named(&"a", now));
    assert_eq!(items.depth(now), 0);
    assert_eq!(items.unfinished(now + 3 * STEP), (5 * STEP, 3 * STEP));
    items.working.remove(&"a");
    assert_eq!(items.depth(now), 1);
}

#[test]
fn the_queue_has_upstreams_metric_names() {
    let metrics = Metrics::default();
    let queue = metrics.queue();
    let value = |name: &str| -> f64 {
        let text = metrics.encode_plain().unwrap();
        let begin = format!("workqueue_{name}{{controller=\"jobset\",name=\"jobset\"}} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&begin));
        found
            .unwrap_or_else(|| panic!("no {begin} in {text}"))
            .parse()
            .unwrap()
    };
    for name in [
        "depth",
        "adds_total",
        "retries_total",
        "queue_duration_seconds_count",
        "work_duration_seconds_count",
        "unfinished_work_seconds",
        "longest_running_processor_seconds",
    ] {
        assert_eq!(value(name), 0.0, "{name}");
    }
    let [one, two] = ["one", "two"].map(|name| ObjectRef::new(name).within("ns"));
    queue.named(&one);
    queue.named(&one);
    queue.named(&two);
    assert_eq!([value("depth"), value("adds_total")], [2.0, 2.0]);

    let work = queue.begin(one.clone());
    assert_eq!(
        [value("depth"), value("queue_duration_seconds_count")],
        [1.0, 1.0]
    );
    std::thread::sleep(Duration::from_millis(2));
    assert!(value("longest_running_processor_seconds") >= 0.002);
    assert!(value("unfinished_work_seconds") >= 0.002);
    drop(work);
    assert_eq!(value("work_duration_seconds_count"), 1.0);
    assert!(value("work_duration_seconds_sum") >= 0.002);
    assert_eq!(value("longest_running_processor_seconds"), 0.0);

    // A failed object comes back on its own and then counts as an add.
    queue.retry(&one, Duration::ZERO);
    assert_eq!([value("retries_total"), value("adds_total")], [1.0, 2.0]);
    queue.again(&one, Duration::MAX);
    drop(queue.begin(one.clone()));
    assert_eq!(value("adds_total"), 3.0);
    // It waits an hour, and blocks no other.
    queue.again(&one, Duration::from_secs(3600));
    assert_eq!(value("depth"), 1.0);
    // A deleted object is not reconciled.
    queue.taken(&two);
    queue.taken(&two);
    assert_eq!(
        [value("depth"), value("queue_duration_seconds_count")],
        [0.0, 3.0]
    );
    assert_eq!(value("work_duration_seconds_count"), 2.0);
}
