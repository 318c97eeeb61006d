//! Serves incoming connections, each in its own task.
//!
//! Promises: a slow or silent client delays no other client. It must send a request within
//! [`FIRST_REQUEST`]. At the connection limit a new connection replaces another one. Candidates are
//! the connections without a successful request if these exceed their part of the limit, else the
//! others. Of the candidates, the network with the most connections loses one: an idle one before a
//! busy one, and the quietest first. So a client keeps the connections that it uses, unless
//! hundreds of addresses compete with it. At shutdown, requests in progress are answered.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::activity::{Activity, LastActivity};

#[cfg(test)]
mod tests;

/// How long a client may take for the TLS handshake and the first request.
const FIRST_REQUEST: Duration = Duration::from_secs(5);

/// The divisor of the limit for connections without a successful request.
const UNSERVED: usize = 4;

/// How connections of one kind are accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connections {
    /// What the connections are for, as the log names it.
    pub(crate) to: &'static str,
    /// The maximum number of open connections.
    pub(crate) most: usize,
    /// How long requests in progress may take at shutdown.
    pub(crate) grace: Duration,
}

impl Connections {
    /// Serves each connection with `serve` until `shutdown`, which `serve` has to observe as well.
    pub(crate) async fn accept<F>(
        self,
        listener: TcpListener,
        serve: impl Fn(TcpStream, SocketAddr, Arc<Activity>) -> F,
        shutdown: &CancellationToken,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut open = OpenConnections::default();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        open.make_room(self.most).await;
                        let activity = Arc::new(Activity::default());
                        let served = serve(stream, peer, Arc::clone(&activity));
                        open.spawn(network(peer.ip()), activity, served);
                    }
                    Err(error) => {
                        // Probably out of file descriptors; some will be freed.
                        tracing::warn!(%error, to = self.to, "cannot accept a connection");
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

/// The open connections.
#[derive(Default)]
struct OpenConnections {
    tasks: JoinSet<()>,
    by_task: HashMap<Id, Connection>,
}

struct Connection {
    task: AbortHandle,
    from: IpAddr,
    activity: Arc<Activity>,
}

impl OpenConnections {
    fn spawn(
        &mut self,
        from: IpAddr,
        activity: Arc<Activity>,
        served: impl Future<Output = ()> + Send + 'static,
    ) {
        let watched = Arc::clone(&activity);
        let task = self.tasks.spawn(async move {
            tokio::select! {
                () = served => {}
                () = watched.nothing_asked_within(FIRST_REQUEST) => {}
            }
        });
        let connection = Connection { task, from, activity };
        self.by_task.insert(connection.task.id(), connection);
    }

    /// The connection to close to make room for a new one.
    fn to_end(&self, most: usize) -> Option<&Connection> {
        let connections = self.by_task.values();
        let all: Vec<_> = connections
            .map(|connection| (connection.activity.last(), connection))
            .collect();
        // Spare a few unserved connections: new clients have not sent a request yet.
        let unserved = all.iter().filter(|(last, _)| !last.served()).count();
        let served = unserved <= most / UNSERVED && unserved < all.len();
        let all = all.into_iter().filter(|(last, _)| last.served() == served);
        let mut by_network: HashMap<IpAddr, Vec<_>> = HashMap::new();
        for (last, connection) in all {
            by_network
                .entry(connection.from)
                .or_default()
                .push((last, connection));
        }
        let quietest = |of_one: Vec<(LastActivity, _)>| of_one.into_iter().min_by_key(|(last, _)| *last);
        let most = by_network.values().map(Vec::len).max()?;
        let largest = by_network.into_values().filter(|of_one| of_one.len() == most);
        let (_, connection) = largest.filter_map(quietest).min_by_key(|(last, _)| *last)?;
        Some(connection)
    }

    /// Closes connections until there are fewer than `most`.
    async fn make_room(&mut self, most: usize) {
        while self.tasks.len() >= most {
            if let Some(connection) = self.to_end(most) {
                connection.task.abort();
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

/// The network of a client: its IPv4 address, or the upper half of its IPv6 address, since one host
/// may use all addresses of a /64.
pub(crate) fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            let upper = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(upper))
        }
        address @ IpAddr::V4(_) => address,
    }
}
