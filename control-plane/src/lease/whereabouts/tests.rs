use serde_json::{Value, json};

use super::*;

const LASTS: Duration = Duration::from_secs(15);

fn lease(holder: Value, address: &str) -> Lease {
    let lease = json!({
        "metadata": {"annotations": {HUB_ADDRESS: address}},
        "spec": {"holderIdentity": holder},
    });
    serde_json::from_value(lease).unwrap()
}

fn whereabouts(lease: &Lease, own: Option<&str>) -> Whereabouts {
    let (sender, known) = watch::channel(read(lease, LASTS));
    // What was sent stays.
    drop(sender);
    Whereabouts {
        known,
        own: own.map(|own| own.parse().unwrap()),
    }
}

#[tokio::test(start_paused = true)]
async fn the_leader_is_where_it_says_until_its_lease_has_run_out() {
    let known = whereabouts(&lease(json!("pod-a"), "10.0.0.1:9444"), Some("10.0.0.2:9444"));
    assert_eq!(known.get(), Some("10.0.0.1:9444".parse().unwrap()));
    assert_eq!(known.holder().as_deref(), Some("pod-a"));
    tokio::time::advance(LASTS).await;
    assert_eq!((known.get(), known.holder()), (None, None));
}

#[tokio::test]
async fn nobody_is_sent_to_where_no_leader_is() {
    let known = whereabouts(&lease(json!(null), "10.0.0.1:9444"), None);
    assert_eq!(known.get(), None, "it was given up");
    let known = whereabouts(&lease(json!("pod-a"), ""), None);
    assert_eq!(known.get(), None, "it does not say");
    let known = whereabouts(&lease(json!("pod-a"), "[fd00::1]:9444"), Some("[fd00::1]:9444"));
    assert_eq!(known.get(), None, "this replica does not lead any more");
    assert_eq!(Whereabouts::unknown().get(), None);
}

#[tokio::test]
async fn the_leader_has_a_name_wherever_it_is() {
    let known = whereabouts(&lease(json!("pod-a_1700000000"), ""), None);
    assert_eq!(
        known.holder().as_deref(),
        Some("pod-a"),
        "without the number of its process"
    );
    let known = whereabouts(&lease(json!(""), "10.0.0.1:9444"), None);
    assert_eq!(known.holder(), None, "it was given up");
}
