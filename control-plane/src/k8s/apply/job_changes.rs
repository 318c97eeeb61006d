//! Suspends, resumes and scales Jobs.
//!
//! Promise: a resumption lets the API server check the template again, at [the
//! pace](crate::k8s::client::Paced) of new Jobs. Once it refuses one, [one of its
//! replicatedJob](super::refused_templates) is tried at a time.

use k8s_openapi::api::batch::v1::Job;
use kube::Resource;
use kube::api::{Api, Patch, PatchParams, Request};
use lockstep_api::annotations::EXECUTION_ATTEMPT;
use lockstep_core::jobset::plan::{Change, JobChange, JobRef, Resume};
use serde_json::{Value, json};

use crate::k8s::client::Paced;
use crate::k8s::watch::lean::Lean;

use super::children::{Key, first_of, namespace};
use super::refused_templates::{OfTemplate, TemplateRefusals};
use super::{Applier, ApplyError, is_status, resources};

/// A Job to resume.
pub(super) struct Resumption {
    job: JobRef,
    resume: Resume,
}

impl OfTemplate for Resumption {
    fn job(&self) -> &str {
        &self.job.name
    }

    fn replicated_job(&self) -> &str {
        &self.resume.replicated_job
    }
}

impl Applier {
    /// Suspends and scales Jobs, and returns those to resume.
    pub(super) async fn patch_jobs(
        &self,
        key: &Key,
        changes: Vec<JobChange>,
    ) -> Result<Vec<Resumption>, ApplyError> {
        let api: Api<Lean<Job>> = Api::namespaced(self.client.clone(), namespace(key));
        let (mut resumptions, mut patches) = (Vec::new(), Vec::new());
        for JobChange { job, change } in changes {
            match change {
                Change::Suspend => patches.push((suspend(&job), "suspend", job)),
                Change::Scale(pods) => patches.push((scaled(&job, pods), "scale", job)),
                Change::Resume(resume) => resumptions.push(Resumption { job, resume: *resume }),
            }
        }
        let patch = async |(patch, verb, job): (Value, &'static str, JobRef)| {
            self.metrics.wrote("Job", verb);
            let params = PatchParams::default();
            let patched = api.patch(&job.name, &params, &Patch::Merge(patch)).await;
            self.changed_job(key, &job, patched)
        };
        first_of(self.each(key, patches, patch).await)?;
        Ok(resumptions)
    }

    pub(super) async fn resume_jobs(
        &self,
        key: &Key,
        resumptions: Vec<Resumption>,
    ) -> Result<(), ApplyError> {
        let api: Api<Lean<Job>> = Api::namespaced(self.client.clone(), namespace(key));
        let refusals = &self.refused.begin(key);
        let resume = |resumption| self.resume_job(&api, key, resumption, refusals);
        let (errors, _) = self.each_unless_refused(key, resumptions, refusals, resume).await;
        first_of(errors)
    }

    fn changed_job(
        &self,
        key: &Key,
        job: &JobRef,
        patched: kube::Result<Lean<Job>>,
    ) -> Result<(), ApplyError> {
        match patched {
            Ok(patched) => {
                tracing::info!(job = job.name, "job suspended, resumed or scaled");
                self.stores.wrote_job(key, patched);
                Ok(())
            }
            Err(error) if is_status(&error, 404) => Ok(()),
            Err(error) => Err(ApplyError::write(format!("job {}", job.name), error)),
        }
    }

    async fn resume_job(
        &self,
        api: &Api<Lean<Job>>,
        key: &Key,
        resumption: Resumption,
        refusals: &TemplateRefusals,
    ) -> Result<(), ApplyError> {
        let Resumption { job, mut resume } = resumption;
        if !resume.resources.is_empty() {
            let wanted = std::mem::take(&mut resume.resources);
            resume.resources = self.differing_resources(key, &job, wanted).await?;
        }
        if resume.clear_start_time {
            self.metrics.wrote("Job", "status");
            let cleared = Patch::Merge(clear_start_time(&job, &resume));
            let cleared = api
                .patch_status(&job.name, &PatchParams::default(), &cleared)
                .await;
            let cleared = cleared.map_err(|error| ApplyError::write(format!("job {}", job.name), error))?;
            resume.resource_version = cleared.0.metadata.resource_version;
        }
        self.metrics.wrote("Job", "resume");
        let patch = resumed(&job, &resume);
        // Containers are a list, which a merge patch could only replace as a whole.
        let patch = match resume.resources.is_empty() {
            true => Patch::Merge(patch),
            false => Patch::Strategic(patch),
        };
        let resumed = self.send_resumption(key, &job, &patch).await;
        if let Err(error) = &resumed {
            refusals.failed(&job.name, &resume.replicated_job, error);
        }
        match resumed {
            Err(error) if !resume.resources.is_empty() && is_status(&error, 422) => {
                Err(ApplyError::PropagateResources { job: job.name, error })
            }
            resumed => self.changed_job(key, &job, resumed),
        }
    }

    async fn send_resumption(
        &self,
        key: &Key,
        job: &JobRef,
        patch: &Patch<Value>,
    ) -> kube::Result<Lean<Job>> {
        let mut request = Request::new(Job::url_path(&(), key.namespace.as_deref()))
            .patch(&job.name, &PatchParams::default(), patch)
            .map_err(kube::Error::BuildRequest)?;
        request.extensions_mut().insert(Paced);
        self.client.request(request).await
    }
}

fn suspend(job: &JobRef) -> Value {
    json!({"metadata": {"uid": job.uid}, "spec": {"suspend": true}})
}

fn scaled(job: &JobRef, pods: i32) -> Value {
    json!({"metadata": {"uid": job.uid}, "spec": {"parallelism": pods, "completions": pods}})
}

fn clear_start_time(job: &JobRef, resume: &Resume) -> Value {
    json!({
        "metadata": {"uid": job.uid, "resourceVersion": resume.resource_version},
        "status": {"startTime": null},
    })
}

/// The merged values were read from the Job, so nothing is ever removed and a merge patch is
/// enough. With resources it is a strategic merge patch, which finds containers by name.
fn resumed(job: &JobRef, resume: &Resume) -> Value {
    let mut pod = json!({});
    for (list, is_init) in [("initContainers", true), ("containers", false)] {
        let of_list = resume.resources.iter().filter(|one| one.is_init == is_init);
        let of_list: Vec<Value> = of_list.map(resources::patch).collect();
        if !of_list.is_empty() {
            pod[list] = json!(of_list);
        }
    }
    if !resume.node_selector.is_empty() {
        pod["nodeSelector"] = json!(resume.node_selector);
    }
    if !resume.tolerations.is_empty() {
        pod["tolerations"] = json!(resume.tolerations);
    }
    if !resume.scheduling_gates.is_empty() {
        let gates: Vec<Value> = resume
            .scheduling_gates
            .iter()
            .map(|name| json!({"name": name}))
            .collect();
        pod["schedulingGates"] = json!(gates);
    }
    let mut patch = json!({
        "metadata": {"uid": job.uid, "resourceVersion": resume.resource_version},
        "spec": {
            "suspend": false,
            "template": {
                "metadata": {"labels": resume.labels, "annotations": resume.annotations},
                "spec": pod,
            },
        },
    });
    if let Some(attempt) = resume.execution_attempt {
        let attempt = attempt.to_string();
        patch["spec"]["template"]["metadata"]["annotations"][EXECUTION_ATTEMPT] = json!(attempt);
        patch["metadata"]["annotations"] = json!({ EXECUTION_ATTEMPT: attempt });
    }
    patch
}

#[cfg(test)]
mod tests {
    use lockstep_core::jobset::plan::ContainerResources;

    use super::*;

    fn job() -> JobRef {
        JobRef {
            name: "js-a-0".to_owned(),
            uid: "u".to_owned(),
        }
    }

    #[test]
    fn patches_name_the_job_they_are_for() {
        assert_eq!(
            suspend(&job()),
            json!({"metadata": {"uid": "u"}, "spec": {"suspend": true}})
        );
        let resume = Resume {
            resource_version: Some("7".to_owned()),
            ..Resume::default()
        };
        assert_eq!(
            clear_start_time(&job(), &resume),
            json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "status": {"startTime": null}})
        );
    }

    #[test]
    fn a_resumed_job_gets_the_merged_template_and_keeps_other_fields() {
        let map = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
        let resume = Resume {
            resource_version: Some("7".to_owned()),
            labels: map("l", "1"),
            annotations: map("a", "2"),
            node_selector: map("zone", "z"),
            scheduling_gates: vec!["gate".to_owned()],
            ..Resume::default()
        };
        let expected = json!({
            "metadata": {"uid": "u", "resourceVersion": "7"},
            "spec": {"suspend": false, "template": {
                "metadata": {"labels": {"l": "1"}, "annotations": {"a": "2"}},
                "spec": {"nodeSelector": {"zone": "z"}, "schedulingGates": [{"name": "gate"}]},
            }},
        });
        assert_eq!(resumed(&job(), &resume), expected);
    }

    #[test]
    fn a_resumed_job_is_marked_with_its_attempt_and_gets_the_resources_of_its_containers() {
        let resources = json!({"requests": {"cpu": "2"}});
        let resume = Resume {
            execution_attempt: Some(3),
            resources: vec![ContainerResources {
                container: "worker".to_owned(),
                is_init: false,
                resources: serde_json::from_value(resources).unwrap(),
            }],
            ..Resume::default()
        };
        let patch = resumed(&job(), &resume);
        let mark = json!({"jobset.sigs.k8s.io/execution-attempt": "3"});
        assert_eq!(patch["metadata"]["annotations"], mark);
        assert_eq!(patch["spec"]["template"]["metadata"]["annotations"], mark);
        let container = json!({"name": "worker", "resources": {
            "requests": {"cpu": "2"}, "$patch": "replace",
        }});
        let pod = json!({"containers": [container]});
        assert_eq!(patch["spec"]["template"]["spec"], pod);
    }
}
