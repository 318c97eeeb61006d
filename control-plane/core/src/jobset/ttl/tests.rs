use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::*;
use crate::common::testing::{JobSetBuild, at, jobset};

#[test]
fn time_runs_from_the_moment_the_jobset_finished() {
    let finished = jobset([])
        .with(|js| js.spec.ttl_seconds_after_finished = Some(30))
        .status(|status| {
            status.conditions.push(Condition {
                type_: "Completed".to_owned(),
                status: "True".to_owned(),
                last_transition_time: Time(at(0)),
                message: String::new(),
                reason: "AllJobsCompleted".to_owned(),
                observed_generation: None,
            });
        });
    assert_eq!(left(&finished, at(10)), Some(SignedDuration::from_secs(20)));
    assert_eq!(left(&finished, at(30)), Some(SignedDuration::ZERO));
    assert_eq!(
        left(
            &finished
                .clone()
                .with(|js| js.spec.ttl_seconds_after_finished = None),
            at(30)
        ),
        None
    );
    assert_eq!(left(&finished.with(|js| js.status = None), at(30)), None);
}
