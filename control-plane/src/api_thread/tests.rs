use std::thread;

use super::*;

fn here() -> Option<String> {
    thread::current().name().map(str::to_owned)
}

#[tokio::test]
async fn what_is_spawned_in_it_and_what_that_spawns_runs_on_one_thread() {
    let api = ApiThread::start().expect("a thread");
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
    let api = ApiThread::start().expect("a thread");
    let left = api.handle().spawn(std::future::pending::<()>());
    api.end().await;
    assert!(left.await.unwrap_err().is_cancelled());
}
