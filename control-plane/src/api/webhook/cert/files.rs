//! A certificate that somebody else keeps, in a directory.
//!
//! Promises: a new pair is served soon after it is there, without a restart. What is missing, half-written or does not fit together
//! changes nothing: the pair before it stays.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;

use super::{Certificate, pair};

#[cfg(test)]
mod tests;

/// How often to look.
const EVERY: Duration = Duration::from_secs(2);

/// What was found when the files were last looked at.
type Found = Result<(Vec<u8>, Vec<u8>), String>;

/// Serves what is in `dir`, and what will be. Never ends.
pub(super) async fn follow(dir: &Path, certificate: &watch::Sender<Certificate>) {
    let mut last: Option<Found> = None;
    loop {
        let found = read(dir).await;
        if last.as_ref() != Some(&found) {
            match found
                .as_ref()
                .map_err(Clone::clone)
                .and_then(|(chain, key)| pair::certified(chain, key).map_err(|error| error.to_string()))
            {
                Ok(pair) => {
                    tracing::info!(dir = %dir.display(), "webhooks are served with the certificate given");
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

async fn read(dir: &Path) -> Found {
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
