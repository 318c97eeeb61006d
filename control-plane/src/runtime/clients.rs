//! The threads of the control plane, and its clients of the API server.
//!
//! Promises: no kind of work waits for the connections or the thread of another kind.
//!
//! | thread | what runs there | its client |
//! |---|---|---|
//! | `api` | watches, reconcilers, the manager of restart groups (not the groups) | `follower` |
//! | `lease` | the Lease, however busy the rest is | `lease` |
//! | `webhooks` | webhooks, which parse what tenants send | `reviewer` |
//! | `platform` | the platform API and the status page, with a lower priority | `general` |
//! | all others | restart groups, the hub, gangs, Ray, placement, metrics, health | `general` |

use kube::{Client, Config};

use crate::config::settings::RequestRate;
use crate::k8s::api_thread::ApiThread;
use crate::k8s::client::{self, Rates};
use crate::telemetry::metrics::Metrics;

/// Threads for work that must not wait for other work.
pub(super) struct Threads {
    pub(super) api: ApiThread,
    pub(super) lease: ApiThread,
    pub(super) webhooks: ApiThread,
    pub(super) platform: ApiThread,
}

impl Threads {
    pub(super) fn start() -> anyhow::Result<Self> {
        Ok(Self {
            api: ApiThread::start("api")?,
            lease: ApiThread::start("lease")?,
            webhooks: ApiThread::start("webhooks")?,
            platform: ApiThread::start_behind("platform")?,
        })
    }

    /// Ends the threads, after all their tasks have ended.
    pub(super) async fn end(self) {
        self.platform.end().await;
        self.webhooks.end().await;
        self.lease.end().await;
        self.api.end().await;
    }
}

/// Clients of the API server, each with connections of its own.
pub(super) struct Clients {
    /// For restarts, whose writes never wait for reconcilers, and for all other work.
    pub(super) general: Client,
    /// For watches and reconcilers.
    pub(super) follower: Client,
    /// For the Lease.
    pub(super) lease: Client,
    /// For webhooks.
    pub(super) reviewer: Client,
}

impl Clients {
    /// Connects. All clients together send at most `requests`.
    pub(super) fn connect(
        config: &Config,
        requests: Option<RequestRate>,
        threads: &Threads,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        let rates = requests.map(Rates::new);
        let connect = || client::connect(config.clone(), rates.clone(), metrics);
        // A connection is a task of the thread that creates its client.
        let connect_on = |thread: &ApiThread| {
            let _on = thread.enter();
            connect()
        };
        Ok(Self {
            general: connect()?,
            follower: connect_on(&threads.api)?,
            lease: connect_on(&threads.lease)?,
            reviewer: connect_on(&threads.webhooks)?,
        })
    }
}
