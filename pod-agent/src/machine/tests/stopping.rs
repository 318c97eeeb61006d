//! From SIGTERM until nothing is left.

use super::*;

#[test]
fn stopping_kills_after_the_grace_and_parks_when_nothing_is_left() {
    let mut bench = Bench::stopping(3);
    assert_eq!(bench.machine.deadline(), Some(Duration::from_secs(5)));
    assert_eq!(bench.acts(exit(0)), [], "an exit after the signal says nothing");
    assert!(bench.machine.awaits_empty());
    assert_eq!(bench.tick(4_999), []);
    let actions = bench.tick(1);
    assert!(
        matches!(&actions[..], [Action::Say(_), Action::Kill { all: false }]),
        "{actions:?}"
    );
    assert_eq!(bench.acts(Input::TreeEmpty), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Parked, 3));
    assert!(!bench.machine.awaits_empty());
}

#[test]
fn without_grace_it_kills_at_once() {
    let mut bench = Bench::running(2);
    let actions = bench.acts(Input::Target(Target {
        grace: Duration::ZERO,
        ..stopped(3)
    }));
    assert_eq!(actions, [Action::Report, Action::Kill { all: false }]);
}

#[test]
fn newer_orders_while_stopping_raise_the_generation_and_change_nothing_else() {
    let mut bench = Bench::stopping(3);
    assert_eq!(bench.acts(Input::Target(stopped(5))), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Stopping, 5));
    assert_eq!(bench.machine.deadline(), Some(Duration::from_secs(5)));
    assert_eq!(bench.acts(Input::TreeEmpty), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Parked, 5));
}

#[test]
fn a_release_that_came_while_stopping_starts_at_once() {
    let mut bench = Bench::stopping(3);
    assert_eq!(bench.acts(Input::Target(released(3))), []);
    assert_eq!(bench.acts(Input::TreeEmpty), START_3);
}

#[test]
fn processes_that_may_not_be_killed_are_reported_until_they_are_gone() {
    let mut bench = Bench::stopping(3);
    bench.tick(5_000);
    let report = KillReport {
        denied: true,
        note: "not permitted to kill pid 7".into(),
        ..Default::default()
    };
    assert_eq!(bench.acts(Input::Killed(report.clone())), [Action::Report]);
    let status = bench.machine.status();
    assert!(status.needs_host_kill);
    let asked = at(bench.now).boot;
    assert_eq!(status.host_kill_before, asked, "what starts later is not covered");
    assert_eq!(status.detail, "not permitted to kill pid 7");
    for _ in 0..50 {
        let deadline = bench.machine.deadline().expect("keeps trying");
        assert!(deadline <= bench.now + Duration::from_millis(100));
        bench.now = deadline;
        assert_eq!(bench.acts(Input::Tick), [Action::Kill { all: false }]);
    }
    // The request does not cover what it has started since: so it asks again, but not all the time.
    assert_eq!(bench.acts(Input::Killed(report.clone())), [Action::Report]);
    let again = bench.machine.status().host_kill_before;
    assert_eq!(again, at(bench.now).boot);
    bench.now += Duration::from_millis(999);
    assert_eq!(bench.acts(Input::Killed(report)), []);

    assert_eq!(bench.acts(Input::TreeEmpty), [Action::Report]);
    assert_eq!(bench.state(), (Phase::Parked, 3));
    let status = bench.machine.status();
    assert_eq!(
        (status.needs_host_kill, status.host_kill_before),
        (false, BootNanos(0))
    );
    assert_eq!(status.detail, "");
}

#[test]
fn the_failure_is_reported_before_the_leftovers() {
    let report = KillReport {
        denied: true,
        note: "not permitted to kill pid 7".into(),
        ..Default::default()
    };
    let mut bench = Bench::running(3);
    bench.step(exit(1));
    bench.step(Input::Killed(report));
    assert_eq!(
        bench.machine.status().detail,
        "worker exited with code 1; not permitted to kill pid 7"
    );
    bench.step(Input::TreeEmpty);
    assert_eq!(bench.machine.status().detail, "worker exited with code 1");

    let mut bench = Bench::running(3);
    bench.step(exit(1));
    bench.tick(1_100);
    let detail = &bench.machine.status().detail;
    assert!(
        detail.starts_with("worker exited with code 1; processes outlive SIGKILL"),
        "{detail}"
    );
}

#[test]
fn processes_that_outlive_sigkill_are_reported() {
    for (forking, unseen) in [(false, false), (true, false), (false, true)] {
        let mut bench = Bench::stopping(3);
        bench.tick(5_000);
        let report = KillReport {
            forking,
            unseen,
            note: "pid 7 (x, D)".into(),
            denied: false,
        };
        assert_eq!(bench.acts(Input::Killed(report)), []);
        let actions = bench.tick(999);
        assert_eq!(actions, [Action::Kill { all: false }]);
        bench.now = bench.machine.deadline().expect("keeps trying");
        let actions = bench.step(Input::Tick);
        let [Action::Report, Action::Kill { all }, Action::Say(_)] = &actions[..] else {
            panic!("{actions:?}")
        };
        assert_eq!(
            *all, forking,
            "only a tree that forks on costs the sessions of kubectl exec"
        );
        let status = bench.machine.status();
        assert!(status.detail.contains("pid 7"), "{status:?}");
        assert_eq!(
            status.needs_host_kill,
            forking || unseen,
            "no more can be done to a process that has got SIGKILL"
        );
        bench.now = bench.machine.deadline().expect("keeps trying");
        assert_eq!(bench.step(Input::Tick).len(), 1, "logged once");
    }
}
