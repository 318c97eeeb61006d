//! A terminal on which a text is shown again and again, each time in the place of the one before.
//!
//! Promises: what was on the terminal before is left in its memory; nothing flickers, as nothing is cleared that stays; what does not fit is cut off, and
//! it is said how much that is.

use anyhow::Result;

use super::{Paint, Tone, visible, write};

/// The terminal of standard output.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    begun: bool,
}

impl Screen {
    /// Shows this text instead of the one before.
    pub(crate) fn show(&mut self, text: &str, paint: Paint) -> Result<()> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout());
        let rows = size.map_or(0, |size| usize::from(size.ws_row));
        let begin = if std::mem::replace(&mut self.begun, true) {
            ""
        } else {
            "\x1b[2J"
        };
        let text = visible::laid_out(text);
        write(&format!("{begin}{}", frame(&text, rows, paint)))
    }
}

/// The bytes that show a text from the first row of a terminal on that has so many; 0: nobody knows.
fn frame(text: &str, rows: usize, paint: Paint) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    // The last row stays empty: the cursor is there.
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
            &format!("... and {left} more lines than fit: name one JobSet, or make the window larger"),
        );
        lines.truncate(room - 1);
        lines.push(&note);
    }
    // Long lines are cut off by the terminal itself, which knows how wide letters are.
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
        let bytes = frame(text, rows, Paint::new(false));
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
    fn what_fits_is_shown_whole() {
        for rows in [0, 4, 24] {
            assert_eq!(
                shown("one\ntwo\nthree\n", rows),
                ["one", "two", "three"],
                "{rows}"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_cut_off_and_counted() {
        let lines = shown("one\ntwo\nthree\nfour\n", 4);
        assert_eq!(lines[..2], ["one", "two"]);
        assert!(lines[2].starts_with("... and 2 more lines"), "{lines:?}");
        assert_eq!(lines.len(), 3);
        assert!(shown("one\ntwo\n", 1)[0].starts_with("... and 2 more lines"));
        assert!(shown("one\ntwo\n", 2)[0].starts_with("... and 2 more lines"));
    }
}
