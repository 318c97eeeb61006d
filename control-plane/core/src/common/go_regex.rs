//! Regular expressions in Go's syntax (RE2), for `onJobFailureMessagePatterns`.
//!
//! The syntax is almost that of the `regex` crate. The differences are translated: quoting with
//! `\Q…\E`, braces that are no repetition, literal characters inside brackets, octal character
//! codes, and classes, which are ASCII in Go. What Go refuses is refused here: repetitions of
//! repetitions, more than a thousand repetitions, and unknown flags.
//!
//! Tenants write them, so each step from text to program is bounded in advance: nested groups while
//! parsing ([`DEEPEST`]), character classes before they are expanded ([`reach`]), and the program's
//! memory while compiling. Matching uses only Thompson's simulation (Pike's VM): it takes at most
//! [`Regex::steps`] for each byte, and no memory beyond the program's own. Automata built while
//! matching would take megabytes each.

mod reach;

use std::fmt::{self, Write as _};

use regex_automata::nfa::thompson::pikevm::{Cache, PikeVM};
use regex_automata::nfa::thompson::{BuildError, Compiler, Config, WhichCaptures};
use regex_syntax::ast::parse::ParserBuilder;
use regex_syntax::hir::translate::Translator;
use thiserror::Error;

#[cfg(test)]
mod tests;

/// Go refuses more repetitions.
const MOST_REPETITIONS: u32 = 1000;
/// The deepest nesting of groups, which bounds recursion over a pattern.
const DEEPEST: u32 = 100;

/// Why a pattern cannot be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unfit {
    /// It is not a regular expression in Go's syntax, or has no equivalent here.
    #[error("is not a valid regular expression (Go's syntax, RE2)")]
    Syntax,
    /// It exceeds the memory limit.
    #[error("takes too much memory: use fewer repetitions or smaller character classes")]
    Memory,
    /// Its classes exceed the limit of characters.
    #[error("has too many Unicode character classes")]
    Reach,
}

/// A pattern that can be matched.
#[derive(Clone)]
pub(crate) struct Regex(PikeVM);

impl Regex {
    /// Compiles a pattern to a program of at most `memory` bytes. The characters of its classes are
    /// subtracted from `reach`.
    ///
    /// # Errors
    /// If it cannot be compiled within these limits.
    pub(crate) fn new(pattern: &str, memory: usize, reach: &mut u32) -> Result<Self, Unfit> {
        let pattern = translate(pattern).ok_or(Unfit::Syntax)?;
        let parsed = ParserBuilder::new().nest_limit(DEEPEST).build().parse(&pattern);
        let parsed = parsed.map_err(|_| Unfit::Syntax)?;
        *reach = reach.checked_sub(reach::of(&parsed)).ok_or(Unfit::Reach)?;
        let spelled = Translator::new().translate(&pattern, &parsed);
        let spelled = spelled.map_err(|_| Unfit::Syntax)?;
        // Only the match itself matters, so groups capture nothing.
        let config = Config::new()
            .nfa_size_limit(Some(memory))
            .which_captures(WhichCaptures::None);
        let program = Compiler::new().configure(config).build_from_hir(&spelled);
        let unfit = |error: BuildError| match error.size_limit() {
            Some(_) => Unfit::Memory,
            None => Unfit::Syntax,
        };
        let machine = PikeVM::new_from_nfa(program.map_err(unfit)?);
        Ok(Self(machine.map_err(|_| Unfit::Syntax)?))
    }

    /// The program's memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.0.get_nfa().memory_usage()
    }

    /// The most steps for one byte of text. A step was measured at 1 to 13 ns.
    pub(crate) fn steps(&self) -> usize {
        self.0.get_nfa().states().len()
    }

    /// The working memory of a match, which consecutive matches can share.
    pub(crate) fn scratch(&self) -> Cache {
        self.0.create_cache()
    }

    /// True if it matches anywhere in the text.
    pub(crate) fn is_match(&self, scratch: &mut Cache, text: &str) -> bool {
        self.0.is_match(scratch, text)
    }
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a pattern of {} bytes", self.memory())
    }
}

fn translate(pattern: &str) -> Option<String> {
    let mut rest = pattern;
    let mut out = String::with_capacity(pattern.len());
    let mut in_class = false;
    let mut was_repeated = false;
    while let Some(next) = rest.chars().next() {
        let after = &rest[next.len_utf8()..];
        if let Some(after) = repetition(rest).filter(|_| !in_class) {
            let repeated = &rest[..rest.len() - after.len()];
            if was_repeated || too_often(repeated) {
                return None;
            }
            was_repeated = true;
            let lazy = after.strip_prefix('?').unwrap_or(after);
            out.push_str(&rest[..rest.len() - lazy.len()]);
            rest = lazy;
            continue;
        }
        was_repeated = false;
        rest = match next {
            '\\' => escape(after, in_class, &mut out),
            '(' if !in_class && after.starts_with('?') => group(after, &mut out)?,
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
            // Set operations of the `regex` crate; literal characters in Go.
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(next);
                after
            }
            '-' if in_class && after.starts_with('-') => {
                out.push_str("\\-");
                after
            }
            '{' if !in_class => {
                out.push_str("\\{");
                after
            }
            other => {
                out.push(other);
                after
            }
        };
    }
    Some(out)
}

/// Translates an escape, after its backslash.
fn escape<'a>(after: &'a str, in_class: bool, out: &mut String) -> &'a str {
    let Some(next) = after.chars().next() else {
        // A trailing backslash is an error in both.
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
        ('p' | 'P', _) => {
            let rest = unicode_class(next == 'P', rest, out);
            return literal_dash(rest, in_class, out);
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
    if matches!(next, 'b' | 'B' | '<' | '>') {
        return rest;
    }
    literal_dash(rest, in_class, out)
}

/// A Unicode class, by one letter or by a name in braces, which may negate it.
fn unicode_class<'a>(negated: bool, after: &'a str, out: &mut String) -> &'a str {
    let (negated, name) = match after.strip_prefix("{^") {
        Some(name) => (!negated, Some(name)),
        None => (negated, after.strip_prefix('{')),
    };
    out.push_str(if negated { "\\P" } else { "\\p" });
    match name.and_then(|name| name.split_once('}')) {
        Some((name, rest)) => {
            out.push('{');
            out.push_str(name);
            out.push('}');
            rest
        }
        // Without a letter it is an error in both.
        None => {
            let letter = after.chars().next().map_or(0, char::len_utf8);
            out.push_str(&after[..letter]);
            &after[letter..]
        }
    }
}

/// A dash after a class is literal, since a range begins with a character.
fn literal_dash<'a>(after: &'a str, in_class: bool, out: &mut String) -> &'a str {
    match after.strip_prefix('-').filter(|_| in_class) {
        Some(rest) => {
            out.push_str("\\-");
            rest
        }
        None => after,
    }
}

/// An octal character code of up to three digits. A single digit, except zero, would refer to a
/// group, which is an error in both.
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

/// Translates the beginning of a class, after its bracket: a `]` that comes first is literal.
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

/// A bracket inside a class: a named class such as `[:alpha:]`, or a literal bracket.
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

/// A group with a question mark: flags known to Go, or a name.
fn group<'a>(after: &'a str, out: &mut String) -> Option<&'a str> {
    out.push('(');
    let flags = after.strip_prefix('?')?;
    let end = flags.find([':', ')', '<'])?;
    let known = |flag: char| matches!(flag, 'i' | 'm' | 's' | 'U' | '-');
    let is_named = flags[end..].starts_with('<') && matches!(&flags[..end], "" | "P");
    if !is_named && !flags[..end].chars().all(known) {
        return None;
    }
    // Otherwise the question mark would count as a repetition.
    let (head, rest) = after.split_at(1 + end);
    out.push_str(head);
    Some(rest)
}

/// The rest of the text after a repetition, if it begins with one.
fn repetition(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix(['*', '+', '?']) {
        return Some(rest);
    }
    let (count, rest) = text.strip_prefix('{')?.split_once('}')?;
    let (least, most) = count.split_once(',').unwrap_or((count, ""));
    let number = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    (!least.is_empty() && number(least) && number(most)).then_some(rest)
}

/// True if a repetition exceeds Go's limit.
fn too_often(repetition: &str) -> bool {
    let mut numbers = repetition.trim_matches(['{', '}']).split(',');
    numbers.any(|number| {
        let digits = number.chars().all(|c| c.is_ascii_digit());
        digits && !number.is_empty() && number.parse().map_or(true, |times: u32| times > MOST_REPETITIONS)
    })
}
