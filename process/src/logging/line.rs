//! Lines of bounded length: a line may quote what a stranger sent, such as an error of another
//! server that names a path of megabytes.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

use super::LogFormat;

/// Longest line that is written, in bytes. A usual one has a few hundred.
const LONGEST: usize = 1024;

/// Writes each line to a writer that is made for it, and cuts those that are too long.
pub(super) struct Bounded<M> {
    pub(super) inner: M,
    pub(super) format: LogFormat,
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Bounded<M> {
    type Writer = Cut<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Cut {
            inner: self.inner.make_writer(),
            format: self.format,
        }
    }
}

/// Writes one line. It gets each line whole.
pub(super) struct Cut<W> {
    inner: W,
    format: LogFormat,
}

impl<W: Write> Write for Cut<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if line.len() <= LONGEST {
            return self.inner.write(line);
        }
        let text = String::from_utf8_lossy(line.get(..LONGEST).unwrap_or(line));
        // The last character may be cut in two.
        let beginning = text.trim_end_matches(char::REPLACEMENT_CHARACTER).trim_end();
        let bytes = line.len();
        let cut = match self.format {
            LogFormat::Text => format!("{beginning} ... (a line of {bytes} bytes)\n"),
            LogFormat::Json => {
                let escaped = beginning.replace('\\', "\\\\").replace('"', "\\\"");
                format!(
                    "{{\"message\":\"a log line was cut\",\"bytes\":{bytes},\"beginning\":\"{escaped}\"}}\n"
                )
            }
        };
        self.inner.write_all(cut.as_bytes())?;
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(format: LogFormat, line: &str) -> String {
        let mut cut = Cut {
            inner: Vec::new(),
            format,
        };
        cut.write_all(line.as_bytes()).unwrap();
        String::from_utf8(cut.inner).unwrap()
    }

    #[test]
    fn long_lines_are_cut_and_usual_ones_are_not() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(written(format, "usual\n"), "usual\n");
            let just_fits = format!("{}\n", "x".repeat(LONGEST - 1));
            assert_eq!(written(format, &just_fits), just_fits);
        }
        let long = format!("INFO {}\n", "ä".repeat(1 << 20));
        let text = written(LogFormat::Text, &long);
        assert!(
            text.starts_with("INFO ää") && text.ends_with(" ... (a line of 2097158 bytes)\n"),
            "{text}"
        );
        assert!(text.len() < LONGEST + 100 && !text.contains(char::REPLACEMENT_CHARACTER));
    }

    #[test]
    fn a_json_line_that_is_cut_is_json_too() {
        let long = format!("{{\"message\":\"{}\"}}\n", "\\\"".repeat(LONGEST));
        let cut = written(LogFormat::Json, &long);
        let (fields, beginning) = cut.split_once("\"beginning\":\"").unwrap();
        assert_eq!(
            fields,
            format!("{{\"message\":\"a log line was cut\",\"bytes\":{},", long.len())
        );
        // Each quote and backslash is escaped: the text ends where it should.
        let mut inside = beginning.chars();
        let mut ended = false;
        while let Some(sign) = inside.next() {
            match sign {
                '\\' => drop(inside.next()),
                '"' => {
                    ended = true;
                    break;
                }
                _ => {}
            }
        }
        assert!(ended && inside.as_str() == "}\n", "{cut}");
    }
}
