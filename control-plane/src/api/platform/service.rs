//! The gRPC service and its server.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector::{ObjectRef, Store};
use lockstep_api::{JobSet, WorkerRestartRequest, annotations};
use lockstep_core::jobset::in_place::Agents;
use lockstep_proto::platform::v1 as pb;
use lockstep_proto::platform::v1::platform_server::{Platform, PlatformServer};
use prost::Message as _;
use rustls::ServerConfig;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::HealthServer;

use super::authorize::{self, Authorizer, Caller};
use super::calls::Calls;
use super::deadline::Deadlines;
use super::error_details::{CallError, Reason};
use super::follow::Follower;
use super::large::{Held, Lines, Size, Unread};
use super::suspend::{self, Done};
use super::watch_slots::WatchSlots;
use super::watching::Watching;
use super::written::{self, Unwritten};
use super::{convert, dry_run, fields, health, restart_workers};
use crate::controllers::restart;
use crate::controllers::restart::board::question::RequestedRestart;
use crate::controllers::restart::board::{Board, Key, Snapshot};
use crate::hub::Role;
use crate::k8s::watch::{self, PackedJobSet};
use crate::net::tls::{self, ConnectionLimit, HubIdentity, UnauthenticatedStream};

/// Connections of one address, with a token or without; more of it wait, and are then turned away.
const CONNECTIONS: usize = 256;
/// Calls and watches at the same time on one connection.
const MAX_STREAMS: u32 = 64;
/// Largest request, in bytes.
pub(super) const MAX_REQUEST: usize = 16 * 1024;
/// Bytes that a caller may send of one call, and of all calls of a connection, before they are looked at.
const WINDOWS: (u32, u32) = (32 << 10, 128 << 10);
/// The longest headers of a call, in bytes. A token has one or two KiB.
const LONGEST_HEAD: u32 = 16 << 10;
/// A page ends with the group that makes it larger than this, in bytes.
const FULL_PAGE: usize = 2 * 1024 * 1024;
/// How long a call may take. The API server may have to be asked.
const CALL: Duration = Duration::from_secs(30);
/// How long the server waits for its callers when it ends. Who reads nothing may hold a stream open for as long as they like.
const FAREWELL: Duration = Duration::from_secs(5);

/// Serves `lockstep.platform.v1.Platform`.
pub struct PlatformService {
    board: Arc<Board>,
    jobsets: Store<PackedJobSet>,
    client: Client,
    authorizer: Arc<dyn Authorizer>,
    agents: Agents,
    role: Option<Arc<Role>>,
    places: WatchSlots,
    lines: Lines,
    shutdown: CancellationToken,
}

pub(super) type Event = Result<pb::WatchGroupsResponse, Status>;

impl PlatformService {
    /// A service that ends its watches with `shutdown`. `role` knows the node daemons, where they can connect.
    #[must_use]
    pub fn new(
        board: Arc<Board>,
        jobsets: Store<PackedJobSet>,
        client: Client,
        authorizer: Arc<dyn Authorizer>,
        agents: Agents,
        role: Option<Arc<Role>>,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            board,
            jobsets,
            client,
            authorizer,
            agents,
            role,
            places: WatchSlots::default(),
            lines: Lines::default(),
            shutdown,
        }
    }

    /// Only the leader knows the groups.
    fn leads(&self) -> Result<(), Status> {
        self.board.leads().then_some(()).ok_or_else(not_leading)
    }

    async fn may(
        &self,
        caller: &Caller,
        verb: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<(), Status> {
        let allowed = self.authorizer.authorize(caller, verb, namespace, name).await;
        allowed.map_err(|refusal| {
            self.authorizer.refused(caller, &refusal);
            refusal.status(verb, namespace, name)
        })
    }

    /// The group, or why there is none.
    fn group(&self, key: &Key) -> Result<Arc<Snapshot>, Status> {
        self.board.get(key).ok_or_else(|| self.no_group(key))
    }

    fn no_group(&self, key: &Key) -> Status {
        let place = authorize::place(&key.namespace, &key.name);
        let of = ObjectRef::new(&key.name).within(&key.namespace);
        let jobset = self.jobsets.get(&watch::packed(&of));
        let Some(jobset) = jobset.and_then(|jobset| jobset.unpack().ok()) else {
            let message = format!("name: there is no JobSet{place}");
            return CallError::new(Reason::JobsetNotFound, message).of_key(key).into();
        };
        let taken_over = || {
            let message = format!("the JobSet{place} is only just being taken over; try again");
            CallError::new(Reason::TakingOver, message).of_key(key).into()
        };
        self.is_group(&jobset).err().unwrap_or_else(taken_over)
    }

    /// Whether Lockstep restarts the JobSet in place, or why it does not.
    fn is_group(&self, jobset: &JobSet) -> Result<(), Status> {
        if restart::is_group(jobset, &self.agents) {
            return Ok(());
        }
        let place = authorize::place(jobset.ns(), jobset.name());
        let refused = if jobset.is_finished() {
            CallError::new(Reason::JobsetEnded, format!("name: the JobSet{place} has ended"))
        } else {
            let message = format!("name: the JobSet{place} is not restarted in place by Lockstep");
            CallError::new(Reason::NotInPlace, message)
        };
        Err(refused.of(jobset.ns(), jobset.name()).into())
    }

    /// Writes the annotation that asks for a restart.
    async fn request(&self, key: &Key, uid: &str, token: &str) -> Result<(), Status> {
        let line = self.lines.of(&key.namespace);
        let _turn = line.write().await;
        let api: Api<JobSet> = Api::namespaced(self.client.clone(), &key.namespace);
        let patch = json!({"metadata": {
            "uid": uid,
            "annotations": {annotations::RESTART_REQUEST: token},
        }});
        let patched = api
            .patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        match patched {
            Ok(_) => {
                tracing::info!(
                    namespace = key.namespace,
                    jobset = key.name,
                    token,
                    "a restart was asked for"
                );
                Ok(())
            }
            Err(error) => match written::why(error, key) {
                Unwritten::Gone(why) | Unwritten::Raced(why) => {
                    let message = format!("the JobSet has changed meanwhile: {why}");
                    Err(CallError::new(Reason::JobsetChanged, message).of_key(key).into())
                }
                Unwritten::Final(status) => Err(status),
            },
        }
    }

    /// The group that this caller may restart, and the token of the request.
    async fn restartable(
        &self,
        caller: &Caller,
        (namespace, name): (String, String),
        token: String,
    ) -> Result<(Key, String, Arc<Snapshot>), Status> {
        self.leads()?;
        let key = fields::key(namespace, name)?;
        let token = fields::token(token)?;
        self.may(caller, "patch", &key.namespace, &key.name).await?;
        let state = self.group(&key)?;
        Ok((key, token, state))
    }

    /// The group some of whose workers this caller may restart, and the request.
    async fn restartable_workers(
        &self,
        caller: &Caller,
        group: (String, String),
        token: String,
        target: Option<pb::Target>,
    ) -> Result<(Key, WorkerRestartRequest, Arc<Snapshot>), Status> {
        let target = fields::target(target)?;
        let (key, token, state) = self.restartable(caller, group, token).await?;
        restart_workers::check(&target, &state.jobset, &state.observed)?;
        Ok((key, WorkerRestartRequest { target, token }, state))
    }

    /// What the request would do, with the room that the answer takes.
    async fn try_out(
        &self,
        key: &Key,
        state: Arc<Snapshot>,
        wish: RequestedRestart,
    ) -> Result<(pb::DryRun, Option<Unread>), Status> {
        let asks = self.board.asks(key).ok_or_else(|| dry_run::given_up(key))?;
        let size = Size::of(&state, false);
        drop(state);
        let line = self.lines.of(&key.namespace);
        let mut room = line.room(size).await;
        let answer = dry_run::ask(&asks, key, wish).await?;
        // It may have grown meanwhile.
        let size = match Size::of_workers(answer.observed.workers.len(), false) {
            now if size.holds(now) => size,
            now => {
                drop(room.take());
                room = line.room(now).await;
                now
            }
        };
        let tell = move || convert::dry_run(&answer.preview, &answer.observed);
        let told = if size.is_large() {
            line.in_turn(tell).await.ok_or_else(not_leading)?
        } else {
            tell()
        };
        Ok((told, room))
    }
}

/// An answer that holds this room until it is read.
fn holding<T>(room: impl IntoIterator<Item = Unread>, answer: T) -> Response<T> {
    let mut answer = Response::new(answer);
    let room: Vec<Unread> = room.into_iter().collect();
    if !room.is_empty() {
        answer.extensions_mut().insert(Held(Arc::new(room)));
    }
    answer
}

fn not_leading() -> Status {
    let message = "this replica of the control plane does not lead; try again, another one does";
    CallError::new(Reason::NotLeading, message).into()
}

fn is_handled(state: &Snapshot, token: &str) -> bool {
    state.observed.durable.handled_request.as_deref() == Some(token)
}

#[tonic::async_trait]
impl Platform for PlatformService {
    async fn list_groups(
        &self,
        request: Request<pb::ListGroupsRequest>,
    ) -> Result<Response<pb::ListGroupsResponse>, Status> {
        self.leads()?;
        let (caller, list) = Caller::of(request);
        let filter = fields::filter(list.namespace, String::new())?;
        let after = fields::after(&list.page_token, &filter)?;
        self.may(&caller, "list", &filter.namespace, "").await?;
        let (found, mut more) = self.board.list(&filter, after, fields::page_size(list.page_size));
        let mut answer = pb::ListGroupsResponse::default();
        // A waiting call must not keep old states alive.
        let sizes = found
            .into_iter()
            .map(|(key, state)| (key, Size::of(&state, list.omit_workers)));
        let found: Vec<(Key, Size)> = sizes.collect();
        let (mut size, count) = (0, found.len());
        let mut last = None;
        let line = self.lines.of(&filter.namespace);
        let (mut unread, mut looked_at) = (Vec::new(), 0);
        // A large one has a page for itself, and room of its own.
        let small = found
            .iter()
            .map(|(_, size)| *size)
            .take_while(|size| !size.is_large());
        let page = Size::of_page(small, FULL_PAGE);
        unread.extend(line.room(page).await);
        for (key, expected) in found {
            // One that does not fit beside the others begins the next page.
            if expected.is_large() && !answer.groups.is_empty() {
                break;
            }
            let (of, omit_workers, board) = (key.clone(), list.omit_workers, Arc::clone(&self.board));
            let tell = move |size: Size| {
                let state = board.get(&of)?;
                let now = Size::of(&state, omit_workers);
                let group = size.holds(now).then(|| convert::group(&of, &state, omit_workers));
                Some(group.ok_or(now))
            };
            let small = match expected.is_large() {
                true => Err(expected),
                // There is room for the page.
                false => tell(Size::not_large()).transpose(),
            };
            let (told, has_page) = match small {
                Ok(told) => (told.map(|group| (group, None)), false),
                // It has become large meanwhile.
                Err(_) if !answer.groups.is_empty() => break,
                Err(large) => {
                    unread.clear();
                    (line.tell(large, tell).await, true)
                }
            };
            looked_at += 1;
            last = Some(key);
            // One that is gone meanwhile is not told.
            let Some((group, room)) = told else {
                if self.shutdown.is_cancelled() {
                    return Err(not_leading());
                }
                if has_page {
                    unread.extend(line.room(page).await);
                }
                continue;
            };
            unread.extend(room);
            size += group.encoded_len();
            answer.groups.push(group);
            if size > FULL_PAGE || has_page {
                break;
            }
        }
        more |= looked_at < count;
        if let Some(last) = last.filter(|_| more) {
            answer.next_page_token = fields::page_token(&last);
        }
        Ok(holding(unread, answer))
    }

    type WatchGroupsStream = Pin<Box<dyn Stream<Item = Event> + Send>>;

    async fn watch_groups(
        &self,
        request: Request<pb::WatchGroupsRequest>,
    ) -> Result<Response<Self::WatchGroupsStream>, Status> {
        self.leads()?;
        let (caller, wish) = Caller::of(request);
        let filter = fields::filter(wish.namespace, wish.name)?;
        self.may(&caller, "watch", &filter.namespace, &filter.name)
            .await?;
        let place = self.places.take(&filter.namespace);
        let place = place.map_err(|refused| refused.of(&filter.namespace, &filter.name))?;
        let watching = Watching::new(
            Follower::new(
                Arc::clone(&self.board),
                filter.clone(),
                wish.omit_workers,
                self.lines.of(&filter.namespace),
            ),
            filter,
            (caller, Arc::clone(&self.authorizer)),
            self.shutdown.clone(),
            place,
        );
        let events = futures::stream::unfold(Some(watching), |watching| async move {
            let mut watching = watching?;
            let event = watching.next().await;
            let rest = event.is_ok().then_some(watching);
            Some((event, rest))
        });
        Ok(Response::new(Box::pin(events)))
    }

    async fn restart_group(
        &self,
        request: Request<pb::RestartGroupRequest>,
    ) -> Result<Response<pb::RestartGroupResponse>, Status> {
        let (caller, asked) = Caller::of(request);
        let group = (asked.namespace, asked.name);
        let (key, token, state) = self.restartable(&caller, group, asked.token).await?;
        let asked = state.jobset.annotation(annotations::RESTART_REQUEST);
        let is_asked = asked == Some(token.as_str());
        let answer = pb::RestartGroupResponse {
            uid: state.jobset.uid_str().to_owned(),
            generation: state.generation.0,
            handled: is_handled(&state, &token),
            token,
        };
        // A waiting call must not keep an old state alive.
        drop(state);
        if !is_asked && !answer.handled {
            self.request(&key, &answer.uid, &answer.token).await?;
        }
        Ok(Response::new(answer))
    }

    async fn dry_run_restart(
        &self,
        request: Request<pb::DryRunRestartRequest>,
    ) -> Result<Response<pb::DryRunRestartResponse>, Status> {
        let (caller, asked) = Caller::of(request);
        let group = (asked.namespace, asked.name);
        let (key, token, state) = self.restartable(&caller, group, asked.token).await?;
        let uid = state.jobset.uid_str().to_owned();
        let (dry_run, room) = self.try_out(&key, state, RequestedRestart::All(token)).await?;
        let dry_run = Some(dry_run);
        Ok(holding(room, pb::DryRunRestartResponse { uid, dry_run }))
    }

    async fn restart_workers(
        &self,
        request: Request<pb::RestartWorkersRequest>,
    ) -> Result<Response<pb::RestartWorkersResponse>, Status> {
        let (caller, asked) = Caller::of(request);
        let group = (asked.namespace, asked.name);
        let (key, wish, state) = self
            .restartable_workers(&caller, group, asked.token, asked.only)
            .await?;
        let uid = state.jobset.uid_str().to_owned();
        let is_handled = state.observed.durable.handled_worker_restart.as_deref() == Some(&wish.to_string());
        drop(state);
        if !is_handled {
            let line = self.lines.of(&key.namespace);
            let _turn = line.write().await;
            restart_workers::request(self.client.clone(), &key, &uid, &wish).await?;
        }
        Ok(Response::new(pb::RestartWorkersResponse {
            token: wish.token,
            uid,
            handled: is_handled,
        }))
    }

    async fn dry_run_restart_workers(
        &self,
        request: Request<pb::DryRunRestartWorkersRequest>,
    ) -> Result<Response<pb::DryRunRestartWorkersResponse>, Status> {
        let (caller, asked) = Caller::of(request);
        let group = (asked.namespace, asked.name);
        let (key, wish, state) = self
            .restartable_workers(&caller, group, asked.token, asked.only)
            .await?;
        let uid = state.jobset.uid_str().to_owned();
        let (dry_run, room) = self.try_out(&key, state, RequestedRestart::Workers(wish)).await?;
        let dry_run = Some(dry_run);
        Ok(holding(room, pb::DryRunRestartWorkersResponse { uid, dry_run }))
    }

    async fn set_suspended(
        &self,
        request: Request<pb::SetSuspendedRequest>,
    ) -> Result<Response<pb::SetSuspendedResponse>, Status> {
        self.leads()?;
        let (caller, wish) = Caller::of(request);
        let key = fields::key(wish.namespace, wish.name)?;
        self.may(&caller, "patch", &key.namespace, &key.name).await?;
        let fits = |jobset: &JobSet| self.is_group(jobset);
        let line = self.lines.of(&key.namespace);
        let _turn = line.write().await;
        let Done { uid, changed } = suspend::set(self.client.clone(), &key, wish.suspended, fits).await?;
        Ok(Response::new(pb::SetSuspendedResponse { uid, changed }))
    }

    async fn list_restarts(
        &self,
        request: Request<pb::ListRestartsRequest>,
    ) -> Result<Response<pb::ListRestartsResponse>, Status> {
        self.leads()?;
        let (caller, list) = Caller::of(request);
        let key = fields::key(list.namespace, list.name)?;
        self.may(&caller, "list", &key.namespace, &key.name).await?;
        let Some((state, history)) = self.board.history(&key) else {
            return Err(self.no_group(&key));
        };
        Ok(Response::new(pb::ListRestartsResponse {
            uid: state.jobset.uid_str().to_owned(),
            restarts: history.entries().map(convert::restart).collect(),
            since_unix_nanos: history.since.0,
        }))
    }

    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<pb::ListNodesResponse>, Status> {
        self.leads()?;
        let (caller, list) = Caller::of(request);
        let after = fields::after_node(list.page_token)?;
        self.may(&caller, "list", "", "").await?;
        let Some(role) = &self.role else {
            return Ok(Response::new(pb::ListNodesResponse::default()));
        };
        let most = fields::page_size(list.page_size);
        let (found, next) = role.daemons(&after, most).ok_or_else(not_leading)?;
        Ok(Response::new(pb::ListNodesResponse {
            next_page_token: next.unwrap_or_default(),
            nodes: found
                .into_iter()
                .map(|daemon| convert::node(daemon, &self.agents))
                .collect(),
        }))
    }
}

/// Serves the platform API until `shutdown` is cancelled, from when there is a certificate for it.
///
/// # Errors
/// Where the address cannot be bound or the server fails.
pub(crate) async fn run(
    address: Option<SocketAddr>,
    identity: Arc<HubIdentity>,
    service: PlatformService,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let Some(address) = address else {
        shutdown.cancelled().await;
        return Ok(());
    };
    let Some(tls) = shutdown.run_until_cancelled(identity.ready()).await else {
        return Ok(());
    };
    let listener = crate::net::serve::listen(address)
        .await
        .with_context(|| format!("platform API: {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "platform API listens");
    serve_on(listener, tls?, service).await
}

pub(super) async fn serve_on(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    service: PlatformService,
) -> anyhow::Result<()> {
    let shutdown = service.shutdown.clone();
    let health = health::Health::new(Arc::clone(&service.board), shutdown.clone());
    let (reflection, reflection_alpha) = health::reflection(&shutdown)?;
    let door = ConnectionLimit::new(CONNECTIONS, |peer, why| {
        tracing::debug!(peer, reason = why.reason(), error = %why, "a caller was turned away");
    });
    let connections = tls::accept(listener, tls, door)
        .map(|accepted| accepted.map(|guest| UnauthenticatedStream::of(guest, None)));
    let served = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .max_concurrent_streams(Some(MAX_STREAMS))
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .http2_max_header_list_size(LONGEST_HEAD)
        .layer(Calls::default())
        .layer(Deadlines { call: CALL })
        .add_service(PlatformServer::new(service).max_decoding_message_size(MAX_REQUEST))
        .add_service(HealthServer::new(health).max_decoding_message_size(MAX_REQUEST))
        .add_service(reflection)
        .add_service(reflection_alpha)
        .serve_with_incoming_shutdown(connections, shutdown.clone().cancelled_owned());
    let farewell = async {
        shutdown.cancelled().await;
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::select! {
        served = served => served?,
        () = farewell => tracing::info!("callers of the platform API did not end in time"),
    }
    Ok(())
}
