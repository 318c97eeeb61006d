//! What the admission webhooks say about Ray's resources.
//!
//! Promises:
//! - What another controller looks after is left alone.
//! - An update is refused for what it makes wrong, and not for what was wrong before: an object
//!   that is there can be labelled, suspended and deleted, whatever it is like. What is given to
//!   this controller is looked at as if it were new.

use lockstep_api::ray::{CONTROLLER_NAME, RayCluster, RayCronJob, RayJob};

use serde_json::Value;

use super::validation::{self, protection};
use super::warnings;
use crate::common::violation::Violation;

/// One of Ray's resources.
pub trait RayResource {
    /// What its spec states of the controller that looks after it.
    fn managed_by(&self) -> Option<&str>;
    /// Everything for which it is refused.
    fn violations(&self) -> Vec<Violation>;
    /// What its user should know who creates it, or changes the `old` one.
    fn warnings(&self, old: Option<&Self>) -> Vec<String>;
}

/// What the user should know of a spec as it was stated, with what no type of ours knows.
#[must_use]
pub fn unknown_fields(spec: &Value) -> Vec<String> {
    warnings::templates(spec)
}

/// True if what states this of its controller is looked after here. `kuberay`: KubeRay's controller
/// runs in this Kubernetes cluster.
#[must_use]
pub fn is_ours(managed_by: Option<&str>, kuberay: bool) -> bool {
    match managed_by.unwrap_or_default() {
        "" => !kuberay,
        manager => manager == CONTROLLER_NAME,
    }
}

/// Why an object may not be created, or, where there is an `old` one, changed.
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
