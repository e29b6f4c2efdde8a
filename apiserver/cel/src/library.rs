//! The functions that kube-apiserver gives to expressions, beside those of the evaluator's crate.

#![expect(
    clippy::needless_pass_by_value,
    reason = "functions take their arguments as the evaluator gives them"
)]

pub(crate) mod authorization;
mod formats;
mod lists;
mod network;
mod pairs;
mod patterns;
mod quantity;
mod semver;
mod strings;
pub(crate) mod time;
mod url;

use std::sync::{Arc, LazyLock};

use cel::common::types::{CelString, DYN_TYPE};
use cel::common::value::CowVal;
use cel::{DeclarationError, Env, ExecutionError};

use crate::meter::{self, Meter};
use cel::common::functions::Function;
use cel::common::value::Val as _;

static ENV: LazyLock<Arc<Env>> =
    LazyLock::new(|| Arc::new(build().expect("the functions of this crate do not clash with each other")));

/// All functions, made once per process.
pub(crate) fn env() -> &'static Arc<Env> {
    &ENV
}

fn build() -> Result<Env, DeclarationError> {
    let mut env = Env::stdlib();
    env.add_extension(cel::extensions::strings)?;
    env.add_extension(cel::extensions::lists)?;
    for register in [
        meter::register as fn(&mut Env) -> Result<(), DeclarationError>,
        authorization::register,
        formats::register,
        lists::register,
        network::register,
        pairs::register,
        patterns::register,
        quantity::register,
        semver::register,
        strings::register,
        time::register,
        url::register,
    ] {
        register(&mut env)?;
    }
    Ok(env)
}

/// Registers a function that is given the meter before its arguments, of any type.
fn metered(env: &mut Env, name: &str, arguments: usize, function: Function) -> Result<(), DeclarationError> {
    let mut types = vec![Meter::cel_type().to_owned()];
    types.resize_with(arguments + 1, || DYN_TYPE);
    env.add_overload(&format!("@{name}"), &format!("@{name}/{arguments}"), types, function)
}

/// A text among the arguments.
fn text<'a>(
    function: &str,
    arguments: &'a [CowVal<'_, '_>],
    index: usize,
) -> Result<&'a str, ExecutionError> {
    let found = arguments.get(index).and_then(|value| value.downcast_ref::<CelString<'_>>());
    found.map(CelString::inner).ok_or_else(|| no_overload(function))
}

/// A whole number among the arguments.
fn whole(function: &str, arguments: &[CowVal<'_, '_>], index: usize) -> Result<i64, ExecutionError> {
    let found = arguments.get(index).and_then(|value| value.downcast_ref::<cel::common::types::CelInt>());
    found.map(|number| *number.inner()).ok_or_else(|| no_overload(function))
}

fn no_overload(function: &str) -> ExecutionError {
    ExecutionError::function_error(function, "no such overload")
}

/// Declares a type of a library: its name, and that values are compared and copied as Rust compares and copies them.
macro_rules! opaque {
    ($ty:ident, $name:literal) => {
        static TYPE: cel::common::types::Type = cel::common::types::Type::new_unspecified_type($name);

        impl cel::common::value::Val for $ty {
            fn get_type(&self) -> &cel::common::types::Type {
                &TYPE
            }

            fn cel_type() -> &'static cel::common::types::Type {
                &TYPE
            }

            fn equals(&self, other: &dyn cel::common::value::Val) -> bool {
                other.downcast_ref::<Self>().is_some_and(|other| self == other)
            }

            fn clone_as_boxed<'v>(&self) -> Box<dyn cel::common::value::Val + 'v> {
                Box::new(self.clone())
            }

            fn as_any(&self) -> Option<&dyn std::any::Any> {
                Some(self)
            }
        }

        impl cel::common::value::StaticVal for $ty {}
    };
}
use opaque;
