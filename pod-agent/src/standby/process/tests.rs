use super::*;

fn process() -> (Process, UnixDatagram) {
    let (ours, theirs) = sys::pair().unwrap();
    // No process has this PID.
    (Process::new(i32::MAX, ours), UnixDatagram::from(theirs))
}

#[test]
fn what_it_says_is_read_in_order() {
    let (mut standby, other) = process();
    other.send(b"importing torch").unwrap();
    other.send(b"ready 12 2048 1500").unwrap();
    standby.listen();
    let ready = Ready {
        modules: 12,
        memory_kib: 2048,
        ahead: Duration::from_millis(1500),
    };
    assert_eq!(standby.state, State::Ready(ready));
    assert_eq!(standby.cause(false), None);
    other.send(b"started").unwrap();
    standby.listen();
    assert_eq!(standby.state, State::Ready(ready), "only a release is confirmed");
}

#[test]
fn a_program_says_no_numbers() {
    let (ours, theirs) = sys::pair().unwrap();
    let mut standby = Process::parking(std::process::id().cast_signed(), ours);
    let other = UnixDatagram::from(theirs);
    for odd in ["importing torch", "refused x", "ready 12 2048 1500", "started"] {
        other.send(odd.as_bytes()).unwrap();
    }
    standby.listen();
    assert_eq!(standby.state, State::Warming);
    assert_eq!(standby.importing(), None);
    assert_eq!(standby.cause(false), None);
    other.send(b"ready").unwrap();
    standby.listen();
    let State::Ready(ready) = standby.state else {
        panic!("not ready")
    };
    assert!(ready.memory_kib > 100 && ready.modules == 0, "{ready:?}");
    // It is measured once: it has grown since, and nothing is said of that.
    let grown = vec![1_u8; 64 << 20];
    other.send(b"ready").unwrap();
    standby.listen();
    assert_eq!(standby.state, State::Ready(ready));
    drop(grown);
    assert!(standby.release([]));
    other.send(b"started").unwrap();
    standby.listen();
    assert_eq!(standby.state, State::Confirmed);
}

#[test]
fn a_release_is_one_message_with_the_changes() {
    let (mut standby, other) = process();
    let changes = [("A", Some("1=2")), ("B", None)];
    let changes = changes.map(|(name, value)| (OsStr::new(name), value.map(OsStr::new)));
    assert!(standby.release(changes));
    let mut text = [0; 64];
    let length = other.recv(&mut text).unwrap();
    assert_eq!(&text[..length], b"start\0A=1=2\0B");
    other.send(b"started").unwrap();
    standby.listen();
    assert_eq!(standby.state, State::Confirmed);
    drop(other);
    assert!(!standby.release([]));
}

#[test]
fn the_module_that_it_ended_with_is_the_culprit() {
    let (mut standby, other) = process();
    other.send(b"importing bad").unwrap();
    standby.listen();
    let Some(Fault::Module { name, .. }) = standby.cause(false) else {
        panic!("no culprit");
    };
    assert_eq!(name, "bad");
    other.send(b"importing innocent").unwrap();
    standby.listen();
    assert_eq!(standby.cause(true), None, "it was killed by another process");
    other.send(b"spoiled web it listens on a port").unwrap();
    standby.listen();
    let fault = Fault::Module {
        name: "web".to_owned(),
        why: "it listens on a port".to_owned(),
    };
    assert_eq!(standby.cause(true), Some(fault));
}

#[test]
fn all_that_one_has_said_counts_once_it_has_ended() {
    let (mut standby, other) = process();
    assert!(standby.release([]));
    for _ in 0..5 {
        other.send(b"importing more").unwrap();
    }
    other.send(b"started").unwrap();
    // With the release unread, which the kernel tells as an error.
    drop(other);
    standby.hear_out();
    assert!(standby.closed);
    assert_eq!(standby.state, State::Confirmed);
}

#[test]
fn odd_messages_are_bounded_or_ignored() {
    for odd in ["", "what", "ready", "ready a b c", "ready 1 2 99999999999"] {
        assert_eq!(parse(odd.as_bytes()), None, "{odd}");
    }
    assert_eq!(
        parse(b"refused \x1b[2J\xff"),
        Some(Message::Fault(Fault::Other("the hook: [2J\u{fffd}".to_owned())))
    );
    let long = format!("importing {}", "\u{e9}".repeat(400));
    let Some(Message::Importing(name)) = parse(long.as_bytes()) else {
        panic!("not read");
    };
    assert!(name.len() <= MAX_REASON);
}
