//! Reads the recordings beside this file, for the tests that play them back.

/// The messages of a file, as they were sent.
pub(crate) fn messages(text: &str) -> impl Iterator<Item = Vec<u8>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let bytes = (0..line.len()).step_by(2);
        bytes
            .map(|at| u8::from_str_radix(&line[at..at + 2], 16).expect("hexadecimal"))
            .collect()
    })
}
