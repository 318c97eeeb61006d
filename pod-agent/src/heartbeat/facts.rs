//! What a worker says of its work in a datagram: lines `KEY=value`, in the manner of
//! `sd_notify`(3).
//!
//! It promises:
//! - A line that is not understood spoils no other one. Unknown keys are for later versions.
//! - Nothing is taken from a line that was cut off.
//! - What is kept has a bounded length, however much a worker sends.

use lockstep_protocol::beginning;
use lockstep_protocol::progress::{HIGHEST_STEP, LONGEST_ERROR, LONGEST_SECTION, Progress};

/// Most bytes of a datagram that are read.
pub(super) const LONGEST: usize = 1024;

/// Takes in what a datagram says. It was cut off if there are more bytes than [`LONGEST`].
pub(super) fn take(progress: &mut Progress, datagram: &[u8]) {
    let whole = match datagram.get(..LONGEST) {
        Some(start) if datagram.len() > LONGEST => {
            let end = start.iter().rposition(|&byte| byte == b'\n');
            &start[..end.unwrap_or(0)]
        }
        _ => datagram,
    };
    for line in whole.split(|&byte| byte == b'\n') {
        if let Some(step) = line.strip_prefix(b"STEP=").and_then(number) {
            // It never falls within an attempt.
            progress.step = progress.step.max(Some(step));
        } else if let Some(section) = line.strip_prefix(b"SECTION=") {
            progress.section = text(section, LONGEST_SECTION);
        } else if let Some(error) = line.strip_prefix(b"ERROR=") {
            progress.error = text(error, LONGEST_ERROR);
        }
    }
}

fn text(bytes: &[u8], longest: usize) -> String {
    beginning(String::from_utf8_lossy(bytes).into_owned(), longest)
}

/// A number of digits alone.
fn number(text: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(text).ok()?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = is_number.then(|| digits.parse().ok()).flatten()?;
    (number <= HIGHEST_STEP).then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn said(datagrams: &[&[u8]]) -> (Option<u64>, String) {
        let mut progress = Progress::default();
        for datagram in datagrams {
            take(&mut progress, datagram);
        }
        (progress.step, progress.section)
    }

    #[test]
    fn the_newest_of_each_key_counts_and_a_step_never_falls() {
        assert_eq!(said(&[b""]), (None, String::new()));
        assert_eq!(
            said(&[b"STEP=3\nSECTION=load", b"STEP=2\n"]),
            (Some(3), "load".to_owned())
        );
        assert_eq!(
            said(&[b"SECTION=load", b"STEP=4", b"SECTION="]),
            (Some(4), String::new())
        );
        let mut progress = Progress::default();
        take(&mut progress, b"ERROR=OSError: no space\nSTEP=1");
        take(&mut progress, b"SECTION=save");
        assert_eq!(progress.error, "OSError: no space");
    }

    #[test]
    fn a_line_that_is_not_understood_spoils_no_other_one() {
        for line in [
            &b"STEP=-1"[..],
            b"STEP=+1",
            b"STEP= 1",
            b"STEP=",
            b"STEP=1e3",
            b"STEP=9007199254740993",
            b"STEP=99999999999999999999999999",
            b"step=1",
            b"LATER=1",
            b"STEP",
            b"\xff\xfe\x00",
        ] {
            let both = [line, b"\nSTEP=7"].concat();
            assert_eq!(said(&[line]), (None, String::new()), "{line:?}");
            assert_eq!(said(&[&both]).0, Some(7), "{line:?}");
        }
    }

    #[test]
    fn nothing_is_taken_from_a_line_that_was_cut_off() {
        let mut long = b"STEP=1\nPAD=".to_vec();
        long.resize(LONGEST - 7, b'x');
        long.extend(b"\nSTEP=234");
        assert!(long.len() > LONGEST);
        assert_eq!(said(&[&long[..=LONGEST]]).0, Some(1));
        assert_eq!(said(&[&b"STEP=1".repeat(LONGEST)[..=LONGEST]]).0, None);
    }

    proptest! {
        #[test]
        fn whatever_a_worker_sends_what_is_kept_is_bounded(
            datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=LONGEST + 1), 0..5),
        ) {
            let mut progress = Progress::default();
            for datagram in &datagrams {
                let before = progress.step;
                take(&mut progress, datagram);
                for key in [&b"SECTION="[..], b"ERROR="] {
                    let marked = [key, &datagram[..]].concat();
                    take(&mut progress, &marked[..marked.len().min(LONGEST + 1)]);
                }
                prop_assert!(progress.step >= before);
                prop_assert_eq!(progress.clone().bounded(), progress.clone());
            }
        }
    }
}
