//! The gRPC service.

mod dry_run;
mod list_groups;

use std::pin::Pin;
use std::sync::Arc;

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector::{ObjectRef, Store};
use lockstep_api::{JobSet, WorkerRestartRequest, annotations};
use lockstep_core::jobset::in_place::Agents;
use lockstep_proto::platform::v1 as pb;
use lockstep_proto::platform::v1::platform_server::Platform;
use serde_json::json;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::authorize::{self, Authorizer, Caller};
use super::convert::{self, Detail};
use super::error_details::{CallError, Reason};
use super::follow::Follower;
use super::large::{HeldRoom, NamespaceLines, Unread};
use super::suspend::{self, Done};
use super::watch_slots::WatchSlots;
use super::watching::{Event, Watching};
use super::written::{self, Unwritten};
use super::{fields, restart_workers};
use crate::controllers::restart;
use crate::controllers::restart::board::question::RequestedRestart;
use crate::controllers::restart::board::{Board, Key, Snapshot};
use crate::hub::Role;
use crate::k8s::watch::lean::Lean;
use crate::k8s::watch::{self, PackedJobSet};

/// Serves `lockstep.platform.v1.Platform`.
pub struct PlatformService {
    pub(super) board: Arc<Board>,
    jobsets: Store<PackedJobSet>,
    client: Client,
    authorizer: Arc<dyn Authorizer>,
    agents: Agents,
    role: Option<Arc<Role>>,
    slots: WatchSlots,
    pub(super) lines: NamespaceLines,
    pub(super) shutdown: CancellationToken,
}

impl PlatformService {
    /// A service without node daemons, which ends its watches with `shutdown`.
    #[must_use]
    pub fn new(
        board: Arc<Board>,
        jobsets: Store<PackedJobSet>,
        client: Client,
        authorizer: Arc<dyn Authorizer>,
        agents: Agents,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            board,
            jobsets,
            client,
            authorizer,
            agents,
            role: None,
            slots: WatchSlots::default(),
            lines: NamespaceLines::default(),
            shutdown,
        }
    }

    /// The same, with the node daemons of this hub, if there is one.
    #[must_use]
    pub fn with_hub(self, role: Option<Arc<Role>>) -> Self {
        Self { role, ..self }
    }

    /// Checks that this replica leads: only the leader knows the groups.
    pub(super) fn leads(&self) -> Result<(), Status> {
        self.board.is_leading().then_some(()).ok_or_else(not_leading)
    }

    pub(super) async fn may(
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

    /// The state of a group.
    ///
    /// # Errors
    /// Why there is no such group.
    fn group(&self, key: &Key) -> Result<Arc<Snapshot>, Status> {
        self.board.snapshot(key).ok_or_else(|| self.no_group(key))
    }

    fn no_group(&self, key: &Key) -> Status {
        let location = authorize::location(&key.namespace, &key.name);
        let of = ObjectRef::new(&key.name).within(&key.namespace);
        let jobset = self.jobsets.get(&watch::packed(&of));
        let Some(jobset) = jobset.and_then(|jobset| jobset.unpack().ok()) else {
            let message = format!("name: there is no JobSet{location}");
            return CallError::new(Reason::JobsetNotFound, message).of_key(key).into();
        };
        let taken_over = || {
            let message = format!("the JobSet{location} is still being taken over; try again");
            CallError::new(Reason::TakingOver, message).of_key(key).into()
        };
        self.is_group(&jobset).err().unwrap_or_else(taken_over)
    }

    /// Checks that Lockstep restarts the JobSet in place. The error says why it does not.
    fn is_group(&self, jobset: &JobSet) -> Result<(), Status> {
        if restart::is_group(jobset, &self.agents) {
            return Ok(());
        }
        let location = authorize::location(jobset.ns(), jobset.name());
        let refused = if jobset.is_finished() {
            CallError::new(
                Reason::JobsetEnded,
                format!("name: the JobSet{location} has ended"),
            )
        } else {
            let message = format!("name: the JobSet{location} is not restarted in place by Lockstep");
            CallError::new(Reason::NotInPlace, message)
        };
        Err(refused.of(jobset.ns(), jobset.name()).into())
    }

    /// Writes the annotation that asks for a restart.
    async fn request(&self, key: &Key, uid: &str, token: &str) -> Result<(), Status> {
        let line = self.lines.of(&key.namespace);
        let _turn = line.write().await;
        let api: Api<Lean<JobSet>> = Api::namespaced(self.client.clone(), &key.namespace);
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
                    "requested a restart"
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

    /// Checks a request to restart a group. Returns the group and the token of the request.
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

    /// Checks a request for a worker restart. Returns the group and the request.
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
}

/// An answer that holds this room until it is read.
pub(super) fn holding<T>(room: impl IntoIterator<Item = Unread>, answer: T) -> Response<T> {
    let mut answer = Response::new(answer);
    let room: Vec<Unread> = room.into_iter().collect();
    if !room.is_empty() {
        answer.extensions_mut().insert(HeldRoom(Arc::new(room)));
    }
    answer
}

pub(super) fn not_leading() -> Status {
    let message = "this replica of the control plane does not lead; try again to reach the leader";
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
        list_groups::list_groups(self, request).await
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
        let slot = self.slots.take(&filter.namespace);
        let slot = slot.map_err(|refused| refused.of(&filter.namespace, &filter.name))?;
        let watching = Watching::new(
            Follower::new(
                Arc::clone(&self.board),
                filter.clone(),
                Detail::asked(wish.omit_workers),
                self.lines.of(&filter.namespace),
            ),
            filter,
            (caller, Arc::clone(&self.authorizer)),
            self.shutdown.clone(),
            slot,
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
        let (dry_run, room) = dry_run::dry_run(self, &key, state, RequestedRestart::All(token)).await?;
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
        let (dry_run, room) = dry_run::dry_run(self, &key, state, RequestedRestart::Workers(wish)).await?;
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
        let Some((state, history)) = self.board.snapshot_with_history(&key) else {
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
