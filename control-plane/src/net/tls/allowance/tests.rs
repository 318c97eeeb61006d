use super::*;

/// A ping, and a frame of 300 bytes.
fn ping() -> Vec<u8> {
    [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &[7; 8]].concat()
}

fn long() -> Vec<u8> {
    [&[0, 1, 44, 0, 0, 0, 0, 0, 1][..], &[6; 300]].concat()
}

#[tokio::test(start_paused = true)]
async fn frames_are_told_apart_however_they_come() {
    let bytes = [PREFACE.to_vec(), ping(), long(), ping(), vec![0, 0]].concat();
    for at_once in 1..=bytes.len() {
        let mut allowance = Allowance::of_daemon();
        let frames: u64 = bytes.chunks(at_once).map(|part| allowance.frames_of(part)).sum();
        assert_eq!(frames, 3, "{at_once}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_small_frames_is_over_soon_and_a_client_in_use_goes_on() {
    let mut allowance = Allowance::of_daemon();
    assert!(allowance.read(PREFACE, true));
    let pings = ping().repeat(100);
    assert!((0..10).all(|_| allowance.read(&pings, true)));
    assert!(!allowance.read(&pings, true));
    // A probe goes on for ever.
    let mut allowance = Allowance::of_daemon();
    assert!(allowance.read(PREFACE, true));
    for _ in 0..1_000 {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(allowance.read(&ping().repeat(10), true));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_counts_once_somebody_is_admitted_and_frames_are_told_apart_after_that() {
    let mut allowance = Allowance::of_daemon();
    let stream = [PREFACE.to_vec(), long().repeat(100_000)].concat();
    assert!(stream.chunks(4_096).all(|part| allowance.read(part, false)));
    assert_eq!(allowance.frames_of(&ping()), 1);
    assert!(allowance.read(&ping().repeat(1_000), true));
}

#[tokio::test(start_paused = true)]
async fn the_largest_hello_has_room() {
    let frame = [&[0, 64, 0, 0, 0, 0, 0, 0, 1][..], &vec![0; 16_384]].concat();
    let mut allowance = Allowance::of_daemon();
    assert!(allowance.read(PREFACE, true));
    assert!((0..256).all(|_| allowance.read(&frame, true)));
    assert!((0..1_024).any(|_| !allowance.read(&frame, true)));
}

#[tokio::test(start_paused = true)]
async fn who_makes_himself_known_again_and_again_may_say_any_amount() {
    let mut allowance = Allowance::of_caller();
    assert!(allowance.read(PREFACE, true));
    for _ in 0..100 {
        assert!(allowance.read(&ping().repeat(1_000), true));
        allowance.renew();
    }
    let head = [&[0, 48, 0, 1, 4, 0, 0, 0, 1][..], &vec![0; 12_288]].concat();
    assert!((0..40).all(|_| allowance.read(&head, true)));
    assert!((0..10).any(|_| !allowance.read(&head, true)));
}

#[tokio::test(start_paused = true)]
async fn who_reads_much_may_answer_with_as_many_frames_as_that_takes() {
    let mut allowance = Allowance::of_caller();
    assert!(allowance.read(PREFACE, true));
    for _ in 0..1_600 {
        allowance.wrote(16_384);
        assert!(allowance.read(&ping().repeat(3), true));
    }
    // The earned allowance is not reduced by authentication, and has a limit.
    for _ in 0..1_000_000 {
        allowance.wrote(16_384);
    }
    allowance.renew();
    assert!((0..16).all(|_| allowance.read(&ping().repeat(1_000), true)));
    assert!(!allowance.read(&ping().repeat(1_000), true));
    // Answers to pings earn less than the pings cost.
    let mut allowance = Allowance::of_caller();
    assert!(allowance.read(PREFACE, true));
    let flood = (0..2_000).all(|_| {
        allowance.wrote(17);
        allowance.read(&ping(), true)
    });
    assert!(!flood);
}
