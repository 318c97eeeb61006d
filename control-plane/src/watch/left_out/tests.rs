use super::*;

fn jobset(name: &str) -> ObjectRef<JobSet> {
    ObjectRef::new(name).within("ns")
}

#[test]
fn what_a_complete_list_brings_is_no_longer_left_out() {
    let left_out = LeftOut::default();
    let event = |event: Event<()>| left_out.follow(&Ok(event));
    event(Event::Init);
    left_out.add(Some(jobset("a")));
    event(Event::InitDone);
    left_out.add(Some(jobset("b")));
    left_out.add(None);
    assert!(left_out.has(&jobset("a")) && left_out.has(&jobset("b")));
    event(Event::Init);
    left_out.add(Some(jobset("b")));
    assert!(left_out.has(&jobset("a")), "the list is not complete yet");
    event(Event::InitDone);
    assert!(!left_out.has(&jobset("a")) && left_out.has(&jobset("b")));
}
