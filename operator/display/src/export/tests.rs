//! Each format of one search with every state of a trial. `tests/search/export` reads the same with Optuna itself.

use super::*;
use serde_json::{Value, json};

/// A job with two stages: conditions, a value outside of its range, every state; two objectives.
fn job() -> (TrainingJob, TrainingJobStatus) {
    let job = json!({
        "metadata": {"name": "toy"},
        "spec": {"workload": {"name": "slm"}, "search": [
            {"name": "quick", "trials": 8, "epochs": 9, "pruner": "ASHA", "objectives": [{"metric": "loss", "goal": "Minimize"}],
             "parameters": [
                {"name": "learningRate", "min": "1e-5", "max": "1e-1", "scale": "Log"},
                {"name": "workload.optimizer", "values": ["adam", "sgd, plain"]},
                {"name": "workload.momentum", "min": "0.0", "max": "0.9", "step": "0.3",
                 "when": {"parameter": "workload.optimizer", "values": ["sgd, plain"]}},
                {"name": "batchPerGpu", "min": "8", "max": "64", "step": "8"}]},
            {"name": "both", "trials": 2, "items": 100,
             "objectives": [{"metric": "loss", "goal": "Minimize"}, {"metric": "itemsPerSecond", "goal": "Maximize"}],
             "parameters": [{"name": "batchPerGpu", "min": "8", "max": "64"}]},
            {"name": "later", "trials": 2, "items": 100, "objectives": [{"metric": "loss", "goal": "Minimize"}],
             "parameters": [{"name": "batchPerGpu", "min": "8", "max": "64"}]},
        ]},
    });
    let status = json!({"search": [
        {"name": "quick", "inputHash": "x", "trials": [
            "C;;0.5;1:2,3:0.75;120.5;0.3,0,,4", "S;3;;1:3,3:1.5;;1e-3,1,0.6,16", "O;1;;;;2e-3,0,,64", "N;1;;;;2e-3,0,,64",
            "U;1;;;;2e-3,0,,64", "A;1;;;;2e-3,0,,64", "P;1;;1:4;;2e-3,0,,64", "T;1;;;;2e-3,0,,64"],
         "best": {"trial": 0, "values": ["0.5"], "parameters": {"learningRate": "0.3"}}},
        {"name": "both", "inputHash": "x", "state": "Done", "trials": ["C;;0.5,100;;;8", "C;;0.7,300;;;64"], "pareto": [0, 1]},
        {"name": "later"},
    ]});
    (serde_json::from_value(job).unwrap(), serde_json::from_value(status).unwrap())
}

fn rendered(format: Format) -> String {
    let (job, status) = job();
    render(&job, &status, format).unwrap()
}

#[test]
fn csv_has_a_row_per_trial() {
    let expected = "\
stage,trial,state,cause,trained,unit,itemsPerSecond,lastValue,value.loss,value.itemsPerSecond,parameter.learningRate,parameter.workload.optimizer,parameter.workload.momentum,parameter.batchPerGpu
quick,0,Complete,,9,epochs,120.5,0.5,0.5,,0.3,adam,,4
quick,1,Pruned,,3,epochs,,1.5,,,0.001,\"sgd, plain\",0.6,16
quick,2,Infeasible,OutOfMemory,,epochs,,,,,0.002,adam,,64
quick,3,Infeasible,NonFinite,,epochs,,,,,0.002,adam,,64
quick,4,Infeasible,Unsupported,,epochs,,,,,0.002,adam,,64
quick,5,Abandoned,,,epochs,,,,,0.002,adam,,64
quick,6,Paused,,1,epochs,,4,,,0.002,adam,,64
quick,7,Running,,,epochs,,,,,0.002,adam,,64
both,0,Complete,,100,items,,0.5,0.5,100,,,,8
both,1,Complete,,100,items,,0.7,0.7,300,,,,64
";
    assert_eq!(rendered(Format::Csv), expected);
}

#[test]
fn json_has_typed_values_and_the_whole_stage() {
    let document: Value = serde_json::from_str(&rendered(Format::Json)).unwrap();
    assert_eq!((&document["job"], document["stages"].as_array().unwrap().len()), (&json!("toy"), 2));
    let quick = &document["stages"][0];
    assert_eq!((&quick["unit"], &quick["full"], &quick["state"]), (&json!("epochs"), &json!(9), &json!("Running")));
    assert_eq!(quick["best"]["trial"], 0);
    assert_eq!(
        quick["trials"][0],
        json!({"number": 0, "state": "Complete", "parameters": {"learningRate": 0.3, "workload.optimizer": "adam", "batchPerGpu": 4},
               "values": {"loss": 0.5}, "itemsPerSecond": 120.5,
               "reports": [{"trained": 1, "value": 2.0}, {"trained": 3, "value": 0.75}, {"trained": 9, "value": 0.5}]})
    );
    assert_eq!(quick["trials"][2]["cause"], "OutOfMemory");
    assert_eq!(document["stages"][1]["trials"][1]["values"], json!({"loss": 0.7, "itemsPerSecond": 300.0}));
    assert_eq!(document["stages"][1]["pareto"], json!([0, 1]));
}

#[test]
fn optunas_log_has_a_study_per_stage_and_an_operation_per_trial() {
    let log = rendered(Format::Optuna);
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["worker_id"] == "pawl"));
    let studies: Vec<&Value> = lines.iter().filter(|line| line["op_code"] == 0).collect();
    assert_eq!(studies.len(), 2);
    assert_eq!((&studies[0]["study_name"], &studies[0]["directions"]), (&json!("toy/quick"), &json!([1])));
    assert_eq!((&studies[1]["study_name"], &studies[1]["directions"]), (&json!("toy/both"), &json!([1, 2])));
    let trials: Vec<&Value> = lines.iter().filter(|line| line["op_code"] == 4).collect();
    let states: Vec<u64> = trials.iter().map(|trial| trial["state"].as_u64().unwrap()).collect();
    assert_eq!(states, [1, 2, 3, 3, 3, 3, 0, 0, 1, 1]);
    let [first, pruned] = [trials[0], trials[1]];
    assert_eq!(first["params"], json!({"workload.optimizer": 0}), "what lies outside of its range is no parameter");
    assert_eq!(first["user_attrs"]["outside"], json!({"learningRate": 0.3, "batchPerGpu": 4}));
    assert_eq!((&pruned["value"], &pruned["intermediate_values"]), (&json!(1.5), &json!({"1": 3.0, "3": 1.5})));
    assert_eq!(
        pruned["params"],
        json!({"learningRate": 0.001, "workload.optimizer": 1, "workload.momentum": 0.6, "batchPerGpu": 16})
    );
    let distribution = |name: &str| {
        serde_json::from_str::<Value>(pruned["distributions"][name].as_str().expect("a text that Optuna parses"))
            .unwrap()
    };
    assert_eq!(
        distribution("learningRate"),
        json!({"name": "FloatDistribution", "attributes": {"low": 1e-5, "high": 0.1, "log": true, "step": null}})
    );
    assert_eq!(
        distribution("batchPerGpu"),
        json!({"name": "IntDistribution", "attributes": {"low": 8, "high": 64, "log": false, "step": 8}})
    );
    assert_eq!(distribution("workload.optimizer")["attributes"], json!({"choices": ["adam", "sgd, plain"]}));
    assert_eq!((&trials[9]["value"], &trials[9]["values"]), (&Value::Null, &json!([0.7, 300.0])));
}

#[test]
fn what_cannot_be_exported_is_an_error_with_a_remedy() {
    let failed = |change: fn(&mut TrainingJob, &mut TrainingJobStatus)| {
        let (mut job, mut status) = job();
        change(&mut job, &mut status);
        render(&job, &status, Format::Csv).unwrap_err().to_string()
    };
    assert!(failed(|job, _| job.spec.search.clear()).contains("\"toy\" has no search: add spec.search"));
    assert!(failed(|_, status| status.search.clear()).contains("has not started yet"));
    let changed = failed(|job, _| job.spec.search[0].parameters.truncate(1));
    assert!(changed.contains("\"quick\" do not have the parameters of the spec"), "{changed}");
}
