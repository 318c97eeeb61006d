//! Prints answers: text with or without colours, JSON or YAML.

mod dry_run;
mod history;
mod installation;
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

pub(crate) use dry_run::dry_run;
pub(crate) use history::history;
pub(crate) use installation::{check, nodes};
pub(crate) use page::page;
pub(crate) use paint::{Paint, Tone};
pub(crate) use screen::Screen;
pub(crate) use status::{Detail, status};
pub(crate) use timeline::timeline;
pub(crate) use visible::{MESSAGE, line};

#[cfg(test)]
mod tests;

/// The counted restarts, and their limit if there is one. JobSets of Ray have none.
fn restarts(counted: i32, limit: i32) -> String {
    match limit {
        i32::MAX => format!("restarts {counted}"),
        limit => format!("restarts {counted} of {limit}"),
    }
}

/// The form and the colours of answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    form: Option<Form>,
    paint: Paint,
}

impl Printer {
    /// As the arguments and the environment say.
    pub(crate) fn new(output: &Output) -> Self {
        let paint = match output.color {
            Color::Always => Paint::Coloured,
            Color::Never => Paint::Plain,
            Color::Auto => {
                let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
                if !refused && !dumb && io::stdout().is_terminal() {
                    Paint::Coloured
                } else {
                    Paint::Plain
                }
            }
        };
        Self {
            form: output.form,
            paint,
        }
    }

    /// True if more columns are wanted.
    pub(crate) fn is_wide(self) -> bool {
        self.form == Some(Form::Wide)
    }

    /// True if the answer is JSON or YAML.
    pub(crate) fn is_for_programs(self) -> bool {
        matches!(self.form, Some(Form::Json | Form::Yaml))
    }

    /// The colours of the answer, or none.
    pub(crate) fn paint(self) -> Paint {
        self.paint
    }

    /// The answer in the requested form. `text` renders it for people.
    pub(crate) fn render<T: Serialize>(
        self,
        answer: &T,
        text: impl FnOnce(Paint) -> String,
    ) -> Result<String> {
        let json = || serde_json::to_string_pretty(answer).map(|json| format!("{}\n", visible::json(&json)));
        Ok(match self.form {
            Some(Form::Json) => json()?,
            // If the document has characters that a terminal would act upon, JSON escapes them, and
            // every JSON document is a YAML document.
            Some(Form::Yaml) => match serde_yaml_ng::to_string(answer)? {
                yaml if visible::is_plain(&yaml) => yaml,
                _ => json()?,
            },
            Some(Form::Wide) | None => text(self.paint),
        })
    }
}

/// Writes an answer to standard output. Only its lines and colours affect a terminal. A reader that
/// closes the pipe early is not an error.
pub(crate) fn out(text: &str) -> Result<()> {
    write(&paint::laid_out(text))
}

fn write(bytes: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Writes a note to standard error. Errors are ignored, so that the command goes on.
pub(crate) fn note(text: &str) {
    control(&format!("note: {}\n", visible::lines(text)));
}

/// Writes to standard error why the command failed.
pub(crate) fn error(text: &str) {
    control(&format!("error: {}\n", visible::lines(text)));
}

/// Writes to standard error as it is. The caller must have escaped text from others.
pub(crate) fn control(bytes: &str) {
    let mut to = io::stderr().lock();
    let _ = to.write_all(bytes.as_bytes()).and_then(|()| to.flush());
}
