use super::*;

#[test]
fn a_start_says_what_was_ahead() {
    let said = |standby, cold| {
        started(pb::Starts {
            standby,
            cold,
            ahead_ms: 1234,
        })
    };
    assert_eq!(said(0, 0), None);
    assert_eq!(said(0, 3).as_deref(), Some("started cold"));
    assert_eq!(said(1, 0).as_deref(), Some("started from standby (1.2 s ahead)"));
    assert_eq!(
        said(4, 1).as_deref(),
        Some("4 of 5 started from standby (1.2 s ahead)")
    );
}

#[test]
fn standbys_are_counted_with_the_reason_for_missing_ones() {
    let said = |ready, wanted, reason: &str| {
        standbys(&pb::Standbys {
            wanted,
            ready,
            reason: reason.to_owned(),
            ..pb::Standbys::default()
        })
    };
    assert_eq!(said(1, 1, ""), "standby ready");
    assert_eq!(said(4, 4, ""), "4 standbys ready");
    assert_eq!(said(0, 1, ""), "0 of 1 standbys ready");
    assert_eq!(
        said(2, 4, "memory is short"),
        "2 of 4 standbys ready: memory is short"
    );
    assert_eq!(said(0, 0, "sh is no Python"), "no standby: sh is no Python");
    assert_eq!(said(0, 0, ""), "no standby");
}
