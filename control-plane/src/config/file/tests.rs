use std::io::Write;

use super::*;

const HEAD: &str = "apiVersion: config.jobset.x-k8s.io/v1alpha1\nkind: Configuration\n";

fn read(text: &str) -> Result<Configuration, String> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().display().to_string();
    Configuration::read(file.path()).map_err(|error| {
        let error = error.to_string();
        assert!(error.starts_with(&format!("--config {path}: ")), "{error}");
        error
    })
}

fn body(text: &str) -> Result<Configuration, String> {
    read(&format!("{HEAD}{text}"))
}

#[test]
fn upstreams_file_is_read() {
    let text = "
webhook: {port: 9444, host: 127.0.0.1, certDir: /certs}
leaderElection:
  leaderElect: true
  resourceName: 6d4f6a47.jobset.x-k8s.io
  resourceNamespace: jobset-system
  resourceLock: leases
  leaseDuration: 1m30s
  renewDeadline: 10s
  retryPeriod: 2s
metrics: {bindAddress: ':8443', certDir: /metrics}
health: {healthProbeBindAddress: ':8081', readinessEndpointName: ready, livenessEndpointName: live}
tls: {minVersion: VersionTLS12, cipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]}
internalCertManagement: {enable: true, webhookServiceName: service, webhookSecretName: secret}
clientConnection: {qps: 500, burst: 500}
featureGates: {RestartJob: true, ElasticJobSet: false}
";
    let read = body(text).unwrap();
    assert_eq!(read.webhook.unwrap().port, Some(9444));
    let election = read.leader_election.unwrap();
    assert_eq!(election.leader_elect, Some(true));
    assert_eq!(election.lease_duration, Some(Duration::from_secs(90)));
    assert_eq!(read.client_connection.unwrap().qps, Some(500.0));
    assert_eq!(read.feature_gates.unwrap().get("RestartJob"), Some(&true));
}

#[test]
fn a_json_file_is_accepted_and_null_means_unset() {
    let text = r#"{"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration", "metrics": {"bindAddress": null}, "tls": null}"#;
    let read = read(text).unwrap();
    assert_eq!((read.metrics.unwrap().bind_address, read.tls), (None, None));
}

#[test]
fn a_mistake_is_refused_by_name() {
    for (text, expected) in [
        ("webhok: {}", "unknown field `webhok`"),
        ("webhook: {prot: 1}", "webhook: unknown field `prot`"),
        ("webhook: {port: '9443'}", "webhook.port: invalid type: string"),
        ("webhook: {port: 123456}", "webhook.port: invalid value"),
        (
            "leaderElection: {leaderElect: 'yes'}",
            "leaderElection.leaderElect: invalid type",
        ),
        (
            "leaderElection: {leaseDuration: [15s]}",
            "leaderElection.leaseDuration: invalid type: sequence",
        ),
        (
            "leaderElection: {leaseDuration: soon}",
            "leaderElection.leaseDuration: \"soon\" is not a duration",
        ),
        (
            "metrics: {bindAddress: here}",
            "metrics.bindAddress: \"here\" is not",
        ),
        (
            "featureGates: {RestartJob: 1}",
            "featureGates.RestartJob: invalid type",
        ),
        ("tls: {}\ntls: {}", "duplicate field `tls`"),
    ] {
        let error = body(text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn another_kind_is_refused() {
    let text = "apiVersion: config.kueue.x-k8s.io/v1beta1\nkind: Configuration\n";
    let error = read(text).unwrap_err();
    assert!(
        error.contains("not a \"Configuration\" of \"config.jobset.x-k8s.io/v1alpha1\""),
        "{error}"
    );
    assert!(
        read("webhook: {}")
            .unwrap_err()
            .contains("missing field `apiVersion`")
    );
    let error = Configuration::read(Path::new("/does/not/exist")).unwrap_err();
    assert!(error.to_string().contains("No such file"), "{error}");
}
