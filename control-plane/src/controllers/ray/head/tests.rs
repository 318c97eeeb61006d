use super::*;

fn heads(api_server: Option<&str>) -> Heads {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("no request is expected"))
    });
    Heads::new(Client::new(service, "ns"), api_server)
}

#[tokio::test]
async fn nobody_is_asked_where_no_pod_can_be() {
    for (server, ip) in [
        (None, "127.0.0.1"),
        (None, "127.8.0.1"),
        (None, "0.0.0.0"),
        (None, "169.254.169.254"),
        (None, "224.0.0.1"),
        (None, "255.255.255.255"),
        (None, "::1"),
        (None, "::"),
        (None, "fe80::1"),
        (None, "ff02::1"),
        (None, "::ffff:127.0.0.1"),
        (None, "::ffff:169.254.169.254"),
        (Some("10.96.0.1"), "10.96.0.1"),
        (Some("10.96.0.1"), "::ffff:10.96.0.1"),
        (Some("[fd00::1]"), "fd00::1"),
    ] {
        assert!(!heads(server).may_ask(ip.parse().unwrap()), "{server:?} {ip}");
    }
    for (server, ip) in [
        (None, "10.244.1.7"),
        (Some("10.96.0.1"), "10.96.0.2"),
        (Some("kubernetes.default.svc"), "10.96.0.1"),
        (Some("[fd00::1]"), "fd00::2"),
        // Pods of some clusters have public addresses.
        (None, "100.64.3.1"),
        (None, "8.8.4.4"),
    ] {
        assert!(heads(server).may_ask(ip.parse().unwrap()), "{server:?} {ip}");
    }
}

#[test]
fn an_address_is_one_or_none() {
    let pod =
        |ip: &str| -> Pod { serde_json::from_value(serde_json::json!({"status": {"podIP": ip}})).unwrap() };
    assert_eq!(address(&pod("fd00::7")), "fd00::7".parse().ok());
    assert_eq!(address(&pod("metadata.internal")), None);
    assert_eq!(address(&pod("10.0.0.1:80")), None);
    assert_eq!(address(&Pod::default()), None);
}
