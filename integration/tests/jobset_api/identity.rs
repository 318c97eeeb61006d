//! Who is a node daemon and who is not: tokens of a real API server, bound to pods that the test
//! assigns to a node.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node as ClusterNode, Pod, Secret, ServiceAccount};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use lockstep_integration::harness::eventually;
use lockstep_integration::host::free_addresses;
use lockstep_proto::node::v1::hub_message::Kind as FromHub;
use lockstep_proto::node::v1::node_hub_client::NodeHubClient;
use lockstep_proto::node::v1::{self as pb, node_message};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use crate::control_plane::get as get_plainly;
use crate::fixture::{Case, case};
use crate::platform::caller::channel;
use crate::scene::{PATIENCE, Scene, hub_ca_in};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(node_daemons_are_known_by_their_tokens alone),
        case!(a_replica_that_waits_says_where_the_leader_is_until_it_leads alone),
        case!(the_hubs_authority_is_replaced_under_streams_that_stand alone),
        case!(a_replica_whose_hub_has_no_port_is_not_ready_and_says_why alone),
    ]
}

/// The audience of the tokens of node daemons.
pub(crate) const AUDIENCE: &str = "lockstep-hub";
/// The namespace in which the product is installed.
pub(crate) const NAMESPACE: &str = "lockstep-system";

/// A ServiceAccount.
pub(crate) struct Account {
    client: Client,
    name: &'static str,
}

impl Account {
    /// The ServiceAccount of node daemons.
    pub(crate) async fn of_daemons(scene: &Scene) -> Result<Self> {
        Self::named(scene, "lockstep-node-daemon").await
    }

    async fn named(scene: &Scene, name: &'static str) -> Result<Self> {
        let account = Self {
            client: scene.client(),
            name,
        };
        let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
        made(
            Api::<Namespace>::all(scene.client())
                .create(&PostParams::default(), &namespace)
                .await,
        )?;
        let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        made(
            account
                .api::<ServiceAccount>()
                .create(&PostParams::default(), &object)
                .await,
        )?;
        Ok(account)
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The ServiceAccount of node daemons, with two Node objects for them. Kubernetes removes pods
    /// of missing nodes within a minute.
    async fn on_two_nodes(scene: &Scene) -> Result<Self> {
        for name in ["node-a", "node-b"] {
            let node = json!({"metadata": {"name": name}, "spec": {"unschedulable": true}});
            let node = serde_json::from_value(node)?;
            made(
                Api::<ClusterNode>::all(scene.client())
                    .create(&PostParams::default(), &node)
                    .await,
            )?;
        }
        Self::of_daemons(scene).await
    }

    /// A token as the kubelet of this node requests it, for a pod of this account that is bound
    /// there.
    pub(crate) async fn token_on(&self, node: &str, audience: &str) -> Result<String> {
        let pod = self.pod_on(node).await?;
        self.token_of(&pod, audience).await
    }

    async fn pod_on(&self, node: &str) -> Result<Pod> {
        let pod = json!({
            "metadata": {"generateName": "daemon-of-the-test-"},
            "spec": {
                "serviceAccountName": self.name,
                "nodeName": node,
                "containers": [{"name": "c", "image": "none"}],
            },
        });
        let pod = serde_json::from_value(pod)?;
        Ok(self.api::<Pod>().create(&PostParams::default(), &pod).await?)
    }

    async fn token_of(&self, pod: &Pod, audience: &str) -> Result<String> {
        let (name, uid) = (pod.name_any(), pod.uid());
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
        self.token(json!({"audiences": [audience], "boundObjectRef": bound}))
            .await
    }

    async fn token(&self, spec: Value) -> Result<String> {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let params = PostParams::default();
        let accounts = self.api::<ServiceAccount>();
        let answer: Value = accounts
            .create_subresource("token", self.name, &params, &request)
            .await?;
        let token = answer["status"]["token"].as_str();
        Ok(token.context("no token")?.to_owned())
    }
}

/// Succeeds if the object was created or exists already.
fn made<T>(answer: kube::Result<T>) -> Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Ok(()),
    }
}

/// A connection to the hub.
struct Hub {
    address: SocketAddr,
    ca: String,
}

/// A stream that the hub has welcomed.
struct Node {
    tx: mpsc::Sender<pb::NodeMessage>,
    rx: Streaming<pb::HubMessage>,
}

impl Node {
    /// The error that the hub ends the stream with.
    async fn end(&mut self) -> Result<Status> {
        let end = async {
            loop {
                match self.rx.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => bail!("it has ended without a reason"),
                    Err(status) => return Ok(status),
                }
            }
        };
        tokio::time::timeout(PATIENCE, end).await?
    }
}

impl Hub {
    /// Says hello with this token, and is welcomed.
    async fn connect(&self, token: &str) -> Result<Node, Status> {
        let (tx, mut rx) = self.hello(token).await?;
        match rx.message().await?.and_then(|message| message.kind) {
            Some(FromHub::Welcome(_)) => Ok(Node { tx, rx }),
            other => Err(Status::internal(format!("not welcomed: {other:?}"))),
        }
    }

    /// The address of the leader, as a waiting replica reports it.
    async fn leader(&self, token: &str) -> Result<String, Status> {
        let (_tx, mut rx) = self.hello(token).await?;
        match rx.message().await?.and_then(|message| message.kind) {
            Some(FromHub::NotLeader(leader)) => Ok(leader.address),
            other => Err(Status::internal(format!("not redirected: {other:?}"))),
        }
    }

    async fn hello(
        &self,
        token: &str,
    ) -> Result<(mpsc::Sender<pb::NodeMessage>, Streaming<pb::HubMessage>), Status> {
        let (tx, messages) = mpsc::channel(4);
        let hello = pb::Hello {
            protocol_min: 1,
            protocol_max: 3,
            ..pb::Hello::default()
        };
        let hello = node_message::Kind::Hello(hello);
        tx.try_send(pb::NodeMessage { kind: Some(hello) })
            .map_err(|_| Status::internal("no room"))?;
        let mut request = Request::new(ReceiverStream::new(messages));
        let metadata = request.metadata_mut();
        let value = format!("Bearer {token}");
        let value = value.parse().map_err(|_| Status::internal("no header"))?;
        metadata.insert("authorization", value);
        let mut client = NodeHubClient::new(channel(self.address, &self.ca));
        Ok((tx, client.connect(request).await?.into_inner()))
    }

    async fn refuses(&self, token: &str, text: &str) -> Result<()> {
        let Err(status) = self.connect(token).await else {
            bail!("it is not refused: {text}")
        };
        ensure!(
            status.code() == Code::Unauthenticated && status.message().contains(text),
            "{status}"
        );
        Ok(())
    }
}

async fn node_daemons_are_known_by_their_tokens(scene: Scene) -> Result<()> {
    let [address] = free_addresses()?;
    let control_plane = scene.control_plane();
    let dir = control_plane.dir().join("identity");
    let (address_flag, dir_flag) = (address.to_string(), dir.display().to_string());
    control_plane.stop().await?;
    let flags = ["--hub-bind-address", &address_flag, "--hub-tls-dir", &dir_flag];
    control_plane.start_with(&flags).await?;
    control_plane.until_ready().await?;
    let result = Box::pin(async {
        let ca = hub_ca_in(&dir).await?;
        tells_them_from_others(&scene, &Hub { address, ca }).await
    })
    .await;
    // Others find the control plane without a hub.
    control_plane.stop().await?;
    result
}

/// True if the API server accepts the token.
async fn is_good(scene: &Scene, token: &str) -> Result<bool> {
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: token.to_owned(),
            audiences: Some(vec![AUDIENCE.to_owned()]),
        },
        ..TokenReview::default()
    };
    let reviews: Api<TokenReview> = Api::all(scene.client());
    let answer = reviews.create(&PostParams::default(), &review).await?;
    let status = answer.status.context("no status")?;
    Ok(status.authenticated == Some(true))
}

async fn tells_them_from_others(scene: &Scene, hub: &Hub) -> Result<()> {
    let daemons = Account::on_two_nodes(scene).await?;
    let token = daemons.token_on("node-a", AUDIENCE).await?;
    let mut healthy = eventually("a daemon is welcomed", PATIENCE, async || {
        Ok(hub.connect(&token).await?)
    })
    .await?;

    let stranger = Account::named(scene, "stranger").await?;
    let of_stranger = stranger.token_on("node-a", AUDIENCE).await?;
    hub.refuses(&of_stranger, "system:serviceaccount:lockstep-system:stranger")
        .await?;
    let for_others = daemons
        .token_on("node-a", "https://kubernetes.default.svc")
        .await?;
    hub.refuses(&for_others, "not for the audience lockstep-hub")
        .await?;
    let unbound = daemons.token(json!({"audiences": [AUDIENCE]})).await?;
    hub.refuses(&unbound, "names no node").await?;

    // A token whose pod is gone has a valid signature. The hub detects it by checks beside the
    // stream.
    let gone = daemons.pod_on("node-b").await?;
    let token = daemons.token_of(&gone, AUDIENCE).await?;
    let at_once = DeleteParams::default().grace_period(0);
    daemons.api::<Pod>().delete(&gone.name_any(), &at_once).await?;
    // The API server looks such pods up in its own cache. A client that learns from it that a token
    // is good asks again only minutes later.
    eventually(
        "the API server knows that the pod is gone",
        PATIENCE,
        async || {
            ensure!(!is_good(scene, &token).await?, "the token is good");
            Ok(())
        },
    )
    .await?;
    let mut ended = hub.connect(&token).await?;
    let end = ended.end().await?;
    ensure!(end.message().contains("revoked"), "{end}");
    hub.refuses(&token, "revoked").await?;

    let metrics = scene.control_plane().metrics().await?;
    for (reason, count) in [("subject", 1), ("audience", 1), ("no_node", 1), ("revoked", 2)] {
        let line = format!("lockstep_hub_refusals_total{{reason=\"{reason}\"}} {count}\n");
        ensure!(metrics.contains(&line), "no {line} in {metrics}");
    }
    // No other stream is disturbed, and an open stream accepts a new token.
    let token = daemons.token_on("node-a", AUDIENCE).await?;
    let fresh = node_message::Kind::Credentials(pb::Credentials { token, serial: 1 });
    healthy.tx.send(pb::NodeMessage { kind: Some(fresh) }).await?;
    let next = tokio::time::timeout(PATIENCE, healthy.rx.message()).await??;
    let next = next.and_then(|message| message.kind);
    ensure!(
        matches!(next, Some(FromHub::Ping(_) | FromHub::Accepted(_))),
        "{next:?}"
    );
    Ok(())
}

async fn a_replica_that_waits_says_where_the_leader_is_until_it_leads(scene: Scene) -> Result<()> {
    let [first, second] = free_addresses()?;
    let control_plane = scene.control_plane();
    let dir = control_plane.dir().join("replicas");
    let (first_flag, second_flag, dir_flag) =
        (first.to_string(), second.to_string(), dir.display().to_string());
    let here = ["--hub-advertise-address", "127.0.0.1", "--hub-tls-dir", &dir_flag];
    let flags = |address| [&["--hub-bind-address", address], here.as_slice()].concat();
    control_plane.restart_with(&flags(&first_flag)).await?;
    let waiting = control_plane.replica("waiting", &flags(&second_flag))?;
    let result = Box::pin(async {
        let ca = hub_ca_in(&dir).await?;
        let [leader, other] = [first, second].map(|address| Hub {
            address,
            ca: ca.clone(),
        });
        let daemons = Account::on_two_nodes(&scene).await?;
        let token = daemons.token_on("node-a", AUDIENCE).await?;
        let node = eventually("the leader welcomes", PATIENCE, async || {
            Ok(leader.connect(&token).await?)
        })
        .await?;
        waiting.start().await?;
        eventually(
            "the other one sends daemons to the leader",
            PATIENCE,
            async || {
                let told = other.leader(&token).await?;
                ensure!(told == first_flag, "{told:?}");
                Ok(())
            },
        )
        .await?;
        drop(node);
        control_plane.kill().await?;
        eventually("the other one leads", PATIENCE, async || {
            Ok(other.connect(&token).await.map(drop)?)
        })
        .await?;
        // The former leader knows the new one.
        control_plane.start_with(&flags(&first_flag)).await?;
        eventually("the first one sends daemons to it", PATIENCE, async || {
            let told = leader.leader(&token).await?;
            ensure!(told == second_flag, "{told:?}");
            Ok(())
        })
        .await
    })
    .await;
    // Others find the control plane without a hub.
    let _ = waiting.stop().await;
    control_plane.stop().await?;
    result
}

async fn a_replica_whose_hub_has_no_port_is_not_ready_and_says_why(scene: Scene) -> Result<()> {
    let other = TcpListener::bind("127.0.0.1:0").await?;
    let address = other.local_addr()?.to_string();
    let told = [
        "--hub-bind-address",
        &address,
        "--hub-advertise-address",
        "127.0.0.1",
    ];
    let replica = scene.control_plane().replica("without-port", &told)?;
    replica.start().await?;
    let health = replica.health_address();
    let result = async {
        eventually("the hub is all that is missing", PATIENCE, async || {
            let answer = get_plainly(health, "/readyz").await?;
            ensure!(answer.starts_with("HTTP/1.1 503"), "{answer}");
            ensure!(answer.ends_with("the hub is not served yet"), "{answer}");
            let why = ["hub cannot listen", &address, "in use"];
            ensure!(replica.logged_with(&why) == 1, "{}", replica.log());
            Ok(())
        })
        .await?;
        let answer = get_plainly(health, "/healthz").await?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop(other);
        replica.until_ready().await
    }
    .await;
    let stopped = replica.stop().await;
    result.and(stopped.map(drop))
}

/// The ConfigMap that tells daemons which CA to trust.
const PUBLISHED: &str = "lockstep-hub-ca";

/// The published trust bundle, once it holds this many certificates.
async fn trusted(scene: &Scene, certificates: usize) -> Result<String> {
    let maps: Api<ConfigMap> = Api::namespaced(scene.client(), NAMESPACE);
    let what = format!("{certificates} certificates are published");
    eventually(&what, PATIENCE, async || {
        let data = maps.get(PUBLISHED).await?.data.unwrap_or_default();
        let ca = data.get("ca.crt").context("no CA")?;
        let found = ca.matches("BEGIN CERTIFICATE").count();
        ensure!(found == certificates, "{found}");
        Ok(ca.clone())
    })
    .await
}

/// Backdates a step of the CA rotation.
async fn long_ago(scene: &Scene, step: &str) -> Result<()> {
    let secrets: Api<Secret> = Api::namespaced(scene.client(), NAMESPACE);
    let patch = json!({"stringData": {step: "2020-01-01T00:00:00Z"}});
    secrets
        .patch("lockstep-hub-tls", &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

async fn the_hubs_authority_is_replaced_under_streams_that_stand(scene: Scene) -> Result<()> {
    let [address] = free_addresses()?;
    let control_plane = scene.control_plane();
    control_plane.stop().await?;
    control_plane
        .start_with(&["--hub-bind-address", &address.to_string()])
        .await?;
    control_plane.until_ready().await?;
    let result = Box::pin(async {
        let ca = trusted(&scene, 1).await?;
        let first = Hub { address, ca };
        let daemons = Account::on_two_nodes(&scene).await?;
        let token = daemons.token_on("node-a", AUDIENCE).await?;
        let other = daemons.token_on("node-b", AUDIENCE).await?;
        let mut standing = eventually("a daemon is welcomed", PATIENCE, async || {
            Ok(first.connect(&token).await?)
        })
        .await?;

        // No daemon's pod starts without the ConfigMap, and a new one trusts its content.
        let maps: Api<ConfigMap> = Api::namespaced(scene.client(), NAMESPACE);
        maps.delete(PUBLISHED, &DeleteParams::default()).await?;
        ensure!(trusted(&scene, 1).await? == first.ca, "another CA is published");
        let nothing = json!({"data": {"ca.crt": "nothing"}});
        maps.patch(PUBLISHED, &PatchParams::default(), &Patch::Merge(nothing))
            .await?;
        ensure!(trusted(&scene, 1).await? == first.ca, "another CA is published");

        long_ago(&scene, "ca.since").await?;
        let ca = trusted(&scene, 2).await?;
        first.connect(&other).await?;
        let both = Hub { address, ca };
        both.connect(&other).await?;

        // From now on the second CA signs.
        long_ago(&scene, "next.since").await?;
        long_ago(&scene, "next.told").await?;
        eventually("the first CA no longer signs", PATIENCE, async || {
            ensure!(first.connect(&other).await.is_err(), "it does");
            Ok(())
        })
        .await?;
        both.connect(&other).await?;

        long_ago(&scene, "previous.since").await?;
        let ca = trusted(&scene, 1).await?;
        ensure!(ca != first.ca);
        Hub { address, ca }.connect(&other).await?;

        // The stream is still open: the hub hears it, and it hears the hub.
        let kind = node_message::Kind::Credentials(pb::Credentials {
            token: other,
            serial: 1,
        });
        standing.tx.send(pb::NodeMessage { kind: Some(kind) }).await?;
        let end = standing.end().await?;
        ensure!(end.message().contains("belongs to node node-b"), "{end}");
        Ok(())
    })
    .await;
    // Others find the control plane without a hub.
    control_plane.stop().await?;
    result
}
