//! The health of the installation: verdicts on what was observed, each with a hint.

mod cluster;
mod control_plane;
mod daemons;
mod rights;
mod webhooks;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service};
use lockstep_proto::platform::v1 as pb;
use serde::Serialize;

pub(crate) use cluster::Crd;
pub(crate) use control_plane::holder;
pub(crate) use rights::{REQUIRED_RIGHTS, Right};

#[cfg(test)]
mod tests;

/// The answer to a request, or why there is none.
pub(crate) type Fetched<T> = Result<T, String>;

/// Everything that was observed. An object that does not exist is `Ok(None)`.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) now: Timestamp,
    /// Namespace in which Lockstep should be installed.
    pub(crate) namespace: String,
    /// Version of Kubernetes: major, minor, and in full.
    pub(crate) version: Fetched<(u32, u32, String)>,
    pub(crate) jobset_crd: Fetched<Option<Crd>>,
    pub(crate) deployments: Fetched<Vec<Deployment>>,
    pub(crate) control_plane_pods: Fetched<Vec<Pod>>,
    pub(crate) lease: Fetched<Option<Lease>>,
    pub(crate) hub_ca: Fetched<Option<ConfigMap>>,
    pub(crate) mutating: Fetched<Vec<MutatingWebhookConfiguration>>,
    pub(crate) validating: Fetched<Vec<ValidatingWebhookConfiguration>>,
    pub(crate) services: Fetched<Vec<Service>>,
    pub(crate) daemon_set: Fetched<Option<DaemonSet>>,
    pub(crate) daemon_pods: Fetched<Vec<Pod>>,
    pub(crate) nodes: Fetched<Vec<Node>>,
    /// For some nodes: true if the kernel kills all of a container that is out of memory.
    pub(crate) kills_of_whole_containers: BTreeMap<String, bool>,
    /// Leases of KubeRay's leader election.
    pub(crate) kuberay: Fetched<Vec<Lease>>,
    /// If the caller has each right, in the order of [`REQUIRED_RIGHTS`].
    pub(crate) rights: Vec<Fetched<bool>>,
    /// How the platform API was reached, or why not. `None` if it was not asked.
    pub(crate) platform: Option<Fetched<String>>,
    /// The nodes whose daemons are connected. `None` if the platform API was not asked.
    pub(crate) connected: Option<Vec<pb::Node>>,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// Healthy.
    Ok,
    /// It works but needs attention, or it could not be read.
    Warning,
    /// Something does not work.
    Error,
}

/// One line of the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Verdict {
    pub(crate) section: &'static str,
    pub(crate) level: Level,
    /// The finding.
    pub(crate) text: String,
    /// How to resolve it.
    pub(crate) hint: Option<String>,
}

/// Collects verdicts, section by section.
pub(crate) struct Report {
    section: &'static str,
    verdicts: Vec<Verdict>,
}

impl Report {
    fn section(&mut self, section: &'static str) {
        self.section = section;
    }

    fn say(&mut self, level: Level, text: impl Into<String>, hint: Option<String>) {
        self.verdicts.push(Verdict {
            section: self.section,
            level,
            text: text.into(),
            hint,
        });
    }

    fn ok(&mut self, text: impl Into<String>) {
        self.say(Level::Ok, text, None);
    }

    fn warning(&mut self, text: impl Into<String>, hint: impl Into<String>) {
        self.say(Level::Warning, text, Some(hint.into()));
    }

    fn error(&mut self, text: impl Into<String>, hint: impl Into<String>) {
        self.say(Level::Error, text, Some(hint.into()));
    }

    /// The answer to a request. If there is none, this adds a warning.
    fn fetched<'s, T>(&mut self, what: &str, seen: &'s Fetched<T>) -> Option<&'s T> {
        match seen {
            Ok(seen) => Some(seen),
            Err(why) => {
                self.warning(
                    format!("{what}: cannot be read: {why}"),
                    "ask for the right to read it, or ask someone who has that right to run this check",
                );
                None
            }
        }
    }
}

/// All verdicts. What others depend on comes first.
pub(crate) fn verdicts(seen: &Observed) -> Vec<Verdict> {
    let mut report = Report {
        section: "",
        verdicts: Vec::new(),
    };
    cluster::check(seen, &mut report);
    control_plane::check(seen, &mut report);
    webhooks::check(seen, &mut report);
    daemons::check(seen, &mut report);
    daemons::memory(seen, &mut report);
    cluster::conflicts(seen, &mut report);
    rights::check(seen, &mut report);
    report.verdicts
}

/// The worst level among the verdicts.
pub(crate) fn worst(verdicts: &[Verdict]) -> Level {
    let levels = verdicts.iter().map(|verdict| verdict.level);
    levels.max().unwrap_or(Level::Ok)
}
