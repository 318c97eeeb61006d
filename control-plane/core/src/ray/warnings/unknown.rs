//! Fields that nobody reads, such as misspelled ones. The definitions of Ray's resources keep them, and so the API server says nothing of them.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;

/// The most that are named.
const MOST: usize = 20;
/// Fields that are a pod template.
const TEMPLATES: [&str; 2] = ["template", "submitterPodTemplate"];

/// What is said of fields that are ignored.
pub(super) fn ignored(paths: Vec<String>) -> impl Iterator<Item = String> {
    let paths = paths.into_iter().take(MOST);
    paths.map(|path| format!("{path}: not supported, and ignored"))
}

/// What is said of unknown fields of the pod templates in a spec at `path`, as it was stated.
pub(super) fn of_templates(path: &str, spec: &Value) -> Vec<String> {
    let mut paths = Vec::new();
    templates(path, spec, &mut paths);
    let named = paths.into_iter().take(MOST);
    named
        .map(|path| format!("unknown field \"{path}\": ignored"))
        .collect()
}

fn templates(path: &str, value: &Value, paths: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                if !TEMPLATES.contains(&name.as_str()) {
                    templates(&path, value, paths);
                } else if let Ok(known) = serde_json::from_value::<PodTemplateSpec>(value.clone())
                    && let Ok(known) = serde_json::to_value(known)
                {
                    missing(&path, value, &known, paths);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                templates(&format!("{path}[{index}]"), item, paths);
            }
        }
        _ => {}
    }
}

/// The fields that are stated and not known.
fn missing(path: &str, stated: &Value, known: &Value, paths: &mut Vec<String>) {
    match (stated, known) {
        (Value::Object(stated), Value::Object(known)) => {
            for (name, value) in stated.iter().filter(|(_, value)| !value.is_null()) {
                let path = format!("{path}.{name}");
                match known.get(name) {
                    Some(known) => missing(&path, value, known, paths),
                    None => paths.push(path),
                }
            }
        }
        (Value::Array(stated), Value::Array(known)) => {
            for (index, (stated, known)) in stated.iter().zip(known).enumerate() {
                missing(&format!("{path}[{index}]"), stated, known, paths);
            }
        }
        _ => {}
    }
}
