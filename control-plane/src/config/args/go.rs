//! Command lines by the rules of Go's `flag` package and Kubernetes.

use std::ffi::{OsStr, OsString};

/// Turns `-flag`, which Go's `flag` package accepts, into `--flag`. Single letters (`-h`) and
/// everything after `--` stay.
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

/// Parses a boolean as `strconv.ParseBool` does.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("it must be true or false".to_owned()),
    }
}

/// `NAME=BOOL,...`, possibly empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGates(pub Vec<FeatureGate>);

impl std::str::FromStr for FeatureGates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let items = text.split(',').filter(|item| !item.trim().is_empty());
        items.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

/// `NAME=BOOL`. The name is checked later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGate {
    /// Name of the feature.
    pub name: String,
    /// True if it is enabled.
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
