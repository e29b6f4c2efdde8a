//! Scenarios of one system, which run one after the other.

/// The names of scenarios, as `SCENARIOS`, and `perform`, which runs one of them on a `Stage`. Each is a function of the
/// module `scenarios`.
#[macro_export]
macro_rules! scenarios {
    ($($name:ident),* $(,)?) => {
        const SCENARIOS: &[&str] = &[$(stringify!($name)),*];

        async fn perform(scenario: &str, stage: &mut Stage) {
            $(if scenario == stringify!($name) {
                return scenarios::$name(stage).await;
            })*
            panic!("there is no scenario {scenario}");
        }
    };
}
