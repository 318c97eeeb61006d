use std::os::unix::net::UnixListener;

use lockstep_proto::agent::v1::{State, agent_message::Kind};
use proptest::prelude::*;

use super::*;

const T0: Duration = Duration::ZERO;

fn frame(target: &Target) -> Vec<u8> {
    let body = target.encode_to_vec();
    let length = u32::try_from(body.len()).expect("small");
    [&length.to_be_bytes()[..], &body].concat()
}

fn target(generation: u64) -> Target {
    Target {
        epoch: 1,
        generation,
        ..Target::default()
    }
}

fn state(revision: u64) -> AgentMessage {
    AgentMessage {
        kind: Some(Kind::State(State {
            revision,
            detail: "x".repeat(1000),
            ..State::default()
        })),
    }
}

/// A link, and the daemon's end of it.
fn pair() -> (tempfile::TempDir, Link, UnixStream) {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).expect("bind");
    let mut link = Link::new(&path);
    assert!(link.connect(T0));
    let (daemon, _) = listener.accept().expect("accept");
    (dir, link, daemon)
}

/// All complete messages that the daemon has received.
fn received(bytes: &[u8]) -> (Vec<Kind>, usize) {
    let mut rest = bytes;
    let mut kinds = Vec::new();
    while let Some((header, body)) = rest.split_first_chunk() {
        let Some((frame, after)) = body.split_at_checked(u32::from_be_bytes(*header) as usize) else {
            break;
        };
        kinds.push(
            AgentMessage::decode(frame)
                .expect("a message")
                .kind
                .expect("a kind"),
        );
        rest = after;
    }
    (kinds, rest.len())
}

#[test]
fn orders_arrive_in_whatever_pieces() {
    let (_dir, mut link, mut daemon) = pair();
    let bytes = [frame(&target(1)), frame(&Target::default()), frame(&target(2))].concat();
    let mut got = Vec::new();
    for byte in bytes {
        daemon.write_all(&[byte]).expect("write");
        got.extend(link.drive(T0));
    }
    assert_eq!(got, [target(1), Target::default(), target(2)]);
    assert!(link.is_up());
}

#[test]
fn invalid_frames_end_the_connection() {
    let oversized = 65_537_u32.to_be_bytes().to_vec();
    let undecodable = [&2_u32.to_be_bytes()[..], &[0xff, 0xff]].concat();
    for bytes in [oversized, undecodable] {
        let (_dir, mut link, mut daemon) = pair();
        daemon.write_all(&frame(&target(1))).expect("write");
        daemon.write_all(&bytes).expect("write");
        assert_eq!(link.drive(T0), [target(1)], "what came before it counts");
        assert!(!link.is_up());
        assert!(link.deadline().is_some_and(|at| at > T0));
    }
}

#[test]
fn a_frame_of_the_largest_size_is_taken() {
    let mut big = target(1);
    let codes = vec![1; 60_000];
    big.terminal_codes.push(lockstep_proto::agent::v1::TerminalCodes {
        negated: false,
        codes,
    });
    let bytes = frame(&big);
    let mut frames = Frames::default();
    let mut targets = Vec::new();
    for piece in bytes.chunks(4096) {
        frames.push(piece, &mut targets).expect("no error");
        assert!(frames.pending.len() <= AGENT_MAX_FRAME + 4);
    }
    assert_eq!(targets, [big]);
    assert_eq!(frames.pending.capacity(), 0, "memory is given back");
}

#[test]
fn a_daemon_that_does_not_read_costs_no_memory_and_gets_the_newest_state() {
    let (_dir, mut link, mut daemon) = pair();
    let register = AgentMessage {
        kind: Some(Kind::Register(Default::default())),
    };
    link.open(T0, &register, state(0));
    let last = 10_000;
    for revision in 1..=last {
        link.post(T0, state(revision));
        let stream = link.stream.as_ref().expect("up");
        assert!(stream.out.len() < 4096);
    }
    assert!(!link.is_flushed());

    daemon.set_nonblocking(true).expect("nonblocking");
    let mut bytes = Vec::new();
    while !link.is_flushed() || received(&bytes).1 != 0 {
        assert!(
            daemon
                .read_to_end(&mut bytes)
                .is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
        );
        link.drive(T0);
    }
    assert!(daemon.read_to_end(&mut bytes).is_err());
    let (kinds, rest) = received(&bytes);
    assert_eq!(rest, 0);
    assert!(matches!(kinds.first(), Some(Kind::Register(_))));
    let revisions: Vec<u64> = kinds
        .iter()
        .filter_map(|kind| match kind {
            Kind::State(state) => Some(state.revision),
            Kind::Register(_) => None,
        })
        .collect();
    assert!(
        revisions.is_sorted() && revisions.len() < 2000,
        "{}",
        revisions.len()
    );
    assert_eq!(revisions.last(), Some(&last));
}

#[test]
fn retries_slow_down_to_one_a_second() {
    let mut link = Link::new(Path::new("/nonexistent/agent.sock"));
    let mut now = T0;
    let mut first_second = 0;
    let mut pauses = Vec::new();
    for _ in 0..20 {
        assert!(!link.connect(now));
        let at = link.deadline().expect("down");
        assert!(!link.connect(now), "not before it is due");
        pauses.push(at - now);
        now = at;
        first_second += usize::from(now < Duration::from_secs(1));
    }
    assert!(first_second <= 10, "{first_second}");
    assert!(pauses[0] >= RETRY_MIN / 2 && pauses[0] <= RETRY_MIN);
    assert!(
        pauses[10..]
            .iter()
            .all(|pause| (RETRY_MAX / 2..=RETRY_MAX).contains(pause)),
        "{pauses:?}"
    );
}

#[test]
fn only_a_connection_that_lasted_makes_the_next_retry_quick() {
    for (lived, quick) in [(Duration::from_millis(10), false), (Duration::from_secs(2), true)] {
        let (dir, mut link, daemon) = pair();
        link.pause = RETRY_MAX;
        drop(daemon);
        link.drive(lived);
        assert!(!link.is_up());
        let pause = link.deadline().expect("down") - lived;
        assert_eq!(pause <= RETRY_MIN, quick, "{pause:?}");
        drop(dir);
    }
}

proptest! {
    #[test]
    fn no_bytes_can_make_it_panic_or_grow(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..32),
    ) {
        let mut frames = Frames::default();
        let mut targets = Vec::new();
        for piece in pieces {
            if frames.push(&piece, &mut targets).is_err() {
                break;
            }
            prop_assert!(frames.pending.len() <= AGENT_MAX_FRAME + 4);
        }
    }
}
