//! The functions that kube-apiserver provides to expressions, beyond those of the evaluator's crate.

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
mod url;

use std::sync::{Arc, LazyLock};

use cel::common::types::DYN_TYPE;
use cel::{DeclarationError, Env};

use crate::meter::{self, Meter};
use crate::time;
use cel::common::functions::Function;
use cel::common::value::Val as _;

static ENV: LazyLock<Arc<Env>> =
    LazyLock::new(|| Arc::new(build().expect("the functions of this crate do not clash with each other")));

/// All functions, registered once per process.
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

/// Registers a function that receives the meter before its arguments, which may have any type.
fn metered(env: &mut Env, name: &str, arguments: usize, function: Function) -> Result<(), DeclarationError> {
    let mut types = vec![Meter::cel_type().to_owned()];
    types.resize_with(arguments + 1, || DYN_TYPE);
    env.add_overload(&format!("@{name}"), &format!("@{name}/{arguments}"), types, function)
}
