//! Images and losses of Vision-BDH equal those of the PyTorch reference program, which wrote the files of
//! `fixtures/vision_bdh` through `make.py`.

use pawl_contract::settings::Settings;
use pawl_cpu::GraphCpu;
use pawl_eager::Eager;
use pawl_graph::array::{Array, Data, View};
use pawl_graph::executor::{ExecOptions, Executor};
use pawl_graph::recipe::{AttentionKernel, Recipe};
use pawl_workloads::vision_bdh::VisionJob;
use pawl_workloads::vision_bdh::augment;
use pawl_workloads::vision_bdh::images::{BYTES, waves};
use pawl_workloads::{Job, RatePosition, Request};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Images of a micro-step of the reference, and its first micro-step's image numbers.
const BATCH: usize = 8;
/// The reference's cosine is 50 epochs of 40,000 images long, whatever the number of its images.
const TOTAL_ITEMS: u64 = 50 * 40_000;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vision_bdh").join(name)
}

fn reference() -> Value {
    serde_json::from_slice(&std::fs::read(fixture("reference.json")).unwrap()).unwrap()
}

fn weights() -> Vec<(String, Array)> {
    let bytes = std::fs::read(fixture("init.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let array = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let values = view.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        (name, Array::new(view.shape().to_vec(), Data::F32(values)).unwrap())
    };
    tensors.tensors().into_iter().map(array).collect()
}

fn numbers<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn generated_images_equal_the_reference_byte_for_byte() {
    let reference = reference();
    let sums: Vec<u64> = numbers(&reference["imageBytes"]["sums"]);
    // More images follow those of the reference, which has no test split.
    let (pixels, labels) = waves::generate(sums.len() + 64, 42, &|_, _, _| {});
    for (number, (image, sum)) in pixels.chunks_exact(BYTES).zip(&sums).enumerate() {
        assert_eq!(image.iter().map(|&byte| u64::from(byte)).sum::<u64>(), *sum, "image {number}");
    }
    let hash: String = Sha256::digest(&pixels[..sums.len() * BYTES]).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(reference["imageBytes"]["sha256"], json!(hash));
    assert_eq!((labels.len(), &labels[8..12]), (sums.len() + 64, &[8, 9, 0, 1][..]));
}

/// Losses of as many steps as the reference ran, with its weights and images, on `executor` with `settings`.
fn losses(executor: &dyn Executor, scores: &str, settings: Value, attention: AttentionKernel) -> Vec<f64> {
    let config = json!({
        "preset": "smoke",
        "model": {"dropout": 0.0, "scores": scores},
        "data": {"augmentation": "None"},
    });
    let settings: Settings = serde_json::from_value(settings).unwrap();
    let memory_format = settings.memory_format();
    let config = config.as_object().unwrap().clone();
    let job = VisionJob::new(&Request { config, settings, seed: 0, rank: 0, world: 1 }).unwrap();
    let optimization = job.optimization();
    let recipe = Recipe { attention, clip: optimization.clip, ..Recipe::new(optimization.optimizer.clone()) };
    let program = recipe.step(&job.programs().train[0]).unwrap();
    let loss = program.outputs.iter().position(|output| output.name == "loss").unwrap();
    let mut executable = executor.compile(std::slice::from_ref(&program), &ExecOptions::default()).unwrap();
    for (name, array) in weights() {
        executable.write_state(&name, &array).unwrap();
    }

    let (pixels, labels) = waves::generate(256, 42, &|_, _, _| {});
    let plan: Vec<usize> = numbers(&reference()["plan"]);
    let step = |(step, plan): (usize, &[usize])| {
        let mut images = vec![0.0; BATCH * BYTES];
        for (&number, out) in plan.iter().zip(images.chunks_exact_mut(BYTES)) {
            augment::write(&pixels[number * BYTES..(number + 1) * BYTES], None, memory_format, out);
        }
        let step = step as u64;
        let items = step * BATCH as u64;
        let at = RatePosition { step, items, step_items: BATCH as u64, total_items: TOTAL_ITEMS };
        let rate = optimization.learning_rate * optimization.schedule.factor(at);
        let inputs = [
            Array::new(&program.inputs[0].meta.shape, Data::F32(images)).unwrap(),
            Array::new([BATCH], Data::U32(plan.iter().map(|&number| u32::from(labels[number])).collect())).unwrap(),
            Array::scalar(rate as f32),
        ];
        let views: Vec<View<'_>> = inputs.iter().map(Array::view).collect();
        executable.run(0, &views).unwrap();
        executable.output(0, loss).unwrap().item()
    };
    plan.chunks_exact(BATCH).enumerate().map(step).collect()
}

#[test]
fn twenty_losses_equal_the_reference_however_they_are_computed() {
    let linear = || json!({"batchPerGpu": BATCH, "ropeCache": "Cached", "parameterLayout": "Linear", "memoryFormat": "ChannelsLast"});
    let published = || json!({"batchPerGpu": BATCH});
    let reference = reference();
    for (executor, settings, attention) in [
        (&Eager::cpu() as &dyn Executor, published(), AttentionKernel::Math),
        (&GraphCpu::default(), published(), AttentionKernel::Math),
        (&GraphCpu::default(), linear(), AttentionKernel::Math),
    ] {
        for (scores, name) in [("Softmax", "softmax"), ("Raw", "raw")] {
            let wanted: Vec<f64> = numbers(&reference["losses"][name]);
            let got = losses(executor, scores, settings.clone(), attention);
            assert_eq!((wanted.len(), got.len()), (20, 20));
            for (step, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                let close = (got - wanted).abs() < 1e-4 * wanted;
                assert!(close, "{} {name} {settings} step {step}: {got} is not {wanted}", executor.name());
            }
        }
    }
}
