//! Unknown fields, such as misspelled ones. The definitions of Ray's resources preserve them, so
//! the API server does not warn.
//!
//! A user chooses the names, the lengths and the number of these fields. So at most [`MOST`] are
//! reported, a path exceeds [`LONGEST`] by at most one shortened name, and deeper fields are not
//! visited.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;

use super::super::text;

/// The most fields that are reported.
const MOST: usize = 20;
/// Length of a path, in bytes, below which no more fields are visited.
const LONGEST: usize = 1024;
/// Fields that hold a pod template.
const TEMPLATES: [&str; 2] = ["template", "submitterPodTemplate"];

/// Warnings about fields that are ignored.
pub(super) fn ignored(paths: Vec<String>) -> impl Iterator<Item = String> {
    let paths = paths.into_iter().take(MOST);
    paths.map(|path| format!("{path}: not supported, and ignored"))
}

/// Warnings about unknown fields of the pod templates in the spec at `path`, as submitted.
pub(super) fn of_templates(path: &str, spec: &Value) -> Vec<String> {
    let mut found = Found {
        path: path.to_owned(),
        unknown: Vec::new(),
    };
    found.templates(spec);
    found.unknown.sort_unstable();
    let named = found.unknown.into_iter();
    named
        .map(|path| format!("unknown field \"{path}\": ignored"))
        .collect()
}

struct Found {
    /// The current path.
    path: String,
    unknown: Vec<String>,
}

impl Found {
    /// Visits what is below a part of the path, within the limits.
    fn below(&mut self, part: &str, walk: impl FnOnce(&mut Self)) {
        if self.unknown.len() >= MOST || self.path.len() > LONGEST {
            return;
        }
        let before = self.path.len();
        self.path.push_str(part);
        walk(self);
        self.path.truncate(before);
    }

    fn below_field(&mut self, name: &str, walk: impl FnOnce(&mut Self)) {
        self.below(&format!(".{}", text::beginning(name)), walk);
    }

    fn templates(&mut self, value: &Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    self.below_field(name, |found| {
                        if !TEMPLATES.contains(&name.as_str()) {
                            found.templates(value);
                        } else if let Ok(known) = serde_json::from_value::<PodTemplateSpec>(value.clone())
                            && let Ok(known) = serde_json::to_value(known)
                        {
                            found.missing(value, &known);
                        }
                    });
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.below(&format!("[{index}]"), |found| found.templates(item));
                }
            }
            _ => {}
        }
    }

    /// Collects the fields that are set but not known.
    fn missing(&mut self, stated: &Value, known: &Value) {
        match (stated, known) {
            (Value::Object(stated), Value::Object(known)) => {
                for (name, value) in stated.iter().filter(|(_, value)| !value.is_null()) {
                    self.below_field(name, |found| match known.get(name) {
                        Some(known) => found.missing(value, known),
                        None => found.unknown.push(found.path.clone()),
                    });
                }
            }
            (Value::Array(stated), Value::Array(known)) => {
                for (index, (stated, known)) in stated.iter().zip(known).enumerate() {
                    self.below(&format!("[{index}]"), |found| found.missing(stated, known));
                }
            }
            _ => {}
        }
    }
}
