//! Command lines as Go's `flag` package and Kubernetes take them.

use std::ffi::{OsStr, OsString};

/// Makes `-flag` of Go's `flag` package the `--flag` that it means as well. One letter (`-h`) is
/// left alone, and so is what follows `--`.
pub(super) fn two_dashes(args: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut flags = true;
    args.into_iter().enumerate().map(move |(position, arg)| {
        flags &= arg != OsStr::new("--");
        if position == 0 || !flags || !has_one_dash(&arg) {
            return arg;
        }
        let mut long = OsString::from("-");
        long.push(arg);
        long
    })
}

fn has_one_dash(arg: &OsStr) -> bool {
    matches!(arg.as_encoded_bytes(), [b'-', first, _, ..] if first.is_ascii_alphabetic())
}

/// A truth value, as `strconv.ParseBool` takes it.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("it must be true or false".to_owned()),
    }
}

/// `NAME=BOOL,...`, of which nothing need be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates(pub Vec<FeatureGate>);

impl std::str::FromStr for FeatureGates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let items = text.split(',').filter(|item| !item.trim().is_empty());
        items.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// `NAME=BOOL`. Whether there is such a feature is seen later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGate {
    /// Name of the feature.
    pub name: String,
    /// True if it is to be on.
    pub enabled: bool,
}

impl std::str::FromStr for FeatureGate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, enabled) = text
            .split_once('=')
            .ok_or_else(|| format!("missing bool value for {text}"))?;
        let enabled = boolean(enabled.trim()).map_err(|error| format!("{name}: {error}"))?;
        Ok(Self {
            name: name.trim().to_owned(),
            enabled,
        })
    }
}
