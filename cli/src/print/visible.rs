//! Escapes untrusted text for a terminal.
//!
//! Names, reasons, messages and notes are untrusted: anyone who may create an event or a pod
//! chooses them. Promises: none of their characters moves the cursor, begins a line, or colours,
//! hides or reverses other text; and no text is longer than its place allows.

use std::fmt::Write as _;

#[cfg(test)]
mod tests;

/// Longest message, in characters. Notes of events have up to 1,024 bytes.
pub(crate) const MESSAGE: usize = 1024;
/// Longest cell of a column, in characters. Names have up to 253.
pub(super) const CELL: usize = 256;
/// Most lines of a note or error, and the longest line in characters.
const LINES: usize = 24;
const LINE: usize = 4096;
/// Room for the text that counts what was cut off, in characters.
const SUM: usize = 32;

/// The text on one line. Characters that are not visible are escaped, as in `\x1b`. Text that is
/// longer than `most` is cut off, and its end says how much is missing.
pub(crate) fn line(text: &str, most: usize) -> String {
    let mut safe = String::new();
    let mut width = 0;
    let mut cut = (0, 0);
    for (at, c) in text.char_indices() {
        let before = safe.len();
        if width + SUM <= most {
            cut = (before, at);
        }
        push_escaped(c, &mut safe);
        // Escapes are ASCII, so their length is their width.
        width += if is_visible(c) { 1 } else { safe.len() - before };
        if width > most {
            safe.truncate(cut.0);
            let left = text[cut.1..].chars().count();
            let _ = write!(safe, "... and {left} more characters");
            break;
        }
    }
    safe
}

/// Text of several lines, such as an error of the API server. All lines but the first are indented,
/// so that none passes for a line of this program.
pub(super) fn lines(text: &str) -> String {
    let mut safe: Vec<String> = text.lines().take(LINES).map(|text| line(text, LINE)).collect();
    let left = text.lines().skip(LINES).count();
    if left > 0 {
        safe.push(format!("... and {left} more lines"));
    }
    safe.join("\n  ")
}

/// The same JSON document with invisible characters escaped. They occur only in its strings.
pub(super) fn json(document: &str) -> String {
    let mut safe = String::with_capacity(document.len());
    for c in document.chars() {
        if c == '\n' || is_visible(c) {
            safe.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(safe, "\\u{unit:04x}");
            }
        }
    }
    safe
}

/// True if all characters are visible, apart from line breaks.
pub(super) fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || is_visible(c))
}

/// Appends a character, escaped if it is not visible.
pub(super) fn push_escaped(c: char, safe: &mut String) {
    let _ = match c {
        c if is_visible(c) => {
            safe.push(c);
            Ok(())
        }
        '\n' | '\r' | '\t' => write!(safe, "{}", c.escape_default()),
        c if u32::from(c) < 0x100 => write!(safe, "\\x{:02x}", u32::from(c)),
        c => write!(safe, "\\u{{{:x}}}", u32::from(c)),
    };
}

/// True if a character is visible and has its own cell. Control characters, marks of direction,
/// characters without width and combining characters are not.
fn is_visible(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().count() == 1
}
