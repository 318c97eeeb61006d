//! Which versions of containerd can put agents into containers.

use super::*;

#[tokio::test]
async fn a_containerd_that_would_ignore_the_agent_is_refused() {
    for (runtime, version, refused) in [
        ("containerd", "v2.0.14", true),
        ("containerd", "2.1.9", true),
        ("containerd", "1.7.30~ds1", true),
        ("containerd", "v2.2.0-rc.1", false),
        ("containerd", "v3.0.0", false),
        ("containerd", "unknown", false),
        ("cri-o", "1.35.0", false),
    ] {
        let mut setup = setup().await;
        let mut health = setup.workers.health().watch();
        setup.nri.accept().await;
        let of = wire::ConfigureRequest {
            runtime_name: runtime.to_owned(),
            runtime_version: version.to_owned(),
            ..wire::ConfigureRequest::default()
        };
        if !refused {
            let _: wire::ConfigureResponse = setup.nri.call("Configure", &of).await;
            assert_eq!(health.borrow().nri, Access::Unknown, "{version}");
            continue;
        }
        setup
            .nri
            .ask(PLUGIN_SERVICE, "Configure", of.encode_to_vec())
            .await;
        health.changed().await.unwrap();
        let why = match &health.borrow().nri {
            Access::Away(_, why) => why.clone(),
            other => panic!("{version}: {other:?}"),
        };
        assert!(why.contains(&format!("containerd {version} is too old")), "{why}");
    }
}
