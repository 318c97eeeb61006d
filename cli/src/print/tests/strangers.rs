//! Untrusted text stays in its place: each view, with each of its texts forged.

use super::*;
use crate::print::visible::{CELL, MESSAGE, is_plain};
use crate::view::dry_run::{self as tried, DryRun, Effect};

/// Clears the screen, sets the title, colours, reverses and hides text, and begins a line that
/// looks like one of this program.
const FORGED: &str = "\x1b[2J\x1b]0;owned\x07\u{9b}32m\x1b[32m\u{202e}\u{2066}\u{200b}x\r\nteam/other  InSync  generation 0\x7f\u{8}";
/// How it is shown.
const SHOWN: &str = r"\x1b[2J\x1b]0;owned\x07\x9b32m\x1b[32m\u{202e}\u{2066}\u{200b}x\r\nteam/other  InSync  generation 0\x7f\x08";

/// Checks that the text has this many lines, is plain, and shows the forged text.
fn holds(text: &str, lines: usize) {
    assert!(is_plain(text), "{text:?}");
    assert_eq!(text.lines().count(), lines, "{text}");
    assert!(text.contains(SHOWN), "{text}");
}

fn forged() -> String {
    FORGED.to_owned()
}

#[test]
fn in_a_status() {
    let view = |text: &dyn Fn(&str) -> String| {
        let mut view = ring();
        (view.namespace, view.name) = (text("team"), text("ring"));
        (view.phase, view.kind) = (text("InSync"), text("Plain"));
        view.messages = vec![text("Failed: no")];
        if let Some(last) = &mut view.last_restart {
            (last.message, last.level) = (text("it failed"), Some(text("Process")));
        }
        let job = &mut view.replicated_jobs[0];
        job.name = text("a");
        (job.jobs[0].name, job.jobs[0].state) = (text("ring-a-0"), text("Active"));
        for worker in &mut job.jobs[0].workers {
            (worker.container, worker.state) = (Some(text("c")), text("Running"));
            (worker.pod, worker.node) = (Some(text("p")), Some(text("n")));
        }
        view
    };
    let detail = Detail {
        every_worker: true,
        wide: true,
    };
    let shown = |view: View| status(&[view], detail, now(), Paint::Plain);
    let honest = shown(view(&str::to_owned));
    let text = shown(view(&|_| forged()));
    holds(&text, honest.lines().count());
    // The only colours are those of this program.
    let painted = status(&[view(&|_| forged())], detail, now(), Paint::Coloured);
    assert_eq!(paint::laid_out(&painted), painted);
    assert!(!painted.contains(FORGED), "{painted:?}");
}

#[test]
fn in_a_history_and_a_timeline() {
    let entries = History {
        namespace: forged(),
        name: forged(),
        restarts: 0,
        max_restarts: 1,
        generation: 1,
        entries: vec![Entry {
            at: None,
            what: forged(),
            generation: Some(u64::MAX),
            level: Some(forged()),
            took_ms: Some(9.2e12),
            workers: Some(u32::MAX),
            replaced_pods: Some(1),
            from_standbys: None,
            ahead_ms: None,
            cause: forged(),
            phases: None,
            source: "event",
            reporter: Some(forged()),
        }],
    };
    for wide in [false, true] {
        holds(&history(&entries, wide, now(), Paint::Plain), 3);
    }
    let restart = Timeline {
        namespace: forged(),
        name: forged(),
        generation: None,
        level: Some(forged()),
        failed_at: None,
        took_ms: 1.0,
        workers: None,
        replaced_pods: None,
        from_standbys: None,
        ahead_ms: None,
        cause: forged(),
        phases: Vec::new(),
    };
    holds(&timeline(&restart, Paint::Plain), 3);
    let honest = Timeline {
        cause: String::new(),
        ..restart.clone()
    };
    holds(&page(&restart), page(&honest).lines().count());
}

#[test]
fn in_nodes_and_verdicts() {
    let way = RuntimeAccess {
        state: AccessState::Away,
        since: None,
        detail: forged(),
    };
    let row = Row {
        node: forged(),
        node_ready: false,
        unschedulable: true,
        pod: Some(forged()),
        state: Some(forged()),
        ready: false,
        restarts: 0,
        since: None,
        image: Some(forged()),
        runtime: forged(),
        nri: Nri::Unknown,
        connected: Connection::Unknown,
        daemon_version: Some(forged()),
        protocol: None,
        level: None,
        cri_health: Some(way.clone()),
        nri_health: Some(way),
        workers: None,
        workers_linked: None,
    };
    for wide in [false, true] {
        holds(&nodes(std::slice::from_ref(&row), wide, now(), Paint::Plain), 2);
    }
    let verdict = Verdict {
        section: "webhooks",
        level: Level::Error,
        text: forged(),
        hint: Some(forged()),
    };
    holds(&check(&[verdict], Paint::Plain), 5);
}

#[test]
fn in_what_a_restart_would_do() {
    let row = tried::Row {
        worker: forged(),
        pod: forged(),
        node: forged(),
        stopped: true,
        because: "",
    };
    for (effect, lines) in [
        (Effect::Nothing, 1),
        (Effect::Unknown, 3),
        (Effect::InPlace, 3),
        (Effect::Recreate, 3),
    ] {
        let view = DryRun {
            namespace: forged(),
            name: forged(),
            effect,
            reason: forged(),
            message: forged(),
            generation: None,
            level: forged(),
            workers: vec![row.clone()],
        };
        holds(&dry_run(&view, Paint::Plain), lines);
    }
}

#[test]
fn a_column_is_not_wider_than_names_are() {
    let long = vec![vec![
        ("x".repeat(100_000), None),
        ("y".repeat(100_000), Some(Tone::Bad)),
    ]];
    let text = table::table(Paint::Plain, &["A", "B"], &long);
    let widest = text.lines().map(str::len).max();
    assert!(widest <= Some(CELL + 2 + MESSAGE), "{widest:?}");
}

#[test]
fn programs_get_all_of_it_escaped_for_terminals() {
    for form in [Form::Json, Form::Yaml] {
        let printer = Printer {
            form: Some(form),
            paint: Paint::Plain,
        };
        let answer = json!([{"cause": FORGED, "name": "ring"}]);
        let text = printer.render(&answer, |_| String::new()).unwrap();
        assert!(is_plain(&text), "{text:?}");
        let same: serde_json::Value = serde_yaml_ng::from_str(&text).unwrap();
        assert_eq!(same, answer);
    }
}
