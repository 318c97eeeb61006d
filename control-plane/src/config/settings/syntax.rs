//! The syntax of names, with the messages of Kubernetes.

const LONGEST_LABEL: usize = 63;
const LONGEST_SUBDOMAIN: usize = 253;

/// RFC 1035 label.
pub(super) fn service_name(name: &str) -> Result<(), String> {
    if name.len() > LONGEST_LABEL {
        return Err(format!("{name:?} must be no more than 63 characters"));
    }
    if is_label(name) && name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Ok(());
    }
    Err(format!(
        "{name:?}: a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and \
         end with an alphanumeric character"
    ))
}

/// RFC 1123 subdomain.
pub(super) fn secret_name(name: &str) -> Result<(), String> {
    if name.len() > LONGEST_SUBDOMAIN {
        return Err(format!("{name:?} must be no more than 253 characters"));
    }
    if name.split('.').all(is_label) {
        return Ok(());
    }
    Err(format!(
        "{name:?}: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end \
         with an alphanumeric character"
    ))
}

fn is_label(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(fits) && text.ends_with(fits) && text.chars().all(|c| fits(c) || c == '-')
}
