//! Quantities by resource name.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};
use tombolo_apicore::schema::Quantity;

/// Quantities by resource name: limits, use or requests.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Amounts(BTreeMap<String, Quantity>);

impl Amounts {
    /// One amount.
    pub(super) fn one(name: &str, amount: Quantity) -> Self {
        Self([(name.to_owned(), amount)].into())
    }

    /// Reads `{"cpu": "500m", …}`; invalid quantities are left out, because validation of the kind refuses them.
    pub(crate) fn read(list: Option<&Value>) -> Self {
        let members = list.and_then(Value::as_object).into_iter().flatten();
        let parse = |value: &Value| match value {
            Value::String(text) => Quantity::parse(text).ok(),
            Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
            _ => None,
        };
        Self(members.filter_map(|(name, value)| Some((name.clone(), parse(value)?))).collect())
    }

    /// The JSON form that [`Self::read`] reads.
    pub(crate) fn to_value(&self) -> Value {
        Value::Object(
            self.0
                .iter()
                .map(|(name, amount)| (name.clone(), amount.to_string().into()))
                .collect::<Map<_, _>>(),
        )
    }

    /// The names, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The amount of one name.
    pub(crate) fn get(&self, name: &str) -> Option<Quantity> {
        self.0.get(name).copied()
    }

    /// Sets the amount of one name.
    pub(crate) fn set(&mut self, name: impl Into<String>, amount: Quantity) {
        self.0.insert(name.into(), amount);
    }

    /// Adds other amounts.
    pub(crate) fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let sum = self.get(name).unwrap_or(Quantity::ZERO) + *amount;
            self.0.insert(name.clone(), sum);
        }
    }

    /// Takes the greater amount of each name.
    pub(crate) fn raise(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            if self.get(name).is_none_or(|own| own < *amount) {
                self.0.insert(name.clone(), *amount);
            }
        }
    }

    /// The difference to other amounts, at least zero.
    pub(crate) fn above(&self, other: &Self) -> Self {
        let rest = |name: &String, amount: &Quantity| *amount - other.get(name).unwrap_or(Quantity::ZERO);
        Self(
            self.0
                .iter()
                .map(|(name, amount)| (name.clone(), rest(name, amount)))
                .map(|(name, rest)| (name, if rest.sign().is_lt() { Quantity::ZERO } else { rest }))
                .collect(),
        )
    }

    /// The amounts of the names for which `wanted` holds.
    pub(crate) fn only(&self, mut wanted: impl FnMut(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|(name, _)| wanted(name)).map(|(name, own)| (name.clone(), *own)).collect())
    }

    /// The amounts that are not zero.
    pub(crate) fn nonzero(&self) -> Self {
        Self(
            self.0
                .iter()
                .filter(|(_, own)| !own.sign().is_eq())
                .map(|(name, own)| (name.clone(), *own))
                .collect(),
        )
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names whose amount is above a limit.
    pub(crate) fn beyond(&self, limits: &Self) -> Vec<&str> {
        let over =
            |name: &&str| limits.get(name).is_some_and(|limit| self.get(name).is_some_and(|own| own > limit));
        self.names().filter(over).collect()
    }
}

/// `cpu=1,pods=3`, as in kube-apiserver's refusals.
impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, amount)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{name}={amount}")?;
        }
        Ok(())
    }
}
