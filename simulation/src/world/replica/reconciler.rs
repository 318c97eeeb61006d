//! The reconciler's loop: the real plan, carried out step by step on the API server.

use std::sync::Arc;

use jiff::Timestamp;
use lockstep_api::{JobSet, JobSetStatus};
use lockstep_core::common::retry::{delay, rest};
use lockstep_core::jobset::plan::Change;
use lockstep_core::jobset::pod::GangPod;
use lockstep_core::{Observed, Plan};

use crate::time::{MS, SEC, Time, span};
use crate::world::World;
use crate::world::event::request::{Fate, Kind};
use crate::world::event::{Event, ReplicaIndex};
use crate::world::kubernetes::api_server::{name_of, version_of};

/// How long a status that differs only in counts may be held back.
const HELD: Time = 200 * MS;
/// When to look again after an own write that the watch has not shown.
const LOOK_AGAIN: Time = 10 * SEC;

/// What has become of a plan, or of its changes of Jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// All is done.
    Done,
    /// Something was not carried out.
    Failed,
}

impl World {
    /// Something may have changed for the reconciler.
    pub(crate) fn poke_reconciler(&mut self, replica: ReplicaIndex, after: Time) {
        let life = self.replicas[replica].life;
        let at = self.now + after;
        let Some(leader) = &mut self.replicas[replica].leader else {
            return;
        };
        let at = at.max(leader.rests_until);
        if leader.applying {
            leader.look_again = true;
        } else if leader.reconcile_due.is_none_or(|due| at < due) {
            leader.reconcile_due = Some(at);
            self.queue.push(
                at,
                Event::Reconcile {
                    replica,
                    life,
                    due: at,
                },
            );
        }
    }

    pub(crate) fn reconcile(&mut self, replica: ReplicaIndex, due: Time) {
        let now = self.now;
        let at = &mut self.replicas[replica];
        let Some(leader) = &mut at.leader else { return };
        if leader.reconcile_due != Some(due) || leader.applying {
            return;
        }
        leader.reconcile_due = None;
        let Some(jobset) = at.cache.completed_jobset(now) else {
            return;
        };
        let (jobs, unconfirmed) = at.cache.completed_jobs(now);
        let mut observed = Observed::new(Arc::clone(&jobset), jobs, Vec::new(), Timestamp::default());
        observed.pod_groups = true;
        if jobset.spec.gang.is_some() {
            let pods = at.cache.pods.values();
            let pods = pods.filter(|pod| pod.jobset_uid.as_deref() == Some(jobset.uid_str()));
            observed.gang_pods = pods
                .filter_map(|pod| GangPod::of(pod, jobset.restart_attempt()))
                .collect();
        }
        let mut plan = lockstep_core::reconcile::plan(&observed);
        let mut look_again = unconfirmed.then_some(LOOK_AGAIN);
        let only_counts = plan.events.is_empty()
            && plan
                .status
                .as_ref()
                .is_some_and(|status| differs_in_counts(&jobset, status));
        if only_counts {
            let since = *leader.counts_held_since.get_or_insert(now);
            if now < since + HELD {
                plan.status = None;
                look_again = Some(since + HELD - now);
            }
        }
        if plan.status.is_some() || !only_counts {
            leader.counts_held_since = None;
        }
        if plan.is_empty() {
            leader.failures = 0;
            if let Some(after) = look_again {
                self.poke_reconciler(replica, after);
            }
            return;
        }
        leader.applying = true;
        let life = at.life;
        let number = plan.delete_jobs.len() + plan.create_jobs.len() + plan.change_jobs.len();
        let (fate, after) = self.request(Kind::Jobs, number);
        let event = Event::PlanArrives {
            replica,
            life,
            plan: Box::new(plan),
            base: jobset,
            fate,
        };
        self.queue.push(now + after, event);
    }

    /// The replica learns later how far its plan was carried out.
    fn planned_later(
        &mut self,
        (replica, life): (ReplicaIndex, u32),
        kind: Kind,
        fate: Fate,
        outcome: Outcome,
    ) {
        let (after, done) = self.answer(replica, kind, fate, outcome == Outcome::Done);
        self.queue
            .push(self.now + after, Event::Planned { replica, life, done });
    }

    /// After how long a replica learns what has happened to its request. True if it learns that the
    /// request is done.
    pub(crate) fn answer(
        &mut self,
        replica: ReplicaIndex,
        kind: Kind,
        fate: Fate,
        done: bool,
    ) -> (Time, bool) {
        let (after, done) = match fate {
            Fate::Answered if self.replica_reaches_api(replica) => (self.rng.span(MS / 2, 3 * MS), done),
            Fate::Answered => (self.gives_up_after(), false),
            Fate::Refused => (self.rng.span(MS / 2, 3 * MS), false),
            Fate::Lost { known_after } | Fate::AnswerLost { known_after } => (known_after, false),
        };
        if !done {
            self.note_failed_request(kind);
        }
        (after, done)
    }

    pub(crate) fn is_carried_out(&self, replica: ReplicaIndex, fate: Fate) -> bool {
        self.replica_reaches_api(replica) && matches!(fate, Fate::Answered | Fate::AnswerLost { .. })
    }

    /// The writes of Jobs reach the API server; then, if all went well, the status.
    pub(crate) fn plan_arrives(
        &mut self,
        from: (ReplicaIndex, u32),
        plan: Box<Plan>,
        base: Arc<JobSet>,
        fate: Fate,
    ) {
        let touches_jobs =
            !(plan.delete_jobs.is_empty() && plan.create_jobs.is_empty() && plan.change_jobs.is_empty());
        let mut outcome = Outcome::Done;
        if touches_jobs {
            if !self.is_carried_out(from.0, fate) {
                self.planned_later(from, Kind::Jobs, fate, Outcome::Failed);
                return;
            }
            outcome = self.change_jobs(from.0, &plan);
        }
        if outcome == Outcome::Failed || fate != Fate::Answered && touches_jobs || plan.status.is_none() {
            self.planned_later(from, Kind::Jobs, fate, outcome);
            return;
        }
        let (replica, life) = from;
        let (fate, after) = self.request(Kind::Status, 1);
        let event = Event::PlanStatusArrives {
            replica,
            life,
            plan,
            base,
            fate,
        };
        self.queue.push(self.now + after, event);
    }

    /// Carries out the plan's changes of Jobs. Fails if something is not as expected.
    fn change_jobs(&mut self, replica: ReplicaIndex, plan: &Plan) -> Outcome {
        for job in &plan.delete_jobs {
            let exact = self
                .api
                .jobs
                .get(&job.name)
                .is_some_and(|found| found.metadata.uid.as_deref() == Some(&job.uid));
            if exact {
                self.say(|| format!("replica {replica} deletes Job {}", job.name));
                self.delete_job(&job.name);
            }
        }
        let mut outcome = Outcome::Done;
        for job in &plan.create_jobs {
            let name = name_of(&job.metadata);
            if self.api.jobs.contains_key(&name) {
                outcome = Outcome::Failed;
                continue;
            }
            self.say(|| format!("replica {replica} creates Job {name}"));
            let mut job = job.clone();
            job.metadata.uid = Some(self.api.uid("job"));
            let job = self.api.put_job(job);
            let now = self.now;
            self.replicas[replica].cache.wrote_job(now, name, job);
        }
        for change in &plan.change_jobs {
            let name = &change.job.name;
            let exact = self.api.jobs.get(name).is_some_and(|found| {
                found.metadata.uid.as_deref() == Some(&change.job.uid)
                    && match &change.change {
                        Change::Resume(resume) => resume.resource_version == found.metadata.resource_version,
                        Change::Suspend | Change::Scale(_) => true,
                    }
            });
            if !exact {
                return Outcome::Failed;
            }
            let suspend = match &change.change {
                Change::Suspend => true,
                Change::Resume(_) => false,
                Change::Scale(pods) => {
                    self.say(|| format!("replica {replica} scales Job {name} to {pods}"));
                    self.api.change_job(name, |job| {
                        if let Some(spec) = &mut job.spec {
                            spec.parallelism = Some(*pods);
                            spec.completions = Some(*pods);
                        }
                    });
                    if let Some(job) = self.api.jobs.get(name).cloned() {
                        let now = self.now;
                        self.replicas[replica].cache.wrote_job(now, name.clone(), job);
                    }
                    continue;
                }
            };
            self.say(|| format!("replica {replica} sets suspend of Job {name} to {suspend}"));
            self.api.change_job(name, |job| {
                if let Some(spec) = &mut job.spec {
                    spec.suspend = Some(suspend);
                }
            });
            if let Some(job) = self.api.jobs.get(name).cloned() {
                let now = self.now;
                self.replicas[replica].cache.wrote_job(now, name.clone(), job);
            }
        }
        outcome
    }

    /// The whole status arrives. It is written if the JobSet still has the version that the plan
    /// was made for.
    pub(crate) fn plan_status_arrives(
        &mut self,
        from: (ReplicaIndex, u32),
        plan: &Plan,
        base: &JobSet,
        fate: Fate,
    ) {
        let (Some(status), true) = (&plan.status, self.is_carried_out(from.0, fate)) else {
            self.planned_later(from, Kind::Status, fate, Outcome::Failed);
            return;
        };
        let present = self.api.jobset.clone();
        let exact = present.as_ref().filter(|present| {
            present.metadata.uid == base.metadata.uid
                && version_of(&present.metadata) == version_of(&base.metadata)
        });
        let Some(present) = exact else {
            self.planned_later(from, Kind::Status, fate, Outcome::Failed);
            return;
        };
        let mut jobset = JobSet::clone(present);
        jobset.status = Some((**status).clone());
        let jobset = self.api.put_jobset(jobset);
        self.check_status(Some(present), &jobset);
        if fate == Fate::Answered {
            let now = self.now;
            self.replicas[from.0].cache.wrote_jobset(now, jobset);
        }
        self.planned_later(from, Kind::Status, fate, Outcome::Done);
    }

    pub(crate) fn planned(&mut self, replica: ReplicaIndex, done: bool) {
        let Some(leader) = &mut self.replicas[replica].leader else {
            return;
        };
        leader.applying = false;
        let again = std::mem::take(&mut leader.look_again);
        leader.failures = if done { 0 } else { leader.failures + 1 };
        let failures = leader.failures;
        leader.rests_until = self.now + span(rest(failures));
        if !done {
            let after = span(delay(failures));
            self.poke_reconciler(replica, after);
        } else if again {
            self.poke_reconciler(replica, MS);
        } else {
            self.poke_reconciler(replica, LOOK_AGAIN);
        }
    }
}

/// True if the two differ only in counts of Jobs.
fn differs_in_counts(jobset: &JobSet, after: &JobSetStatus) -> bool {
    let mut before = jobset.status.clone().unwrap_or_default();
    before
        .replicated_jobs_status
        .clone_from(&after.replicated_jobs_status);
    before == *after
}
