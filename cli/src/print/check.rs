//! Verdicts, one per line, each with a hint below.

use super::visible::{MESSAGE, line};
use super::{Paint, Tone};
use crate::view::check::{Level, Verdict};

/// The verdicts by section, with a summary at the end.
pub(crate) fn check(verdicts: &[Verdict], paint: Paint) -> String {
    let mut text = String::new();
    let mut section = "";
    for verdict in verdicts {
        if verdict.section != section {
            if !section.is_empty() {
                text.push('\n');
            }
            section = verdict.section;
            text.push_str(&format!("{}\n", paint.tone(Tone::Strong, section)));
        }
        let (mark, tone) = match verdict.level {
            Level::Ok => ("✓", Tone::Good),
            Level::Warning => ("‼", Tone::Warning),
            Level::Error => ("×", Tone::Bad),
        };
        let finding = line(&verdict.text, MESSAGE);
        text.push_str(&format!("  {} {finding}\n", paint.tone(tone, mark)));
        if let Some(hint) = &verdict.hint {
            text.push_str(&format!(
                "    {}\n",
                paint.tone(Tone::Faint, &format!("→ {hint}"))
            ));
        }
    }
    text.push_str(&format!("\n{}\n", summary(verdicts, paint)));
    text
}

fn summary(verdicts: &[Verdict], paint: Paint) -> String {
    let count = |level: Level| verdicts.iter().filter(|verdict| verdict.level == level).count();
    match (count(Level::Error), count(Level::Warning)) {
        (0, 0) => paint.tone(Tone::Good, "All is well."),
        (0, warnings) => paint.tone(
            Tone::Warning,
            &format!("Nothing is broken; {warnings} to be looked at."),
        ),
        (errors, warnings) => paint.tone(
            Tone::Bad,
            &format!("{errors} broken, {warnings} to be looked at."),
        ),
    }
}
