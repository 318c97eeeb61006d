use super::*;

#[test]
fn ends_of_jobsets_are_counted_under_upstreams_names() {
    let metrics = Metrics::default();
    let mut jobset = JobSet::default();
    jobset.metadata.name = Some("js".to_owned());
    jobset.metadata.namespace = Some("ns".to_owned());
    metrics.finished(&jobset, &TerminalState::Completed);
    metrics.finished(&jobset, &TerminalState::Failed);
    metrics.finished(&jobset, &TerminalState::Failed);
    let text = metrics.encode().unwrap();
    assert!(
        text.contains("jobset_completed_total{jobset_name=\"js\",namespace=\"ns\"} 1\n"),
        "{text}"
    );
    assert!(
        text.contains("jobset_failed_total{jobset_name=\"js\",namespace=\"ns\"} 2\n"),
        "{text}"
    );
}

#[test]
fn other_parts_register_their_own() {
    let metrics = Metrics::default();
    let counter: Counter = Counter::default();
    metrics.register(|registry| registry.register("mine", "help", counter.clone()));
    counter.inc();
    assert!(metrics.encode().unwrap().contains("mine_total 1"));
}
