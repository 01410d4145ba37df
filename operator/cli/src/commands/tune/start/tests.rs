use super::*;
use rstest::rstest;
use std::fs;
use tempfile::TempDir;

const WRAPPER: &str = "#!/usr/bin/env bash\nset -e\npython3 prepare.py\nexport LR=0.1\n\
                       torchrun --nproc_per_node=2 \\\n  pkg/train.py --batch-size 32 \"$@\" 2>&1\n";

fn scene() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("train.py", ""),
        ("prepare.py", ""),
        ("pkg/train.py", ""),
        ("src/installed/__main__.py", ""),
        ("train.sh", WRAPPER),
        ("closed.sh", "exec python3 -u train.py --epochs 3\n"),
        ("note.ipynb", "{}"),
        ("chosen.sh", "PYTHON=${PYTHON_OF_NOBODY:-python3}\nexec ${NOBODY:-$PYTHON} -u train.py --epochs 3 \"$@\"\n"),
        ("beside/here.sh", "DIR=$(cd \"$(dirname \"$0\")\" && pwd)\ncd \"$DIR\"\nexec python \"$DIR/own.py\" \"$@\"\n"),
        ("beside/own.py", ""),
        ("counted.sh", "N=\"--lr 1\"\ntorchrun --nproc_per_node=$(nvidia-smi -L | wc -l) train.py $N \"$@\"\n"),
        ("any.sh", "set -e\nexec ${NOBODY:-python} -u \"$@\"\n"),
        ("entry.sh", "export A=1\nexec \"$@\"\n"),
        ("outer.sh", "sh train.sh \"$@\"\n"),
        ("eight.yaml", "distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 8 # GPUs\n"),
        ("none.yaml", "distributed_type: MULTI_GPU\n"),
        ("hf/accelerate/default_config.json", "{\n  \"num_machines\": 1,\n  \"num_processes\": 4,\n}"),
    ] {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn read(dir: &TempDir, line: &str) -> Result<Start, String> {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    Start::of(&words, &dir.path().canonicalize().unwrap())
}

/// Whatever comes before it, the script and its arguments are found, and the command is that of the user.
#[rstest]
#[case::script("train.py --lr 1", "train.py", "python3 train.py", None)]
#[case::interpreter(".venv/bin/python3.12 -u -W ignore train.py --lr 1", "train.py", "", None)]
#[case::module("python -m pkg.train --lr 1", "pkg/train.py", "", None)]
#[case::package("python -m installed --lr 1", "src/installed/__main__.py", "", None)]
#[case::torchrun("torchrun --standalone --nproc-per-node 2 --max-restarts=3 train.py --lr 1", "train.py", "", Some(2))]
#[case::torchrun_module(
    "python -m torch.distributed.run --nproc_per_node=4 -m pkg.train --lr 1",
    "pkg/train.py",
    "",
    Some(4)
)]
#[case::accelerate(
    "accelerate launch --multi_gpu --num_processes 2 --mixed_precision bf16 train.py --lr 1",
    "train.py",
    "",
    Some(2)
)]
#[case::accelerate_config("accelerate launch --config_file eight.yaml train.py --lr 1", "train.py", "", Some(8))]
#[case::deepspeed(
    "deepspeed --save_pid --bind_cores_to_rank --num_gpus 2 --no_local_rank --module pkg.train --lr 1",
    "pkg/train.py",
    "",
    Some(2)
)]
#[case::no_python("torchrun --no-python python3 train.py --lr 1", "train.py", "", Some(1))]
#[case::uv("uv run --with torch python train.py --lr 1", "train.py", "", None)]
#[case::uv_script("uv run train.py --lr 1", "train.py", "", None)]
#[case::conda("conda run -n env --live-stream torchrun train.py --lr 1", "train.py", "", Some(1))]
fn the_script_behind_its_launcher_is_found(
    #[case] line: &str,
    #[case] script: &str,
    #[case] own: &str,
    #[case] workers: Option<u32>,
) {
    let dir = scene();
    let start = read(&dir, line).unwrap();
    assert!(start.script.ends_with(script), "{start:?}");
    assert_eq!(start.given, ["--lr", "1"]);
    let own = if own.is_empty() { line.strip_suffix(" --lr 1").unwrap() } else { own };
    assert_eq!(start.program.own.join(" "), own);
    let found = start.launcher.map(|_| start.workers);
    assert_eq!(found, workers.map(Workers::These));
    assert!(start.notes.is_empty() && start.wrapper.is_none(), "{start:?}");
}

/// Without a configuration there is one process for each GPU, whatever the machine has.
#[rstest]
#[case("env HF_HOME=none accelerate launch train.py", Workers::OnePerGpu)]
#[case("env HF_HOME=none accelerate launch --multi_gpu --mixed_precision bf16 train.py", Workers::OnePerGpu)]
#[case("env HF_HOME=none accelerate launch --cpu train.py", Workers::These(1))]
#[case("env HF_HOME=hf accelerate launch train.py", Workers::These(4))]
#[case("env HF_HOME=hf accelerate launch --num_processes 2 --multi_gpu train.py", Workers::These(2))]
fn accelerate_starts_as_many_processes_as_its_configuration_says(#[case] line: &str, #[case] workers: Workers) {
    let start = read(&scene(), line).unwrap();
    assert_eq!((start.launcher, start.workers), (Some(Launcher::Accelerate), workers));
}

#[test]
fn a_shell_script_is_read_for_the_script_that_it_starts() {
    let dir = scene();
    for line in
        ["sh -eu train.sh --lr 1", "train.sh --lr 1", "./train.sh --lr 1", "conda run -p x -s bash train.sh --lr 1"]
    {
        let start = read(&dir, line).unwrap();
        assert!(start.script.ends_with("pkg/train.py"), "{line}: {start:?}");
        assert_eq!((start.launcher, start.workers), (Some(Launcher::Torchrun), Workers::These(2)));
        assert_eq!(start.arguments(), ["--batch-size", "32", "--lr", "1"]);
        let wrapper = start.wrapper.unwrap();
        assert!(wrapper.passes && wrapper.set.contains("LR"), "{wrapper:?}");
    }
    // Its arguments cannot be varied.
    let start = read(&dir, "sh closed.sh").unwrap();
    assert!(start.script.ends_with("train.py") && !start.wrapper.unwrap().passes);
    assert!(start.notes[0].contains("with \"$@\""), "{:?}", start.notes);
}

#[rstest]
#[case::default("sh chosen.sh", "train.py", "--epochs 3", "sh chosen.sh", "")]
#[case::directory("sh beside/here.sh --lr 1", "beside/own.py", "", "sh beside/here.sh", "--lr 1")]
#[case::output("sh counted.sh -b 8", "train.py", "--lr 1", "sh counted.sh", "-b 8")]
#[case::any_script("sh any.sh train.py --lr 1", "train.py", "", "sh any.sh train.py", "--lr 1")]
#[case::any_command("sh entry.sh python -u train.py x", "train.py", "", "sh entry.sh python -u train.py", "x")]
fn variables_and_arguments_of_a_shell_script_are_followed(
    #[case] line: &str,
    #[case] script: &str,
    #[case] wrapped: &str,
    #[case] own: &str,
    #[case] given: &str,
) {
    let start = read(&scene(), line).unwrap();
    assert!(start.script.ends_with(script), "{start:?}");
    let found = [start.wrapped().join(" "), start.program.own.join(" "), start.given.join(" ")];
    assert_eq!(found, [wrapped, own, given]);
    assert!(start.notes.is_empty() && start.wrapper.is_some_and(|wrapper| wrapper.passes), "{:?}", start.notes);
    let one = start.launcher.is_none();
    assert_eq!(start.workers, if one { Workers::These(1) } else { Workers::OnePerGpu });
}

#[test]
fn variables_before_the_program_are_read() {
    let start = read(&scene(), "env -u CUDA A=1 BATCH_SIZE=16 python train.py").unwrap();
    assert_eq!(start.env, ["env", "-u", "CUDA"]);
    let variables: Vec<String> = start.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        (variables.join(" ").as_str(), start.program.own.join(" ").as_str()),
        ("A=1 BATCH_SIZE=16", "python train.py")
    );
}

#[test]
fn output_that_conda_keeps_is_shown() {
    let start = read(&scene(), "conda run -n env python train.py").unwrap();
    assert_eq!(start.program.own.join(" "), "conda run -n env --no-capture-output python train.py");
    assert_eq!(start.notes.len(), 1);
}

#[rstest]
#[case::absent("absent.py", "give the path of the training script")]
#[case::unknown("srun train.py", "accelerate launch")]
#[case::directory("pkg", "it is no file")]
#[case::text("python -c 1", "write the program into a file")]
#[case::shell_text("sh -c train.py", "sh -c: give the command")]
#[case::module("python -m absent.train", "there is no absent/train.py or absent/train/__main__.py here")]
#[case::notebook("python note.ipynb", "jupyter nbconvert --to script note.ipynb")]
#[case::two_shells("sh outer.sh", "none of its commands starts a script")]
#[case::change("env -C pkg python train.py", "change the directory before `pawl tune`")]
#[case::cleared("env -i A=1 python train.py", "env -i: launches have variables that the script needs")]
#[case::uncounted("accelerate launch --config_file none.yaml train.py", "give accelerate launch --num_processes")]
#[case::late_env("uv run env A=1 python train.py", "write it before everything else")]
fn what_cannot_be_read_is_told_with_a_remedy(#[case] line: &str, #[case] part: &str) {
    let error = read(&scene(), line).unwrap_err();
    assert!(error.contains(part), "{error}");
}

#[test]
fn a_notebook_that_was_exported_says_what_to_change() {
    let mut start = read(&scene(), "train.py").unwrap();
    let error =
        start.check_notebook("#!/usr/bin/env python\n# In[1]:\nget_ipython().run_line_magic('pip', 'install x')\n");
    assert!(error.as_ref().is_err_and(|text| text.contains("train.py:3: get_ipython()")), "{error:?}");
    start.check_notebook("# In[1]:\nBATCH = 32\n").unwrap();
    assert!(start.notes[0].contains("os.environ.get(\"BATCH_SIZE\", 32)"));
    // A script that asks whether it is a notebook.
    assert_eq!(start.check_notebook("try:\n    get_ipython()\nexcept NameError: ...\n"), Ok(()));
}
