use std::io::Write as _;

use serde_json::{Value, json};

use super::*;
use crate::args;

/// Access to a cluster that does not exist, for this user of a kubeconfig.
async fn cluster(user: Value, token: Option<&str>) -> Cluster {
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "users": [{"name": "u", "user": user}],
    });
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(kubeconfig.to_string().as_bytes()).unwrap();
    let args = args::Cluster {
        kubeconfig: Some(file.path().to_owned()),
        token: token.map(str::to_owned),
        ..args::Cluster::default()
    };
    Cluster::open(args).await.unwrap()
}

#[tokio::test]
async fn the_token_of_the_kubeconfig_is_used_from_any_source() {
    let written = cluster(json!({"token": "written"}), None).await;
    assert_eq!(written.token().await.unwrap(), "written");
    assert_eq!(written.namespace, "team");

    let credential = r#"{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "made"}}"#;
    let made = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "echo", "args": [credential]}});
    assert_eq!(cluster(made, None).await.token().await.unwrap(), "made");

    let given = cluster(json!({"token": "written"}), Some("given")).await;
    assert_eq!(given.token().await.unwrap(), "given");
}

#[tokio::test]
async fn a_missing_token_is_reported_with_how_to_get_one() {
    let error = cluster(json!({}), None)
        .await
        .token()
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("--service-account NAME") && error.contains("kubectl create token"),
        "{error}"
    );
    let basic = json!({"username": "me", "password": "secret"});
    let error = cluster(basic, None).await.token().await.unwrap_err().to_string();
    assert!(error.contains("Basic") && !error.contains("secret"), "{error}");
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_read_is_not_shown() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"apiVersion: v1\nusers: [{name: u, user: {token: a-secret}}\ncontexts: []\n")
        .unwrap();
    let args = args::Cluster {
        kubeconfig: Some(file.path().to_owned()),
        ..args::Cluster::default()
    };
    let Err(error) = Cluster::open(args).await else {
        panic!("it was read")
    };
    let text = format!("{error:#}");
    assert!(text.contains("line 3 column "), "{text}");
    assert!(!text.contains("a-secret"), "{text}");
}
