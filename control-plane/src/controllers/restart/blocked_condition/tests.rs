use super::*;

fn by(pod: &str) -> Blockage {
    Blockage::By(Blocked {
        reason: BlockedReason::NodeLost,
        pod: pod.to_owned(),
        node: "n1".to_owned(),
    })
}

fn none(_: &str) -> Option<String> {
    None
}

fn at(seconds: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(seconds).unwrap()
}

#[test]
fn a_group_that_was_never_blocked_is_not_written() {
    let jobset = JobSet::default();
    assert_eq!(conditions(&jobset, &Blockage::Clear, none, at(1)), None);
    assert_eq!(conditions(&jobset, &Blockage::Unknown, none, at(1)), None);
}

#[test]
fn it_is_written_once_when_it_begins_changes_and_ends() {
    let mut jobset = JobSet::default();
    let other = Condition {
        type_: "Suspended".to_owned(),
        ..conditions(&jobset, &by("a"), none, at(0)).unwrap().remove(0)
    };
    jobset.status.get_or_insert_default().conditions = vec![other.clone()];
    let mut step = |blockage: &Blockage, seconds| {
        let changed = conditions(&jobset, blockage, none, at(seconds))?;
        assert_eq!(changed[0], other, "what others say stays");
        jobset
            .status
            .get_or_insert_default()
            .conditions
            .clone_from(&changed);
        let condition = changed[1].clone();
        Some((
            condition.status,
            condition.reason,
            condition.last_transition_time.0,
        ))
    };
    let expected =
        |status: &str, reason: &str, seconds| Some((status.to_owned(), reason.to_owned(), at(seconds)));
    assert_eq!(step(&by("a"), 1), expected("True", "NodeLost", 1));
    assert_eq!(step(&by("a"), 2), None);
    assert_eq!(step(&Blockage::Unknown, 3), None);
    assert_eq!(step(&by("b"), 4), expected("True", "NodeLost", 1));
    assert_eq!(step(&Blockage::Clear, 5), expected("False", "Unblocked", 5));
    assert_eq!(step(&Blockage::Clear, 6), None);
    assert_eq!(step(&by("b"), 7), expected("True", "NodeLost", 7));
}

#[test]
fn where_no_agent_gets_into_containers_the_reason_is_the_daemons() {
    let jobset = JobSet::default();
    let said = |reason| {
        let blocked = Blockage::By(Blocked {
            reason,
            pod: "p".to_owned(),
            node: "n1".to_owned(),
        });
        let why = |node: &str| (node == "n1").then(|| "NRI is too small".to_owned());
        conditions(&jobset, &blocked, why, at(1))
            .unwrap()
            .remove(0)
            .message
    };
    let message = said(BlockedReason::WorkerNotReported);
    assert!(
        message.ends_with("containers there: NRI is too small"),
        "{message}"
    );
    assert!(!said(BlockedReason::NodeLost).contains("NRI"));
}
