//! The syntax of names and label values, with the messages of Kubernetes.

use std::sync::LazyLock;

use regex::Regex;

const LONGEST_LABEL: usize = 63;
const LONGEST_SUBDOMAIN: usize = 253;

/// Compiles a constant regular expression. If one were invalid, nothing would match.
fn pattern(text: &str) -> Option<Regex> {
    Regex::new(text).ok()
}

fn matches(pattern: &Option<Regex>, value: &str) -> bool {
    pattern.as_ref().is_some_and(|pattern| pattern.is_match(value))
}

/// RFC 1035 label. `too_long` is the message for one that is too long.
pub(crate) fn dns1035_label(value: &str, too_long: &str) -> impl Iterator<Item = String> + use<> {
    static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| pattern("^[a-z]([-a-z0-9]*[a-z0-9])?$"));
    let too_long = (value.len() > LONGEST_LABEL).then(|| too_long.to_owned());
    let malformed = (!matches(&PATTERN, value)).then(|| {
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end \
         with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is \
         '[a-z]([-a-z0-9]*[a-z0-9])?')"
            .to_owned()
    });
    too_long.into_iter().chain(malformed)
}

/// RFC 1123 subdomain.
pub(crate) fn dns1123_subdomain(value: &str) -> impl Iterator<Item = String> + use<> {
    static PATTERN: LazyLock<Option<Regex>> =
        LazyLock::new(|| pattern(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"));
    let too_long =
        (value.len() > LONGEST_SUBDOMAIN).then(|| "must be no more than 253 characters".to_owned());
    let malformed = (!matches(&PATTERN, value)).then(|| {
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with \
         an alphanumeric character (e.g. 'example.com', regex used for validation is \
         '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            .to_owned()
    });
    too_long.into_iter().chain(malformed)
}

/// Key of a label: a name, with an optional DNS subdomain as its prefix.
pub(crate) fn qualified_name(key: &str) -> Vec<String> {
    static PATTERN: LazyLock<Option<Regex>> =
        LazyLock::new(|| pattern("^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"));
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let mut errors: Vec<String> = prefix
        .into_iter()
        .flat_map(dns1123_subdomain)
        .map(|error| format!("prefix part {error}"))
        .collect();
    if name.len() > LONGEST_LABEL {
        errors.push("name part must be no more than 63 bytes".to_owned());
    }
    if !matches(&PATTERN, name) {
        errors.push(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character \
             (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
                .to_owned(),
        );
    }
    errors
}

/// Value of a label.
pub(crate) fn label_value(value: &str) -> Vec<String> {
    static PATTERN: LazyLock<Option<Regex>> =
        LazyLock::new(|| pattern("^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"));
    let mut errors = Vec::new();
    if value.len() > LONGEST_LABEL {
        errors.push("must be no more than 63 bytes".to_owned());
    }
    if !matches(&PATTERN, value) {
        errors.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end \
             with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is \
             '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .to_owned(),
        );
    }
    errors
}

/// Name of a failure policy rule.
pub(crate) fn is_rule_name(value: &str) -> bool {
    static PATTERN: LazyLock<Option<Regex>> =
        LazyLock::new(|| pattern("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"));
    matches(&PATTERN, value)
}

/// Path of an HTTP URL.
pub(crate) fn is_http_path(value: &str) -> bool {
    static PATTERN: LazyLock<Option<Regex>> = LazyLock::new(|| pattern(r"^[A-Za-z0-9/\-._~%!$&'()*+,;=:]+$"));
    matches(&PATTERN, value)
}
