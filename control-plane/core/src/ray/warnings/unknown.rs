//! Fields that are not read, such as misspelled ones. The definitions of Ray's resources keep them,
//! and so the API server says nothing of them.
//!
//! The author of a resource chooses the names of its fields, and so how long and how many they are:
//! no more than [`MOST`] are named, no path is longer than [`LONGEST`] by more than one cut name,
//! and what lies deeper is not looked at.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;

use super::super::text;

/// The most that are named.
const MOST: usize = 20;
/// Bytes of a path below which nothing is looked at any more.
const LONGEST: usize = 1024;
/// Fields that are a pod template.
const TEMPLATES: [&str; 2] = ["template", "submitterPodTemplate"];

/// What is said of fields that are ignored.
pub(super) fn ignored(paths: Vec<String>) -> impl Iterator<Item = String> {
    let paths = paths.into_iter().take(MOST);
    paths.map(|path| format!("{path}: not supported, and ignored"))
}

/// What is said of unknown fields of the pod templates in a spec at `path`, as it was stated.
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
    /// Where the walk is.
    path: String,
    unknown: Vec<String>,
}

impl Found {
    /// Goes on below a part of the path, where there is room.
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

    /// The fields that are stated and not known.
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
