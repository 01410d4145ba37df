//! Manifests: each broken one gives exactly its one error, on its line; the examples are good; nothing is lost in a
//! round trip.

use crate::examples;
use pawl_api::{TrainingJob, TrainingJobStatus};
use pawl_manifest::{load, parse, parse_all};
use std::path::{Path, PathBuf};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("is there").map(|f| f.expect("can be read").path()).collect();
    files.sort();
    files
}

/// Every file in `broken/` begins with the error it must give: `# error: LINE:COL: FIELD: MESSAGE`.
#[test]
fn each_broken_manifest_gives_its_one_error() {
    let files = files("tests/broken");
    assert!(files.len() >= 40, "{} broken manifests", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let expected = text.lines().next().and_then(|l| l.strip_prefix("# error: ")).expect("begins with its error");
        let found = match parse(&text, "job.yaml") {
            Ok(_) => "no error".to_owned(),
            Err(errors) => errors.to_string(),
        };
        if found != format!("job.yaml:{expected}") {
            wrong.push(format!("{}\n  expected job.yaml:{expected}\n  found    {found}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each gate has a value that it refuses.
#[test]
fn each_gate_has_a_broken_manifest() {
    let definition = pawl_api::definition();
    let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    let gates = spec["gates"]["properties"].as_object().expect("the spec has gates");
    let errors: Vec<String> = files("tests/broken")
        .iter()
        .filter_map(|file| std::fs::read_to_string(file).unwrap().lines().next().map(str::to_owned))
        .collect();
    // Its own value, or one of an element.
    let is_refused = |gate: &str| {
        let fields = [format!(": spec.gates.{gate}: "), format!(": spec.gates.{gate}[")];
        errors.iter().any(|error| fields.iter().any(|field| error.contains(field)))
    };
    let missing: Vec<_> = gates.keys().filter(|gate| !is_refused(gate)).collect();
    assert!(missing.is_empty(), "add to tests/broken a manifest with a value that is refused, for each of {missing:?}");
}

#[test]
fn all_errors_are_reported_in_the_order_of_the_file() {
    let text = r#"{"apiVersion": "pawl.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "job"},
 "spec": {"workload": {"name": "ups"},
  "settings": {"precision": "fp4", "batchPerGpu": 0},
  "analysis": {"minPair": 3}}}"#;
    let errors = parse(text, "job.json").unwrap_err().to_string();
    let expected = "\
job.json:3:16: spec.settings.precision: \"fp4\" is not one of fp32, tf32, fp16, bf16, fp8: write one of them
job.json:3:36: spec.settings.batchPerGpu: 0 is too small: write at least 1
job.json:4:16: spec.analysis.minPair: is not a field: did you mean minPairs?";
    assert_eq!(errors, expected);
}

#[test]
fn each_training_job_of_several_documents_is_read_and_the_others_are_named() {
    let job = |name: &str, more: &str| {
        let head = "apiVersion: pawl.dev/v1alpha1\nkind: TrainingJob\n";
        format!("{head}metadata: {{name: {name}}}\nspec:\n  workload: {{name: ups}}\n{more}")
    };
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: models}\nspec: {}\n";
    let read =
        parse_all(&["---\n", &job("a", ""), "---\n", claim, "---\n", &job("b", "")].concat(), "jobs.yaml").unwrap();
    let names: Vec<_> = read.jobs.iter().map(|job| job.metadata.name.as_deref().unwrap()).collect();
    assert_eq!((names, read.others), (vec!["a", "b"], vec!["PersistentVolumeClaim models".to_owned()]));

    // Errors of all documents, with their lines in the whole file.
    let wrong = [&job("a", "  seed: 1\n"), "---\n", &job("b", "  phase: []\n")].concat();
    let errors = parse_all(&wrong, "jobs.yaml").unwrap_err();
    let found: Vec<_> = errors.errors.iter().map(|error| (error.line, error.field.as_str())).collect();
    assert_eq!(found, [(6, "spec.seed"), (13, "spec.phase")]);
    assert_eq!(
        parse_all("# nothing\n", "jobs.yaml").unwrap_err().to_string(),
        "jobs.yaml: is empty: write a TrainingJob"
    );
    let none = parse_all(claim, "claim.yaml").unwrap_err().to_string();
    assert!(none.contains("claim.yaml:2:") && none.contains("TrainingJob"), "{none}");
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let error = load(Path::new("/nonexistent/job.yaml")).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/job.yaml: cannot be read: "), "{error}");
    assert!(load(Path::new("/")).unwrap_err().to_string().contains("is a directory"));
}

#[test]
fn examples_are_valid_and_survive_a_round_trip() {
    for file in examples::manifests() {
        let job = load(&file).unwrap_or_else(|e| panic!("{e}"));
        for text in [serde_json::to_string(&job).unwrap(), serde_saphyr::to_string(&job).unwrap()] {
            let again = parse(&text, "again").unwrap_or_else(|e| panic!("{e}\n{text}"));
            assert_eq!(again, job, "{}", file.display());
        }
    }
}

#[test]
fn a_status_is_ignored_and_plain_quantities_are_read() {
    let text = "
apiVersion: pawl.dev/v1alpha1
kind: TrainingJob
metadata: {name: job, namespace: team, annotations: {a.b/c: d}}
spec:
  workload: {name: ups}
  trainer: {podTemplate: {resources: {requests: {cpu: 4, memory: 8Gi}}}}
  phases: [{name: compile, settings: {compile: Graph}, pin: null}]
status: {stage: Nowhere}
";
    let job = parse(text, "job.yaml").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(job.status, None);
    let requests = job.spec.trainer.pod_template.resources.unwrap().requests.unwrap();
    assert_eq!((requests["cpu"].0.as_str(), requests["memory"].0.as_str()), ("4", "8Gi"));
    assert_eq!(job.spec.seeds, [42, 43, 44]);
}

#[test]
fn an_empty_status_reads_as_the_default_and_writes_little() {
    let status: TrainingJobStatus = serde_json::from_str("{}").unwrap();
    assert_eq!(status, TrainingJobStatus::default());
    let text = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<TrainingJobStatus>(&text).unwrap(), status);
}

#[test]
fn no_text_makes_the_reader_panic() {
    let whole = std::fs::read_to_string(&examples::manifests()[0]).unwrap();
    for end in (0..whole.len()).filter(|i| whole.is_char_boundary(*i)).step_by(7) {
        let _: Result<TrainingJob, _> = parse(&whole[..end], "cut.yaml");
    }
}

#[test]
fn what_the_parser_refuses_for_its_size_is_not_called_invalid() {
    let nested = |levels: usize| format!("a: {}{}", "[".repeat(levels), "]".repeat(levels));
    let aliases: String = ('b'..='h')
        .map(|name| {
            let before = (name as u8 - 1) as char;
            format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 9].join(","))
        })
        .collect();
    for (text, expected) in [
        (nested(100), "is nested too deeply"),
        (nested(20_000), "is nested too deeply"),
        (format!("a: &a [x]\n{aliases}"), "has too many values, with those that aliases repeat: write fewer"),
        ("---\n".repeat(100_000), "contains too many documents: keep one TrainingJob per file"),
        (format!("a: [{}]", "1,".repeat(300_000)), "has too many values, with those that aliases repeat: write fewer"),
    ] {
        let error = parse(&text, "job.yaml").unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("budget"), "{error}");
    }
}

#[test]
fn an_alias_that_cannot_be_written_out_has_a_remedy() {
    for (text, expected) in [
        ("a: &a\n  b: *a\n", "2:6: is an alias of a value that contains it: write the value here instead of the alias"),
        ("a: &a [[*a]]\n", "1:9: is an alias of a value that contains it: write the value here instead of the alias"),
        ("a: *b\n", "1:4: is an alias without an anchor: define the anchor before it, or write the value here"),
    ] {
        assert_eq!(parse(text, "job.yaml").unwrap_err().to_string(), format!("job.yaml:{expected}"));
    }
}
