//! Colours, and text that is laid out with them.

use super::visible;

/// The meaning of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Good,
    Warning,
    Bad,
    Strong,
    Faint,
}

impl Tone {
    const ALL: [Self; 5] = [Self::Good, Self::Warning, Self::Bad, Self::Strong, Self::Faint];

    fn begin(self) -> &'static str {
        match self {
            Self::Good => "\x1b[32m",
            Self::Warning => "\x1b[33m",
            Self::Bad => "\x1b[31m",
            Self::Strong => "\x1b[1m",
            Self::Faint => "\x1b[2m",
        }
    }
}

/// Ends a tone.
const END: &str = "\x1b[0m";

/// Colours text, or leaves it as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    Coloured,
    Plain,
}

impl Paint {
    /// Untrusted text on one line, in the colour of its tone.
    pub(crate) fn tone(self, tone: Tone, text: &str) -> String {
        let text = visible::line(text, visible::MESSAGE);
        if self == Self::Plain || text.is_empty() {
            return text;
        }
        format!("{}{text}{END}", tone.begin())
    }
}

/// Text that this program has laid out: its lines, tabs and colours stay, and everything else that
/// a terminal acts upon is escaped.
pub(super) fn laid_out(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let size = match sequence(rest) {
            Some(sequence) => {
                safe.push_str(sequence);
                sequence.len()
            }
            None if matches!(c, '\n' | '\t') => {
                safe.push(c);
                1
            }
            None => {
                visible::push_escaped(c, &mut safe);
                c.len_utf8()
            }
        };
        rest = &rest[size..];
    }
    safe
}

/// The escape sequence of [`Paint`] with which a text begins, if it does.
fn sequence(text: &str) -> Option<&'static str> {
    let sequences = Tone::ALL.map(Tone::begin).into_iter().chain([END]);
    sequences.into_iter().find(|sequence| text.starts_with(sequence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_keeps_its_lines_and_colours_and_nothing_else() {
        let red = Paint::Coloured.tone(Tone::Bad, "Failed");
        let laid = format!("{red}\n\t├─ a\n");
        assert_eq!(laid_out(&laid), laid);
        assert_eq!(
            laid_out("a\x1b[2J\x1b[8mb\x1b[31;5mc\r\u{9b}\u{202e}\n"),
            "a\\x1b[2J\\x1b[8mb\\x1b[31;5mc\\r\\x9b\\u{202e}\n"
        );
    }
}
