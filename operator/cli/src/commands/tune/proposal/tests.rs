use super::*;
use crate::args::InitArgs;
use crate::commands::tune::batch::Choice;
use crate::commands::tune::profile::{Activity, Load, Loader, Memory, Optimizer, Shares, Torch};
use crate::commands::tune::start::Start;
use pawl_api::spec::Trigger;
use rstest::rstest;
use std::path::Path;

const ALL: &str = "
a.add_argument('--batch', type=int, default=16)
a.add_argument('--workers', type=int)
a.add_argument('--bf16', action='store_true')
a.add_argument('--compile', action='store_true')
a.add_argument('--seed', type=int)
";
const STEPS_OPTION: &str = "a.add_argument('--steps', type=int)\n";

fn of_source(source: &str) -> Tuned {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), source).unwrap();
    let arguments = InitArgs {
        script: "/home/it's/train.py".into(),
        framework: Framework::Pytorch,
        name: None,
        gpus: 0,
        batch: None,
        items: None,
        out: "-".into(),
    };
    let start = Start::plain(file.path(), "/home/it's/train.py", vec!["--seed".to_owned(), "7".to_owned()]);
    Tuned::new(&arguments, &start, Path::new("/home/me"))
}

fn all() -> Tuned {
    of_source(&format!("{ALL}{STEPS_OPTION}"))
}

fn findings(validated: &[u64]) -> Findings {
    let monitor = Monitor {
        training: Some(r"\bstep\s*(?<step>\d+): loss (?<loss>\S+)".to_owned()),
        validation: (!validated.is_empty()).then(|| r"it's (?<loss>\S+)".to_owned()),
        ..Monitor::default()
    };
    let pace = Pace { start: 1.0, step: 0.05, every: 10, silence: 0.5, steps: 400, restarts: false, end: 21.0 };
    Findings { monitor, pace, validated: validated.to_vec(), notes: Vec::new() }
}

fn proposed(tuned: &Tuned, findings: &Findings, minutes: u64) -> (Proposal, pawl_api::TrainingJob) {
    seen(tuned, findings, &Evidence::default(), minutes)
}

fn seen(tuned: &Tuned, findings: &Findings, evidence: &Evidence, minutes: u64) -> (Proposal, pawl_api::TrainingJob) {
    searched(tuned, findings, evidence, minutes, None)
}

fn searched(
    tuned: &Tuned,
    findings: &Findings,
    evidence: &Evidence,
    minutes: u64,
    larger: Option<Larger>,
) -> (Proposal, pawl_api::TrainingJob) {
    let budget = Duration::from_secs(60 * minutes);
    let (framework, gpus) = (Framework::Pytorch, 0);
    let script =
        Script { name: "tune-train", framework, gpus, tuned, findings, evidence, larger, has_ended: false, budget };
    let proposal = propose(&script);
    let job = pawl_manifest::parse(&proposal.manifest, "job.yaml");
    let job = job.unwrap_or_else(|error| panic!("{error}\n{}", proposal.manifest));
    (proposal, job)
}

fn names(proposal: &Proposal) -> Vec<&'static str> {
    proposal.phases.iter().map(|(name, _)| *name).collect()
}

#[test]
fn without_a_validation_only_phases_with_equal_numerics_are_proposed() {
    let (proposal, job) = proposed(&all(), &findings(&[]), 20);
    assert_eq!(names(&proposal), ["loader-workers", "compile"]);
    assert!(
        proposal
            .notes
            .iter()
            .any(|note| note.starts_with("bf16 is not tried: it changes the numerics, and no validation"))
    );
    assert!(
        proposal
            .notes
            .contains(&"not tried, as the script has no option for it: fused-optimizer, attention".to_owned())
    );
    assert_eq!(job.spec.analysis.quality_items, None);
    let analysis = &job.spec.analysis;
    assert_eq!(analysis.budget_percent, Some(pawl_api::spec::JudgingBudget::Unlimited));
    assert_eq!((analysis.warmup_steps, analysis.window_steps, job.spec.seeds), (20, 80, vec![7, 8, 9]));
    assert_eq!(job.spec.settings.batch_per_gpu, Some(16));
}

#[test]
fn phases_that_change_the_numerics_are_judged_where_an_evaluation_ends_their_trainings() {
    let (proposal, job) = proposed(&all(), &findings(&[100, 200, 300, 400]), 20);
    assert_eq!(names(&proposal), ["loader-workers", "compile", "bf16", "larger-batch"]);
    // 30 seconds are 600 steps of 16 items: also with twice the batch, the end is divisible by 100.
    assert_eq!(job.spec.analysis.quality_items, Some(600 * 16));
    assert!(job.spec.gates.validation_loss_delta.is_some());
    let by_epochs = Tuned { length: (false, true), ..all() };
    let (_, job) = proposed(&by_epochs, &findings(&[100, 200]), 20);
    assert_eq!(job.spec.analysis.quality_epochs, Some(6));
    // One evaluation: nobody knows when the next one comes.
    let (proposal, _) = proposed(&all(), &findings(&[100]), 20);
    assert_eq!(names(&proposal), ["loader-workers", "compile"]);
    let told = Tuned { has_evaluation: true, ..all() };
    assert_eq!(proposed(&told, &findings(&[100]), 20).0.phases.len(), 4);
    // Too long for the budget.
    let rare = findings(&[20_000, 40_000]);
    let (proposal, _) = proposed(&all(), &rare, 20);
    assert!(proposal.notes.iter().any(|note| note.contains("minutes: raise --budget")), "{:?}", proposal.notes);
}

#[test]
fn what_is_fixed_or_has_no_number_is_no_phase() {
    let mut fixed = all();
    fixed.fixed.insert("compile".to_owned(), "--compile".to_owned());
    fixed.settings.insert("loaderWorkers".to_owned(), 8);
    let (proposal, _) = proposed(&fixed, &findings(&[]), 20);
    assert!(proposal.phases.is_empty());
    assert!(proposal.notes.contains(&"compile is not tried: --compile is given".to_owned()));
    assert!(proposal.notes.contains(&"loader-workers is not tried: the script has 8 already".to_owned()));
    let unknown = of_source(&format!("{}{STEPS_OPTION}", ALL.replace(", default=16", "")));
    assert!(!names(&proposed(&unknown, &findings(&[100, 200]), 20).0).contains(&"larger-batch"));
}

/// A thousand looks at the main thread.
fn shares(seconds: &[(Activity, f64)]) -> Option<Shares> {
    Some(Shares { seconds: seconds.iter().copied().collect(), samples: 1000, place: None })
}

#[rstest]
#[case::loader(
    &[(Activity::Data, 0.6), (Activity::Backward, 0.4)], 0,
    &["loader-workers", "compile", "bf16", "larger-batch"], "a step waits for data for 60 %: at most 2.50×"
)]
// With 90 % of the time in the loader, nothing else gains much; twice the batch is loaded in twice the time.
#[case::only_the_loader(
    &[(Activity::Data, 0.995), (Activity::Backward, 0.005)], 0,
    &["loader-workers"], "larger-batch is not tried: it acts on 0.5 %: at most 1.00×"
)]
#[case::no_wait(
    &[(Activity::Data, 0.0), (Activity::Backward, 0.7), (Activity::Optimizer, 0.3)], 0,
    &["compile", "bf16", "larger-batch"], "loader-workers is not tried: a step waits for data for 0 %: at most 1.00×"
)]
#[case::evaluations(
    &[(Activity::Evaluation, 0.8), (Activity::Backward, 0.2)], 0,
    &["compile", "bf16", "larger-batch"], "it acts on 20 %: at most 1.25×"
)]
#[case::workers_cannot_load_faster(
    &[(Activity::Data, 0.6), (Activity::Backward, 0.4)], 4,
    &["compile", "bf16", "larger-batch"], "loader-workers is not tried: a step waits for data for 60 %: at most 1.00×"
)]
fn phases_are_proposed_by_what_they_can_gain(
    #[case] seconds: &[(Activity, f64)],
    #[case] workers: u32,
    #[case] expected: &[&str],
    #[case] text: &str,
) {
    let torch = Torch { loaders: vec![Loader { workers }], ..Torch::default() };
    let evidence = Evidence { shares: shares(seconds), cores: 8, torch: Some(torch), ..Evidence::default() };
    let (proposal, _) = seen(&all(), &findings(&[100, 200, 300, 400]), &evidence, 20);
    assert_eq!(names(&proposal), expected, "{:?}", proposal.notes);
    assert!(
        proposal.notes.iter().any(|note| note == text) || proposal.manifest.contains(text),
        "{}",
        proposal.manifest
    );
}

#[test]
fn micro_batches_are_merged_as_far_as_they_fit_at_the_same_batch() {
    let accumulates = of_source(&format!("{ALL}{STEPS_OPTION}a.add_argument('--accumulation', default=6)\n"));
    let (proposal, job) = proposed(&accumulates, &findings(&[100, 200, 300, 400]), 20);
    assert_eq!(names(&proposal), ["loader-workers", "compile", "one-micro-batch", "bf16"], "{:?}", proposal.notes);
    let phase = job.spec.phases.iter().find(|phase| phase.name == "one-micro-batch").unwrap();
    let choices = std::iter::once(&phase.settings).chain(phase.fallbacks.iter().map(|fallback| &fallback.settings));
    let choices: Vec<_> = choices.map(|settings| (settings.batch_per_gpu, settings.accumulation_steps)).collect();
    assert_eq!(choices, [(Some(96), Some(1)), (Some(48), Some(2)), (Some(32), Some(3))]);
    assert_eq!(job.spec.settings.accumulation_steps, Some(6));
    // 600 steps of 6 micro-batches of 16 items.
    assert_eq!(job.spec.analysis.quality_items, Some(600 * 6 * 16));
    assert!(proposal.notes.iter().any(|note| note.starts_with("larger-batch is not tried: its steps are accumulated")));
}

#[test]
fn the_batch_that_fits_is_the_phase_and_the_next_smaller_one_its_fallback() {
    let choices = [64, 32].map(|batch| Choice { batch, accumulation: 1 }).to_vec();
    let ground = "64 fits, 96 does not: out of memory".to_owned();
    let found = Larger { choices, ground, multiple: 4 };
    let validated = findings(&[100, 200, 300, 400]);
    let (proposal, job) = searched(&all(), &validated, &Evidence::default(), 20, Some(found.clone()));
    let phase = job.spec.phases.iter().find(|phase| phase.name == "larger-batch").unwrap();
    let fallback = &phase.fallbacks[0];
    assert_eq!((phase.settings.batch_per_gpu, fallback.settings.batch_per_gpu), (Some(64), Some(32)));
    assert!(fallback.when.contains(&Trigger::QualityBelowThreshold) && phase.fallbacks.len() == 1);
    assert!(proposal.manifest.contains("Here 64 fits, 96 does not: out of memory."), "{}", proposal.manifest);
    // 800 steps: a quarter of them ends with an evaluation too.
    assert_eq!(job.spec.analysis.quality_items, Some(800 * 16));
    let none = Larger { choices: Vec::new(), ground: "16 fits, 32 does not: out of memory".to_owned(), multiple: 1 };
    let (proposal, _) = searched(&all(), &validated, &Evidence::default(), 20, Some(none));
    let note = "larger-batch is not tried: 16 fits, 32 does not: out of memory";
    assert!(proposal.notes.iter().any(|known| known == note), "{:?}", proposal.notes);
}

#[test]
fn what_the_script_does_already_is_no_phase_and_busy_cores_load_no_faster() {
    let adam = Optimizer { name: "AdamW".to_owned(), fused: true, ..Optimizer::default() };
    let torch = Torch {
        loaders: vec![Loader { workers: 0 }],
        optimizers: vec![adam],
        autocast: Some("bfloat16".to_owned()),
        compiled: true,
        memory: Some(Memory { peak: 1, total: 2 }),
        ..Torch::default()
    };
    let load = Some(Load { main_thread: 1.0, process: 7.95, ..Load::default() });
    let shares = shares(&[(Activity::Data, 0.5), (Activity::Other, 0.5)]);
    let evidence = Evidence { shares, load, cores: 8, gpu: Some(0.4), torch: Some(torch) };
    let (proposal, _) = seen(&all(), &findings(&[]), &evidence, 20);
    assert_eq!(names(&proposal), [""; 0]);
    for why in [
        "loader-workers is not tried: all 8 cores are busy: more workers would share them",
        "bf16 is not tried: it computes in bfloat16 already",
        "compile is not tried: a module is compiled already",
    ] {
        assert!(proposal.notes.iter().any(|note| note == why), "{why}: {:?}", proposal.notes);
    }
}
