//! Names of a JobSet's objects, as upstream defines them.

use sha1::{Digest, Sha1};

/// The longest pod name that is also valid as a host name and a label value.
const LONGEST_POD_NAME: usize = 63;
/// How many hex digits end the name of a replacement pod or a PodGroup.
const REPLACEMENT_DIGITS: usize = 8;

/// Name of a Job: `<jobset>-<replicatedJob>-<job index>`.
pub fn job_name(jobset: &str, replicated_job: &str, job_index: i64) -> String {
    format!("{jobset}-{replicated_job}-{job_index}")
}

/// Host name of a pod, and its name up to the random suffix: `<job name>-<completion index>`.
pub fn pod_hostname(job_name: &str, completion_index: i64) -> String {
    format!("{job_name}-{completion_index}")
}

/// Name of a shared persistent volume claim: `<template name>-<jobset>`.
pub fn claim_name(template: &str, jobset: &str) -> String {
    format!("{template}-{jobset}")
}

/// Value of [`crate::labels::JOB_KEY`]: SHA-1 of `<namespace>/<job name>`, in hex. It has the same
/// length for every Job, so it fits a label, and differs between namespaces, so affinity terms can
/// span them.
pub fn job_key(namespace: &str, job_name: &str) -> String {
    hex_digest(&format!("{namespace}/{job_name}"))
}

/// Name of a replacement pod: `<job name>-<completion index>-<digest of the predecessor>`. The
/// Job's name is cut if the result would exceed the limit for pods. A predecessor always yields the
/// same name, so it is replaced once.
pub fn replacement_pod_name(job_name: &str, completion_index: u32, predecessor: &str) -> String {
    let digest = hex_digest(predecessor);
    let end = format!("-{completion_index}-{}", &digest[..REPLACEMENT_DIGITS]);
    let room = LONGEST_POD_NAME.saturating_sub(end.len());
    let start = &job_name[..job_name.floor_char_boundary(room)];
    format!("{start}{end}")
}

/// Name of the PodGroup of a gang: `<jobset>-<gang>-<restart attempt>-<minimum>-<digest of the
/// JobSet's UID>`. The spec of a PodGroup is immutable and it outlives its last pod for a while, so
/// each new start gets another one.
pub fn pod_group_name(jobset: &str, gang: &str, restart_attempt: i32, minimum: i32, uid: &str) -> String {
    let digest = hex_digest(uid);
    format!(
        "{jobset}-{gang}-{restart_attempt}-{minimum}-{}",
        &digest[..REPLACEMENT_DIGITS]
    )
}

/// SHA-1 of a text, in hex, for comparisons and names.
pub fn hex_digest(text: &str) -> String {
    let digest = Sha1::digest(text);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Value of [`crate::labels::NAMESPACED_JOB`]: `<namespace>_<job name>`.
pub fn namespaced_job(namespace: &str, job_name: &str) -> String {
    format!("{namespace}_{job_name}")
}

#[cfg(test)]
mod tests {
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
    fn a_replacement_is_named_after_its_predecessor() {
        let name = replacement_pod_name("train-workers-0", 3, "uid-1");
        // printf uid-1 | sha1sum
        assert_eq!(name, "train-workers-0-3-f0552977");
        assert_ne!(name, replacement_pod_name("train-workers-0", 3, "uid-2"));
        let long = replacement_pod_name(&"j".repeat(63), 12, "uid-1");
        assert_eq!(long.len(), 63);
        assert!(long.ends_with("-12-f0552977"), "{long}");
    }
}
