//! Defaults that the schema cannot express; those it can are applied by the API server before.

use lockstep_api::{JobSet, Network, RetentionPolicy, StartupPolicy, SuccessPolicy, VolumeRetentionPolicy};

/// Fills in what a JobSet that is being created leaves out. What it states stays.
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
    for policy in &mut spec.volume_claim_policies {
        policy.retention_policy.get_or_insert(VolumeRetentionPolicy {
            when_deleted: Some(RetentionPolicy::Delete),
        });
    }
}
