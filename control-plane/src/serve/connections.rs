//! Connections in, each in a task of its own.
//!
//! Promises: a client that is slow or silent holds up nobody else: it must ask within [`FIRST_REQUEST`], and where there are as many
//! connections as may be, the one that has been quiet longest makes room for a new one. At the shutdown, requests under way are answered.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::activity::Activity;

#[cfg(test)]
mod tests;

/// How long a client may take to agree on encryption and to send its first request.
const FIRST_REQUEST: Duration = Duration::from_secs(5);

/// How connections of one kind are accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connections {
    /// What they are for, for people who read the log.
    pub(crate) to: &'static str,
    /// How many there may be at the same time.
    pub(crate) most: usize,
    /// How long requests under way may take at the shutdown.
    pub(crate) grace: Duration,
}

impl Connections {
    /// Has `serve` serve each connection until `shutdown`, of which `serve` has to know as well.
    pub(crate) async fn accept<F>(
        self,
        listener: TcpListener,
        serve: impl Fn(TcpStream, SocketAddr, Arc<Activity>) -> F,
        shutdown: &CancellationToken,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut open = Open::default();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        open.make_room(self.most).await;
                        let activity = Arc::new(Activity::default());
                        let served = serve(stream, peer, Arc::clone(&activity));
                        open.spawn(activity, served);
                    }
                    Err(error) => {
                        // Out of file descriptors, most likely: some come back.
                        tracing::warn!(%error, to = self.to, "a connection could not be accepted");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(ended) = open.tasks.join_next_with_id() => open.forget(&ended),
                () = shutdown.cancelled() => break,
            }
        }
        drop(listener);
        let all = async { while open.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(self.grace, all).await.is_err() {
            open.tasks.shutdown().await;
        }
    }
}

/// The connections that are being served.
#[derive(Default)]
struct Open {
    tasks: JoinSet<()>,
    by_task: HashMap<Id, (AbortHandle, Arc<Activity>)>,
}

impl Open {
    fn spawn(&mut self, activity: Arc<Activity>, served: impl Future<Output = ()> + Send + 'static) {
        let watched = Arc::clone(&activity);
        let task = self.tasks.spawn(async move {
            tokio::select! {
                () = served => {}
                () = watched.nothing_asked_within(FIRST_REQUEST) => {}
            }
        });
        self.by_task.insert(task.id(), (task, activity));
    }

    /// Ends the quietest connections until there are fewer than `most`.
    async fn make_room(&mut self, most: usize) {
        while self.tasks.len() >= most {
            let quietest = self.by_task.values().min_by_key(|(_, activity)| activity.last());
            if let Some((task, _)) = quietest {
                task.abort();
            }
            match self.tasks.join_next_with_id().await {
                Some(ended) => self.forget(&ended),
                None => return,
            }
        }
    }

    fn forget(&mut self, ended: &Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        self.by_task.remove(&id);
    }
}
