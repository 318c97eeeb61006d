//! Random histories in a small world of processes: what must hold in all of them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// What happens next.
#[derive(Clone, Debug)]
enum Event {
    Order(Target),
    /// The worker ends, with or without leaving others of its tree behind.
    Ends(Exit, bool),
    /// The last process of the tree ends.
    Empties,
    Signal(i32, bool),
    Wait(u64),
    KillResult(KillReport),
    Heartbeat(Heartbeat),
    Standby(StandbyEvent),
}

/// What a standby does by itself.
#[derive(Clone, Copy, Debug)]
enum StandbyEvent {
    Ready,
    Confirms,
    Goes { hopeless: bool },
}

/// The worker's standby; none: there is no such process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standby {
    Imports,
    Waits,
    /// It counts as the worker, and has not confirmed that.
    Released,
}

/// The processes and the daemon around a machine.
struct World {
    bench: Bench,
    worker: bool,
    others: bool,
    startable: bool,
    asked_to_exit: bool,
    exit: Option<i32>,
    started: BTreeSet<Generation>,
    standby: Option<Standby>,
    /// The generation of a standby that ran nothing of the worker.
    refused: Option<Generation>,
    obeyed: Target,
}

impl World {
    fn new(startable: bool, standbys: bool) -> Self {
        let mut bench = Bench::fresh();
        if standbys {
            bench.machine = bench.machine.with_standby();
        }
        Self {
            bench,
            worker: false,
            others: false,
            startable,
            asked_to_exit: false,
            exit: None,
            started: BTreeSet::new(),
            standby: None,
            refused: None,
            obeyed: Target::default(),
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Order(target) => {
                let status = self.bench.machine.status();
                if target.epoch >= status.epoch
                    && target.generation >= status.generation
                    && !self.asked_to_exit
                {
                    self.obeyed = target.clone();
                }
                self.feed(Input::Target(target));
            }
            Event::Ends(exit, _) if self.standby == Some(Standby::Released) => self.refuse(exit),
            Event::Ends(exit, others) if self.worker => {
                self.worker = false;
                self.others |= others;
                self.feed(Input::WorkerExited(exit));
                self.reap();
            }
            Event::Empties if !self.worker => {
                self.others = false;
                self.reap();
            }
            Event::Signal(signo, outside) => {
                self.asked_to_exit |= signo == libc::SIGTERM || outside && signo != libc::SIGCONT;
                self.feed(Input::Signal { signo, outside });
            }
            Event::Wait(millis) => {
                self.bench.now += Duration::from_millis(millis);
                if self
                    .bench
                    .machine
                    .deadline()
                    .is_some_and(|at| at <= self.bench.now)
                {
                    self.feed(Input::Tick);
                }
            }
            Event::KillResult(report) if self.worker || self.others => self.feed(Input::Killed(report)),
            Event::Heartbeat(heartbeat) => self.feed(Input::Heartbeat(heartbeat)),
            Event::Standby(happens) => self.standby_happens(happens),
            Event::Ends(..) | Event::Empties | Event::KillResult(_) => {}
        }
    }

    fn reap(&mut self) {
        if !self.worker && !self.others && self.bench.machine.awaits_empty() {
            self.feed(Input::TreeEmpty);
        }
    }

    fn feed(&mut self, input: Input) {
        let before = self.bench.machine.status().clone();
        let was_zero = input == Input::WorkerExited(Exit::Code(0));
        let actions = self.bench.step(input);
        let after = self.bench.machine.status().clone();

        assert!(after.generation >= before.generation && after.epoch >= before.epoch);
        assert!(after.counted_restarts >= before.counted_restarts && after.revision >= before.revision);
        assert_eq!(
            after != before,
            after.revision > before.revision,
            "every change has its revision"
        );
        assert!(
            after == before || actions.contains(&Action::Report),
            "every change is reported"
        );
        assert!(self.exit.is_none() || actions.is_empty(), "nothing after the end");

        for action in actions {
            match action {
                Action::Start { generation, source } => self.start(generation, source),
                Action::Warm => {
                    assert_eq!(self.standby, None, "two standbys");
                    self.standby = Some(Standby::Imports);
                }
                Action::EndStandbys => {
                    if matches!(self.standby, Some(Standby::Imports | Standby::Waits)) {
                        self.standby = None;
                        self.feed(Input::StandbyGone { hopeless: false });
                    }
                }
                Action::GiveUpStandby => {
                    if self.standby == Some(Standby::Released) {
                        self.refuse(Exit::Signal(9));
                    }
                }
                Action::Exit { code, .. } => {
                    assert!(code != 0 || was_zero, "0 is only ever the worker's own");
                    assert!(code != 0 || before.phase == Phase::Running);
                    self.exit = Some(code);
                }
                Action::Forward(_) => assert!(matches!(
                    before.phase,
                    Phase::Starting | Phase::Running | Phase::Stopping
                )),
                Action::Terminate | Action::Kill { .. } | Action::Report | Action::Say(_) => {}
            }
        }
        // Never stuck: what is being stopped has a time at which something happens.
        let stopping = after.phase == Phase::Stopping;
        assert!(!stopping || self.exit.is_some() || self.bench.machine.deadline().is_some());
        assert!(!matches!(after.phase, Phase::Fresh | Phase::Parked) || !self.worker && !self.others);
    }

    fn standby_happens(&mut self, happens: StandbyEvent) {
        match (happens, self.standby) {
            (StandbyEvent::Ready, Some(Standby::Imports)) => {
                self.standby = Some(Standby::Waits);
                let ahead = Duration::from_secs(1);
                self.feed(Input::StandbyReady { ahead });
            }
            (StandbyEvent::Goes { hopeless }, Some(Standby::Imports | Standby::Waits)) => {
                self.standby = None;
                self.feed(Input::StandbyGone { hopeless });
            }
            (StandbyEvent::Confirms, Some(Standby::Released)) => {
                self.standby = None;
                self.feed(Input::Started);
            }
            (StandbyEvent::Goes { .. }, Some(Standby::Released)) => self.refuse(Exit::Code(121)),
            _ => {}
        }
    }

    /// The released standby ends without running anything of the worker.
    fn refuse(&mut self, exit: Exit) {
        self.standby = None;
        self.worker = false;
        self.refused = self.started.last().copied();
        self.feed(Input::StandbyRefused(exit));
        self.reap();
    }

    fn start(&mut self, generation: Generation, source: Source) {
        assert!(!self.worker && !self.others, "two generations at once");
        if source == Source::Standby {
            assert_eq!(self.standby, Some(Standby::Waits), "no standby was ready");
        }
        assert!(!self.asked_to_exit, "a start after the request to exit");
        // A start in the place of a standby belongs to the release that the standby had.
        let made_up = self.refused == Some(generation) && source == Source::Cold;
        assert!(
            made_up || self.obeyed.release && self.obeyed.generation == generation,
            "not released"
        );
        assert!(
            !self.started.is_empty() || self.obeyed.start_fresh,
            "its first start, but not named"
        );
        let first = self.started.insert(generation);
        assert!(
            first || self.refused == Some(generation) && source == Source::Cold,
            "generation {generation} twice"
        );
        self.refused = None;
        if source == Source::Standby {
            self.worker = true;
            self.standby = Some(Standby::Released);
        } else if self.startable {
            self.worker = true;
            self.feed(Input::Started);
        } else {
            self.feed(Input::StartFailed {
                code: 127,
                detail: "no".into(),
            });
            self.reap();
        }
    }

    /// From here on SIGKILL works, and the daemon asks for one more restart: it must succeed.
    fn must_recover(&mut self) {
        let status = self.bench.machine.status();
        let next = Target {
            epoch: status.epoch,
            ..stopped(status.generation.0 + 1)
        };
        self.happen(Event::Order(next.clone()));
        for _ in 0..10 {
            let Some(at) = self.bench.machine.deadline() else {
                break;
            };
            self.bench.now = self.bench.now.max(at);
            self.feed(Input::Tick);
            if self.bench.machine.killing.is_some() {
                self.happen(Event::Ends(Exit::Signal(9), false));
                self.happen(Event::Empties);
            }
        }
        if self.exit.is_none() && !self.asked_to_exit {
            assert_eq!(self.bench.state(), (Phase::Parked, next.generation.0));
            self.happen(Event::Order(Target {
                release: true,
                start_fresh: true,
                ..next.clone()
            }));
            let warm = self.standby == Some(Standby::Released);
            self.happen(Event::Standby(StandbyEvent::Confirms));
            let phase = if self.startable || warm {
                Phase::Running
            } else {
                Phase::Exited(Exit::Code(127))
            };
            assert_eq!(self.bench.state(), (phase, next.generation.0));
        }
    }
}

fn order() -> impl Strategy<Value = Target> {
    let codes = (any::<bool>(), prop::collection::vec(0..3, 0..2));
    let rest = (any::<bool>(), any::<bool>(), 0..3_u64, prop::option::of(codes));
    (1..4_u64, 0..6_u64, 0..4_u64, rest).prop_map(
        |(epoch, generation, counted_restarts, (release, start_fresh, grace, codes))| Target {
            epoch: Epoch(epoch),
            generation: Generation(generation),
            counted_restarts,
            release,
            start_fresh,
            grace: Duration::from_millis(grace * 10),
            terminal_codes: codes
                .map(|(negated, codes)| TerminalCodes { negated, codes })
                .into_iter()
                .collect(),
            heartbeat_timeout: Duration::from_secs(counted_restarts % 2),
            ready_timeout: Duration::from_secs(grace),
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let exit = prop_oneof![
        (0..3).prop_map(Exit::Code),
        Just(Exit::Signal(9)),
        Just(Exit::Signal(15))
    ];
    let report = any::<[bool; 3]>().prop_map(|[denied, forking, unseen]| KillReport {
        denied,
        forking,
        unseen,
        note: "note".into(),
    });
    let signo = prop::sample::select(vec![
        libc::SIGTERM,
        libc::SIGINT,
        libc::SIGHUP,
        libc::SIGUSR1,
        libc::SIGCONT,
    ]);
    prop_oneof![
        8 => order().prop_map(Event::Order),
        4 => (exit, any::<bool>()).prop_map(|(exit, others)| Event::Ends(exit, others)),
        3 => Just(Event::Empties),
        2 => prop::sample::select(vec![Heartbeat::Well, Heartbeat::Awaited, Heartbeat::Missed, Heartbeat::Overdue])
            .prop_map(Event::Heartbeat),
        1 => (signo, prop::bool::weighted(0.2)).prop_map(|(signo, outside)| Event::Signal(signo, outside)),
        4 => (0..2000_u64).prop_map(Event::Wait),
        1 => Just(Event::Wait(40_000)),
        2 => report.prop_map(Event::KillResult),
        3 => standby_event().prop_map(Event::Standby),
    ]
}

fn standby_event() -> impl Strategy<Value = StandbyEvent> {
    prop_oneof![
        3 => Just(StandbyEvent::Ready),
        2 => Just(StandbyEvent::Confirms),
        1 => prop::bool::weighted(0.1).prop_map(|hopeless| StandbyEvent::Goes { hopeless }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_is_safe_and_goes_on(
        events in prop::collection::vec(event(), 0..60),
        startable in prop::bool::weighted(0.9),
        standbys in any::<bool>(),
    ) {
        let mut world = World::new(startable, standbys);
        for event in events {
            world.happen(event);
        }
        world.must_recover();
    }
}
