//! The life of a CA, read from the Secret as every replica does.

use super::*;

const TERMS: Terms = Terms {
    name: "ca",
    days: 500,
};

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn at(hours: i64) -> Timestamp {
    start() + SignedDuration::from_hours(hours)
}

fn data(rotation: &Rotation) -> BTreeMap<String, ByteString> {
    let mut data = BTreeMap::new();
    rotation.put(&mut data);
    data
}

/// The same after a round trip through a Secret, as every other replica sees it.
fn reread(rotation: &Rotation) -> Rotation {
    Rotation::from_data(TERMS, &data(rotation)).unwrap()
}

fn first() -> Rotation {
    Rotation::generate(TERMS, start()).unwrap()
}

/// Runs the rotation at these hours and returns the steps. Each input is (hour, a new CA is due,
/// all clients are informed).
fn live(mut rotation: Rotation, looks: &[(i64, bool, bool)]) -> (Rotation, Vec<Option<Change>>) {
    let mut changes = Vec::new();
    for (hour, due, told) in looks {
        let step = reread(&rotation)
            .step(at(*hour), || *due, Trust::told(*told))
            .unwrap();
        changes.push(step.as_ref().map(|(_, change)| *change));
        if let Some((after, _)) = step {
            assert_eq!(reread(&after), after);
            rotation = after;
        }
    }
    (rotation, changes)
}

/// One life of an authority, step by step, which is why it is long.
#[test]
fn each_step_happens_when_it_is_due_whatever_the_clock_does() {
    use Change::{Forgotten, Made, Mended, Signs, Told};
    const DUE: bool = true;
    const TOLD: bool = true;
    let month = 30 * 24;
    /// The input as (hour, due, told), and the step.
    type Case<'a> = (&'a str, &'a [((i64, bool, bool), Option<Change>)]);
    let cases: &[Case<'_>] = &[
        (
            "a whole life",
            &[
                ((0, !DUE, TOLD), None),
                ((0, DUE, TOLD), Some(Made)),
                ((0, DUE, TOLD), Some(Told)),
                ((23, DUE, TOLD), None),
                ((24, DUE, TOLD), Some(Signs)),
                ((24, DUE, TOLD), None),
                ((24 + month - 1, DUE, TOLD), None),
                ((24 + month, !DUE, TOLD), Some(Forgotten)),
                ((24 + month, !DUE, TOLD), None),
                ((24 + month, DUE, TOLD), Some(Made)),
            ],
        ),
        (
            "a replica that does not know yet has the whole day from then on",
            &[
                ((0, DUE, !TOLD), Some(Made)),
                ((0, DUE, !TOLD), None),
                ((24, DUE, !TOLD), None),
                ((24 * 100, DUE, !TOLD), None),
                ((24 * 100, DUE, TOLD), Some(Told)),
                ((24 * 101 - 1, DUE, TOLD), None),
                ((24 * 101, DUE, TOLD), Some(Signs)),
            ],
        ),
        (
            "what was told and is taken back has to be there when it signs",
            &[
                ((0, DUE, TOLD), Some(Made)),
                ((0, DUE, TOLD), Some(Told)),
                ((24, DUE, !TOLD), None),
                ((48, DUE, !TOLD), None),
                ((49, DUE, TOLD), Some(Signs)),
            ],
        ),
        (
            "a clock that is put back by a day while another CA is announced: it is announced for a day more",
            &[
                ((24 * 300, DUE, TOLD), Some(Made)),
                ((24 * 300, DUE, TOLD), Some(Told)),
                ((24 * 299, DUE, TOLD), None),
                ((24 * 300, DUE, TOLD), None),
                ((24 * 301 - 1, DUE, TOLD), None),
                ((24 * 301, DUE, TOLD), Some(Signs)),
            ],
        ),
        (
            "by more than a day: its day starts over",
            &[
                ((24 * 300, DUE, TOLD), Some(Made)),
                ((24 * 300, DUE, TOLD), Some(Told)),
                ((24 * 299 - 1, DUE, TOLD), Some(Mended)),
                ((24 * 299 - 1, DUE, TOLD), None),
                ((24 * 300 - 2, DUE, TOLD), None),
                ((24 * 300 - 1, DUE, TOLD), Some(Signs)),
            ],
        ),
        (
            "by years: one that is good only then does not sign now, and another is made",
            &[
                ((24 * 400, DUE, TOLD), Some(Made)),
                ((24 * 400, DUE, TOLD), Some(Told)),
                ((0, DUE, TOLD), Some(Mended)),
                ((23, DUE, TOLD), None),
                ((24, DUE, TOLD), Some(Mended)),
                ((24, DUE, TOLD), Some(Made)),
                ((24, DUE, TOLD), Some(Told)),
                ((48, DUE, TOLD), Some(Signs)),
            ],
        ),
        (
            "while a former one is kept: for a month from then on",
            &[
                ((24 * 100, DUE, TOLD), Some(Made)),
                ((24 * 100, DUE, TOLD), Some(Told)),
                ((24 * 101, DUE, TOLD), Some(Signs)),
                ((24 * 100, !DUE, TOLD), Some(Mended)),
                ((24 * 100 + month - 1, !DUE, TOLD), None),
                ((24 * 100 + month, !DUE, TOLD), Some(Forgotten)),
            ],
        ),
        (
            "a clock that is put forward: nothing is left out, only late steps come at once",
            &[
                ((0, DUE, TOLD), Some(Made)),
                ((0, DUE, TOLD), Some(Told)),
                ((24 * 200, DUE, TOLD), Some(Signs)),
                ((24 * 300, !DUE, TOLD), Some(Forgotten)),
            ],
        ),
    ];
    for (name, looks) in cases {
        let (seen, expected): (Vec<_>, Vec<_>) = looks.iter().copied().unzip();
        assert_eq!(live(first(), &seen).1, expected, "{name}");
    }
}

#[test]
fn replicas_whose_clocks_differ_agree() {
    let (made, _) = live(first(), &[(50, true, true), (50, true, true)]);
    // One clock is five hours behind, another a day. The day of the announcement ends by the clock
    // that recorded it, not by theirs.
    let looks = [45, 50, 26, 50, 45, 26, 73, 74].map(|hour| (hour, true, true));
    let (_, changes) = live(made, &looks);
    assert_eq!(changes, [[None; 7].as_slice(), &[Some(Change::Signs)]].concat());
    // A replica with a clock ahead created it: the others can report at once that all know it.
    let (_, changes) = live(first(), &[50, 45, 45, 50, 73, 74].map(|hour| (hour, true, true)));
    let [made, told, signs] = [Change::Made, Change::Told, Change::Signs].map(Some);
    assert_eq!(changes, [made, told, None, None, None, signs]);
}

#[test]
fn an_authority_from_a_clock_ahead_is_renewed_with_its_key() {
    let made = Rotation::generate(TERMS, at(24 * 300)).unwrap();
    let (renewed, changes) = live(made.clone(), &[(0, false, true), (0, false, true)]);
    assert_eq!(changes, [Some(Change::Renewed), None]);
    assert_eq!(renewed.current.key, made.current.key);
    assert!(renewed.current.has_begun(at(0)));
}

#[test]
fn both_authorities_are_published_around_the_change() {
    let first = first();
    let (announced, _) = live(first.clone(), &[(0, true, true), (0, true, true)]);
    assert_eq!(
        announced.current, first.current,
        "it does not sign before it is known"
    );
    let (replaced, _) = live(announced.clone(), &[(24, true, true)]);
    let (old, new) = (&first.current.cert, &replaced.current.cert);
    assert_ne!(first.current.key, replaced.current.key);
    assert_eq!(announced.trusted(), format!("{old}{new}"));
    assert_eq!(replaced.trusted(), format!("{new}{old}"));
    let (forgotten, _) = live(replaced.clone(), &[(24 * 40, false, true)]);
    assert_eq!(forgotten.trusted(), *new);
    let keys: Vec<_> = data(&forgotten).into_keys().collect();
    assert_eq!(keys, [CA_CERT, CA_KEY]);
}

#[test]
fn an_authority_about_to_expire_is_renewed_with_its_key() {
    let (renewed, changes) = live(
        first(),
        &[
            (24 * 497, false, true),
            (24 * 499, false, true),
            (24 * 499, false, true),
        ],
    );
    assert_eq!(changes, [None, Some(Change::Renewed), None]);
    let first = reread(&renewed);
    assert!(first.current.lasts_until(at(24 * 900)) && first.current.is_whole());
}

/// The Secret of earlier versions, by key.
#[test]
fn secrets_of_earlier_versions_are_parsed() {
    let (now, next, before) = (first(), first(), first());
    let pem = |text: &str| ByteString(text.as_bytes().to_vec());
    let mut old: BTreeMap<String, ByteString> = [
        ("ca.crt", now.current.cert.as_str()),
        ("ca.key", &now.current.key),
        ("ca.since", "2026-01-01T00:00:00Z"),
        ("next.crt", &next.current.cert),
        ("next.key", &next.current.key),
        ("next.since", "2026-01-01T00:00:00Z"),
        ("previous.crt", &before.current.cert),
        ("previous.since", "2026-01-01T00:00:00Z"),
        ("tls.crt", "another's"),
    ]
    .into_iter()
    .map(|(key, text)| (key.to_owned(), pem(text)))
    .collect();
    let read = Rotation::from_data(TERMS, &old).unwrap();
    assert_eq!(
        read.trusted(),
        [&now, &next, &before].map(|of| of.current.cert.as_str()).concat()
    );
    // It signs a day after all are known to trust it, not a day after its creation.
    let (told, changes) = live(read, &[(100, false, true), (123, false, true)]);
    assert_eq!(changes, [Some(Change::Told), None]);
    // The earlier version reads it as before, and unrelated keys stay.
    told.put(&mut old);
    for key in [
        "ca.crt",
        "ca.key",
        "next.crt",
        "next.key",
        "next.since",
        "previous.crt",
        "previous.since",
    ] {
        assert!(!old[key].0.is_empty(), "{key}");
    }
    let since = String::from_utf8(old["next.since"].0.clone()).unwrap();
    assert!(since.parse::<Timestamp>().is_ok());
    assert_eq!(
        (&old["tls.crt"], &old["ca.since"]),
        (&pem("another's"), &pem("2026-01-01T00:00:00Z"))
    );
}

#[test]
fn damaged_ones_beside_the_current_are_left_out_and_written_out() {
    let (with_next, _) = live(first(), &[(0, true, true), (0, true, true)]);
    let (with_previous, _) = live(with_next.clone(), &[(24, true, true)]);
    let other = first();
    let damages: [(&Rotation, &[&str]); 2] = [
        (&with_next, &[NEXT_CERT, NEXT_KEY, NEXT_SINCE]),
        (&with_previous, &[PREVIOUS_CERT, PREVIOUS_SINCE]),
    ];
    for (whole, keys) in damages {
        for key in keys {
            for damage in [None, Some("nonsense".to_owned()), Some(other.current.key.clone())] {
                let mut data = data(whole);
                match &damage {
                    Some(text) => data.insert((*key).to_owned(), ByteString(text.clone().into_bytes())),
                    None => data.remove(*key),
                };
                let read = Rotation::from_data(TERMS, &data).unwrap();
                assert_eq!(read.trusted(), whole.current.cert, "{key}: {damage:?}");
                let (mended, change) = read.step(at(24), || false, Trust::Published).unwrap().unwrap();
                assert_eq!(change, Change::Mended);
                mended.put(&mut data);
                assert_eq!(data.into_keys().collect::<Vec<_>>(), [CA_CERT, CA_KEY]);
                assert_eq!(mended.step(at(24), || false, Trust::Published).unwrap(), None);
            }
        }
    }
}

#[test]
fn without_a_current_one_there_is_nothing() {
    let whole = data(&first());
    let other = first().current.key;
    for (key, damages) in [
        (CA_CERT, vec!["", "nonsense"]),
        (CA_KEY, vec!["", "nonsense", &other]),
    ] {
        for damage in damages {
            let mut data = whole.clone();
            data.insert(key.to_owned(), ByteString(damage.as_bytes().to_vec()));
            assert_eq!(Rotation::from_data(TERMS, &data), Err(key), "{damage}");
        }
    }
    assert_eq!(Rotation::from_data(TERMS, &BTreeMap::new()), Err(CA_CERT));
}
