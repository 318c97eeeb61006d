//! Carries out what is decided about one JobSet, and says what came of it.

use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::{GangPhase, GangStatus, JobSet};
use lockstep_core::gang::{Decision, GroupPolicy, PodGroupRef, Write};

use super::write_failures::{Failure, What};
use super::writer::{GangWriteError, Writer};

/// Namespace and name of a JobSet.
pub(super) type Key = (String, String);

/// What is to be done about one JobSet.
pub(super) struct Task {
    pub(super) key: Key,
    /// As it was decided on.
    pub(super) jobset: Arc<JobSet>,
    pub(super) decision: Decision,
}

impl Task {
    /// Whether nothing is to be done but to write a message.
    pub(super) fn only_tells(&self) -> bool {
        let decision = &self.decision;
        let writes = decision.write.as_ref().is_some_and(|write| write.urgent);
        !writes && decision.ungate.is_empty() && decision.groups.is_empty()
    }

    /// Whether a message is to be written, and no more of the status.
    pub(super) fn writes_message(&self) -> bool {
        let write = self.decision.write.as_ref();
        write.is_some_and(|write| !write.urgent)
    }
}

/// What came of it.
pub(super) struct Done {
    pub(super) key: Key,
    /// The PodGroups that there are now.
    pub(super) groups: Vec<(String, Option<GroupPolicy>)>,
    /// A message was not written, as somebody else has written the status in between.
    pub(super) held_up: bool,
    /// At least one write hit a conflict and must be retried from a fresh decision.
    pub(super) conflicted: bool,
    pub(super) worked: Vec<What>,
    pub(super) failures: Vec<Failure>,
}

impl Done {
    fn new(key: Key) -> Self {
        Self {
            key,
            groups: Vec::new(),
            held_up: false,
            conflicted: false,
            worked: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Notes what came of a write.
    fn note(&mut self, jobset: &JobSet, what: What, has_started: bool, result: Result<(), GangWriteError>) {
        match result {
            Ok(()) => self.worked.push(what),
            Err(error) => {
                log(jobset, has_started, &error);
                if matches!(error, GangWriteError::Conflict) {
                    self.conflicted = true;
                    return;
                }
                let said = error.to_string();
                self.failures.push(Failure {
                    what,
                    has_started,
                    said,
                });
            }
        }
    }
}

/// Does what is to be done about one JobSet.
pub(super) async fn carry_out(writer: &Writer, task: Task) -> Done {
    let writes_message = task.writes_message();
    let Task {
        key,
        jobset,
        decision,
    } = task;
    let mut done = Done::new(key);
    for name in decision.discard {
        let discarded = writer.discard(&jobset, &name).await;
        if discarded.is_err() {
            done.note(&jobset, What::PodGroup(name), false, discarded);
            return done;
        }
    }
    let status_started = decision
        .write
        .as_ref()
        .is_some_and(|write| only_started(&jobset, write));
    let write = async {
        match decision.write {
            Some(write) => Some(writer.write(&jobset, write).await),
            None => None,
        }
    };
    let make = async {
        let mut made = Vec::new();
        for group in &decision.groups {
            let policy = writer.make(&jobset, group).await;
            let failed = policy.is_err();
            made.push((group, policy));
            if failed {
                break;
            }
        }
        made
    };
    let ungates = !decision.ungate.is_empty();
    let object = ObjectRef::from_obj(&*jobset);
    let ungate = writer.ungate(&object, decision.ungate);
    let (written, made, ungated) = tokio::join!(write, make, ungate);
    if let Some(written) = written {
        done.held_up = writes_message && matches!(written, Err(GangWriteError::Conflict));
        done.note(&jobset, What::Status, status_started, written);
    }
    for (group, made) in made {
        let name = group.name.clone();
        let made = made.map(|policy| done.groups.push((name.clone(), policy)));
        done.note(&jobset, What::PodGroup(name), is_of_started(group), made);
    }
    if ungates {
        done.note(&jobset, What::Gates, any_started(&jobset), ungated);
    }
    done
}

/// Whether nothing of a status is to be different but of gangs that have started.
fn only_started(jobset: &JobSet, write: &Write) -> bool {
    let before = gangs(jobset);
    let mut changed = write.gangs.iter().filter(|gang| !before.contains(gang));
    changed.all(|gang| gang.phase == GangPhase::Scheduled)
}

/// kube-scheduler is to bind the pods one by one then.
fn is_of_started(group: &PodGroupRef) -> bool {
    group.policy == GroupPolicy::Basic
}

/// Whether a gang has started whose pods may be those that keep their gates.
fn any_started(jobset: &JobSet) -> bool {
    let restarts = jobset.restarts();
    let mut gangs = gangs(jobset).iter();
    gangs.any(|gang| gang.restart_attempt == restarts && gang.phase == GangPhase::Scheduled)
}

fn gangs(jobset: &JobSet) -> &[GangStatus] {
    let status = jobset.status.as_ref();
    status.map_or(&[], |status| &status.gangs)
}

fn log(jobset: &JobSet, has_started: bool, error: &GangWriteError) {
    let (namespace, name) = (jobset.ns(), jobset.name());
    if matches!(error, GangWriteError::Conflict) {
        tracing::debug!(namespace, jobset = name, %error, "will decide anew");
    } else if has_started {
        tracing::warn!(namespace, jobset = name, %error, "gang not updated, will retry");
    } else {
        tracing::warn!(namespace, jobset = name, %error, "gang not started, will retry");
    }
}
