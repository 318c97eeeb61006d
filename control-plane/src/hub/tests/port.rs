//! A port that is in use by another process.

use kube::Client;

use super::*;
use crate::net::serve::{Awaited, Ready};

async fn becomes_ready(servers: &Awaited) {
    while servers.missing().is_some() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_replica_is_ready_once_its_hub_has_the_port_that_another_process_had() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = other.local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    // With a certificate directory the hub does not need the API server.
    let nobody = tower::service_fn(async |_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>().await
    });
    let client = Client::new(nobody, "default");
    let identity = Arc::new(tls::HubIdentity::new(
        client,
        "lockstep-system".to_owned(),
        Some(dir.path().to_owned()),
    ));
    let (ready, shutdown) = (Ready::default(), CancellationToken::new());
    let awaited = Awaited {
        webhooks: None,
        hub: Some(ready.clone()),
    };
    let gate = Gate {
        authenticator: Cluster::new().authenticator(),
        refusals: Arc::default(),
        unknown_connections: UNKNOWN_CONNECTIONS,
    };
    let role = Role::new(LeaderAddress::unknown());
    let (kept, until) = (Arc::clone(&identity), shutdown.clone());
    let keeps = tokio::spawn(async move { kept.keep(until).await });
    let serves = tokio::spawn(crate::hub::run(
        address,
        Arc::clone(&identity),
        role,
        gate,
        ready,
        shutdown.clone(),
    ));
    // With a certificate only the port is missing.
    identity.ready().await.unwrap();
    let early = tokio::time::timeout(Duration::from_secs(2), becomes_ready(&awaited)).await;
    assert!(early.is_err(), "ready without a port");
    assert_eq!(awaited.missing(), Some("the hub is not served yet"));
    assert!(!serves.is_finished());
    drop(other);
    let in_time = tokio::time::timeout(Duration::from_secs(20), becomes_ready(&awaited)).await;
    assert!(in_time.is_ok(), "{:?}", awaited.missing());
    shutdown.cancel();
    serves.await.unwrap().unwrap();
    keeps.await.unwrap();
}
