//! Standbys that cannot serve: the attempt is cold, and users read why.

use super::*;

#[test]
fn a_file_that_takes_the_place_of_a_module_makes_the_attempt_cold() {
    let mut worker = Program::new(&PATIENT.replace("tell()", "tell(file=slow.__file__)")).start();
    worker.ready();
    let standby = worker.standby();
    fs::write(worker.rig.path("slow.py"), "").expect("write");
    assert_eq!(worker.restart(), cold());
    assert_ne!(worker.pid(), standby.inner);
    assert_eq!(
        worker.told("file"),
        worker.rig.path("slow.py").display().to_string()
    );
    let reason = "a file of the program has the name of module slow, which was imported ahead";
    worker.rig.await_err(reason);
    // The next one leaves the module out.
    worker.ready();
    assert!(is_from_standby(worker.restart()));
    assert!(!worker.found_imported("slow"));
    assert_eq!(
        worker.told("file"),
        worker.rig.path("slow.py").display().to_string()
    );
    assert_eq!(worker.rig.err().matches(reason).count(), 1);
    worker.assert_no_complaints();
}

#[test]
fn a_refusal_is_reported_until_there_is_another_standby() {
    let text = PATIENT.replace(
        "beat()",
        "while ATTEMPT != '0' and not os.path.exists('up'): time.sleep(0.01)\nbeat()",
    );
    let mut worker = Program::new(&text).start();
    worker.ready();
    fs::write(worker.rig.path("slow.py"), "").expect("write");
    assert_eq!(worker.restart(), cold());
    let standbys = worker
        .reason("the name of module slow")
        .standbys
        .expect("standbys");
    assert_eq!((standbys.wanted, standbys.ready, standbys.modules), (1, 0, 0));
    fs::write(worker.rig.path("up"), "").expect("write");
    let standbys = worker.ready().standbys.expect("standbys");
    assert_eq!(standbys.reason, "");
}

#[test]
fn modules_that_cannot_be_imported_ahead_are_left_out_one_after_the_other() {
    let text = PATIENT.replace("import slow", "import slow, opens, writes, crashes");
    let opens = "import socket\nopen = socket.socket()\nopen.bind(('127.0.0.1', 0))\nopen.listen()";
    let only_ahead = "import os\nif open('/proc/self/oom_score_adj').read() == '1000\\n': os.abort()";
    let mut worker = Program::new(&text)
        .module("opens", opens)
        .module("writes", "file = open('written', 'a')")
        .module("crashes", only_ahead)
        .start();
    let standbys = worker.ready().standbys.expect("standbys");
    assert_eq!((standbys.wanted, standbys.reason.as_str()), (1, ""));
    assert!(is_from_standby(worker.restart()));
    assert!(worker.found_imported("slow"));
    for name in ["opens", "writes", "crashes"] {
        assert!(!worker.found_imported(name), "{name}");
    }
    let err = worker.rig.err();
    let written = worker.rig.path("written");
    for why in [
        "opens is not imported ahead: it opens a port".to_owned(),
        format!(
            "writes is not imported ahead: it opens {} to write",
            written.display()
        ),
        "crashes is not imported ahead: it ended while it was imported".to_owned(),
    ] {
        let line = format!("lockstep: no standby for now: module {why}\n");
        assert_eq!(err.matches(&line).count(), 1, "{line}: {err}");
    }
}

#[test]
fn an_import_that_closes_what_the_agent_hears_ends_the_standby() {
    let closes = "import os\nif open('/proc/self/oom_score_adj').read() == '1000\\n':\n    os.closerange(3, 64)\n    while True: os.read(0, 0) or __import__('time').sleep(1)";
    let text = PATIENT.replace("import slow", "import slow, closes");
    let mut worker = Program::new(&text).module("closes", closes).start();
    // It is not waited for, nor listened to in vain.
    worker.reason("killed by signal 9");
    let standbys = worker.reason("").standbys.expect("standbys");
    assert_eq!(standbys.wanted, 1);
    assert_eq!(worker.restart(), cold());
}
