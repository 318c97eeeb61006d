//! Amounts of resources, and Kubernetes' way to write them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Amounts by resource name, in thousandths (of a core, of a byte, of a device).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resources(BTreeMap<String, i128>);

impl Resources {
    /// The resource that each pod takes one of.
    pub const PODS: &'static str = "pods";

    /// Reads a list of quantities. What is malformed counts as nothing.
    #[must_use]
    pub fn of(quantities: &BTreeMap<String, Quantity>) -> Self {
        let amounts = quantities.iter();
        Self(
            amounts
                .map(|(name, value)| (name.clone(), quantity(&value.0).unwrap_or(0)))
                .collect(),
        )
    }

    /// The amount of one resource, in thousandths.
    #[must_use]
    pub fn get(&self, name: &str) -> i128 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Sets the amount of one resource, in thousandths.
    pub fn set(&mut self, name: &str, amount: i128) {
        self.0.insert(name.to_owned(), amount);
    }

    /// All amounts, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i128)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    /// Adds other amounts.
    pub fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let own = self.0.entry(name.clone()).or_default();
            *own = own.saturating_add(*amount);
        }
    }

    /// Takes other amounts away so many times; gives them back where that is negative.
    pub fn take(&mut self, other: &Self, times: i128) {
        for (name, amount) in &other.0 {
            let own = self.0.entry(name.clone()).or_default();
            *own = own.saturating_sub(amount.saturating_mul(times));
        }
    }

    /// How often the other amounts are in these.
    #[must_use]
    pub fn holds(&self, other: &Self) -> u32 {
        let asked = other.0.iter().filter(|(_, amount)| **amount > 0);
        let times = asked.map(|(name, amount)| self.get(name).max(0) / amount).min();
        times.map_or(u32::MAX, |times| u32::try_from(times).unwrap_or(u32::MAX))
    }

    /// How many pods that ask for the other amounts one that asks for these can keep from a node, at most.
    #[must_use]
    pub fn displaces(&self, other: &Self) -> u64 {
        let asked = other.0.iter().filter(|(_, amount)| **amount > 0);
        let times = asked.map(|(name, amount)| {
            let own = self.get(name);
            own / amount + i128::from(own % amount != 0)
        });
        u64::try_from(times.max().unwrap_or(0)).unwrap_or(u64::MAX)
    }

    /// Raises each amount to that of the other.
    pub fn raise(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let own = self.0.entry(name.clone()).or_default();
            *own = (*own).max(*amount);
        }
    }
}

/// Reads a quantity, in thousandths, rounded up; `None`: it is none.
#[must_use]
pub fn quantity(text: &str) -> Option<i128> {
    parts(text, 1_000)
}

/// Reads a quantity, in billionths, which is as exact as Kubernetes is; `None`: it is none, or too large to tell.
pub(crate) fn billionths(text: &str) -> Option<i128> {
    parts(text, 1_000_000_000)
}

/// Reads a quantity, in parts of which so many make one, rounded up.
fn parts(text: &str, in_one: i128) -> Option<i128> {
    let text = text.trim();
    let end = text
        .char_indices()
        .find(|(at, c)| !(c.is_ascii_digit() || *c == '.' || *at == 0 && matches!(c, '+' | '-')))
        .map_or(text.len(), |(at, _)| at);
    let (number, suffix) = text.split_at(end);
    let negative = number.starts_with('-');
    let (whole, fraction) = number
        .trim_start_matches(['+', '-'])
        .split_once('.')
        .unwrap_or((number.trim_start_matches(['+', '-']), ""));
    if whole.is_empty() && fraction.is_empty() || whole.len() + fraction.len() > 24 {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    // As a fraction of whole numbers.
    let mut above = digits.checked_mul(in_one)?;
    let mut below = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    match scale(suffix)? {
        Scale::Times(factor) => above = above.checked_mul(factor)?,
        Scale::Over(factor) => below = below.checked_mul(factor)?,
    }
    let amount = above / below + i128::from(above % below != 0);
    Some(if negative { -amount } else { amount })
}

enum Scale {
    Times(i128),
    Over(i128),
}

fn scale(suffix: &str) -> Option<Scale> {
    const KI: i128 = 1024;
    Some(match suffix {
        "" => Scale::Times(1),
        "n" => Scale::Over(1_000_000_000),
        "u" => Scale::Over(1_000_000),
        "m" => Scale::Over(1_000),
        "k" => Scale::Times(1_000),
        "M" => Scale::Times(1_000_000),
        "G" => Scale::Times(1_000_000_000),
        "T" => Scale::Times(1_000_000_000_000),
        "P" => Scale::Times(1_000_000_000_000_000),
        "E" => Scale::Times(1_000_000_000_000_000_000),
        "Ki" => Scale::Times(KI),
        "Mi" => Scale::Times(KI.pow(2)),
        "Gi" => Scale::Times(KI.pow(3)),
        "Ti" => Scale::Times(KI.pow(4)),
        "Pi" => Scale::Times(KI.pow(5)),
        "Ei" => Scale::Times(KI.pow(6)),
        exponent => {
            let exponent: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let factor = 10_i128.checked_pow(exponent.unsigned_abs())?;
            if exponent < 0 {
                Scale::Over(factor)
            } else {
                Scale::Times(factor)
            }
        }
    })
}
