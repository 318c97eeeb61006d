//! What a pod with standbys gets more than others.

use super::*;

#[tokio::test]
async fn a_pod_that_asks_for_standbys_gets_a_place_for_their_hook() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    let mut asks = pod("p");
    let standby = ("lockstep.dev/standby".to_owned(), "python".to_owned());
    asks.annotations.extend([standby]);
    let with = setup
        .nri
        .create(asks.clone(), container("worker", ""))
        .await
        .unwrap();
    let without = setup.nri.create(pod("p"), container("worker", "")).await.unwrap();
    let options = |mount: &wire::Mount| (mount.destination.clone(), mount.options.join(","));
    assert_eq!(
        options(&with.mounts[3]),
        (
            "/.lockstep/standby".to_owned(),
            "nosuid,nodev,noexec,mode=1777,size=2048k,nr_inodes=64".to_owned()
        )
    );
    assert_eq!(
        options(&without.mounts[2]),
        (
            "/.lockstep/heartbeat".to_owned(),
            "nosuid,nodev,noexec,mode=0777,size=64k,nr_inodes=16".to_owned()
        )
    );
    // Without the annotation all is as if there were no standbys.
    assert_eq!(without.mounts, with.mounts[..3]);
    let at = with.args.iter().position(|arg| arg == "--standby").unwrap();
    let mut others = with.args.clone();
    others.drain(at..at + 2);
    assert_eq!(others, without.args);
    assert!(at < with.args.iter().position(|arg| arg == "--").unwrap());

    // Another connection of this plugin would see the result.
    let again = wire::Container {
        args: with.args,
        mounts: with.mounts,
        ..container("worker", "")
    };
    assert_eq!(setup.nri.create(asks, again).await, None);
}
