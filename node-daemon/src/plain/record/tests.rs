use super::*;

fn records(generation: u64) -> Records {
    let record = Record {
        container: "c1".into(),
        attempt: 2,
        generation,
        next: Some(generation + 1),
        next_since: -1,
        counter: 3,
        epoch: 7,
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
    assert_eq!(files.read().unwrap().len(), 1);
    for uid in ["", "../a", "a/b"] {
        files.write(&uid.into(), &records(1)).unwrap_err();
    }
}
