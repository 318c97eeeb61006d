//! How much memory an object takes once it is decoded. That depends on its number of parts and not
//! on its length: `{}` may become a volume of 3 kB.
//!
//! Promises: counting takes no memory. Decoding an object of at most [`Extent::MOST`] takes at most
//! 32 MB.

use serde_json::Value;

/// The number of parts of a JSON value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Objects, in braces.
    pub objects: usize,
    /// List items and object fields, including nested ones. Empty brackets count as one.
    pub elements: usize,
}

impl Extent {
    /// The most parts of a JobSet, a pod or one of Ray's resources, without metadata. A JobSet in
    /// etcd has at most 1.5 MiB, which is fewer parts if its objects have 200 bytes on average.
    /// JobSets of usual Jobs have a few hundred.
    pub const MOST: Self = Self {
        objects: 8_192,
        elements: 65_536,
    };

    /// The limit at admission. It is half of [`Extent::MOST`]: the review of an update holds the
    /// old and the new object, and parses each more than once.
    pub const ADMITTED: Self = Self {
        objects: Self::MOST.objects / 2,
        elements: Self::MOST.elements / 2,
    };

    /// Counts the parts of a JSON text. For malformed text the count is an upper bound.
    #[must_use]
    pub fn of_text(json: &[u8]) -> Self {
        let mut extent = Self::default();
        let (mut in_string, mut escaped) = (false, false);
        for byte in json {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                // Each begins an element, except empty brackets.
                b',' | b'[' if !in_string => extent.elements += 1,
                b'{' if !in_string => {
                    extent.elements += 1;
                    extent.objects += 1;
                }
                _ => {}
            }
        }
        extent
    }

    /// Counts the parts of a decoded value.
    #[must_use]
    pub fn of(value: &Value) -> Self {
        let none = Self::default();
        match value {
            Value::Array(items) => items
                .iter()
                .map(Self::of)
                .fold(none, Self::plus)
                .with(0, items.len()),
            Value::Object(fields) => fields
                .values()
                .map(Self::of)
                .fold(none, Self::plus)
                .with(1, fields.len()),
            _ => none,
        }
    }

    fn with(self, objects: usize, elements: usize) -> Self {
        self.plus(Self {
            objects,
            elements: elements.max(1),
        })
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            objects: self.objects.saturating_add(other.objects),
            elements: self.elements.saturating_add(other.elements),
        }
    }

    /// The extent of `count` such values.
    #[must_use]
    pub const fn times(self, count: usize) -> Self {
        Self {
            objects: self.objects.saturating_mul(count),
            elements: self.elements.saturating_mul(count),
        }
    }

    /// True if it has more objects or more elements than `most`.
    #[must_use]
    pub fn exceeds(self, most: Self) -> bool {
        self.objects > most.objects || self.elements > most.elements
    }

    /// The length in bytes of typical text that takes as much memory.
    #[must_use]
    pub fn as_bytes_of_text(self) -> usize {
        let of_objects = self.objects.saturating_mul(512);
        of_objects.saturating_add(self.elements.saturating_mul(16))
    }

    /// A sentence: what it has, and what it may have.
    #[must_use]
    pub fn sentence(self, most: Self) -> String {
        let Self { objects, elements } = self;
        format!(
            "has {objects} objects and {elements} list items and fields, but may have at most {} and {}",
            most.objects, most.elements
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn items_fields_and_empty_brackets_count_and_texts_do_not() {
        for (value, objects, elements) in [
            (json!(1), 0, 0),
            (json!("a,[{"), 0, 0),
            (json!("\\\",\""), 0, 0),
            (json!([]), 0, 1),
            (json!([1, 2, 3]), 0, 3),
            (json!([{}, {}, {}]), 3, 6),
            (json!({"a": [1, 2], "b,": "[,\\"}), 1, 4),
        ] {
            let text = serde_json::to_vec(&value).unwrap();
            let extent = Extent { objects, elements };
            assert_eq!(Extent::of_text(&text), extent, "{value}");
            assert_eq!(Extent::of(&value), extent, "{value}");
        }
    }

    #[test]
    fn either_may_exceed() {
        let most = Extent::MOST;
        assert!(!most.exceeds(most));
        assert!(
            most.plus(Extent {
                objects: 1,
                elements: 0
            })
            .exceeds(most)
        );
        assert!(
            most.plus(Extent {
                objects: 0,
                elements: 1
            })
            .exceeds(most)
        );
    }

    proptest! {
        #[test]
        fn bytes_are_counted_whatever_they_are(bytes: Vec<u8>) {
            prop_assert!(Extent::of_text(&bytes).elements <= bytes.len());
        }

        #[test]
        fn a_text_has_as_many_as_its_value(texts: Vec<(String, Vec<String>)>) {
            let value = json!(texts);
            let text = serde_json::to_vec(&value).unwrap();
            prop_assert_eq!(Extent::of_text(&text), Extent::of(&value));
        }
    }
}
