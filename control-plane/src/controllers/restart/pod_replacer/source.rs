//! The Job from which pods are created. A large one is kept as text and parsed for each pod.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, GetParams};
use kube::core::Request;
use lockstep_core::common::extent::Extent;
use lockstep_core::restart::{Replacement, is_open, replacement_pod};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::OF_ONE;

/// Permits for the pods that are created from one read of a large Job.
const OF_LARGE: usize = 32 * OF_ONE as usize;
/// Objects of a template that cost a pod one more permit. The permits of a namespace stand
/// for 32 MB.
const OF_A_PERMIT: usize = 327;

/// A Job, with the template of its pods.
pub(super) struct Source {
    pub(super) text: Box<RawValue>,
    /// The parsed Job, if it is small.
    read: Option<Job>,
    /// Permits that each of its pods takes, out of [`OF_ONE`].
    pub(super) permits: u32,
}

impl Source {
    /// Reads a Job, if it exists.
    pub(super) async fn get(
        client: &Client,
        jobs: &Api<Job>,
        name: &str,
    ) -> Result<Option<Self>, kube::Error> {
        let request = Request::new(jobs.resource_url()).get(name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        match client.request::<Box<RawValue>>(request).await {
            Ok(text) => Ok(Some(Self::of(text))),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn of(text: Box<RawValue>) -> Self {
        let objects = template_of(&text).map_or(0, |template| Extent::of_text(template.as_bytes()).objects);
        let permits = u32::try_from(1 + objects / OF_A_PERMIT)
            .unwrap_or(OF_ONE)
            .min(OF_ONE);
        Self {
            read: (permits == 1).then(|| parsed(&text)).flatten(),
            text,
            permits,
        }
    }

    /// How many pods may be created at the same time, and in total, from one read of the Job. After
    /// many large pods that read is outdated.
    pub(super) fn at_once(&self) -> (usize, usize) {
        match self.permits {
            1 => (OF_ONE as usize, usize::MAX),
            permits => ((OF_ONE / permits) as usize, OF_LARGE / permits as usize),
        }
    }

    /// The pod for this completion index, unless none is needed.
    pub(super) fn pod(&self, wanted: &Replacement, present: &BTreeMap<u32, BTreeSet<String>>) -> Option<Pod> {
        let read;
        let job = match &self.read {
            Some(job) => job,
            None => {
                read = parsed(&self.text)?;
                &read
            }
        };
        let others = present.get(&wanted.place.index);
        let is_needed = job.metadata.uid.as_ref() == Some(&wanted.job_uid)
            && is_open(job, wanted.place.index)
            && others.is_none_or(|others| others.is_subset(&wanted.ended));
        is_needed
            .then(|| replacement_pod(job, wanted.place.index, &wanted.name))
            .flatten()
    }
}

/// The text of the template of a Job's pods.
fn template_of(job: &RawValue) -> Option<&str> {
    #[derive(Deserialize)]
    struct OfJob<'t> {
        #[serde(borrow)]
        spec: OfSpec<'t>,
    }
    #[derive(Deserialize)]
    struct OfSpec<'t> {
        #[serde(borrow)]
        template: &'t RawValue,
    }
    let job: OfJob<'_> = serde_json::from_str(job.get()).ok()?;
    Some(job.spec.template.get())
}

fn parsed(text: &RawValue) -> Option<Job> {
    serde_json::from_str(text.get()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use lockstep_core::restart::PodPlace;

    use super::*;

    fn source(volumes: usize) -> Source {
        let volumes: Vec<_> = (0..volumes).map(|_| json!({})).collect();
        let job = json!({
            "metadata": {"name": "js-w-0", "namespace": "ns", "uid": "u"},
            "spec": {
                "completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": i32::MAX,
                "template": {"spec": {"containers": [], "volumes": volumes}},
            },
        });
        Source::of(serde_json::value::to_raw_value(&job).unwrap())
    }

    #[test]
    fn a_pod_of_a_large_job_takes_the_permits_of_many_and_the_job_is_not_kept_parsed() {
        let (usual, large) = (source(3), source(Extent::MOST.objects));
        assert_eq!((usual.permits, usual.read.is_some()), (1, true));
        assert_eq!((large.permits, large.read.is_some()), (25, false));
    }

    #[test]
    fn pods_of_a_job_that_is_hardly_large_are_made_many_at_a_time() {
        assert_eq!(source(3).at_once(), (25, usize::MAX));
        assert_eq!(source(330).at_once(), (12, 400));
        assert_eq!(source(Extent::MOST.objects).at_once(), (1, 32));
    }

    #[test]
    fn what_is_made_of_a_large_job_is_what_is_made_of_any() {
        let place = PodPlace {
            job: "js-w-0".into(),
            index: 1,
        };
        let wanted = Replacement {
            place,
            job_uid: "u".to_owned(),
            name: "js-w-0-1-abc".to_owned(),
            ended: BTreeSet::new(),
        };
        let no_pods = BTreeMap::new();
        for source in [source(3), source(2_000)] {
            let pod = source.pod(&wanted, &no_pods).unwrap();
            assert_eq!(pod.metadata.name.as_deref(), Some("js-w-0-1-abc"));
            let present = BTreeMap::from([(1, BTreeSet::from(["other".to_owned()]))]);
            assert!(source.pod(&wanted, &present).is_none());
        }
    }
}
