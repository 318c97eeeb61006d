//! Watches of groups.

use super::large::NamespaceLines;
use super::*;

#[tokio::test]
async fn a_watch_shows_all_that_is_then_what_changes() {
    let api = Api::leading().await;
    let (one, two) = (
        api.board.open_post("ours", "one", UnixNanos(1)),
        api.board.open_post("ours", "two", UnixNanos(1)),
    );
    one.replace_state(running("ours", "one", 0));
    two.replace_state(running("ours", "two", 0));
    let mut watch = api.watch("watch:*", Default::default()).await.unwrap();
    let first = [watch.changed().await, watch.changed().await];
    assert_eq!(names(&first), ["one", "two"]);
    assert_eq!(watch.next().await, Event::Synced(pb::Synced {}));

    // An unchanged state is not sent.
    one.replace_state(running("ours", "one", 0));
    two.replace_state(running("ours", "two", 1));
    let group = watch.changed().await;
    assert_eq!((group.name.as_str(), group.generation), ("two", 1));

    drop(one);
    let removed = pb::GroupKey {
        namespace: "ours".into(),
        name: "one".into(),
        uid: "uid-one".into(),
    };
    assert_eq!(watch.next().await, Event::Removed(removed));
    let again = api.board.open_post("ours", "one", UnixNanos(1));
    again.replace_state(running("ours", "one", 9));
    assert_eq!(watch.changed().await.generation, 9);
}

#[tokio::test]
async fn a_jobset_that_is_recreated_under_its_name_is_another_one() {
    let api = Api::leading().await;
    let before = api.board.open_post("ours", "js", UnixNanos(1));
    before.replace_state(running("ours", "js", 3));
    let mut watch = api.watch("watch:*", Default::default()).await.unwrap();
    assert_eq!(watch.changed().await.generation, 3);
    assert_eq!(watch.next().await, Event::Synced(pb::Synced {}));

    let after = api.board.open_post("ours", "js", UnixNanos(1));
    let mut recreated = running("ours", "js", 0);
    Arc::make_mut(&mut recreated.jobset).metadata.uid = Some("uid-recreated".to_owned());
    after.replace_state(recreated);
    // Later messages of the former group's task are ignored, and so is its end.
    before.replace_state(running("ours", "js", 4));
    drop(before);
    let removed = pb::GroupKey {
        namespace: "ours".into(),
        name: "js".into(),
        uid: "uid-js".into(),
    };
    assert_eq!(watch.next().await, Event::Removed(removed));
    assert_eq!(watch.changed().await.uid, "uid-recreated");
    let listed = api.list("list:*", all()).await.unwrap().groups;
    assert_eq!(names(&listed), ["js"]);
}

#[tokio::test]
async fn a_watch_of_one_group_sees_no_other() {
    let api = Api::leading().await;
    let (one, two) = (
        api.board.open_post("ours", "one", UnixNanos(1)),
        api.board.open_post("ours", "two", UnixNanos(1)),
    );
    one.replace_state(running("ours", "one", 0));
    let watch = pb::WatchGroupsRequest {
        namespace: "ours".into(),
        name: "two".into(),
        omit_workers: true,
    };
    let mut watch = api.watch("watch:ours", watch).await.unwrap();
    assert_eq!(watch.next().await, Event::Synced(pb::Synced {}));
    one.replace_state(running("ours", "one", 1));
    two.replace_state(running("ours", "two", 2));
    assert_eq!(watch.changed().await.generation, 2);
}

#[tokio::test]
async fn a_reader_that_is_slow_gets_the_newest_state_and_nothing_waits_for_it() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(1));
    let filter = board::Filter::default();
    let mut follower = follow::Follower::new(
        Arc::clone(&api.board),
        filter,
        convert::Detail::Full,
        NamespaceLines::default().of(""),
    );
    for generation in 0..1000 {
        post.replace_state(running("ours", "js", generation));
    }
    let mut said = Vec::new();
    for _ in 0..2 {
        said.push(follower.next().await.event.unwrap());
    }
    let Event::Changed(group) = &said[0] else {
        panic!("{said:?}")
    };
    assert_eq!(group.generation, 999);
    assert_eq!(said[1], Event::Synced(pb::Synced {}));
}

#[tokio::test]
async fn a_new_group_of_the_same_name_outlives_the_post_of_the_one_before() {
    let board = Board::new();
    let old = board.open_post("ours", "js", UnixNanos(1));
    old.replace_state(running("ours", "js", 1));
    let new = board.open_post("ours", "js", UnixNanos(1));
    new.replace_state(running("ours", "js", 2));
    drop(old);
    let (found, _) = board.list(&board::Filter::default(), None, 10);
    assert_eq!(found[0].1.generation, Generation(2));
    drop(new);
    assert!(board.list(&board::Filter::default(), None, 10).0.is_empty());
}

#[tokio::test]
async fn it_ends_with_watches_there() {
    let api = Api::leading().await;
    let mut watch = api.watch("*:*", Default::default()).await.unwrap();
    assert_eq!(watch.next().await, Event::Synced(pb::Synced {}));
    api.shutdown.cancel();
    let status = tokio::time::timeout(PATIENCE, watch.0.message())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    drop((api.channel, watch));
    tokio::time::timeout(PATIENCE, api.server)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn watches_end_by_their_deadlines_and_leave_their_places_to_others() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(1));
    post.replace_state(running("ours", "js", 0));
    let short = async || {
        let mut request = with("watch:*", pb::WatchGroupsRequest::default());
        request.set_timeout(Duration::from_millis(100));
        let mut watch = api.client().watch_groups(request).await?.into_inner();
        while watch.message().await?.is_some() {}
        Ok::<_, Status>(())
    };
    // More watches than there are slots, some at a time.
    for _ in 0..6 {
        let ended = futures::future::join_all((0..50).map(|_| short())).await;
        for ended in ended {
            let status = ended.unwrap_err();
            // On a busy machine a deadline may pass before the watch is open, which the client
            // notices first.
            let early = status.code() == Code::Cancelled && status.message() == "Timeout expired";
            assert!(early || status.code() == Code::DeadlineExceeded, "{status}");
        }
    }
    let mut watch = api.watch("watch:*", Default::default()).await.unwrap();
    assert_eq!(watch.changed().await.name, "js");
}
