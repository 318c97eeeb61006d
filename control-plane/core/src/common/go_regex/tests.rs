use super::*;

fn compile(pattern: &str) -> Option<Regex> {
    Regex::new(pattern, 1 << 20, &mut u32::MAX.clone()).ok()
}

#[track_caller]
fn check(pattern: &str, matches: &[&str], others: &[&str]) {
    let regex =
        compile(pattern).unwrap_or_else(|| panic!("{pattern} is no pattern: {:?}", translate(pattern)));
    let mut scratch = regex.scratch();
    for text in matches {
        assert!(
            regex.is_match(&mut scratch, text),
            "{pattern} does not match {text}"
        );
    }
    for text in others {
        assert!(!regex.is_match(&mut scratch, text), "{pattern} matches {text}");
    }
}

#[test]
fn what_both_know_stays() {
    check(
        "^exit code (1|4[0-9])$",
        &["exit code 42", "exit code 1"],
        &["exit code 5"],
    );
    check("a{2,3}b{1}c{2,}", &["aabcc", "aaabccc"], &["abcc", "aabc"]);
    check("(?i)oom", &["OOMKilled"], &["exit"]);
    check("[[:alpha:]]+[[:^digit:]]x", &["ab-x"], &["a1x"]);
    check(r"\x41\.\pL", &["A.b"], &["A.1"]);
}

#[test]
fn quoting_and_braces_are_taken_literally() {
    check(r"\Qa.b{c}\E+", &["a.b{c}}"], &["axb{c}"]);
    check(r"pod \Q(x", &["pod (x"], &["pod x"]);
    check(r#"{"exit":1}"#, &[r#"said {"exit":1}"#], &["exit"]);
    check("pod {x} failed", &["pod {x} failed"], &["pod x failed"]);
    check("a{,3}", &["a{,3}"], &["aaa"]);
}

#[test]
fn brackets_match_their_literal_characters() {
    check("^[[a]+$", &["[a["], &["b"]);
    check("^[a&&b]+$", &["a&b"], &["c"]);
    check("^[a~~b]+$", &["a~b"], &["c"]);
    check("^[]x]+$", &["]x]"], &["y"]);
    check("^[^]x]+$", &["ab"], &["]"]);
    check(r"^[\d_]+$", &["1_2"], &["a"]);
}

#[test]
fn classes_and_boundaries_are_ascii() {
    check(r"^\d+$", &["12"], &["١٢"]);
    check(r"^\w+$", &["a_1"], &["ä"]);
    check(r"^[^\s]+$", &["ab", "a\u{a0}b"], &["a b"]);
    check(r"\bcode\b", &["exit code 1"], &["decode"]);
    check(r"\<tag\>", &["<tag>"], &["tag"]);
}

#[test]
fn octal_numbers_stand_for_characters() {
    check(r"^\101\12\0$", &["A\n\0"], &["101120"]);
    check(r"^[\101\102]+$", &["AB"], &["1"]);
    check(r"^\1018$", &["A8"], &["A"]);
}

#[test]
fn classes_of_unicode_are_negated_by_name() {
    check(r"^\p{^Greek}$", &["a"], &["α"]);
    check(r"^\P{^Greek}$", &["α"], &["a"]);
    check(r"^[\p{^L}x]+$", &["1x"], &["a"]);
}

#[test]
fn what_is_no_pattern_is_none() {
    for pattern in ["(", "[", r"\", "*", r"(a)\1", r"\8"] {
        assert!(compile(pattern).is_none(), "{pattern}");
    }
}

#[test]
fn a_dash_after_a_class_is_literal() {
    check(
        r"^node [\w-./]+ lost$",
        &["node a-1.b/c lost"],
        &["node a:b lost"],
    );
    check(r"^[\w-]+$", &["a-b"], &["a.b"]);
    check(r"^[\s-x]+$", &["- x"], &["!"]);
    check(r"^[\w--.]+$", &["a-."], &[","]);
    check(r"^[\pL-.]+$", &["ä-."], &["1"]);
    check(r"^[\p{Greek}-.\P{^Latin}]+$", &["α-.z"], &["1"]);
}

#[test]
fn repetitions_and_flags_are_those_of_go() {
    for pattern in [
        "a**",
        "a++",
        "x*?+",
        "a{2}{3}",
        "a{2}*",
        "{2}",
        "(?x)a",
        "(?u)a",
        "(?R)a",
        "(?i-x:a)",
        "x{1001}",
        "x{0,1001}",
    ] {
        assert!(compile(pattern).is_none(), "{pattern}");
    }
    check("^(?is-U:a.)(?P<b>c)(?<d>e)(?:f)$", &["A\ncef"], &["acef"]);
    check("^a*?b+?c??d{2}?$", &["aabdd"], &["aabd"]);
    check("^x{1000}$|^(a*)*$", &["aa"], &["b"]);
    check("^[*+?{2}]+$", &["{*+?2}"], &["a"]);
}

#[test]
fn classes_count_as_the_characters_that_they_hold() {
    let reach = |pattern: &str| {
        let mut left = u32::MAX;
        Regex::new(pattern, 1 << 20, &mut left).unwrap_or_else(|why| panic!("{pattern}: {why}"));
        u32::MAX - left
    };
    assert_eq!(reach("exit code [0-9]+ (a|b)*"), 0);
    assert_eq!(reach("(?i)[a-z]"), 25);
    assert_eq!(reach("[^a]"), 0);
    assert_eq!(
        reach(r"[!-\x{10ffff}]"),
        0,
        "a range is two numbers if cases differ"
    );
    assert_eq!(reach(r"(?i)[!-\x{10ffff}]"), 0x10_ffff - 0x21);
    assert_eq!(reach(r"(?i:[\W])"), 0x10_ffff + 9 + 25 + 25);
    assert_eq!(reach(r"\pL\p{Greek}[\pN]"), 3 * 0x8000);
}
