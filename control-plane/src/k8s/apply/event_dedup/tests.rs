use lockstep_api::JobSet;
use lockstep_core::jobset::plan::Severity;

use super::*;

fn jobset(uid: &str) -> JobSet {
    let mut jobset = JobSet::default();
    jobset.metadata.name = Some("js".to_owned());
    jobset.metadata.uid = Some(uid.to_owned());
    jobset
}

fn event(message: &str) -> Event {
    Event {
        severity: Severity::Warning,
        reason: "JobCreationFailed".to_owned(),
        message: message.to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_is_told_once_and_again_when_the_event_may_be_gone() {
    let (told, js) = (Told::default(), jobset("u"));
    let (a, b) = (event("a"), event("b"));
    assert!(!told.goes_on(&ObjectRef::from_obj(&js)));
    assert_eq!(told.news(&js, vec![a.clone()]), vec![a.clone()]);
    assert!(told.goes_on(&ObjectRef::from_obj(&js)));
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(300)).await;
        assert_eq!(told.news(&js, vec![a.clone()]), []);
    }
    // Only what is new.
    assert_eq!(told.news(&js, vec![a.clone(), b.clone()]), vec![b.clone()]);
    tokio::time::advance(Duration::from_secs(1000)).await;
    assert_eq!(told.news(&js, vec![a.clone(), b]), vec![a]);
}

#[tokio::test(start_paused = true)]
async fn what_is_told_once_is_not_told_again_unless_it_was_away_or_the_object_is_another() {
    let (told, js, a) = (Told::once(), jobset("u"), event("a"));
    assert_eq!(told.news(&js, vec![a.clone()]).len(), 1);
    tokio::time::advance(Duration::from_secs(1_000_000)).await;
    assert_eq!(told.news(&js, vec![a.clone()]), []);
    assert_eq!(told.news(&jobset("v"), vec![a.clone()]).len(), 1);
    told.forget(&ObjectRef::from_obj(&js));
    assert_eq!(told.news(&js, vec![a]).len(), 1);
}

#[tokio::test]
async fn what_was_away_is_news_and_so_is_all_about_another_jobset() {
    let (told, js) = (Told::default(), jobset("u"));
    let a = event("a");
    assert_eq!(told.news(&js, vec![a.clone()]).len(), 1);
    assert_eq!(told.news(&js, Vec::new()), []);
    assert_eq!(told.news(&js, vec![a.clone()]).len(), 1);
    assert_eq!(told.news(&jobset("v"), vec![a.clone()]).len(), 1);
    told.forget(&ObjectRef::from_obj(&js));
    assert!(told.locked().is_empty());
}
