use super::*;

/// How many seeds each backend runs; `cargo xtask model` sets more.
const SEEDS: u64 = 25;

pub async fn random_operations_agree_with_the_model(h: &Harness) {
    let read = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = read("TENURE_MODEL_FIRST").unwrap_or(0);
    for seed in first..first + read("TENURE_MODEL_SEEDS").unwrap_or(SEEDS) {
        model::run(h, seed).await;
    }
}
