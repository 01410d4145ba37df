use super::*;
use crate::commands::tune::batch::Choice;
use pawl_api::TrainingJob;
use pawl_local::tuned::changed;
use rstest::rstest;
use serde_json::json;

const SOURCE: &str = "
a.add_argument('-b', '--batch_size', type=int, default=12)
a.add_argument('--num_workers', type=int, default=0)
a.add_argument('--max_steps', type=int, default=100)
a.add_argument('--eval_interval', type=int, default=50)
a.add_argument('--seed', type=int, default=1337)
a.add_argument('--out_dir', default='out')
a.add_argument('--compile', action='store_true')
a.add_argument('--dtype', choices=['float32', 'bfloat16'], default='float32')
a.add_argument('--resume')
a.add_argument('--lr', type=float, default=0.1)
a.add_argument('data')
";

fn tuned(source: &str, given: &[&str]) -> Tuned {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), source).unwrap();
    let arguments = InitArgs {
        script: "train.py".into(),
        framework: framework(source, None),
        name: None,
        gpus: 0,
        batch: None,
        items: None,
        out: "-".into(),
    };
    let given: Vec<String> = given.iter().map(|&word| word.to_owned()).collect();
    Tuned::new(&arguments, &Start::plain(file.path(), "train.py", given), Path::new("/home/me"))
}

fn line(tuned: &Tuned, from: usize) -> String {
    tuned.launch()[from..].join(" ")
}

#[test]
fn given_values_are_the_baseline_and_everything_else_is_kept() {
    let given =
        ["data/x", "-b", "16", "--lr", "3e-4", "--max_steps=500", "--seed", "7", "--eval_interval", "20", "$(x)"];
    let tuned = tuned(SOURCE, &given);
    assert_eq!(tuned.launch()[..3], ["env", "-C", "/home/me"]);
    assert_eq!(
        line(&tuned, 11),
        "data/x --batch_size=$(settings.batchPerGpu) --lr 3e-4 --max_steps=$(launch.steps:-500) --seed=$(seed) \
         --eval_interval=$(launch.evalSteps:-20) $$(x) --out_dir=$(checkpoint.dir) $(settings.loaderWorkers:+\
         --num_workers=$(settings.loaderWorkers)) $(settings.precision=bf16:+--dtype=bfloat16) \
         $(settings.compile=Fuse:+--compile)"
    );
    assert_eq!(tuned.settings, BTreeMap::from([(BATCH.to_owned(), 16)]));
    assert_eq!((tuned.seed, tuned.length, tuned.has_evaluation), (Some(7), (true, false), true));
    assert_eq!(tuned.own(), [&["python3", "train.py"], &given[..]].concat());
}

#[test]
fn what_the_user_has_switched_on_is_no_phase() {
    let tuned = tuned(
        SOURCE,
        &["--compile", "--dtype", "bfloat16", "--resume", "a.pt", "--num_workers", "2", "--out_dir", "a.pt"],
    );
    let fixed: Vec<&str> = tuned.fixed.keys().map(String::as_str).collect();
    assert_eq!(fixed, ["compile", "precision"]);
    let launch = line(&tuned, 11);
    assert!(
        launch.starts_with(
            "--compile --dtype bfloat16 --resume a.pt --num_workers=$(settings.loaderWorkers) --out_dir a.pt "
        ),
        "{launch}"
    );
    assert!(!launch.contains("bf16") && !launch.contains("Fuse"), "{launch}");
    assert_eq!(tuned.settings["loaderWorkers"], 2);
}

#[test]
fn a_launch_that_measures_may_take_longer_than_it_must() {
    let mut tuned = tuned(SOURCE, &["x", "--max_steps", "500"]);
    tuned.lengthen(875);
    let steps = "$(launch.kind=Quality:+--max_steps=$(launch.steps)) $(launch.kind=Train:+--max_steps=$(launch.steps)) \
                 $(launch.kind=Measure:+--max_steps=875)";
    assert!(line(&tuned, 12).starts_with(steps), "{}", line(&tuned, 12));
    assert_eq!(tuned.own()[2..], ["x", "--max_steps", "500"]);
}

#[test]
fn a_script_without_options_is_started_as_it_is() {
    let tuned = tuned("print(1)\n", &["a", "--verbose"]);
    assert_eq!(line(&tuned, 11), "a --verbose");
    assert!(tuned.settings.is_empty() && tuned.length == (false, false));
}

/// As public scripts spell their options: batch, micro-batches of a step, workers.
#[rstest]
#[case::yolo("--batch-size --accumulate --workers")]
#[case::mae("--batch_size --accum_iter --num_workers")]
#[case::open_clip("--batch-size --accum-freq --workers")]
#[case::timm("--batch-size --grad-accum-steps --workers")]
#[case::swin("--batch-size --accumulation-steps --num_workers")]
#[case::hugging_face("--per_device_train_batch_size --gradient_accumulation_steps --dataloader_num_workers")]
#[case::older_hugging_face("--per_gpu_train_batch_size --gradient_accumulation_steps --num_workers")]
#[case::llama_recipes("--batch_size_training --gradient_accumulation_steps --num_workers_dataloader")]
#[case::diffusers("--train_batch_size --gradient_accumulation_steps --dataloader_num_workers")]
#[case::kohya("--train_batch_size --gradient_accumulation_steps --max_data_loader_n_workers")]
#[case::lightning("--batch_size --accumulate_grad_batches --num_workers")]
#[case::rwkv("--micro_bsz --accumulate_grad_batches --num_workers")]
#[case::lit_gpt("--micro_batch_size --gradient_accumulation_iters --num_workers")]
#[case::espnet("--batch_size --accum_grad --num_workers")]
#[case::lucidrains("--batch_size --gradient_accumulate_every --num_workers")]
#[case::short("--bs --grad_accum --nworkers")]
#[case::plain("--batchSize --gradient-accumulation --n_workers")]
fn options_of_public_scripts_are_known(#[case] names: &str) {
    let names: Vec<&str> = names.split(' ').collect();
    let numbers = ["16", "4", "2"];
    let declared = |number: usize| format!("a.add_argument('{}', type=int, default={})\n", names[number], number);
    let source: String = (0..names.len()).map(declared).collect();
    let given: Vec<&str> = names.iter().zip(numbers).flat_map(|(name, number)| [*name, number]).collect();
    let tuned = tuned(&source, &given);
    let expected = [("accumulationSteps", 4), ("batchPerGpu", 16), ("loaderWorkers", 2)];
    assert_eq!(tuned.settings, BTreeMap::from(expected.map(|(name, number)| (name.to_owned(), number))));
    assert_eq!(tuned.passed().count(), 3, "{:?}", tuned.launch());
}

/// Names that other scripts have for the minibatches of an update, how often a network is updated, or half of the data.
#[test]
fn options_with_several_meanings_are_left_alone() {
    let source = "a.add_argument('--mini-batch-size', type=int, default=8)\na.add_argument('--update-freq', type=int, default=4)\n\
                  a.add_argument('--half', action='store_true')\n";
    let tuned = tuned(source, &["--mini-batch-size", "16"]);
    assert!(tuned.settings.is_empty() && tuned.passed().count() == 0, "{:?}", tuned.launch());
}

/// What a phase switches on or gives a value.
#[rstest]
#[case("'--use_torch_compile', action='store_true'", "$(settings.compile=Fuse:+--use_torch_compile)")]
#[case("'--compile_model', action='store_true'", "$(settings.compile=Fuse:+--compile_model)")]
#[case("'--use_bfloat16', action='store_true'", "$(settings.precision=bf16:+--use_bfloat16)")]
#[case("'--autocast_dtype', default='float32'", "$(settings.precision=bf16:+--autocast_dtype=bfloat16)")]
#[case("'--precision', choices=['fp32', 'amp', 'bf16'], default='amp'", "$(settings.precision=bf16:+--precision=bf16)")]
fn switches_of_public_scripts_are_known(#[case] option: &str, #[case] expected: &str) {
    let source = format!("a.add_argument('--batch_size', type=int, default=8)\na.add_argument({option})\n");
    let launch = tuned(&source, &[]).launch();
    assert!(launch.iter().any(|word| word == expected), "{launch:?}");
}

fn texts(tuned: &Tuned) -> String {
    tuned.launch()[9..].join(" ")
}

#[test]
fn keys_and_positions_are_varied_as_the_user_gives_them() {
    let fire = "def main(data, batch_size=8, compile=False, lr=0.1): ...\nfire.Fire(main)\n";
    let by_position = tuned(fire, &["x", "16", "--lr", "0.2"]);
    assert_eq!(
        line(&by_position, 11),
        "--data=x --batch_size=$(settings.batchPerGpu) --lr 0.2 $(settings.compile=Fuse:+--compile=True)"
    );
    assert_eq!((by_position.settings[BATCH], by_position.required.len()), (16, 0));
    assert_eq!(by_position.own()[2..], ["x", "16", "--lr", "0.2"]);

    let hydra = "
@dataclass
class Config:
    data: str = MISSING
    batch_size: int = 8
    compile: bool = False
cs.store(name='config', node=Config)
";
    let by_key = tuned(hydra, &["batch_size=16", "+more=1", "data=$(x)"]);
    assert_eq!(
        line(&by_key, 11),
        "batch_size=$(settings.batchPerGpu) +more=1 data=$$(x) $(settings.compile=Fuse:+compile=True)"
    );
    assert_eq!(by_key.settings[BATCH], 16);
    let given = tuned(hydra, &["compile=true"]);
    assert_eq!((given.fixed["compile"].as_str(), given.required.join(" ").as_str()), ("compile=true", "data"));
}

#[test]
fn variables_come_before_the_program_and_only_those_that_change_are_the_users() {
    let source = "
B = int(os.environ.get('BATCH_SIZE', 8))
W = int(os.environ.get('NUM_WORKERS', 0))
C = os.getenv('COMPILE', '0') == '1'
";
    let tuned = tuned(source, &["data"]);
    assert_eq!(
        texts(&tuned).replace(tuned.launch()[13].as_str(), "train.py"),
        "BATCH_SIZE=$(settings.batchPerGpu) $(settings.loaderWorkers:+NUM_WORKERS=$(settings.loaderWorkers)) \
         $(settings.compile=Fuse:+COMPILE=1) python3 train.py data"
    );
    let job: TrainingJob = serde_json::from_value(json!({"metadata": {"name": "t"}, "spec": {
        "workload": {"command": tuned.launch(), "monitor": {"training": r"(?<step>\d+)"}},
        "trainer": {"gpusPerReplica": 0}, "settings": {"batchPerGpu": 8}}}))
    .unwrap();
    let accepted = serde_json::from_value(json!({"batchPerGpu": 8, "compile": "Fuse"})).unwrap();
    assert_eq!(changed(&tuned.parts(), &job, &accepted).unwrap().join(" "), "COMPILE=1 python3 train.py data");
}

#[test]
fn the_subcommand_of_a_lightning_cli_is_the_users_and_its_classes_say_what_exists() {
    let source = "
class M(LightningModule):
    def __init__(self, width=3): ...
class D(LightningDataModule):
    def __init__(self, batch_size=8): ...
LightningCLI(M, D)
";
    let tuned = tuned(source, &["fit", "--data.batch_size", "16", "--trainer.max_steps=500"]);
    let launch = line(&tuned, 11);
    assert!(launch.starts_with("fit --data.batch_size=$(settings.batchPerGpu) "), "{launch}");
    assert!(launch.contains("--trainer.max_steps=$(launch.steps:-500)"), "{launch}");
    assert!(!launch.contains("compile") && !launch.ends_with("fit") && tuned.settings[BATCH] == 16, "{launch}");
}

#[test]
fn arguments_of_hugging_face_are_known_by_their_names() {
    let source = "parser = HfArgumentParser((TrainingArguments,))\n";
    let tuned = tuned(source, &["--per_device_train_batch_size", "4", "--bf16", "True", "--do_train"]);
    let launch = line(&tuned, 11);
    assert!(
        launch.starts_with("--per_device_train_batch_size=$(settings.batchPerGpu) --bf16 True --do_train "),
        "{launch}"
    );
    assert!(launch.contains("--max_steps=$(launch.steps:--1)") && !launch.contains("fp16"), "{launch}");
    assert_eq!(tuned.settings[BATCH], 4);
}

#[test]
fn the_changed_command_differs_from_the_users_in_what_was_accepted() {
    let tuned = tuned(SOURCE, &["data", "-b", "16", "--lr=0.2", "--max_steps", "500"]);
    let job: TrainingJob = serde_json::from_value(json!({"metadata": {"name": "t"}, "spec": {
        "workload": {"command": tuned.launch(), "monitor": {"training": r"(?<step>\d+)"}},
        "trainer": {"gpusPerReplica": 0}, "settings": {"batchPerGpu": 16}}}))
    .unwrap();
    let with = |settings: serde_json::Value| {
        let accepted = serde_json::from_value(settings).unwrap();
        changed(&tuned.parts(), &job, &accepted).unwrap().join(" ")
    };
    assert_eq!(with(json!({"batchPerGpu": 16})), "python3 train.py data -b 16 --lr=0.2 --max_steps 500");
    assert_eq!(
        with(json!({"batchPerGpu": 32, "compile": "Fuse", "loaderWorkers": 4})),
        "python3 train.py data --batch_size=32 --lr=0.2 --max_steps 500 --num_workers=4 --compile"
    );
}

/// The command line of a user in a directory with the script `train.py` and the shell script `train.sh`.
fn started(line: &str, source: &str, gpus: u32) -> Tuned {
    let directory = tempfile::tempdir().unwrap();
    let shell = "export NUM_WORKERS=2\nexec python3 train.py -b 16 \"$@\"\n";
    let (closed, reads) = ("python3 train.py -b 16\n", "source env.sh\npython3 train.py -b 16 \"$@\"\n");
    for (name, text) in [("train.py", source), ("train.sh", shell), ("closed.sh", closed), ("reads.sh", reads)] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let start = Start::of(&words, directory.path()).unwrap();
    let arguments = InitArgs {
        script: start.script.clone(),
        framework: framework(source, start.launcher),
        name: None,
        gpus,
        batch: None,
        items: None,
        out: "-".into(),
    };
    Tuned::new(&arguments, &start, Path::new("/home/me"))
}

/// The command of the user once these settings are accepted.
fn accepted(tuned: &Tuned, settings: serde_json::Value) -> String {
    let job: TrainingJob = serde_json::from_value(json!({"metadata": {"name": "t"}, "spec": {
        "workload": {"command": tuned.launch(), "monitor": {"training": r"(?<step>\d+)"}},
        "trainer": {"gpusPerReplica": 0}, "settings": tuned.settings}}))
    .unwrap();
    let settings = serde_json::from_value(settings).unwrap();
    changed(&tuned.parts(), &job, &settings).unwrap().join(" ")
}

const BATCH_ONLY: &str = "a.add_argument('-b', '--batch_size', type=int, default=8)\nAccelerator()\n";

#[test]
fn a_launcher_gets_the_options_that_the_script_lacks() {
    let tuned = started("accelerate launch --num_processes 2 train.py -b 16", BATCH_ONLY, 0);
    assert!(tuned.launch().join(" ").contains(
        "accelerate launch $(settings.precision=bf16:+--mixed_precision=bf16) \
         $(settings.compile=Fuse:+--dynamo_backend=inductor) --num_processes 2 /"
    ));
    assert_eq!(
        accepted(&tuned, json!({"batchPerGpu": 32, "compile": "Fuse"})),
        "accelerate launch --dynamo_backend=inductor --num_processes 2 train.py --batch_size=32"
    );
    let given = started("accelerate launch --mixed-precision fp16 train.py", BATCH_ONLY, 0);
    assert!(given.fixed.contains_key("precision") && !given.launch().join(" ").contains("bf16"));
}

#[test]
fn a_launcher_is_started_once_for_all_gpus() {
    let line = "torchrun --nproc-per-node 2 train.py";
    let (one, two) = (started(line, SOURCE, 1).launch().join(" "), started(line, SOURCE, 2).launch().join(" "));
    assert!(two.contains("test \"$RANK\" = 0 || exit 0;") && two.contains("sh torchrun --nproc-per-node 2 /"), "{two}");
    assert!(!one.contains("$RANK") && one.contains("-u RANK"), "{one}");
    assert!(!started("train.py", SOURCE, 2).launch().join(" ").contains("$RANK"));
}

#[test]
fn variables_that_env_sets_are_varied() {
    let source = "B = int(os.environ.get('BATCH_SIZE', 8))\nC = os.getenv('COMPILE', '0') == '1'\n";
    let tuned = started("env LR=1 BATCH_SIZE=16 python3 train.py", source, 0);
    assert_eq!(tuned.settings[BATCH], 16);
    assert!(
        tuned
            .launch()
            .join(" ")
            .contains("LR=1 BATCH_SIZE=$(settings.batchPerGpu) $(settings.compile=Fuse:+COMPILE=1)")
    );
    assert_eq!(
        accepted(&tuned, json!({"batchPerGpu": 32, "compile": "Fuse"})),
        "env LR=1 BATCH_SIZE=32 COMPILE=1 python3 train.py"
    );
    let choice = Choice { batch: 32, accumulation: 1 };
    let with_batch = |tuned: &Tuned| tuned.with_batch(choice, Path::new("/state/observed")).join(" ");
    assert_eq!(with_batch(&tuned), "env LR=1 BATCH_SIZE=32 python3 train.py");
    assert_eq!(with_batch(&started("train.py", source, 0)), "env BATCH_SIZE=32 python3 train.py");
}

/// A short launch with another batch must not replace the user's own checkpoints.
#[test]
fn checkpoints_of_the_search_for_a_batch_are_not_where_the_command_says() {
    let source = "p.add_argument('--batch_size', default=8)\np.add_argument('--output_dir', default='out')\n";
    let choice = Choice { batch: 32, accumulation: 1 };
    for line in ["train.py --output_dir out", "train.py --batch_size 16"] {
        let words = started(line, source, 0).with_batch(choice, Path::new("/state/observed")).join(" ");
        assert!(words.contains("--output_dir=/state/observed") && words.contains("--batch_size=32"), "{words}");
    }
}

#[test]
fn a_shell_script_passes_on_what_launches_vary() {
    let source = "a.add_argument('-b', '--batch_size', default=8)\nW = int(os.environ.get('NUM_WORKERS', 0))\n";
    let tuned = started("sh train.sh --lr 1", source, 0);
    assert_eq!(tuned.settings, BTreeMap::from([(BATCH.to_owned(), 16)]));
    assert!(tuned.launch().join(" ").ends_with("sh train.sh --lr 1 --batch_size=$(settings.batchPerGpu)"));
    assert_eq!(accepted(&tuned, json!({"batchPerGpu": 16})), "sh train.sh --lr 1");
    assert_eq!(accepted(&tuned, json!({"batchPerGpu": 32})), "sh train.sh --lr 1 --batch_size=32");
    let closed = started("sh closed.sh", source, 0);
    assert!(
        closed
            .launch()
            .join(" ")
            .ends_with("$(settings.loaderWorkers:+NUM_WORKERS=$(settings.loaderWorkers)) sh closed.sh")
    );
    assert_eq!(closed.notes.len(), 1);
    let reads = started("sh reads.sh", source, 0);
    assert!(!reads.launch().join(" ").contains("NUM_WORKERS"), "what it reads may set the variable");
    assert!(reads.notes[0].contains("reads another file"), "{:?}", reads.notes);
}
