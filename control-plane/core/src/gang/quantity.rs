//! Amounts of resources.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::common::quantity::quantity;

/// Amounts by resource name, in thousandths (of a core, of a byte, of a device).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resources(BTreeMap<String, i128>);

impl Resources {
    /// The resource of which each pod takes one.
    pub const PODS: &'static str = "pods";

    /// Reads a list of quantities. Malformed ones count as 0.
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

    /// Adds other amounts of the resources that are in `known`.
    pub fn add_known(&mut self, other: &Self, known: &Self) {
        for (name, amount) in &other.0 {
            if known.0.contains_key(name) {
                let own = self.0.entry(name.clone()).or_default();
                *own = own.saturating_add(*amount);
            }
        }
    }

    /// Subtracts other amounts `times` times; adds them if that is negative.
    pub fn take(&mut self, other: &Self, times: i128) {
        for (name, amount) in &other.0 {
            let own = self.0.entry(name.clone()).or_default();
            *own = own.saturating_sub(amount.saturating_mul(times));
        }
    }

    /// How many times the other amounts fit into these.
    #[must_use]
    pub fn holds(&self, other: &Self) -> u32 {
        let asked = other.0.iter().filter(|(_, amount)| **amount > 0);
        let times = asked.map(|(name, amount)| self.get(name).max(0) / amount).min();
        times.map_or(u32::MAX, |times| u32::try_from(times).unwrap_or(u32::MAX))
    }

    /// The most pods with the other amounts that one pod with these amounts can displace from a
    /// node.
    #[must_use]
    pub fn displaces(&self, other: &Self) -> u64 {
        let asked = other.0.iter().filter(|(_, amount)| **amount > 0);
        let times = asked.map(|(name, amount)| {
            let own = self.get(name);
            own / amount + i128::from(own % amount != 0)
        });
        u64::try_from(times.max().unwrap_or(0)).unwrap_or(u64::MAX)
    }

    /// Raises each amount to at least the other one.
    pub fn raise(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let own = self.0.entry(name.clone()).or_default();
            *own = (*own).max(*amount);
        }
    }
}
