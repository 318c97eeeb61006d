//! Limits what a connection without an admitted caller may send: answering a frame costs more than
//! sending one, and clients send few before they authenticate.

use std::time::Duration;

use tokio::time::Instant;

use super::frames::{HEADER, PREFACE, payload_length};

/// The frames that may arrive at once, and per second after that. A daemon sends a dozen, and one
/// for each 16 KiB of its Hello; a health probe about six.
const FRAMES: (u64, u64) = (1024, 64);
/// The same limits in bytes. A daemon's largest Hello is 4 MiB; a caller sends little more than
/// headers, a few KiB with a token.
const OF_DAEMON: (u64, u64) = (8 << 20, 64 << 10);
const OF_CALLER: (u64, u64) = (512 << 10, 64 << 10);

/// How many written bytes earn one more frame: clients send up to three per 16 KiB, for flow
/// control and to measure latency.
const A_FRAME: u64 = 4096;

/// The most frames that a client may earn by reading.
const EARNED: u64 = 16 * FRAMES.0;

/// The state of a connection's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// No caller is admitted: what the client sends counts.
    Unknown,
    Admitted,
}

/// The remaining allowance of a connection.
pub(super) struct Allowance {
    frames: Bucket,
    bytes: Bucket,
    /// Written bytes that have not earned a frame yet.
    written: u64,
    /// The position in the client's frames: bytes to skip, then the next header, of which `seen`
    /// bytes have arrived.
    rest: usize,
    header: [u8; HEADER],
    seen: usize,
}

impl Allowance {
    /// The allowance of a daemon, which authenticates once and sends a lot then.
    pub(super) fn of_daemon() -> Self {
        Self::of(OF_DAEMON)
    }

    /// The allowance of a caller, which authenticates with each call.
    pub(super) fn of_caller() -> Self {
        Self::of(OF_CALLER)
    }

    fn of(bytes: (u64, u64)) -> Self {
        Self {
            frames: Bucket::new(FRAMES),
            bytes: Bucket::new(bytes),
            written: 0,
            rest: PREFACE.len(),
            header: [0; HEADER],
            seen: 0,
        }
    }

    /// Refills the allowance after a caller authenticated.
    pub(super) fn renew(&mut self) {
        self.frames.renew();
        self.bytes.renew();
    }

    /// Records written bytes: a client that reads them answers with frames.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.written = self
            .written
            .saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        let earned = self.written / A_FRAME;
        self.frames.left = self.frames.left.saturating_add(earned).min(EARNED);
        self.written %= A_FRAME;
    }

    /// Counts received bytes; false if they exceed the allowance.
    pub(super) fn read(&mut self, bytes: &[u8], client: Client) -> bool {
        let frames = self.frames_of(bytes);
        let bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        // Both are counted even if one is exceeded.
        client == Client::Admitted || self.frames.take(frames) & self.bytes.take(bytes)
    }

    /// How many frames begin in these bytes.
    fn frames_of(&mut self, mut bytes: &[u8]) -> u64 {
        let mut frames = 0;
        loop {
            let (passed, after) = bytes.split_at(self.rest.min(bytes.len()));
            self.rest -= passed.len();
            if after.is_empty() {
                return frames;
            }
            let missing = self.header.get_mut(self.seen..).unwrap_or_default();
            let (taken, after) = after.split_at(missing.len().min(after.len()));
            missing.iter_mut().zip(taken).for_each(|(to, from)| *to = *from);
            self.seen += taken.len();
            bytes = after;
            if self.seen < HEADER {
                return frames;
            }
            self.rest = payload_length(&self.header);
            self.seen = 0;
            frames += 1;
        }
    }
}

/// A bucket that refills every second.
struct Bucket {
    most: u64,
    each_second: u64,
    left: u64,
    since: Instant,
}

impl Bucket {
    fn new((most, each_second): (u64, u64)) -> Self {
        Self {
            most,
            each_second,
            left: most,
            since: Instant::now(),
        }
    }

    /// Refills the bucket. What was earned beyond its size stays.
    fn renew(&mut self) {
        self.left = self.left.max(self.most);
    }

    fn take(&mut self, amount: u64) -> bool {
        let seconds = self.since.elapsed().as_secs();
        if seconds > 0 {
            self.since += Duration::from_secs(seconds);
            self.left = self
                .left
                .saturating_add(seconds.saturating_mul(self.each_second))
                .min(self.most.max(self.left));
        }
        let is_left = amount <= self.left;
        self.left = self.left.saturating_sub(amount);
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ping, and a frame of 300 bytes.
    fn ping() -> Vec<u8> {
        [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &[7; 8]].concat()
    }

    fn long() -> Vec<u8> {
        [&[0, 1, 44, 0, 0, 0, 0, 0, 1][..], &[6; 300]].concat()
    }

    #[tokio::test(start_paused = true)]
    async fn frames_are_counted_however_they_arrive() {
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
        assert!(allowance.read(PREFACE, Client::Unknown));
        let pings = ping().repeat(100);
        assert!((0..10).all(|_| allowance.read(&pings, Client::Unknown)));
        assert!(!allowance.read(&pings, Client::Unknown));
        // A probe goes on for ever.
        let mut allowance = Allowance::of_daemon();
        assert!(allowance.read(PREFACE, Client::Unknown));
        for _ in 0..1_000 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(allowance.read(&ping().repeat(10), Client::Unknown));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_counts_while_a_caller_is_admitted_and_frames_are_counted_after_that() {
        let mut allowance = Allowance::of_daemon();
        let stream = [PREFACE.to_vec(), long().repeat(100_000)].concat();
        assert!(
            stream
                .chunks(4_096)
                .all(|part| allowance.read(part, Client::Admitted))
        );
        assert_eq!(allowance.frames_of(&ping()), 1);
        assert!(allowance.read(&ping().repeat(1_000), Client::Unknown));
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_hello_has_room() {
        let frame = [&[0, 64, 0, 0, 0, 0, 0, 0, 1][..], &vec![0; 16_384]].concat();
        let mut allowance = Allowance::of_daemon();
        assert!(allowance.read(PREFACE, Client::Unknown));
        assert!((0..256).all(|_| allowance.read(&frame, Client::Unknown)));
        assert!((0..1_024).any(|_| !allowance.read(&frame, Client::Unknown)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_keeps_authenticating_may_send_any_amount() {
        let mut allowance = Allowance::of_caller();
        assert!(allowance.read(PREFACE, Client::Unknown));
        for _ in 0..100 {
            assert!(allowance.read(&ping().repeat(1_000), Client::Unknown));
            allowance.renew();
        }
        let head = [&[0, 48, 0, 1, 4, 0, 0, 0, 1][..], &vec![0; 12_288]].concat();
        assert!((0..40).all(|_| allowance.read(&head, Client::Unknown)));
        assert!((0..10).any(|_| !allowance.read(&head, Client::Unknown)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_much_may_send_frames_in_proportion() {
        let mut allowance = Allowance::of_caller();
        assert!(allowance.read(PREFACE, Client::Unknown));
        for _ in 0..1_600 {
            allowance.wrote(16_384);
            assert!(allowance.read(&ping().repeat(3), Client::Unknown));
        }
        // What it has earned is no less once it makes itself known, and has an end.
        for _ in 0..1_000_000 {
            allowance.wrote(16_384);
        }
        allowance.renew();
        assert!((0..16).all(|_| allowance.read(&ping().repeat(1_000), Client::Unknown)));
        assert!(!allowance.read(&ping().repeat(1_000), Client::Unknown));
        // To be answered is not to read much.
        let mut allowance = Allowance::of_caller();
        assert!(allowance.read(PREFACE, Client::Unknown));
        let flood = (0..2_000).all(|_| {
            allowance.wrote(17);
            allowance.read(&ping(), Client::Unknown)
        });
        assert!(!flood);
    }
}
