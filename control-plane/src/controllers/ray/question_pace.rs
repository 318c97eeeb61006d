//! Limits how often the dashboard of a RayJob is asked.
//!
//! Each write of a RayJob's status reconciles the job again, and asks again. A dashboard whose
//! answers always differ would be asked, and the status written, without a pause.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::ray::RayJob;
use lockstep_process::rate_limit::{Rate, RateLimit};
use tokio::time::Instant;

/// The steps of a job ask some questions at once. Regular questions are two seconds apart.
const PACE: Rate = Rate {
    burst: 8,
    every: Duration::from_secs(2),
};

/// By RayJob.
#[derive(Default)]
pub(super) struct QuestionPace(Mutex<HashMap<ObjectRef<RayJob>, RateLimit>>);

impl QuestionPace {
    fn locked(&self) -> MutexGuard<'_, HashMap<ObjectRef<RayJob>, RateLimit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a question of this job.
    ///
    /// # Errors
    /// The time until the next one.
    pub(super) fn take(&self, key: ObjectRef<RayJob>) -> Result<(), Duration> {
        let mut all = self.locked();
        let limit = all.entry(key).or_insert_with(|| RateLimit::new(PACE));
        if limit.try_take() {
            return Ok(());
        }
        Err(limit.next().saturating_duration_since(Instant::now()))
    }

    /// Forgets a job that is gone.
    pub(super) fn forget(&self, key: &ObjectRef<RayJob>) {
        self.locked().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_job_that_is_asked_without_a_pause_is_asked_every_two_seconds() {
        let pace = QuestionPace::default();
        let take = |name: &str| pace.take(ObjectRef::new(name).within("ns"));
        let burst = (0..100).filter(|_| take("a").is_ok()).count();
        assert_eq!(burst, PACE.burst as usize);
        assert_eq!((take("a"), take("b")), (Err(PACE.every), Ok(())));
        tokio::time::advance(PACE.every).await;
        assert_eq!((take("a"), take("a")), (Ok(()), Err(PACE.every)));
        pace.forget(&ObjectRef::new("a").within("ns"));
        assert_eq!(take("a"), Ok(()));
    }
}
