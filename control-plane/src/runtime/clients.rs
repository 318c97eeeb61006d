//! The threads of the control plane, and its clients of the API server.
//!
//! Promises: no kind of work waits for the connections or the thread of another kind.
//!
//! | thread | what runs there | its client |
//! |---|---|---|
//! | `api` | watches, reconcilers, and the manager of restart groups without its groups | `follower` |
//! | `lease` | the Lease, however busy the rest is | `lease` |
//! | `webhooks` | webhooks, which parse what tenants send | `reviewer` |
//! | `platform` | the platform API and the status page, which give way to all others | `general` |
//! | all others | restart groups, the hub, gangs, Ray, placement, metrics, health | `general` |

use kube::{Client, Config};

use crate::config::settings::RequestRate;
use crate::k8s::api_thread::ApiThread;
use crate::k8s::client::{self, Rates};
use crate::telemetry::metrics::Metrics;

/// Threads for work that is not to wait for other work.
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

    /// Ends them, after all their tasks have ended.
    pub(super) async fn end(self) {
        self.platform.end().await;
        self.webhooks.end().await;
        self.lease.end().await;
        self.api.end().await;
    }
}

/// Clients of the API server, each with connections of its own.
pub(super) struct Clients {
    /// What a restart writes never waits for what is reconciled.
    pub(super) general: Client,
    /// Watches and reconcilers.
    pub(super) follower: Client,
    /// Reads and writes the Lease.
    pub(super) lease: Client,
    /// Answers what webhooks ask.
    pub(super) reviewer: Client,
}

impl Clients {
    /// Connects. All clients together keep to `requests`.
    pub(super) fn connect(
        config: &Config,
        requests: Option<RequestRate>,
        threads: &Threads,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        let rates = requests.map(Rates::new);
        let connect = || client::connect(config.clone(), rates.clone(), metrics);
        // A connection is a task of the thread on which its client is made.
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
