//! Clocks that differ, and clocks that are set, while replicas campaign.
//!
//! The time of the tests is paused, and the wall clock nearly stands still: if a lease ends in
//! time, the wall clock has not ended it.

use std::convert::Infallible;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::server::*;
use super::*;

/// How soon a free lease has a new holder.
const SOON: Duration = Duration::from_millis(1200);

/// Renews the lease of another replica, by a clock that differs by this much. No replica may take
/// the lease over.
async fn renew(server: &Shared, holder: &str, differs: SignedDuration) {
    loop {
        tokio::time::sleep(RETRY).await;
        let mut server = server.lock().unwrap();
        assert_eq!(server.holder().as_deref(), Some(holder));
        server.hold(holder, differs);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_stays_with_its_holder_regardless_of_its_times() {
    for differs in [-HOUR, SignedDuration::ZERO, HOUR] {
        let (client, server) = server();
        server.lock().unwrap().hold("other", differs);
        tokio::select! {
            _ = lead(&client, by_default()) => panic!("two lead"),
            () = renew(&server, "other", differs) => {}
            () = tokio::time::sleep(LONG) => {}
        }
        assert_eq!(server.lock().unwrap().writes, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_holder_is_followed_regardless_of_its_clock() {
    for differs in [-HOUR, SignedDuration::ZERO, HOUR] {
        let (client, server) = server();
        server.lock().unwrap().hold("other", differs);
        let began = Instant::now();
        let mut leadership = lead(&client, by_default()).await;
        let waited = began.elapsed();
        assert!(
            waited >= DURATION && waited < DURATION + Duration::from_secs(1),
            "{differs}: {waited:?}"
        );
        let lost = tokio::time::timeout(LONG, leadership.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_that_follow_a_silent_holder_one_leads() {
    for differs in [-HOUR, SignedDuration::ZERO, HOUR] {
        let (client, server) = server();
        server.lock().unwrap().hold("other", differs);
        let follow = || Box::pin(lead(&client, by_default()));
        let (one, two) = (follow(), follow());
        let (mut leadership, follower) = futures::future::select(one, two).await.factor_first();
        tokio::select! {
            _ = follower => panic!("two lead"),
            lost = leadership.lost() => panic!("{lost}"),
            () = tokio::time::sleep(LONG) => {}
        }
        let renewed = u64::from(server.lock().unwrap().writes);
        assert!(renewed >= LONG.as_secs() / RETRY.as_secs() * 9 / 10, "{renewed}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_slower_replica_leaves_the_lease_to_the_faster_one_and_follows_it() {
    let (client, server) = server();
    server.lock().unwrap().quicker = Some("other");
    let began = Instant::now();
    let held = RETRY * 3;
    let other = async {
        while server.lock().unwrap().quicker.is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let renews = renew(&server, "other", -HOUR);
        let _ = tokio::time::timeout_at(began + held, renews).await;
        server
            .lock()
            .unwrap()
            .put(&json!({"spec": {"holderIdentity": ""}}));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = lead(&client, by_default()) => {}
        () = other => {}
    }
    let waited = began.elapsed();
    assert!(waited >= held && waited < held + SOON, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_clock_is_set_leads_on() {
    for ahead in [HOUR, -HOUR] {
        for election in [by_default(), election(3, 1), election(1, 1)] {
            let (client, server) = server();
            server.lock().unwrap().ahead = ahead;
            let mut leadership = lead(&client, election.clone()).await;
            let clock = async {
                tokio::time::sleep(LONG).await;
                server.lock().unwrap().ahead = SignedDuration::ZERO;
                tokio::time::sleep(LONG).await;
            };
            tokio::select! {
                _ = lead(&client, election.clone()) => panic!("two lead"),
                lost = leadership.lost() => panic!("{ahead}, {election:?}: {lost}"),
                () = clock => {}
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_can_read_the_lease_and_not_renew_it_stops_in_time() {
    let (client, server) = server();
    let election = by_default();
    let mut leadership = lead(&client, election.clone()).await;
    server.lock().unwrap().refuses = 1;
    let lost = tokio::time::timeout(LONG, leadership.lost()).await;
    assert!(lost.is_err(), "one renewal that fails costs nothing");

    server.lock().unwrap().refuses = u32::MAX;
    let began = Instant::now();
    let lost = tokio::time::timeout(LONG, leadership.lost()).await;
    assert!(lost.is_ok(), "it leads on");
    assert!(
        began.elapsed() <= election.renew_deadline,
        "{:?}",
        began.elapsed()
    );
    leadership.release().await.unwrap();
    assert_eq!(server.lock().unwrap().holder(), None);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_has_lost_the_lease_leaves_it_to_the_next() {
    let (client, server) = server();
    let mut leadership = lead(&client, by_default()).await;
    server.lock().unwrap().hold("other", -HOUR);
    let lost = tokio::time::timeout(RETRY * 2, leadership.lost()).await;
    assert!(lost.is_ok(), "{lost:?}");
    leadership.release().await.unwrap();
    assert_eq!(server.lock().unwrap().holder().as_deref(), Some("other"));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_up_is_taken_at_once() {
    let left =
        json!({"holderIdentity": null, "acquireTime": null, "renewTime": null, "leaseDurationSeconds": null});
    // The Lease as client-go leaves it, and the same with times an hour ahead.
    for left in [
        left,
        json!({"holderIdentity": ""}),
        json!({"holderIdentity": null}),
    ] {
        let (client, server) = server();
        server.lock().unwrap().hold("other", HOUR);
        let held = async {
            let held = renew(&server, "other", HOUR);
            let _ = tokio::time::timeout(DURATION * 3, held).await;
            server.lock().unwrap().put(&json!({"spec": left}));
            std::future::pending::<()>().await;
        };
        let began = Instant::now();
        tokio::select! {
            _ = lead(&client, by_default()) => {}
            () = held => {}
        }
        let waited = began.elapsed().saturating_sub(DURATION * 3);
        assert!(waited < SOON, "{left}: {waited:?}");
        assert!(began.elapsed() >= DURATION * 3, "{left}");
    }
}

/// The writes of the lease manager, each with true if it is done.
#[tokio::test(start_paused = true)]
async fn the_manager_writes_to_no_lease_but_its_own() {
    let free =
        json!({"holderIdentity": null, "acquireTime": null, "renewTime": null, "leaseDurationSeconds": null});
    let now = Timestamp::now().to_string();
    let renew = json!({"renewTime": now, "leaseDurationSeconds": 15});
    let take =
        json!({"holderIdentity": "own", "acquireTime": now, "renewTime": now, "leaseDurationSeconds": 15});
    for (holder, quicker, spec, is_done) in [
        (Some("own"), None, &renew, true),
        (Some("own"), None, &free, true),
        (Some("own"), Some("other"), &renew, false),
        (Some("own"), Some("other"), &free, false),
        (Some("other"), None, &renew, false),
        (Some("other"), None, &free, false),
        (Some("other"), None, &take, false),
        (None, None, &renew, false),
        (None, None, &take, true),
        (None, Some("other"), &take, false),
    ] {
        let (client, server) = server();
        if let Some(holder) = holder {
            server.lock().unwrap().hold(holder, -HOUR);
        } else {
            server.lock().unwrap().put(&json!({}));
        }
        server.lock().unwrap().quicker = quicker;
        let (manager, _) = guard::guarded(&client, &by_default(), "own");
        let leases: Api<Lease> = Api::namespaced(manager, "default");
        let patch = Patch::Strategic(json!({"spec": spec}));
        let found = leases
            .patch("lease", &PatchParams::default(), &patch)
            .await
            .unwrap();
        let server = server.lock().unwrap();
        let case = format!("{holder:?} {quicker:?} {spec}");
        assert_eq!(server.writes, u32::from(is_done), "{case}");
        assert_eq!(server.holder().as_deref(), super::holder(&found), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_lease_the_manager_writes_none() {
    let now = Timestamp::now().to_string();
    for spec in [
        json!({"renewTime": now, "leaseDurationSeconds": 15}),
        json!({"holderIdentity": "own", "acquireTime": now, "renewTime": now, "leaseDurationSeconds": 15}),
    ] {
        let (client, server) = server();
        let (manager, seen) = guard::guarded(&client, &by_default(), "own");
        let leases: Api<Lease> = Api::namespaced(manager, "default");
        let patch = Patch::Strategic(json!({"spec": spec}));
        let refused = leases.patch("lease", &PatchParams::default(), &patch).await;
        assert!(refused.is_err_and(|error| is_status(&error, 404)), "{spec}");
        assert_eq!(server.lock().unwrap().writes, 0, "{spec}");
        assert!(!seen.renewed.has_changed().unwrap(), "{spec}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_deleted_ends_its_leader_before_another_leads() {
    let (client, server) = server();
    let mut leadership = lead(&client, by_default()).await;
    let follower = lead(&client, by_default());
    let deleted = async {
        tokio::time::sleep(DURATION).await;
        server.lock().unwrap().lease = None;
        let lost = tokio::time::timeout(RETRY * 2, leadership.lost()).await;
        assert!(lost.is_ok(), "it leads on");
        // It is practically dead, and sends nothing more.
        drop(leadership);
        std::future::pending::<Infallible>().await
    };
    let began = Instant::now();
    let follower = tokio::select! {
        follower = follower => follower,
        never = deleted => match never {},
    };
    let waited = began.elapsed().saturating_sub(DURATION);
    assert!(waited >= DURATION, "{waited:?}");
    assert!(waited < DURATION + SOON, "{waited:?}");
    follower.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_manager_writes_nothing_on_a_lease_that_fell_back() {
    let (client, server) = server();
    server.lock().unwrap().version = 1000;
    server.lock().unwrap().hold("own", SignedDuration::ZERO);
    let (manager, seen) = guard::guarded(&client, &by_default(), "own");
    let leases: Api<Lease> = Api::namespaced(manager, "default");
    let renewal = json!({"spec": {"renewTime": Timestamp::now().to_string(), "leaseDurationSeconds": 15}});
    let (params, renewal) = (PatchParams::default(), Patch::Strategic(renewal));
    let renew = || leases.patch("lease", &params, &renewal);
    renew().await.unwrap();
    leases.get("lease").await.unwrap();
    let writes = server.lock().unwrap().writes;
    assert_eq!((writes, *seen.went_back.borrow()), (1, None));
    // The store is restored, and the next write may have a version above all that were read.
    server.lock().unwrap().version = 500;
    server.lock().unwrap().put(&json!({}));
    server.lock().unwrap().version = 2000;
    for _ in 0..2 {
        let found = renew().await.unwrap();
        assert_eq!(found.metadata.resource_version.as_deref(), Some("501"));
    }
    assert_eq!(server.lock().unwrap().writes, writes);
    let fallen = WentBack {
        before: 1002,
        now: 501,
    };
    assert_eq!(*seen.went_back.borrow(), Some(fallen));
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_store_goes_back_and_on_ends() {
    for looks_first in [Duration::ZERO, RETRY / 2] {
        let (client, server) = server();
        server.lock().unwrap().version = 1000;
        let mut leadership = lead(&client, by_default()).await;
        let restored = async {
            tokio::time::sleep(DURATION + looks_first).await;
            let mut server = server.lock().unwrap();
            server.version = 500;
            server.put(&json!({}));
            server.version = 2000;
        };
        let lost = tokio::join!(restored, leadership.lost()).1;
        assert!(
            matches!(lost, LeaseError::WentBack(WentBack { now: 501, .. })),
            "{lost}"
        );
    }
}
