//! Poller at a JobSet that is waited for.
//!
//! Promises: a look that fails ends no wait, since what was asked for goes on without us; people are noted of it once.

use std::time::Duration;

use anyhow::{Result, bail};
use lockstep_api::JobSet;
use tokio::time::{Instant, timeout_at};

use super::progress_line::ProgressLine;
use crate::fetch::{Changes, Cluster};
use crate::print;

/// How soon it is looked again after a look that failed.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Poller at one JobSet, again and again.
pub(super) struct Poller<'c> {
    cluster: &'c Cluster,
    name: &'c str,
    changes: Changes,
    since: Instant,
    until: Instant,
    failed: bool,
    noted: bool,
}

impl<'c> Poller<'c> {
    /// Since then, for so long, and whenever `changes` tells to.
    pub(super) fn new(
        cluster: &'c Cluster,
        name: &'c str,
        changes: Changes,
        (since, timeout): (Instant, Duration),
    ) -> Self {
        Self {
            cluster,
            name,
            changes,
            since,
            until: since + timeout,
            failed: false,
            noted: false,
        }
    }

    /// The JobSet as it is; `None`: it could not be seen now.
    ///
    /// # Errors
    /// It is gone.
    pub(super) async fn poll(&mut self, line: &mut ProgressLine) -> Result<Option<JobSet>> {
        let found = timeout_at(self.until, self.cluster.find_jobset(self.name)).await;
        self.failed = !matches!(found, Ok(Ok(_)));
        match found {
            Ok(Ok(Some(jobset))) => return Ok(Some(jobset)),
            Ok(Ok(None)) => bail!("JobSet {}/{} is gone", self.cluster.namespace, self.name),
            Ok(Err(error)) if !self.noted => {
                self.noted = true;
                line.clear();
                print::note(&format!("it is waited on all the same: {error:#}"));
            }
            // It has been said; or the time is over.
            Ok(Err(_)) | Err(_) => {}
        }
        Ok(None)
    }

    /// Waits until it is worth to look again. Whether there is time left for that.
    pub(super) async fn wait(&mut self, line: &mut ProgressLine) -> bool {
        let now = Instant::now();
        if now >= self.until {
            return false;
        }
        let until = if self.failed {
            self.until.min(now + RETRY_AFTER)
        } else {
            self.until
        };
        line.wait(self.since, &mut self.changes, until).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response, StatusCode};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// A cluster whose API server gives these answers to who poller at the JobSet, the last one from then on, and has no watches.
    fn answers(given: &'static [(u16, &str)]) -> Cluster {
        let asked = AtomicUsize::new(0);
        Cluster::with_fake_api("team", move |request: &Request<Body>| {
            let (code, name) = if request.uri().path().ends_with("/jobsets/ring") {
                given[asked.fetch_add(1, Ordering::Relaxed).min(given.len() - 1)]
            } else {
                (503, "no watch")
            };
            let body: Value = if code == 200 {
                json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": {"replicatedJobs": []}})
            } else {
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": name, "reason": name, "code": code})
            };
            let mut response = Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            response
        })
    }

    async fn seen(cluster: &Cluster) -> Result<(bool, Duration)> {
        let (since, mut line) = (Instant::now(), ProgressLine::new(true));
        let changes = Changes::of_one(cluster, "ring", None).await;
        let mut poller = Poller::new(cluster, "ring", changes, (since, Duration::from_secs(60)));
        loop {
            if poller.poll(&mut line).await?.is_some() {
                return Ok((true, since.elapsed()));
            }
            if !poller.wait(&mut line).await {
                return Ok((false, since.elapsed()));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_fails_ends_no_wait_before_its_time() {
        let (found, after) = seen(&answers(&[(500, "etcd"), (502, "proxy"), (200, "ring")]))
            .await
            .unwrap();
        assert!(
            found && after >= RETRY_AFTER && after < 3 * RETRY_AFTER,
            "{after:?}"
        );
        let (found, after) = seen(&answers(&[(500, "etcd")])).await.unwrap();
        assert!(!found && after >= Duration::from_secs(60), "{after:?}");
        assert!(after < Duration::from_secs(62), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_gone_is_not_waited_for() {
        let gone = seen(&answers(&[(500, "etcd"), (404, "NotFound")]))
            .await
            .unwrap_err();
        assert_eq!(gone.to_string(), "JobSet team/ring is gone");
    }
}
