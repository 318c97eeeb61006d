//! An agent in its own PID namespace, and the daemon's side of its socket.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_proto::agent::v1::{AgentMessage, Phase, Register, State, Target, agent_message::Kind};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost::Message;
use tempfile::TempDir;

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const AGENT: &str = env!("CARGO_BIN_EXE_lockstep-pod-agent");

/// How to start an agent.
pub(crate) struct Setup {
    worker: Vec<String>,
    wrapper: Vec<String>,
    binary: PathBuf,
    own_proc: bool,
    own_namespace: bool,
    stuck_log: bool,
    heartbeat: bool,
    standby: bool,
    parking: bool,
}

/// A running agent. Dropped, it is killed with its whole namespace.
pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    listener: UnixListener,
    unshare: Child,
    own_namespace: bool,
}

/// A process of the agent's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// In the test's own namespace.
    pub(crate) pid: i32,
    /// In the agent's.
    pub(crate) inner: i32,
    pub(crate) command: String,
    pub(crate) zombie: bool,
}

/// The daemon's end of one connection, after Register.
pub(crate) struct Daemon {
    stream: UnixStream,
    pub(crate) register: Register,
}

/// Waits for a level.
pub(crate) fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A worker that is a shell script. Its working directory is [`Rig::dir`].
pub(crate) fn script(text: &str) -> Setup {
    command(&["/bin/sh", "-c", text])
}

/// Any worker.
pub(crate) fn command(worker: &[&str]) -> Setup {
    Setup {
        worker: worker.iter().map(|&arg| arg.to_owned()).collect(),
        wrapper: Vec::new(),
        binary: AGENT.into(),
        own_proc: true,
        own_namespace: true,
        stuck_log: false,
        heartbeat: false,
        standby: false,
        parking: false,
    }
}

/// A script that runs until it is asked to exit, and creates `up.<generation>` once it is ready for
/// that.
pub(crate) fn patient() -> Setup {
    script("touch up.$LOCKSTEP_RESTART_ATTEMPT; exec sleep 1000")
}

impl Setup {
    /// Runs the agent under a program that execs it, such as setpriv.
    pub(crate) fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&arg| arg.to_owned()).collect();
        self
    }

    pub(crate) fn binary(mut self, path: &Path) -> Self {
        path.clone_into(&mut self.binary);
        self
    }

    /// Leaves the outer namespace's /proc, which is useless to the agent.
    pub(crate) fn without_proc(mut self) -> Self {
        self.own_proc = false;
        self
    }

    /// Gives it a stderr that is never read.
    pub(crate) fn with_stuck_log(mut self) -> Self {
        self.stuck_log = true;
        self
    }

    /// Lets the worker give heartbeats.
    pub(crate) fn with_heartbeat(mut self) -> Self {
        self.heartbeat = true;
        self
    }

    /// Keeps a standby, if the worker can have one. Its folder is one of the container's own.
    pub(crate) fn with_standby(mut self) -> Self {
        self.standby = true;
        self
    }

    /// Starts the worker a second time ahead, once it has parked itself.
    pub(crate) fn with_parking(mut self) -> Self {
        self.parking = true;
        self
    }

    /// Runs the agent among the processes of the test, not as PID 1.
    pub(crate) fn without_namespace(mut self) -> Self {
        self.own_namespace = false;
        self
    }

    pub(crate) fn start(self) -> Rig {
        let dir = tempfile::tempdir().expect("tempdir");
        self.start_in(dir)
    }

    pub(crate) fn start_in(self, dir: TempDir) -> Rig {
        let socket = dir.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).expect("bind");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).expect("chmod");
        fs::set_permissions(&socket, Permissions::from_mode(0o666)).expect("chmod");
        // Any user can run this copy, wherever the checkout is.
        let binary = dir.path().join("agent");
        if fs::hard_link(&self.binary, &binary).is_err() {
            fs::copy(&self.binary, &binary).expect("copy the agent");
        }

        // The tests may run with ignored signals (nohup, a shell's background job); a container
        // runtime does not.
        let mut unshare = Command::new("env");
        unshare.arg("--default-signal");
        if self.own_namespace {
            unshare.args(["unshare", "--pid", "--fork", "--kill-child"]);
        }
        if self.own_namespace && self.own_proc {
            unshare.arg("--mount-proc");
        }
        unshare.args(["--"]).args(&self.wrapper).arg(&binary);
        if !self.own_namespace {
            unshare.arg("--allow-not-pid1");
        }
        unshare
            .arg("--socket")
            .arg(&socket)
            .args(["--container", "worker", "--container-id", "c1"]);
        if self.heartbeat {
            unshare.arg("--heartbeat").arg(dir.path().join("beat"));
        }
        if self.standby {
            let place = dir.path().join("standby");
            fs::create_dir(&place).expect("mkdir");
            fs::set_permissions(&place, Permissions::from_mode(0o1777)).expect("chmod");
            unshare.arg("--standby").arg(place);
        }
        if self.parking {
            unshare.arg("--standby-program");
        }
        unshare.arg("--");
        unshare
            .args(&self.worker)
            .current_dir(dir.path())
            .stdin(Stdio::null());
        unshare.stdout(fs::File::create(dir.path().join("out")).expect("out"));
        if self.stuck_log {
            unshare.stderr(Stdio::piped());
        } else {
            unshare.stderr(fs::File::create(dir.path().join("err")).expect("err"));
        }
        let unshare = unshare.spawn().expect("unshare");
        Rig {
            dir,
            listener,
            unshare,
            own_namespace: self.own_namespace,
        }
    }

    /// Starts it, takes its connection and releases generation 0.
    pub(crate) fn running(self) -> (Rig, Daemon) {
        let rig = self.start();
        let mut daemon = rig.accept();
        daemon.send(first());
        daemon.until(Phase::Running, 0);
        (rig, daemon)
    }
}

/// The order that starts a fresh agent at generation 0.
pub(crate) fn first() -> Target {
    Target {
        start_fresh: true,
        ..release(0)
    }
}

pub(crate) fn stop(generation: u64) -> Target {
    Target {
        epoch: 1,
        generation,
        grace_ms: 60_000,
        ..Target::default()
    }
}

/// A stop with a short grace.
pub(crate) fn stop_hard(generation: u64) -> Target {
    Target {
        grace_ms: 50,
        ..stop(generation)
    }
}

pub(crate) fn release(generation: u64) -> Target {
    Target {
        release: true,
        ..stop(generation)
    }
}

impl Rig {
    pub(crate) fn accept(&self) -> Daemon {
        self.listener.set_nonblocking(true).expect("nonblocking");
        let (stream, _) = eventually("a connection", || self.listener.accept().ok());
        stream.set_nonblocking(false).expect("blocking");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let mut daemon = Daemon {
            stream,
            register: Register::default(),
        };
        match daemon.receive() {
            Some(Kind::Register(register)) => daemon.register = register,
            other => panic!("not a Register: {other:?}"),
        }
        daemon
    }

    /// The daemon dies and another one comes.
    pub(crate) fn reconnect(&self, daemon: Daemon) -> Daemon {
        drop(daemon);
        self.accept()
    }

    /// Stops listening.
    pub(crate) fn close(&mut self) {
        fs::remove_file(self.socket()).expect("remove the socket");
        // A socket that cannot be reached takes the listener's place.
        let other = self.dir.path().join("closed.sock");
        self.listener = UnixListener::bind(&other).expect("bind");
        fs::remove_file(other).expect("remove the socket");
    }

    /// Listens again.
    pub(crate) fn listen(&mut self) {
        self.listener = UnixListener::bind(self.socket()).expect("bind");
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Waits for a file that the worker makes.
    pub(crate) fn await_file(&self, name: &str) {
        eventually(name, || self.path(name).exists().then_some(()));
    }

    /// What the agent and the worker have written to stderr.
    pub(crate) fn err(&self) -> String {
        fs::read_to_string(self.path("err")).expect("err")
    }

    /// Waits for a text on stderr.
    pub(crate) fn await_err(&self, text: &str) {
        eventually(text, || self.err().contains(text).then_some(()));
    }

    pub(crate) fn out(&self) -> String {
        fs::read_to_string(self.path("out")).expect("out")
    }

    /// The agent's PID here.
    pub(crate) fn agent(&self) -> i32 {
        eventually("the agent", || self.find_agent())
    }

    fn find_agent(&self) -> Option<i32> {
        if !self.own_namespace {
            return i32::try_from(self.unshare.id()).ok();
        }
        let parent = self.unshare.id().to_string();
        all_pids().find(|pid| stat_field(*pid, 1).is_some_and(|ppid| ppid == parent))
    }

    /// All processes of the agent's namespace, the agent first.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let agent = self.agent();
        let own = namespace(agent);
        let mut found: Vec<Process> = all_pids()
            .filter(|pid| namespace(*pid) == own)
            .filter_map(|pid| {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
                let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
                let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
                Some(Process {
                    pid,
                    inner: inner.split_whitespace().last()?.parse().ok()?,
                    command: command.trim_end_matches('\0').replace('\0', " "),
                    zombie: stat_field(pid, 0)? == "Z",
                })
            })
            .collect();
        found.sort_by_key(|process| process.inner);
        assert_eq!(found.first().map(|process| process.pid), Some(agent));
        found
    }

    /// The processes beside the agent.
    pub(crate) fn others(&self) -> Vec<Process> {
        self.processes().split_off(1)
    }

    /// The only process beside the agent, once it is what `command` says.
    pub(crate) fn sole(&self, command: &str) -> Process {
        eventually(command, || match &self.others()[..] {
            [one] if one.command == command => Some(one.clone()),
            _ => None,
        })
    }

    /// Signals the agent as the container runtime does: from outside its namespace.
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.agent()), signal).expect("signal the agent");
    }

    /// Runs a command in the agent's namespaces, as `kubectl exec` does.
    pub(crate) fn exec(&self, command: &[&str]) -> Child {
        let agent = self.agent().to_string();
        Command::new("nsenter")
            .args(["-t", &agent, "--pid", "--mount"])
            .arg(format!("--wd={}", self.dir.path().display()))
            .arg("--")
            .args(command)
            .stdin(Stdio::null())
            .spawn()
            .expect("nsenter")
    }

    /// The exit code of the container.
    pub(crate) fn exit_code(&mut self) -> i32 {
        let unshare = &mut self.unshare;
        let status = eventually("the end of the agent", || unshare.try_wait().expect("wait"));
        status.code().unwrap_or_else(|| panic!("{status}"))
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.unshare.try_wait().expect("wait").is_none()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Its namespace dies with it.
        if let Some(agent) = self.find_agent() {
            let _ = kill(Pid::from_raw(agent), Signal::SIGKILL);
        }
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        if std::thread::panicking() {
            eprintln!(
                "stderr of the agent:\n{}",
                fs::read_to_string(self.path("err")).unwrap_or_default()
            );
        }
    }
}

impl Daemon {
    pub(crate) fn send(&mut self, target: Target) {
        self.send_bytes(&frame(&target));
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("write to the agent");
    }

    /// Writes as much as the agent takes.
    pub(crate) fn try_send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The next state; none: the agent has closed the connection.
    pub(crate) fn state(&mut self) -> Option<State> {
        match self.receive()? {
            Kind::State(state) => Some(state),
            Kind::Register(register) => panic!("a second {register:?}"),
        }
    }

    /// Reads until the worker is reported in that phase and generation.
    pub(crate) fn until(&mut self, phase: Phase, generation: u64) -> State {
        let mut last = None;
        loop {
            let Some(state) = self.state() else {
                panic!("closed before {phase:?} {generation}, after {last:?}")
            };
            if state.phase() == phase && state.generation == generation {
                return state;
            }
            last = Some(state);
        }
    }

    /// All states up to the end of the connection.
    pub(crate) fn rest(&mut self) -> Vec<State> {
        std::iter::from_fn(|| self.state()).collect()
    }

    /// Orders a restart and waits for its end.
    pub(crate) fn restart(&mut self, generation: u64) {
        self.send(stop(generation));
        self.until(Phase::Parked, generation);
        self.send(release(generation));
        self.until(Phase::Running, generation);
    }

    fn receive(&mut self) -> Option<Kind> {
        let mut header = [0; 4];
        match self.stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                ) =>
            {
                return None;
            }
            Err(error) => panic!("nothing from the agent: {error}"),
        }
        let length = u32::from_be_bytes(header) as usize;
        assert!(length <= lockstep_proto::AGENT_MAX_FRAME);
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).expect("the rest of the frame");
        let message = AgentMessage::decode(&body[..]).expect("an AgentMessage");
        Some(message.kind.expect("a kind"))
    }
}

pub(crate) fn frame(target: &Target) -> Vec<u8> {
    let body = target.encode_to_vec();
    [
        &u32::try_from(body.len()).expect("small").to_be_bytes()[..],
        &body,
    ]
    .concat()
}

fn all_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").expect("/proc");
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// A field of /proc/<pid>/stat, counted from the state.
pub(crate) fn stat_field(pid: i32, field: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(field).map(str::to_owned)
}
