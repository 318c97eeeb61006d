//! The Jobs that one reconciliation writes.
//!
//! A JobSet states thousands of Jobs in a few bytes, and each of them takes a copy of its template.
//! So one reconciliation writes a bounded part of them, and the next one goes on.

use serde::Serialize;

use crate::common::extent::Extent;
use crate::jobset::limits::{BYTES_AT_ONCE, EXTENT_AT_ONCE, JOBS_AT_ONCE};

/// The Jobs in this batch so far.
#[derive(Default)]
pub(super) struct Batch {
    jobs: usize,
    size: Size,
}

/// The size of what is written of one Job, or of several.
#[derive(Clone, Copy, Default)]
pub(super) struct Size {
    /// Bytes of JSON.
    bytes: usize,
    extent: Extent,
}

impl Batch {
    /// True if there is no room for another Job of this size, or for any Job if the size is
    /// unknown.
    pub(super) fn is_full(&self, one: Option<Size>) -> bool {
        let all = self.size.plus(one.unwrap_or_default());
        let is_large = all.bytes > BYTES_AT_ONCE || all.extent.exceeds(EXTENT_AT_ONCE);
        self.jobs >= JOBS_AT_ONCE || self.jobs > 0 && is_large
    }

    pub(super) fn add(&mut self, one: Size) {
        self.jobs += 1;
        self.size = self.size.plus(one);
    }
}

impl Size {
    /// The size of a Job, or of a change to one.
    pub(super) fn of(job: &impl Serialize) -> Self {
        let all = Self {
            bytes: BYTES_AT_ONCE,
            extent: EXTENT_AT_ONCE,
        };
        serde_json::to_vec(job).map_or(all, |text| Self {
            bytes: text.len(),
            extent: Extent::of_text(&text),
        })
    }

    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            extent: self.extent.plus(other.extent),
        }
    }
}
