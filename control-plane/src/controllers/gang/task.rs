//! Carries out the decision about one JobSet.

use std::sync::Arc;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::{GangPhase, GangStatus, JobSet};
use lockstep_core::gang::{Decision, GroupPolicy, PodGroupRef, Write};

use super::write_failures::{Failure, WriteTarget};
use super::writer::{GangWriteError, Writer};

/// Namespace and name of a JobSet.
pub(super) type Key = (String, String);

/// A decision about one JobSet, to be carried out.
pub(super) struct Task {
    pub(super) key: Key,
    /// The JobSet that the decision is based on.
    pub(super) jobset: Arc<JobSet>,
    pub(super) decision: Decision,
}

impl Task {
    /// True if there is at most a message to write.
    pub(super) fn only_tells(&self) -> bool {
        let decision = &self.decision;
        let writes = decision.write.as_ref().is_some_and(|write| write.urgent);
        !writes && decision.ungate.is_empty() && decision.pod_groups.is_empty()
    }

    /// True if only the message of the status changes.
    pub(super) fn writes_message(&self) -> bool {
        let write = self.decision.write.as_ref();
        write.is_some_and(|write| !write.urgent)
    }
}

/// A write for gangs.
struct PlannedWrite {
    what: WriteTarget,
    has_started: bool,
}

/// The outcome of a task.
pub(super) struct Outcome {
    pub(super) key: Key,
    /// The PodGroups that exist now.
    pub(super) groups: Vec<(String, Option<GroupPolicy>)>,
    /// Set if a message was not written because another client wrote the status in between.
    pub(super) held_up: bool,
    /// Set if at least one write hit a conflict. It is retried after a new decision.
    pub(super) conflicted: bool,
    pub(super) worked: Vec<WriteTarget>,
    pub(super) failures: Vec<Failure>,
}

impl Outcome {
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

    /// Records the result of a write.
    fn note(&mut self, jobset: &JobSet, write: PlannedWrite, result: Result<(), GangWriteError>) {
        let PlannedWrite { what, has_started } = write;
        match result {
            Ok(()) => self.worked.push(what),
            Err(error) => {
                log(jobset, has_started, &error);
                if matches!(error, GangWriteError::Conflict) {
                    self.conflicted = true;
                    return;
                }
                self.failures.push(Failure {
                    what,
                    has_started,
                    message: error.to_string(),
                });
            }
        }
    }
}

/// Carries out a task.
pub(super) async fn carry_out(writer: &Writer, task: Task) -> Outcome {
    let writes_message = task.writes_message();
    let Task {
        key,
        jobset,
        decision,
    } = task;
    let mut done = Outcome::new(key);
    for name in decision.discard {
        let discarded = writer.discard(&jobset, &name).await;
        if discarded.is_err() {
            let write = PlannedWrite {
                what: WriteTarget::PodGroup(name),
                has_started: false,
            };
            done.note(&jobset, write, discarded);
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
        for group in &decision.pod_groups {
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
        let write = PlannedWrite {
            what: WriteTarget::Status,
            has_started: status_started,
        };
        done.note(&jobset, write, written);
    }
    for (group, made) in made {
        let name = group.name.clone();
        let made = made.map(|policy| done.groups.push((name.clone(), policy)));
        let write = PlannedWrite {
            what: WriteTarget::PodGroup(name),
            has_started: is_of_started(group),
        };
        done.note(&jobset, write, made);
    }
    if ungates {
        let write = PlannedWrite {
            what: WriteTarget::Gates,
            has_started: any_started(&jobset),
        };
        done.note(&jobset, write, ungated);
    }
    done
}

/// True if the write changes only gangs that have started.
fn only_started(jobset: &JobSet, write: &Write) -> bool {
    let before = gangs(jobset);
    let mut changed = write.gangs.iter().filter(|gang| !before.contains(gang));
    changed.all(|gang| gang.phase == GangPhase::Scheduled)
}

/// True if the gang has started, so that kube-scheduler binds its pods one by one.
fn is_of_started(group: &PodGroupRef) -> bool {
    group.policy == GroupPolicy::Basic
}

/// True if a gang has started. Its pods may be those that still have gates.
fn any_started(jobset: &JobSet) -> bool {
    let restart_attempt = jobset.restart_attempt();
    let mut gangs = gangs(jobset).iter();
    gangs.any(|gang| gang.restart_attempt == restart_attempt && gang.phase == GangPhase::Scheduled)
}

fn gangs(jobset: &JobSet) -> &[GangStatus] {
    let status = jobset.status.as_ref();
    status.map_or(&[], |status| &status.gangs)
}

fn log(jobset: &JobSet, has_started: bool, error: &GangWriteError) {
    let (namespace, name) = (jobset.ns(), jobset.name());
    if matches!(error, GangWriteError::Conflict) {
        tracing::debug!(namespace, jobset = name, %error, "will decide again");
    } else if has_started {
        tracing::warn!(namespace, jobset = name, %error, "gang not updated, will retry");
    } else {
        tracing::warn!(namespace, jobset = name, %error, "gang not started, will retry");
    }
}
