use super::*;

#[test]
fn control_characters_are_escaped() {
    for (text, shown) in [
        (
            "worker a[1]/worker exited with code 3",
            "worker a[1]/worker exited with code 3",
        ),
        (r#"it's "a" \ b"#, r#"it's "a" \ b"#),
        ("Grüße ─ █ ◐ ✓ 東京", "Grüße ─ █ ◐ ✓ 東京"),
        ("\x1b[2J\x1b]0;owned\x07", r"\x1b[2J\x1b]0;owned\x07"),
        ("\u{9b}31m\u{90}q", r"\x9b31m\x90q"),
        ("one\r\ntwo\tthree\u{7f}\0", r"one\r\ntwo\tthree\x7f\x00"),
        (
            "\u{202e}gnp.exe\u{2066}x\u{2069}\u{61c}",
            r"\u{202e}gnp.exe\u{2066}x\u{2069}\u{61c}",
        ),
        (
            "a\u{200b}b\u{200d}c\u{feff}\u{ad}\u{2028}",
            r"a\u{200b}b\u{200d}c\u{feff}\xad\u{2028}",
        ),
        ("z\u{301}\u{e0041}", r"z\u{301}\u{e0041}"),
    ] {
        assert_eq!(line(text, MESSAGE), shown);
        assert!(is_plain(&line(text, MESSAGE)), "{shown}");
    }
    // All kinds that terminals are known to act upon.
    let acted_upon = ('\0'..=' ')
        .filter(|c| *c != ' ')
        .chain('\u{7f}'..='\u{9f}')
        .chain('\u{200b}'..='\u{200f}')
        .chain('\u{2028}'..='\u{202e}')
        .chain('\u{2060}'..='\u{206f}')
        .chain(['\u{61c}', '\u{feff}', '\u{fff9}', '\u{e0001}']);
    for c in acted_upon {
        assert!(!line(&c.to_string(), MESSAGE).contains(c), "{c:?}");
    }
}

#[test]
fn text_that_is_too_long_is_cut_off() {
    let (fits, longer) = ("ß".repeat(40), "ß".repeat(41));
    assert_eq!(line(&fits, 40), fits);
    assert_eq!(
        line(&longer, 40),
        format!("{}... and 33 more characters", "ß".repeat(8))
    );
    assert_eq!(line(&"\x1b".repeat(11), 40), r"\x1b\x1b... and 9 more characters");
    let long = line(&"\u{202e}".repeat(1_000_000), CELL);
    assert!(long.len() <= CELL, "{}", long.len());
    assert_eq!(line(&long, CELL), long);
}

#[test]
fn no_later_line_of_a_message_passes_for_one_of_ours() {
    let forged = "refused\nnote: all is well\r\n\x1b[32mteam/js  InSync";
    assert_eq!(
        lines(forged),
        "refused\n  note: all is well\n  \\x1b[32mteam/js  InSync"
    );
    let many = lines(&"x\n".repeat(100));
    assert_eq!(many.lines().count(), LINES + 1);
    assert!(many.ends_with("\n  ... and 76 more lines"), "{many}");
}

#[test]
fn a_document_means_the_same() {
    let words = "\u{7f}\u{9b}2J\u{202e}\u{e0041}\x1b\n\"";
    let document = serde_json::to_string_pretty(&[words]).unwrap();
    let safe = json(&document);
    assert!(is_plain(&safe) && !is_plain(&document), "{safe:?}");
    let same: Vec<String> = serde_json::from_str(&safe).unwrap();
    assert_eq!(same, [words]);
}
