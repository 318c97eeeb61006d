use super::*;

#[test]
fn jobs_and_pods_are_numbered() {
    assert_eq!(job_name("train", "workers", 3), "train-workers-3");
    assert_eq!(pod_hostname("train-workers-3", 0), "train-workers-3-0");
    assert_eq!(claim_name("cache", "train"), "cache-train");
    assert_eq!(namespaced_job("team", "train-workers-3"), "team_train-workers-3");
}

#[test]
fn job_key_is_the_sha1_of_the_namespaced_name() {
    // printf default/train-workers-0 | sha1sum
    assert_eq!(
        job_key("default", "train-workers-0"),
        "bfcf5ebea76efcf5a9add9af4c26c7d637c630a1"
    );
    assert_ne!(job_key("a", "b-0"), job_key("c", "b-0"));
}

#[test]
fn a_replacement_is_named_after_what_it_replaces() {
    let name = replacement_pod_name("train-workers-0", 3, "uid-1");
    // printf uid-1 | sha1sum
    assert_eq!(name, "train-workers-0-3-f0552977");
    assert_ne!(name, replacement_pod_name("train-workers-0", 3, "uid-2"));
    let long = replacement_pod_name(&"j".repeat(63), 12, "uid-1");
    assert_eq!(long.len(), 63);
    assert!(long.ends_with("-12-f0552977"), "{long}");
}
