//! The JobSet's status while a plan is being made: conditions, the counts per replicatedJob, and
//! the events that report changes.
//!
//! A [`Draft`] starts from the status as it is. At the end it is compared with that, so that a
//! repeated decision which changes nothing writes nothing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::batch::v1::Job,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use lockstep_api::{
    JobSet, JobSetStatus, ReplicatedJobStatus, TerminalState,
    conditions::{self, messages, reasons},
    labels,
};

use crate::{
    common::features::Features,
    jobset::children::{Children, label},
    jobset::jobs::total,
    jobset::plan::{Event, Plan, Severity},
};

#[cfg(test)]
mod tests;

/// A status that is being built.
pub(crate) struct Draft<'a> {
    before: &'a JobSetStatus,
    /// The status to write.
    pub(crate) status: JobSetStatus,
    events: Vec<Event>,
    now: Timestamp,
}

/// One of the conditions that the controller sets.
pub(crate) struct NewCondition<'a> {
    pub(crate) severity: Severity,
    pub(crate) type_: &'static str,
    pub(crate) status: bool,
    pub(crate) reason: &'a str,
    pub(crate) message: &'a str,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(before: &'a JobSetStatus, now: Timestamp) -> Self {
        Self {
            before,
            status: before.clone(),
            events: Vec::new(),
            now,
        }
    }

    /// True if this controller has not written a status of the JobSet before.
    pub(crate) fn is_first(&self) -> bool {
        self.before.replicated_jobs_status.is_empty()
    }

    /// Adds an event about the status change.
    pub(crate) fn event(&mut self, severity: Severity, reason: &str, message: impl Into<String>) {
        self.events.push(Event {
            severity,
            reason: reason.to_owned(),
            message: message.into(),
        });
    }

    /// Sets a condition, and adds an event if that changes anything.
    ///
    /// An absent condition is not added as false, except MinAvailable, which exists from the
    /// beginning. A change of only the reason or message keeps the time of the last transition. The
    /// two conditions of the startup policy exclude each other.
    pub(crate) fn set_condition(&mut self, new: &NewCondition<'_>) {
        let status = if new.status { "True" } else { "False" };
        let mut changed = false;
        let mut found = false;
        for condition in &mut self.status.conditions {
            if condition.type_ == new.type_ {
                found = true;
                if condition.status != status {
                    condition.last_transition_time = Time(self.now);
                } else if condition.reason == new.reason && condition.message == new.message {
                    continue;
                }
                condition.status = status.to_owned();
                condition.reason = new.reason.to_owned();
                condition.message = new.message.to_owned();
                changed = true;
            } else if new.status
                && condition.status == "True"
                && exclude_each_other(new.type_, &condition.type_)
            {
                condition.status = "False".to_owned();
                changed = true;
            }
        }
        if !found && (new.status || new.type_ == conditions::MIN_AVAILABLE) {
            self.status.conditions.push(Condition {
                type_: new.type_.to_owned(),
                status: status.to_owned(),
                reason: new.reason.to_owned(),
                message: new.message.to_owned(),
                last_transition_time: Time(self.now),
                observed_generation: None,
            });
            changed = true;
        }
        if changed {
            self.event(new.severity, new.reason, new.message);
        }
    }

    /// Ends `Suspended`, if it was ever set.
    pub(crate) fn set_resumed(&mut self) {
        self.set_condition(&NewCondition {
            severity: Severity::Normal,
            type_: conditions::SUSPENDED,
            status: false,
            reason: reasons::RESUME_JOBS,
            message: messages::RESUME_JOBS,
        });
    }

    /// Ends `RestartingJobSet`, if it was ever set.
    pub(crate) fn set_not_restarting(&mut self, reason: &str, message: &str) {
        self.set_condition(&NewCondition {
            severity: Severity::Normal,
            type_: conditions::RESTARTING_JOBSET,
            status: false,
            reason,
            message,
        });
    }

    /// Ends `RestartBlocked`, if it was ever set: the coordinator that sets it is gone.
    pub(crate) fn set_not_blocked(&mut self, reason: &str, message: &str) {
        self.set_condition(&NewCondition {
            severity: Severity::Normal,
            type_: conditions::RESTART_BLOCKED,
            status: false,
            reason,
            message,
        });
    }

    /// The JobSet has failed, for good.
    pub(crate) fn fail(&mut self, reason: &str, message: &str) {
        self.set_condition(&NewCondition {
            severity: Severity::Warning,
            type_: conditions::FAILED,
            status: true,
            reason,
            message,
        });
        self.set_not_restarting(reasons::JOBSET_FAILED, messages::JOBSET_FAILED);
        self.set_not_blocked(reasons::JOBSET_FAILED, messages::JOBSET_FAILED);
        self.status.terminal_state = Some(TerminalState::Failed);
    }

    /// The JobSet has completed, for good.
    pub(crate) fn complete(&mut self) {
        self.set_condition(&NewCondition {
            severity: Severity::Normal,
            type_: conditions::COMPLETED,
            status: true,
            reason: reasons::ALL_JOBS_COMPLETED,
            message: messages::ALL_JOBS_COMPLETED,
        });
        self.set_not_restarting(reasons::JOBSET_COMPLETED, messages::ALL_JOBS_COMPLETED);
        self.set_not_blocked(reasons::JOBSET_COMPLETED, messages::ALL_JOBS_COMPLETED);
        self.status.terminal_state = Some(TerminalState::Completed);
    }

    /// Adds the changes to the plan.
    pub(crate) fn finish(self, plan: &mut Plan) {
        if self.status == *self.before {
            return;
        }
        if self.before.terminal_state.is_none() {
            plan.finished.clone_from(&self.status.terminal_state);
        }
        plan.status = Some(Box::new(self.status));
        plan.events = self.events;
    }
}

fn exclude_each_other(a: &str, b: &str) -> bool {
    const STARTUP: [&str; 2] = [
        conditions::STARTUP_POLICY_IN_PROGRESS,
        conditions::STARTUP_POLICY_COMPLETED,
    ];
    a != b && STARTUP.contains(&a) && STARTUP.contains(&b)
}

/// When the JobSet completed or failed.
pub(crate) fn finished_at(status: &JobSetStatus) -> Option<Timestamp> {
    status
        .conditions
        .iter()
        .find(|condition| {
            [conditions::COMPLETED, conditions::FAILED].contains(&condition.type_.as_str())
                && condition.status == "True"
        })
        .map(|condition| condition.last_transition_time.0)
}

/// Counts the Jobs of each replicatedJob, in descending order of names. Counts of single Jobs'
/// restarts are carried over from the old status; if the feature gate is off they are dropped, as
/// upstream does.
pub(crate) fn replicated_jobs(
    jobset: &JobSet,
    children: &Children<'_>,
    features: &Features,
) -> Vec<ReplicatedJobStatus> {
    let before = jobset.status.as_ref().filter(|_| features.restart_job);
    let mut counts: BTreeMap<&str, ReplicatedJobStatus> = jobset
        .spec
        .replicated_jobs
        .iter()
        .map(|replicated_job| {
            let name = replicated_job.name.as_str();
            let old = before.and_then(|status| status.replicated_job(name));
            let status = ReplicatedJobStatus {
                name: name.to_owned(),
                job_restarts: old.map(|old| old.job_restarts.clone()).unwrap_or_default(),
                job_restarts_count_towards_max: old
                    .map(|old| old.job_restarts_count_towards_max.clone())
                    .unwrap_or_default(),
                ..ReplicatedJobStatus::default()
            };
            (name, status)
        })
        .collect();
    let mut count = |jobs: &[&Job], add: &dyn Fn(&mut ReplicatedJobStatus, &Job)| {
        for job in jobs {
            if let Some(status) =
                label(job, labels::REPLICATED_JOB_NAME).and_then(|name| counts.get_mut(name))
            {
                add(status, job);
            }
        }
    };
    count(&children.active, &|status, job| {
        status.ready += i32::from(is_ready(job));
        status.active += i32::from(job.status.as_ref().and_then(|status| status.active).unwrap_or(0) > 0);
        status.suspended += i32::from(is_suspended(job));
    });
    count(&children.succeeded, &|status, _| status.succeeded += 1);
    count(&children.failed, &|status, _| status.failed += 1);
    counts.into_values().rev().collect()
}

/// True if an active Job has as many ready and succeeded pods as it needs.
fn is_ready(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    let parallelism = spec.and_then(|spec| spec.parallelism).unwrap_or(1);
    let needed = spec
        .and_then(|spec| spec.completions)
        .map_or(parallelism, |completions| completions.min(parallelism));
    let status = job.status.as_ref();
    let ready = status.and_then(|status| status.ready).unwrap_or(0);
    let succeeded = status.and_then(|status| status.succeeded).unwrap_or(0);
    ready.saturating_add(succeeded) >= needed
}

/// True if the Job is suspended.
pub(crate) fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true)
}

/// True if every Job that the JobSet asks for is ready or has succeeded.
pub(crate) fn all_ready(jobset: &JobSet, counts: &[ReplicatedJobStatus]) -> bool {
    let wanted = total(jobset, |_| true);
    wanted
        == counts
            .iter()
            .map(|status| i64::from(status.ready) + i64::from(status.succeeded))
            .sum::<i64>()
}
