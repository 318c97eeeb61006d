//! Reads the object of a review, up to a limit.
//!
//! Promises: `metadata.managedFields`, often the largest part of an object, is skipped. Reading
//! stops once the rest exceeds twice the limit of a spec, since metadata and status are a small
//! part of any real object.

use std::fmt;

use lockstep_core::common::extent::Extent;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// The limit of one object.
const MOST: Extent = Extent::MOST.times(2);

/// Reads an object; null if there is none.
///
/// # Errors
/// If the object exceeds the limit.
pub(super) fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    let mut read = Extent::default();
    let whole = Bounded {
        read: &mut read,
        position: Position::Object,
    };
    whole.deserialize(deserializer)
}

/// The position of a value in the object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Object,
    Metadata,
    Elsewhere,
}

struct Bounded<'a> {
    read: &'a mut Extent,
    position: Position,
}

impl Bounded<'_> {
    fn add<E: Error>(&mut self, objects: usize, elements: usize) -> Result<(), E> {
        *self.read = self.read.plus(Extent { objects, elements });
        if !self.read.exceeds(MOST) {
            return Ok(());
        }
        let Extent { objects, elements } = MOST;
        Err(E::custom(format_args!(
            "the object has more than {objects} objects or {elements} list items and fields"
        )))
    }

    fn inside(&mut self, position: Position) -> Bounded<'_> {
        Bounded {
            read: self.read,
            position,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        self.add(0, 1)?;
        while let Some(item) = items.next_element_seed(self.inside(Position::Elsewhere))? {
            self.add(0, 1)?;
            read.push(item);
        }
        Ok(Value::Array(read))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        self.add(1, 1)?;
        while let Some(name) = fields.next_key::<String>()? {
            let position = match (self.position, name.as_str()) {
                (Position::Metadata, "managedFields") => {
                    fields.next_value::<IgnoredAny>()?;
                    continue;
                }
                (Position::Object, "metadata") => Position::Metadata,
                _ => Position::Elsewhere,
            };
            self.add(0, 1)?;
            let value = fields.next_value_seed(self.inside(position))?;
            read.insert(name, value);
        }
        Ok(Value::Object(read))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Result<Value, String> {
        let text = value.to_string();
        let mut text = serde_json::Deserializer::from_str(&text);
        bounded(&mut text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_object_is_read_without_its_managed_fields() {
        let mut object = json!({
            "metadata": {"name": "é\"", "labels": {"metadata": "a"}},
            "spec": {"metadata": {"managedFields": [1, -1, 0.5, true, null]}, "n": [u64::MAX, i64::MIN, {}, []]},
        });
        assert_eq!(read(&object), Ok(object.clone()));
        assert_eq!(read(&Value::Null), Ok(Value::Null));
        let expected = object.clone();
        object["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:spec": {}}}]);
        assert_eq!(read(&object), Ok(expected));
    }

    #[test]
    fn managed_fields_do_not_count_and_all_else_does() {
        let many = vec![json!({}); MOST.objects];
        assert!(read(&json!({"metadata": {"managedFields": many}})).is_ok());
        for object in [
            json!({"metadata": {"annotations": many}}),
            json!({"spec": {"managedFields": many}}),
            json!({"status": vec![1; MOST.elements]}),
        ] {
            let error = read(&object).unwrap_err();
            assert!(
                error.starts_with("the object has more than 16384 objects"),
                "{error}"
            );
        }
    }
}
