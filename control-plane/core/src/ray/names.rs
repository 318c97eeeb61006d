//! Names of a RayCluster's objects. Long names that KubeRay accepts are shortened, so that the pods
//! have valid host names.

use std::collections::BTreeSet;

use lockstep_api::naming::hex_digest;
use lockstep_api::ray::RayClusterSpec;

/// Name of the head's replicatedJob.
pub const HEAD: &str = "head";
/// Longest host name of a pod.
const LONGEST_HOSTNAME: usize = 63;
/// Longest name of a replicatedJob.
const LONGEST_GROUP: usize = 20;
/// Room for `-<Job index>-<completion index>-<random>` of a pod.
const INDEXES: usize = "-0-99999-abcde".len();
/// Hex digits at the end of a name that was shortened.
const DIGITS: usize = 8;

/// Name of the head's Service: `<cluster>-head-svc`.
#[must_use]
pub fn head_service(cluster: &str) -> String {
    format!("{cluster}-head-svc")
}

/// Name of the replicatedJob of a worker group: the group's own if possible.
#[must_use]
pub fn replicated_job(group: &str) -> String {
    let name = group.to_lowercase();
    let is_label = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    match is_label && name.len() <= LONGEST_GROUP && name != HEAD {
        true => name,
        false => format!("group-{}", &hex_digest(group)[..DIGITS]),
    }
}

/// Name of the JobSet to create for a cluster: the cluster's own if its pod names leave room for
/// it.
#[must_use]
pub fn jobset(cluster: &str, spec: &RayClusterSpec) -> String {
    let groups = spec.worker_group_specs.iter();
    let longest = groups.map(|group| replicated_job(&group.group_name).len()).max();
    beside(cluster, longest.unwrap_or(0).max(HEAD.len()))
}

/// All names that the JobSet of a cluster may have: it keeps its name when the cluster gets groups
/// with longer or shorter names.
#[must_use]
pub fn jobsets(cluster: &str) -> BTreeSet<String> {
    let lengths = HEAD.len()..=LONGEST_GROUP;
    lengths.map(|longest| beside(cluster, longest)).collect()
}

/// The beginning of the cluster's name, if this may be a shortened name of its JobSet.
#[must_use]
pub fn unshortened(jobset: &str) -> Option<&str> {
    let (start, end) = jobset.rsplit_once('-')?;
    let is_digest = end.len() == DIGITS && end.chars().all(|c| c.is_ascii_hexdigit());
    is_digest.then_some(start)
}

/// Name of a cluster's JobSet, if the longest name of its replicatedJobs has this length.
fn beside(cluster: &str, longest: usize) -> String {
    let room = LONGEST_HOSTNAME - INDEXES - 1 - longest;
    if cluster.len() <= room {
        return cluster.to_owned();
    }
    let start = &cluster[..cluster.floor_char_boundary(room.saturating_sub(DIGITS + 1))];
    format!(
        "{}-{}",
        start.trim_end_matches('-'),
        &hex_digest(cluster)[..DIGITS]
    )
}
