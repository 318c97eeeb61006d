use super::*;

#[tokio::test(start_paused = true)]
async fn a_change_after_failures_in_a_row_waits_for_a_moment() {
    let failures = Failures::default();
    assert_eq!(failures.rests(&"js"), None);
    assert_eq!(failures.add("js"), 1);
    assert_eq!(failures.rests(&"js"), None);
    assert_eq!(failures.add("js"), 2);
    assert_eq!(failures.rests(&"js"), Some(Duration::from_millis(100)));
    assert_eq!(failures.rests(&"other"), None);
    tokio::time::advance(Duration::from_millis(60)).await;
    assert_eq!(failures.rests(&"js"), Some(Duration::from_millis(40)));
    tokio::time::advance(Duration::from_millis(40)).await;
    assert_eq!(failures.rests(&"js"), None);
    failures.add("js");
    failures.forget(&"js");
    assert_eq!(failures.rests(&"js"), None);
}
