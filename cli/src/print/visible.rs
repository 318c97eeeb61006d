//! What others wrote, as it may stand on a terminal.
//!
//! Names, reasons, messages and notes are strangers' words: whoever may create an event or a pod chooses them. Promises: none of their characters
//! moves the cursor, colours, hides or turns around what stands beside it, or begins a line; and they take no more room than there is for them.

use std::fmt::Write as _;

use super::paint;

#[cfg(test)]
mod tests;

/// Characters of a message, at most. Notes of events have 1,024 bytes.
pub(crate) const MESSAGE: usize = 1024;
/// Characters in a column, at most. Names have 253.
pub(super) const CELL: usize = 256;
/// Lines of what is said beside the answer, and characters of each, at most.
const LINES: usize = 24;
const LINE: usize = 4096;
/// Characters that say how much is cut off.
const SUM: usize = 32;

/// On one line. What is not seen as it is, is named in its place, as `\x1b`; what is longer than `most` is cut off, and how much that is stands at the end.
pub(crate) fn line(text: &str, most: usize) -> String {
    let mut safe = String::new();
    let mut width = 0;
    let mut cut = (0, 0);
    for (at, c) in text.char_indices() {
        let before = safe.len();
        if width + SUM <= most {
            cut = (before, at);
        }
        put(c, &mut safe);
        // What is named is named in ASCII.
        width += if is_seen(c) { 1 } else { safe.len() - before };
        if width > most {
            safe.truncate(cut.0);
            let left = text[cut.1..].chars().count();
            let _ = write!(safe, "... and {left} more characters");
            break;
        }
    }
    safe
}

/// Several lines, as an error of the API server may have. All but the first are set in, so that none passes for a line of this program.
pub(super) fn lines(text: &str) -> String {
    let mut safe: Vec<String> = text.lines().take(LINES).map(|text| line(text, LINE)).collect();
    let left = text.lines().skip(LINES).count();
    if left > 0 {
        safe.push(format!("... and {left} more lines"));
    }
    safe.join("\n  ")
}

/// A text as this program has laid it out: its lines, tabs and colours stay, whatever else a terminal acts upon is named.
pub(super) fn laid_out(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let size = match paint::sequence(rest) {
            Some(sequence) => {
                safe.push_str(sequence);
                sequence.len()
            }
            None if matches!(c, '\n' | '\t') => {
                safe.push(c);
                1
            }
            None => {
                put(c, &mut safe);
                c.len_utf8()
            }
        };
        rest = &rest[size..];
    }
    safe
}

/// A JSON document of the same meaning. Such characters stand in its strings alone, and have a form of their own there.
pub(super) fn json(document: &str) -> String {
    let mut safe = String::with_capacity(document.len());
    for c in document.chars() {
        if c == '\n' || is_seen(c) {
            safe.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(safe, "\\u{unit:04x}");
            }
        }
    }
    safe
}

/// Whether all of it is seen as it is, but for its lines.
pub(super) fn is_plain(text: &str) -> bool {
    text.chars().all(|c| c == '\n' || is_seen(c))
}

fn put(c: char, safe: &mut String) {
    let _ = match c {
        c if is_seen(c) => {
            safe.push(c);
            Ok(())
        }
        '\n' | '\r' | '\t' => write!(safe, "{}", c.escape_default()),
        c if u32::from(c) < 0x100 => write!(safe, "\\x{:02x}", u32::from(c)),
        c => write!(safe, "\\u{{{:x}}}", u32::from(c)),
    };
}

/// Whether a character is seen as itself, in a place of its own. Controls, directions, what has no width, and what joins the letter before it are not.
fn is_seen(c: char) -> bool {
    matches!(c, '"' | '\'' | '\\') || c.escape_debug().count() == 1
}
