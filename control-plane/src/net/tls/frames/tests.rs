use proptest::prelude::*;

use super::*;

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, 0, 0, 0, 0, 1], payload].concat()
}

fn goaway(code: u32) -> Vec<u8> {
    let payload = [&[0; 4], code.to_be_bytes().as_slice(), b"too_many_pings"].concat();
    frame(GOAWAY, &payload)
}

/// The findings if this many bytes are written at a time.
fn found(bytes: &[u8], at_once: usize) -> Vec<String> {
    let mut answers = Answers::default();
    let found = bytes.chunks(at_once).filter_map(|part| answers.wrote(part));
    found.map(|why| why.to_string()).collect()
}

#[test]
fn an_error_of_the_clients_is_found_however_it_is_written() {
    // Settings, data that look like an end, a stream cancelled by the client, and the end.
    let bytes = [
        frame(4, &[0; 6]),
        frame(0, &goaway(1)),
        frame(4, &[]),
        frame(RST_STREAM, &8u32.to_be_bytes()),
        goaway(11),
    ]
    .concat();
    for at_once in 1..=bytes.len() {
        assert_eq!(
            found(&bytes, at_once),
            ["the client's HTTP/2 is malformed: ENHANCE_YOUR_CALM"],
            "{at_once}"
        );
    }
}

#[test]
fn an_end_as_between_honest_peers_is_none() {
    let ends = [
        goaway(0),
        goaway(2),
        goaway(7),
        frame(RST_STREAM, &5u32.to_be_bytes()),
    ]
    .concat();
    for at_once in 1..=ends.len() {
        assert_eq!(found(&ends, at_once), [""; 0], "{at_once}");
    }
    assert_eq!(found(&frame(RST_STREAM, &1u32.to_be_bytes()), 64).len(), 1);
    // Truncated frames, which no server sends.
    assert_eq!(
        found(&[frame(GOAWAY, &[]), frame(RST_STREAM, &[1])].concat(), 64),
        [""; 0]
    );
}

#[test]
fn the_preface_may_come_in_parts_and_anything_else_is_noticed_once() {
    let mut preface = Preface::default();
    for byte in [PREFACE, &goaway(1)].concat() {
        assert!(preface.read(&[byte]).is_none());
    }
    let mut preface = Preface::default();
    assert!(preface.read(b"PRI * HT").is_none());
    assert!(matches!(preface.read(b"XP/2.0"), Some(Rejected::NotHttp2)));
    assert!(preface.read(b"GET /").is_none());
}

proptest! {
    #[test]
    fn however_a_client_begins_it_is_told_once_and_the_same_in_any_pieces(
        right in 0..=PREFACE.len(),
        rest in prop::collection::vec(any::<u8>(), 0..40),
        at_once in 1..30_usize,
    ) {
        let bytes = [&PREFACE[..right], &rest].concat();
        let told = |size: usize| {
            let mut preface = Preface::default();
            let wrong = bytes.chunks(size).filter_map(|part| preface.read(part)).count();
            (wrong, preface.is_whole())
        };
        let is_wrong = bytes.iter().zip(PREFACE).any(|(byte, expected)| byte != expected);
        let is_whole = is_wrong || bytes.len() >= PREFACE.len();
        prop_assert_eq!(told(at_once), (usize::from(is_wrong), is_whole));
    }

    #[test]
    fn whatever_is_written_little_of_it_is_kept(bytes in prop::collection::vec(any::<u8>(), 0..400), at_once in 1..50_usize) {
        let mut answers = Answers::default();
        for part in bytes.chunks(at_once) {
            answers.wrote(part);
            prop_assert!(answers.head.len() <= HEADER + 8 && answers.rest < 1 << 24);
        }
        prop_assert_eq!(found(&bytes, at_once), found(&bytes, 1));
    }
}
