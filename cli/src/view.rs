//! Pure functions from observed objects to what is shown. They take the time as an argument.

pub(crate) mod api_error;
pub(crate) mod check;
pub(crate) mod demo;
pub(crate) mod dry_run;
pub(crate) mod history;
pub(crate) mod nodes;
pub(crate) mod pods;
pub(crate) mod restart;
pub(crate) mod status;
pub(crate) mod time;
pub(crate) mod timeline;

#[cfg(test)]
pub(crate) mod testing;
