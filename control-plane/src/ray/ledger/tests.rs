use std::time::Duration;

use jiff::SignedDuration;
use kube::runtime::controller::Action;
use kube::{Client, Config};
use lockstep_api::ray::{RayJob, RayJobSpec};

use super::*;
use crate::apply::events;

/// A ledger whose events go nowhere.
fn ledger() -> Ledger<RayJob> {
    let config = Config::new("http://127.0.0.1:1".parse().unwrap());
    let (news, _) = events::queue_as(Client::try_from(config).unwrap(), "test");
    Ledger::new(news)
}

#[tokio::test]
async fn what_is_due_is_looked_at_however_often_writes_have_failed() {
    let (ledger, job) = (ledger(), RayJob::new("rj", RayJobSpec::default()));
    let fails = || {
        let error = RayError::Dashboard("away".to_owned());
        (0..30).map(|_| ledger.failed(&job, &error)).last().unwrap()
    };
    assert_eq!(fails(), Action::requeue(Duration::from_secs(300)));
    ledger.decided(&job, Some(SignedDuration::from_secs(7)));
    assert_eq!(fails(), Action::requeue(Duration::from_secs(7)));
    ledger.decided(&job, None);
    assert_eq!(fails(), Action::requeue(Duration::from_secs(300)));
}
