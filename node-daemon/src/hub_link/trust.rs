//! Selects the hub's CA certificates that have not expired: TLS itself ignores the dates of the CAs
//! that it is given.

use x509_parser::pem::Pem;
use x509_parser::time::ASN1Time;

/// What each certificate ends with.
const END: &str = "-----END CERTIFICATE-----";

/// The certificates of a PEM bundle that have not expired at `now`; none if all have. Anything else
/// in the bundle stays: TLS reports why it cannot be used.
pub(super) fn unexpired(bundle: &str, now: ASN1Time) -> Option<String> {
    let (mut good, mut expired) = (String::new(), false);
    for certificate in bundle.split_inclusive(END) {
        if has_expired(certificate, now) {
            expired = true;
        } else {
            good.push_str(certificate);
        }
    }
    (!expired || good.contains(END)).then_some(good)
}

fn has_expired(pem: &str, now: ASN1Time) -> bool {
    let parsed = Pem::iter_from_buffer(pem.as_bytes()).next();
    parsed.and_then(Result::ok).is_some_and(|pem| {
        let certificate = pem.parse_x509();
        certificate.is_ok_and(|certificate| certificate.validity().not_after < now)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate that is valid until the end of that year.
    fn until(year: i32) -> String {
        let mut params = rcgen::CertificateParams::default();
        params.not_before = rcgen::date_time_ymd(1990, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 12, 31);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().pem()
    }

    #[test]
    fn expired_certificates_are_not_trusted() {
        let now = ASN1Time::now();
        let (old, new) = (until(2020), until(2999));
        assert_eq!(unexpired(&old, now), None);
        assert_eq!(unexpired(&format!("{old}{old}"), now), None);
        assert_eq!(unexpired(&new, now).as_ref(), Some(&new));
        let left = unexpired(&format!("{old}{new}"), now).unwrap();
        assert_eq!(left.trim(), new.trim());
        for nonsense in [
            "",
            "nonsense",
            "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        ] {
            assert_eq!(unexpired(nonsense, now).as_deref(), Some(nonsense));
        }
    }
}
