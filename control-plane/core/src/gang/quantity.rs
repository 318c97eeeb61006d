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
            *self.0.entry(name.clone()).or_default() += amount;
        }
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
    // As a fraction of whole numbers, in thousandths.
    let mut above = digits.checked_mul(1000)?;
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
