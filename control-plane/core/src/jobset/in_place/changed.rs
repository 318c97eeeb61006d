//! Pods that differ from their template, so that they cannot have agents.

use super::Obstacle;
use crate::jobset::pod::PodSummary;

/// Pods of a group that cannot have agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The first Job, by name, that has one.
    pub job: String,
    /// What keeps them from it.
    pub obstacle: Obstacle,
}

impl Changed {
    /// Looks among the pods of a restart attempt of the JobSet.
    pub fn among<'p>(pods: impl IntoIterator<Item = &'p PodSummary>, recreations: i32) -> Option<Self> {
        let pods = pods.into_iter();
        let pods = pods.filter(|pod| pod.recreation == Some(recreations) && pod.job_uid.is_some());
        let changed = pods.filter_map(|pod| Some((pod.job.as_deref()?, pod.index, pod.obstacle.as_ref()?)));
        let (job, _, obstacle) = changed.min_by_key(|(job, index, _)| (*job, *index))?;
        Some(Self {
            job: job.to_owned(),
            obstacle: obstacle.clone(),
        })
    }
}
