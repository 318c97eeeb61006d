//! The worker starts as if there were no agent.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::rig::*;

/// Prints what a process inherits.
const INSPECT: &str = "
    grep -E '^(Uid|Gid|Groups|NoNewPrivs|Seccomp|Sig(Blk|Ign|Cgt)|Cap...):' /proc/self/status
    ls /proc/self/fd
    for fd in 0 1 2; do readlink /proc/self/fd/$fd | sed 's,/tmp/[^/]*,DIR,; s,[0-9]*\\],N],'; done
    cat /proc/self/oom_score_adj /proc/self/limits /proc/self/cgroup
    umask
    nice
    env | grep -vE '^(_|PWD|OLDPWD)=' | sort
    printf '%s\\n' \"$0\" \"$@\"";

#[test]
fn everything_else_is_the_workers_own() {
    let wrapper = [
        "env",
        "-i",
        "PATH=/usr/bin:/bin",
        "HOME=/nowhere",
        "ODD=two words",
        "nice",
        "-n",
        "3",
        "setpriv",
        "--inh-caps=-kill",
        "--bounding-set=-kill",
    ];
    let worker = ["sh", "-c", INSPECT, "arg 0", "--", "--socket", ""];

    let direct = tempfile::tempdir().expect("tempdir");
    let file = |name| fs::File::create(direct.path().join(name)).expect("file");
    let status = Command::new("env")
        .args([
            "--default-signal",
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            "--",
        ])
        .args(wrapper)
        .args(worker)
        .current_dir(direct.path())
        .stdin(Stdio::null())
        .stdout(file("out"))
        .stderr(file("err"))
        .status()
        .expect("unshare");
    assert!(status.success());
    let expected = fs::read_to_string(direct.path().join("out")).expect("out");

    let rig = command(&worker).under(&wrapper).start();
    let mut daemon = rig.accept();
    daemon.send(first());
    daemon.rest();
    let (extra, same): (Vec<_>, Vec<_>) = rig
        .out()
        .lines()
        .map(str::to_owned)
        .partition(|line| line.starts_with("LOCKSTEP"));
    assert_eq!(extra, ["LOCKSTEP_RESTART_ATTEMPT=0"]);
    assert_eq!(same, expected.lines().collect::<Vec<_>>());
    assert!(
        expected.contains("SigBlk:") && expected.contains("ODD=two words"),
        "{expected}"
    );
}

#[test]
fn the_program_is_looked_up_in_the_containers_path() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("work er");
    fs::write(&path, "#!/bin/sh\necho found as $0\n").expect("script");
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    let line = format!("PATH={}:/usr/bin:/bin", dir.path().display());
    let rig = command(&["work er"]).under(&["env", &line]).start();
    let mut daemon = rig.accept();
    daemon.send(first());
    daemon.rest();
    assert_eq!(rig.out(), format!("found as {}\n", path.display()));
}

#[test]
fn with_a_terminal_the_worker_has_its_foreground() {
    let rig = script("").start();
    // Another agent, on a terminal of its own, which the test types into.
    let text = format!(
        "exec unshare --pid --fork --mount-proc {AGENT} --socket {} --container w --container-id tty -- sh -c 'echo ready; read line; echo got $line'",
        rig.path("agent.sock").display()
    );
    let mut terminal = Command::new("script")
        .args(["--quiet", "--flush", "--return", "--command", &text, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(fs::File::create(rig.path("tty")).expect("tty"))
        .spawn()
        .expect("script");
    let tty = || fs::read_to_string(rig.path("tty")).expect("tty");
    let mut daemon = rig.accept();
    if daemon.register.container_id != "tty" {
        daemon = rig.accept();
    }
    daemon.send(first());
    eventually("the worker's prompt", || tty().contains("ready").then_some(()));
    terminal
        .stdin
        .as_mut()
        .expect("stdin")
        .write_all(b"hello\n")
        .expect("type");
    eventually("the worker's answer", || {
        tty().contains("got hello").then_some(())
    });
    let status = terminal.wait().expect("wait");
    assert!(status.success(), "{status}");
}
