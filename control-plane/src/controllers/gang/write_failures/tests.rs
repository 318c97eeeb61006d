use super::*;

fn jobset() -> JobSet {
    let mut jobset = JobSet::default();
    jobset.metadata.name = Some("js".to_owned());
    jobset.metadata.uid = Some("u".to_owned());
    jobset
}

fn pod_group(name: &str) -> WriteTarget {
    WriteTarget::PodGroup(name.to_owned())
}

fn failure(what: WriteTarget) -> Failure {
    Failure {
        what,
        has_started: false,
        message: "no".to_owned(),
    }
}

/// Makes the same write fail at each attempt for this long. Returns the events with their times.
async fn fail(
    write_failures: &mut WriteFailures,
    failure: &Failure,
    lasts: Duration,
) -> Vec<(Duration, Event)> {
    let start = Instant::now();
    let mut events = Vec::new();
    while start.elapsed() < lasts {
        let event = write_failures.add(&jobset(), failure.clone());
        events.extend(event.map(|event| (start.elapsed(), event)));
        tokio::time::advance(write_failures.next().unwrap()).await;
    }
    events
}

#[tokio::test(start_paused = true)]
async fn a_lasting_failure_is_reported_once_and_again_after_a_success() {
    let (mut write_failures, object) = (WriteFailures::default(), ObjectRef::from_obj(&jobset()));
    for _ in 0..2 {
        let events = fail(&mut write_failures, &failure(pod_group("a")), AGAIN).await;
        let [(at, event)] = &events[..] else {
            panic!("{events:?}")
        };
        assert!(REPORT_AFTER <= *at && *at < 2 * LONGEST, "{at:?}");
        assert_eq!(
            (event.reason.as_str(), event.message.as_str()),
            ("GangNotStarted", "no")
        );
        write_failures.worked(&object, &pod_group("a"));
        assert!(!write_failures.keeps_off(&object));
        assert_eq!(write_failures.next(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_hours_is_reported_again_as_events_expire() {
    let mut write_failures = WriteFailures::default();
    let events = fail(&mut write_failures, &failure(WriteTarget::Status), 4 * AGAIN).await;
    assert_eq!(events.len(), 4, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_api_server_is_not_reported() {
    let (mut write_failures, object) = (WriteFailures::default(), ObjectRef::from_obj(&jobset()));
    for _ in 0..20 {
        let events = fail(&mut write_failures, &failure(WriteTarget::Status), REPORT_AFTER).await;
        assert_eq!(events, []);
        write_failures.worked(&object, &WriteTarget::Status);
    }
}

#[tokio::test(start_paused = true)]
async fn failures_that_are_far_apart_are_separate() {
    let mut write_failures = WriteFailures::default();
    for _ in 0..20 {
        assert_eq!(write_failures.add(&jobset(), failure(pod_group("a"))), None);
        tokio::time::advance(APART + LONGEST).await;
    }
}

/// This happens if a message is written, or if a gang has to wait for others, so that its PodGroup
/// is not tried.
#[tokio::test(start_paused = true)]
async fn only_a_success_of_the_same_write_ends_a_failure() {
    let (mut write_failures, object) = (WriteFailures::default(), ObjectRef::from_obj(&jobset()));
    let start = Instant::now();
    let mut events = Vec::new();
    while start.elapsed() < Duration::from_secs(20 * 60) {
        events.extend(write_failures.add(&jobset(), failure(pod_group("a"))));
        write_failures.worked(&object, &WriteTarget::Status);
        write_failures.worked(&object, &pod_group("b"));
        tokio::time::advance(2 * LONGEST).await;
    }
    assert_eq!(events.len(), 1, "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_changed_text_is_not_reported_and_another_object_is() {
    let mut write_failures = WriteFailures::default();
    let mut events = Vec::new();
    for number in 0..20 {
        for name in ["a", "b"] {
            let mut failure = failure(pod_group(name));
            failure.message = format!("{name}: used {number}");
            events.extend(write_failures.add(&jobset(), failure).map(|event| event.message));
        }
        tokio::time::advance(REPORT_AFTER).await;
    }
    assert_eq!(events, ["a: used 1", "b: used 1"]);
}

#[tokio::test(start_paused = true)]
async fn a_running_gang_is_not_reported_as_not_started() {
    let mut write_failures = WriteFailures::default();
    let mut failure = failure(WriteTarget::Gates);
    let waits = fail(&mut write_failures, &failure, 2 * LONGEST).await;
    failure.has_started = true;
    let runs = fail(&mut write_failures, &failure, 2 * LONGEST).await;
    let reasons = waits.iter().chain(&runs).map(|(_, event)| event.reason.as_str());
    assert_eq!(reasons.collect::<Vec<_>>(), ["GangNotStarted", "GangNotUpdated"]);
}

#[tokio::test(start_paused = true)]
async fn another_jobset_of_the_same_name_begins_without_failures() {
    let mut write_failures = WriteFailures::default();
    let events = fail(&mut write_failures, &failure(WriteTarget::Status), 2 * LONGEST).await;
    assert_eq!(events.len(), 1);
    let mut other = jobset();
    other.metadata.uid = Some("other".to_owned());
    assert_eq!(write_failures.add(&other, failure(WriteTarget::Status)), None);
    assert_eq!(write_failures.next(), Some(delay(1)));
}

#[tokio::test(start_paused = true)]
async fn retries_slow_down_to_at_most_half_a_minute() {
    let (mut write_failures, js) = (WriteFailures::default(), jobset());
    let object = ObjectRef::from_obj(&js);
    let mut before = Duration::ZERO;
    for _ in 0..20 {
        write_failures.add(&js, failure(WriteTarget::Status));
        assert!(write_failures.keeps_off(&object));
        let wait = write_failures.next().unwrap();
        assert!(before <= wait && wait <= LONGEST, "{before:?}, then {wait:?}");
        tokio::time::advance(wait).await;
        assert!(!write_failures.keeps_off(&object));
        assert_eq!(write_failures.next(), None);
        before = wait;
    }
    assert_eq!(before, LONGEST);
}

#[tokio::test(start_paused = true)]
async fn conflicts_in_a_row_are_retried_ever_later_and_not_reported() {
    let (mut write_failures, object) = (WriteFailures::default(), ObjectRef::from_obj(&jobset()));
    write_failures.conflicted(&object);
    assert!(
        !write_failures.keeps_off(&object),
        "the first conflict is retried at once"
    );
    let mut waits = Vec::new();
    for _ in 0..6 {
        write_failures.conflicted(&object);
        let wait = write_failures.next().unwrap();
        assert!(write_failures.keeps_off(&object));
        tokio::time::advance(wait).await;
        assert!(!write_failures.keeps_off(&object));
        waits.push(wait.as_millis());
    }
    assert_eq!(waits, [100, 200, 400, 800, 1_000, 1_000]);
    write_failures.settled(&object);
    write_failures.conflicted(&object);
    assert!(!write_failures.keeps_off(&object), "that is the first again");
    tokio::time::advance(2 * IN_A_ROW).await;
    write_failures.conflicted(&object);
    assert!(!write_failures.keeps_off(&object), "and so is one long after it");
}
