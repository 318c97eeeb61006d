use std::cell::RefCell;
use std::fs;

use super::*;

/// A container: its root, /proc, a volume that gets the node's mounts, and one that shares its own
/// with the node.
const FRESH: &str = "\
100 50 0:40 / / rw,relatime - overlay overlay rw
101 100 0:41 / /proc rw - proc proc rw
102 100 8:1 /vol/a /volume rw master:7 - ext4 /dev/sda1 rw
103 100 8:1 /vol/b /both rw shared:8 - ext4 /dev/sda1 rw
";

/// A list of mounts, and an undo that removes the last line of a place, and what is mounted below
/// it.
struct Fake {
    dir: tempfile::TempDir,
    calls: RefCell<Vec<String>>,
}

impl Fake {
    fn new(text: &str) -> Self {
        let fake = Self {
            dir: tempfile::tempdir().expect("tempdir"),
            calls: RefCell::default(),
        };
        fs::write(fake.list(), text).expect("the list");
        fake
    }

    fn list(&self) -> PathBuf {
        self.dir.path().join("mountinfo")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.list()).expect("the list")
    }

    fn mounts(&self) -> Mounts {
        Mounts::listed_in(self.list())
    }

    fn mount(&self, lines: &str) {
        fs::write(self.list(), self.text() + lines).expect("the list");
    }

    fn undo(&self, mounts: &mut Mounts) -> Option<String> {
        mounts.undo_with(|point| {
            self.calls.borrow_mut().push(point.display().to_string());
            let (all, _) = read(&self.list()).expect("the list");
            let top = all
                .iter()
                .rfind(|mount| mount.point == point)
                .ok_or(ErrorKind::NotFound)?;
            let mut gone = BTreeSet::from([top.id]);
            gone.extend(
                all.iter()
                    .filter(|mount| mount.parent == top.id)
                    .map(|mount| mount.id),
            );
            let text = self.text();
            let kept = text
                .lines()
                .filter(|line| !gone.iter().any(|id| line.starts_with(&format!("{id} "))));
            fs::write(
                self.list(),
                kept.map(|line| format!("{line}\n")).collect::<String>(),
            )
            .expect("the list");
            Ok(())
        })
    }
}

#[test]
fn what_the_worker_mounted_is_undone_and_nothing_else() {
    let fake = Fake::new(FRESH);
    let mut mounts = fake.mounts();
    assert_eq!(fake.undo(&mut mounts), None);
    // Two stacked, one within the upper of them, one with a space in its name, one within the
    // volume that follows the node.
    fake.mount(
        "110 100 0:50 / /scratch rw - tmpfs none rw
111 110 0:51 / /scratch rw - tmpfs none rw
112 111 0:52 / /scratch/in rw - tmpfs none rw
113 100 0:53 / /my\\040data rw - fuse f rw
114 102 0:54 / /volume/own rw - tmpfs none rw
",
    );
    let line = fake.undo(&mut mounts).expect("there is something to say");
    assert!(
        line.starts_with(
            "undid mounts of the last attempt: 4 (\"/volume/own\", \"/my data\", \"/scratch\", and 1 more)"
        ),
        "{line}"
    );
    assert_eq!(fake.text(), FRESH);
    assert_eq!(
        *fake.calls.borrow(),
        ["/volume/own", "/my data", "/scratch", "/scratch"]
    );
    assert_eq!(fake.undo(&mut mounts), None);
}

#[test]
fn what_the_node_mounts_into_a_volume_stays() {
    let fake = Fake::new(FRESH);
    let mut mounts = fake.mounts();
    let nodes = "110 102 0:50 / /volume/bucket rw master:9 - fuse f rw
111 103 0:51 / /both/bucket rw shared:10 - fuse f rw
";
    fake.mount(nodes);
    assert_eq!(fake.undo(&mut mounts), None);
    assert_eq!(fake.text(), format!("{FRESH}{nodes}"));
    // A worker's mount on top of such a mount is undone by itself.
    fake.mount("112 110 0:52 / /volume/bucket/own rw - tmpfs none rw\n");
    fake.undo(&mut mounts).expect("one is undone");
    assert_eq!(fake.text(), format!("{FRESH}{nodes}"));
}

#[test]
fn a_worker_that_shares_its_mounts_with_itself_changes_nothing() {
    let fake = Fake::new(FRESH);
    let mut mounts = fake.mounts();
    let own = FRESH.replace("/ / rw,relatime -", "/ / rw,relatime shared:20 -");
    fs::write(fake.list(), &own).expect("the list");
    fake.mount("110 100 0:50 / /scratch rw shared:21 - tmpfs none rw\n");
    fake.undo(&mut mounts).expect("one is undone");
    assert_eq!(fake.text(), own);
}

#[test]
fn mounts_of_the_container_that_the_worker_moved_or_replaced() {
    let fake = Fake::new(FRESH);
    let mut mounts = fake.mounts();
    // The volume is elsewhere now; /proc is gone, and a file system of the worker has its ID.
    let moved = FRESH.replace("/volume", "/elsewhere").replace(
        "101 100 0:41 / /proc rw - proc proc rw\n",
        "101 100 0:60 / /tmp rw - tmpfs none rw\n",
    );
    fs::write(fake.list(), moved).expect("the list");
    fake.undo(&mut mounts).expect("one is undone");
    assert_eq!(*fake.calls.borrow(), ["/tmp"]);
}

#[test]
fn mounts_that_cannot_be_undone_are_logged_once() {
    let fake = Fake::new(FRESH);
    let mut mounts = fake.mounts();
    fake.mount("110 100 0:50 / /a rw - tmpfs none rw\n111 100 0:51 / /b rw - tmpfs none rw\n");
    let tries = RefCell::new(0);
    let mut undo = || {
        mounts.undo_with(|_| {
            *tries.borrow_mut() += 1;
            Err(ErrorKind::PermissionDenied.into())
        })
    };
    let line = "mounts of the last attempt that remain (not permitted to undo): 2";
    assert_eq!(undo().as_deref(), Some(line));
    assert_eq!(undo(), None);
    assert_eq!(*tries.borrow(), 2, "one refusal is enough");
}

#[test]
fn a_number_without_end_ends() {
    let fake = Fake::new(FRESH);
    let mut mounts = fake.mounts();
    // Mounts that come again as soon as they are undone, and more than are undone at a time.
    let many: String = (0..MAX_UNDONE + 5)
        .map(|at| format!("{} 100 0:50 / /m{at} rw - tmpfs none rw\n", 1000 + at))
        .collect();
    fake.mount(&many);
    let calls = RefCell::new(0);
    let line = mounts.undo_with(|_| {
        *calls.borrow_mut() += 1;
        Ok(())
    });
    let line = line.expect("there is something to say");
    assert_eq!(*calls.borrow(), MAX_UNDONE);
    assert!(line.contains("and 9997 more); "), "{line}");
    assert!(
        line.contains("mounts of the last attempt that remain: "),
        "{line}"
    );
}

#[test]
fn without_the_whole_list_nothing_is_undone() {
    let fake = Fake::new(FRESH);
    let long: String = (0..MAX_TEXT / 32)
        .map(|at| format!("{} 100 0:50 / /m{at} rw - tmpfs none rw\n", 1000 + at))
        .collect();
    fake.mount(&long);
    assert!(fake.mounts().before.is_none());
    let mut none = Mounts::listed_in(fake.dir.path().join("none"));
    assert_eq!(none.undo_with(|_| Ok(())), None);
}

#[test]
fn lines_of_any_kind() {
    for broken in [
        "",
        "1",
        "1 2 0:1 /",
        "x 2 0:1 / /p rw - t s rw",
        "1 x 0:1 / /p rw - t s rw",
    ] {
        assert_eq!(Mount::parse(broken.as_bytes()), None, "{broken:?}");
    }
    let place = |text: &str| unescape(text.as_bytes());
    assert_eq!(place("/a\\040b\\134c\\011"), b"/a b\\c\t");
    assert_eq!(place("/a\\9\\04"), b"/a\\9\\04");
}

#[test]
fn the_mounts_of_this_process_are_listed() {
    let (mounts, whole) = read(Path::new("/proc/self/mountinfo")).expect("the list");
    assert!(whole && mounts.iter().any(|mount| mount.point == Path::new("/")));
}
