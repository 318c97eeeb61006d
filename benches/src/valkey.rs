//! The design that Lockstep is compared with: KEP-876's short-term solution, in which agents and an
//! orchestrator communicate through Valkey.
//!
//! ```text
//!  agent ──HSET count, PUBLISH changes──> Valkey ──changes──> orchestrator
//!  agent <──desired── Valkey <──PUBLISH desired── orchestrator
//! ```
//! Wherever its document leaves a choice, the faster option is used: an agent writes its count and
//! announces it in one write to the socket; the orchestrator reads counts only at its start;
//! nothing polls; each agent has one connection (RESP3); nothing is written to disk; connections
//! are plain text. Debian's Redis 7.0 takes the place of Valkey, its fork.
//!
//! As the document configures them, agents learn about their worker's container only from the
//! container runtime, which they poll every second (`--cri-polling-interval=1s`), each at its own
//! offset. This is a second variant, of which only restarts are measured.

pub(crate) mod agents;
pub(crate) mod orchestrator;
pub(crate) mod resp;

use std::process::Stdio;

use anyhow::{Context as _, Result};
use tokio::process::{Child, Command};

/// Key of the hash with all counts by worker.
const COUNTS: &str = "trc:5f0c0f5e-8d3a-4d6b-9c55-3f6f0c1d2e4a";
/// Channel on which agents announce `<worker> <count>`.
const CHANGES: &str = "changes:5f0c0f5e-8d3a-4d6b-9c55-3f6f0c1d2e4a";
/// Channel on which the orchestrator publishes `<desired count> <value>`. The value has no effect;
/// it serves to measure pushes.
const DESIRED: &str = "desired:5f0c0f5e-8d3a-4d6b-9c55-3f6f0c1d2e4a";

/// Splits a message into a word and a number.
fn pair(text: &str) -> Option<(&str, u64)> {
    let (first, second) = text.split_once(' ')?;
    Some((first, second.parse().ok()?))
}

/// Names of server programs. In Debian's redis-tools, redis-check-rdb is the same
/// program as redis-server, which behaves according to the name that it is called with.
const PROGRAMS: [&str; 3] = ["valkey-server", "redis-server", "redis-check-rdb"];

/// Starts the server without persistence, with room for this many clients.
pub(crate) fn start_server(port: u16, clients: usize) -> Result<Child> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<_> = std::env::split_paths(&path).collect();
    let found = PROGRAMS.iter().find_map(|name| {
        let mut places = dirs.iter().map(|dir| dir.join(name));
        places.find(|path| path.is_file())
    });
    let program = found.context("no Redis or Valkey is installed: apt-get install redis-tools")?;
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
