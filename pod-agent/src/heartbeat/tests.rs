use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(2);
const READY: Duration = Duration::from_secs(8);

/// A file at its nth change.
fn changed(n: i64) -> Option<Stamp> {
    Some(Stamp::File(1, [n, 0, n, 0], 0))
}

struct Bench {
    pulse: Pulse,
    now: Duration,
}

impl Bench {
    fn started(timeout: Duration) -> Self {
        let mut bench = Self {
            pulse: Pulse::new(None, Transport::File),
            now: Duration::from_secs(100),
        };
        bench.pulse.ask((timeout, Duration::ZERO), bench.now);
        bench.pulse.seen = changed(0);
        bench.pulse.from_start = true;
        bench
    }

    /// Its first heartbeat has to come within this time.
    fn ready_within(ready: Duration) -> Self {
        let mut bench = Self::started(TIMEOUT);
        bench.pulse.ready = Some(ready);
        bench
    }

    /// Checks whenever that is due for `span`, with an unchanged file. Returns the last result, and
    /// when it first occurred.
    fn look(&mut self, stamp: Option<Stamp>, span: Duration) -> (Heartbeat, Duration) {
        let (begin, end) = (self.now, self.now + span);
        let mut found = (Heartbeat::Well, Duration::ZERO);
        while let Some(at) = self.pulse.deadline().filter(|at| *at <= end) {
            self.now = at;
            let heartbeat = self.pulse.judge(stamp, at);
            if heartbeat != found.0 {
                found = (heartbeat, at - begin);
            }
        }
        self.now = end;
        found
    }
}

#[test]
fn a_worker_that_never_touches_its_file_is_never_judged() {
    let mut bench = Bench::started(TIMEOUT);
    let (found, _) = bench.look(changed(0), TIMEOUT * 1000);
    assert_eq!(found, Heartbeat::Awaited);
}

#[test]
fn a_first_heartbeat_that_does_not_come_in_time_is_noticed_within_a_second() {
    for ready in [1, 300, 5_000, 60_000].map(Duration::from_millis) {
        let mut bench = Bench::ready_within(ready);
        let (found, after) = bench.look(changed(0), ready + Duration::from_secs(1));
        assert_eq!(found, Heartbeat::Overdue, "{ready:?}");
        assert!(after >= ready, "{ready:?}: {after:?}");
        // After all.
        assert_eq!(bench.look(changed(1), TIMEOUT).0, Heartbeat::Well);
    }
}

#[test]
fn a_ready_worker_is_judged_only_by_its_silence() {
    let mut bench = Bench::ready_within(READY);
    bench.look(changed(1), TIMEOUT);
    assert_eq!(bench.look(changed(2), READY * 2).0, Heartbeat::Missed);
}

#[test]
fn the_time_to_come_up_may_become_longer_or_end_but_not_shorter() {
    let mut bench = Bench::ready_within(READY);
    bench.look(changed(0), READY / 2);
    bench.pulse.ask((TIMEOUT, READY / 4), bench.now);
    assert_eq!(bench.look(changed(0), READY / 4).0, Heartbeat::Awaited, "shorter");
    bench.pulse.ask((TIMEOUT, READY * 2), bench.now);
    assert_eq!(bench.look(changed(0), READY).0, Heartbeat::Awaited, "longer");
    bench.pulse.ask((TIMEOUT, Duration::ZERO), bench.now);
    assert_eq!(bench.look(changed(0), READY * 100).0, Heartbeat::Awaited, "ended");
    bench.pulse.ask((TIMEOUT, READY), bench.now);
    assert_eq!(
        bench.look(changed(0), READY * 100).0,
        Heartbeat::Awaited,
        "for the next start"
    );
}

#[test]
fn time_in_which_the_agent_did_not_run_is_no_time_to_come_up() {
    let mut bench = Bench::ready_within(READY);
    bench.now += Duration::from_secs(3600);
    assert_eq!(bench.pulse.judge(changed(0), bench.now), Heartbeat::Awaited);
    assert_eq!(bench.look(changed(0), READY * 2).0, Heartbeat::Overdue);
}

#[test]
fn silence_after_the_first_heartbeat_is_noticed_within_a_second() {
    for timeout in [1, 50, 500, 2_000, 60_000].map(Duration::from_millis) {
        let mut bench = Bench::started(timeout);
        let (found, after) = bench.look(changed(1), timeout + Duration::from_secs(1));
        assert_eq!(found, Heartbeat::Missed, "{timeout:?}");
        assert!(after > timeout, "{timeout:?}: {after:?}");
    }
}

#[test]
fn heartbeats_in_time_are_enough_and_one_that_comes_late_is_forgiven() {
    let mut bench = Bench::started(TIMEOUT);
    for beat in 1..50 {
        let (found, _) = bench.look(changed(beat), TIMEOUT);
        assert_eq!(found, Heartbeat::Well);
    }
    assert_eq!(bench.look(changed(49), TIMEOUT).0, Heartbeat::Missed);
    assert_eq!(bench.look(changed(50), TIMEOUT).0, Heartbeat::Well);
}

#[test]
fn a_file_whose_time_goes_backwards_was_touched() {
    let mut bench = Bench::started(TIMEOUT);
    for beat in (-50..0).rev() {
        assert_eq!(bench.look(changed(beat), TIMEOUT).0, Heartbeat::Well);
    }
}

#[test]
fn a_file_that_is_gone_is_no_heartbeat_but_a_new_one_is() {
    let mut bench = Bench::started(TIMEOUT);
    bench.look(changed(1), TIMEOUT);
    assert_eq!(bench.look(None, TIMEOUT).0, Heartbeat::Missed);
    assert_eq!(bench.look(changed(2), TIMEOUT).0, Heartbeat::Well);
}

#[test]
fn time_in_which_the_agent_did_not_run_is_not_held_against_the_worker() {
    let mut bench = Bench::started(TIMEOUT);
    bench.look(changed(1), TIMEOUT / 2);
    bench.now += Duration::from_secs(3600);
    assert_eq!(bench.pulse.judge(changed(1), bench.now), Heartbeat::Well);
    assert_eq!(bench.look(changed(1), TIMEOUT).0, Heartbeat::Missed);
}

#[test]
fn a_worker_that_needs_heartbeats_only_later_is_not_awaited() {
    let mut bench = Bench::started(Duration::ZERO);
    bench.pulse.from_start = false;
    assert_eq!(bench.pulse.deadline(), None);
    bench.pulse.ask((TIMEOUT, Duration::ZERO), bench.now);
    assert_eq!(bench.look(None, TIMEOUT * 10).0, Heartbeat::Well);
    assert_eq!(bench.look(changed(1), TIMEOUT * 2).0, Heartbeat::Missed);
    bench.pulse.ask((Duration::ZERO, Duration::ZERO), bench.now);
    assert_eq!(bench.pulse.deadline(), None);
}

#[test]
fn without_a_file_or_socket_no_heartbeat_is_awaited() {
    let dir = tempfile::tempdir().expect("tempdir");
    for transport in [Transport::File, Transport::Socket] {
        let mut pulse = Pulse::new(Some(dir.path().join("missing/beat")), transport);
        assert!(pulse.start((TIMEOUT, Duration::ZERO), Duration::ZERO).is_err());
        assert_eq!(pulse.path(), None);
        assert_eq!(pulse.check(Duration::from_secs(60)), Heartbeat::Well);
    }
}

#[test]
fn any_user_may_touch_the_file() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("beat");
    let mut pulse = Pulse::new(Some(path.clone()), Transport::File);
    for _ in 0..2 {
        pulse
            .start((TIMEOUT, Duration::ZERO), Duration::ZERO)
            .expect("a file");
        assert_eq!(fs::metadata(&path).expect("file").mode() & 0o777, 0o666);
        assert_eq!(pulse.check(Duration::from_millis(1)), Heartbeat::Awaited);
        fs::write(&path, "x").expect("write");
        assert_eq!(pulse.check(Duration::from_millis(2)), Heartbeat::Well);
    }
}

/// A worker that gives its heartbeats by socket, after a start.
fn by_socket(path: &Path) -> Pulse {
    let mut pulse = Pulse::new(Some(path.to_owned()), Transport::Socket);
    pulse
        .start((TIMEOUT, Duration::ZERO), Duration::ZERO)
        .expect("a socket");
    pulse
}

fn sender(path: &Path) -> UnixDatagram {
    let sender = UnixDatagram::unbound().expect("a socket");
    sender.set_nonblocking(true).expect("nonblocking");
    sender.connect(path).expect("connected");
    sender
}

#[test]
fn a_datagram_is_a_heartbeat_whatever_is_in_it() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("beat");
    let mut pulse = by_socket(&path);
    assert_eq!(fs::metadata(&path).expect("socket").mode() & 0o777, 0o666);
    assert_eq!(pulse.check(Duration::from_millis(1)), Heartbeat::Awaited);
    let sender = sender(&path);
    let mut now = Duration::ZERO;
    for content in [&b""[..], b"WATCHDOG=1", &[0; 4096]] {
        sender.send(content).expect("sent");
        now += TIMEOUT;
        assert_eq!(pulse.check(now), Heartbeat::Well);
        while now < TIMEOUT * 100 && pulse.check(now) == Heartbeat::Well {
            now = pulse.deadline().expect("a look");
        }
        assert_eq!(pulse.check(now), Heartbeat::Missed, "silence");
    }
}

#[test]
fn datagrams_from_before_a_start_do_not_count() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("beat");
    let mut pulse = by_socket(&path);
    let before = sender(&path);
    before.send(b"").expect("sent");
    pulse
        .start((TIMEOUT, Duration::ZERO), Duration::ZERO)
        .expect("a socket");
    assert_eq!(pulse.check(Duration::from_millis(1)), Heartbeat::Awaited);
    assert!(before.send(b"").is_err(), "its socket is gone");
    sender(&path).send(b"").expect("sent");
    assert_eq!(pulse.check(Duration::from_millis(2)), Heartbeat::Well);
}

#[test]
fn a_flood_is_read_in_parts_and_delays_no_later_heartbeat() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("beat");
    let mut pulse = by_socket(&path);
    let sender = sender(&path);
    // As many as the kernel's queue has room for.
    while sender.send(b"x").is_ok() {}
    pulse.take();
    sender.send(b"x").expect("there is room again");
    assert_eq!(pulse.check(Duration::from_millis(1)), Heartbeat::Well);
}

#[test]
fn what_an_earlier_container_left_at_the_path_is_replaced() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("beat");
    drop(by_socket(&path));
    assert!(path.exists());
    by_socket(&path);
    fs::remove_file(&path).expect("removed");
    fs::write(&path, "").expect("a file");
    by_socket(&path);
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("a directory");
    let mut pulse = Pulse::new(Some(path), Transport::Socket);
    assert!(pulse.start((TIMEOUT, Duration::ZERO), Duration::ZERO).is_err());
}
