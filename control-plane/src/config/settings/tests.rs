use std::io::Write;

use super::*;

/// The settings from these flags and a file with this body.
fn settings(flags: &[&str], body: &str) -> Result<Settings, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let head = "apiVersion: config.jobset.x-k8s.io/v1alpha1\nkind: Configuration\n";
    write!(file, "{head}{body}").unwrap();
    let config = [
        "lockstep-control-plane",
        "--config",
        file.path().to_str().unwrap(),
    ];
    let args = config.iter().chain(flags).map(Into::into);
    let args = Args::from_command_line(args).map_err(|error| error.to_string())?;
    Settings::new(args).map_err(|error| error.to_string())
}

fn any(port: u16) -> Option<SocketAddr> {
    format!("[::]:{port}").parse().ok()
}

#[test]
fn the_defaults_are_upstreams() {
    let args = Args::from_command_line(["lockstep-control-plane".into()]).unwrap();
    let settings = Settings::new(args).unwrap();
    assert_eq!(settings.metrics.address, any(8443));
    assert_eq!(settings.metrics.cert_dir, None);
    assert_eq!(settings.platform, None);
    assert_eq!(settings.status_page, "127.0.0.1:8082".parse().ok());
    assert_eq!(settings.health.address, any(8081));
    assert_eq!(
        (
            settings.health.readiness.as_str(),
            settings.health.liveness.as_str()
        ),
        ("/readyz", "/healthz")
    );
    let webhooks = settings.webhooks.unwrap();
    assert_eq!(Some(webhooks.address), any(9443));
    assert_eq!(
        webhooks.certificates,
        WebhookCertificates::Managed {
            service: "jobset-webhook-service".to_owned(),
            secret: "jobset-webhook-server-cert".to_owned()
        }
    );
    let election = settings.leader_election;
    assert!(election.enabled && settings.manage_crds && settings.replace_lost_pods);
    assert_eq!((election.duration.as_secs(), election.retry.as_secs()), (15, 2));
    assert_eq!(settings.features, Features::default());
}

#[test]
fn the_file_wins_over_the_defaults_and_flags_win_over_the_file() {
    let file = "
metrics: {bindAddress: ':1'}
health: {healthProbeBindAddress: ':2', readinessEndpointName: ready, livenessEndpointName: /live}
leaderElection: {leaderElect: false, resourceName: mine, resourceNamespace: there, leaseDuration: 60s, renewDeadline: 40s}
webhook: {port: 3, host: 127.0.0.1}
featureGates: {RestartJob: true, InPlaceRestart: false}
";
    let of_file = settings(&[], file).unwrap();
    assert_eq!(
        (of_file.metrics.address, of_file.health.address),
        (any(1), any(2))
    );
    assert_eq!(
        (
            of_file.health.readiness.as_str(),
            of_file.health.liveness.as_str()
        ),
        ("/ready", "/live")
    );
    let election = of_file.leader_election;
    assert!(!election.enabled);
    assert_eq!(
        (election.lease.as_str(), election.namespace.as_str()),
        ("mine", "there")
    );
    assert_eq!((election.duration.as_secs(), election.retry.as_secs()), (60, 2));
    assert_eq!(
        of_file.webhooks.unwrap().address,
        SocketAddr::from(([127, 0, 0, 1], 3))
    );
    assert!(of_file.features.restart_job && !of_file.features.in_place_restart);

    let flags = [
        "-metrics-bind-address=:4",
        "--health-probe-bind-address",
        "0",
        "-leader-elect",
        "--leader-elect-lease-duration=90s",
        "--webhook-port=5",
        "--feature-gates=RestartJob=false",
        "--feature-gates",
        "InPlaceRestart=True,ElasticJobSet=1",
    ];
    let of_flags = settings(&flags, file).unwrap();
    assert_eq!(
        (of_flags.metrics.address, of_flags.health.address),
        (any(4), None)
    );
    assert!(of_flags.leader_election.enabled);
    assert_eq!(of_flags.leader_election.duration.as_secs(), 90);
    assert_eq!(of_flags.webhooks.unwrap().address.port(), 5);
    let features = of_flags.features;
    assert!(!features.restart_job && features.in_place_restart && features.elastic_jobset);
}

#[test]
fn requests_are_limited_if_a_flag_or_the_file_sets_it() {
    let rate = |flags: &[&str], file: &str| {
        let requests = settings(flags, file).unwrap().requests;
        requests.map(|rate| (rate.per_second, rate.burst))
    };
    let file = "clientConnection: {qps: 50, burst: 100}";
    assert_eq!(rate(&[], ""), None);
    assert_eq!(rate(&[], file), Some((50.0, 100)));
    assert_eq!(
        rate(&["--kube-api-qps=20", "-kube-api-burst=30"], file),
        Some((20.0, 30))
    );
    assert_eq!(rate(&["--kube-api-qps=20"], file), Some((20.0, 100)));
    assert_eq!(rate(&["--kube-api-burst=30"], file), Some((50.0, 30)));
    assert_eq!(rate(&[], "clientConnection: {qps: 0.5}"), Some((0.5, 500)));
    assert_eq!(rate(&["--kube-api-burst=0"], ""), Some((500.0, 1)));
    for none in ["--kube-api-qps=-1", "--kube-api-qps=0", "--kube-api-qps=NaN"] {
        assert_eq!(rate(&[none], file), None, "{none}");
    }
    for none in ["{qps: -1}", "{qps: 0}", "{qps: 0, burst: 9}"] {
        let file = format!("clientConnection: {none}");
        assert_eq!(rate(&[], &file), None, "{none}");
        let flag = rate(&["--kube-api-qps=20"], &file).map(|(qps, _)| qps);
        assert_eq!(flag, Some(20.0), "{none}");
    }
}

#[test]
fn a_feature_that_is_named_is_not_switched_with_all_of_them() {
    let features = |flags: &[&str], file: &str| {
        let features = settings(flags, file).unwrap().features;
        (
            features.in_place_restart,
            features.restart_job,
            features.elastic_jobset,
        )
    };
    assert_eq!(
        features(&["--feature-gates=AllAlpha=true"], ""),
        (true, true, true)
    );
    assert_eq!(
        features(&["--feature-gates=RestartJob=false,AllAlpha=true"], ""),
        (true, false, true)
    );
    let file = "featureGates: {AllAlpha: false, InPlaceRestart: true}";
    assert_eq!(
        features(&["--feature-gates=AllAlpha=1"], file),
        (true, true, true)
    );
    assert_eq!(
        features(&["--feature-gates=AllBeta=true"], file),
        (true, false, false)
    );
    for nothing in [
        "--feature-gates=",
        "--feature-gates=,",
        "--feature-gates=,AllBeta=true, ,",
    ] {
        assert_eq!(features(&[nothing], ""), (true, false, false), "{nothing}");
    }
}

#[test]
fn external_certificates_are_read_from_files() {
    let dir = |path: &str| WebhookCertificates::Directory(PathBuf::from(path));
    let certificates =
        |flags: &[&str], file: &str| settings(flags, file).unwrap().webhooks.unwrap().certificates;
    assert_eq!(certificates(&["--webhook-cert-dir=/mine"], ""), dir("/mine"));
    let off = "internalCertManagement: {enable: false}\n";
    assert_eq!(
        certificates(&[], off),
        dir("/tmp/k8s-webhook-server/serving-certs")
    );
    assert_eq!(
        certificates(&[], &format!("{off}webhook: {{certDir: /theirs}}")),
        dir("/theirs")
    );
    let metrics = settings(&[], off).unwrap().metrics;
    assert_eq!(
        metrics.cert_dir,
        Some(PathBuf::from("/tmp/k8s-metrics-server/serving-certs"))
    );
    assert_eq!(settings(&["--disable-webhooks"], "").unwrap().webhooks, None);
}

#[test]
fn gates_of_later_versions_have_no_effect() {
    for (flags, file) in [
        (&["--feature-gates=Later=true,RestartJob=true"][..], ""),
        (&[], "featureGates: {Later: true, RestartJob: true}"),
    ] {
        let wanted = Features {
            restart_job: true,
            ..Features::default()
        };
        assert_eq!(settings(flags, file).unwrap().features, wanted);
    }
}

#[test]
fn mistakes_are_reported_by_their_field() {
    for (flags, file, expected) in [
        (
            &["--feature-gates=TLSOptions=false"][..],
            "",
            "cannot set feature gate TLSOptions to false, feature is locked to true",
        ),
        (
            &["--feature-gates=RestartJob"],
            "",
            "missing bool value for RestartJob",
        ),
        (
            &["--feature-gates=RestartJob=maybe"],
            "",
            "RestartJob: it must be true or false",
        ),
        (
            &[],
            "leaderElection: {leaseDuration: 5s}",
            "leaseDuration must be greater than renewDeadline",
        ),
        (
            &[],
            "leaderElection: {retryPeriod: 9s}",
            "leaderElection.renewDeadline: renewDeadline must be greater than retryPeriod*JitterFactor",
        ),
        (
            &[],
            "leaderElection: {resourceLock: configmaps}",
            "leaderElection.resourceLock: \"configmaps\" is not supported",
        ),
        (
            &[],
            "health: {readinessEndpointName: healthz}",
            "health.readinessEndpointName: /healthz is the liveness endpoint already",
        ),
        (
            &[],
            "webhook: {host: example.org}",
            "webhook.host: \"example.org\" is not an IP address",
        ),
        (
            &[],
            "internalCertManagement: {webhookServiceName: 1st}",
            "internalCertManagement.webhookServiceName: \"1st\": a DNS-1035 label",
        ),
        (
            &[],
            "internalCertManagement: {webhookSecretName: A}",
            "internalCertManagement.webhookSecretName: \"A\": a lowercase RFC 1123 subdomain",
        ),
        (
            &[],
            "tls: {minVersion: VersionTLS11}",
            "tls.minVersion: invalid minVersion: VersionTLS11 is not supported",
        ),
        (&[], "tls: {minVersion: new}", "unknown tls version \"new\""),
        (
            &[],
            "tls: {cipherSuites: [TLS_RSA_WITH_RC4_128_SHA]}",
            "tls.cipherSuites: invalid cipher suites: TLS_RSA_WITH_RC4_128_SHA is not supported",
        ),
        (
            &[],
            "tls: {minVersion: VersionTLS13, cipherSuites: [TLS_AES_128_GCM_SHA256]}",
            "may not be specified when `minVersion` is 'VersionTLS13'",
        ),
    ] {
        let error = settings(flags, file).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn cipher_suites_go_by_both_of_their_names() {
    for name in [
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        "TLS_AES_128_GCM_SHA256",
    ] {
        settings(&[], &format!("tls: {{cipherSuites: [{name}]}}")).unwrap();
    }
}
