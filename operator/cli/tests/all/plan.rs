//! `pawl plan` and `pawl run --dry-run`: what will run, without a GPU.

use crate::scene::{Scene, stderr, stdout};
use serde_json::json;
use std::path::Path;

/// The bytes that a number and its unit after `before` stand for: `arena 41.65 GB` after `arena`.
fn bytes(line: &str, before: &str) -> f64 {
    let (_, rest) = line.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {line:?}"));
    let mut words = rest.split_whitespace();
    let number: f64 = words.next().unwrap().parse().unwrap();
    let unit = words.next().unwrap().trim_end_matches(|c: char| !c.is_alphabetic());
    number
        * ["B", "KB", "MB", "GB"]
            .into_iter()
            .position(|known| known == unit)
            .map_or(f64::NAN, |n| 1e3_f64.powi(n as i32))
}

#[test]
fn eight_billion_parameters_fit_into_32_gigabytes_after_each_phase() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/slm-8b-32gb.yaml");
    let phases = ["tf32", "native-bf16", "flash-attention", "fused-adamw", "compile", "batch-32", "keep-activations"];
    // The card has 31.8 GiB; the context of CUDA and the libraries' workspaces need up to 1.8.
    let most = 30.0 * f64::from(1 << 30);
    for count in [0, 2, phases.len()] {
        let mut command = vec!["plan", example.to_str().unwrap(), "--dump", "memory"];
        command.extend(phases[..count].iter().flat_map(|phase| ["--phase", phase]));
        let output = Scene::new().output(&command);
        assert!(output.status.success(), "{}", stderr(&output));
        let text = stdout(&output);
        let programs: Vec<&str> = text.lines().filter(|line| line.starts_with("program ")).collect();
        assert!(programs.len() >= 2, "{programs:?}");
        for line in programs {
            let needed = bytes(line, "arena") + bytes(line, "states touched");
            assert!(needed < most, "{count} phases: {needed:.3e} bytes: {line}");
        }
    }
}

#[test]
fn a_dry_run_prints_no_secret_of_the_environment() {
    let scene = Scene::new();
    scene.write_job(|job| {
        job["spec"]["workload"] = json!({"command": ["train", "--key=$(API_KEY)", "--batch=$(settings.batchPerGpu)"],
            "monitor": {"training": "(?<step>\\d+)"}});
        job["spec"]["settings"] = json!({"batchPerGpu": 8});
        job["spec"]["phases"] = json!([]);
        job["spec"]["trainer"]["podTemplate"] = json!({"env": [{"name": "TOKEN", "value": "x-$(API_KEY)"},
            {"name": "BOTH", "value": "$(API_KEY)-$(settings.batchPerGpu)"}]});
    });
    for command in [&["run", "--dry-run", "job.yaml"][..], &["validate", "job.yaml"][..]] {
        let output = scene.pawl(command).env("API_KEY", "hunter2").output().unwrap();
        let text = stdout(&output) + &stderr(&output);
        assert!(output.status.success() && !text.contains("hunter2"), "{text}");
        if command[0] == "run" {
            for shown in ["--key=$(API_KEY)", "TOKEN='x-$(API_KEY)'", "BOTH='$(API_KEY)-8'", "--batch=8"] {
                assert!(text.contains(shown), "{shown} in {text}");
            }
        }
    }
}

#[test]
fn a_ladder_that_cannot_pay_for_itself_is_warned_of_in_the_same_line_everywhere() {
    let scene = Scene::new();
    scene.write_job(|job| {
        job["spec"]["workload"] = json!({"command": ["train", "--batch=$(settings.batchPerGpu)"],
            "monitor": {"training": "(?<step>\\d+)"}});
        job["spec"]["settings"] = json!({"batchPerGpu": 8});
        job["spec"]["phases"] = json!([{"name": "batch", "expectedSpeedup": "1.1", "numerics": "Changed",
            "settings": {"batchPerGpu": 16}}]);
        job["spec"]["gates"] = json!({"validationLossDelta": "0.1"});
        job["spec"]["analysis"] = json!({});
        job["spec"]["train"] = json!({"items": 1000});
    });
    let warning = |command: &[&str]| {
        let text = stdout(&scene.output(command));
        let lines: Vec<_> = text.lines().filter_map(|line| line.split_once("warning: spec.phases: ")).collect();
        let [(_, warning)] = lines[..] else { panic!("{command:?}: {text}") };
        warning.to_owned()
    };
    let validated = warning(&["validate", "job.yaml"]);
    for part in ["train for longer (spec.train.items of at least", "(budgetPercent: Unlimited)"] {
        assert!(validated.contains(part), "{validated}");
    }
    assert_eq!(warning(&["run", "--dry-run", "job.yaml"]), validated);
}

#[test]
fn what_a_search_takes_at_most_is_said_before_it_is_spent() {
    let scene = Scene::new();
    scene.write_job(|job| {
        job["spec"]["phases"] = json!([]);
        job["spec"]["seeds"] = json!([42, 43]);
        job["spec"]["settings"]["learningRate"] = json!("1e-3");
        job["spec"]["search"] = json!([{"name": "rates", "trials": 20, "epochs": 9, "pruner": "ASHA",
            "objectives": [{"metric": "loss", "goal": "Minimize"}],
            "parameters": [{"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"}]}]);
    });
    let total = "search: at most 20 trials: 69 launches, 261 epochs";
    let validated = scene.output(&["validate", "job.yaml"]);
    let text = stdout(&validated) + &stderr(&validated);
    assert!(text.ends_with(&format!("job.yaml: {total}\n")), "{text}");
    let dry = stdout(&scene.output(&["run", "--dry-run", "job.yaml"]));
    let stage = "search: rates: at most 20 trials (60 launches, 180 epochs), the best 3 trials with 1 further seed (3 \
                 launches, 27 epochs), the best one and the accepted settings with 3 fresh seeds (6 launches, 54 \
                 epochs); less where pruner ends it earlier";
    assert!(dry.contains(&format!("# {total}\n# {stage}\n")), "{dry}");
}

#[test]
fn the_version_names_the_features_that_it_was_built_with() {
    let version = stdout(&Scene::new().output(&["--version"]));
    let expected = concat!("pawl ", env!("CARGO_PKG_VERSION"));
    let rest = version.trim_end().strip_prefix(expected).unwrap_or_else(|| panic!("{version}"));
    assert!(rest.is_empty() || rest.starts_with(", built with: "), "{version}");
    assert_eq!(rest.contains("cluster"), cfg!(feature = "cluster"), "{version}");
}

#[test]
fn the_verbose_version_names_the_target_which_no_command_does() {
    let scene = Scene::new();
    let version = stdout(&scene.output(&["--verbose", "--version"]));
    let lines: Vec<&str> = version.lines().collect();
    assert_eq!(lines[0], concat!("pawl ", env!("CARGO_PKG_VERSION")));
    assert!(lines[1].starts_with("commit: ") && lines[3].starts_with("features: "), "{version}");
    let target = lines[2].strip_prefix("target: ").unwrap_or_else(|| panic!("{version}"));
    assert!(target.starts_with(std::env::consts::ARCH) && target.contains(std::env::consts::OS), "{version}");
    for wrong in [&["--verbose"][..], &["--version", "list"], &[]] {
        assert_eq!(scene.output(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn packages_get_completions_and_a_man_page_of_each_command_that_users_call() {
    let scene = Scene::new();
    let directory = scene.path().join("manual");
    stdout(&scene.output(&["manual", directory.to_str().unwrap()]));
    let read = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    for name in ["completions/pawl.bash", "completions/_pawl", "completions/pawl.fish"] {
        assert!(read(name).contains("validate"), "{name}");
    }
    assert!(read("man/man1/pawl.1").contains("pawl\\-validate(1)"));
    assert!(read("man/man1/pawl-run.1").contains("State directory"));
    assert!(read("man/man1/pawl-search-export.1").contains("OPTIONS"));
    assert_eq!(directory.join("man/man1/pawl-kubectl.1").exists(), cfg!(feature = "cluster"));
    assert!(!directory.join("man/man1/pawl-agent.1").exists(), "not a command for users");
}

/// As with `pawl validate job.yaml | head -0`.
#[test]
fn validation_ends_without_a_word_when_nobody_reads_what_it_prints() {
    let scene = Scene::new();
    scene.write_job(|_| {});
    let mut child = scene.pawl(&["validate", "job.yaml"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && stderr(&output).is_empty(), "{}", stderr(&output));
}
