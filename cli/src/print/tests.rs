use serde_json::json;

use super::*;
use crate::view::check::{Level, Verdict};
use crate::view::history::{Entry, History};
use crate::view::nodes::{AccessState, Connection, Nri, RestartLevel, Row, RuntimeAccess};
use crate::view::status::{ChildJob, LastRestart, ReplicatedJob, Standbys, Starts, View, Worker};
use crate::view::testing::{before, now};
use crate::view::timeline::{Span, Timeline};

mod strangers;

fn worker(index: u32, state: &str, generation: u64) -> Worker {
    Worker {
        index,
        container: Some("worker".into()),
        state: state.into(),
        up: state == "Running",
        source: "agent",
        generation: Some(generation),
        since: Some(before(65)),
        pod: Some(format!("ring-a-0-{index}-x")),
        node: Some("node-1".into()),
        starts: None,
        standbys: None,
        step: None,
        section: None,
    }
}

fn ring() -> View {
    View {
        namespace: "team".into(),
        name: "ring".into(),
        phase: "Stopping".into(),
        kind: "Supervised".into(),
        generation: 4,
        released: 3,
        restarts: 2,
        max_restarts: 100,
        recreations: 0,
        created_at: None,
        last_restart: Some(LastRestart {
            at: Some(before(300)),
            reason: Some("WorkerExited".into()),
            message: "worker ring-a-0[1]/worker exited with code 3 (pod p, node n)".into(),
            pod: None,
            container: None,
            node: None,
            exit_code: Some(3),
            signal: None,
            level: Some("Process".into()),
            took_ms: Some(31.2),
        }),
        messages: Vec::new(),
        gangs: Vec::new(),
        replicated_jobs: vec![ReplicatedJob {
            name: "a".into(),
            replicas: 1,
            ready: 1,
            succeeded: 0,
            failed: 0,
            suspended: 0,
            jobs: vec![ChildJob {
                name: "ring-a-0".into(),
                state: "Active".into(),
                workers_expected: 2,
                workers_up: 1,
                workers: vec![worker(0, "Running", 3), worker(1, "Exited", 3)],
            }],
        }],
    }
}

#[test]
fn a_limit_that_is_none_is_not_shown() {
    let unlimited = View {
        max_restarts: i32::MAX,
        ..ring()
    };
    let detail = Detail {
        every_worker: false,
        wide: false,
    };
    let text = status(&[unlimited], detail, now(), Paint::Plain);
    assert!(
        text.starts_with("team/ring  Stopping  generation 4  restarts 2\n"),
        "{text}"
    );
}

#[test]
fn a_jobset_is_a_tree() {
    let every = Detail {
        every_worker: true,
        wide: false,
    };
    assert_eq!(
        status(&[ring()], every, now(), Paint::Plain),
        "\
team/ring  Stopping  generation 4  restarts 2 of 100
  last restart: 5m ago, took 31.2 ms, by Process: worker ring-a-0[1]/worker exited with code 3 (pod p, node n)
└─ a  1 of 1 Jobs ready
   └─ ring-a-0  Active  1 of 2 workers up
      ├─ 0/worker  Running  generation 3  for 65s  node-1
      └─ 1/worker  Exited   generation 3  for 65s  node-1
"
    );
    let unwell = Detail {
        every_worker: false,
        wide: false,
    };
    let text = status(&[ring()], unwell, now(), Paint::Plain);
    assert!(
        !text.contains("0/worker") && text.contains("└─ 1/worker  Exited"),
        "{text}"
    );
}

#[test]
fn a_worker_says_how_it_was_started_and_what_waits() {
    let mut view = ring();
    let [warm, cold] = &mut view.replicated_jobs[0].jobs[0].workers[..] else {
        panic!("two workers");
    };
    warm.starts = Some(Starts {
        standby: 1,
        cold: 0,
        ahead_ms: 1234,
    });
    warm.standbys = Some(Standbys {
        wanted: 1,
        ready: 1,
        memory_kib: 200_000,
        modules: 878,
        reason: None,
    });
    cold.standbys = Some(Standbys {
        wanted: 0,
        ready: 0,
        memory_kib: 0,
        modules: 0,
        reason: Some("sh is no \x1b Python".into()),
    });
    let every = Detail {
        every_worker: true,
        wide: false,
    };
    let text = status(&[view], every, now(), Paint::Plain);
    assert!(
        text.ends_with(
            "\
      ├─ 0/worker  Running  generation 3  for 65s  node-1  started from standby (1.2 s ahead), standby ready
      └─ 1/worker  Exited   generation 3  for 65s  node-1  no standby: sh is no \\x1b Python
"
        ),
        "{text}"
    );
}

#[test]
fn colours_change_nothing_but_colours() {
    let detail = Detail {
        every_worker: true,
        wide: true,
    };
    let painted = status(&[ring()], detail, now(), Paint::Coloured);
    assert!(painted.contains("\x1b[31mExited\x1b[0m"), "{painted:?}");
    let mut bare = String::new();
    for (index, piece) in painted.split('\x1b').enumerate() {
        bare.push_str(if index == 0 {
            piece
        } else {
            piece.split_once('m').unwrap().1
        });
    }
    assert_eq!(bare, status(&[ring()], detail, now(), Paint::Plain));
}

#[test]
fn restarts_are_a_table_and_say_what_is_not_known() {
    let entry = |at, what: &str, took_ms| Entry {
        at,
        what: what.into(),
        generation: Some(3),
        level: Some("Process".into()),
        took_ms,
        workers: took_ms.map(|_| 4),
        replaced_pods: Some(0),
        from_standbys: None,
        ahead_ms: None,
        cause: "a restart was requested".into(),
        phases: None,
        source: "event",
        reporter: None,
    };
    let shown = History {
        namespace: "team".into(),
        name: "ring".into(),
        restarts: 2,
        max_restarts: 100,
        generation: 3,
        entries: vec![
            entry(Some(before(60)), "RestartedInPlace", Some(31.2)),
            entry(None, "Restarted", None),
        ],
    };
    assert_eq!(
        history(&shown, false, now(), Paint::Plain),
        "\
team/ring  generation 3  restarts 2 of 100
WHEN     WHAT              GENERATION  BY       TOOK     WORKERS  WHY
60s ago  RestartedInPlace  3           Process  31.2 ms  4        a restart was requested
unknown  Restarted         3           Process                    a restart was requested
generation 3, but events of 1 restarts: a suspension takes a generation too, and the API server keeps events for an hour by default
"
    );
}

#[test]
fn nodes_are_a_table() {
    let way = |state, detail: &str| {
        Some(RuntimeAccess {
            state,
            since: Some(before(65)),
            detail: detail.into(),
        })
    };
    let row = Row {
        node: "node-1".into(),
        node_ready: true,
        unschedulable: true,
        pod: Some("d".into()),
        state: Some("Running".into()),
        ready: true,
        restarts: 1,
        since: Some(before(3700)),
        image: Some("r.example/lockstep-node-daemon:0.1.0".into()),
        runtime: "containerd://2.3.7".into(),
        nri: Nri::OnByDefault,
        connected: Connection::Connected,
        daemon_version: Some("0.1.0".into()),
        protocol: Some(3),
        level: Some(RestartLevel::Process),
        cri_health: way(AccessState::Well, ""),
        nri_health: way(AccessState::Well, ""),
        workers: Some(4),
        workers_linked: Some(3),
    };
    let without = Row {
        node: "node-2".into(),
        unschedulable: false,
        level: Some(RestartLevel::Container),
        nri_health: way(AccessState::Away, "No such file"),
        ..row.clone()
    };
    let silent = Row {
        node: "node-3".into(),
        unschedulable: false,
        connected: Connection::Missing,
        daemon_version: None,
        protocol: None,
        level: Some(RestartLevel::Pod),
        cri_health: None,
        nri_health: None,
        workers: Some(0),
        workers_linked: Some(0),
        ..row.clone()
    };
    let rows = [row, without, silent];
    assert_eq!(
        nodes(&rows, false, now(), Paint::Plain),
        "\
NODE               DAEMON                   READY  RESTARTS  AGE  IMAGE                       RUNTIME             LEVEL      CRI      NRI            AGENTS
node-1 (cordoned)  Running                  yes    1         61m  lockstep-node-daemon:0.1.0  containerd://2.3.7  process    well     well           3 of 4 reporting
node-2             Running                  yes    1         61m  lockstep-node-daemon:0.1.0  containerd://2.3.7  container  well     away for 65s   3 of 4 reporting
node-3             Running (not connected)  yes    1         61m  lockstep-node-daemon:0.1.0  containerd://2.3.7  pod        unknown  on by default  0 of 0 reporting
"
    );
    let wide = nodes(&rows, true, now(), Paint::Plain);
    let words = |line: usize| {
        let line = wide.lines().nth(line).unwrap_or_default();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(
        words(0).ends_with("AGENTS POD VERSION PROTOCOL WHY AWAY"),
        "{wide}"
    );
    assert!(
        words(2).ends_with("reporting d 0.1.0 3 NRI: No such file"),
        "{wide}"
    );
    assert!(words(3).ends_with("reporting d unknown unknown"), "{wide}");
}

#[test]
fn verdicts_are_grouped_and_summed_up() {
    let verdict = |section, level, hint: Option<&str>| Verdict {
        section,
        level,
        text: "something".into(),
        hint: hint.map(str::to_owned),
    };
    let verdicts = [
        verdict("kubernetes", Level::Ok, None),
        verdict("webhooks", Level::Warning, Some("look")),
        verdict("webhooks", Level::Error, Some("repair")),
    ];
    assert_eq!(
        check(&verdicts, Paint::Plain),
        "\
kubernetes
  ✓ something

webhooks
  ‼ something
    → look
  × something
    → repair

1 error, 1 warning.
"
    );
}

#[test]
fn programs_get_what_people_get() {
    let printer = |form| Printer {
        form: Some(form),
        paint: Paint::Coloured,
    };
    let text = printer(Form::Json).render(&ring(), |_| String::new()).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["lastRestart"]["tookMs"], json!(31.2));
    assert_eq!(
        value["replicatedJobs"][0]["jobs"][0]["workers"][1]["state"],
        "Exited"
    );
    let yaml = printer(Form::Yaml).render(&ring(), |_| String::new()).unwrap();
    let same: serde_json::Value = serde_yaml_ng::from_str(&yaml).unwrap();
    assert_eq!(same, value);
}

#[test]
fn phases_lie_on_one_scale() {
    let span = |phase, from_ms, to_ms| Span {
        phase,
        what: "what it is",
        from_ms,
        to_ms,
    };
    let restart = Timeline {
        namespace: "team".into(),
        name: "ring".into(),
        generation: Some(2),
        level: Some("Pod".into()),
        failed_at: Some(now()),
        took_ms: 40.0,
        workers: Some(4),
        replaced_pods: Some(1),
        from_standbys: Some(3),
        ahead_ms: Some(1200),
        cause: "the pod was lost".into(),
        phases: vec![
            span("detect", 0.0, 0.1),
            span("stop", 1.0, 21.0),
            span("run", 21.0, 40.0),
        ],
    };
    let bar = |before: usize, long: usize| format!("{}{}", " ".repeat(before), "█".repeat(long));
    let text = timeline(&restart, Paint::Plain);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "team/ring  generation 2  took 40.0 ms  by Pod  4 workers  1 in a new pod  3 from standbys (1200.0 ms ahead)  failure at 2026-03-01T03:00:00.000Z"
    );
    assert_eq!(lines[1], "  the pod was lost");
    assert!(lines[3].starts_with(&format!("detect  {} ", bar(0, 1))), "{text}");
    assert!(
        lines[4].starts_with(&format!("stop    {} ", bar(1, 20))),
        "{text}"
    );
    assert!(
        lines[5].starts_with(&format!("run     {} ", bar(21, 19))),
        "{text}"
    );
    assert!(lines[5].ends_with("21.0  19.0 ms  what it is"), "{text}");
}
