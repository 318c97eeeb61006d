use serde_json::{Value, json};

use super::*;

const LASTS: Duration = Duration::from_secs(15);
const EVERY: Duration = Duration::from_secs(2);

fn lease(holder: Value, address: &str) -> Lease {
    let lease = json!({
        "metadata": {"annotations": {HUB_ADDRESS: address}},
        "spec": {"holderIdentity": holder},
    });
    serde_json::from_value(lease).unwrap()
}

fn leader_address(lease: &Lease, own: Option<&str>) -> LeaderAddress {
    let (sender, known) = watch::channel(read(lease, LASTS, EVERY));
    // A message that was sent stays.
    drop(sender);
    LeaderAddress {
        known,
        own: this(own),
    }
}

fn this(hub: Option<&str>) -> OwnReplica {
    OwnReplica {
        holder: "this_1".to_owned(),
        hub: hub.map(|hub| hub.parse().unwrap()),
    }
}

#[tokio::test(start_paused = true)]
async fn the_leaders_address_holds_until_its_lease_expires() {
    let known = leader_address(&lease(json!("pod-a"), "10.0.0.1:9444"), Some("10.0.0.2:9444"));
    assert_eq!(known.get(), Some("10.0.0.1:9444".parse().unwrap()));
    assert_eq!(known.holder().as_deref(), Some("pod-a"));
    tokio::time::advance(LASTS).await;
    assert_eq!((known.get(), known.holder()), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_does_not_renew_its_lease_is_doubted() {
    let held = |address| read(&lease(json!("pod-a"), address), LASTS, EVERY);
    let (sender, known) = watch::channel(held("10.0.0.1:9444"));
    let leader_address = LeaderAddress {
        known,
        own: this(Some("10.0.0.2:9444")),
    };
    let is_renewed = async || {
        let wait = tokio::time::timeout(Duration::ZERO, leader_address.renewed());
        wait.await.is_ok()
    };
    assert!(is_renewed().await);
    tokio::time::advance(EVERY + LATE).await;
    assert!(!is_renewed().await);
    assert!(leader_address.get().is_some(), "its lease has not run out");
    // It was only late.
    sender.send_replace(held("10.0.0.1:9444"));
    assert!(is_renewed().await);
    let (mut new, mut own) = (held(""), held(""));
    // The next holder is this replica, none, or one that has just taken the Lease.
    if let (Some(new), Some(own)) = (&mut new, &mut own) {
        new.hub = Hub::NotWrittenYet;
        own.holder = "this_1".to_owned();
    }
    for next in [held("10.0.0.2:9444"), None, new, own] {
        sender.send_replace(next);
        assert!(!is_renewed().await);
    }
    sender.send_replace(held("10.0.0.3:9444"));
    assert!(is_renewed().await);
    // Its address is unknown: waiting does not help.
    sender.send_replace(held(""));
    assert!(is_renewed().await);
    assert_eq!(leader_address.get(), None);
}

#[tokio::test]
async fn no_caller_is_redirected_without_a_leader() {
    let known = leader_address(&lease(json!(null), "10.0.0.1:9444"), None);
    assert_eq!(known.get(), None, "it was released");
    let known = leader_address(&lease(json!("pod-a"), ""), None);
    assert_eq!(known.get(), None, "it does not say");
    let known = leader_address(&lease(json!("pod-a"), "[fd00::1]:9444"), Some("[fd00::1]:9444"));
    assert_eq!(known.get(), None, "this replica no longer leads");
    assert_eq!(LeaderAddress::unknown().get(), None);
}

#[tokio::test]
async fn the_leaders_name_is_known_without_its_address() {
    let known = leader_address(&lease(json!("pod-a_1700000000"), ""), None);
    assert_eq!(
        known.holder().as_deref(),
        Some("pod-a"),
        "without the number of its process"
    );
    let known = leader_address(&lease(json!(""), "10.0.0.1:9444"), None);
    assert_eq!(known.holder(), None, "it was released");
}

#[test]
fn a_new_holder_does_not_have_the_address_of_the_former_one() {
    let lease = |holder: &str, process: Option<&str>| -> Lease {
        let lease = json!({
            "metadata": {"annotations": {super::super::LEADER_PROCESS: process}},
            "spec": {"holderIdentity": holder},
        });
        let mut lease: Lease = serde_json::from_value(lease).unwrap_or_default();
        if process.is_none() {
            lease.metadata.annotations = None;
            lease.spec.get_or_insert_default().holder_identity = Some(holder.to_owned());
        }
        lease
    };
    let mut claim = Claim::default();
    for (holder, process, taken) in [
        ("a", Some("7"), true),
        ("a", Some("7"), true),
        ("b", Some("7"), false),
        ("b", Some("7"), false),
        ("b", Some("9"), true),
        ("b", Some("9"), true),
        // The same pod with another process.
        ("b", Some("11"), true),
        // A replica of a version that names no process.
        ("c", None, true),
        ("d", None, true),
    ] {
        assert_eq!(
            claim.is_taken_by(&lease(holder, process)),
            taken,
            "{holder} {process:?}"
        );
    }
}
