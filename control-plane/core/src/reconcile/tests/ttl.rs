use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::*;

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
    assert_eq!(ttl_left(&finished, at(10)), Some(SignedDuration::from_secs(20)));
    assert_eq!(ttl_left(&finished, at(30)), Some(SignedDuration::ZERO));
    assert_eq!(
        ttl_left(
            &finished
                .clone()
                .with(|js| js.spec.ttl_seconds_after_finished = None),
            at(30)
        ),
        None
    );
    assert_eq!(
        ttl_left(&finished.clone().with(|js| js.status = None), at(30)),
        None
    );
    // Another controller only copies the status. Nothing but the end of the TTL concerns us.
    let of_another = finished.with(|js| js.spec.managed_by = Some("example.com/other".to_owned()));
    let mut observed = observe(&of_another, []);
    observed.now = at(10);
    let waits = Plan {
        requeue_after: Some(SignedDuration::from_secs(20)),
        ..Plan::default()
    };
    assert_eq!(plan(&observed), waits);
    observed.now = at(30);
    let deletes = Plan {
        delete_jobset: true,
        ..Plan::default()
    };
    assert_eq!(plan(&observed), deletes);
}
