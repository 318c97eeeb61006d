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
fn only_the_latest_ended_jobsets_have_series() {
    let metrics = Metrics::default();
    let mut jobset = JobSet::default();
    jobset.metadata.namespace = Some("ns".to_owned());
    for number in 0..=ENDED {
        jobset.metadata.name = Some(format!("js-{number}"));
        metrics.finished(&jobset, &TerminalState::Failed);
        metrics.finished(&jobset, &TerminalState::Completed);
    }
    let text = metrics.encode().unwrap();
    for result in ["completed", "failed"] {
        let told = |number: usize| {
            let line = format!("jobset_{result}_total{{jobset_name=\"js-{number}\",namespace=\"ns\"}} 1\n");
            text.contains(&line)
        };
        assert!(!told(0));
        assert!(told(1) && told(ENDED));
    }
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
fn reconciles_are_counted_under_upstreams_names_too() {
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

#[test]
fn resource_usage_has_the_standard_names() {
    let text = Metrics::default().encode_plain().unwrap();
    let value = |name: &str| -> f64 {
        let of = |line: &str| line.strip_prefix(name)?.trim().parse().ok();
        text.lines()
            .find_map(of)
            .unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    assert!(value("process_resident_memory_bytes ") > 1e6);
    assert!(value("process_virtual_memory_bytes ") > value("process_resident_memory_bytes "));
    assert!(value("process_open_fds ") >= 3.0);
    assert!(value("process_cpu_seconds_total ") >= 0.0);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let age = now.as_secs_f64() - value("process_start_time_seconds ");
    assert!((-5.0..86_400.0).contains(&age), "{age}");
}

#[test]
fn leadership_is_reported_by_lease_name() {
    let metrics = Metrics::default();
    let line = |value: u8| format!("leader_election_master_status{{name=\"lease\"}} {value}\n");
    assert!(!metrics.encode().unwrap().contains("master_status{"));
    metrics.follows(Some("lease"));
    assert!(metrics.encode().unwrap().contains(&line(0)));
    metrics.leads(Some("lease"));
    assert!(metrics.encode().unwrap().contains(&line(1)));
    assert!(metrics.encode().unwrap().contains("lockstep_leader 1\n"));
}

#[test]
fn counters_are_called_by_the_name_of_their_samples() {
    let open = "# HELP jobset_failed The number of failed JobSets.\n# TYPE jobset_failed counter\n\
                    jobset_failed_total{jobset_name=\"a\",namespace=\"b\"} 1\n\
                    # HELP seconds How long.\n# TYPE seconds histogram\n# UNIT seconds seconds\n\
                    seconds_bucket{le=\"+Inf\"} 2\n# TYPE what unknown\nwhat 3\n# EOF\n";
    let plain = "# HELP jobset_failed_total The number of failed JobSets.\n# TYPE jobset_failed_total counter\n\
                     jobset_failed_total{jobset_name=\"a\",namespace=\"b\"} 1\n\
                     # HELP seconds How long.\n# TYPE seconds histogram\n\
                     seconds_bucket{le=\"+Inf\"} 2\n# TYPE what untyped\nwhat 3\n";
    assert_eq!(to_plain(open), plain);
}
