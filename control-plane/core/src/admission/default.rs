//! Defaults that the schema cannot express. The API server has already applied those that it can.

use lockstep_api::{
    Gang, GangBackend, GangReplicatedJob, JobSet, Network, RetentionPolicy, StartupPolicy, SuccessPolicy,
    VolumeRetentionPolicy, annotations,
};

use crate::jobset::limits::MOST_REPLICATED_JOBS;

/// Sets fields that a JobSet being created leaves out. Fields that are set stay.
pub fn default(jobset: &mut JobSet) {
    let spec = &mut jobset.spec;
    spec.success_policy.get_or_insert_with(SuccessPolicy::default);
    spec.startup_policy.get_or_insert_with(StartupPolicy::default);
    let network = spec.network.get_or_insert_with(Network::default);
    network.enable_dns_hostnames.get_or_insert(true);
    network.publish_not_ready_addresses.get_or_insert(true);
    for replicated_job in &mut spec.replicated_jobs {
        // A template without a spec is refused, not completed.
        let Some(job) = &mut replicated_job.template.spec else {
            continue;
        };
        job.completion_mode.get_or_insert_with(|| "Indexed".to_owned());
        if let Some(pod) = &mut job.template.spec {
            match pod.restart_policy.as_deref() {
                None | Some("") => pod.restart_policy = Some("OnFailure".to_owned()),
                Some(_) => {}
            }
        }
    }
    for (index, rule) in spec
        .failure_policy
        .iter_mut()
        .flat_map(|policy| &mut policy.rules)
        .enumerate()
    {
        if rule.name.is_empty() {
            rule.name = format!("failurePolicyRule{index}");
        }
    }
    gang(jobset);
    let spec = &mut jobset.spec;
    for policy in &mut spec.volume_claim_policies {
        policy.retention_policy.get_or_insert(VolumeRetentionPolicy {
            when_deleted: Some(RetentionPolicy::Delete),
        });
    }
}

/// Removes earlier defaults from a gang that is being changed: the total minimum if the user
/// changed those of replicatedJobs, and the minimum of the only replicatedJob if the user changed
/// the total. Otherwise a user who changes one of them would be refused because of the other, which
/// they did not write.
pub fn restate(old: &JobSet, new: &mut JobSet) {
    let is_single = new.spec.replicated_jobs.len() == 1;
    let (Some(before), Some(gang)) = (&old.spec.gang, &mut new.spec.gang) else {
        return;
    };
    let is_same = gang.min_available == before.min_available;
    let are_same = by_name(gang).replicated_jobs == by_name(before).replicated_jobs;
    if is_same && !are_same && !gang.replicated_jobs.is_empty() {
        gang.min_available = None;
    } else if is_single && are_same && !is_same && gang.min_available.is_some() {
        gang.replicated_jobs.clear();
    }
}

/// Warnings about minimums of a gang that are stored with another value than the user set. A user
/// who sets both minimums and changes one looks the same as a user who sets only one.
#[must_use]
pub fn restated(stated: &JobSet, stored: &JobSet) -> Vec<String> {
    let (Some(stated), Some(stored)) = (&stated.spec.gang, &stored.spec.gang) else {
        return Vec::new();
    };
    let mut warnings = Vec::new();
    if let (Some(from), Some(to)) = (stated.min_available, stored.min_available)
        && from != to
    {
        warnings.push(format!(
            "spec.gang.minAvailable: set to {to} instead of {from}: the sum of the changed spec.gang.replicatedJobs"
        ));
    }
    for (index, job) in stated.replicated_jobs.iter().enumerate() {
        let (from, to) = (job.min_available, stored.listed(&job.name));
        if let Some(to) = to.filter(|to| *to != from) {
            warnings.push(format!(
                "spec.gang.replicatedJobs[{index}].minAvailable: set to {to} instead of {from}: spec.gang.minAvailable was changed"
            ));
        }
    }
    warnings
}

/// The gang with its replicatedJobs sorted by name, since their order has no meaning.
pub(super) fn by_name(gang: &Gang) -> Gang {
    let mut gang = gang.clone();
    gang.replicated_jobs
        .sort_by(|one, other| one.name.cmp(&other.name));
    gang
}

/// Sets the minimum of the JobSet and of each replicatedJob, and annotates JobSets whose
/// replicatedJobs wait for each other.
fn gang(jobset: &mut JobSet) {
    let Some(gang) = &jobset.spec.gang else {
        return;
    };
    let jobs = &jobset.spec.replicated_jobs;
    if jobs.len() > MOST_REPLICATED_JOBS {
        return;
    }
    let mut gang = gang.clone();
    gang.backend.get_or_insert(GangBackend::Auto);
    let timeout = gang.schedule_timeout_seconds();
    gang.schedule_timeout_seconds = Some(timeout);
    // An invalid gang is not completed, but refused as it was written.
    let can_be = |minimum: i32, pods: i32| 0 < minimum && minimum <= pods;
    let is_single = jobs.len() == 1;
    let stated = gang.min_available.filter(|_| is_single);
    let minimums = jobs.iter().map(|job| {
        let minimum = gang.listed(&job.name).or(stated).unwrap_or_else(|| job.pods());
        (job, minimum)
    });
    let minimums: Vec<_> = minimums.collect();
    if minimums
        .iter()
        .all(|(job, minimum)| *minimum == job.pods() || can_be(*minimum, job.pods()))
        && !(gang.replicated_jobs.is_empty() && gang.min_available.is_some() && !is_single)
    {
        let sum = minimums
            .iter()
            .map(|(_, minimum)| *minimum)
            .fold(0, i32::saturating_add);
        let missing: Vec<GangReplicatedJob> = minimums
            .iter()
            .filter(|(job, minimum)| *minimum > 0 && gang.listed(&job.name).is_none())
            .map(|(job, minimum)| GangReplicatedJob {
                name: job.name.clone(),
                min_available: *minimum,
            })
            .collect();
        gang.replicated_jobs.extend(missing);
        gang.min_available.get_or_insert(sum);
    }
    let waits = jobset.executes_in_order().is_some() || jobs.iter().any(|job| !job.depends_on.is_empty());
    jobset.spec.gang = Some(gang);
    if waits {
        let annotations = jobset.metadata.annotations.get_or_insert_default();
        annotations.insert(annotations::DEPENDENT_JOB.to_owned(), "true".to_owned());
    }
}
