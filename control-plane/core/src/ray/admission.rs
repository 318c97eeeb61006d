//! The answers of the admission webhooks for Ray's resources.
//!
//! Promises:
//! - Resources that another controller manages are accepted unchanged.
//! - An update is refused only for faults that it adds: any stored object can be labelled,
//!   suspended and deleted. An object that is handed to this controller is validated as if it were
//!   new.

use lockstep_api::ray::{CONTROLLER_NAME, RayCluster, RayCronJob, RayJob};

use serde_json::Value;

use super::validation::{self, protection};
use super::warnings;
use crate::common::violation::Violation;

/// One of Ray's resources.
pub trait RayResource {
    /// The controller that its spec names as its manager.
    fn managed_by(&self) -> Option<&str>;
    /// All faults for which it is refused.
    fn violations(&self) -> Vec<Violation>;
    /// Warnings for the user who creates it, or changes the `old` one.
    fn warnings(&self, old: Option<&Self>) -> Vec<String>;
}

/// Warnings about the fields of a spec, as submitted, that our types do not know.
#[must_use]
pub fn unknown_fields(spec: &Value) -> Vec<String> {
    warnings::templates(spec)
}

/// True if this controller manages a resource with this `managedBy`. `kuberay` is true if KubeRay's
/// controller runs in this Kubernetes cluster.
#[must_use]
pub fn is_ours(managed_by: Option<&str>, kuberay: bool) -> bool {
    match managed_by.unwrap_or_default() {
        "" => !kuberay,
        manager => manager == CONTROLLER_NAME,
    }
}

/// Why an object may not be created or, if there is an `old` one, changed.
#[must_use]
pub fn validate<R: RayResource>(old: Option<&R>, new: &R, kuberay: bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    if let Some(old) = old {
        let stated = |resource: &R| resource.managed_by().unwrap_or_default().to_owned();
        let (before, after) = (stated(old), stated(new));
        let concerns = [&before, &after]
            .into_iter()
            .any(|manager| manager == CONTROLLER_NAME);
        if !before.is_empty() && before != after && concerns {
            violations.push(Violation::new(
                "spec.managedBy",
                "the managedBy field is immutable",
            ));
        }
    }
    if is_ours(new.managed_by(), kuberay) {
        let known = old.filter(|old| is_ours(old.managed_by(), kuberay));
        let before = known.map(R::violations).unwrap_or_default();
        let all = new.violations().into_iter();
        violations.extend(all.filter(|violation| !before.contains(violation)));
    }
    violations
}

impl RayResource for RayCluster {
    fn managed_by(&self) -> Option<&str> {
        self.spec.managed_by.as_deref()
    }

    fn violations(&self) -> Vec<Violation> {
        let mut violations = validation::cluster(self);
        violations.extend(protection::cluster(self));
        violations
    }

    fn warnings(&self, _: Option<&Self>) -> Vec<String> {
        warnings::cluster(self)
    }
}

impl RayResource for RayJob {
    fn managed_by(&self) -> Option<&str> {
        self.spec.managed_by.as_deref()
    }

    fn violations(&self) -> Vec<Violation> {
        let mut violations = validation::job(self);
        violations.extend(protection::job(self));
        violations
    }

    fn warnings(&self, old: Option<&Self>) -> Vec<String> {
        warnings::job(old, self)
    }
}

impl RayResource for RayCronJob {
    fn managed_by(&self) -> Option<&str> {
        self.spec.managed_by.as_deref()
    }

    fn violations(&self) -> Vec<Violation> {
        let mut violations = validation::cron(self);
        violations.extend(protection::cron(self));
        violations
    }

    fn warnings(&self, _: Option<&Self>) -> Vec<String> {
        warnings::cron(self)
    }
}
