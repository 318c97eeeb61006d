//! A namespace of the cluster under test, reached through the API and through `kubectl`.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Namespace as ApiNamespace, ServiceAccount};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::eventually;

/// How long the ServiceAccount of a new namespace may take to appear.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How to reach a cluster.
#[derive(Clone)]
pub struct Access {
    /// The client.
    pub client: Client,
    /// Path of kubectl.
    pub kubectl: PathBuf,
    /// The kubeconfig file.
    pub kubeconfig: PathBuf,
}

/// A namespace.
#[derive(Clone)]
pub struct Namespace {
    /// How to reach the cluster.
    pub access: Access,
    /// The name.
    pub name: String,
}

impl Access {
    /// Runs `kubectl` and returns what it prints.
    ///
    /// # Errors
    /// What it wrote to standard error, if it failed.
    pub async fn kubectl(&self, args: &[&str], input: &str) -> Result<String> {
        let mut child = Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("run {}", self.kubectl.display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            // A kubectl that fails early does not read its input.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        let output = child.wait_with_output().await?;
        if !output.status.success() {
            bail!(
                "kubectl {}: {}",
                args.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Creates a namespace whose name begins with `prefix`, ready for pods.
    ///
    /// # Errors
    /// If the API server does not create it.
    pub async fn namespace(&self, prefix: &str) -> Result<Namespace> {
        let wanted = serde_json::from_value(json!({"metadata": {"generateName": format!("{prefix}-")}}))?;
        let namespaces: Api<ApiNamespace> = Api::all(self.client.clone());
        let created = namespaces.create(&PostParams::default(), &wanted).await?;
        let name = created.metadata.name.context("a namespace without a name")?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &name);
        eventually("the namespace has its ServiceAccount", TIMEOUT, async || {
            Ok(accounts.get("default").await.map(drop)?)
        })
        .await?;
        Ok(Namespace {
            access: self.clone(),
            name,
        })
    }
}

impl Namespace {
    /// Runs `kubectl` in the namespace.
    ///
    /// # Errors
    /// What it wrote to standard error, if it failed.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with(args, "").await
    }

    /// Runs `kubectl` in the namespace with this standard input.
    ///
    /// # Errors
    /// What it wrote to standard error, if it failed.
    pub async fn kubectl_with(&self, args: &[&str], input: &str) -> Result<String> {
        let mut all = vec!["--namespace", &self.name];
        all.extend(args);
        self.access.kubectl(&all, input).await
    }

    /// The state of everything in the namespace, for the report of a failed test.
    pub async fn dump(&self) -> String {
        let mut text = String::new();
        for args in [
            &["get", "jobsets,jobs,pods", "--output", "wide"][..],
            &[
                "get",
                "jobsets",
                "--output",
                "jsonpath={range .items[*]}{.status}{\"\\n\"}{end}",
            ],
            &["get", "events", "--sort-by", ".metadata.creationTimestamp"],
            &[
                "logs",
                "--selector",
                "jobset.sigs.k8s.io/jobset-name",
                "--prefix",
                "--tail",
                "20",
            ],
        ] {
            let output = self
                .kubectl(args)
                .await
                .unwrap_or_else(|error| format!("{error:#}\n"));
            text.push_str(&format!("--- kubectl {}\n{output}", args.join(" ")));
        }
        text
    }

    /// Begins to delete the namespace with everything in it.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn delete(&self) -> Result<()> {
        let namespaces: Api<ApiNamespace> = Api::all(self.access.client.clone());
        namespaces.delete(&self.name, &DeleteParams::background()).await?;
        Ok(())
    }
}
