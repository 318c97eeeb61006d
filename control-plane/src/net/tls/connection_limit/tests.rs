use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

/// A limit of two slots for each address, and the number of rejected connections.
fn limit() -> (Arc<ConnectionLimit>, Arc<AtomicUsize>) {
    let turned_away = Arc::new(AtomicUsize::default());
    let counted = Arc::clone(&turned_away);
    let limit = ConnectionLimit::new(2, move |_, why| {
        assert_eq!(why.reason(), "too_many_connections");
        counted.fetch_add(1, Ordering::SeqCst);
    });
    (limit, turned_away)
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_slot_waits_and_other_addresses_do_not() {
    let (limit, turned_away) = limit();
    let mut inside = [limit.accept(HERE).unwrap(), limit.accept(HERE).unwrap()];
    for unknown in &mut inside {
        assert!(unknown.enter().await);
    }
    let began = tokio::time::Instant::now();
    let mut third = limit.accept(HERE).unwrap();
    let mut other = limit.accept(THERE).unwrap();
    assert!(other.enter().await && began.elapsed().is_zero());
    assert!(!third.enter().await);
    assert_eq!(began.elapsed(), PATIENCE);
    assert_eq!(turned_away.load(Ordering::SeqCst), 1);

    // The next connection gets the returned slot.
    let mut fourth = limit.accept(HERE).unwrap();
    let left = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let [first, second] = inside;
        drop(first);
        second
    };
    let (entered, _second) = tokio::join!(fourth.enter(), left);
    assert!(entered);
}

#[tokio::test]
async fn the_queue_is_limited_and_closed_connections_leave_no_trace() {
    let (limit, turned_away) = limit();
    let most = 2 * WAITING_PER_SLOT;
    let waiting: Vec<_> = (0..most).map(|_| limit.accept(HERE).unwrap()).collect();
    assert!(limit.accept(HERE).is_none());
    assert!(limit.accept(THERE).is_some());
    assert_eq!(turned_away.load(Ordering::SeqCst), 1);
    drop(waiting);
    assert!(limit.lock().by_network.is_empty());
    assert_eq!(limit.lock().all, 0);
}

#[tokio::test]
async fn a_door_that_others_have_filled_lets_a_few_of_each_address_in() {
    let (limit, turned_away) = limit();
    let address = |number: usize| IpAddr::V4(std::net::Ipv4Addr::from_bits(u32::try_from(number).unwrap()));
    let waiting: Vec<_> = (0..WAITING)
        .map(|number| limit.accept(address(number / (2 * WAITING_PER_SLOT))).unwrap())
        .collect();
    let few: Vec<_> = (0..ALWAYS).map(|_| limit.accept(HERE).unwrap()).collect();
    assert_eq!(turned_away.load(Ordering::SeqCst), 0);
    assert!(limit.accept(HERE).is_none() && limit.accept(address(0)).is_none());
    drop(waiting);
    assert!(limit.accept(HERE).is_some());
    drop(few);
}

#[test]
fn one_client_of_many_addresses_is_one() {
    let network = |text: &str| network(text.parse().unwrap());
    assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
    assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
    assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
    assert_ne!(network("10.0.0.1"), network("10.0.0.2"));

    // The count of rejected clients also treats it as one.
    let name = |text: &str| ConnectionLimit::name(text.parse().unwrap());
    assert_eq!(name("2001:db8::ffff:1"), "2001:db8::/64");
    assert_eq!(name("::ffff:10.0.0.1"), "10.0.0.1");
}

#[tokio::test(start_paused = true)]
async fn all_addresses_together_have_as_many_places_as_there_is_memory_for() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let reasons = Arc::clone(&told);
    // For 16 slots.
    let memory = 16 * SERVED_MEMORY.each * SERVED_MEMORY.parts;
    let limit = ConnectionLimit::with_memory(memory, 256, move |_, why| {
        reasons.lock().unwrap().push(why.reason());
    });
    let mut inside = Vec::new();
    for number in 0..16 {
        let address = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 1, number % 2));
        let mut unknown = limit.accept(address).unwrap();
        assert!(unknown.enter().await);
        inside.push(unknown);
    }
    // Another address does not wait, and one of the many connections is closed.
    let mut other = limit.accept(THERE).unwrap();
    let began = tokio::time::Instant::now();
    assert!(other.enter().await && began.elapsed().is_zero());
    inside[0].crowded_out().await;
    // A connection of the large address waits until a slot was held long enough.
    let mut own = limit.accept(inside[0].peer()).unwrap();
    assert!(own.enter().await);
    assert!(began.elapsed() >= PATIENCE / 2 && began.elapsed() <= PATIENCE);
    // Connections beyond the memory limit may not even wait.
    let waiting: Vec<_> = std::iter::from_fn(|| limit.accept(HERE)).collect();
    assert!(inside.len() + waiting.len() <= WAITING_MEMORY.fits(memory));
    assert_eq!(*told.lock().unwrap(), ["too_many_connections"]);
}
