//! Whether the installation is well: verdicts on what was observed, each with what to do.

mod certificate;
mod cluster;
mod control_plane;
mod daemons;
mod rights;
mod webhooks;

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

/// What was asked for, or why it could not be had.
pub(crate) type Fetched<T> = Result<T, String>;

/// All that was observed. Absent objects are `Ok(None)`.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) now: Timestamp,
    /// Where Lockstep is looked for.
    pub(crate) namespace: String,
    /// Kubernetes' version: major, minor, and as it calls itself.
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
    /// Leases by which KubeRay's replicas elect one that acts.
    pub(crate) kuberay: Fetched<Vec<Lease>>,
    /// What the caller may do, in the order of [`REQUIRED_RIGHTS`].
    pub(crate) rights: Vec<Fetched<bool>>,
    /// Whether the platform API answers; none: it was not asked.
    pub(crate) platform: Option<Fetched<String>>,
    /// What it says of the nodes whose daemons are connected; none: it was not asked.
    pub(crate) connected: Option<Vec<pb::Node>>,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// All is well.
    Ok,
    /// It works, but should be looked at; or it could not be seen.
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
    /// What was found.
    pub(crate) text: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
}

/// Verdicts in the making.
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

    /// What was seen; what could not be is a warning.
    fn fetched<'s, T>(&mut self, what: &str, seen: &'s Fetched<T>) -> Option<&'s T> {
        match seen {
            Ok(seen) => Some(seen),
            Err(why) => {
                self.warning(
                    format!("{what}: not seen: {why}"),
                    "ask somebody who may to run this check, or for the right to read it",
                );
                None
            }
        }
    }
}

/// All verdicts, in the order in which things depend on each other.
pub(crate) fn verdicts(seen: &Observed) -> Vec<Verdict> {
    let mut report = Report {
        section: "",
        verdicts: Vec::new(),
    };
    cluster::check(seen, &mut report);
    control_plane::check(seen, &mut report);
    webhooks::check(seen, &mut report);
    daemons::check(seen, &mut report);
    cluster::conflicts(seen, &mut report);
    rights::check(seen, &mut report);
    report.verdicts
}

/// The worst of them.
pub(crate) fn worst(verdicts: &[Verdict]) -> Level {
    let levels = verdicts.iter().map(|verdict| verdict.level);
    levels.max().unwrap_or(Level::Ok)
}
