//! Removes all that the attacker has made, as its own requests, after a phase.

use std::time::Duration;

use anyhow::{Result, ensure};
use http::header::{ACCEPT, HeaderValue};
use kube::api::{DeleteParams, ListParams};
use kube::core::Request;
use lockstep_integration::harness::eventually;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Attacker, JOB, JOBSET, Kind, POD, RAY_CLUSTER, RAY_CRON_JOB, RAY_JOB, SERVICE};

/// All kinds that it makes, owners before what they own.
const KINDS: [Kind; 7] = [RAY_CRON_JOB, RAY_JOB, RAY_CLUSTER, JOBSET, JOB, POD, SERVICE];
/// Objects deleted with one request, and the time between two rounds.
const PAGE: u32 = 500;
const PACE: Duration = Duration::from_secs(2);
/// An answer without what the objects hold: there may be a gigabyte of that.
const BRIEF: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Pods end at once, also those of nodes that do not exist.
pub(super) fn at_once(kind: Kind) -> DeleteParams {
    let params = DeleteParams::background();
    if kind == POD {
        params.grace_period(0)
    } else {
        params
    }
}

impl Attacker {
    /// Deletes everything, and waits until it is gone. Returns how long that took.
    pub(in super::super) async fn clean(&self, within: Duration) -> Result<Duration> {
        let start = Instant::now();
        let mut pace = interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        eventually("the attacker's objects are gone", within, async || {
            pace.tick().await;
            for kind in KINDS {
                self.delete_some(kind).await?;
            }
            for kind in KINDS {
                let left = self
                    .api(kind)
                    .list_metadata(&ListParams::default().limit(1))
                    .await?;
                let more = left.metadata.remaining_item_count.unwrap_or(0);
                let name = left
                    .items
                    .first()
                    .and_then(|first| first.metadata.name.as_deref());
                ensure!(name.is_none(), "{} {name:?} is left, and {more} more", kind.1);
            }
            Ok(())
        })
        .await?;
        Ok(start.elapsed())
    }

    /// Deletes the first objects of a kind.
    async fn delete_some(&self, kind: Kind) -> Result<()> {
        let api = self.api(kind);
        let some = ListParams::default().limit(PAGE);
        let mut request = Request::new(api.resource_url()).delete_collection(&at_once(kind), &some)?;
        request
            .headers_mut()
            .insert(ACCEPT, HeaderValue::from_static(BRIEF));
        self.namespace.access.client.request_text(request).await?;
        Ok(())
    }
}
