//! Resource quantities (`kubernetes.Quantity`).

use std::cmp::Ordering;

use cel::common::types::{CelBool, CelDouble, CelInt, CelString};
use cel::{DeclarationError, Env, ExecutionError};
use tombolo_apicore::schema::Quantity;

use crate::opaque::opaque;

#[derive(Debug, Clone, PartialEq)]
struct Amount(Quantity);

opaque!(Amount, "kubernetes.Quantity");

pub(super) fn register(env: &mut Env) -> Result<(), DeclarationError> {
    cel::add_overload!(env, fn parse: (CelString<'_>) -> Result<Amount>, name = "quantity")?;
    cel::add_overload!(env, fn is_quantity: (CelString<'_>) -> CelBool, name = "isQuantity")?;
    cel::add_member_overload!(env, fn sign: (Amount) -> CelInt)?;
    cel::add_member_overload!(env, fn is_greater_than: (Amount, Amount) -> CelBool)?;
    cel::add_member_overload!(env, fn is_less_than: (Amount, Amount) -> CelBool)?;
    cel::add_member_overload!(env, fn compare_to: (Amount, Amount) -> CelInt)?;
    cel::add_member_overload!(env, fn as_approximate_float: (Amount) -> CelDouble)?;
    cel::add_member_overload!(env, fn as_integer: (Amount) -> Result<CelInt>)?;
    cel::add_member_overload!(env, fn is_integer: (Amount) -> CelBool)?;
    cel::add_member_overload!(env, fn add: (Amount, Amount) -> Amount)?;
    cel::add_member_overload!(env, fn add_whole: (Amount, CelInt) -> Amount, name = "add")?;
    cel::add_member_overload!(env, fn sub: (Amount, Amount) -> Amount)?;
    cel::add_member_overload!(env, fn sub_whole: (Amount, CelInt) -> Amount, name = "sub")
}

fn read(text: &str) -> Result<Quantity, ExecutionError> {
    Quantity::parse(text).map_err(|error| ExecutionError::function_error("quantity", error))
}

fn parse(text: &CelString<'_>) -> Result<Amount, ExecutionError> {
    read(text.inner()).map(Amount)
}

fn is_quantity(text: &CelString<'_>) -> CelBool {
    Quantity::parse(text.inner()).is_ok().into()
}

fn sign(amount: &Amount) -> CelInt {
    i64::from(amount.0.sign() as i8).into()
}

fn order(a: &Amount, b: &Amount) -> Ordering {
    a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal)
}

fn is_greater_than(a: &Amount, b: &Amount) -> CelBool {
    (order(a, b) == Ordering::Greater).into()
}

fn is_less_than(a: &Amount, b: &Amount) -> CelBool {
    (order(a, b) == Ordering::Less).into()
}

fn compare_to(a: &Amount, b: &Amount) -> CelInt {
    i64::from(order(a, b) as i8).into()
}

fn as_approximate_float(amount: &Amount) -> CelDouble {
    amount.0.ratio(Quantity::whole(1)).into()
}

/// The value, if it is an integer.
fn exact(amount: &Amount) -> Option<i64> {
    let rounded = amount.0.rounded_up();
    if rounded != amount.0 {
        return None;
    }
    rounded.units()
}

fn as_integer(amount: &Amount) -> Result<CelInt, ExecutionError> {
    let whole = exact(amount).map(CelInt::from);
    whole.ok_or_else(|| ExecutionError::function_error("asInteger", "cannot convert value to integer"))
}

fn is_integer(amount: &Amount) -> CelBool {
    exact(amount).is_some().into()
}

fn add(a: &Amount, b: &Amount) -> Amount {
    Amount(a.0 + b.0)
}

fn sub(a: &Amount, b: &Amount) -> Amount {
    Amount(a.0 - b.0)
}

fn add_whole(a: &Amount, b: &CelInt) -> Amount {
    Amount(a.0 + Quantity::from(*b.inner()))
}

fn sub_whole(a: &Amount, b: &CelInt) -> Amount {
    Amount(a.0 - Quantity::from(*b.inner()))
}
