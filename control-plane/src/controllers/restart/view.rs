//! What the API server shows of a group, and what the group's task publishes to the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use kube::runtime::reflector::ObjectRef;
use lockstep_api::{JobSet, labels};
use lockstep_core::jobset::completed;
use lockstep_core::jobset::pod::PodSummary;
use lockstep_core::restart::{self, Durable, Gathered, Occupancy, PodPlace};

use crate::hub::{self, GroupPolicy, Published};
use crate::k8s::watch::{Stores, WatchedPod};

/// The most bytes of rules that a node gets for one group. Messages have at most 16 MiB, and one
/// group must leave room for others.
const RULES: usize = 1 << 20;
/// Bytes of a rule without its texts, of an exit code that processes can have, and of any other
/// exit code.
const RULE: usize = 16;
const CODE: usize = 2;
const LONG_CODE: usize = 10;

/// What the API server shows of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The part that the coordinator decides on.
    pub gathered: Gathered,
    /// What the nodes need besides the coordinator's decisions.
    pub policy: GroupPolicy,
    /// Nodes that hold live pods of the group.
    pub nodes: Arc<BTreeSet<String>>,
    /// The places of the group's pods.
    pub places: BTreeMap<PodPlace, Occupancy>,
}

/// Reads the stores for one JobSet. `durable` is the state in its status.
pub(super) fn view(stores: &Stores, jobset: &JobSet, durable: &Durable) -> View {
    let uid = jobset.uid_str();
    let key = ObjectRef::from_obj(jobset);
    let jobs: Vec<Arc<Job>> = stores
        .jobs_and_departed(jobset, stores.jobs_of(&key))
        .into_iter()
        .filter(|job| has_uid(job.metadata.labels.as_ref(), uid))
        .collect();
    let pods: Vec<Arc<WatchedPod>> = stores
        .pods_of(&key)
        .into_iter()
        .filter(|pod| pod.summary.jobset_uid.as_deref() == Some(uid))
        .collect();
    let pods: Vec<&PodSummary> = pods.iter().map(|pod| &pod.summary).collect();
    view_of(jobset, jobs, &pods, durable)
}

/// The view of these Jobs and pods, which belong to the JobSet. Jobs that its status names as
/// completed are part of it even if they are gone.
#[must_use]
pub fn view_of(jobset: &JobSet, jobs: Vec<Arc<Job>>, pods: &[&PodSummary], durable: &Durable) -> View {
    let jobs = &completed::with_gone(jobset, jobs)[..];
    let restart_attempt = jobset.restart_attempt();
    let pods = || pods.iter().copied();
    let gathered = restart::gather(jobset, jobs, pods(), restart_attempt);
    let places = restart::places(jobs, pods(), restart_attempt, &durable.started);
    // A node with only ended pods needs no messages.
    let nodes: BTreeSet<String> = pods()
        .filter(|pod| !pod.is_terminal())
        .filter_map(|pod| pod.node.clone())
        .collect();
    let policy = GroupPolicy {
        namespace: jobset.metadata.namespace.clone().unwrap_or_default(),
        grace_ms: u32::try_from(restart::grace_ms(jobset)).unwrap_or(u32::MAX),
        // A completed Job that is gone has no rules.
        terminal_rules: terminal_rules(
            &gathered.policy.terminal_rules,
            jobs.iter().filter(|job| job.metadata.uid.is_some()).count(),
        ),
        heartbeat_timeout_ms: restart::heartbeat_timeout_ms(jobset),
        ready_timeout_ms: restart::ready_timeout_ms(jobset),
    };
    View {
        gathered,
        policy,
        nodes: Arc::new(nodes),
        places,
    }
}

/// The rules for the nodes, each once. A rule of all Jobs names no Job. If the rules take more than
/// [`RULES`], agents leave every exit to Kubernetes, which applies the rules itself: no exit code
/// that a rule names is missed, and failed workers get new containers or pods.
fn terminal_rules(rules: &[restart::TerminalRule], jobs: usize) -> Vec<hub::TerminalRule> {
    let mut jobs_of: BTreeMap<_, BTreeSet<&str>> = BTreeMap::new();
    for rule in rules {
        let what = (rule.container.as_deref(), rule.negated, rule.codes.as_slice());
        jobs_of.entry(what).or_default().insert(&rule.job);
    }
    let mut room = RULES;
    let mut all = Vec::new();
    for ((container, negated, codes), of) in jobs_of {
        let of = if of.len() == jobs {
            BTreeSet::from([""])
        } else {
            of
        };
        for job in of {
            let container = container.unwrap_or_default();
            let size = RULE + job.len() + container.len() + room_of(codes);
            let Some(left) = room.checked_sub(size) else {
                let every = hub::TerminalRule {
                    job: String::new(),
                    container: String::new(),
                    negated: true,
                    codes: Vec::new(),
                };
                return vec![every];
            };
            room = left;
            all.push(hub::TerminalRule {
                job: job.to_owned(),
                container: container.to_owned(),
                negated,
                codes: codes.to_vec(),
            });
        }
    }
    all
}

fn room_of(codes: &[i32]) -> usize {
    let rooms = codes.iter().map(|code| match code {
        0..=255 => CODE,
        _ => LONG_CODE,
    });
    rooms.sum()
}

fn has_uid(labels: Option<&BTreeMap<String, String>>, uid: &str) -> bool {
    labels
        .and_then(|labels| labels.get(labels::JOBSET_UID))
        .is_some_and(|label| label == uid)
}

/// The message to the nodes.
#[must_use]
pub fn published(view: &View, desired: restart::Desired) -> Published {
    Published {
        desired,
        policy: view.policy.clone(),
        nodes: Arc::clone(&view.nodes),
    }
}

#[cfg(test)]
mod tests {
    //! What nodes learn of exit codes.

    use lockstep_core::restart::TerminalAction;

    use super::*;

    fn rule(job: usize, codes: &[i32]) -> restart::TerminalRule {
        restart::TerminalRule {
            job: format!("js-w-{job}"),
            container: None,
            negated: false,
            codes: codes.to_vec(),
            action: TerminalAction::FailJob,
        }
    }

    fn codes(rules: &[restart::TerminalRule], jobs: usize) -> Vec<(String, bool, Vec<i32>)> {
        let rules = terminal_rules(rules, jobs).into_iter();
        rules.map(|rule| (rule.job, rule.negated, rule.codes)).collect()
    }

    #[test]
    fn a_rule_of_all_jobs_is_sent_once() {
        let mut rules: Vec<_> = (0..10_000).map(|job| rule(job, &[3; 200])).collect();
        assert_eq!(codes(&rules, 10_000), [(String::new(), false, vec![3; 200])]);
        // A rule that only some Jobs have names these Jobs.
        rules.truncate(2);
        rules.push(rule(1, &[4]));
        rules.push(rule(1, &[4]));
        let of = |job: &str, codes: &[i32]| (job.to_owned(), false, codes.to_vec());
        assert_eq!(codes(&rules, 2), [of("", &[3; 200]), of("js-w-1", &[4])]);
        let of_both = codes(&rules, 3);
        assert_eq!(
            of_both,
            [
                of("js-w-0", &[3; 200]),
                of("js-w-1", &[3; 200]),
                of("js-w-1", &[4])
            ]
        );
        assert!(codes(&[], 3).is_empty());
    }

    #[test]
    fn with_too_many_rules_kubernetes_decides_about_every_exit() {
        let rules: Vec<_> = (0..1_000).map(|job| rule(job, &[3; 1_000])).collect();
        assert_eq!(codes(&rules, 1_001), [(String::new(), true, vec![])]);
    }
}
