//! What a manifest may say, and the errors when it says something else.

use pawl_contract::settings::Settings;
use pawl_graph::graph::{Program, Role};
use pawl_graph::passes::Pattern;
use pawl_workloads::{Job, Request, registry, workload};
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn prepare(config: Value, settings: Value) -> Result<Box<dyn Job>, String> {
    let mut all = json!({"batchPerGpu": 2});
    all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let settings: Settings = serde_json::from_value(all).unwrap();
    let config = config.as_object().unwrap().clone();
    let request = Request { config, settings, seed: 1, rank: 0, world: 1 };
    workload("ups").unwrap().prepare(&request).map_err(|error| error.to_string())
}

fn count(programs: &[Program], prefix: &str) -> usize {
    let mut names = std::collections::BTreeMap::new();
    for state in programs.iter().flat_map(|program| &program.states) {
        if state.role == Role::Parameter && state.name.starts_with(prefix) {
            names.insert(&state.name, state.meta.shape.elements());
        }
    }
    names.values().sum()
}

#[test]
fn parameter_counts_equal_the_specification() {
    for (preset, operator, decoder) in [("full", 21_427_840, 2_870_785), ("smoke", 106_592, 9_217)] {
        let job = prepare(json!({"preset": preset}), json!({})).unwrap();
        let train = &job.programs().train;
        assert_eq!(count(train, "operator."), operator);
        assert_eq!(count(train, "decoder."), decoder);
        assert_eq!(count(train, ""), operator + decoder, "the encoder does not learn");
        let encoder: usize = job.extras().iter().map(|(_, array)| array.shape().elements()).sum();
        if preset == "full" {
            assert_eq!(encoder, 2_176 + 17_536);
            let matrices =
                train[0].states.iter().filter(|s| s.name.starts_with("operator.") && s.meta.shape.rank() == 2);
            assert_eq!(matrices.count(), 53);
        }
    }
}

#[test]
fn settings_reach_the_optimizer() {
    let job = prepare(json!({"preset": "smoke"}), json!({})).unwrap();
    let defaults = job.optimization();
    assert_eq!((defaults.learning_rate, defaults.average), (1.4e-3, Some(0.999)));
    assert_eq!(
        (defaults.optimizer.others.weight_decay, defaults.optimizer.matrices.unwrap().weight_decay),
        (0.03, 0.03)
    );
    let settings = json!({"learningRate": "2e-4", "weightDecay": "0", "ema": "0.9"});
    let job = prepare(json!({"preset": "smoke"}), settings).unwrap();
    let asked = job.optimization();
    assert_eq!((asked.learning_rate, asked.average), (2e-4, Some(0.9)));
    assert_eq!((asked.optimizer.others.weight_decay, asked.optimizer.matrices.unwrap().weight_decay), (0.0, 0.0));
}

#[test]
fn regions_name_scopes_that_there_are() {
    let job = prepare(json!({"preset": "smoke"}), json!({"querySamples": 64})).unwrap();
    let (program, regions) = (&job.programs().train[0], job.programs().regions);
    let matched = |pattern: &str| {
        let pattern = Pattern::new(pattern);
        let found = program.graph.scopes().iter().filter_map(|scope| pattern.region(scope));
        found.map(str::to_owned).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(regions.float32.iter().map(|p| matched(p)).sum::<usize>(), 1);
    // Two blocks; one decoder layer used on two grids, at two sets of query points, and on the edge.
    assert_eq!(regions.blocks.iter().map(|p| matched(p)).sum::<usize>(), 2 + 5);
    assert_eq!(regions.sublayers.iter().map(|p| matched(p)).sum::<usize>(), 2 * (2 + 5));
}

#[test]
fn settings_choose_the_programs() {
    let smoke = |loss: Value, settings: Value| {
        let job = prepare(json!({"preset": "smoke", "loss": loss}), settings).unwrap();
        let train = &job.programs().train;
        let names: Vec<String> = train.iter().map(|program| program.name.clone()).collect();
        (names, count(train, "decoder."), job.programs().evaluation.len())
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(smoke(json!({"auxiliary": "None"}), json!({})), (names(&["plain"]), 0, 1));
    assert_eq!(smoke(json!({}), json!({})), (names(&["auxiliary"]), 9_217, 3));
    assert_eq!(smoke(json!({}), json!({"lossFrequency": 4})), (names(&["auxiliary", "plain"]), 9_217, 3));
    assert_eq!(smoke(json!({"auxiliary": "Frozen"}), json!({})), (names(&["auxiliary"]), 0, 1));
}

#[test]
fn query_points_thin_only_grids_with_more_cells() {
    let job = prepare(json!({"preset": "smoke"}), json!({"querySamples": 512})).unwrap();
    let program = &job.programs().train[0];
    assert!(program.input("darcy2d.queries").is_ok(), "1024 cells");
    assert!(program.input("advection1d.queries").is_err(), "256 cells");
}

#[test]
fn settings_workload_is_a_patch_over_the_configuration() {
    let config = json!({"preset": "smoke", "operator": {"hidden": 32}});
    let job = prepare(config, json!({"workload": {"operator": {"depth": 1}, "pairs": 2}})).unwrap();
    let program = &job.programs().train[0];
    let shape = |name: &str| program.state_decl(program.state(name).unwrap()).meta.shape.clone();
    assert_eq!(shape("operator.inp.weight").dims(), [32, 32]);
    assert!(program.state("operator.blocks.1.ln1.weight").is_err());
    assert_eq!(program.inputs[0].meta.shape.dims(), [4, 32, 32]);
}

#[test]
fn mistakes_name_the_field_the_value_and_the_remedy() {
    let smoke = |patch: Value| {
        let mut config = json!({"preset": "smoke"});
        config.as_object_mut().unwrap().extend(patch.as_object().unwrap().clone());
        config
    };
    let none = json!({});
    let cases = [
        (json!({"preset": "tiny"}), none.clone(), ["workload.config.preset", "tiny", "choose smoke"]),
        (smoke(json!({"presets": 1})), none.clone(), ["config.presets", "1", "did you mean preset? Choose one of "]),
        (smoke(json!({"operator": {"dept": 3}})), none.clone(), ["config.operator.dept", "3", "did you mean depth?"]),
        (
            smoke(json!({"operator": {"depth": "two"}})),
            none.clone(),
            ["config.operator.depth", "two", "expected usize"],
        ),
        (smoke(json!({"operator": {"heads": 5}})), none.clone(), ["config.operator.heads", "5", "must divide"]),
        (smoke(json!({"operator": {"tokens": 24}})), none.clone(), ["config.operator.tokens", "24", "power of two"]),
        (smoke(json!({"operator": {"depth": 0}})), none.clone(), ["config.operator.depth", "0", "between 1"]),
        (smoke(json!({"operator": {"dropPath": 1.0}})), none.clone(), ["config.operator.dropPath", "1", "less than 1"]),
        (smoke(json!({"tasks": []})), none.clone(), ["config.tasks", "[]", "name advection1d, darcy2d or both"]),
        (
            smoke(json!({"tasks": ["burgers"]})),
            none.clone(),
            ["config.tasks[0]", "burgers", "choose one of advection1d"],
        ),
        (smoke(json!({"tasks": ["darcy"]})), none.clone(), ["config.tasks[0]", "darcy ", "did you mean darcy2d?"]),
        (json!({"preset": "smokey"}), none.clone(), ["config.preset", "smokey", "did you mean smoke?"]),
        (
            smoke(json!({"data": {"direktory": "/x"}})),
            none.clone(),
            ["data.direktory", "/x", "did you mean directory?"],
        ),
        (smoke(json!({"pairs": 9})), none.clone(), ["config.pairs", "9", "less than advection.frames"]),
        (smoke(json!({"loss": {"inversePairs": 5}})), none.clone(), ["config.loss.inversePairs", "5", "at most pairs"]),
        (smoke(json!({"darcy": {"samples": 3}})), none.clone(), ["config.darcy.samples", "3", "at least pairs"]),
        (smoke(json!({"darcy": {"grid": 20}})), none.clone(), ["config.darcy.grid", "20", "multiple of 8"]),
        (smoke(json!({"advection": {"betas": []}})), none.clone(), ["config.advection.betas", "[]", "`all`"]),
        (smoke(json!({"data": {"source": "PdeBench"}})), none.clone(), ["config.data.directory", "null", "must name"]),
        (smoke(json!({"data": {"directory": "/x"}})), none.clone(), ["config.data.directory", "/x", "PdeBench"]),
        (smoke(json!({"loss": {"spectral": -1.0}})), none.clone(), ["config.loss.spectral", "-1", "between 0"]),
        (smoke(none.clone()), json!({"batchPerGpu": 3}), ["settings.batchPerGpu", "3", "multiple of 2"]),
        (smoke(none.clone()), json!({"globalBatch": 7}), ["settings.globalBatch", "7", "multiple of 2"]),
        (smoke(none.clone()), json!({"ema": "1.5"}), ["settings.ema", "1.5", "less than 1"]),
        (smoke(none.clone()), json!({"workload": {"pairs": 0}}), ["config.pairs", "0", "between 1"]),
        (
            smoke(json!({"loss": {"auxiliary": "None"}})),
            json!({"lossFrequency": 4}),
            ["settings.lossFrequency", "4", "loss.auxiliary is None"],
        ),
    ];
    for (config, settings, parts) in cases {
        let Err(error) = prepare(config.clone(), settings) else { panic!("{config} was accepted") };
        for part in parts {
            assert!(error.contains(part), "`{error}` does not say `{part}`");
        }
        assert!(!error.contains('\n'));
    }
}

#[test]
fn the_metrics_of_evaluations_are_known_before_there_are_data() {
    let root = tempfile::tempdir().unwrap();
    let of = |name: &str, config: Value| {
        let settings: Settings = serde_json::from_value(json!({"batchPerGpu": 2})).unwrap();
        let config = config.as_object().unwrap().clone();
        let job = workload(name).unwrap().prepare(&Request { config, settings, seed: 1, rank: 0, world: 1 }).unwrap();
        let data = job.open(root.path(), &|_, _, _| ()).unwrap();
        let reported: Vec<String> = data.metrics(&vec![1.0; data.sums()]).into_keys().collect();
        assert_eq!(job.metrics(), reported, "{name}");
        reported
    };
    let smoke = |more: Value| {
        let mut config = json!({"preset": "smoke"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let decoded = |names: &[String]| names.iter().any(|name| name == "physical_nrmse_darcy2d");
    assert!(decoded(&of("ups", smoke(json!({})))));
    let alone = prepare(smoke(json!({"loss": {"auxiliary": "None"}})), json!({})).unwrap().metrics();
    assert!(!decoded(&alone) && alone.contains(&"nrmse_darcy2d".to_owned()), "{alone:?}");
    assert_eq!(of("vision-bdh", smoke(json!({}))), ["accuracy", "loss"]);
    assert_eq!(of("slm", json!({"size": "tiny", "data": {"tokens": 100_000}})), ["loss", "perplexity"]);
    assert!(of("forex", smoke(json!({}))).contains(&"crps_60m".to_owned()));
}

#[test]
fn the_registry_is_searched_by_name() {
    assert_eq!(
        registry().iter().map(|workload| workload.name()).collect::<Vec<_>>(),
        ["ups", "slm", "vision-bdh", "forex", "atft-gat-fan"]
    );
    let error = workload("vision").err().unwrap().to_string();
    assert!(error.contains("vision") && error.contains("ups, slm, vision-bdh, forex, atft-gat-fan"), "{error}");
    let schema = workload("ups").unwrap().schema();
    assert!(schema["properties"]["operator"].is_object(), "{schema}");
    let schema = workload("slm").unwrap().schema();
    assert!(schema["properties"]["lora"].is_object(), "{schema}");
}
