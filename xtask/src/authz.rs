//! `cargo xtask authz`: sends random requests with random rights to kube-apiserver and to the embedded server.

use anyhow::Result;
use clap::Args;

use crate::{components, run, test};

#[derive(Args)]
pub(crate) struct AuthzOptions {
    /// Cases, rounded up to whole worlds of 200.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    cases: u64,

    /// Seed of the first world; each further world uses the next seed. Random if not given.
    #[arg(long)]
    seed: Option<u64>,
}

pub(crate) fn run(options: &AuthzOptions) -> Result<()> {
    let mut cases = run::cargo();
    cases.args(["test", "--locked", "--package", "tombolo-tests", "--test", "authorization", "--"]);
    cases.args(["--exact", "authorization_decisions_match_kube_apiserver", "--nocapture"]);
    cases.env(components::ASSETS_VARIABLE, components::ensure()?);
    cases.env("TOMBOLO_AUTHZ_CASES", options.cases.to_string());
    if let Some(seed) = options.seed {
        cases.env("TOMBOLO_SEED", seed.to_string());
    }
    test::run_some(&mut cases)
}
