//! Polls a JobSet while a command waits for its restart.
//!
//! Promises: a failed poll does not end the wait, since the restart goes on without this command;
//! the failure is reported once.

use std::time::Duration;

use anyhow::{Result, bail};
use lockstep_api::JobSet;
use tokio::time::{Instant, timeout_at};

use super::progress_line::ProgressLine;
use crate::fetch::{Changes, Cluster};
use crate::print;
use crate::view::restart::{Progress, ProgressDetail};

/// Delay after a failed poll.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How a wait for a restart ended.
pub(super) enum Waited {
    /// All workers run, at this restart attempt.
    Done { jobset: Box<JobSet>, generation: i64 },
    /// There is nothing to wait for. The reason has been printed.
    Ended,
    /// Not all workers ran in time.
    TimedOut,
}

/// Polls one JobSet until a deadline.
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
    /// Polls from `since` until `timeout` has passed, whenever `changes` reports a change.
    pub(super) fn new(
        cluster: &'c Cluster,
        name: &'c str,
        changes: Changes,
        since: Instant,
        timeout: Duration,
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

    /// Shows the progress until `progress` says that the restart is done or has ended.
    ///
    /// # Errors
    /// If the JobSet is gone.
    pub(super) async fn wait_for(
        &mut self,
        line: &mut ProgressLine,
        mut progress: impl AsyncFnMut(&JobSet) -> Progress,
    ) -> Result<Waited> {
        loop {
            if let Some(jobset) = self.poll(line).await? {
                match progress(&jobset).await {
                    Progress::Done(generation) => {
                        let jobset = Box::new(jobset);
                        return Ok(Waited::Done { jobset, generation });
                    }
                    Progress::Ended(why) => {
                        line.clear();
                        print::error(&why);
                        return Ok(Waited::Ended);
                    }
                    Progress::Requested => {
                        let words = "requested; the control plane has not handled it yet";
                        line.show(self.since, ProgressDetail::uncounted(words));
                    }
                    Progress::UnderWay(detail) => line.show(self.since, detail),
                }
            }
            if !self.wait(line).await {
                return Ok(Waited::TimedOut);
            }
        }
    }

    /// The JobSet as it is now; `None` if it could not be read.
    ///
    /// # Errors
    /// If the JobSet is gone.
    async fn poll(&mut self, line: &mut ProgressLine) -> Result<Option<JobSet>> {
        let found = timeout_at(self.until, self.cluster.find_jobset(self.name)).await;
        self.failed = !matches!(found, Ok(Ok(_)));
        match found {
            Ok(Ok(Some(jobset))) => return Ok(Some(jobset)),
            Ok(Ok(None)) => bail!("JobSet {}/{} is gone", self.cluster.namespace, self.name),
            Ok(Err(error)) if !self.noted => {
                self.noted = true;
                line.clear();
                print::note(&format!(
                    "still waiting, though the JobSet cannot be read: {error:#}"
                ));
            }
            // It was reported before, or the time is up.
            Ok(Err(_)) | Err(_) => {}
        }
        Ok(None)
    }

    /// Waits until the next poll is due. Returns false once the time is up.
    async fn wait(&mut self, line: &mut ProgressLine) -> bool {
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

    /// A cluster whose API server gives these answers to reads of the JobSet, then repeats the last
    /// one. It has no watches.
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
        let (since, mut line) = (Instant::now(), ProgressLine::hidden());
        let changes = Changes::of_one(cluster, "ring", None).await;
        let mut poller = Poller::new(cluster, "ring", changes, since, Duration::from_secs(60));
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
    async fn a_failed_poll_does_not_end_the_wait_early() {
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
    async fn a_jobset_that_is_gone_ends_the_wait() {
        let gone = seen(&answers(&[(500, "etcd"), (404, "NotFound")]))
            .await
            .unwrap_err();
        assert_eq!(gone.to_string(), "JobSet team/ring is gone");
    }
}
