//! Fields that the types do not know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The fields of one level that its type does not know, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Unknown(pub BTreeMap<String, Value>);

impl Unknown {
    /// The paths of those that ask for something, below `path`. An empty value, or false, asks for nothing.
    pub fn paths(&self, path: &str) -> impl Iterator<Item = String> {
        let asking = self.0.iter().filter(|(_, value)| !asks_nothing(value));
        asking.map(move |(name, _)| format!("{path}.{name}"))
    }
}

fn asks_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(asked) => !asked,
        Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(asks_nothing),
        Value::Object(fields) => fields.values().all(asks_nothing),
    }
}
