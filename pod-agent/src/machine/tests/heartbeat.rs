//! Workers that must give heartbeats.

use super::*;

/// Running at generation 0, with a heartbeat at least every second.
fn watched() -> Bench {
    let mut bench = Bench::fresh();
    bench.step(Input::Target(Target {
        start_fresh: true,
        heartbeat_timeout: Duration::from_secs(1),
        ..released(0)
    }));
    bench.step(Input::Started);
    bench
}

#[test]
fn what_a_worker_says_is_reported_and_a_new_attempt_has_said_nothing() {
    let mut bench = watched();
    let since = bench.machine.status().since;
    let progress = Progress {
        step: Some(7),
        section: "load".to_owned(),
        error: "OSError: gone".to_owned(),
    };
    bench.now += Duration::from_secs(1);
    assert_eq!(bench.acts(Input::Progress(progress.clone())), [Action::Report]);
    assert_eq!(bench.acts(Input::Progress(progress.clone())), []);
    let status = bench.machine.status().clone();
    assert_eq!((status.progress, status.since), (progress.clone(), since));
    bench.step(Input::WorkerExited(Exit::Code(1)));
    bench.step(Input::TreeEmpty);
    assert_eq!(bench.machine.status().progress, progress, "the last attempt's");
    bench.step(Input::Target(released(1)));
    assert!(bench.machine.status().progress.is_empty());
}

#[test]
fn a_missed_heartbeat_is_reported_and_nothing_else() {
    let mut bench = watched();
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Awaited);
    bench.step(Input::Heartbeat(Heartbeat::Well));
    let running_since = bench.machine.status().since;
    bench.now += Duration::from_secs(2);
    assert_eq!(bench.acts(Input::Heartbeat(Heartbeat::Missed)), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Running, 0));
    let status = bench.machine.status().clone();
    assert_eq!(status.heartbeat, Heartbeat::Missed);
    assert!(status.since > running_since);
    assert_eq!(bench.acts(Input::Heartbeat(Heartbeat::Missed)), []);

    assert_eq!(bench.acts(Input::Heartbeat(Heartbeat::Well)), [Action::Report]);
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Well);
}

#[test]
fn a_first_heartbeat_that_does_not_come_in_time_is_reported_and_nothing_else() {
    let mut bench = watched();
    let running_since = bench.machine.status().since;
    bench.now += Duration::from_secs(2);
    assert_eq!(bench.acts(Input::Heartbeat(Heartbeat::Overdue)), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Running, 0));
    assert!(bench.machine.status().since > running_since);
    assert_eq!(bench.acts(Input::Heartbeat(Heartbeat::Well)), [Action::Report]);
}

#[test]
fn a_worker_that_does_not_run_has_no_heartbeat() {
    let mut bench = watched();
    bench.step(Input::Heartbeat(Heartbeat::Missed));
    assert_eq!(bench.machine.heartbeat_timeout(), Duration::from_secs(1));
    bench.step(Input::Target(stopped(1)));
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Well);
    assert_eq!(bench.machine.heartbeat_timeout(), Duration::ZERO);
    bench.step(Input::Heartbeat(Heartbeat::Missed));
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Well);
}

#[test]
fn a_heartbeat_that_is_no_longer_required_is_not_missed() {
    let mut bench = watched();
    bench.step(Input::Heartbeat(Heartbeat::Missed));
    bench.step(Input::Target(released(0)));
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Well);
}

#[test]
fn a_worker_that_is_asked_to_exit_need_not_give_heartbeats() {
    let mut bench = watched();
    bench.step(signal(libc::SIGTERM));
    assert_eq!(bench.machine.heartbeat_timeout(), Duration::ZERO);
    bench.step(Input::Heartbeat(Heartbeat::Missed));
    assert_eq!(bench.machine.status().heartbeat, Heartbeat::Well);
}
