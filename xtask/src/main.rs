//! Recipes of the repository. `cargo xtask --help` lists them.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod authz;
mod components;
mod crash;
mod device;
mod e2e;
mod facts;
mod gobuild;
mod goclients;
mod lint;
mod measure;
mod mutants;
mod nightly;
mod quick;
mod run;
mod simulate;
mod test;
mod tool;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Recipes of the Tombolo repository")]
struct Arguments {
    #[command(subcommand)]
    recipe: Recipe,
}

#[derive(Subcommand)]
enum Recipe {
    /// Run every test; builds the Kubernetes components first when they are not cached.
    Test(test::TestOptions),
    /// Check the format and run the tests that need neither Go nor other programs, with few random schedules; takes a
    /// minute once it is built.
    Quick,
    /// Run rustfmt, clippy and cargo-deny as CI does.
    Lint(lint::LintOptions),
    /// Build etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, kubelet, kube-proxy and CoreDNS
    /// into the user's cache folder.
    Components,
    /// Read the facts about built-in kinds, the objects of every cluster and the tags of validation from a running API
    /// server and the Go modules into the data folders of apiserver. With --check, list what differs there instead.
    Facts(facts::FactsOptions),
    /// Run the official end-to-end suite of Kubernetes against the real or the embedded API server.
    E2e(e2e::E2eOptions),
    /// Measure the embedded API server beside kube-apiserver with etcd and print a table.
    ApiBench(measure::Options),
    /// Build edgecore for a device: small, and without shared libraries.
    Device(device::DeviceOptions),
    /// Compare authorization decisions for random rights and requests: the embedded API server beside kube-apiserver.
    Authz(authz::AuthzOptions),
    /// Kill edgecore and cut the power of its disk, thousands of times.
    Crash(crash::CrashOptions),
    /// Alter recorded traffic in every place, frame by frame: a replay must detect each change. The tests alter one
    /// frame of each form.
    Mutations,
    /// Change the product in small ways, one at a time: a test must find each change.
    Mutants(mutants::MutantsOptions),
    /// Run replicas, agents and a model of the Kubernetes API in virtual time, with random operations and faults. A plan
    /// that breaks a rule is made smaller and printed.
    Simulate(measure::Options),
    /// Run what takes longer than each change can wait for: many random cases, fuzzing, crashes, recorded traffic, Kubernetes'
    /// own end-to-end suite. The last lines are a table.
    Nightly(nightly::NightlyOptions),
    /// Measure the DNS server, the wrapper and the memory of a node's agent and print a table.
    EdgeBench(measure::Options),
    /// Attack a hub as one node and as a stranger, and print the cost for the hub and for honest nodes.
    Hostile(measure::Options),
    /// Measure the hub's figures beside the floor and print a table.
    Bench(measure::Options),
}

fn build_components() -> anyhow::Result<()> {
    println!("{}", components::ensure()?.display());
    for program in components::node::ensure_all()? {
        println!("{}", program.display());
    }
    Ok(())
}

fn mutations() -> anyhow::Result<()> {
    test::build_programs()?;
    let mut replay = run::cargo();
    replay.args(["test", "--locked", "--package", "tombolo-tests", "--test", "replay"]);
    replay.env(components::ASSETS_VARIABLE, components::ensure()?);
    test::run_some(replay.env("TOMBOLO_MUTATIONS", "all"))
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().recipe {
        Recipe::Test(options) => test::run(&options),
        Recipe::Quick => quick::run(),
        Recipe::Lint(options) => lint::run(&options),
        Recipe::Components => build_components(),
        Recipe::Facts(options) => facts::run(&options),
        Recipe::E2e(options) => e2e::run(&options),
        Recipe::ApiBench(options) => measure::api_bench(&options),
        Recipe::Authz(options) => authz::run(&options),
        Recipe::Crash(options) => crash::run(&options),
        Recipe::Mutations => mutations(),
        Recipe::Mutants(options) => mutants::run(&options),
        Recipe::Simulate(options) => simulate::run(&options),
        Recipe::Nightly(options) => nightly::run(&options),
        Recipe::Device(options) => device::run(&options),
        Recipe::EdgeBench(options) => measure::edge_bench(&options),
        Recipe::Hostile(options) => measure::hostile(&options),
        Recipe::Bench(options) => measure::bench(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_options_of_all_recipes_fit_together() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn zero_cases_are_refused() {
        let lines = ["authz --cases 0", "crash --kills 0", "crash --cuts 0", "crash --kills 0 --cuts 0"];
        for line in lines {
            let words = ["cargo xtask"].into_iter().chain(line.split(' '));
            let Err(refusal) = Arguments::try_parse_from(words) else { panic!("{line} is accepted") };
            assert!(refusal.to_string().contains("0 is not in 1.."), "{line}: {refusal}");
        }
        assert!(Arguments::try_parse_from(["cargo xtask", "crash", "--kills", "1"]).is_ok());
    }

    #[test]
    fn facts_are_read_from_a_server_that_is_named() {
        let Err(refusal) = Arguments::try_parse_from(["cargo xtask", "facts"]) else {
            panic!("it is accepted")
        };
        assert!(refusal.to_string().contains("--server <SERVER>"), "{refusal}");
    }
}
