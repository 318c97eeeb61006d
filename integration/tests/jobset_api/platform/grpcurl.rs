//! grpcurl, the usual tool for an API without a client: it needs no .proto, since the platform API
//! describes itself.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use anyhow::{Context, Result, ensure};
use lockstep_integration::progress::Progress;
use lockstep_integration::tools::Tools;
use serde_json::{Value, json};
use tokio::process::Command;

const PLATFORM: &str = "lockstep.platform.v1.Platform";

/// The program and the server that it calls.
pub(super) struct Grpcurl {
    program: PathBuf,
    address: SocketAddr,
    ca: PathBuf,
}

/// The path of the program, which is built if necessary.
pub(crate) async fn program() -> Result<PathBuf> {
    let tools = Tools::locate(["grpcurl"], &Progress::new()).await?;
    Ok(tools.path("grpcurl")?.to_owned())
}

impl Grpcurl {
    pub(super) async fn new(address: SocketAddr, ca: &Path) -> Result<Self> {
        Ok(Self {
            program: program().await?,
            address,
            ca: ca.to_owned(),
        })
    }

    /// Runs it as in docs/platform-api.md, with these flags and arguments.
    async fn run(&self, flags: &[&str], words: &[&str]) -> Result<Output> {
        let mut command = Command::new(&self.program);
        command.arg("-cacert").arg(&self.ca);
        command
            .args(["-authority", "lockstep-control-plane"])
            .args(flags)
            .arg(self.address.to_string())
            .args(words);
        Ok(command.stdin(Stdio::null()).output().await?)
    }

    /// Its output, if it succeeds.
    async fn says(&self, flags: &[&str], words: &[&str]) -> Result<String> {
        let output = self.run(flags, words).await?;
        ensure!(output.status.success(), "grpcurl {words:?}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// These calls carry no token.
    pub(super) async fn reads_what_is_public(&self) -> Result<()> {
        let services = self.says(&[], &["list"]).await?;
        for service in [PLATFORM, "grpc.health.v1.Health"] {
            ensure!(services.lines().any(|line| line == service), "{services}");
        }
        let described = self.says(&[], &["describe", PLATFORM]).await?;
        let calls = [
            "rpc ListGroups (",
            "rpc WatchGroups (",
            "returns ( stream .lockstep.platform.v1.WatchGroupsResponse )",
        ];
        for call in calls {
            ensure!(described.contains(call), "no {call:?}: {described}");
        }
        let message = self
            .says(&[], &["describe", ".lockstep.platform.v1.RestartGroupRequest"])
            .await?;
        ensure!(message.contains("string token = 3;"), "{message}");
        let asked = json!({"service": PLATFORM}).to_string();
        let health = self
            .says(&["-d", &asked], &["grpc.health.v1.Health/Check"])
            .await?;
        let health: Value = serde_json::from_str(&health)?;
        ensure!(health == json!({"status": "SERVING"}), "{health}");
        Ok(())
    }

    /// Lists the only group of this namespace, and checks the refusals for other callers.
    pub(super) async fn lists_groups(&self, namespace: &str, token: &str) -> Result<()> {
        let call = format!("{PLATFORM}/ListGroups");
        let bearer = format!("authorization: Bearer {token}");
        let asked = json!({"namespace": namespace, "omitWorkers": true}).to_string();
        let listed = self.says(&["-H", &bearer, "-d", &asked], &[&call]).await?;
        let listed: Value = serde_json::from_str(&listed)?;
        let groups = listed["groups"].as_array().context("no groups")?;
        ensure!(
            groups.len() == 1 && groups[0]["name"] == "js" && groups[0]["phase"] == "GROUP_PHASE_IN_SYNC",
            "{listed}"
        );

        let refused = self.run(&["-format-error", "-d", &asked], &[&call]).await?;
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        // The exit code is 64 plus the gRPC code.
        ensure!(refused.status.code() == Some(64 + 16), "{refused:?}");
        for text in [
            "the request carries no bearer token",
            "TOKEN_MISSING",
            "lockstep.dev",
        ] {
            ensure!(said.contains(text), "no {text:?}: {said}");
        }
        Ok(())
    }
}
