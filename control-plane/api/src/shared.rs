//! What the API types share: enumerations that are strings, accessors of metadata, and a change to
//! schemas.

/// Declares an enumeration of CamelCase strings; the first variant is its `Default`.
///
/// The API server validates the values. Unknown values that pass anyway (another version's CRD, an
/// object stored before an upgrade, a webhook that sees an object before validation) are kept in
/// `Other`: one odd object must not make a whole list unreadable, and a read-modify-write must not
/// change the value.
macro_rules! string_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $(#[$first_meta:meta])* $first:ident,
            $($(#[$variant_meta:meta])* $variant:ident,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $(#[$first_meta])*
            #[default]
            $first,
            $($(#[$variant_meta])* $variant,)*
            /// A value that this version does not know, as it was read.
            Other(String),
        }

        impl $name {
            /// The values that the CRD's schema allows.
            pub const VALUES: &'static [&'static str] = &[stringify!($first), $(stringify!($variant)),*];

            /// The value as it is on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    Self::$first => stringify!($first),
                    $(Self::$variant => stringify!($variant),)*
                    Self::Other(value) => value,
                }
            }
        }

        impl From<&str> for $name {
            fn from(value: &str) -> Self {
                match value {
                    stringify!($first) => Self::$first,
                    $(stringify!($variant) => Self::$variant,)*
                    other => Self::Other(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                Ok(Self::from(value.as_ref()))
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": Self::VALUES })
            }
        }
    };
}

/// Adds accessors of the metadata to a kind. Fields that the API server has not set yet are empty.
macro_rules! object {
    ($kind:ty) => {
        impl $kind {
            /// Its name.
            pub fn name(&self) -> &str {
                self.metadata.name.as_deref().unwrap_or_default()
            }

            /// Its namespace.
            pub fn ns(&self) -> &str {
                self.metadata.namespace.as_deref().unwrap_or_default()
            }

            /// Its UID.
            pub fn uid_str(&self) -> &str {
                self.metadata.uid.as_deref().unwrap_or_default()
            }

            /// True if it is being deleted.
            pub fn is_deleting(&self) -> bool {
                self.metadata.deletion_timestamp.is_some()
            }

            /// The value of an annotation.
            pub fn annotation(&self, key: &str) -> Option<&str> {
                self.metadata
                    .annotations
                    .as_ref()?
                    .get(key)
                    .map(String::as_str)
            }
        }
    };
}

/// Removes the default from the schema of a field that is always written: serde's default is not
/// a default of the API.
pub(crate) fn without_default(schema: &mut schemars::Schema) {
    schema.remove("default");
}

pub(crate) use {object, string_enum};
