//! Colours.

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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint(bool);

impl Paint {
    /// A painter that uses colours only if `colours` is true.
    pub(crate) fn new(colours: bool) -> Self {
        Self(colours)
    }

    /// Untrusted text on one line, in the colour of its tone.
    pub(crate) fn tone(self, tone: Tone, text: &str) -> String {
        let text = visible::line(text, visible::MESSAGE);
        if !self.0 || text.is_empty() {
            return text;
        }
        format!("{}{text}{END}", tone.begin())
    }
}

/// The escape sequence of [`Paint`] with which a text begins, if it does.
pub(super) fn sequence(text: &str) -> Option<&'static str> {
    let sequences = Tone::ALL.map(Tone::begin).into_iter().chain([END]);
    sequences.into_iter().find(|sequence| text.starts_with(sequence))
}
