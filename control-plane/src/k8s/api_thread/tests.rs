use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use super::*;

fn here() -> Option<String> {
    thread::current().name().map(str::to_owned)
}

#[tokio::test]
async fn what_is_spawned_in_it_and_what_that_spawns_runs_on_one_thread() {
    let api = ApiThread::start("api").expect("a thread");
    let spawned = {
        let _on = api.enter();
        tokio::spawn(async {
            let inner = tokio::spawn(async { here() });
            (here(), inner.await.unwrap())
        })
    };
    let on = Some("api".to_owned());
    assert_eq!(spawned.await.unwrap(), (on.clone(), on));
    assert_ne!(here().as_deref(), Some("api"));
    api.end().await;
}

#[tokio::test]
async fn its_end_takes_what_is_left_with_it() {
    let api = ApiThread::start("api").expect("a thread");
    let left = api.handle().spawn(std::future::pending::<()>());
    api.end().await;
    assert!(left.await.unwrap_err().is_cancelled());
}

/// Waits until the thread is stuck, or is not, as judged `in_seconds` from now.
async fn wait_until(pulse: &Pulse, in_seconds: u64, is_stuck: bool) {
    let look = async {
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        while pulse.stuck_for(later(in_seconds)).is_some() != is_stuck {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), look)
        .await
        .expect("in time");
}

#[tokio::test]
async fn a_thread_that_is_held_up_is_known_to_be_stuck_until_it_gets_on() {
    let api = ApiThread::start("api").expect("a thread");
    let pulse = api.pulse();
    assert_eq!(pulse.stuck_for(Instant::now()), None);
    let (go_on, held) = mpsc::channel::<()>();
    let (begin, begun) = mpsc::channel();
    let holds_up = api.handle().spawn(async move {
        begin.send(()).unwrap();
        // A step that does not end.
        held.recv().unwrap_err();
    });
    begun.recv().unwrap();
    let last = Instant::now();
    let after = |seconds| pulse.stuck_for(last + Duration::from_secs(seconds));
    assert_eq!(after(50), None);
    assert!(after(62).is_some_and(|silent| silent > Duration::from_secs(60)));
    // Nothing else changes that.
    wait_until(&pulse, 59, true).await;
    drop(go_on);
    wait_until(&pulse, 59, false).await;
    holds_up.await.unwrap();
    api.end().await;
}
