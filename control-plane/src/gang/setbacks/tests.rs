use super::*;

fn jobset() -> JobSet {
    let mut jobset = JobSet::default();
    jobset.metadata.name = Some("js".to_owned());
    jobset.metadata.uid = Some("u".to_owned());
    jobset
}

#[tokio::test(start_paused = true)]
async fn what_fails_again_and_again_is_told_once_and_anew_after_it_worked() {
    let (mut failures, js) = (Failures::default(), jobset());
    let object = ObjectRef::from_obj(&js);
    let fail = |failures: &mut Failures| failures.add(&js, "PodGroup a: exists".to_owned());
    for round in 0..2 {
        assert_eq!(fail(&mut failures), None, "{round}");
        assert_eq!(fail(&mut failures), None, "{round}");
        let told = fail(&mut failures).unwrap();
        assert_eq!(told.reason, "GangNotStarted");
        assert_eq!(told.message, "PodGroup a: exists");
        assert_eq!(fail(&mut failures), None, "{round}");
        failures.forget(&object);
        assert!(!failures.keeps_off(&object));
        assert_eq!(failures.next(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_tried_again_ever_more_slowly_and_within_half_a_minute() {
    let (mut failures, js) = (Failures::default(), jobset());
    let object = ObjectRef::from_obj(&js);
    let mut before = Duration::ZERO;
    for _ in 0..20 {
        failures.add(&js, "busy".to_owned());
        assert!(failures.keeps_off(&object));
        let wait = failures.next().unwrap();
        assert!(before <= wait && wait <= LONGEST, "{before:?}, then {wait:?}");
        tokio::time::advance(wait).await;
        assert!(!failures.keeps_off(&object));
        assert_eq!(failures.next(), None);
        before = wait;
    }
    assert_eq!(before, LONGEST);
}
