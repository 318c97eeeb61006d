use proptest::prelude::*;
use serde_json::json;

use super::*;

#[test]
fn what_people_write_is_read() {
    for (text, value) in [
        (
            "working_dir: s3://b/k?x&y*z\npip: [torch==2.1, 'a b', \"c\"]\nenv_vars:\n  A: \"1\"\n  B: yes\n",
            json!({"working_dir": "s3://b/k?x&y*z", "pip": ["torch==2.1", "a b", "c"], "env_vars": {"A": "1", "B": "yes"}}),
        ),
        (
            "a: |\n  x\n  y\nb: >-\n  f\n  g\n",
            json!({"a": "x\ny\n", "b": "f g"}),
        ),
        (
            "{\"a\": [1, 2.5, true, null]}",
            json!({"a": [1, 2.5, true, null]}),
        ),
        ("# nothing\n", json!(null)),
        (
            "a: !!str 1\nb: ~\nc: n\nd: 0o17\n",
            json!({"a": "1", "b": null, "c": "n", "d": 15}),
        ),
        ("a: 1\na: 2\n", json!({"a": 2})),
    ] {
        assert_eq!(yaml(text), Ok(value), "{text}");
    }
}

#[test]
fn what_would_be_expanded_is_refused_before_it_is() {
    let n = 5000;
    let ones = vec!["1"; n].join(",");
    for bomb in [
        format!("a: &a [{ones}]\nb: [{}]\n", vec!["*a"; n].join(",")),
        "a: &a 1\nb: *a\n".to_owned(),
        // Line breaks and tabs of YAML 1.1, which other parsers read differently.
        "# x\u{85}a: &a [1]\u{85}b: *a\n".to_owned() + "c: &c [1]",
        "a: [1, &b 2]".to_owned(),
        "&a a: 1".to_owned(),
        "- *a".to_owned(),
    ] {
        let error = yaml(&bomb).unwrap_err();
        assert!(
            error.contains("anchors and aliases are not supported") || error.contains("unknown anchor"),
            "{error}"
        );
    }
    let error = yaml("<<: {a: 1}\nb: 2\n").unwrap_err();
    assert!(error.contains("merge keys"), "{error}");
}

#[test]
fn what_is_long_or_deep_is_refused_with_the_limit() {
    let long = format!("a: '{}'", "x".repeat(LONGEST));
    for (text, why) in [
        (long, "must be no more than 65536 bytes"),
        ("[".repeat(60_000), "deep"),
        ("{a: ".repeat(15_000), "deep"),
        ("- ".repeat(30_000), "deep"),
        ("? ".repeat(30_000), "deep"),
        (
            (0..300).map(|i| format!("{}a:\n", " ".repeat(i))).collect(),
            "deep",
        ),
        (
            format!("[{}]", vec!["1"; 20_000].join(",")),
            "no more than 10000 values",
        ),
        ("a: 1\n---\nb: 2\n".to_owned(), "one document"),
        ("!x a: 1".to_owned(), "tag"),
    ] {
        let error = yaml(&text).unwrap_err();
        assert!(error.contains(why), "{error}");
        assert!(error.len() < 600, "{error}");
    }
    assert!(json(&"[".repeat(60_000)).unwrap_err().contains("recursion limit"));
    assert!(
        json(&format!("\"{}\"", "x".repeat(LONGEST)))
            .unwrap_err()
            .contains("65536 bytes")
    );
    assert_eq!(json("{\"GPU\": 1}"), Ok(json!({"GPU": 1})));
}

/// The number of values in a value.
fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(all) => all.iter().map(nodes).sum(),
        Value::Object(all) => all.values().map(|value| 1 + nodes(value)).sum(),
        _ => 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_text_is_read_or_refused_within_the_limits(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "a", ": ", ":", "- ", "[", "]", "{", "}", ", ", "\n", "  ", "\t", "&a ", "*a", "<<: ", "!!str ", "!x ", "'", "\"", "|\n", ">-\n", "# c\n", "---\n",
                "...\n", "? ", "1", "0x", ".inf", "1e999", "\u{85}", "\u{2028}", "\u{feff}", "%YAML 1.1\n", "\\u0000", "~", "@",
            ]),
            0..80,
        ),
    ) {
        for text in [String::from_utf8_lossy(&bytes).into_owned(), parts.concat()] {
            if let Ok(value) = yaml(&text) {
                prop_assert!(nodes(&value) <= MOST_NODES);
                prop_assert!(value.to_string().len() <= 8 * text.len() + 32);
            }
            let _ = json(&text);
        }
    }
}
