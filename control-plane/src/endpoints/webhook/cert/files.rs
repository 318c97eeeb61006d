//! A certificate from a directory, which another tool maintains.
//!
//! Promises: a new pair is served soon after it appears, without a restart. If files are missing,
//! half-written or do not match, the pair before them stays.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;

use super::{Certificate, pair};

/// How often the files are read.
const EVERY: Duration = Duration::from_secs(2);

/// The contents of the files, certificate and key.
type KeyPairFiles = Result<(Vec<u8>, Vec<u8>), String>;

/// Follows the pair in `dir`. Never ends.
pub(super) async fn follow(dir: &Path, certificate: &watch::Sender<Certificate>) {
    let mut last: Option<KeyPairFiles> = None;
    loop {
        let found = read(dir).await;
        if last.as_ref() != Some(&found) {
            match found
                .as_ref()
                .map_err(Clone::clone)
                .and_then(|(chain, key)| pair::certified(chain, key).map_err(|error| error.to_string()))
            {
                Ok(pair) => {
                    tracing::info!(dir = %dir.display(), "loaded the webhooks' certificate");
                    certificate.send_replace(Some(pair));
                }
                Err(error) => {
                    tracing::warn!(dir = %dir.display(), error, "no usable certificate for the webhooks")
                }
            }
            last = Some(found);
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn read(dir: &Path) -> KeyPairFiles {
    let read = async |path: PathBuf| {
        tokio::fs::read(&path)
            .await
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    Ok((
        read(dir.join(pair::CERT)).await?,
        read(dir.join(pair::KEY)).await?,
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::sync::watch;

    use super::follow;
    use crate::endpoints::webhook::cert::pair::Pair;
    use crate::endpoints::webhook::cert::{Certificate, Service};

    fn pair() -> Pair {
        let service = Service {
            namespace: "ns",
            name: "service",
        };
        Pair::generate(service, jiff::Timestamp::now()).unwrap()
    }

    fn write(dir: &Path, name: &str, text: &str) {
        std::fs::write(dir.join(name), text).unwrap();
    }

    /// Runs the follower on paused time beside `check`.
    async fn while_following(dir: &Path, check: impl AsyncFnOnce(watch::Receiver<Certificate>)) {
        let sender = watch::Sender::new(None);
        let certificate = sender.subscribe();
        tokio::select! {
            () = follow(dir, &sender) => panic!("it ended"),
            () = check(certificate) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pair_is_served_once_it_is_complete_and_replaced_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (pair(), pair());
        while_following(dir.path(), async |mut certificate| {
            reads(3).await;
            assert!(certificate.borrow_and_update().is_none());
            write(dir.path(), "tls.crt", &one.cert);
            reads(3).await;
            assert!(!certificate.has_changed().unwrap());
            write(dir.path(), "tls.key", &one.key);
            certificate.wait_for(Option::is_some).await.unwrap();
            certificate.mark_unchanged();

            // Half of the next pair changes nothing; the other half does.
            write(dir.path(), "tls.crt", &two.cert);
            reads(3).await;
            assert!(!certificate.has_changed().unwrap());
            std::fs::remove_file(dir.path().join("tls.key")).unwrap();
            reads(3).await;
            assert!(!certificate.has_changed().unwrap());
            write(dir.path(), "tls.key", &two.key);
            certificate.changed().await.unwrap();
            // An unchanged pair is not published again.
            reads(3).await;
            certificate.mark_unchanged();
            reads(3).await;
            assert!(!certificate.has_changed().unwrap());
        })
        .await;
    }

    /// Lets the follower read this many times, on paused time, which waits for the files.
    async fn reads(times: u32) {
        tokio::time::sleep(super::EVERY * times).await;
    }
}
