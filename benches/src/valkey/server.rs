//! The server as a process.

use std::process::Stdio;

use anyhow::{Context as _, Result};
use tokio::process::{Child, Command};

/// Programs that are a server. Debian's redis-tools has the program of redis-server under another name: it is what it is called as.
const PROGRAMS: [&str; 3] = ["valkey-server", "redis-server", "redis-check-rdb"];

/// Starts it with nothing kept on disk and room for so many clients.
pub(crate) fn start(port: u16, clients: usize) -> Result<Child> {
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
