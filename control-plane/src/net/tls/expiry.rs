//! Reports the expiry of served certificates as a metric.

use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::Certificate;
use crate::telemetry::metrics::Metrics;

/// Updates the metric whenever the certificate changes, until its sender is gone.
pub(crate) async fn report(
    metrics: &Metrics,
    name: &'static str,
    mut certificate: watch::Receiver<Certificate>,
) {
    loop {
        let end = certificate.borrow_and_update().as_deref().and_then(not_after);
        if let Some(end) = end {
            metrics.certificate_ends(name, end);
        }
        if certificate.changed().await.is_err() {
            return;
        }
    }
}

/// The expiry, in seconds since the Unix epoch.
fn not_after(certified: &CertifiedKey) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(certified.cert.first()?).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::Validity;
    use super::super::ca::Ca;
    use super::super::hub::serving;
    use super::*;

    #[tokio::test]
    async fn the_expiry_of_the_newest_certificate_is_reported() {
        let metrics = Metrics::default();
        let ca = Ca::generate("ca", None).unwrap();
        let made = |now: &str| {
            let now: Timestamp = now.parse().unwrap();
            Some(serving(&ca, Some(Validity::days(now, 7))).unwrap())
        };
        let (sender, certificate) = watch::channel(made("2026-01-01T00:00:00Z"));
        let before = sender.borrow().as_deref().and_then(not_after).unwrap();
        sender.send_replace(made("2026-03-01T00:00:00Z"));
        let after = sender.borrow().as_deref().and_then(not_after).unwrap();
        assert!(after > before + 50 * 86_400, "{before}, {after}");
        drop(sender);
        report(&metrics, "hub", certificate).await;
        let text = metrics.encode().unwrap();
        let line = format!("lockstep_certificate_not_after_seconds{{certificate=\"hub\"}} {after}\n");
        assert!(text.contains(&line), "{text}");
    }
}
