//! Turns the changes of a typed object into a JSON patch of the raw object.
//!
//! Promises: the patch touches only what was changed. Fields that the types do not know stay as
//! they are.

use json_patch::Patch;
use serde::Serialize;
use serde_json::{Map, Value};

/// The patch that makes the changes from `before` to `after` in `raw`. `before` was read from
/// `raw`.
///
/// # Errors
/// If a typed object has no JSON form.
pub(super) fn diff<T: Serialize>(raw: &Value, before: &T, after: &T) -> Result<Patch, serde_json::Error> {
    let mut changed = raw.clone();
    transfer(
        &mut changed,
        &serde_json::to_value(before)?,
        serde_json::to_value(after)?,
    );
    Ok(json_patch::diff(raw, &changed))
}

/// Makes the changes from `before` to `after` in `raw` as well.
fn transfer(raw: &mut Value, before: &Value, after: Value) {
    if *before == after {
        return;
    }
    match (raw, before, after) {
        (Value::Object(raw), Value::Object(before), Value::Object(after)) => {
            raw.retain(|key, _| !before.contains_key(key) || after.contains_key(key));
            transfer_fields(raw, before, after);
        }
        (Value::Array(raw), Value::Array(before), Value::Array(after))
            if raw.len() == before.len() && raw.len() == after.len() =>
        {
            for ((raw, before), after) in raw.iter_mut().zip(before).zip(after) {
                transfer(raw, before, after);
            }
        }
        (raw, _, after) => *raw = after,
    }
}

fn transfer_fields(raw: &mut Map<String, Value>, before: &Map<String, Value>, after: Map<String, Value>) {
    for (key, after) in after {
        let before = before.get(&key).unwrap_or(&Value::Null);
        if *before == after {
            continue;
        }
        match raw.get_mut(&key) {
            Some(raw) => transfer(raw, before, after),
            None => {
                raw.insert(key, after);
            }
        }
    }
}
