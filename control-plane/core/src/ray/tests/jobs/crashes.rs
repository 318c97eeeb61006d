//! A control plane that is killed between any two writes: each attempt is submitted once, and no
//! two overlap.

use std::collections::BTreeMap;

use lockstep_api::InPlacePhase;

use super::*;

/// The number of plans before the test gives up.
const STEPS: usize = 200;

/// Ray itself, and the states of its jobs.
#[derive(Default)]
struct Model {
    /// The number of Ray's current run; `None` if Ray is down.
    session: Option<u32>,
    sessions: u32,
    /// Status by id in the current run.
    jobs: BTreeMap<String, &'static str>,
    /// The ids of all submissions that Ray has accepted.
    taken: Vec<String>,
}

impl Model {
    fn starts(&mut self) {
        self.sessions += 1;
        self.session = Some(self.sessions);
        self.jobs.clear();
    }

    fn submit(&mut self, id: &str) {
        // Ray accepts an id once.
        if self.jobs.contains_key(id) {
            return;
        }
        let live = self.jobs.values().filter(|status| **status == "RUNNING");
        assert_eq!(live.count(), 0, "{id} overlaps another attempt: {:?}", self.jobs);
        self.taken.push(id.to_owned());
        self.jobs.insert(id.to_owned(), "RUNNING");
    }

    fn says(&self, id: &str) -> Ray {
        match self.session {
            None => Ray::Unreachable,
            Some(session) => Ray::Reached {
                session: format!("s{session}"),
                job: self.jobs.get(id).map(|status| RayInfo {
                    status: (*status).to_owned(),
                    ..RayInfo::default()
                }),
            },
        }
    }
}

/// The number of writes that succeed before the control plane is killed.
struct Fuse(Option<usize>);

impl Fuse {
    /// True if this write happens.
    fn burns(&mut self) -> bool {
        match &mut self.0 {
            Some(0) => {
                self.0 = None;
                false
            }
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }
}

/// Executes a plan up to the write at which the control plane is killed.
fn act(stage: &mut Stage, model: &mut Model, plan: JobPlan, fuse: &mut Fuse) {
    let parts = [
        JobPlan {
            add_finalizer: plan.add_finalizer,
            ..JobPlan::default()
        },
        JobPlan {
            delete_submitter: plan.delete_submitter,
            ..JobPlan::default()
        },
        JobPlan {
            delete_cluster: plan.delete_cluster,
            ..JobPlan::default()
        },
        JobPlan {
            create_cluster: plan.create_cluster,
            ..JobPlan::default()
        },
        JobPlan {
            restart: plan.restart,
            ..JobPlan::default()
        },
        JobPlan {
            submit: plan.submit,
            ..JobPlan::default()
        },
        JobPlan {
            create_submitter: plan.create_submitter,
            ..JobPlan::default()
        },
        JobPlan {
            status_annotation: plan.status_annotation,
            ..JobPlan::default()
        },
        JobPlan {
            status: plan.status,
            ..JobPlan::default()
        },
        JobPlan {
            forget: plan.forget,
            ..JobPlan::default()
        },
    ];
    for part in parts.into_iter().filter(|part| *part != JobPlan::default()) {
        if !fuse.burns() {
            return;
        }
        let (deletes, creates) = (part.delete_cluster.is_some(), part.create_cluster.is_some());
        let restarts = part.restart.is_some();
        let over_http = part
            .submit
            .as_ref()
            .map(|body| body["submission_id"].as_str().unwrap().to_owned());
        assert!(!creates || stage.cluster.is_none(), "two clusters");
        stage.act(part);
        if deletes {
            model.session = None;
        }
        if creates {
            stage.head_is_ready();
        }
        if creates || restarts {
            model.starts();
        }
        if restarts {
            let status = stage.jobset.as_mut().unwrap().status.get_or_insert_default();
            status.in_place_restart.get_or_insert_default().phase = Some(InPlacePhase::InSync);
        }
        if let Some(id) = over_http {
            model.submit(&id);
        }
    }
}

/// The action of the submitter, if there is one, for its own session.
fn submitter(stage: &Stage, model: &mut Model) {
    let Some(job) = &stage.submitter else { return };
    let id = job.metadata.annotations.as_ref().unwrap()[keys::JOB_ID].clone();
    let pod = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    let mut env = pod.containers[0].env.iter().flatten();
    let session = env.find(|variable| variable.name == "RAYJOB_SESSION");
    let session = session.and_then(|variable| variable.value.clone());
    if session == model.session.map(|session| format!("s{session}")) {
        model.submit(&id);
    }
}

/// A job whose first attempt fails and whose second succeeds, with a control plane that is killed
/// at one write. Returns true if it was killed.
fn killed_at(write: usize, spec: &Value, is_kuberays: bool) -> bool {
    let told = format!("killed at write {write}, {spec}, {is_kuberays}");
    let mut stage = Stage::new(spec.clone());
    stage.is_kuberays = is_kuberays;
    let mut model = Model::default();
    let mut fuse = Fuse(Some(write));
    let is_over = |stage: &Stage| {
        let status = stage.job.status.as_ref();
        let phase = status.and_then(|status| status.job_deployment_status.clone());
        matches!(phase, Some(Phase::Complete | Phase::Failed))
    };
    for _ in 0..STEPS {
        if is_over(&stage) {
            break;
        }
        let seen = recall(&Arc::new(stage.job.clone())).job;
        stage.ray = question(&seen).map_or(Ray::Unasked, |(_, id)| model.says(&id));
        let plan = stage.plan();
        act(&mut stage, &mut model, plan, &mut fuse);
        submitter(&stage, &mut model);
        // The control plane sees Ray run each job once before it ends.
        let attempts = model.taken.len();
        if stage.seconds % 5 == 4 {
            for status in model.jobs.values_mut().filter(|status| **status == "RUNNING") {
                *status = if attempts == 1 { "FAILED" } else { "SUCCEEDED" };
            }
        }
        stage.seconds += 1;
    }
    let status = stage.status();
    assert_eq!(stage.phase(), Phase::Complete, "{told}: {status:?}");
    assert_eq!((status.succeeded, status.failed), (1, 1), "{told}");
    assert_eq!(model.taken.len(), 2, "{told}: {:?}", model.taken);
    assert_ne!(model.taken[0], model.taken[1], "{told}");
    fuse.0.is_none()
}

#[test]
fn each_attempt_is_submitted_once_whenever_the_control_plane_is_killed() {
    for mode in ["K8sJobMode", "HTTPMode"] {
        for policy in ["InPlace", "NewCluster"] {
            for is_kuberays in [false, true] {
                let spec = json!({"backoffLimit": 1, "submissionMode": mode, "retryPolicy": policy});
                let kills = (0..STEPS).take_while(|write| killed_at(*write, &spec, is_kuberays));
                let kills = kills.count();
                assert!((10..STEPS).contains(&kills), "{kills} writes: {spec}");
            }
        }
    }
}
