use super::*;

fn jobset(name: &str) -> ObjectRef<JobSet> {
    ObjectRef::new(name).within("ns")
}

/// A watch of the objects of some JobSets.
#[derive(Default)]
struct World {
    left_out: LeftOut,
}

impl World {
    fn begins_list(&self) {
        self.left_out.followed(&Event::<()>::Init);
    }

    fn lists(&self, of: &str, name: &str, is_left_out: bool) {
        self.left_out.tell(&jobset(of), name, is_left_out);
        self.left_out.followed(&Event::InitApply(()));
    }

    fn ends_list(&self) {
        self.left_out.followed(&Event::<()>::InitDone);
    }

    fn leaves_out(&self, of: &str, name: &str) {
        self.left_out.tell(&jobset(of), name, true);
    }

    fn keeps(&self, of: &str, name: &str) {
        self.left_out.tell(&jobset(of), name, false);
        self.left_out.followed(&Event::Apply(()));
    }

    fn has(&self, of: &str) -> bool {
        self.left_out.has(&jobset(of))
    }

    fn is_empty(&self) -> bool {
        let known = self.left_out.locked();
        known.now.0.is_empty() && known.listed.is_none() && known.ended.is_empty()
    }
}

#[test]
fn objects_of_a_complete_list_are_no_longer_left_out() {
    let world = World::default();
    world.begins_list();
    world.lists("a", "a-0", true);
    world.ends_list();
    world.leaves_out("b", "b-0");
    assert!(world.has("a") && world.has("b"));
    world.begins_list();
    world.lists("b", "b-0", true);
    world.lists("a", "a-0", false);
    assert!(
        world.has("a"),
        "the cache does not show it before the list is complete"
    );
    world.ends_list();
    assert!(!world.has("a") && world.has("b"));
}

#[test]
fn an_interrupted_list_changes_nothing() {
    let world = World::default();
    world.leaves_out("a", "a-0");
    world.begins_list();
    world.lists("a", "a-0", false);
    world.begins_list();
    assert!(world.has("a"));
    world.lists("a", "a-0", true);
    world.ends_list();
    assert!(world.has("a"));
}

#[test]
fn a_jobset_is_complete_once_the_cache_has_its_last_object() {
    let world = World::default();
    world.leaves_out("js", "w-0");
    world.leaves_out("js", "w-1");
    world.keeps("js", "w-0");
    assert!(world.has("js"));
    world.left_out.tell(&jobset("js"), "w-1", false);
    assert!(world.has("js"), "the cache has not followed yet");
    world.left_out.followed(&Event::Apply(()));
    assert!(!world.has("js") && world.is_empty());
}

#[test]
fn a_relabelled_object_belongs_only_to_its_new_jobset() {
    let world = World::default();
    for number in 0..3 {
        world.leaves_out(&format!("js-{number}"), "w");
    }
    assert!(!world.has("js-0") && !world.has("js-1") && world.has("js-2"));
    world.keeps("other", "w");
    assert!(!world.has("js-2") && world.is_empty());
}

#[test]
fn no_jobset_is_complete_if_too_many_objects_are_left_out() {
    let world = World::default();
    for number in 0..=MOST {
        world.leaves_out("js", &format!("w-{number}"));
    }
    assert!(world.has("other") && !world.left_out.has(&ObjectRef::new("js").within("neighbours")));
    for number in 0..=MOST {
        world.keeps("js", &format!("w-{number}"));
    }
    assert!(world.has("other"), "the next list says it");
    world.begins_list();
    world.ends_list();
    assert!(!world.has("other") && world.is_empty());
}
