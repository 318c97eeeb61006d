//! A model of the API server and of the Job controller, as far as they concern one JobSet.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{PersistentVolumeClaim, Service},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use lockstep_api::JobSet;
use lockstep_api::annotations::EXECUTION_ATTEMPT;

use super::{Fate, at, set_fate};
use crate::{
    common::features::Features,
    jobset::in_place::Agents,
    jobset::observed::Observed,
    jobset::plan::{Change, Event, Plan},
    jobset::pod::GangPod,
    reconcile::plan,
};

/// One JobSet with everything that was created for it.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) jobset: JobSet,
    pub(crate) jobs: BTreeMap<String, Job>,
    pub(crate) services: Vec<Service>,
    pub(crate) claims: Vec<PersistentVolumeClaim>,
    pub(crate) features: Features,
    pub(crate) agents: Agents,
    pub(crate) gang_pods: Vec<GangPod>,
    pub(crate) pod_groups: bool,
    pub(crate) events: Vec<Event>,
    pub(crate) now: Timestamp,
    pub(crate) deleted: bool,
    next_uid: u32,
}

impl Cluster {
    pub(crate) fn new(jobset: JobSet) -> Self {
        Self {
            jobset,
            jobs: BTreeMap::new(),
            services: Vec::new(),
            claims: Vec::new(),
            features: Features::default(),
            agents: Agents::ByNode,
            gang_pods: Vec::new(),
            pod_groups: false,
            events: Vec::new(),
            now: at(0),
            deleted: false,
            next_uid: 0,
        }
    }

    pub(crate) fn observe(&self) -> Observed {
        let mut observed = Observed::new(
            Arc::new(self.jobset.clone()),
            self.jobs.values().cloned().map(Arc::new).collect(),
            self.services.iter().cloned().map(Arc::new).collect(),
            self.now,
        );
        observed.claims = self.claims.iter().cloned().map(Arc::new).collect();
        observed.features = self.features;
        observed.agents.clone_from(&self.agents);
        observed.gang_pods.clone_from(&self.gang_pods);
        observed.pod_groups = self.pod_groups;
        observed
    }

    /// Decides once, executes the plan, and returns it.
    pub(crate) fn reconcile(&mut self) -> Plan {
        let plan = plan(&self.observe());
        self.apply(&plan);
        plan
    }

    /// The same by a controller that dies after `writes` writes. Returns true if it finished before
    /// that.
    pub(crate) fn reconcile_until_killed(&mut self, writes: usize) -> bool {
        let plan = plan(&self.observe());
        let cut = first_writes(&plan, writes);
        self.apply(&cut);
        cut == plan
    }

    /// Decides until nothing is left to do. In between, objects that are being deleted go away.
    pub(crate) fn settle(&mut self) {
        for _ in 0..20 {
            let plan = self.reconcile();
            let before = self.jobs.len();
            self.collect_garbage();
            if plan.is_empty() && self.jobs.len() == before {
                return;
            }
        }
        panic!("never settles: {self:#?}");
    }

    fn apply(&mut self, plan: &Plan) {
        for job in &plan.delete_jobs {
            let found = self.jobs.get_mut(&job.name).expect("deletes what exists");
            assert_eq!(found.metadata.uid.as_deref(), Some(job.uid.as_str()));
            assert!(found.metadata.deletion_timestamp.is_none(), "deletes once");
            found.metadata.deletion_timestamp = Some(Time(self.now));
        }
        self.services.extend(plan.create_service.as_deref().cloned());
        self.claims.extend(plan.create_claims.iter().cloned());
        for job in &plan.create_jobs {
            let mut job = job.clone();
            self.next_uid += 1;
            job.metadata.uid = Some(format!("uid-{}", self.next_uid));
            let name = job.metadata.name.clone().unwrap();
            assert!(
                self.jobs.insert(name, job).is_none(),
                "creates what does not exist"
            );
        }
        for change in &plan.change_jobs {
            let spec = self
                .jobs
                .get_mut(&change.job.name)
                .unwrap()
                .spec
                .as_mut()
                .unwrap();
            match &change.change {
                Change::Suspend => spec.suspend = Some(true),
                Change::Resume(resume) => {
                    spec.suspend = Some(false);
                    let annotations = &mut spec.template.metadata.get_or_insert_default().annotations;
                    let annotations = annotations.get_or_insert_default();
                    annotations.extend(resume.annotations.clone());
                    if let Some(attempt) = resume.execution_attempt {
                        annotations.insert(EXECUTION_ATTEMPT.to_owned(), attempt.to_string());
                    }
                }
                Change::Scale(pods) => {
                    spec.parallelism = Some(*pods);
                    spec.completions = Some(*pods);
                }
            }
        }
        self.deleted |= plan.delete_jobset;
        if let Some(status) = &plan.status {
            self.jobset.status = Some((**status).clone());
        }
        self.events.extend(plan.events.iter().cloned());
        self.now += SignedDuration::from_secs(1);
    }

    /// Jobs that are being deleted go away.
    pub(crate) fn collect_garbage(&mut self) {
        self.jobs
            .retain(|_, job| job.metadata.deletion_timestamp.is_none());
    }

    /// Sets the state of a Job as the Job controller would. Finished Jobs stay finished.
    pub(crate) fn report(&mut self, name: &str, fate: Fate) {
        let now = self.now;
        if let Some(job) = self.jobs.get_mut(name)
            && job
                .status
                .as_ref()
                .is_none_or(|status| status.conditions.is_none())
            && job.metadata.deletion_timestamp.is_none()
        {
            set_fate(job, fate, now);
        }
    }

    pub(crate) fn job_names(&self) -> Vec<&str> {
        self.jobs.keys().map(String::as_str).collect()
    }
}

/// The part of a plan that is done after this many writes.
fn first_writes(plan: &Plan, writes: usize) -> Plan {
    fn keep<T>(all: &mut Vec<T>, left: &mut usize) {
        all.truncate(*left);
        *left -= all.len();
    }
    let (mut cut, mut left) = (plan.clone(), writes);
    keep(&mut cut.delete_jobs, &mut left);
    cut.create_service = cut.create_service.filter(|_| left > 0);
    left -= usize::from(cut.create_service.is_some());
    keep(&mut cut.create_claims, &mut left);
    keep(&mut cut.create_jobs, &mut left);
    keep(&mut cut.change_jobs, &mut left);
    cut.delete_jobset &= left > 0;
    left -= usize::from(cut.delete_jobset);
    cut.status = cut.status.filter(|_| left > 0);
    if cut.status != plan.status {
        cut.events.clear();
    }
    cut
}
