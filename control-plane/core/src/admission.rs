//! Admission of JobSets by the webhooks: defaults, validation and warnings.
//!
//! The messages are upstream's. Two rules differ on purpose: a replicatedJob cannot depend on
//! itself, and in-place JobSets need not set `backoffLimit` and `podReplacementPolicy`.

pub mod validation;

mod default;
mod update;
mod warnings;

use std::collections::BTreeMap;

use lockstep_api::JobSet;

use crate::common::features::Features;
use crate::common::patterns;
use crate::common::violation::Violation;

pub use crate::admission::validation::volume_claims::Existing;
pub use default::{default, restate, restated};
pub use warnings::{create_warnings, update_warnings};

#[cfg(test)]
mod tests;

/// Stands for the random characters that the API server appends to `generateName`, and the longest
/// base that it keeps.
const GENERATED: (&str, usize) = ("abcde", 58);

/// Everything that is wrong with a JobSet that is being created.
#[must_use]
pub fn validate_create(jobset: &JobSet, features: &Features) -> Vec<Violation> {
    let mut violations = validation::validate(&named(jobset), features);
    violations.extend(validation::nameless_groups(jobset));
    violations.extend(validation::without_pods(jobset));
    violations.extend(patterns::validate(jobset));
    violations
}

/// Everything that is wrong with the change of a JobSet.
#[must_use]
pub fn validate_update(old: &JobSet, new: &JobSet, features: &Features) -> Vec<Violation> {
    update::validate(old, new, features)
}

/// Names of the claims that a JobSet creates. They may already exist.
#[must_use]
pub fn claim_names(jobset: &JobSet) -> Vec<String> {
    validation::volume_claims::names(&named(jobset))
}

/// What is wrong with a JobSet that is being created, compared with existing claims. `claims` has
/// each that exists, by name, or the error of reading it.
#[must_use]
pub fn validate_claims(jobset: &JobSet, claims: &BTreeMap<String, Existing>) -> Vec<Violation> {
    validation::volume_claims::against_existing(&named(jobset), claims)
}

/// The JobSet. If its name is generated, it gets one of the length that the generated name will
/// have.
fn named(jobset: &JobSet) -> JobSet {
    let mut jobset = jobset.clone();
    if let (None | Some(""), Some(base)) = (jobset.metadata.name.as_deref(), &jobset.metadata.generate_name) {
        let base = &base[..base.floor_char_boundary(GENERATED.1)];
        jobset.metadata.name = Some(format!("{base}{}", GENERATED.0));
    }
    jobset
}
