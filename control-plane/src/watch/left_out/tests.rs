use super::*;

fn jobset(name: &str) -> ObjectRef<JobSet> {
    ObjectRef::new(name).within("ns")
}

#[test]
fn what_a_complete_list_brings_is_no_longer_left_out() {
    let left_out = LeftOut::default();
    let event = |event: Event<()>| left_out.follow(&Ok(event));
    event(Event::Init);
    left_out.tell(jobset("a"), "a-0", true);
    event(Event::InitDone);
    left_out.tell(jobset("b"), "b-0", true);
    assert!(left_out.has(&jobset("a")) && left_out.has(&jobset("b")));
    event(Event::Init);
    left_out.tell(jobset("b"), "b-0", true);
    assert!(left_out.has(&jobset("a")), "the list is not complete yet");
    event(Event::InitDone);
    assert!(!left_out.has(&jobset("a")) && left_out.has(&jobset("b")));
}

#[test]
fn a_jobset_is_seen_whole_once_the_last_of_it_is_kept_or_gone() {
    let left_out = LeftOut::default();
    for name in ["w-0", "w-1"] {
        left_out.tell(jobset("js"), name, true);
    }
    left_out.tell(jobset("js"), "w-0", false);
    left_out.tell(jobset("other"), "w-1", false);
    assert!(left_out.has(&jobset("js")));
    left_out.tell(jobset("js"), "w-1", false);
    assert!(!left_out.has(&jobset("js")));
    assert!(left_out.locked().now.is_empty());
}
