//! Callers of the platform API: ServiceAccounts of the scene's namespace, each with its own rights.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use lockstep_integration::harness::{Namespace, eventually};
use lockstep_proto::platform::v1::platform_client::PlatformClient;
use lockstep_proto::platform::v1::watch_groups_response::Event;
use lockstep_proto::platform::v1::{self as pb};
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use tonic::{Request, Status, Streaming};

use crate::scene::{PATIENCE, Scene};

/// The name in the certificate, independent of the address.
const SERVER_NAME: &str = "lockstep-control-plane";

#[derive(Clone)]
pub(super) struct Caller {
    namespace: Namespace,
    channel: Channel,
    token: String,
}

/// A channel to a server with a certificate of this CA.
pub(crate) fn channel(address: SocketAddr, ca: &str) -> Channel {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name(SERVER_NAME);
    Channel::from_shared(format!("https://{address}"))
        .expect("an address")
        .tls_config(tls)
        .expect("a CA")
        .connect_lazy()
}

impl Caller {
    /// A caller without a token.
    pub(super) fn new(scene: &Scene, address: SocketAddr, ca: &str) -> Self {
        Self {
            namespace: scene.namespace.clone(),
            channel: channel(address, ca),
            token: String::new(),
        }
    }

    pub(super) fn with_token(&self, token: &str) -> Self {
        Self {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// The token that the caller presents.
    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// A ServiceAccount with these rights to the JobSets of its namespace.
    pub(super) async fn account(&self, name: &str, verbs: &[&str]) -> Result<Self> {
        self.namespace
            .kubectl(&["create", "serviceaccount", name])
            .await?;
        if !verbs.is_empty() {
            let verbs = format!("--verb={}", verbs.join(","));
            let role = [
                "create",
                "role",
                name,
                &verbs,
                "--resource=jobsets.jobset.x-k8s.io",
            ];
            self.namespace.kubectl(&role).await?;
            let role = format!("--role={name}");
            let account = format!("--serviceaccount={}:{name}", self.namespace.name);
            self.namespace
                .kubectl(&["create", "rolebinding", name, &role, &account])
                .await?;
            self.until_allowed(name).await?;
        }
        let token = self.namespace.kubectl(&["create", "token", name]).await?;
        Ok(self.with_token(token.trim()))
    }

    /// Waits until the API server knows the role, which it learns of by a watch.
    async fn until_allowed(&self, name: &str) -> Result<()> {
        let user = format!("system:serviceaccount:{}:{name}", self.namespace.name);
        eventually(&format!("{name} has its rights"), PATIENCE, async || {
            let can = ["auth", "can-i", "--list", "--as", &user];
            let listed = self.namespace.kubectl(&can).await?;
            ensure!(listed.contains("jobsets.jobset.x-k8s.io"), "{listed}");
            Ok(())
        })
        .await
    }

    fn client(&self) -> PlatformClient<Channel> {
        PlatformClient::new(self.channel.clone())
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        let value = format!("Bearer {}", self.token).parse().expect("a token");
        request.metadata_mut().insert("authorization", value);
        request
    }

    pub(super) async fn list(&self, list: pb::ListGroupsRequest) -> Result<pb::ListGroupsResponse, Status> {
        let answer = self.client().list_groups(self.request(list)).await?;
        Ok(answer.into_inner())
    }

    pub(super) async fn restart(
        &self,
        namespace: &str,
        name: &str,
        token: &str,
    ) -> Result<pb::RestartGroupResponse, Status> {
        let restart = pb::RestartGroupRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            token: token.to_owned(),
        };
        let answer = self.client().restart_group(self.request(restart)).await?;
        Ok(answer.into_inner())
    }

    pub(super) async fn nodes(&self) -> Result<Vec<pb::Node>, Status> {
        let list = pb::ListNodesRequest::default();
        let answer = self.client().list_nodes(self.request(list)).await?;
        Ok(answer.into_inner().nodes)
    }

    /// The same caller at another replica.
    pub(super) fn at(&self, address: SocketAddr, ca: &str) -> Self {
        Self {
            channel: channel(address, ca),
            ..self.clone()
        }
    }

    /// A dry run of a restart.
    pub(super) async fn dry_run(
        &self,
        namespace: &str,
        name: &str,
        token: &str,
    ) -> Result<pb::DryRun, Status> {
        let restart = pb::DryRunRestartRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            token: token.to_owned(),
        };
        let answer = self.client().dry_run_restart(self.request(restart)).await?;
        let tried = answer.into_inner().dry_run;
        tried.ok_or_else(|| Status::internal("it was no dry run"))
    }

    /// Restarts only these workers.
    pub(super) async fn restart_workers(
        &self,
        namespace: &str,
        only: Option<pb::target::Workers>,
        token: &str,
    ) -> Result<pb::RestartWorkersResponse, Status> {
        let restart = pb::RestartWorkersRequest {
            namespace: namespace.to_owned(),
            name: "js".to_owned(),
            token: token.to_owned(),
            only: only.map(|workers| pb::Target {
                workers: Some(workers),
            }),
        };
        let answer = self.client().restart_workers(self.request(restart)).await?;
        Ok(answer.into_inner())
    }

    /// A dry run of that.
    pub(super) async fn dry_run_workers(
        &self,
        namespace: &str,
        only: pb::target::Workers,
        token: &str,
    ) -> Result<pb::DryRun, Status> {
        let restart = pb::DryRunRestartWorkersRequest {
            namespace: namespace.to_owned(),
            name: "js".to_owned(),
            token: token.to_owned(),
            only: Some(pb::Target { workers: Some(only) }),
        };
        let answer = self
            .client()
            .dry_run_restart_workers(self.request(restart))
            .await?;
        let tried = answer.into_inner().dry_run;
        tried.ok_or_else(|| Status::internal("it was no dry run"))
    }

    pub(super) async fn set_suspended(
        &self,
        namespace: &str,
        name: &str,
        suspended: bool,
    ) -> Result<pb::SetSuspendedResponse, Status> {
        let wish = pb::SetSuspendedRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            suspended,
        };
        let answer = self.client().set_suspended(self.request(wish)).await?;
        Ok(answer.into_inner())
    }

    pub(super) async fn restarts(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<pb::ListRestartsResponse, Status> {
        let list = pb::ListRestartsRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let answer = self.client().list_restarts(self.request(list)).await?;
        Ok(answer.into_inner())
    }

    pub(super) async fn watch(&self, namespace: &str) -> Result<Watch, Status> {
        let watch = pb::WatchGroupsRequest {
            namespace: namespace.to_owned(),
            ..pb::WatchGroupsRequest::default()
        };
        let answer = self.client().watch_groups(self.request(watch)).await?;
        Ok(Watch(answer.into_inner()))
    }
}

pub(super) struct Watch(Streaming<pb::WatchGroupsResponse>);

impl Watch {
    /// The next event.
    pub(super) async fn next(&mut self) -> Result<Event> {
        let message = tokio::time::timeout(PATIENCE, self.0.message()).await??;
        message
            .and_then(|message| message.event)
            .context("the watch has ended")
    }

    /// Reads until the group meets the condition.
    pub(super) async fn until(
        &mut self,
        what: &str,
        expected: impl Fn(&pb::Group) -> bool,
    ) -> Result<pb::Group> {
        let mut last = None;
        loop {
            match self
                .next()
                .await
                .with_context(|| format!("{what}, after {last:?}"))?
            {
                Event::Changed(group) if expected(&group) => return Ok(group),
                Event::Changed(group) => last = Some(group),
                other => bail!("{other:?} before {what}"),
            }
        }
    }

    pub(super) async fn until_synced(&mut self) -> Result<()> {
        match self.next().await? {
            Event::Synced(_) => Ok(()),
            other => bail!("{other:?}, and not synced"),
        }
    }

    pub(super) async fn until_removed(&mut self, name: &str) -> Result<()> {
        loop {
            match self.next().await? {
                Event::Removed(key) if key.name == name => return Ok(()),
                Event::Changed(_) => {}
                other => bail!("{other:?} before {name} was removed"),
            }
        }
    }
}
