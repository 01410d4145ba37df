//! Model checking of searches: see `model`. Trials that are paused and continued, one at a time; and several at a time.

use crate::model::{Shell, trained};
use crate::world::{World, job};
use serde_json::{Value, json};
use stateright::{Checker, Model};

impl Shell {
    /// A job with a search of four trials by successive halving, one of which runs out of memory, and two finalists.
    pub fn searching(faults: u8) -> Self {
        let job = job(json!({
            "settings": {"batchPerGpu": 8, "learningRate": "0.1"},
            "seeds": [1, 2],
            "search": [{
                "name": "rates", "trials": 4, "epochs": 4, "sampler": "Grid", "pruner": "ASHA", "finalists": 2,
                "pruning": {"first": 2, "reduction": 2}, "objectives": [{"metric": "loss", "goal": "Minimize"}],
                "parameters": [{"name": "learningRate", "values": ["0.1", "0.01", "0.001", "0.5"]}],
            }],
            "train": {"items": 1000},
            "lifecycle": {"maxRestarts": 3},
        }));
        let mut world = World::new(json!({}), Box::new(|plan, _| trained(plan)));
        world.job = job.clone();
        world.run();
        let search = &world.status.search[0];
        let (trials, winner) = (search.trials.clone(), search.winner.clone());
        assert_eq!(trials.iter().map(|line| &line[..1]).collect::<String>(), "SCCO");
        Self { job, faults, expected: Vec::new(), trials, winner, reports: None }
    }

    /// A job with a search whose trials run two at a time, with `changes` to its stage.
    fn parallel(faults: u8, changes: Value) -> Self {
        let mut stage = json!({
            "name": "rates", "trials": 3, "epochs": 2, "sampler": "Grid", "parallelism": 2, "finalists": 1,
            "objectives": [{"metric": "loss", "goal": "Minimize"}],
            "parameters": [{"name": "learningRate", "values": ["0.1", "0.001", "0.5"]}],
        });
        stage.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let settings = json!({"batchPerGpu": 8, "learningRate": "0.1"});
        let lifecycle = json!({"maxRestarts": 3});
        let job = job(json!({"settings": settings, "seeds": [1], "search": [stage], "lifecycle": lifecycle}));
        let mut world = World::new(json!({}), Box::new(|plan, _| trained(plan)));
        world.job = job.clone();
        world.run();
        let search = &world.status.search[0];
        let (trials, winner) = (search.trials.clone(), search.winner.clone());
        assert_eq!((trials.len(), winner.as_ref().map(|winner| winner.trial)), (3, Some(1)));
        // Promotions depend on the order in which trials reach a rung.
        let trials = if changes["pruner"].is_null() { trials } else { Vec::new() };
        Self { job, faults, expected: Vec::new(), trials, winner, reports: None }
    }
}

/// The same for a search, with one fault.
#[test]
fn no_interleaving_of_a_fault_breaks_a_search() {
    let checker = Shell::searching(1).checker().threads(2).spawn_bfs().join();
    println!("{} states, {} distinct", checker.state_count(), checker.unique_state_count());
    assert!(checker.is_done());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 500, "the model explores too little");
}

/// Two trials at a time, one of which does not fit into memory, with one fault: the trials are those of an undisturbed
/// run.
#[test]
fn no_interleaving_of_a_fault_breaks_trials_that_run_at_the_same_time() {
    let checker = Shell::parallel(1, json!({})).checker().threads(2).spawn_bfs().join();
    println!("{} states, {} distinct", checker.state_count(), checker.unique_state_count());
    assert!(checker.is_done());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 5_000, "the model explores too little");
}

/// The same with successive halving: the best is promoted in the end, whatever fails.
#[test]
fn no_interleaving_of_a_fault_loses_the_best_of_trials_that_run_at_the_same_time() {
    let halving = json!({"pruner": "ASHA", "pruning": {"first": 1, "reduction": 2}});
    let checker = Shell::parallel(1, halving).checker().threads(2).spawn_bfs().join();
    println!("{} states, {} distinct", checker.state_count(), checker.unique_state_count());
    assert!(checker.is_done());
    checker.assert_properties();
    assert!(checker.unique_state_count() > 5_000, "the model explores too little");
}
