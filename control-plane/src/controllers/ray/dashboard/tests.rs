//! A dashboard is a tenant's program, and may send anything.

use proptest::prelude::*;
use serde_json::json;

use super::*;

proptest! {
    #[test]
    fn any_bytes_are_an_error_or_an_answer_of_bounded_size(
        garbage in prop::collection::vec(any::<u8>(), 0..200),
        status in "\\PC{0,8}",
        message in "\\PC{0,8}",
        times in any::<(i64, Option<i64>)>(),
        many in 0..5000_usize,
        damage in (any::<prop::sample::Index>(), any::<u8>()),
    ) {
        let answer = json!({
            "status": status.repeat(many),
            "message": message.repeat(many),
            "start_time": times.0,
            "end_time": times.1,
            "entrypoint": {"of": ["a", "later", "version"]},
        });
        let whole = serde_json::to_vec(&answer).unwrap();
        let mut damaged = whole.clone();
        damaged[damage.0.index(whole.len())] = damage.1;
        for text in [&garbage, &damaged, &whole] {
            if let Ok(info) = read(text) {
                prop_assert!(info.status.chars().count() <= LONGEST_WORD);
                prop_assert!(info.message.chars().count() <= LONGEST_MESSAGE);
            }
            let _ = serde_json::from_slice::<Version>(text);
        }
        let info = read(&whole).unwrap();
        prop_assert!(status.repeat(many).starts_with(&info.status));
        prop_assert!(message.repeat(many).starts_with(&info.message));
        // Times outside the calendar are ignored.
        let millis = |time: Option<Timestamp>| time.map(Timestamp::as_millisecond);
        prop_assert!(millis(info.start).is_none_or(|start| start == times.0 && start > 0));
        prop_assert!(millis(info.end).is_none_or(|end| Some(end) == times.1 && end > 0));
    }
}

#[tokio::test]
async fn one_that_never_comes_to_its_answer_is_not_listened_to_for_long() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = Place {
        at: listener.local_addr().ok(),
        name: "head:8265",
    };
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: abc\r\n\r\n".repeat(1_000);
    let head = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        while tokio::io::AsyncWriteExt::write_all(&mut stream, hints.as_bytes())
            .await
            .is_ok()
        {}
    };
    let dashboards = Dashboards { proxy: None };
    let (asked, ()) = tokio::join!(dashboards.get(place, "/api/version"), head);
    assert!(matches!(asked, Err(DashboardError::Http(_))), "{asked:?}");
}
