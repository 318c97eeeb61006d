//! What every resource of this crate says of itself.

/// Lets objects of a kind be asked for their metadata. What the API server has not filled in yet is
/// empty.
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

            /// Whether it is being deleted.
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

/// Lets objects of one of Ray's kinds be asked which controller looks after them.
macro_rules! managed {
    ($kind:ty) => {
        impl $kind {
            /// Who looks after it, where that is stated and not this controller.
            pub fn managed_by_another(&self) -> Option<&str> {
                let manager = self.spec.managed_by.as_deref();
                manager.filter(|manager| !manager.is_empty() && *manager != $crate::ray::CONTROLLER_NAME)
            }

            /// Whether it states that this controller looks after it.
            pub fn is_claimed(&self) -> bool {
                self.spec.managed_by.as_deref() == Some($crate::ray::CONTROLLER_NAME)
            }
        }
    };
}

pub(crate) use {managed, object};
