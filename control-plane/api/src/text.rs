//! Text of users, as it is shown to them.

/// The beginning of a text, of `most` bytes at most, and `...` after what was cut off. An annotation may have 256 KiB, and an error that names it has no room
/// for that.
#[must_use]
pub fn beginning(text: &str, most: usize) -> String {
    match text.floor_char_boundary(most) {
        end if end < text.len() => format!("{}...", &text[..end]),
        _ => text.to_owned(),
    }
}
