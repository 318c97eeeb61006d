//! An API server that fails at times while a replica leads.

use k8s_openapi::jiff::SignedDuration;

use super::super::held::GIVE_UP;
use super::server::*;
use super::*;

const FAULTS: [Fault; 6] = [
    Fault::Status(StatusCode::INTERNAL_SERVER_ERROR),
    Fault::Status(StatusCode::SERVICE_UNAVAILABLE),
    Fault::Status(StatusCode::TOO_MANY_REQUESTS),
    Fault::Status(StatusCode::FORBIDDEN),
    Fault::CutOff,
    Fault::Silence,
];

#[tokio::test(start_paused = true)]
async fn failures_that_are_past_do_not_slow_the_next_renewals() {
    for fault in FAULTS {
        let (client, server) = server();
        let mut leadership = lead(&client, by_default()).await;
        server.lock().unwrap().fault = fault;
        let failures = async {
            for round in 0..12 {
                tokio::time::sleep(DURATION).await;
                let mut server = server.lock().unwrap();
                // Not both at once: that would be too much for one renewal.
                (server.refuses, server.hides) = ((round + 1) % 2, round % 2);
            }
            tokio::time::sleep(DURATION).await;
            server.lock().unwrap().writes
        };
        let before = tokio::select! {
            lost = leadership.lost() => panic!("{fault:?}: {lost}"),
            before = failures => before,
        };
        let lost = tokio::time::timeout(LONG, leadership.lost()).await;
        assert!(lost.is_err(), "{fault:?}: {lost:?}");
        let renewed = u64::from(server.lock().unwrap().writes - before);
        assert!(
            renewed >= LONG.as_secs() / RETRY.as_secs() * 9 / 10,
            "{fault:?}: {renewed}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_tried_again_after_the_pause_of_a_leader() {
    for fault in FAULTS {
        let (client, server) = server();
        let election = by_default();
        let mut leadership = lead(&client, election.clone()).await;
        tokio::time::sleep(DURATION).await;
        let before = {
            let mut server = server.lock().unwrap();
            (server.refuses, server.fault) = (1, fault);
            server.writes
        };
        let renewed = async {
            while server.lock().unwrap().refuses > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let began = Instant::now();
            while server.lock().unwrap().writes == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            began.elapsed()
        };
        let took = tokio::select! {
            lost = leadership.lost() => panic!("{fault:?}: {lost}"),
            took = renewed => took,
        };
        // A silent request is given up in time for another attempt, and for one more.
        let silent = match fault {
            Fault::Silence => election.renew_deadline / 3,
            _ => Duration::ZERO,
        };
        let expected = silent + RETRY;
        let (early, late) = (
            expected - Duration::from_millis(100),
            expected + Duration::from_millis(100),
        );
        assert!(took >= early && took <= late, "{fault:?}: {took:?}");
    }
}

/// The guard's answer to one read while all reads fail for this long, and the time that it took.
async fn read_after(fault: Fault, away: Duration) -> (Result<Lease, kube::Error>, Duration) {
    let (client, server) = server();
    {
        let mut server = server.lock().unwrap();
        server.hold("own", SignedDuration::ZERO);
        (server.hides, server.fault) = (u32::MAX, fault);
    }
    let (manager, _) = guard::guarded(&client, &by_default(), "own");
    let leases: Api<Lease> = Api::namespaced(manager, "default");
    let began = Instant::now();
    let back = async {
        tokio::time::sleep(away).await;
        server.lock().unwrap().hides = 0;
    };
    let (read, ()) = tokio::join!(async { (leases.get("lease").await, began.elapsed()) }, back);
    read
}

#[tokio::test(start_paused = true)]
async fn the_manager_hears_of_no_failure_before_a_leader_has_stopped() {
    let limit = by_default().renew_deadline;
    for fault in FAULTS {
        let (read, took) = read_after(fault, limit * 85 / 100).await;
        assert!(read.is_ok() && took < limit, "{fault:?}: {read:?}, {took:?}");
        let (read, took) = read_after(fault, LONG).await;
        assert!(read.is_err() && took == limit, "{fault:?}: {read:?}, {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_api_servers_reason_for_a_refusal_is_passed_on() {
    let (read, _) = read_after(Fault::Status(StatusCode::FORBIDDEN), LONG).await;
    let said = read.unwrap_err().to_string();
    assert!(said.contains("403 Forbidden: Fault"), "{said}");
    let (read, _) = read_after(Fault::Wordless(StatusCode::FORBIDDEN), LONG).await;
    let said = read.unwrap_err().to_string();
    assert!(said.ends_with("403 Forbidden"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_renewals_all_fail_stops_before_another_may_lead() {
    for fault in FAULTS {
        for election in [by_default(), election(3, 1), election(1, 1)] {
            let (client, server) = server();
            let mut leadership = lead(&client, election.clone()).await;
            tokio::time::sleep(LONG).await;
            {
                let mut server = server.lock().unwrap();
                (server.refuses, server.fault) = (u32::MAX, fault);
            }
            let began = Instant::now();
            let lost = tokio::time::timeout(LONG, leadership.lost()).await;
            assert!(lost.is_ok(), "{fault:?}, {election:?}: it leads on");
            assert!(
                began.elapsed() < election.duration,
                "{fault:?}, {election:?}: {:?}",
                began.elapsed()
            );
            // Only renewals count: for others the lease ends no earlier than its duration after the
            // last successful renewal.
            let writes = server.lock().unwrap().writes;
            tokio::time::sleep(LONG).await;
            assert_eq!(server.lock().unwrap().writes, writes, "{fault:?}, {election:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_without_an_answer_does_not_prolong_the_leadership() {
    let (client, server) = server();
    let mut leadership = lead(&client, by_default()).await;
    tokio::time::sleep(LONG).await;
    let before = {
        let mut server = server.lock().unwrap();
        (server.refuses, server.fault) = (1, Fault::Unheard);
        server.writes
    };
    while server.lock().unwrap().writes < before + 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    {
        let mut server = server.lock().unwrap();
        (server.refuses, server.fault) = (u32::MAX, Fault::Silence);
    }
    let lost = tokio::time::timeout(LONG, leadership.lost()).await;
    assert!(lost.is_ok(), "it leads on");
    // How long others have seen the lease unchanged.
    let seen = server.lock().unwrap().changed.map(|changed| changed.elapsed());
    assert!(seen.is_some_and(|seen| seen < DURATION), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_slow_costs_no_leader_its_lease_and_lets_another_follow() {
    let (client, server) = server();
    server.lock().unwrap().slow = Duration::from_secs(2);
    let mut leadership = lead(&client, by_default()).await;
    let lost = tokio::time::timeout(LONG, leadership.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    leadership.release().await.unwrap();
    // Too slow for the first attempts.
    server.lock().unwrap().slow = Duration::from_secs(4);
    let (follows, becomes_faster) = (lead(&client, by_default()), async {
        tokio::time::sleep(LONG).await;
        server.lock().unwrap().slow = Duration::from_millis(100);
    });
    let (leadership, ()) = tokio::join!(follows, becomes_faster);
    leadership.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_cannot_begin_gives_the_lease_up() {
    for (fault, ends) in [
        // A refusal of the API server is an error.
        (Fault::Status(StatusCode::FORBIDDEN), false),
        // A request without an answer is given up if renewals fail too, or when the process must
        // end.
        (Fault::Silence, false),
        (Fault::Silence, true),
    ] {
        let (client, server) = server();
        server.lock().unwrap().no_claims = Some(fault);
        let own = Identity::read().unwrap();
        let (election, shutdown) = (by_default(), CancellationToken::new());
        let meanwhile = async {
            if matches!(fault, Fault::Status(_)) {
                return;
            }
            while server.lock().unwrap().holder().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if ends {
                shutdown.cancel();
            } else {
                server.lock().unwrap().refuses = u32::MAX;
            }
        };
        let began = Instant::now();
        let acquired = Leadership::acquire(&client, &election, &own, None, &shutdown);
        let (acquired, ()) = tokio::join!(acquired, meanwhile);
        assert_eq!(acquired.is_ok(), ends, "{fault:?}");
        assert!(acquired.ok().flatten().is_none(), "{fault:?}");
        assert!(began.elapsed() < LONG, "{fault:?}: {:?}", began.elapsed());
        let writes = {
            let server = server.lock().unwrap();
            assert_eq!(server.holder(), None, "{fault:?}, {ends}");
            server.writes
        };
        tokio::time::sleep(LONG).await;
        assert_eq!(
            server.lock().unwrap().writes,
            writes,
            "{fault:?}, {ends}: it is written on"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_replica_ends_if_the_api_server_goes_back_to_an_older_state() {
    let (client, server) = server();
    {
        let mut server = server.lock().unwrap();
        server.version = 100;
        server.hold("another", SignedDuration::ZERO);
    }
    let own = Identity::read().unwrap();
    let (election, shutdown) = (by_default(), CancellationToken::new());
    let goes_back = async {
        tokio::time::sleep(election.retry).await;
        let mut server = server.lock().unwrap();
        server.version = 80;
        server.hold("another", SignedDuration::ZERO);
    };
    let acquired = Leadership::acquire(&client, &election, &own, None, &shutdown);
    let (acquired, ()) = tokio::join!(acquired, goes_back);
    let error = acquired.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(
        error.contains("the lease was at resourceVersion 101, and is at 81"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_silent_keeps_no_leader_from_ending() {
    let (client, server) = server();
    let leadership = lead(&client, by_default()).await;
    {
        let mut server = server.lock().unwrap();
        (server.hides, server.refuses, server.fault) = (u32::MAX, u32::MAX, Fault::Silence);
    }
    let began = Instant::now();
    let released = leadership.release().await;
    assert!(matches!(released, Err(LeaseError::NotReleased)), "{released:?}");
    assert_eq!(began.elapsed().as_secs(), GIVE_UP.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_shuts_down_while_it_takes_the_lease_does_not_keep_it() {
    for fault in [Fault::Unheard, Fault::Late, Fault::Silence] {
        let (client, server) = server();
        {
            let mut server = server.lock().unwrap();
            (server.refuses, server.fault) = (1, fault);
        }
        let own = Identity::read().unwrap();
        let (election, shutdown) = (by_default(), CancellationToken::new());
        let ends = async {
            while server.lock().unwrap().refuses > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            shutdown.cancel();
        };
        let began = Instant::now();
        let acquired = Leadership::acquire(&client, &election, &own, None, &shutdown);
        let (acquired, ()) = tokio::join!(acquired, ends);
        assert!(acquired.unwrap().is_none(), "{fault:?}: it leads");
        assert!(began.elapsed() < RETRY, "{fault:?}: {:?}", began.elapsed());
        // It does not take the lease later either.
        tokio::time::sleep(LONG).await;
        assert_eq!(server.lock().unwrap().holder(), None, "{fault:?}");
    }
}
