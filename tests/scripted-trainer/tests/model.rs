//! The functions of a script, without processes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use pawl_contract::settings::Settings;
use pawl_scripted_trainer::Script;
use proptest::prelude::*;
use serde_json::{Value, json};

fn script(value: Value) -> Script {
    Script::from_config(value.as_object().unwrap()).unwrap()
}

#[test]
fn throughput_is_log_normal_over_launches() {
    let script = script(json!({"itemsPerSecond": 500, "noise": 0.02, "seed": 9}));
    let settings = Settings::default();
    let logs: Vec<f64> = (0..10_000)
        .map(|i| (script.measured_items_per_second(&settings, &format!("launch-{i}")) / 500.0).ln())
        .collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    let deviation = (logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / logs.len() as f64).sqrt();
    assert!(mean.abs() < 0.001 && (deviation - 0.02).abs() < 0.001, "{mean} {deviation}");
}

proptest! {
    #[test]
    fn numbers_are_positive_finite_and_repeatable(
        seed: u64, plan_seed: u64, launch in "[a-z0-9-]{1,40}", batch in 1_u32..1_000_000, items: u64, noise in 0.0..0.5_f64,
    ) {
        let script = script(json!({"itemsPerSecond": 10, "noise": noise, "seed": seed, "quality": {"seedNoise": noise, "launchNoise": noise}}));
        let settings = Settings { batch_per_gpu: Some(batch), ..Settings::default() };
        let numbers = || [
            script.measured_items_per_second(&settings, &launch),
            script.validation_loss(&settings, items, plan_seed, &launch),
            script.memory_bytes(&settings) as f64,
        ];
        prop_assert!(numbers().iter().all(|x| x.is_finite() && *x > 0.0));
        prop_assert_eq!(numbers(), numbers());
    }

    #[test]
    fn any_document_is_a_script_or_refused(text in "\\PC{0,40}", number: f64) {
        let config = json!({"itemsPerSecond": number, "faults": [{"fault": text, "atStep": number}], "quality": {"finalLoss": number}});
        let _ = Script::from_config(config.as_object().unwrap());
    }
}
