//! ReplicatedJobs that start one after another, each with its minimum.

use anyhow::{Result, ensure};
use lockstep_api::{GangPhase, conditions};

use crate::fixture::{Case, case};
use crate::pool::{Pool, Set, WHILE, part};
use crate::scene::Scene;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(volcano_2944_stages_start_one_after_another_each_with_its_minimum),
        case!(volcano_2130_a_stage_that_waits_for_room_starts_when_the_one_before_it_ends),
        case!(volcano_2226_a_stage_is_ready_with_its_minimum),
    ]
}

fn depends_on(set: Set, second: &str, first: &str, status: &str) -> Set {
    let mut set = set;
    set.depends_on = vec![(second.to_owned(), first.to_owned(), status.to_owned())];
    set
}

async fn volcano_2944_stages_start_one_after_another_each_with_its_minimum(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    let set = Set::new("js", "Gates", [part("a", 4, 3, 1), part("b", 3, 3, 1)]);
    pool.create(&depends_on(set, "b", "a", "Complete")).await?;
    pool.until_bound("js", &["a-0", "a-1", "a-2", "a-3"]).await?;
    let status = pool.until_phase("js", GangPhase::Scheduled).await?;
    let stages: Vec<_> = status
        .gangs
        .iter()
        .map(|gang| (gang.name.as_str(), gang.min_available))
        .collect();
    ensure!(stages == [("a", 3)], "the other is not waited for: {stages:?}");
    pool.until_condition("js", conditions::MIN_AVAILABLE, "Scheduled")
        .await?;
    // The second stage waits for all of the first.
    let pods = pool.pods("js").await?;
    for place in ["a-0", "a-1", "a-2"] {
        pool.succeed(&pods[place]).await?;
    }
    tokio::time::sleep(WHILE).await;
    let waits = pool.pods("js").await?;
    ensure!(
        waits.len() == 4,
        "{:?} before the first stage has ended",
        waits.keys()
    );
    pool.succeed(&pods["a-3"]).await?;
    pool.until_status("js", "the second stage is scheduled", |status| {
        let stage = status.gang("b");
        stage.is_some_and(|gang| gang.phase == GangPhase::Scheduled && gang.min_available == 3)
    })
    .await?;
    let pods = pool.pods("js").await?;
    for place in ["b-0", "b-1", "b-2"] {
        pool.succeed(&pods[place]).await?;
    }
    pool.until_condition("js", "Completed", "AllJobsCompleted")
        .await?;
    let status = pool.status("js").await?;
    ensure!(status.gangs.len() == 2, "{:?}", status.gangs);
    Ok(())
}

async fn volcano_2130_a_stage_that_waits_for_room_starts_when_the_one_before_it_ends(
    scene: Scene,
) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    let set = Set::new("js", "PodGroup", [part("a", 4, 4, 1), part("b", 4, 4, 1)]);
    // The second stage needs the first only to be ready, but has no room until the first has ended.
    pool.create(&depends_on(set, "b", "a", "Ready")).await?;
    let first = ["a-0", "a-1", "a-2", "a-3"];
    pool.until_bound("js", &first).await?;
    pool.until_pods("js", 8).await?;
    let short = "needs 4 pods x 1 cpu, 0 fit: 4 short of cpu";
    pool.until_status("js", "the second stage waits", |status| {
        let phase = |name: &str| status.gang(name).map(|gang| gang.phase.clone());
        let message = status.gang("b").and_then(|gang| gang.message.as_deref());
        phase("a") == Some(GangPhase::Scheduled)
            && phase("b") == Some(GangPhase::Waiting)
            && message == Some(short)
    })
    .await?;
    // Part of the first stage ends; that is not enough for the second.
    let pods = pool.pods("js").await?;
    for place in &first[..3] {
        pool.succeed(&pods[*place]).await?;
    }
    tokio::time::sleep(WHILE).await;
    let bound = pool.bound("js").await?;
    ensure!(bound == first, "part of the second stage is bound: {bound:?}");
    pool.succeed(&pods["a-3"]).await?;
    let all = ["a-0", "a-1", "a-2", "a-3", "b-0", "b-1", "b-2", "b-3"];
    pool.until_bound("js", &all).await?;
    let pods = pool.pods("js").await?;
    for place in &all[4..] {
        pool.succeed(&pods[*place]).await?;
    }
    pool.until_condition("js", "Completed", "AllJobsCompleted")
        .await?;
    Ok(())
}

async fn volcano_2226_a_stage_is_ready_with_its_minimum(scene: Scene) -> Result<()> {
    let pool = Pool::new(scene, 4, 1).await?;
    let set = Set::new("js", "Gates", [part("a", 4, 2, 1), part("b", 2, 2, 1)]);
    let set = depends_on(set, "b", "a", "Ready");
    // Two of the four nodes are taken, so the optional workers of the first stage have no room.
    pool.create(&Set::new("other", "Gates", [part("w", 2, 2, 1)]))
        .await?;
    pool.until_bound("other", &["w-0", "w-1"]).await?;
    pool.create(&set).await?;
    pool.until_bound("js", &["a-0", "a-1"]).await?;
    pool.until_pods("js", 6).await?;
    pool.delete("other").await?;
    pool.until_status("js", "two gangs are scheduled", |status| {
        let scheduled = status
            .gangs
            .iter()
            .filter(|gang| gang.phase == GangPhase::Scheduled);
        scheduled.count() == 2
    })
    .await?;
    Ok(())
}
