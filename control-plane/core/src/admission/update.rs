//! Which changes of a JobSet are allowed.
//!
//! Only `suspend`, `ttlSecondsAfterFinished`, `activeDeadlineSeconds` and, around a suspension,
//! `gang` and the part of the pod templates that Kueue and others set (KEP-2926, KEP-1150) may
//! change. The schema guards the policies;
//! this guards the rest. Another spelling of the same value is no change.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Container;
use lockstep_api::{JobSet, JobSetSpec, annotations::SUPERVISE};

use super::default::by_name;
use super::validation;
use crate::common::features::Features;
use crate::common::semantic;
use crate::common::violation::{Kind, Violation, path};
use crate::jobset::elastic;
use crate::jobset::limits::{self, MOST_REPLICATED_JOBS};

const IMMUTABLE: &str = "field is immutable";

pub(super) fn validate(old: &JobSet, new: &JobSet, features: &Features) -> Vec<Violation> {
    let mut violations: Vec<Violation> = limits::raised(old, new).into_iter().collect();
    if new.spec.replicated_jobs.len() > MOST_REPLICATED_JOBS && !violations.is_empty() {
        return violations;
    }
    let mut masked = new.spec.clone();
    if elastic::is_elastic(old, features) {
        scale(old, &mut masked, &mut violations);
    }
    if old.is_suspended() || new.is_suspended() {
        mask_what_suspension_allows(&old.spec, &mut masked, features);
    }
    let changed = semantic::changes(
        "replicatedJobs",
        &old.spec.replicated_jobs,
        &masked.replicated_jobs,
    );
    if !changed.is_empty() {
        violations.push(Violation::with_value(
            "spec.replicatedJobs",
            changed.join(", "),
            IMMUTABLE,
        ));
    }
    if new.spec.managed_by != old.spec.managed_by {
        let field = "spec.managedBy";
        violations.push(match &new.spec.managed_by {
            Some(manager) => Violation::with_value(field, manager, IMMUTABLE),
            None => Violation::with_value(field, format_args!("null"), IMMUTABLE),
        });
    }
    let stands_still = !(old.is_suspended() || new.is_suspended());
    // The schema's rule also ignores the order of lists whose entries have names.
    let other_gang = new.spec.gang.as_ref().map(by_name) != old.spec.gang.as_ref().map(by_name);
    if other_gang && stands_still {
        violations.push(Violation::with_json(
            "spec.gang",
            &new.spec.gang,
            "field is immutable unless the JobSet is suspended",
        ));
    }
    violations.extend(supervision(old, new));
    // Faults of the old object do not refuse a correct change.
    let open = |jobset: &JobSet| {
        let mut open = validation::in_place::annotations(jobset, features);
        open.extend(validation::in_place::jobs(jobset, features));
        // Defaults set the minimum of each group when it is created, and a RayCluster's groups are
        // scaled later: no minimum may exceed the number of pods.
        let is_scaled = elastic::is_elastic(old, features) && !elastic::is_of_ray_cluster(old);
        if other_gang || is_scaled {
            validation::gang::validate(jobset, &mut open);
        }
        open
    };
    let before = open(old);
    violations.extend(
        open(new)
            .into_iter()
            .filter(|violation| !before.contains(violation)),
    );
    if new.spec.execution_policy != old.spec.execution_policy {
        // The message of the schema's rule.
        let policy = &new.spec.execution_policy;
        violations.push(Violation::with_json(
            "spec.executionPolicy",
            policy,
            "Value is immutable",
        ));
    }
    violations
}

/// The workers to supervise are chosen when the pods are created.
fn supervision(old: &JobSet, new: &JobSet) -> Option<Violation> {
    let changed = old.annotation(SUPERVISE) != new.annotation(SUPERVISE);
    (old.is_made_in_place() && changed).then(|| {
        Violation::with_value(
            format!("metadata.annotations[{SUPERVISE}]"),
            new.annotation(SUPERVISE).unwrap_or_default(),
            "field is immutable once the Jobs are created",
        )
    })
}

/// ElasticJobSet (KEP-463): the number of pods of Indexed Jobs may change.
fn scale(old: &JobSet, masked: &mut JobSetSpec, violations: &mut Vec<Violation>) {
    for (index, new) in masked.replicated_jobs.iter_mut().enumerate() {
        let Some(old_job) = job_spec(&old.spec, &new.name) else {
            continue;
        };
        if elastic::is_of_ray_cluster(old)
            && let Some(old) = old.replicated_job(&new.name)
            && new.replicas() < 2
        {
            new.replicas = old.replicas;
        }
        let Some(job) = new.template.spec.as_mut() else {
            continue;
        };
        if job.completion_mode.as_deref() != Some("Indexed") {
            continue;
        }
        let parallelism_changed = job.parallelism != old_job.parallelism;
        let completions_changed = job.completions != old_job.completions;
        let field = |name: &str| path(index, &format!(".template.spec{name}"));
        if (parallelism_changed || completions_changed) && old.is_finished() {
            violations.push(Violation::new(
                field(""),
                "Cannot mutate parallelism or completions when JobSet is in a terminal state (Completed or Failed)",
            ).of(Kind::Forbidden));
        } else if (parallelism_changed || completions_changed)
            && old.is_made_in_place()
            && !old.is_suspended()
            && !elastic::is_of_ray_cluster(old)
        {
            // A new worker would count as a lost one, and all others would restart for it.
            violations.push(Violation::new(
                field(""),
                "Cannot mutate parallelism or completions of a JobSet that restarts in place, unless it is suspended",
            ).of(Kind::Forbidden));
        } else {
            if parallelism_changed && job.parallelism.is_some_and(|value| value < 1) {
                violations.push(Violation::with_value(
                    field(".parallelism"),
                    job.parallelism.unwrap_or_default(),
                    "parallelism must be >= 1",
                ));
            }
            if completions_changed && job.completions.is_some_and(|value| value < 1) {
                violations.push(Violation::with_value(
                    field(".completions"),
                    job.completions.unwrap_or_default(),
                    "completions must be >= 1",
                ));
            }
            if (parallelism_changed || completions_changed)
                && job.parallelism.is_some()
                && job.completions.is_some()
                && job.parallelism != job.completions
            {
                violations.push(Violation::with_value(
                    field(".completions"),
                    job.completions.unwrap_or_default(),
                    "completions must be equal to parallelism for Elastic Indexed Jobs",
                ));
            }
        }
        job.parallelism = old_job.parallelism;
        job.completions = old_job.completions;
    }
}

/// Restores the old values of fields that may change while the JobSet is suspended, or is being
/// suspended or resumed.
fn mask_what_suspension_allows(old: &JobSetSpec, masked: &mut JobSetSpec, features: &Features) {
    for new in &mut masked.replicated_jobs {
        let (Some(old), Some(new)) = (job_spec(old, &new.name), new.template.spec.as_mut()) else {
            continue;
        };
        let old_meta = old.template.metadata.clone().unwrap_or_default();
        let meta = new.template.metadata.get_or_insert_default();
        meta.annotations = old_meta.annotations;
        meta.labels = old_meta.labels;
        if let (Some(old), Some(new)) = (&old.template.spec, &mut new.template.spec) {
            new.node_selector.clone_from(&old.node_selector);
            new.tolerations.clone_from(&old.tolerations);
            new.scheduling_gates.clone_from(&old.scheduling_gates);
            if features.mutable_resources {
                restore_resources(&old.containers, &mut new.containers);
                let old = old.init_containers.as_deref().unwrap_or_default();
                restore_resources(old, new.init_containers.as_deref_mut().unwrap_or_default());
            }
        }
    }
}

/// Restores the old requests and limits of containers (KEP-1150). Claims of devices stay as they
/// are.
fn restore_resources(old: &[Container], new: &mut [Container]) {
    let old: BTreeMap<&str, &Container> = old.iter().map(|one| (one.name.as_str(), one)).collect();
    for new in new {
        let Some(old) = old.get(new.name.as_str()) else {
            continue;
        };
        let claims = new.resources.take().and_then(|resources| resources.claims);
        new.resources.clone_from(&old.resources);
        let before = old
            .resources
            .as_ref()
            .and_then(|resources| resources.claims.as_ref());
        if claims.as_ref() != before {
            new.resources.get_or_insert_default().claims = claims;
        }
    }
}

fn job_spec<'a>(spec: &'a JobSetSpec, name: &str) -> Option<&'a k8s_openapi::api::batch::v1::JobSpec> {
    let job = spec.replicated_jobs.iter().find(|job| job.name == name)?;
    job.template.spec.as_ref()
}
