//! A terminal on which each text replaces the one before.
//!
//! Promises: the scrollback keeps what was on the terminal before. Nothing flickers, since
//! unchanged text is not cleared. What does not fit is cut off, and the last line counts it.

use anyhow::Result;

use super::{Paint, Tone, paint, write};

/// The terminal of standard output.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    begun: bool,
}

impl Screen {
    /// Replaces the text that is shown.
    pub(crate) fn show(&mut self, text: &str, paint: Paint) -> Result<()> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let rows = size.map_or(0, |size| usize::from(size.ws_row));
        let begin = if std::mem::replace(&mut self.begun, true) {
            ""
        } else {
            "\x1b[2J"
        };
        let text = paint::laid_out(text);
        write(&format!("{begin}{}", frame(&text, rows, paint)))
    }
}

/// The bytes that draw a text on a terminal with this many rows, from the first row on; 0 means an
/// unknown number.
fn frame(text: &str, rows: usize, paint: Paint) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    // The last row stays empty for the cursor.
    let room = if rows == 0 {
        lines.len()
    } else {
        rows.saturating_sub(1).max(1)
    };
    let note;
    if lines.len() > room {
        let left = lines.len() - (room - 1);
        note = paint.tone(
            Tone::Faint,
            &format!("... and {left} more lines: name one JobSet, or enlarge the window"),
        );
        lines.truncate(room - 1);
        lines.push(&note);
    }
    // The terminal itself cuts off long lines, since it knows the width of characters.
    let mut bytes = String::from("\x1b[?7l\x1b[H");
    for line in lines {
        bytes.push_str(line);
        bytes.push_str("\x1b[K\n");
    }
    bytes.push_str("\x1b[J\x1b[?7h");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, rows: usize) -> Vec<String> {
        let bytes = frame(text, rows, Paint::Plain);
        let lines = bytes
            .strip_prefix("\x1b[?7l\x1b[H")
            .and_then(|rest| rest.strip_suffix("\x1b[J\x1b[?7h"));
        lines
            .unwrap()
            .lines()
            .map(|line| line.strip_suffix("\x1b[K").unwrap().to_owned())
            .collect()
    }

    #[test]
    fn text_that_fits_is_shown_whole() {
        for rows in [0, 4, 24] {
            assert_eq!(
                shown("one\ntwo\nthree\n", rows),
                ["one", "two", "three"],
                "{rows}"
            );
        }
    }

    #[test]
    fn text_that_does_not_fit_is_cut_off_and_counted() {
        let lines = shown("one\ntwo\nthree\nfour\n", 4);
        assert_eq!(lines[..2], ["one", "two"]);
        assert!(lines[2].starts_with("... and 2 more lines"), "{lines:?}");
        assert_eq!(lines.len(), 3);
        assert!(shown("one\ntwo\n", 1)[0].starts_with("... and 2 more lines"));
        assert!(shown("one\ntwo\n", 2)[0].starts_with("... and 2 more lines"));
    }
}
