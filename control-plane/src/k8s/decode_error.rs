//! Renders a decoding error in the words of the API server: `spec.replicatedJobs[0].replicas:
//! Invalid value: "two": must be of type integer`.

use serde_path_to_error::Error;

#[cfg(test)]
mod tests;

/// The beginning of serde's message about a missing field.
const MISSING: &str = "missing field `";

/// The error as a sentence with the field's path.
pub(crate) fn sentence<E: std::fmt::Display>(error: &Error<E>) -> String {
    let path = error.path().to_string();
    // The path of the root is a dot.
    in_words(path.trim_start_matches('.'), &error.inner().to_string())
}

/// True if the error is a missing required field.
pub(crate) fn is_missing<E: std::fmt::Display>(error: &Error<E>) -> bool {
    error.inner().to_string().starts_with(MISSING)
}

fn in_words(path: &str, error: &str) -> String {
    // The position refers to a text that the reader has never seen.
    let error = error.split(" at line ").next().unwrap_or_default();
    let at = |what: String| {
        if path.is_empty() {
            what
        } else {
            format!("{path}: {what}")
        }
    };
    if let Some(field) = quoted(error, MISSING) {
        let dot = if path.is_empty() { "" } else { "." };
        return format!("{path}{dot}{field}: Required value");
    }
    let misfit = ["invalid type: ", "invalid value: "]
        .into_iter()
        .find_map(|start| error.strip_prefix(start)?.rsplit_once(", expected "));
    let Some((found, expected)) = misfit else {
        return at(format!("Invalid value: {error}"));
    };
    let found = shown(found);
    let must = match (type_of(expected), bounds(expected)) {
        (_, Some((least, most))) if found.parse::<i128>().is_ok() => {
            format!("must be between {least} and {most}, inclusive")
        }
        (Some(type_), _) => format!("must be of type {type_}"),
        (None, _) => format!("must be {expected}"),
    };
    at(format!("Invalid value: {found}: {must}"))
}

fn quoted<'e>(error: &'e str, start: &str) -> Option<&'e str> {
    error.strip_prefix(start)?.split('`').next()
}

/// A value as JSON writes it, from serde's description; for lists and maps their type.
fn shown(found: &str) -> &str {
    for number in ["integer `", "floating point `", "boolean `"] {
        if let Some(value) = quoted(found, number) {
            return value;
        }
    }
    match found {
        "map" => "object",
        "sequence" => "array",
        "unit value" => "null",
        _ => found.strip_prefix("string ").unwrap_or(found),
    }
}

/// The JSON type for serde's name of a type.
fn type_of(expected: &str) -> Option<&'static str> {
    let is_name = |name: &str| {
        name.starts_with(|first: char| first.is_ascii_uppercase())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    Some(match expected {
        _ if bounds(expected).is_some() => "integer",
        "f32" | "f64" => "number",
        "a string" | "string" | "a borrowed string" => "string",
        "a boolean" | "bool" => "boolean",
        "a sequence" => "array",
        "a map" => "object",
        "IntOrString" => "integer or string",
        "Quantity" => "string or number",
        "Time" | "MicroTime" => "string",
        _ if is_name(expected.strip_prefix("struct ").unwrap_or(expected)) => "object",
        _ => return None,
    })
}

fn bounds(expected: &str) -> Option<(i128, i128)> {
    let signed = |least: i64, most: i64| Some((i128::from(least), i128::from(most)));
    let unsigned = |most: u64| Some((0, i128::from(most)));
    match expected {
        "i8" => signed(i8::MIN.into(), i8::MAX.into()),
        "i16" => signed(i16::MIN.into(), i16::MAX.into()),
        "i32" => signed(i32::MIN.into(), i32::MAX.into()),
        "i64" => signed(i64::MIN, i64::MAX),
        "u8" => unsigned(u8::MAX.into()),
        "u16" => unsigned(u16::MAX.into()),
        "u32" => unsigned(u32::MAX.into()),
        "u64" | "usize" => unsigned(u64::MAX),
        _ => None,
    }
}
