use super::*;

const OWN: Epoch = Epoch(7);

/// The epoch that outbids the leader within an hour, if any.
async fn outbid(epoch_tracker: &EpochTracker) -> Option<Epoch> {
    let hour = Duration::from_secs(3600);
    tokio::time::timeout(hour, epoch_tracker.outbid()).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_status_is_believed_at_once() {
    let epoch_tracker = EpochTracker::new(OWN);
    epoch_tracker.written(OWN);
    assert_eq!(outbid(&epoch_tracker).await, None);
    let epoch_tracker = EpochTracker::new(OWN);
    let began = Instant::now();
    epoch_tracker.written(Epoch(9));
    assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(9)));
    assert!(began.elapsed().is_zero());
}

#[tokio::test(start_paused = true)]
async fn one_node_that_lies_makes_no_leader_step_down_and_is_outlived_by_the_next_one() {
    let epoch_tracker = EpochTracker::new(OWN);
    // It is the first to connect, and the only one for some time.
    assert_eq!(
        epoch_tracker.said("liar", Epoch(1000)),
        Err(Claim::Higher(Epoch(1000)))
    );
    assert_eq!(epoch_tracker.said("honest", Epoch(6)), Ok(()));
    assert_eq!(epoch_tracker.said("new", Epoch(0)), Ok(()));
    for epoch in 1001..1100 {
        assert!(epoch_tracker.said("liar", Epoch(epoch)).is_err());
    }
    assert_eq!(outbid(&epoch_tracker).await, None);
    assert_eq!(epoch_tracker.highest(), Some(Epoch(1099)));
    // This holds whatever it claims later.
    assert_eq!(epoch_tracker.said("liar", Epoch(6)), Ok(()));
    assert_eq!(outbid(&epoch_tracker).await, None);
}

#[tokio::test(start_paused = true)]
async fn most_nodes_are_believed_once_all_could_connect() {
    let epoch_tracker = EpochTracker::new(OWN);
    for (node, epoch) in [("n1", 9), ("n2", 12), ("n3", 6)] {
        let _ = epoch_tracker.said(node, Epoch(epoch));
    }
    let began = Instant::now();
    assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(12)));
    assert_eq!(began.elapsed(), SETTLED);
    // It takes effect as soon as most nodes say so.
    let epoch_tracker = EpochTracker::new(OWN);
    let _ = epoch_tracker.said("n1", Epoch(6));
    let _ = epoch_tracker.said("n2", Epoch(9));
    assert_eq!(outbid(&epoch_tracker).await, None);
    epoch_tracker.forget("n1");
    assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(9)));
}

#[tokio::test(start_paused = true)]
async fn nodes_that_only_repeat_what_this_leader_says_outvote_nobody() {
    let epoch_tracker = EpochTracker::new(OWN);
    for node in ["n1", "n2", "n3"] {
        assert_eq!(epoch_tracker.said(node, OWN), Ok(()));
    }
    assert_eq!(outbid(&epoch_tracker).await, None);
    // Its agents are older than the restore, and obey no lower epoch.
    assert!(epoch_tracker.said("n4", Epoch(1000)).is_err());
    assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(1000)));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_is_ignored() {
    let epoch_tracker = EpochTracker::new(OWN);
    epoch_tracker.written(Epoch(u64::MAX));
    let beyond = Epoch(u64::MAX);
    assert_eq!(epoch_tracker.said("n1", beyond), Err(Claim::Impossible(beyond)));
    assert_eq!(outbid(&epoch_tracker).await, None);
    assert_eq!(epoch_tracker.highest(), None);
}
