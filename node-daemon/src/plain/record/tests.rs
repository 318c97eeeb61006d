use proptest::prelude::*;

use super::*;

fn records(generation: u64) -> Records {
    let record = Record {
        container: "c1".into(),
        attempt: 2,
        generation: Generation(generation),
        next: Some(Generation(generation + 1)),
        next_since: BootNanos(1),
        counter: 3,
        epoch: Epoch(7),
    };
    [("worker".to_owned(), record)].into()
}

#[test]
fn the_next_daemon_reads_what_was_written_last() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path()).unwrap();
    assert_eq!(files.read().unwrap(), BTreeMap::new());
    files.write(&"a".into(), &records(1)).unwrap();
    files.write(&"a".into(), &records(2)).unwrap();
    files.write(&"b".into(), &records(9)).unwrap();
    files.erase(&"b".into());
    files.erase(&"never-there".into());
    let next = Files::open(dir.path()).unwrap();
    assert_eq!(next.read().unwrap(), BTreeMap::from([("a".into(), records(2))]));
}

#[test]
fn what_is_damaged_is_left_out_and_nothing_is_written_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::open(dir.path()).unwrap();
    files.write(&"a".into(), &records(1)).unwrap();
    fs::write(dir.path().join("plain/b.json"), "{\"worker\": {").unwrap();
    fs::write(dir.path().join("plain/c.new"), "").unwrap();
    // Nor does one of them keep the daemon from starting.
    fs::create_dir(dir.path().join("plain/d.json")).unwrap();
    assert_eq!(files.read().unwrap().len(), 1);
    for uid in ["", "../a", "a/b"] {
        files.write(&uid.into(), &records(1)).unwrap_err();
    }
}

fn record() -> impl Strategy<Value = Record> {
    let numbers = any::<(u32, u64, Option<u64>, u64, u64, u64)>();
    (".{0,8}", numbers).prop_map(|(container, numbers)| Record {
        container: container.into(),
        attempt: numbers.0,
        generation: Generation(numbers.1),
        next: numbers.2.map(Generation),
        next_since: BootNanos(numbers.3),
        counter: numbers.4,
        epoch: Epoch(numbers.5),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_are_read_as_they_were_written_unless_they_are_damaged(
        records in prop::collection::btree_map("[a-z]{1,4}", record(), 0..3),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        garbage in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::open(dir.path()).unwrap();
        files.write(&"a".into(), &records).unwrap();
        let mut damaged = fs::read(dir.path().join("plain/a.json")).unwrap();
        let at = at.index(damaged.len());
        damaged[at] = byte;
        fs::write(dir.path().join("plain/b.json"), &damaged).unwrap();
        fs::write(dir.path().join("plain/c.json"), &garbage).unwrap();
        let read = files.read().unwrap();
        prop_assert_eq!(read.get(&"a".into()), Some(&records));
        let same = |bytes: &[u8]| serde_json::from_slice::<Records>(bytes).ok();
        prop_assert_eq!(read.get(&"b".into()).cloned(), same(&damaged));
        prop_assert_eq!(read.get(&"c".into()).cloned(), same(&garbage));
    }
}
