//! Workers that fail again as soon as they restart, because of something in their pod: the pod is
//! recreated before that uses up `maxRestarts`.

use anyhow::{Result, ensure};
use lockstep_integration::harness::Manifest;
use lockstep_integration::harness::group::START;
use nix::sys::signal::Signal;

use crate::support::{Case, Scene, case};

/// The first worker cannot start twice in one pod, as if the kernel kept its port.
const STAYS: &str = r#"
    if [ "$JOB_COMPLETION_INDEX" = 0 ]; then [ -e /used ] && exit 1; touch /used; fi
    exec sleep 1000000"#;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(what_outlives_a_restart_in_place_costs_the_pod_of_its_worker),
        case!(where_no_restart_is_left_all_jobs_are_made_anew_before_the_jobset_fails),
    ]
}

async fn what_outlives_a_restart_in_place_costs_the_pod_of_its_worker(scene: Scene) -> Result<()> {
    let manifest = Manifest::new(3, STAYS)
        .max_restarts(3)
        .annotated("lockstep.dev/max-backoff", "0s");
    let group = scene.apply(&manifest).await?;
    let before = group.running(3).await?;
    before[1].signal(Signal::SIGKILL)?;
    // One restart for this worker, one for the first worker, and one with a new pod for the first
    // worker, which does not count.
    let after = group.at_generation(&before, 3, START).await?;
    ensure!(
        before[0].place.uid != after[0].place.uid,
        "{:?} is not recreated",
        before[0].place
    );
    for index in [1, 2] {
        ensure!(
            before[index].place == after[index].place,
            "{:?} has become {:?}",
            before[index].place,
            after[index].place
        );
    }
    let note = group.event("WorkerEscalated").await?.message.unwrap_or_default();
    ensure!(
        note.contains("failed again within 60 s of a restart in place")
            && note.contains(&before[0].place.pod),
        "{note}"
    );
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    group.status_has("/inPlaceRestart/restarts", 2).await?;
    group
        .status_has("/inPlaceRestart/cause/reason", "FailedAgain")
        .await?;
    group.status_has("/restarts", 0).await
}

async fn where_no_restart_is_left_all_jobs_are_made_anew_before_the_jobset_fails(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(2, STAYS).max_restarts(1)).await?;
    let before = group.running(2).await?;
    before[1].signal(Signal::SIGKILL)?;
    let after = group.at_generation(&before, 2, START).await?;
    for (old, new) in before.iter().zip(&after) {
        ensure!(old.place.uid != new.place.uid, "{:?} is not recreated", old.place);
    }
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group
        .status_has("/inPlaceRestart/cause/reason", "LastResort")
        .await?;
    group.event("RecreatingJobs").await?;
    group.status_has("/restarts", 1).await
}
