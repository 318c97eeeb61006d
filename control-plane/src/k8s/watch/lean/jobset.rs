//! JobSets as answers of the API server show them, parsed without the bookkeeping of field
//! managers. A user who may write a JobSet writes that, too: a time there that cannot be parsed
//! (`9999-12-31T23:59:59Z`) must not make a write look failed.

use lockstep_api::{JobSet, JobSetSpec, JobSetStatus};
use serde::Deserialize;

use super::{Meta, Slim};

/// A JobSet without the bookkeeping of field managers and kubectl.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SeenJobSet {
    metadata: Meta,
    spec: JobSetSpec,
    status: Option<JobSetStatus>,
}

impl Slim for JobSet {
    type Seen = SeenJobSet;
}

impl From<SeenJobSet> for JobSet {
    fn from(seen: SeenJobSet) -> Self {
        Self {
            metadata: seen.metadata.into(),
            spec: seen.spec,
            status: seen.status,
        }
    }
}
