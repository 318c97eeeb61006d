//! The sockets: `<state-dir>/pods/<pod uid>/agent.sock`, one listener each.
//!
//! The directory is mounted into the pod's workers, so it can be traversed (0711) but not listed,
//! and the socket is open to any uid (0666): the peer's identity is checked, not its permissions. A
//! socket is bound under another name and renamed, so that an agent finds either the old one or the
//! new one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{info, warn};

use super::connection::{self, Context};
use super::refusals::{Refusals, TooMany};
use crate::worker::types::PodUid;

/// Connections at a time per pod. Each worker container needs one, and one more while it
/// reconnects.
const MAX_CONNECTIONS: usize = 64;
/// Wait after a failed accept (no more file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a pod has no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The uid is no file name.
    #[error("pod uid {0:?} cannot name a directory")]
    BadUid(String),
    /// The file system refused.
    #[error("socket directory {path}: {source}")]
    Io {
        /// The pod's directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// All sockets of this daemon. Listeners end when it is dropped.
pub struct Sockets {
    root: PathBuf,
    context: Arc<Context>,
    listeners: Mutex<BTreeMap<PodUid, AbortHandle>>,
    /// Pods with a listener that the last listing did not have.
    absent: Mutex<BTreeSet<PodUid>>,
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for listener in self.listeners().values() {
            listener.abort();
        }
    }
}

impl Sockets {
    /// Sockets below `<state_dir>/pods`. Those that an earlier daemon left behind get a listener at
    /// once, so that their agents come back.
    ///
    /// # Errors
    /// When the directory cannot be made or read.
    pub fn open(state_dir: &Path, context: Arc<Context>) -> Result<Self, SocketError> {
        let root = state_dir.join("pods");
        let failed = |source| SocketError::Io {
            path: root.clone(),
            source,
        };
        make_dir(&root).map_err(failed)?;
        let uids: Vec<PodUid> = fs::read_dir(&root)
            .map_err(failed)?
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .map(PodUid::from)
            .collect();
        let sockets = Self {
            root,
            context,
            listeners: Mutex::default(),
            absent: Mutex::default(),
        };
        for uid in uids {
            if let Err(error) = sockets.ensure(&uid) {
                warn!(pod = %uid, %error, "cannot listen for the agents of a pod that an earlier daemon served");
            }
        }
        Ok(sockets)
    }

    fn listeners(&self) -> MutexGuard<'_, BTreeMap<PodUid, AbortHandle>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod's socket directory, with a listener. Cheap if it exists already.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn ensure(&self, pod: &PodUid) -> Result<PathBuf, SocketError> {
        let uid = pod.as_str();
        if uid.is_empty()
            || !uid
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        {
            return Err(SocketError::BadUid(uid.to_owned()));
        }
        let dir = self.root.join(uid);
        let mut listeners = self.listeners();
        if listeners.get(pod).is_some_and(|listener| !listener.is_finished()) {
            return Ok(dir);
        }
        let listener = make_dir(&dir)
            .and_then(|()| bind(&dir))
            .map_err(|source| SocketError::Io {
                path: dir.clone(),
                source,
            })?;
        let task = tokio::spawn(accept(listener, pod.clone(), self.context.clone()));
        listeners.insert(pod.clone(), task.abort_handle());
        Ok(dir)
    }

    /// Removes what belongs to a pod that is gone.
    pub fn remove(&self, pod: &PodUid) {
        let Some(listener) = self.listeners().remove(pod) else {
            return;
        };
        listener.abort();
        let dir = self.root.join(pod.as_str());
        match fs::remove_dir_all(&dir) {
            Ok(()) => info!(%pod, "socket directory removed"),
            Err(error) => warn!(%pod, %error, "cannot remove the socket directory"),
        }
    }

    /// Takes in a listing of all pods. Each of them gets a listener. What belongs to pods missing
    /// from two listings in a row is removed. Without NRI, this also repairs what was left behind
    /// or could not be made before.
    pub fn listed(&self, pods: &BTreeSet<PodUid>) {
        let absent: BTreeSet<PodUid> = self
            .listeners()
            .keys()
            .filter(|uid| !pods.contains(uid))
            .cloned()
            .collect();
        let before = {
            let mut known = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *known, absent.clone())
        };
        for pod in absent.intersection(&before) {
            self.remove(pod);
        }
        for pod in pods {
            if let Err(error) = self.ensure(pod) {
                warn!(%pod, %error, "cannot listen for the agents of a pod");
            }
        }
    }

    /// Removes what belongs to pods that are not among these.
    pub fn retain(&self, pods: &BTreeSet<PodUid>) {
        let gone: Vec<PodUid> = self
            .listeners()
            .keys()
            .filter(|uid| !pods.contains(uid))
            .cloned()
            .collect();
        for pod in gone {
            self.remove(&pod);
        }
    }
}

fn make_dir(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().recursive(true).mode(0o711).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(0o711)),
        Err(error) => Err(error),
    }
}

fn bind(dir: &Path) -> io::Result<UnixListener> {
    let fresh = dir.join("agent.sock.new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&fresh)?;
    fs::set_permissions(&fresh, Permissions::from_mode(0o666))?;
    fs::rename(&fresh, dir.join("agent.sock"))?;
    Ok(listener)
}

/// Accepts the agents of one pod. Connections end with it.
async fn accept(listener: UnixListener, pod: PodUid, context: Arc<Context>) {
    let mut connections = JoinSet::new();
    let refusals = Arc::new(Refusals::new(context.workers.health().clone()));
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < MAX_CONNECTIONS => {
                    let serve = connection::serve(stream, pod.clone(), context.clone(), refusals.clone());
                    connections.spawn(serve);
                }
                // Only the pod with too many connections waits: this process serves other pods,
                // too.
                Ok(_) => {
                    refusals.note(&pod, &TooMany);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                Err(error) => {
                    refusals.note(&pod, &error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests;
