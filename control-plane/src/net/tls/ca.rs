//! A certificate authority of the control plane.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// A certificate authority, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ca {
    /// Its name. It is fixed per authority: name and key form the issuer, so the certificate need
    /// not be parsed.
    pub(crate) name: &'static str,
    pub(crate) cert: String,
    pub(crate) key: String,
}

/// A certificate with its private key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Issued {
    pub(crate) cert: String,
    pub(crate) key: String,
}

/// The validity of a certificate, in whole days.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Validity {
    from: Date,
    to: Date,
}

impl Validity {
    /// From the day before `now`, for clocks that are behind, until `days` after it.
    pub(crate) fn days(now: Timestamp, days: i32) -> Self {
        let today = now.to_zoned(TimeZone::UTC).date();
        Self {
            from: today.saturating_sub(SignedDuration::from_hours(24)),
            to: today.saturating_add(SignedDuration::from_hours(24 * i64::from(days))),
        }
    }

    fn limit(self, params: &mut CertificateParams) {
        let midnight = |date: Date| {
            let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
            rcgen::date_time_ymd(i32::from(date.year()), month, day)
        };
        params.not_before = midnight(self.from);
        params.not_after = midnight(self.to);
    }
}

impl Ca {
    /// Generates an authority; without `validity` it never expires.
    pub(crate) fn generate(name: &'static str, validity: Option<Validity>) -> Result<Self, rcgen::Error> {
        Self::certify(name, &KeyPair::generate()?, validity)
    }

    /// The same key with a new certificate. A client that trusts the old certificate trusts what is
    /// issued later, and one that trusts the new certificate trusts what was issued earlier.
    pub(crate) fn renewed(&self, validity: Validity) -> Result<Self, rcgen::Error> {
        Self::certify(self.name, &KeyPair::from_pem(&self.key)?, Some(validity))
    }

    /// True if the certificate is valid PEM and belongs to this key.
    pub(crate) fn is_whole(&self) -> bool {
        let key = KeyPair::from_pem(&self.key).map(|key| key.subject_public_key_info());
        let certified = with_certificate(&self.cert, |cert| cert.public_key().raw.to_vec());
        key.is_ok_and(|key| certified == Some(key))
    }

    /// True if the certificate is valid from `at` or earlier.
    pub(crate) fn has_begun(&self, at: Timestamp) -> bool {
        with_certificate(&self.cert, |cert| cert.validity().not_before.timestamp())
            .is_some_and(|from| from <= at.as_second())
    }

    /// True if the certificate does not expire before `at`.
    pub(crate) fn lasts_until(&self, at: Timestamp) -> bool {
        with_certificate(&self.cert, |cert| cert.validity().not_after.timestamp())
            .is_some_and(|to| at.as_second() < to)
    }

    fn certify(name: &'static str, key: &KeyPair, validity: Option<Validity>) -> Result<Self, rcgen::Error> {
        let mut params = Self::params(name)?;
        if let Some(validity) = validity {
            validity.limit(&mut params);
        }
        Ok(Self {
            name,
            cert: params.self_signed(key)?.pem(),
            key: key.serialize_pem(),
        })
    }

    fn params(name: &str) -> Result<CertificateParams, rcgen::Error> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(params)
    }

    /// Issues a server certificate for these names and addresses; the first one is its common name.
    pub(crate) fn issue(
        &self,
        names: Vec<String>,
        validity: Option<Validity>,
    ) -> Result<Issued, rcgen::Error> {
        let ca = Self::params(self.name)?;
        let issuer = Issuer::from_params(&ca, KeyPair::from_pem(&self.key)?);
        let common_name = names.first().cloned().unwrap_or_default();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        if let Some(validity) = validity {
            validity.limit(&mut params);
        }
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &issuer)?;
        Ok(Issued {
            cert: cert.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// True if this is a certificate in PEM.
pub(crate) fn is_certificate(pem: &str) -> bool {
    with_certificate(pem, |_| ()).is_some()
}

/// Parses a certificate in PEM; `None` if it is not one.
fn with_certificate<T>(pem: &str, at: impl FnOnce(&X509Certificate<'_>) -> T) -> Option<T> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, cert) = X509Certificate::from_der(&der).ok()?;
    Some(at(&cert))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::{Ca, Validity};

    #[test]
    fn a_renewed_ca_has_its_old_key() {
        let validity = Validity::days(Timestamp::UNIX_EPOCH, 1);
        let ca = Ca::generate("ca", Some(validity)).unwrap();
        let renewed = ca.renewed(Validity::days(Timestamp::UNIX_EPOCH, 2)).unwrap();
        assert_eq!((renewed.name, &renewed.key), (ca.name, &ca.key));
        assert_ne!(renewed.cert, ca.cert);
    }

    #[test]
    fn the_end_of_time_is_no_reason_to_panic() {
        for now in [Timestamp::MIN, Timestamp::MAX] {
            let validity = Validity::days(now, i32::MAX);
            assert!(validity.from <= validity.to);
        }
    }

    #[test]
    fn damaged_authorities_are_detected() {
        let now: Timestamp = "2026-11-21T08:00:00Z".parse().unwrap();
        let ca = Ca::generate("ca", Some(Validity::days(now, 10))).unwrap();
        let day = |days: i64| now + jiff::SignedDuration::from_hours(24 * days);
        assert!(ca.is_whole());
        assert_eq!(
            [-2, -1, 0].map(|days| ca.has_begun(day(days))),
            [false, true, true]
        );
        assert_eq!(
            [0, 9, 10].map(|days| ca.lasts_until(day(days))),
            [true, true, false]
        );
        let other = Ca::generate("ca", None).unwrap();
        for (cert, key) in [(&ca.cert, &other.key), (&ca.key, &ca.key), (&ca.cert, &ca.cert)] {
            let (cert, key) = (cert.clone(), key.clone());
            assert!(
                !Ca {
                    name: "ca",
                    cert,
                    key
                }
                .is_whole()
            );
        }
    }
}
