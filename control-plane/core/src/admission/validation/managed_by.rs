//! `spec.managedBy` is a domain-prefixed path.

use lockstep_api::JobSet;

use super::{Kind, Violation, syntax};

const FIELD: &str = "spec.managedBy";
const LONGEST: usize = 63;

pub(super) fn validate(jobset: &JobSet, violations: &mut Vec<Violation>) {
    let Some(manager) = jobset.spec.managed_by.as_deref() else {
        return;
    };
    match manager.split_once('/') {
        _ if manager.is_empty() => {
            violations.push(Violation::new(FIELD, "Required value").of(Kind::Required))
        }
        None | Some(("", _) | (_, "")) => violations.push(invalid(
            manager,
            "must be a domain-prefixed path (such as \"acme.io/foo\")",
        )),
        Some((domain, path)) => {
            violations.extend(syntax::dns1123_subdomain(domain).map(|error| invalid(domain, error)));
            if !syntax::is_http_path(path) {
                violations.push(invalid(
                    path,
                    "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')",
                ));
            }
        }
    }
    if manager.len() > LONGEST {
        let message = format!("Too long: may not be more than {LONGEST} bytes");
        violations.push(Violation::new(FIELD, message).of(Kind::TooLong));
    }
}

fn invalid(value: &str, message: impl Into<String>) -> Violation {
    Violation::with_value(FIELD, value, message)
}
