//! Nodes that are machines of their own, with a kernel that has cgroup v2 alone.
//!
//! Debian's user-mode-linux runs that kernel as a process, with one processor. `testbed/machine`
//! has what runs in it. Such a node has the programs and paths of the others, and a disk, which it
//! keeps when it is killed and booted again. Unlike those of other nodes, its processes are not the
//! computer's: tests run scripts in it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as ApiNode;
use kube::Api;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getsid};
use serde_json::{Value, json};

use super::network::Network;
use super::node::{self, node_dir, write};
use super::process::{Enter, all_pids, kill_until_gone};
use super::state::Daemon;
use super::{Cluster, ClusterError, ProcessId, node_name};
use crate::command::run;
use crate::image;
use crate::wait::until;

/// The script that unpacks the kernel into the cache.
const UNPACK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testbed/machine/unpack");
/// The first process.
const INIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testbed/machine/init.sh");
/// The memory, which is taken when it is used.
const MEMORY: &str = "3G";
/// The size of the disk, which is taken when it is used.
const DISK: u64 = 8 << 30;
/// How long it may take to boot, on a busy computer: usually 10 s.
const BOOT: Duration = Duration::from_secs(180);
/// How long a script may take. Large images take minutes.
const SCRIPT: Duration = Duration::from_secs(400);
/// How long its processes may take to end when it is killed.
const KILL: Duration = Duration::from_secs(20);

impl Cluster {
    /// Adds a node that is a machine, and waits until it is Ready. `kubelet` are settings of its
    /// kubelet. Returns its number. Nodes that are added later have no route to its pods.
    pub async fn add_machine(&mut self, kubelet: Value) -> Result<u8, ClusterError> {
        let _lock = self.locked().await?;
        let dir = self.dir.to_string_lossy();
        if dir.contains([' ', ',', '\'']) {
            let text = format!("{dir}: the command line of a kernel takes no such path (set LOCKSTEP_STATE)");
            return Err(ClusterError::Invalid(text));
        }
        let index = self.next_node()?;
        self.state.last_node = index;
        self.state.save(&self.dir)?;
        self.configure_machine(index, kubelet).await?;
        self.boot_locked(index).await?;
        Ok(index)
    }

    /// Ends a machine at once, as when its power fails.
    pub async fn kill_machine(&mut self, index: u8) -> Result<(), ClusterError> {
        let _lock = self.locked().await?;
        self.kill_locked(index)
    }

    /// Boots a machine that was killed, and waits until it is Ready.
    pub async fn boot_machine(&mut self, index: u8) -> Result<(), ClusterError> {
        let _lock = self.locked().await?;
        self.boot_locked(index).await
    }

    /// Runs a script in a machine, and returns what it writes.
    pub async fn run_on_machine(&self, index: u8, script: &str) -> Result<String, ClusterError> {
        let job = shared_dir(&self.dir, index).join(format!("job-{:016x}", rand::random::<u64>()));
        let file = |end: &str| job.with_extension(end);
        let name = node_name(index);
        let machine = self.machine(index)?;
        write(&file("new"), script)?;
        fs::rename(file("new"), file("sh")).map_err(ClusterError::io(&job))?;
        let code = until(format!("{name} has run a script"), SCRIPT, async || {
            let code = fs::read_to_string(file("rc")).ok();
            (code.is_some() || !machine.is_alive()).then_some(code)
        })
        .await?;
        let code = code.ok_or_else(|| self.launcher().died(&daemon_name(index)))?;
        let said = fs::read(file("out")).map_err(ClusterError::io(&job))?;
        let said = String::from_utf8_lossy(&said).into_owned();
        if code.trim() == "0" {
            Ok(said)
        } else {
            let log = format!("exit code {} of `{script}`: {said}", code.trim());
            Err(ClusterError::Died { name, log })
        }
    }

    /// The process that is the machine's kernel.
    fn machine(&self, index: u8) -> Result<ProcessId, ClusterError> {
        self.daemon(&daemon_name(index))
            .ok_or(ClusterError::NoNode(index))
    }

    fn kill_locked(&mut self, index: u8) -> Result<(), ClusterError> {
        let machine = self.machine(index)?;
        kill_session(machine)?;
        self.state.remove_node(index);
        self.state.save(&self.dir)
    }

    /// Loads an image that is in an archive.
    pub(super) async fn import_on_machine(&self, index: u8, archive: &Path) -> Result<(), ClusterError> {
        let archive = quoted(archive);
        self.run_on_machine(index, &format!("exec ctr -n k8s.io images import {archive}"))
            .await?;
        Ok(())
    }

    /// Writes everything that the machine reads when it boots, and makes its link and its disk.
    async fn configure_machine(&self, index: u8, kubelet: Value) -> Result<(), ClusterError> {
        let (network, control_plane) = (self.network()?, self.control_plane()?);
        let shared = shared_dir(&self.dir, index);
        fs::create_dir_all(&shared).map_err(ClusterError::io(&shared))?;
        let dir = node_dir(&self.dir, index);
        make_disk(&dir.join("disk")).await?;

        network.add_machine(control_plane, index).await?;
        for from in [Some(control_plane), None] {
            network.route_pods(from, index).await?;
        }
        let mut routes = Vec::new();
        for other in self.state.node_numbers() {
            network.route_pods(Some(self.holder(other)?), index).await?;
            routes.push(format!("{} via {}", network.pods(other), network.node(other)));
        }

        let mut settings = json!({"cgroupRoot": "/", "failCgroupV1": true});
        if let (Some(settings), Value::Object(kubelet)) = (settings.as_object_mut(), kubelet) {
            settings.extend(kubelet);
        }
        let (containerd, kubelet, proxy) = self.node_setup(index, network, |setup| {
            let containerd: [OsString; 2] = ["-c".into(), setup.configure_containerd()?.into()];
            let kubelet = setup.kubelet_args(&setup.configure_kubelet(settings)?);
            Ok::<_, ClusterError>((containerd, kubelet, setup.proxy_args("iptables")))
        })?;
        let images = [image::pause().await?, image::busybox()?];
        let images = images.map(|image| self.dir.join("images").join(image.archive_name()));
        let text = [
            format!("NAME={}", node_name(index)),
            format!("BIN={}", quoted(self.dir.join("bin"))),
            format!("MODULES={}", quoted(kernel().await?.join("usr/lib/uml/modules"))),
            format!("ADDRESS={}/24", network.node(index)),
            format!("GATEWAY={}", network.control_plane()),
            format!("ROUTES=({})", quoted_all(&routes)),
            format!("IMAGES=({})", quoted_all(&images)),
            format!("CONTAINERD=(containerd {})", quoted_all(&containerd)),
            format!("KUBELET=(kubelet {})", quoted_all(&kubelet)),
            format!("PROXY=(kube-proxy {})", quoted_all(&proxy)),
        ];
        write(&dir.join("machine.env"), &format!("{}\n", text.join("\n")))
    }

    async fn boot_locked(&mut self, index: u8) -> Result<(), ClusterError> {
        let name = node_name(index);
        if self.machine(index).is_ok() {
            return Err(ClusterError::Invalid(format!("{name} runs")));
        }
        let nodes: Api<ApiNode> = Api::all(self.client().await?);
        let before = boot_id(&nodes, &name).await;
        let booted = self.boot(index, async || {
            // The conditions of a node that was lost may be from before that.
            let now = boot_id(&nodes, &name).await;
            (now.is_some() && now != before).then_some(())
        });
        if let Err(error) = booted.await {
            if self.machine(index).is_ok() {
                self.kill_locked(index)?;
            }
            return Err(error);
        }
        self.progress.say(format_args!("{name} is Ready"));
        Ok(())
    }

    async fn boot(
        &mut self,
        index: u8,
        registered: impl AsyncFnMut() -> Option<()>,
    ) -> Result<(), ClusterError> {
        let dir = node_dir(&self.dir, index);
        let ready = shared_dir(&self.dir, index).join("ready");
        if ready.exists() {
            fs::remove_file(&ready).map_err(ClusterError::io(&ready))?;
        }
        let mut command =
            Enter::Network(self.control_plane()?).command(kernel().await?.join("usr/bin/linux.uml"));
        command
            .arg(format!("mem={MEMORY}"))
            .arg(format!("ubd0={}", dir.join("disk").display()))
            .arg(format!("uml_dir={}", dir.display()))
            .arg("umid=uml")
            .arg(self.network()?.machine_link(index))
            .args(["con=null", "con0=null,fd:2"])
            .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"])
            .arg(format!("init={INIT}"))
            .arg(format!("MACHINE={}", dir.display()));
        let name = daemon_name(index);
        let process = self.launcher().start(&name, &command)?;
        self.record([Daemon {
            name: name.clone(),
            process,
        }])?;
        until(format!("{} has booted", node_name(index)), BOOT, async || {
            (ready.exists() || !process.is_alive()).then_some(())
        })
        .await?;
        if !process.is_alive() {
            return Err(self.launcher().died(&name));
        }
        until(
            format!("the kubelet of {} has registered", node_name(index)),
            BOOT,
            registered,
        )
        .await?;
        node::wait_until_ready(&self.client().await?, index).await
    }
}

/// Ends a machine with all that runs in it: its kernel and each of its processes are processes of
/// one session. If the kernel has ended, the kernel's number may be another's by now.
pub(super) fn kill_session(machine: ProcessId) -> Result<(), ClusterError> {
    let mut all: BTreeSet<ProcessId> = BTreeSet::new();
    if machine.is_alive() {
        let of_session = |pid: &Pid| getsid(Some(*pid)).is_ok_and(|session| session == machine.pid());
        all.extend(all_pids().filter(of_session).filter_map(ProcessId::of));
    }
    // The kernel first: it starts no process after its end.
    machine.signal(Signal::SIGKILL);
    let left = || all.iter().copied().filter(|one| one.is_alive()).collect();
    kill_until_gone(left, KILL)
}

/// The boot that the kubelet has reported last.
async fn boot_id(nodes: &Api<ApiNode>, name: &str) -> Option<String> {
    let node = nodes.get(name).await.ok()?;
    Some(node.status?.node_info?.boot_id)
}

impl Network {
    /// Creates a link to the bridge for the machine that is node `index`.
    async fn add_machine(self, control_plane: Pid, index: u8) -> Result<(), ClusterError> {
        let link = format!("node{index}");
        self.on_bridge(control_plane, &format!("tuntap add dev {link} mode tap"), &link)
            .await
    }

    /// The argument that gives the machine its end of the link. It always has the same hardware
    /// address, since others remember that.
    fn machine_link(self, index: u8) -> String {
        format!("vec0:transport=tap,ifname=node{index},depth=128,mac=02:00:00:00:00:{index:02x}")
    }
}

/// The name under which a machine is recorded.
pub(super) fn daemon_name(index: u8) -> String {
    format!("machine-{index}")
}

/// The folder that both see.
fn shared_dir(state_dir: &Path, index: u8) -> PathBuf {
    node_dir(state_dir, index).join("shared")
}

/// The folder with the kernel and its modules.
async fn kernel() -> Result<PathBuf, ClusterError> {
    let none: [&str; 0] = [];
    let folder = run(UNPACK, none).await?;
    Ok(PathBuf::from(folder.trim()))
}

/// Makes an empty disk.
async fn make_disk(path: &Path) -> Result<(), ClusterError> {
    let disk = File::create(path).map_err(ClusterError::io(path))?;
    disk.set_len(DISK).map_err(ClusterError::io(path))?;
    run("mkfs.ext4", [OsStr::new("-q"), "-F".as_ref(), path.as_os_str()]).await?;
    Ok(())
}

/// One word of a shell.
fn quoted(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref().to_string_lossy();
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn quoted_all(words: &[impl AsRef<OsStr>]) -> String {
    let words: Vec<_> = words.iter().map(quoted).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell_keep_what_they_hold() {
        assert_eq!(quoted_all(&["a b", "it's", "$X"]), r"'a b' 'it'\''s' '$X'");
    }
}
