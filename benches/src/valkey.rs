//! The design that Lockstep is compared with: KEP-876's short-term solution, where agents and an orchestrator meet in Valkey.
//!
//! ```text
//!  agent ──HSET count, PUBLISH changes──> Valkey ──changes──> orchestrator
//!  agent <──desired── Valkey <──PUBLISH desired── orchestrator
//! ```
//!
//! What was chosen where its document leaves it open, each time the faster way: an agent writes its count and announces it in one write to the
//! socket; the orchestrator listens and reads nothing but at its start; nobody polls; one connection (RESP3) for each agent; nothing is written to
//! disk; plain text. Redis 7.0 of Debian stands for Valkey, its fork.
//!
//! As the document configures them, agents learn of their worker's container from the container runtime alone, which they ask once a second
//! (`--cri-polling-interval=1s`), each at a time of its own. That is a design beside it, of which only restarts are measured.

pub(crate) mod agents;
pub(crate) mod orchestrator;
pub(crate) mod resp;

use std::process::Stdio;

use anyhow::{Context as _, Result};
use tokio::process::{Child, Command};

/// Hash of all counts, by worker.
const COUNTS: &str = "trc:5f0c0f5e-8d3a-4d6b-9c55-3f6f0c1d2e4a";
/// Channel on which agents announce `<worker> <count>`.
const CHANGES: &str = "changes:5f0c0f5e-8d3a-4d6b-9c55-3f6f0c1d2e4a";
/// Channel on which the orchestrator tells `<desired count> <value>`. The value asks for nothing; it is for the measurement of pushes.
const DESIRED: &str = "desired:5f0c0f5e-8d3a-4d6b-9c55-3f6f0c1d2e4a";

/// Two numbers, or a word and one, in one message.
fn pair(text: &str) -> Option<(&str, u64)> {
    let (first, second) = text.split_once(' ')?;
    Some((first, second.parse().ok()?))
}

/// Programs that are a server. Debian's redis-tools has the program of redis-server under another name: it is what it is called as.
const PROGRAMS: [&str; 3] = ["valkey-server", "redis-server", "redis-check-rdb"];

/// Starts the server with nothing kept on disk and room for so many clients.
pub(crate) fn start_server(port: u16, clients: usize) -> Result<Child> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<_> = std::env::split_paths(&path).collect();
    let found = PROGRAMS.iter().find_map(|name| {
        let mut places = dirs.iter().map(|dir| dir.join(name));
        places.find(|path| path.is_file())
    });
    let program = found.context("there is no Redis or Valkey here: apt-get install redis-tools")?;
    Command::new(&program)
        .arg0("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"])
        .args([
            "--maxclients",
            &(clients + 100).to_string(),
            "--tcp-backlog",
            "1024",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start {}", program.display()))
}
