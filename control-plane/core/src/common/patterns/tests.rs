use lockstep_api::{FailurePolicyAction as Action, RestartStrategy};
use proptest::prelude::*;

use super::*;
use crate::common::testing::{JobSetBuild, jobset, replicated_job, rule};

/// A JobSet with one rule for each list of patterns.
fn stating<'a>(rules: impl IntoIterator<Item = Vec<&'a str>>) -> JobSet {
    let js = jobset([replicated_job("a", 1)]).restarting(RestartStrategy::Recreate, 1);
    rules.into_iter().enumerate().fold(js, |js, (index, patterns)| {
        let mut rule = rule(&format!("r{index}"), Action::FailJobSet);
        rule.on_job_failure_message_patterns = patterns.into_iter().map(str::to_owned).collect();
        js.rule(rule)
    })
}

fn memory(patterns: &Patterns) -> usize {
    patterns.rules.iter().flatten().map(Regex::memory).sum()
}

/// The refusal of the first bad pattern. Both callers must agree.
#[track_caller]
fn refusal(js: &JobSet) -> Option<String> {
    let at_admission = validate(js);
    assert_eq!(Patterns::of(js).refused(), at_admission.as_ref());
    at_admission.map(|violation| violation.to_string())
}

#[test]
fn what_people_write_is_taken() {
    let many: Vec<String> = (0..20).map(|code| format!("exit code {code}$")).collect();
    let js = stating([
        vec![
            "(?i)oom.?killed|out of memory",
            r"Container \S+ for pod .{0,200} failed",
            r"\pL+ lost",
        ],
        vec![r"[\s\S]*NCCL (WARN|error)", "^backoff", r"(?i)[\w-]{1,63}-\d+"],
        many.iter().map(String::as_str).collect(),
    ]);
    assert_eq!(refusal(&js), None);
}

#[test]
fn the_first_refused_pattern_is_named_with_its_field() {
    let long = "x".repeat(LONGEST + 1);
    for (pattern, why) in [
        ("(", "is not a valid regular expression"),
        (r"\pL{399}", "takes too much memory"),
        ("(?:(?:a{1000}){1000}){1000}", "takes too much memory"),
        (
            &r"(?i)[!-\x{10ffff}]".repeat(5),
            "has too many Unicode character classes",
        ),
        (&r"\pL".repeat(137), "has too many Unicode character classes"),
        (
            &format!("{}a{}", "(".repeat(400), ")".repeat(400)),
            "is not a valid regular expression",
        ),
        (&long, "is longer than 1024 bytes"),
    ] {
        let js = stating([vec!["fine"], vec!["fine", pattern, "("]]);
        let refusal = refusal(&js).unwrap_or_else(|| panic!("{pattern} is taken"));
        let field = "spec.failurePolicy.rules[1].onJobFailureMessagePatterns[1]: ";
        assert!(refusal.starts_with(field) && refusal.contains(why), "{refusal}");
        assert!(refusal.len() < 400, "{refusal}");
    }
}

#[test]
fn there_is_a_budget_over_all_patterns_of_all_rules() {
    let too_many = stating(vec![vec!["a"; 34]; 3]);
    let message = refusal(&too_many).unwrap();
    assert!(
        message.starts_with("spec.failurePolicy.rules[2].onJobFailureMessagePatterns[32]: "),
        "{message}"
    );
    assert!(message.contains("limit of 100 patterns"), "{message}");

    let text = "x".repeat(LONGEST);
    let message = refusal(&stating([vec![text.as_str(); 17]])).unwrap();
    assert!(message.contains("exceeds the limit of 16384 bytes"), "{message}");

    // Each pattern by itself is small enough.
    let message = refusal(&stating([vec![".{0,200}"; 9]])).unwrap();
    assert!(message.contains("takes too much memory"), "{message}");

    let message = refusal(&stating([vec![r"(?i)[\s\S]"; 9]])).unwrap();
    assert!(
        message.contains("has too many Unicode character classes"),
        "{message}"
    );
}

/// Hostile patterns of each kind. The numbers are the most that a JobSet of 1.5 MB can hold.
fn hostile() -> Vec<(&'static str, JobSet)> {
    let fit = |unit: &str| unit.repeat(LONGEST / unit.len());
    let many = |unit: String, times: usize| stating([vec![unit.as_str(); times]]);
    let growing: Vec<String> = (0..600)
        .map(|times| format!(r"\pL{{{}}}", 100 + times % 900))
        .collect();
    let no_patterns: Vec<String> = (0..15_000).map(|number| format!("({number}")).collect();
    vec![
        (
            "600 large ones",
            stating([growing.iter().map(String::as_str).collect()]),
        ),
        (
            "15,000 broken ones",
            stating([no_patterns.iter().map(String::as_str).collect()]),
        ),
        (
            "a rule for each",
            stating(no_patterns.iter().map(|one| vec![one.as_str()])),
        ),
        (
            "repetitions of repetitions",
            many("((((a{1000}){1000}){1000}){1000})".to_owned(), 500),
        ),
        (
            "nothing, often",
            many("((((){1000}){1000}){1000})".to_owned(), 500),
        ),
        ("alternatives", many(fit("ab|"), 500)),
        ("classes", many(fit(r"\pL"), 500)),
        (
            "classes that end badly",
            many(format!(r"{}\p{{None}}", r"\pL".repeat(130)), 500),
        ),
        (
            "classes in classes",
            many(format!("[{}]", r"\pL\pN".repeat(60)), 500),
        ),
        (
            "classes of both cases",
            many(r"(?i)[!-\x{10ffff}]".to_owned(), 500),
        ),
        ("all but", many(r"(?i)[[:^alpha:]x]".to_owned(), 500)),
        (
            "groups in groups",
            many(format!("{}{}", "(".repeat(500), ")".repeat(500)), 500),
        ),
        ("anything", many(fit(".*"), 500)),
        (
            "boundaries",
            many(format!("(?:{}a)*c", r"(?:\b|\B)".repeat(50)), 500),
        ),
        ("a long one", many("x".repeat(1_500_000), 1)),
        ("quoted", many(format!(r"\Q{}", "\u{10ffff}".repeat(250)), 500)),
    ]
}

#[test]
fn any_pattern_stays_within_the_budget() {
    for (kind, js) in hostile() {
        let patterns = Patterns::of(&js);
        assert!(memory(&patterns) <= MEMORY, "{kind}: {}", memory(&patterns));
        assert!(patterns.rules.iter().flatten().count() <= MOST, "{kind}");
        assert!(refusal(&js).is_some() || memory(&patterns) > 0, "{kind}");
    }
}

#[test]
fn what_is_beyond_the_budget_matches_nothing_and_what_is_within_matches() {
    let js = stating([
        vec!["(", r"\pL{399}", "lost"],
        vec![r"\pL{399}"; 100],
        vec!["lost"],
    ]);
    let patterns = Patterns::of(&js);
    let first = |rule| patterns.first(rule, &["well", "node lost"], &mut STEPS.clone());
    assert_eq!(first(0), Some(1));
    assert_eq!(first(1), None);
    assert_eq!(first(2), None, "the hundredth pattern comes before it");
    assert_eq!(first(3), None, "there is no such rule");
}

#[test]
fn the_first_message_is_found_whichever_pattern_it_has() {
    let patterns = Patterns::of(&stating([vec!["c", "b", "a"]]));
    let messages = ["x", "x", "b", "a", "c"];
    assert_eq!(patterns.first(0, &messages, &mut STEPS.clone()), Some(2));
    assert_eq!(patterns.first(0, &messages[..2], &mut STEPS.clone()), None);
    assert_eq!(patterns.first(0, &[], &mut STEPS.clone()), None);
}

#[test]
fn matching_ends_with_its_steps() {
    let patterns = Patterns::of(&stating([vec!["lost"]]));
    let each = u64::try_from(patterns.rules[0][0].steps()).unwrap();
    let messages = ["a", "b", "b", "lost"];
    let first = |mut steps: u64| (patterns.first(0, &messages, &mut steps), steps);
    // Two different patterns of a byte, and one of four. The same message costs nothing a second
    // time.
    assert_eq!(first(9 * each), (Some(3), 0));
    assert_eq!(first(9 * each - 1), (None, 5 * each - 1));
    assert_eq!(first(0), (None, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_text_is_compiled_within_the_budget_or_refused(
        patterns in prop::collection::vec(any::<String>(), 0..8),
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "(", ")", "[", "]", "{", "}", "*", "+", "?", "|", "^", "$", ".", "\\", "\\p", "L", "(?i)", "(?i:", "a", "-", "\\Q", "\\E", "[:^alpha:]",
                "{1000}", "{2,}", "\\W", "\\b", "[^", "\u{10ffff}", "\0", "\\x{10ffff}", "\\p{Greek}", "\\377", "&&", "~~", "(?P<n>", ":",
            ]),
            0..60,
        ),
        message in any::<String>(),
    ) {
        let odd = parts.concat();
        let stated: Vec<&str> = patterns.iter().map(String::as_str).chain([odd.as_str()]).collect();
        let patterns = Patterns::of(&stating([stated]));
        prop_assert!(memory(&patterns) <= MEMORY);
        patterns.first(0, &[&message, "a"], &mut STEPS.clone());
    }
}
