use std::path::Path;

use tokio::sync::watch;

use super::follow;
use crate::api::webhook::cert::pair::Pair;
use crate::api::webhook::cert::{Certificate, Service};

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
        looks(3).await;
        assert!(certificate.borrow_and_update().is_none());
        write(dir.path(), "tls.crt", &one.cert);
        looks(3).await;
        assert!(!certificate.has_changed().unwrap());
        write(dir.path(), "tls.key", &one.key);
        certificate.wait_for(Option::is_some).await.unwrap();
        certificate.mark_unchanged();

        // Half of the next pair changes nothing; the other half does.
        write(dir.path(), "tls.crt", &two.cert);
        looks(3).await;
        assert!(!certificate.has_changed().unwrap());
        std::fs::remove_file(dir.path().join("tls.key")).unwrap();
        looks(3).await;
        assert!(!certificate.has_changed().unwrap());
        write(dir.path(), "tls.key", &two.key);
        certificate.changed().await.unwrap();
        // Unchanged files are not read again.
        looks(3).await;
        certificate.mark_unchanged();
        looks(3).await;
        assert!(!certificate.has_changed().unwrap());
    })
    .await;
}

/// Lets the follower look this often. Time is paused, and waits for files to be read.
async fn looks(times: u32) {
    tokio::time::sleep(super::EVERY * times).await;
}
