//! Regular expressions as Go writes them (RE2), for `onJobFailureMessagePatterns`.
//!
//! The syntax is almost that of the `regex` crate. What differs is translated: quoting with `\Q…\E`, braces that repeat nothing, what
//! stands for itself inside brackets, characters by their octal number, and classes, which are ASCII in Go.

use std::fmt::Write as _;

use regex::Regex;

#[cfg(test)]
mod tests;

/// Compiles a pattern. `None`: it is no regular expression in Go's syntax either, or one that has no counterpart here.
pub(crate) fn compile(pattern: &str) -> Option<Regex> {
    Regex::new(&translate(pattern)).ok()
}

fn translate(pattern: &str) -> String {
    let mut rest = pattern;
    let mut out = String::with_capacity(pattern.len());
    let mut in_class = false;
    while let Some(next) = rest.chars().next() {
        let after = &rest[next.len_utf8()..];
        rest = match next {
            '\\' => escape(after, in_class, &mut out),
            '[' if in_class => class_in_class(after, &mut out),
            '[' => {
                in_class = true;
                open_class(after, &mut out)
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
                after
            }
            // Set operations of the `regex` crate; in Go these characters stand for themselves.
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(next);
                after
            }
            '-' if in_class && after.starts_with('-') => {
                out.push_str("\\-");
                after
            }
            '{' if !in_class && !repeats(after, &out) => {
                out.push_str("\\{");
                after
            }
            other => {
                out.push(other);
                after
            }
        };
    }
    out
}

/// What follows a backslash.
fn escape<'a>(after: &'a str, in_class: bool, out: &mut String) -> &'a str {
    let Some(next) = after.chars().next() else {
        // A backslash at the end is an error in both.
        out.push('\\');
        return after;
    };
    let rest = &after[next.len_utf8()..];
    if let Some((code, rest)) = octal(after) {
        // Writing to a String cannot fail.
        let _ = write!(out, "\\x{{{code:x}}}");
        return rest;
    }
    let ascii = match (next, in_class) {
        ('Q', false) => {
            let (quoted, rest) = rest.split_once("\\E").unwrap_or((rest, ""));
            out.push_str(&regex::escape(quoted));
            return rest;
        }
        ('d', false) => "[0-9]",
        ('d', true) => "0-9",
        ('D', _) => "[^0-9]",
        ('w', false) => "[0-9A-Za-z_]",
        ('w', true) => "0-9A-Za-z_",
        ('W', _) => "[^0-9A-Za-z_]",
        ('s', false) => "[\\t\\n\\f\\r ]",
        ('s', true) => "\\t\\n\\f\\r ",
        ('S', _) => "[^\\t\\n\\f\\r ]",
        ('b', false) => "(?-u:\\b)",
        ('B', false) => "(?-u:\\B)",
        // A class of Unicode that is negated by name.
        ('p' | 'P', _) if rest.starts_with("{^") => {
            out.push_str(if next == 'p' { "\\P{" } else { "\\p{" });
            return &rest[2..];
        }
        // Word boundaries of the `regex` crate.
        ('<', _) => "<",
        ('>', _) => ">",
        _ => {
            out.push('\\');
            out.push(next);
            return rest;
        }
    };
    out.push_str(ascii);
    rest
}

/// A character by its number, in up to three octal digits. One digit alone, but for zero, would refer to a group, which is an error in both.
fn octal(after: &str) -> Option<(u32, &str)> {
    let digits = after
        .bytes()
        .take(3)
        .take_while(|byte| (b'0'..=b'7').contains(byte))
        .count();
    if digits == 0 || digits == 1 && !after.starts_with('0') {
        return None;
    }
    let (number, rest) = after.split_at(digits);
    Some((u32::from_str_radix(number, 8).ok()?, rest))
}

/// What follows the bracket that opens a class: a `]` that comes first stands for itself.
fn open_class<'a>(after: &'a str, out: &mut String) -> &'a str {
    out.push('[');
    let negated = after.strip_prefix('^');
    if negated.is_some() {
        out.push('^');
    }
    let rest = negated.unwrap_or(after);
    match rest.strip_prefix(']') {
        Some(rest) => {
            out.push_str("\\]");
            rest
        }
        None => rest,
    }
}

/// A bracket inside a class: the name of a class such as `[:alpha:]`, else a bracket.
fn class_in_class<'a>(after: &'a str, out: &mut String) -> &'a str {
    if after.starts_with(':')
        && let Some((name, rest)) = after.split_once(":]")
        && name.chars().skip(1).all(|c| c == '^' || c.is_ascii_lowercase())
    {
        out.push('[');
        out.push_str(name);
        out.push_str(":]");
        return rest;
    }
    out.push_str("\\[");
    after
}

/// Whether a brace begins a number of repetitions, and there is something to repeat.
fn repeats(after: &str, before: &str) -> bool {
    let Some((count, _)) = after.split_once('}') else {
        return false;
    };
    let (least, most) = count.split_once(',').unwrap_or((count, ""));
    let number = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    !least.is_empty() && number(least) && number(most) && !before.is_empty()
}
