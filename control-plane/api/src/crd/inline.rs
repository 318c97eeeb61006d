//! Inlines referenced types and rewrites JSON Schema idioms that structural schemas do not have.

use serde_json::{Map, Value};

use super::CrdError;

/// Named schemas: schemars' `$defs`.
pub(super) struct Types<'a>(pub(super) &'a Map<String, Value>);

impl Types<'_> {
    /// The schema with every reference replaced by its target. Keys beside a reference override the
    /// target's.
    ///
    /// Optional values are not nullable: the API server accepts only absence, as with Go's types.
    pub(super) fn inline(&self, schema: &Value) -> Result<Value, CrdError> {
        let Value::Object(schema) = schema else {
            return Ok(schema.clone());
        };
        let mut result = Map::new();
        for (key, value) in self.expand(schema)? {
            match key.as_str() {
                "$schema" | "$defs" | "title" => {}
                "type" => {
                    result.insert(key, without_null_type(value));
                }
                "enum" => {
                    result.insert(key, without_null_value(value));
                }
                "description" => {
                    result.insert(key, unwrapped(value));
                }
                "required" => {
                    result.insert(key, sorted_names(value));
                }
                "properties" => {
                    let Value::Object(properties) = value else {
                        continue;
                    };
                    let properties: Result<Map<_, _>, _> = properties
                        .into_iter()
                        .map(|(name, property)| Ok::<_, CrdError>((name, self.inline(&property)?)))
                        .collect();
                    result.insert(key, Value::Object(properties?));
                }
                "items" | "additionalProperties" => {
                    let value = self.inline(&value)?;
                    result.insert(key, value);
                }
                _ => {
                    result.insert(key, value);
                }
            }
        }
        Ok(Value::Object(result))
    }

    /// Follows references and `anyOf: [T, null]` until neither is left at this level.
    fn expand(&self, schema: &Map<String, Value>) -> Result<Map<String, Value>, CrdError> {
        let mut beside = schema.clone();
        let base = if let Some(reference) = beside.remove("$ref") {
            let name = reference.as_str().and_then(|path| path.strip_prefix("#/$defs/"));
            name.and_then(|name| self.0.get(name))
                .and_then(Value::as_object)
                .ok_or_else(|| CrdError::UnknownType(reference.to_string()))?
                .clone()
        } else if let Some(inner) = schema.get("anyOf").and_then(optional) {
            beside.remove("anyOf");
            inner.clone()
        } else {
            return Ok(beside);
        };
        let mut result = self.expand(&base)?;
        result.extend(beside);
        Ok(result)
    }
}

/// `T` of `[T, null]`.
fn optional(any_of: &Value) -> Option<&Map<String, Value>> {
    match any_of.as_array()?.as_slice() {
        [Value::Object(inner), null] if null.get("type").is_some_and(|type_| type_ == "null") => Some(inner),
        _ => None,
    }
}

fn without_null_type(type_: Value) -> Value {
    match type_ {
        Value::Array(types) => types
            .into_iter()
            .find(|name| name != "null")
            .unwrap_or(Value::Null),
        other => other,
    }
}

fn without_null_value(values: Value) -> Value {
    match values {
        Value::Array(values) => values.into_iter().filter(|value| !value.is_null()).collect(),
        other => other,
    }
}

/// Text without the line breaks of source files; `kubectl explain` wraps lines itself.
fn unwrapped(text: Value) -> Value {
    match text {
        Value::String(text) => {
            let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
            Value::String(paragraphs.collect::<Vec<_>>().join("\n\n"))
        }
        other => other,
    }
}

fn sorted_names(names: Value) -> Value {
    match names {
        Value::Array(mut names) => {
            names.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
            Value::Array(names)
        }
        other => other,
    }
}
