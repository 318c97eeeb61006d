//! containerd's own event stream, which shows within milliseconds that containers start and end.
//!
//! Events are early hints. Listings through CRI, after every connect and once a minute, complete
//! the picture. Reading the stream never waits: if the driver has no room, the connection is
//! dropped, and the listing after the next connect makes up for what was missed.

use std::collections::BTreeMap;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use containerd_client::events::TaskExit;
use containerd_client::services::v1::SubscribeRequest;
use containerd_client::services::v1::events_client::EventsClient;
use containerd_client::types::Envelope;
use lockstep_process::rate_limit::{Rate, RateLimit};
use prost::Message as _;
use tokio::sync::{Mutex, Notify};
use tonic::transport::{Channel, Endpoint};
use tracing::{debug, info, warn};

use crate::clock::unix_nanos;
use crate::cri::{self, AgentSource, Listing, ListingCache};
use crate::plain;
use crate::worker::driver::{Closed, Handle};
use crate::worker::facts::Input;
use crate::worker::types::{ContainerId, Ended, Exit, UnixNanos};

/// Time between attempts.
const RETRY: Duration = Duration::from_millis(200);
/// Times between the first listings after a connect.
const RELIST: [Duration; 2] = [Duration::ZERO, Duration::from_secs(1)];
/// Time between the later ones.
const RELIST_LATER: Duration = Duration::from_secs(60);
/// Delay between an event and the listing that it causes: more events may follow.
const RELIST_SOON: Duration = Duration::from_millis(50);
/// Starts and exits of tasks in the namespace of Kubernetes.
const FILTERS: [&str; 2] = [
    r#"namespace==k8s.io,topic=="/tasks/start""#,
    r#"namespace==k8s.io,topic=="/tasks/exit""#,
];
const START_TOPIC: &str = "/tasks/start";
const EXIT_TOPIC: &str = "/tasks/exit";
/// Rate of listings that events cause: a container in a crash loop must not cause listings all the
/// time.
const EVENT_LISTINGS: Rate = Rate {
    burst: 5,
    every: Duration::from_secs(1),
};

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum EventsError {
    #[error("cannot connect: {0}")]
    Connect(#[from] tonic::transport::Error),
    #[error("{}", .0.message())]
    Status(#[from] tonic::Status),
    #[error("the daemon fell behind")]
    Behind,
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// Follows containerd while the daemon lives.
///
/// # Errors
/// When the daemon is going down.
pub async fn serve(socket: &Path, workers: &Handle) -> Result<(), Closed> {
    let away = AtomicBool::new(false);
    // What a sandbox shares never changes, so it is kept across connections: containerd may fail to
    // report it later.
    let known = Mutex::default();
    loop {
        match follow(socket, workers, &known, &away).await {
            Ok(()) => {
                workers
                    .health()
                    .cri(Err(&"containerd has closed the event stream"));
                info!("containerd has closed the event stream");
            }
            Err(EventsError::Closed(closed)) => return Err(closed),
            // containerd is not at fault, so its health stays.
            Err(error @ EventsError::Behind) => warn!(%error, "lost events from containerd, listing again"),
            Err(error) => {
                workers.health().cri(Err(&error));
                if away.swap(true, Ordering::Relaxed) {
                    debug!(%error, "containerd is still away");
                } else {
                    warn!(%error, "no events from containerd");
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// One connection: drain events and list, side by side.
async fn follow(
    socket: &Path,
    workers: &Handle,
    known: &Mutex<ListingCache>,
    away: &AtomicBool,
) -> Result<(), EventsError> {
    let channel = connect(socket.to_owned()).await?;
    let list = || async {
        let agents = if workers.health().has_nri() {
            AgentSource::Nri
        } else {
            AgentSource::Cri
        };
        let listing = cri::list(&channel, known, agents).await;
        if listing.is_ok() {
            away.store(false, Ordering::Relaxed);
        }
        listing
    };
    let changes = Notify::new();
    tokio::select! {
        ended = drain(&channel, workers, &changes) => ended,
        ended = relist(workers, &changes, list) => ended,
    }
}

async fn drain(channel: &Channel, workers: &Handle, changes: &Notify) -> Result<(), EventsError> {
    let request = SubscribeRequest {
        filters: FILTERS.map(str::to_owned).into(),
    };
    let mut events = EventsClient::new(channel.clone())
        .subscribe(request)
        .await?
        .into_inner();
    while let Some(envelope) = events.message().await? {
        take(&envelope, workers, changes)?;
    }
    Ok(())
}

/// Passes on events of containers. Those of `kubectl exec` sessions and exec probes are dropped.
fn take(envelope: &Envelope, workers: &Handle, changes: &Notify) -> Result<(), EventsError> {
    if let Some((id, ended)) = container_exit(envelope) {
        debug!(container = %id, code = ended.exit.code, "exit event");
        if workers.try_tell(Input::Exited(id, ended))?.is_some() {
            return Err(EventsError::Behind);
        }
        changes.notify_one();
    } else if envelope.topic == START_TOPIC {
        changes.notify_one();
    }
    Ok(())
}

/// Lists at once, again a second later, and then after events and once a minute. containerd does
/// not say when a subscription is active, so the first listing may come too early; the second one
/// counts. Events cause listings because nothing else shows which containers started without an
/// agent. The periodic listings catch what was missed.
async fn relist<Answer>(
    workers: &Handle,
    changes: &Notify,
    mut list: impl FnMut() -> Answer,
) -> Result<(), EventsError>
where
    Answer: Future<Output = Result<Listing, tonic::Status>>,
{
    let mut unclear = BTreeMap::new();
    let mut too_large = false;
    let mut limit = RateLimit::new(EVENT_LISTINGS);
    for wait in RELIST.into_iter().chain(iter::repeat(RELIST_LATER)) {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = async { limit.ready().await; changes.notified().await } => {
                limit.take();
                tokio::time::sleep(RELIST_SOON).await;
            }
        }
        let mark = workers.mark().await?;
        let listing = match list().await {
            // containerd sends at most 16 MiB, and reports that with the second code. The next
            // listing may be smaller; events arrive meanwhile.
            Err(error)
                if matches!(
                    error.code(),
                    tonic::Code::OutOfRange | tonic::Code::ResourceExhausted
                ) =>
            {
                workers.health().cri(Err(&error));
                if !std::mem::replace(&mut too_large, true) {
                    warn!(
                        error = error.message(),
                        "the pods and containers of this node cannot be listed"
                    );
                }
                continue;
            }
            listing => listing?,
        };
        too_large = false;
        workers.health().cri(Ok(()));
        for (id, error) in &listing.unclear {
            if !unclear.contains_key(id) {
                warn!(container = %id, error, "containerd does not report how the container ended");
            }
        }
        unclear = listing.unclear;
        debug!(
            pods = listing.pods.len(),
            workers = listing.containers.len(),
            plain = listing.plain.len(),
            "listed through CRI"
        );
        if !listing.without_agents.is_empty() {
            workers.tell(Input::WithoutAgents(listing.without_agents)).await?;
        }
        let listed = Input::Listed {
            mark,
            pods: listing.pods,
            containers: listing.containers,
        };
        workers.tell(listed).await?;
        let plain = plain::facts::Input::Listed {
            pods: listing.plain_pods.into_values().collect(),
            containers: listing.plain,
        };
        workers.tell_plain(plain).await?;
    }
    Ok(())
}

async fn connect(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_static("http://containerd")
        .connect_with_connector(cri::connector(socket))
        .await
}

/// The exit of a container's first process, with its time. Exits of exec sessions have another id.
fn container_exit(envelope: &Envelope) -> Option<(ContainerId, Ended)> {
    if envelope.topic != EXIT_TOPIC {
        return None;
    }
    let event = TaskExit::decode(envelope.event.as_ref()?.value.as_slice()).ok()?;
    if event.id != event.container_id {
        return None;
    }
    let code = i32::try_from(event.exit_status).unwrap_or(Exit::UNKNOWN.code);
    let at = event.exited_at.map_or_else(unix_nanos, |time| {
        let seconds = time.seconds.saturating_mul(1_000_000_000);
        UnixNanos(seconds.saturating_add(i64::from(time.nanos)))
    });
    let exit = cri::convert::exit(code);
    Some((event.container_id.into(), Ended { exit, at }))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::FutureExt as _;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::NoHost;
    use crate::worker::driver::Driver;
    use crate::worker::state::Table;

    fn envelope(topic: &str, id: &str, exit_status: u32) -> Envelope {
        let event = TaskExit {
            container_id: "c1".into(),
            id: id.into(),
            exit_status,
            exited_at: Some(prost_types::Timestamp { seconds: 5, nanos: 7 }),
            ..TaskExit::default()
        };
        Envelope {
            topic: topic.into(),
            event: Some(prost_types::Any {
                type_url: "containerd.events.TaskExit".into(),
                value: event.encode_to_vec(),
            }),
            ..Envelope::default()
        }
    }

    /// Listings within this time, with changes every `every`.
    async fn listings(every: Duration, time: Duration) -> u32 {
        let (driver, workers) = Driver::new(Table::new(0));
        tokio::spawn(driver.run(NoHost));
        let (changes, listings) = (Notify::new(), Cell::new(0));
        let list = || {
            listings.set(listings.get() + 1);
            async { Ok(Listing::default()) }
        };
        let noise = async {
            loop {
                tokio::time::sleep(every).await;
                changes.notify_one();
            }
        };
        tokio::select! {
            ended = relist(&workers, &changes, list) => panic!("{ended:?}"),
            () = noise => {}
            () = tokio::time::sleep(time) => {}
        }
        listings.get()
    }

    #[tokio::test]
    async fn an_exec_probe_changes_nothing() {
        let (_driver, workers) = Driver::new(Table::new(0));
        let changes = Notify::new();
        let is_news = |envelope: Envelope| {
            take(&envelope, &workers, &changes).unwrap();
            changes.notified().now_or_never().is_some()
        };
        assert!(is_news(envelope(START_TOPIC, "c1", 0)));
        assert!(is_news(envelope(EXIT_TOPIC, "c1", 1)));
        for _ in 0..1000 {
            assert!(!is_news(envelope(EXIT_TOPIC, "exec-1", 0)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_events_do_not_cause_listings_all_the_time() {
        let minute = Duration::from_secs(60);
        let quiet = listings(minute * 2, minute).await;
        let busy = listings(Duration::from_millis(10), minute).await;
        assert!((60..=60 + EVENT_LISTINGS.burst + quiet).contains(&busy), "{busy}");
        // Few events cause listings at once.
        assert_eq!(
            listings(Duration::from_secs(20), minute - RELIST_SOON).await,
            quiet + 2
        );
    }

    #[test]
    fn only_the_first_process_counts() {
        let exit = Exit { code: 137, signal: 9 };
        assert_eq!(
            container_exit(&envelope(EXIT_TOPIC, "c1", 137)),
            Some((
                "c1".into(),
                Ended {
                    exit,
                    at: UnixNanos(5_000_000_007)
                }
            ))
        );
        assert_eq!(container_exit(&envelope(EXIT_TOPIC, "exec-1", 1)), None);
        assert_eq!(container_exit(&envelope("/tasks/start", "c1", 0)), None);
    }

    #[test]
    fn an_absurd_exit_status_is_no_success() {
        let (_, ended) = container_exit(&envelope(EXIT_TOPIC, "c1", u32::MAX)).unwrap();
        assert_ne!(ended.exit.code, 0);
    }

    proptest! {
        /// Any process, any time, and bytes that are no event.
        #[test]
        fn any_event_is_an_exit_or_ignored(
            exit_status in any::<u32>(),
            time in prop::option::of(any::<(i64, i32)>()),
            garbage in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let event = TaskExit {
                container_id: "c1".into(),
                id: "c1".into(),
                exit_status,
                exited_at: time.map(|(seconds, nanos)| prost_types::Timestamp { seconds, nanos }),
                ..TaskExit::default()
            };
            let of = |value| container_exit(&Envelope {
                topic: EXIT_TOPIC.into(),
                event: Some(prost_types::Any { type_url: String::new(), value }),
                ..Envelope::default()
            });
            let (id, ended) = of(event.encode_to_vec()).unwrap();
            prop_assert_eq!(id.as_str(), "c1");
            prop_assert_eq!(ended.exit.code == 0, exit_status == 0);
            drop(of(garbage));
        }
    }
}
