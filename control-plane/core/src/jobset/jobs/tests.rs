//! Any text in place of the Job controller's lists of indexes.

use proptest::prelude::*;

use super::indexes;

proptest! {
    #[test]
    fn any_text_is_read_as_far_as_it_is_a_list(text in "[0-9, -]{0,40}|\\PC{0,40}|.{0,40}") {
        // Ranges are not expanded, so the result is no longer than the text.
        prop_assert!(indexes(&text).len() <= text.matches(',').count() + 1);
    }

    #[test]
    fn a_list_is_what_it_was_written_as(ranges in prop::collection::vec(any::<(u32, u32)>(), 1..8)) {
        let written = ranges.iter().map(|(first, last)| match last == first {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        });
        let written: Vec<String> = written.collect();
        let expected: Vec<_> = ranges.into_iter().map(|(first, last)| first..=last).collect();
        prop_assert_eq!(indexes(&written.join(",")), expected);
    }
}
