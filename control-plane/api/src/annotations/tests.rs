mod any;

use super::*;

fn annotated(key: &str, value: &str) -> JobSet {
    let mut jobset = JobSet::default();
    jobset.metadata.annotations = Some([(key.to_owned(), value.to_owned())].into());
    jobset
}

#[test]
fn absent_annotations_have_defaults() {
    let jobset = JobSet::default();
    assert_eq!(jobset.in_place_timeout(), Ok(DEFAULT_IN_PLACE_TIMEOUT));
    assert_eq!(jobset.restart_grace(), Ok(None));
    assert_eq!(jobset.heartbeat_timeout(), Ok(None));
    assert_eq!(jobset.ready_timeout(), Ok(None));
    assert_eq!(jobset.supervise(), Ok(None));
}

#[test]
fn durations_are_read() {
    assert_eq!(
        annotated(IN_PLACE_TIMEOUT, "1m30s").in_place_timeout(),
        Ok(Duration::from_secs(90))
    );
    assert_eq!(
        annotated(RESTART_GRACE, "0s").restart_grace(),
        Ok(Some(Duration::ZERO))
    );
}

#[test]
fn errors_name_the_annotation() {
    let error = annotated(IN_PLACE_TIMEOUT, "60").in_place_timeout().unwrap_err();
    assert_eq!(
        error.to_string(),
        "annotation alpha.jobset.sigs.k8s.io/inplace-timeout: invalid duration \"60\": \
         a unit (h, m, s, ms, us or ns) is expected after \"60\""
    );
    let error = annotated(IN_PLACE_TIMEOUT, "0s").in_place_timeout().unwrap_err();
    assert_eq!(
        error.to_string(),
        "annotation alpha.jobset.sigs.k8s.io/inplace-timeout: duration \"0s\" must be greater than 0"
    );
    let error = annotated(HEARTBEAT_TIMEOUT, "0").heartbeat_timeout().unwrap_err();
    assert_eq!(
        error.to_string(),
        "annotation lockstep.dev/heartbeat-timeout: duration \"0\" must be greater than 0"
    );
    let error = annotated(READY_TIMEOUT, "soon").ready_timeout().unwrap_err();
    assert_eq!(
        error.to_string(),
        "annotation lockstep.dev/ready-timeout: invalid duration \"soon\": a number is expected at \"soon\""
    );
    let error = annotated(RESTART_GRACE, "").restart_grace().unwrap_err();
    assert_eq!(
        error.to_string(),
        "annotation lockstep.dev/restart-grace: invalid duration \"\": it is empty"
    );
}

#[test]
fn errors_show_the_beginning_of_a_value() {
    let long = "7".repeat(1 << 17);
    let errors = [
        annotated(HEARTBEAT_TIMEOUT, &long)
            .heartbeat_timeout()
            .unwrap_err(),
        annotated(MAX_BACKOFF, &format!("{long}x"))
            .max_backoff()
            .unwrap_err(),
        annotated(SUPERVISE, &format!("{long},")).supervise().unwrap_err(),
        annotated(ESCALATE_AFTER, &long).escalate_after().unwrap_err(),
        annotated(STANDBY, &long).standby().unwrap_err(),
    ];
    for error in errors {
        let error = error.to_string();
        assert!(
            error.contains("777...") && error.len() < 1024,
            "{} bytes",
            error.len()
        );
    }
}

#[test]
fn a_job_template_takes_precedence_in_what_is_started_ahead() {
    let of_both = |of_jobset: Option<&str>, of_job: Option<&str>| {
        let jobset = of_jobset.map_or_else(JobSet::default, |value| annotated(STANDBY, value));
        let mut job = ReplicatedJob::default();
        job.template.metadata.get_or_insert_default().annotations =
            of_job.map(|value| [(STANDBY.to_owned(), value.to_owned())].into());
        (jobset.standby_of(&job), job.standby(), jobset.standby())
    };
    use Standby::{Nothing, Program, Python};
    assert_eq!(of_both(None, None), (Nothing, Ok(None), Ok(None)));
    assert_eq!(
        of_both(Some("python"), None),
        (Python, Ok(None), Ok(Some(Python)))
    );
    assert_eq!(
        of_both(Some("python"), Some("none")),
        (Nothing, Ok(Some(Nothing)), Ok(Some(Python)))
    );
    assert_eq!(
        of_both(Some("none"), Some("python")),
        (Python, Ok(Some(Python)), Ok(Some(Nothing)))
    );
    assert_eq!(
        of_both(Some("python"), Some("program")),
        (Program, Ok(Some(Program)), Ok(Some(Python)))
    );
    // A value that is not known starts nothing.
    let (standby, of_job, _) = of_both(Some("python"), Some("Python"));
    assert_eq!(standby, Nothing);
    assert_eq!(
        of_job.unwrap_err().to_string(),
        "annotation lockstep.dev/standby: \"Python\" must be \"python\", \"program\" or \"none\""
    );
}

#[test]
fn supervised_containers_are_a_list_or_none() {
    let names = |names: &[&str]| Supervise::Containers(names.iter().map(|&name| name.to_owned()).collect());
    assert_eq!(
        annotated(SUPERVISE, "none").supervise(),
        Ok(Some(Supervise::Nothing))
    );
    assert_eq!(
        annotated(SUPERVISE, "worker").supervise(),
        Ok(Some(names(&["worker"])))
    );
    assert_eq!(
        annotated(SUPERVISE, "a, b").supervise(),
        Ok(Some(names(&["a", "b"])))
    );
    for value in ["", "a,,b", "a,", "none,a"] {
        let error = annotated(SUPERVISE, value).supervise().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("annotation lockstep.dev/supervise: "),
            "{error}"
        );
    }
}

#[test]
fn failures_within_a_time_are_read() {
    let read = |value| annotated(ESCALATE_AFTER, value).escalate_after();
    let expected = EscalateAfter {
        failures: 3,
        within: Duration::from_secs(600),
    };
    assert_eq!(read("3/10m"), Ok(Some(expected)));
    assert_eq!(read(" 3 / 10m "), Ok(Some(expected)));
    assert_eq!(JobSet::default().escalate_after(), Ok(None));
    for wrong in [
        "", "3", "10m", "3/", "/10m", "3/10", "0/10m", "3/0s", "1/1ns", "3/999ms", "-1/10m", "101/10m",
        "3/10m/1",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    assert_eq!(
        read("often").unwrap_err().to_string(),
        "annotation lockstep.dev/escalate-after: \"often\" must be a number of failures from 1 to 100 and a duration of at least 1s, such as \"3/10m\""
    );
}

#[test]
fn a_request_is_neither_empty_nor_too_long() {
    let read = |value: &str| {
        let jobset = annotated(RESTART_REQUEST, value);
        jobset.restart_request().map(|request| request.map(str::to_owned))
    };
    let longest = "r".repeat(LONGEST_RESTART_REQUEST);
    assert_eq!(read("now"), Ok(Some("now".to_owned())));
    assert_eq!(read(&longest), Ok(Some(longest.clone())));
    assert_eq!(JobSet::default().restart_request(), Ok(None));
    for (wrong, length) in [("", 0), (&format!("{longest}r"), 1025)] {
        assert_eq!(
            read(wrong).unwrap_err().to_string(),
            format!("annotation lockstep.dev/restart-request: must be 1 to 1024 bytes long, not {length}")
        );
    }
}
