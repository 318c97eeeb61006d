//! Prints what is to be shown: text with or without colours, JSON or YAML.

mod check;
mod dry_run;
mod history;
mod nodes;
mod page;
mod paint;
mod screen;
mod status;
mod table;
mod timeline;
mod visible;

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::Result;
use serde::Serialize;

use crate::args::{Color, Form, Output};

pub(crate) use check::check;
pub(crate) use dry_run::dry_run;
pub(crate) use history::history;
pub(crate) use nodes::nodes;
pub(crate) use page::page;
pub(crate) use paint::{Paint, Tone};
pub(crate) use screen::Screen;
pub(crate) use status::{Detail, status};
pub(crate) use timeline::timeline;
pub(crate) use visible::{MESSAGE, line};

#[cfg(test)]
mod tests;

/// How many restarts have counted, and of how many where there is a limit: the JobSets of Ray have none.
fn restarts(counted: i32, limit: i32) -> String {
    match limit {
        i32::MAX => format!("restarts {counted}"),
        limit => format!("restarts {counted} of {limit}"),
    }
}

/// Where answers go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    form: Option<Form>,
    paint: Paint,
}

impl Printer {
    /// As the arguments and the environment say.
    pub(crate) fn new(output: &Output) -> Self {
        let wanted = match output.color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
                !refused && !dumb && io::stdout().is_terminal()
            }
        };
        Self {
            form: output.form,
            paint: Paint::new(wanted),
        }
    }

    /// Whether more columns are wanted.
    pub(crate) fn is_wide(self) -> bool {
        self.form == Some(Form::Wide)
    }

    /// Whether the answer is for programs.
    pub(crate) fn is_for_programs(self) -> bool {
        matches!(self.form, Some(Form::Json | Form::Yaml))
    }

    /// Its colours, or none.
    pub(crate) fn paint(self) -> Paint {
        self.paint
    }

    /// The answer in the form that was asked for; `text` makes that for people.
    pub(crate) fn render<T: Serialize>(
        self,
        answer: &T,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<String> {
        let json = || serde_json::to_string_pretty(answer).map(|json| format!("{}\n", visible::json(&json)));
        Ok(match self.form {
            Some(Form::Json) => json()?,
            // Where a terminal would act upon a character: each JSON document is one of YAML, and names it.
            Some(Form::Yaml) => match serde_yaml_ng::to_string(answer)? {
                yaml if visible::is_plain(&yaml) => yaml,
                _ => json()?,
            },
            Some(Form::Wide) | None => text(self.paint),
        })
    }
}

/// Writes an answer to standard output, without anything that a terminal would act upon but its lines and colours. A reader that has seen enough is no
/// mistake.
pub(crate) fn out(text: &str) -> Result<()> {
    write(&visible::laid_out(text))
}

fn write(bytes: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// A word to people beside the answer. Where nobody listens any more, what is under way goes on.
pub(crate) fn note(text: &str) {
    control(&format!("note: {}\n", visible::lines(text)));
}

/// Why it failed.
pub(crate) fn error(text: &str) {
    control(&format!("error: {}\n", visible::lines(text)));
}

/// Writes to the terminal of people as it is: what others wrote is made visible before.
pub(crate) fn control(bytes: &str) {
    let mut to = io::stderr().lock();
    let _ = to.write_all(bytes.as_bytes()).and_then(|()| to.flush());
}
