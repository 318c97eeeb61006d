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
