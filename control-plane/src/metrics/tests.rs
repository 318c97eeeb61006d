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

#[test]
fn looks_are_counted_under_upstreams_names_too() {
    let metrics = Metrics::default();
    let series = |name: &str, value: &str| {
        let text = metrics.encode().unwrap();
        let line = format!("controller_runtime_reconcile_{name} {value}");
        assert!(text.lines().any(|found| found == line), "no {line} in {text}");
    };
    for result in ["error", "requeue", "requeue_after", "success"] {
        series(
            &format!("total{{controller=\"jobset\",result=\"{result}\"}}"),
            "0",
        );
    }
    series("errors_total{controller=\"jobset\"}", "0");
    series("time_seconds_count{controller=\"jobset\"}", "0");

    let took = Duration::from_millis(20);
    for (outcome, again, times) in [
        (Outcome::Done, false, 4),
        (Outcome::Done, true, 3),
        (Outcome::Conflict, false, 2),
        (Outcome::Failed, true, 1),
    ] {
        for _ in 0..times {
            metrics.reconciled(outcome, again, took);
        }
    }
    for (result, times) in [
        ("success", "4"),
        ("requeue_after", "3"),
        ("requeue", "2"),
        ("error", "1"),
    ] {
        series(
            &format!("total{{controller=\"jobset\",result=\"{result}\"}}"),
            times,
        );
    }
    series("errors_total{controller=\"jobset\"}", "1");
    series("time_seconds_count{controller=\"jobset\"}", "10");
    series("time_seconds_bucket{controller=\"jobset\",le=\"0.01\"}", "0");
    series("time_seconds_bucket{controller=\"jobset\",le=\"0.025\"}", "10");
}
