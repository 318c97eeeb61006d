use super::*;
use crate::jobset::pod::{Changed, PodSummary};

fn pod(job: &str, recreation: i32, obstacle: Option<Obstacle>) -> PodSummary {
    PodSummary {
        job: Some(job.to_owned()),
        job_uid: Some("job".to_owned()),
        index: Some(0),
        restart_attempt: Some(recreation),
        obstacle,
        ..PodSummary::default()
    }
}

#[test]
fn a_pod_spec_shows_that_the_pod_can_have_no_agents() {
    let of = |change: fn(&mut PodSpec)| {
        let mut spec = PodSpec::default();
        change(&mut spec);
        Obstacle::of(&spec).map(|obstacle| obstacle.to_string())
    };
    let said = |text: &str| Some(text.to_owned());
    assert_eq!(of(|_| {}), None);
    assert_eq!(
        of(|pod| pod.share_process_namespace = Some(true)),
        said("shareProcessNamespace")
    );
    assert_eq!(of(|pod| pod.share_process_namespace = Some(false)), None);
    assert_eq!(of(|pod| pod.host_pid = Some(true)), said("hostPID"));
    let kata = |pod: &mut PodSpec| pod.runtime_class_name = Some("kata-qemu".to_owned());
    assert_eq!(of(kata), said("runtimeClassName kata-qemu"));
    assert_eq!(of(|pod| pod.runtime_class_name = Some("nvidia".to_owned())), None);
}

#[test]
fn of_the_present_attempt_the_first_job_is_named() {
    let shared = || Some(Obstacle::SharedProcesses);
    let pods = [
        pod("c", 1, shared()),
        pod("b", 1, Some(Obstacle::HostProcesses)),
        pod("a", 1, None),
        pod("a", 0, shared()),
    ];
    let expected = Changed {
        job: "b".to_owned(),
        obstacle: Obstacle::HostProcesses,
    };
    assert_eq!(Changed::among(&pods, 1), Some(expected));
    assert_eq!(Changed::among(&pods, 2), None);
    // A pod that no Job controls is not a worker.
    let stray = PodSummary {
        job_uid: None,
        ..pod("a", 1, shared())
    };
    assert_eq!(Changed::among([&stray], 1), None);
}
