use std::pin::Pin;

use futures::FutureExt;

use super::*;

type Asked<'p> = Pin<Box<dyn Future<Output = Option<Permit>> + 'p>>;

/// This many JobSets of a namespace ask for a permit. Those that wait, those that have one, and the
/// number of those that are to come again.
fn ask<'p>(permits: &'p Permits, namespace: &'p str, jobsets: u32) -> (Vec<Asked<'p>>, Vec<Permit>, u32) {
    let (mut waiting, mut working, mut sent_away) = (Vec::new(), Vec::new(), 0);
    for _ in 0..jobsets {
        let mut asked: Asked = Box::pin(permits.take(namespace));
        match asked.as_mut().now_or_never() {
            Some(Some(permit)) => working.push(permit),
            Some(None) => sent_away += 1,
            None => waiting.push(asked),
        }
    }
    (waiting, working, sent_away)
}

#[test]
fn a_namespace_with_hundreds_of_jobsets_keeps_no_permit_from_others() {
    let permits = Permits::new(CancellationToken::new());
    let (mut waiting, mut working, sent_away) = ask(&permits, "loud", 300);
    assert_eq!(working.len(), OF_ONE as usize);
    assert_eq!(waiting.len(), (IN_LINE - OF_ONE) as usize);
    assert_eq!(sent_away, 300 - IN_LINE);

    let (_, quiet, _) = ask(&permits, "quiet", 3);
    assert_eq!(quiet.len(), 3, "nobody waits for JobSets of another namespace");

    // Its own go on one by one, in order.
    assert!(waiting[1].as_mut().now_or_never().is_none());
    working.pop();
    assert!(waiting[0].as_mut().now_or_never().flatten().is_some());
}

#[test]
fn many_loud_namespaces_share_what_there_is() {
    let permits = Permits::new(CancellationToken::new());
    let names: Vec<String> = (0..7).map(|number| format!("loud-{number}")).collect();
    let mut all: Vec<_> = names.iter().map(|name| ask(&permits, name, 100)).collect();
    let at_work: usize = all.iter().map(|(_, working, _)| working.len()).sum();
    assert_eq!(at_work, AT_ONCE as usize);
    let (mut quiet, ..) = ask(&permits, "quiet", 1);
    assert!(quiet[0].as_mut().now_or_never().is_none());

    // It is the next after those of each namespace's share that have come before.
    let mut passed = 0;
    while quiet[0].as_mut().now_or_never().is_none() {
        let next = all.iter_mut().find_map(|(_, working, _)| working.pop());
        assert!(next.is_some(), "it never comes");
        drop(next);
        passed += 1;
        for (waiting, working, _) in &mut all {
            let mut left = Vec::new();
            for mut asked in waiting.drain(..) {
                match asked.as_mut().now_or_never() {
                    Some(permit) => working.extend(permit),
                    None => left.push(asked),
                }
            }
            *waiting = left;
        }
    }
    assert!(passed <= 7 * OF_ONE, "it has waited for {passed}");
}

#[test]
fn at_a_shutdown_nobody_waits() {
    let shutdown = CancellationToken::new();
    let permits = Permits::new(shutdown.clone());
    let (mut waiting, working, _) = ask(&permits, "ns", IN_LINE);
    shutdown.cancel();
    let ended = waiting
        .iter_mut()
        .filter_map(|asked| asked.as_mut().now_or_never());
    assert_eq!(ended.filter(Option::is_none).count(), (IN_LINE - OF_ONE) as usize);
    assert_eq!(working.len(), OF_ONE as usize, "those in progress go on");
}
