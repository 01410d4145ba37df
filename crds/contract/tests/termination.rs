//! The termination message: bounded, readable, newest evidence kept.

use pawl_contract::checkpoint::{BestCheckpoint, CheckpointRef, TrainedPart};
use pawl_contract::exit::Outcome;
use pawl_contract::fingerprint::Fingerprint;
use pawl_contract::measured::{Disturbance, Measured, Spread, Validation};
use pawl_contract::report::{LaunchResult, MAX_TERMINATION_MESSAGE, fold, unfold};
use proptest::option::of;
use proptest::prelude::*;

fn outcome() -> impl Strategy<Value = Outcome> {
    use Outcome::{
        CheckpointUnreadable, CompileFailed, Done, Failed, Hang, HostOutOfMemory, LossSpike, LostPeer, NonFinite,
        OutOfMemory, Stopped,
    };
    prop::sample::select(vec![
        CheckpointUnreadable,
        CompileFailed,
        Done,
        Failed,
        Hang,
        HostOutOfMemory,
        LossSpike,
        LostPeer,
        NonFinite,
        OutOfMemory,
        Stopped,
    ])
}

fn best_checkpoint() -> CheckpointRef {
    CheckpointRef { name: "00000003-step-30".to_owned(), step: 30, items: 1_920 }
}

prop_compose! {
    fn validation()(
        items in any::<u64>(),
        metrics in prop::collection::btree_map("\\PC{1,40}", any::<f64>(), 0..12),
    ) -> Validation {
        Validation { items, metrics }
    }
}

prop_compose! {
    fn measured_anything()(
        rates in prop::array::uniform10(of(any::<f64>())),
        memory in prop::array::uniform2(of(any::<u64>())),
        step in of(prop::array::uniform3(any::<f64>())),
        (steps, items) in any::<(u64, u64)>(),
        [validation, first_validation] in prop::array::uniform2(of(validation())),
        steady in of(any::<bool>()),
        shares in prop::array::uniform8(of(any::<f64>())),
    ) -> Measured {
        Measured {
            disturbance: Disturbance {
                cpu_pressure: shares[0], memory_pressure: shares[1], io_pressure: shares[2], other_cpu_share: shares[3],
                cpu_throttled_share: shares[4], throttled_share: shares[5], shared_gpu_share: shares[6],
                idle_cpu_share: shares[7],
            },
            steady, steps, items, first_validation, validation, wall_seconds: rates[0], items_per_second: rates[1],
            step_seconds: step.map(|[p10, median, p90]| Spread { p10, median, p90 }), loss: rates[2],
            peak_memory_bytes: memory[0], predicted_memory_bytes: memory[1], loader_wait_share: rates[3],
            collective_wait_share: rates[4], offload_share: rates[5], utilization: rates[6],
            float8_overflow_share: rates[7], float8_underflow_share: rates[8],
            initial_weights_share: rates[9],
        }
    }
}

prop_compose! {
    /// Any result, not only sensible ones: whoever writes the message must never fail.
    fn result()(
        launch in "[a-z0-9.-]{1,128}",
        outcome in outcome(),
        message in prop_oneof![Just(String::new()), "\\PC{0,300}", "[\"\\\\\u{1}\u{7f}é]{0,200}"],
        checkpoint in of(("\\PC{0,80}", any::<(u64, u64)>())),
        best in of(("\\PC{0,80}", any::<f64>())),
        items_per_epoch in of(any::<u64>()),
        stop_seconds in of(any::<f64>()),
        failed_at_items in of(any::<u64>()),
        (signal, exit_code, resumed_items) in (of(any::<i32>()), of(any::<i32>()), of(any::<u64>())),
        quarantined in prop::collection::vec("\\PC{0,80}", 0..12),
        trained in prop::collection::vec((any::<u64>(), "\\PC{0,80}", "[a-z0-9-]{1,80}"), 0..20),
        said in of("\\PC{0,40}"),
        measured in measured_anything(),
        curve in prop::collection::vec(any::<f64>(), 0..5),
    ) -> LaunchResult {
        let evaluations = (1..).zip(&curve).map(|(amount, value)| (amount, Some(*value))).collect();
        LaunchResult {
            launch, outcome, message, measured, curve, evaluations, failed_at_items, items_per_epoch, stop_seconds, signal, exit_code,
            resumed_items,
            quarantined,
            trained: trained.into_iter().map(|(from_items, attempt, launch)| TrainedPart { from_items, attempt, launch }).collect(),
            fingerprint: said.as_deref().map(Fingerprint::of),
            checkpoint: checkpoint.map(|(name, (step, items))| CheckpointRef { name, step, items }),
            best_checkpoint: best.map(|(metric, value)| BestCheckpoint { checkpoint: best_checkpoint(), metric, value }),
        }
    }
}

proptest! {
    #[test]
    fn any_launches_fit_and_the_newest_come_back(launches in prop::collection::vec(result(), 0..40)) {
        let text = fold(&launches);
        prop_assert!(text.len() <= MAX_TERMINATION_MESSAGE);
        let folded = unfold(&text).unwrap();
        prop_assert_eq!(folded.dropped as usize + folded.launches.len(), launches.len());
        prop_assert_eq!(folded.launches.is_empty(), launches.is_empty());
        for (back, sent) in folded.launches.iter().rev().zip(launches.iter().rev()) {
            prop_assert_eq!(&back.launch, &sent.launch);
            prop_assert_eq!(back.outcome, sent.outcome);
            let (found, measured) = (&back.measured, &sent.measured);
            prop_assert_eq!((found.steps, found.items), (measured.steps, measured.items));
            prop_assert_eq!(found.peak_memory_bytes, measured.peak_memory_bytes);
            prop_assert_eq!(found.predicted_memory_bytes, measured.predicted_memory_bytes);
            prop_assert_eq!((back.failed_at_items, back.items_per_epoch), (sent.failed_at_items, sent.items_per_epoch));
            // No trainer gives longer names.
            prop_assert_eq!(&back.checkpoint, &sent.checkpoint.clone().filter(|there| there.name.len() <= 64));
            let best = sent.best_checkpoint.as_ref().filter(|best| best.metric.len() <= 64 && best.value.is_finite());
            prop_assert_eq!(back.best_checkpoint.as_ref().map(|b| &b.metric), best.map(|b| &b.metric));
            prop_assert_eq!(back.fingerprint, sent.fingerprint);
            prop_assert!(sent.message.starts_with(&back.message));
            if let Some(rate) = measured.items_per_second.filter(|rate| rate.is_finite()) {
                prop_assert!((found.items_per_second.unwrap() - rate).abs() <= rate.abs() * 1e-5);
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text: String) {
        let _ = unfold(&text);
    }
}

/// A launch as a measurement makes it.
fn measured(index: usize, message: &str) -> LaunchResult {
    LaunchResult {
        launch: format!("ups-4gpu-sharding-full-r2-b{index}-seed42"),
        outcome: Outcome::Done,
        message: message.to_owned(),
        measured: Measured {
            steps: 70,
            items: 13_440,
            wall_seconds: Some(123.456),
            items_per_second: Some(1234.56),
            steady: None,
            step_seconds: Some(Spread { p10: 0.123456, median: 0.124567, p90: 0.125678 }),
            loss: Some(0.123456),
            first_validation: None,
            validation: Some(Validation {
                items: 13_440,
                metrics: [("loss".to_owned(), 0.123456), ("nrmse".to_owned(), 0.0345678)].into(),
            }),
            initial_weights_share: None,
            peak_memory_bytes: Some(52_345_678_901),
            predicted_memory_bytes: Some(52_345_678_901),
            loader_wait_share: Some(0.0123),
            collective_wait_share: Some(0.0345),
            offload_share: Some(0.0456),
            utilization: Some(0.91),
            disturbance: Disturbance::default(),
            float8_overflow_share: Some(0.00123456),
            float8_underflow_share: Some(0.0123456),
        },
        curve: Vec::new(),
        evaluations: Vec::new(),
        items_per_epoch: Some(13_000),
        resumed_items: None,
        trained: Vec::new(),
        quarantined: Vec::new(),
        checkpoint: None,
        best_checkpoint: None,
        stop_seconds: None,
        failed_at_items: None,
        signal: None,
        exit_code: None,
        fingerprint: None,
    }
}

#[test]
fn seven_pairs_fit_whole() {
    // Launches that validate have no curve, and the other way round; only measurements say what disturbed them.
    let validated = (0..14).map(|index| measured(index, ""));
    let with_curve = validated.clone().map(|launch| LaunchResult {
        curve: vec![0.234567, 0.193456, 0.145678, 0.123456],
        measured: Measured {
            validation: None,
            disturbance: Disturbance {
                cpu_pressure: Some(0.99),
                memory_pressure: Some(0.0),
                throttled_share: Some(0.25),
                ..Disturbance::default()
            },
            ..launch.measured
        },
        ..launch
    });
    for launches in [validated.collect::<Vec<_>>(), with_curve.collect()] {
        let folded = unfold(&fold(&launches)).unwrap();
        assert_eq!((folded.dropped, folded.launches), (0, launches));
    }
}

/// Without the spread of their step times, which no verdict needs.
#[test]
fn seven_pairs_on_a_busy_machine_keep_what_disturbed_them() {
    let busy = |index| {
        let mut launch = measured(index, "");
        launch.curve = vec![0.234567, 0.193456, 0.145678, 0.123456];
        launch.measured.validation = None;
        launch.measured.disturbance = Disturbance {
            cpu_pressure: Some(0.99),
            memory_pressure: Some(0.01),
            io_pressure: Some(0.12),
            other_cpu_share: Some(0.41),
            cpu_throttled_share: Some(0.02),
            throttled_share: Some(0.25),
            shared_gpu_share: Some(0.33),
            idle_cpu_share: Some(0.05),
        };
        launch
    };
    let launches: Vec<_> = (0..14).map(busy).collect();
    let folded = unfold(&fold(&launches)).unwrap();
    assert_eq!((folded.dropped, folded.launches.len()), (0, 14));
    for (found, sent) in folded.launches.iter().zip(&launches) {
        assert_eq!(found.measured.disturbance, sent.measured.disturbance);
        assert_eq!((found.measured.items_per_second, &found.curve), (sent.measured.items_per_second, &sent.curve));
    }
}

#[test]
fn seven_pairs_of_quality_launches_keep_all_that_their_verdict_needs() {
    let quality = |index| {
        let mut launch = measured(index, "");
        launch.measured.initial_weights_share = Some(2.123e-5);
        launch.measured.first_validation =
            launch.measured.validation.clone().map(|validation| Validation { items: 0, ..validation });
        launch
    };
    let launches: Vec<_> = (0..14).map(quality).collect();
    let folded = unfold(&fold(&launches)).unwrap();
    assert_eq!((folded.dropped, folded.launches.len()), (0, 14));
    for (found, sent) in folded.launches.iter().zip(&launches) {
        assert_eq!(found.measured.validation, sent.measured.validation);
        assert_eq!(found.measured.initial_weights_share, sent.measured.initial_weights_share);
    }
}

fn metrics(result: &LaunchResult) -> usize {
    result.measured.validation.as_ref().map_or(0, |validation| validation.metrics.len())
}

#[test]
fn texts_go_before_evidence_and_metrics_before_launches() {
    let long = "x".repeat(200);
    let chatty: Vec<_> = (0..14).map(|index| measured(index, &long)).collect();
    let folded = unfold(&fold(&chatty)).unwrap();
    assert_eq!(folded.dropped, 0);
    assert!(folded.launches.iter().all(|result| result.message.len() < 200 && metrics(result) == 2));

    let curve = vec![0.234567, 0.193456, 0.145678, 0.123456];
    let chatty: Vec<_> = (0..14).map(|index| LaunchResult { curve: curve.clone(), ..measured(index, &long) }).collect();
    let folded = unfold(&fold(&chatty)).unwrap();
    assert_eq!(folded.dropped, 0);
    assert!(folded.launches.iter().all(|result| result.curve == curve), "metrics go before the curve");

    let many: Vec<_> = (0..40).map(|index| measured(index, &long)).collect();
    let folded = unfold(&fold(&many)).unwrap();
    assert!(folded.dropped > 0 && folded.launches.len() >= 14, "{}", folded.launches.len());
    assert_eq!(folded.launches.last().unwrap().launch, many[39].launch);
    assert!(folded.launches.iter().all(|result| result.measured.metric("loss").is_some()));
}
