//! Repeats calls to the platform API that it refused only for now.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::view::api_error::retry_delay;

/// How long a call is repeated.
const RETRY_FOR: Duration = Duration::from_secs(10);

/// Makes a call, and repeats it after the delay that a refusal names. The call must be idempotent.
pub(super) async fn with_retries<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> Result<T, Status> {
    let until = Instant::now() + RETRY_FOR;
    loop {
        let refused = match call().await {
            Ok(answer) => return Ok(answer),
            Err(refused) => refused,
        };
        match retry_delay(&refused) {
            Some(delay) if Instant::now() + delay < until => sleep(delay).await,
            _ => return Err(refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic::Code;
    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    fn pending() -> Status {
        let mut details = ErrorDetails::with_error_info("REQUEST_PENDING", "lockstep.dev", HashMap::new());
        details.set_retry_info(Some(Duration::from_secs(1)));
        Status::with_error_details(Code::Aborted, "another one is pending", details)
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_repeated_when_the_refusal_says_and_not_for_ever() {
        let begun = Instant::now();
        let mut calls = 0;
        let answer = with_retries(async || {
            calls += 1;
            if calls < 3 { Err(pending()) } else { Ok(calls) }
        });
        assert_eq!(answer.await.unwrap(), 3);
        assert!(begun.elapsed() >= Duration::from_secs(2));

        let begun = Instant::now();
        let refused = with_retries(async || Err::<(), _>(pending())).await.unwrap_err();
        assert_eq!(refused.message(), "another one is pending");
        assert!(begun.elapsed() <= RETRY_FOR);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permanent_error_is_not_repeated() {
        let begun = Instant::now();
        let refused = with_retries(async || Err::<(), _>(Status::not_found("no"))).await;
        assert_eq!(refused.unwrap_err().code(), Code::NotFound);
        assert!(begun.elapsed() < Duration::from_secs(1));
    }
}
