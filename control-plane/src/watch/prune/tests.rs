use std::collections::BTreeMap;

use super::*;

fn map(keys: &[&str]) -> Option<BTreeMap<String, String>> {
    Some(
        keys.iter()
            .map(|key| ((*key).to_owned(), String::new()))
            .collect(),
    )
}

fn keys(map: Option<&BTreeMap<String, String>>) -> Vec<&str> {
    map.unwrap().keys().map(String::as_str).collect()
}

#[test]
fn a_jobset_loses_nothing_but_bookkeeping() {
    let mut object = JobSet::default();
    object.metadata.managed_fields = Some(Vec::new());
    object.metadata.annotations = map(&["note", LAST_APPLIED]);
    jobset(&mut object);
    assert_eq!(keys(object.metadata.annotations.as_ref()), ["note"]);
    assert_eq!(object.metadata.managed_fields, None);
}
