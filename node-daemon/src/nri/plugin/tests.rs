//! Against a stand-in for containerd's side of NRI.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tokio::net::UnixListener;

use super::calls::recognised;
use super::*;
use crate::agents::connection::Context;
use crate::agents::hostkill::ProcKiller;
use crate::agents::peer::ProcPeerCheck;
use crate::health::Access;
use crate::install::install;
use crate::runtime::AgentHost;
use crate::worker::driver::Driver;
use crate::worker::facts::{Input, ListedContainer};
use crate::worker::state::Table;
use crate::worker::types::{Ended, Exit, Phase, UnixNanos};

mod standbys;
mod versions;

struct Setup {
    dir: tempfile::TempDir,
    nri: Nri,
    workers: Handle,
}

/// containerd's side.
struct Nri {
    stream: UnixStream,
    input: BytesMut,
    from_plugin: HashMap<u32, BytesMut>,
    next: u32,
}

impl Nri {
    async fn message(&mut self, connection: u32) -> ttrpc::Message {
        loop {
            let stream = self.from_plugin.entry(connection).or_default();
            if let Some(message) = ttrpc::decode(stream).unwrap() {
                return message;
            }
            assert_ne!(self.stream.read_buf(&mut self.input).await.unwrap(), 0);
            while let Some((id, bytes)) = mux::decode(&mut self.input).unwrap() {
                self.from_plugin.entry(id).or_default().extend_from_slice(&bytes);
            }
        }
    }

    async fn send(&mut self, connection: u32, message: &[u8]) {
        let mut out = BytesMut::new();
        mux::encode(connection, message, &mut out);
        self.stream.write_all(&out).await.unwrap();
    }

    /// Takes the registration and answers it.
    async fn accept(&mut self) -> wire::RegisterPluginRequest {
        let message = self.message(mux::RUNTIME).await;
        let call = Request::decode(message.payload).unwrap();
        assert_eq!(
            (call.service.as_str(), call.method.as_str()),
            (RUNTIME_SERVICE, "RegisterPlugin")
        );
        let answer = ttrpc::response(message.stream, &Response::ok(Bytes::new())).unwrap();
        self.send(mux::RUNTIME, &answer).await;
        wire::RegisterPluginRequest::decode(call.payload).unwrap()
    }

    /// Sends a call, and returns its stream.
    async fn ask(&mut self, service: &str, method: &str, payload: Vec<u8>) -> u32 {
        let call = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: payload.into(),
            timeout_nano: 2_000_000_000,
        };
        let stream = self.next;
        self.next += 2;
        let bytes = ttrpc::request(stream, &call).unwrap();
        self.send(mux::PLUGIN, &bytes).await;
        stream
    }

    async fn raw(&mut self, service: &str, method: &str, payload: Vec<u8>) -> Response {
        let stream = self.ask(service, method, payload).await;
        let message = self.message(mux::PLUGIN).await;
        assert_eq!((message.stream, message.kind), (stream, Kind::Response));
        Response::decode(message.payload).unwrap()
    }

    async fn call<A: prost::Message + Default>(&mut self, method: &str, argument: &impl prost::Message) -> A {
        let response = self.raw(PLUGIN_SERVICE, method, argument.encode_to_vec()).await;
        assert_eq!(response.status, None);
        A::decode(response.payload).unwrap()
    }

    async fn create(
        &mut self,
        pod: wire::PodSandbox,
        container: wire::Container,
    ) -> Option<wire::ContainerAdjustment> {
        let request = wire::CreateContainerRequest {
            pod: Some(pod),
            container: Some(container),
        };
        self.call::<wire::CreateContainerResponse>("CreateContainer", &request)
            .await
            .adjust
    }
}

/// The agent of a version, as a daemon of that version installs it.
fn agent(state_dir: &Path, version: &str) -> Installed {
    let binary = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(binary.path(), version).unwrap();
    install(binary.path(), state_dir).unwrap()
}

async fn setup() -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let (driver, workers) = Driver::new(Table::new(0));
    let peers = ProcPeerCheck {
        proc_root: "/proc".into(),
    };
    let context = Arc::new(Context::new(workers.clone(), Box::new(peers)));
    let sockets = Arc::new(Sockets::open(dir.path(), context).unwrap());
    let host = AgentHost {
        killer: ProcKiller::new("/proc".into()),
        sockets: sockets.clone(),
    };
    tokio::spawn(driver.run(host));
    let plugin = Plugin {
        workers: workers.clone(),
        sockets,
        agent: agent(dir.path(), "present"),
    };
    let socket = dir.path().join("nri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move { crate::nri::serve(&socket, &plugin).await });
    let nri = Nri::of(&listener).await;
    Setup { dir, nri, workers }
}

impl Nri {
    async fn of(listener: &UnixListener) -> Self {
        let (stream, _) = listener.accept().await.unwrap();
        Self {
            stream,
            input: BytesMut::new(),
            from_plugin: HashMap::new(),
            next: 1,
        }
    }
}

fn pod(uid: &str) -> wire::PodSandbox {
    let annotations = [
        ("lockstep.dev/in-place", "supervised"),
        ("lockstep.dev/supervise", "worker"),
        ("jobset.sigs.k8s.io/jobset-uid", "g"),
    ];
    let labels = [
        ("batch.kubernetes.io/job-name", "job"),
        ("batch.kubernetes.io/job-completion-index", "0"),
    ];
    let map = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    };
    wire::PodSandbox {
        id: format!("sandbox-{uid}"),
        name: format!("pod-{uid}"),
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        labels: map(&labels),
        annotations: map(&annotations),
        ..wire::PodSandbox::default()
    }
}

fn container(name: &str, pid_namespace: &str) -> wire::Container {
    wire::Container {
        id: format!("id-of-{name}"),
        pod_sandbox_id: "sandbox-p".to_owned(),
        name: name.to_owned(),
        args: vec!["python3".to_owned(), "train.py".to_owned()],
        linux: Some(wire::LinuxContainer {
            namespaces: vec![wire::LinuxNamespace {
                r#type: "pid".to_owned(),
                path: pid_namespace.to_owned(),
            }],
            ..wire::LinuxContainer::default()
        }),
        annotations: HashMap::from([(
            "io.kubernetes.pod.terminationGracePeriod".to_owned(),
            "45".to_owned(),
        )]),
        ..wire::Container::default()
    }
}

fn socket(dir: &Path, uid: &str) -> PathBuf {
    dir.join("pods").join(uid).join("agent.sock")
}

#[tokio::test]
async fn the_plugin_registers_and_subscribes() {
    let mut setup = setup().await;
    let registered = setup.nri.accept().await;
    assert_eq!(
        (registered.plugin_name.as_str(), registered.plugin_idx.as_str()),
        ("lockstep", "10")
    );
    let configured: wire::ConfigureResponse = setup
        .nri
        .call("Configure", &wire::ConfigureRequest::default())
        .await;
    assert_eq!(configured.events, 0x1 | 0x4 | 0x8 | 0x400);
}

#[tokio::test]
async fn a_worker_gets_its_agent_and_a_socket_that_listens() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    let adjust = setup.nri.create(pod("p"), container("worker", "")).await.unwrap();
    assert_eq!(adjust.args[0], lockstep_protocol::pods::AGENT);
    assert_eq!(
        &adjust.args[adjust.args.len() - 5..],
        ["--termination-grace-ms", "45000", "--", "python3", "train.py"]
    );
    let run = &adjust.mounts[1];
    assert_eq!(run.source, setup.dir.path().join("pods/p").to_string_lossy());
    assert!(run.options.contains(&"ro".to_owned()));
    let heartbeat = adjust.args.iter().position(|arg| arg == "--heartbeat").unwrap();
    let scratch = &adjust.mounts[2];
    assert_eq!(
        (
            scratch.r#type.as_str(),
            scratch.options.contains(&"ro".to_owned())
        ),
        ("tmpfs", false)
    );
    assert!(adjust.args[heartbeat + 1].starts_with(&format!("{}/", scratch.destination)));
    UnixStream::connect(socket(setup.dir.path(), "p")).await.unwrap();

    // Another connection of this plugin would see the result.
    let again = wire::Container {
        args: adjust.args,
        ..container("worker", "")
    };
    assert_eq!(setup.nri.create(pod("p"), again).await, None);
}

#[tokio::test]
async fn agents_of_other_versions_stay_while_a_container_uses_them() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    let adjust = setup.nri.create(pod("p"), container("worker", "")).await.unwrap();
    let present = PathBuf::from(&adjust.mounts[0].source);
    let [used, unused] = ["one", "another"].map(|version| agent(setup.dir.path(), version).dir);
    let mut worker = container("worker", "");
    worker.mounts = adjust.mounts;
    worker.mounts[0].source = used.to_string_lossy().into_owned();
    // Of any pod.
    let mut plain = pod("p");
    plain.annotations.clear();
    let mut request = wire::SynchronizeRequest {
        pods: vec![plain],
        containers: vec![worker],
        more: false,
    };
    setup
        .nri
        .call::<wire::SynchronizeResponse>("Synchronize", &request)
        .await;
    assert!(present.is_dir() && used.is_dir() && !unused.exists());
    request.containers.clear();
    setup
        .nri
        .call::<wire::SynchronizeResponse>("Synchronize", &request)
        .await;
    assert!(present.is_dir() && !used.exists());
}

#[tokio::test]
async fn other_containers_start_unchanged() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    assert_eq!(setup.nri.create(pod("p"), container("sidecar", "")).await, None);
    assert_eq!(
        setup
            .nri
            .create(pod("p"), container("worker", "/proc/1/ns/pid"))
            .await,
        None
    );
    let mut plain = pod("q");
    plain.annotations.clear();
    assert_eq!(setup.nri.create(plain, container("worker", "")).await, None);
    let mut nameless = pod("q");
    nameless.labels.clear();
    assert_eq!(setup.nri.create(nameless, container("worker", "")).await, None);
    assert!(!setup.dir.path().join("pods/q").exists());
}

#[tokio::test]
async fn a_worker_that_shares_a_pid_namespace_restarts_by_its_container() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    let shared = || container("worker", "/proc/1/ns/pid");
    assert_eq!(setup.nri.create(pod("p"), shared()).await, None);
    setup.workers.mark().await.unwrap();
    assert!(!setup.dir.path().join("pods/p").exists());
    let all = wire::SynchronizeRequest {
        pods: vec![pod("p")],
        containers: vec![shared()],
        more: false,
    };
    let _: wire::SynchronizeResponse = setup.nri.call("Synchronize", &all).await;
    let ended = Ended {
        exit: Exit { code: 1, signal: 0 },
        at: UnixNanos(5),
    };
    let exited = Input::Exited("id-of-worker".into(), ended);
    setup.workers.tell(exited).await.unwrap();
    // The other table reports its end, with the generation that it had.
    assert_eq!(setup.workers.snapshot().await.unwrap(), []);
    // Nor under a kernel of its own: no agent could report from there.
    let mut sandboxed = pod("q");
    sandboxed.runtime_handler = "kata-qemu".to_owned();
    assert_eq!(setup.nri.create(sandboxed, container("worker", "")).await, None);
}

/// A connection that hangs is closed, and a new one reports everything.
#[tokio::test]
async fn a_message_that_stops_in_its_middle_ends_the_connection() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    // Between messages it may be quiet for any time.
    tokio::time::pause();
    tokio::time::advance(IO_TIMEOUT * 100).await;
    tokio::time::resume();
    assert_eq!(setup.nri.create(pod("p"), container("sidecar", "")).await, None);
    setup.nri.stream.write_all(&[0, 0, 0, 1, 0, 0]).await.unwrap();
    tokio::time::pause();
    assert_eq!(setup.nri.stream.read_buf(&mut setup.nri.input).await.unwrap(), 0);
}

#[tokio::test]
async fn sockets_go_with_their_pods() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    setup.nri.create(pod("p"), container("worker", "")).await.unwrap();
    let removed = wire::RemovePodSandboxRequest { pod: Some(pod("p")) };
    let _: wire::RemovePodSandboxResponse = setup.nri.call("RemovePodSandbox", &removed).await;
    // The next creation waits for what came before it.
    setup.nri.create(pod("q"), container("worker", "")).await.unwrap();
    assert!(!socket(setup.dir.path(), "p").exists());
    assert!(socket(setup.dir.path(), "q").exists());
}

#[tokio::test]
async fn older_runtimes_report_by_state_change() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    setup.nri.create(pod("p"), container("worker", "")).await.unwrap();
    let removed = wire::StateChangeEvent {
        event: wire::Event::RemovePodSandbox.into(),
        pod: Some(pod("p")),
        container: None,
    };
    let _: wire::Empty = setup.nri.call("StateChange", &removed).await;
    setup.nri.create(pod("q"), container("worker", "")).await.unwrap();
    assert!(!socket(setup.dir.path(), "p").exists());
}

#[tokio::test]
async fn a_snapshot_in_parts_is_taken_as_one() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    setup
        .nri
        .create(pod("old"), container("worker", ""))
        .await
        .unwrap();
    let part = |uid: &str, more: bool| wire::SynchronizeRequest {
        pods: vec![pod(uid)],
        containers: vec![],
        more,
    };
    let first: wire::SynchronizeResponse = setup.nri.call("Synchronize", &part("p", true)).await;
    assert!(first.more);
    assert!(socket(setup.dir.path(), "old").exists());
    let last: wire::SynchronizeResponse = setup.nri.call("Synchronize", &part("q", false)).await;
    assert!(!last.more);
    assert!(!socket(setup.dir.path(), "old").exists());
    for uid in ["p", "q"] {
        UnixStream::connect(socket(setup.dir.path(), uid)).await.unwrap();
    }
}

#[tokio::test]
async fn a_worker_that_runs_without_an_agent_is_not_lost_when_nri_comes_back() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    // Created while the plugin was away, and found by a listing.
    let mark = setup.workers.mark().await.unwrap();
    let found = ListedContainer {
        pod: "p".into(),
        id: "id-of-worker".into(),
        name: "worker".to_owned(),
        ended: None,
    };
    let listed = Input::Listed {
        mark,
        pods: vec![("sandbox-p".into(), recognised(&pod("p")).unwrap())],
        containers: vec![found],
    };
    setup.workers.tell(listed).await.unwrap();
    let mut synchronize = wire::SynchronizeRequest {
        pods: vec![pod("p")],
        containers: vec![container("worker", ""), container("sidecar", "")],
        more: false,
    };
    let _: wire::SynchronizeResponse = setup.nri.call("Synchronize", &synchronize).await;
    assert_eq!(setup.workers.snapshot().await.unwrap(), []);
    // One that is really gone is lost.
    synchronize.containers.remove(0);
    let _: wire::SynchronizeResponse = setup.nri.call("Synchronize", &synchronize).await;
    let lost = setup.workers.snapshot().await.unwrap();
    assert_eq!(lost.len(), 1);
    assert_eq!(lost[0].phase, Phase::Lost(Exit::UNKNOWN));
}

#[tokio::test]
async fn unknown_methods_are_unimplemented_and_malformed_arguments_are_invalid() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    let code = |response: Response| response.status.unwrap().code;
    assert_eq!(
        code(setup.nri.raw(PLUGIN_SERVICE, "Novelty", vec![]).await),
        ttrpc::UNIMPLEMENTED
    );
    assert_eq!(
        code(setup.nri.raw("other.Service", "Configure", vec![]).await),
        ttrpc::UNIMPLEMENTED
    );
    let broken = setup.nri.raw(PLUGIN_SERVICE, "CreateContainer", vec![0xff]).await;
    assert_eq!(code(broken), ttrpc::INVALID_ARGUMENT);
    // The connection stays usable.
    assert!(
        setup
            .nri
            .create(pod("p"), container("worker", ""))
            .await
            .is_some()
    );
}

#[tokio::test]
async fn nri_works_from_the_snapshot_to_the_end_of_the_connection() {
    let mut setup = setup().await;
    let mut health = setup.workers.health().watch();
    setup.nri.accept().await;
    let _: wire::ConfigureResponse = setup
        .nri
        .call("Configure", &wire::ConfigureRequest::default())
        .await;
    assert_eq!(health.borrow_and_update().nri, Access::Unknown);
    let all = wire::SynchronizeRequest::default();
    let _: wire::SynchronizeResponse = setup.nri.call("Synchronize", &all).await;
    assert!(matches!(health.borrow_and_update().nri, Access::Well(_)));
    drop(setup.nri);
    health.changed().await.unwrap();
    assert!(matches!(health.borrow().nri, Access::Away(..)));
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_opened_again() {
    let mut setup = setup().await;
    setup.nri.accept().await;
    let path = setup.dir.path().join("nri.sock");
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    drop(setup.nri);
    let mut again = Nri::of(&listener).await;
    again.accept().await;
    // A frame over the limit ends this one as well, and only this one.
    again
        .stream
        .write_all(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff])
        .await
        .unwrap();
    Nri::of(&listener).await.accept().await;
}

/// As if its pods were too large for one message: it accepts the plugin, and drops it at once.
#[tokio::test(start_paused = true)]
async fn a_runtime_that_lists_no_pods_is_tried_less_and_less_and_that_is_reported() {
    let mut setup = setup().await;
    let health = setup.workers.health().clone();
    let path = setup.dir.path().join("nri.sock");
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    setup.nri.accept().await;
    drop(setup.nri);
    let began = tokio::time::Instant::now();
    for _ in 0..20 {
        Nri::of(&listener).await.accept().await;
    }
    // It was 200 ms each.
    assert!(began.elapsed() > Duration::from_secs(60), "{:?}", began.elapsed());
    let mut seen = health.watch();
    let why = |access: &crate::health::RuntimeAccess| matches!(&access.nri, Access::Away(_, why) if why.contains("4 MiB"));
    seen.wait_for(why).await.unwrap();
    // The pods are gone.
    let mut well = Nri::of(&listener).await;
    well.accept().await;
    let all = wire::SynchronizeRequest::default();
    let _: wire::SynchronizeResponse = well.call("Synchronize", &all).await;
    assert!(health.has_nri());
}

/// Random and damaged arguments, to every method.
#[test]
fn any_argument_is_answered_and_the_connection_stays_usable() {
    const METHODS: [&str; 7] = [
        "Configure",
        "Synchronize",
        "RunPodSandbox",
        "RemovePodSandbox",
        "CreateContainer",
        "RemoveContainer",
        "StateChange",
    ];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut setup = runtime.block_on(setup());
    runtime.block_on(setup.nri.accept());
    let nri = RefCell::new(&mut setup.nri);
    let create = wire::CreateContainerRequest {
        pod: Some(pod("p")),
        container: Some(container("worker", "")),
    };
    let valid = create.encode_to_vec();
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
    let garbage = prop::collection::vec(any::<u8>(), 0..100);
    let ask = |method: &str, payload: Vec<u8>| {
        let answer = runtime.block_on(nri.borrow_mut().raw(PLUGIN_SERVICE, method, payload));
        let Some(status) = answer.status else {
            return Ok(());
        };
        prop_assert_eq!(status.code, ttrpc::INVALID_ARGUMENT);
        prop_assert!(
            status.message.starts_with(&format!("{method}: ")),
            "{}",
            status.message
        );
        Ok(())
    };
    TestRunner::default()
        .run(
            &(prop::sample::select(&METHODS[..]), garbage, damage),
            |(method, garbage, damage)| {
                let mut damaged = valid.clone();
                for (at, byte) in damage {
                    let at = at.index(damaged.len());
                    damaged[at] = byte;
                }
                ask(method, garbage)?;
                ask("CreateContainer", damaged)
            },
        )
        .unwrap();
    // If the pod was damaged, no directory was made outside of its own.
    let made: Vec<_> = std::fs::read_dir(setup.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        made.iter()
            .all(|name| ["bin", "pods", "nri.sock"].iter().any(|known| name == known)),
        "{made:?}"
    );
    let again = runtime.block_on(setup.nri.create(pod("p"), container("worker", "")));
    assert!(again.is_some());
}
