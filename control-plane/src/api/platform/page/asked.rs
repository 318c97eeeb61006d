//! What a reader of the page looks at.

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;

use crate::api::platform::fields;
use crate::controllers::restart::board::Key;

/// Longest text that is looked for.
const MAX_SEARCH: usize = 256;

/// What a reader looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// The groups whose namespace and name, with a slash between, have this text in them.
    Groups {
        /// Empty: all.
        search: String,
    },
    /// One group.
    Group(Key),
}

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = (StatusCode, String);

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let refused = |message: &str| (StatusCode::BAD_REQUEST, format!("{message}\n"));
        if let Ok(Path((namespace, name))) = Path::<(String, String)>::from_request_parts(parts, state).await
        {
            let key = fields::key(namespace, name).map_err(|status| refused(status.message()))?;
            return Ok(Self::Group(key));
        }
        let search = match parts.uri.query() {
            None | Some("") => "",
            Some(query) => query
                .strip_prefix("search=")
                .ok_or_else(|| refused("the query: only search=TEXT is known"))?,
        };
        // Nothing else is in the names, so nothing has to be unescaped.
        let in_names =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-./".contains(&byte);
        if search.len() > MAX_SEARCH || !search.bytes().all(in_names) {
            return Err(refused("search: must be a part of NAMESPACE/NAME"));
        }
        Ok(Self::Groups {
            search: search.to_owned(),
        })
    }
}
