//! What trained the model: an edited job never presents an old model as the new one.

use crate::training::{FACTORS, trained, training};
use crate::world::{World, done, ended, factors, noise, speed};
use pawl_api::status::{SegmentStatus, Stage, TrainingStatus};
use pawl_contract::checkpoint::CheckpointRef;
use pawl_contract::exit::Outcome;
use pawl_contract::plan::{LaunchKind, LaunchPlan};
use pawl_contract::report::LaunchResult;
use pawl_decision::observed::Ending;
use serde_json::{Value, json};

/// A job without phases, whose training ends with a checkpoint.
fn plain(rest: Value) -> World {
    let mut spec = json!({
        "settings": {"batchPerGpu": 8, "learningRate": "0.05"},
        "seeds": [42],
        "train": {"items": 1_600},
    });
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    let mut world = World::new(spec, Box::new(|plan, _| saved(plan)));
    world.job.metadata.generation = Some(1);
    world
}

/// A launch that ended well; a training with its checkpoint.
fn saved(plan: &LaunchPlan) -> LaunchResult {
    let well = done(plan, speed(&plan.settings, &[("Fuse", 1.5), ("0.2", 1.5)]) * noise(plan, 0.002));
    let items = plan.budget.items.unwrap_or(700);
    let checkpoint = CheckpointRef { name: format!("{items:08}"), step: items / 8, items };
    LaunchResult { checkpoint: (plan.kind == LaunchKind::Train).then_some(checkpoint), ..well }
}

fn status(world: &World) -> &TrainingStatus {
    world.status.training.as_ref().unwrap()
}

/// Directory, and the checkpoint that is expected, of each training launch.
fn launches(world: &World) -> Vec<(Option<String>, Option<u64>)> {
    let policies = trained(world).into_iter().map(|plan| plan.checkpoint.clone().unwrap());
    policies.map(|policy| (policy.directory, policy.expected.map(|expected| expected.items))).collect()
}

/// From, to and learning rate of each segment.
fn segments(training: &TrainingStatus) -> Vec<(u64, u64, &str)> {
    fn of(segment: &SegmentStatus) -> (u64, u64, &str) {
        let rate = segment.settings.get("learningRate").map_or("default", String::as_str);
        (segment.from_items, segment.to_items, rate)
    }
    training.segments.iter().map(of).collect()
}

#[test]
fn a_finished_job_whose_model_would_be_another_trains_it_beside_the_old_one() {
    let phase = json!([{"name": "fast", "numerics": "Changed", "settings": {"learningRate": "0.2"}}]);
    type Edit = fn(&mut Value, &Value);
    let edits: [(&str, Edit); 5] = [
        ("learning rate", |spec, _| spec["settings"]["learningRate"] = json!("0.9")),
        ("config", |spec, _| spec["workload"]["config"] = json!({"loss": "huber"})),
        ("seed", |spec, _| spec["seeds"] = json!([43])),
        ("workload", |spec, _| spec["workload"]["name"] = json!("slm")),
        ("phase", |spec, phase| {
            (spec["phases"], spec["gates"]) = (phase.clone(), json!({"validationLossDelta": "5"}));
        }),
    ];
    for (what, edit) in edits {
        let mut world = plain(json!({}));
        world.run();
        assert_eq!((world.status.stage, launches(&world).len()), (Stage::Complete, 1), "{what}");
        assert_eq!(segments(status(&world)), [(0, 1_600, "0.05")], "{what}");
        world.edit(|spec| edit(spec, &phase));
        world.run();
        assert_eq!(world.status.stage, Stage::Complete, "{what}: {:?}", world.status.failure);
        let ran = launches(&world);
        assert_eq!(ran.len(), 2, "{what}: the old model is not the new one");
        let (directory, expected) = &ran[1];
        assert!(directory.as_deref().unwrap().starts_with("pawl-training-"), "{what}: {directory:?}");
        assert_eq!(*expected, None, "{what}: it does not resume the old model");
        let training = status(&world);
        assert_eq!(training.directory, *directory, "{what}");
        assert_eq!(training.segments.len(), 1, "{what}");
        assert_eq!((training.segments[0].from_items, training.segments[0].to_items), (0, 1_600), "{what}");
        let mut effective = world.status.effective_settings.as_ref().unwrap().flat();
        effective.insert("train.items".to_owned(), "1600".to_owned());
        assert_eq!(training.segments[0].settings, effective, "{what}");
        let earlier = &training.earlier[..];
        assert_eq!((earlier.len(), earlier[0].items, earlier[0].directory.as_deref()), (1, 1_600, None), "{what}");
        assert_eq!(world.count_events("TrainingRestarted"), 1, "{what}");
    }
}

#[test]
fn an_edit_that_leaves_the_model_as_it_is_trains_nothing_and_says_so() {
    type Edit = fn(&mut Value);
    let edits: [(&str, Edit); 3] = [
        ("price", |spec| spec["cost"] = json!({"gpuHour": "2"})),
        ("rounding", |spec| spec["settings"]["compile"] = json!("Fuse")),
        ("batch", |spec| {
            (spec["settings"]["batchPerGpu"], spec["settings"]["accumulationSteps"]) = (json!(4), json!(2));
        }),
    ];
    for (what, edit) in edits {
        let mut world = plain(json!({}));
        world.run();
        world.edit(edit);
        world.run();
        assert_eq!((world.status.stage, launches(&world).len()), (Stage::Complete, 1), "{what}");
        let said: Vec<_> = world.events.iter().filter(|event| event.message.contains("nothing to do")).collect();
        assert_eq!(said.len(), 1, "{what}: {said:?}");
        assert_eq!(said[0].message.contains("not trained with"), what != "price", "{what}: {said:?}");
        assert_eq!(segments(status(&world)), [(0, 1_600, "0.05")], "{what}");
    }
}

#[test]
fn an_edit_that_is_taken_back_returns_to_its_model() {
    let mut world = plain(json!({}));
    world.run();
    let rate = |world: &mut World, rate: &str| {
        world.edit(|spec| spec["settings"]["learningRate"] = json!(rate));
        world.run();
        status(world).directory.clone()
    };
    let second = rate(&mut world, "0.9");
    assert!(second.is_some());
    assert_eq!(rate(&mut world, "0.05"), None);
    assert_eq!(rate(&mut world, "0.9"), second);
    assert_eq!(launches(&world).len(), 2, "both models are there");
    assert_eq!(segments(status(&world)), [(0, 1_600, "0.9")]);
    let rates: Vec<String> = (0..9).map(|n| format!("0.{n}1")).collect();
    rates.iter().for_each(|value| drop(rate(&mut world, value)));
    assert_eq!(status(&world).earlier.len(), 4, "the status is bounded");
}

#[test]
fn more_items_continue_the_same_model() {
    let mut world = plain(json!({}));
    world.run();
    world.edit(|spec| spec["train"]["items"] = json!(3_000));
    world.run();
    assert_eq!(launches(&world)[1], (None, Some(1_600)));
    // A learning rate that decays does so over the whole training: the first part was planned for another length.
    assert_eq!(segments(status(&world)), [(0, 1_600, "0.05"), (1_600, 3_000, "0.05")]);
    let lengths = status(&world).segments.iter().map(|segment| segment.settings["train.items"].as_str());
    assert_eq!(lengths.collect::<Vec<_>>(), ["1600", "3000"]);
    // Fewer: the model has them already.
    world.edit(|spec| spec["train"]["items"] = json!(1_000));
    world.trainer = Box::new(|plan, _| {
        let LaunchResult { checkpoint, .. } = saved(plan);
        let mut resumed = LaunchResult { checkpoint: checkpoint.clone(), ..done(plan, 1.0) };
        resumed.measured.items = 3_000;
        resumed
    });
    world.run();
    let last = world.events.iter().rfind(|event| event.reason == "TrainingDone").unwrap();
    assert!(last.message.contains("already trained: nothing to do"), "{last:?}");
}

#[test]
fn a_finished_training_continues_with_other_settings_only_when_asked_to() {
    let mut world = plain(json!({"train": {"items": 1_600, "onChange": "Continue"}}));
    world.run();
    world.edit(|spec| spec["settings"]["learningRate"] = json!("0.9"));
    world.run();
    assert_eq!(launches(&world).len(), 1, "nothing is left to train");
    let said = world.events.iter().rfind(|event| event.message.contains("nothing to do")).unwrap();
    assert!(said.message.contains("learningRate: 0.9, was 0.05; train.onChange: Continue"), "{said:?}");
    assert_eq!(segments(status(&world)), [(0, 1_600, "0.05")]);
    world.edit(|spec| spec["train"]["items"] = json!(3_000));
    world.run();
    assert_eq!(launches(&world)[1], (None, Some(1_600)));
    assert_eq!(segments(status(&world)), [(0, 1_600, "0.05"), (1_600, 3_000, "0.9")]);
}

/// A training that has written a checkpoint at 4,480 items and has reached 5,000.
fn under_way(rest: Value) -> World {
    let mut spec = json!({"gates": {"validationLossDelta": "5"}});
    spec.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    let mut world = training(spec);
    world.job.metadata.generation = Some(1);
    world.progress(|progress| {
        (progress.step, progress.items) = (78, 5_000);
        progress.last_checkpoint = Some(CheckpointRef { name: "00000070".to_owned(), step: 70, items: 4_480 });
    });
    world.decide();
    assert_eq!(segments(status(&world)), [(0, 5_000, "default")]);
    world
}

#[test]
fn settings_edited_during_a_training_make_another_segment_or_another_training() {
    let edit = |mut world: World| {
        world.edit(|spec| {
            spec["settings"]["learningRate"] = json!("0.9");
            // Judged already: their verdicts would be inputs, too.
            for phase in spec["phases"].as_array_mut().unwrap() {
                phase["pin"] = json!("Accepted");
            }
        });
        world.run();
        assert_eq!(world.status.stage, Stage::Complete, "{:?}", world.status.failure);
        world
    };
    let continued = edit(under_way(json!({})));
    assert_eq!(launches(&continued), [(None, Some(4_480))]);
    assert_eq!(segments(status(&continued)), [(0, 4_480, "default"), (4_480, 100_000, "0.9")]);

    let restarted = edit(under_way(json!({"train": {"items": 100_000, "onChange": "Restart"}})));
    let [(Some(_), None)] = launches(&restarted)[..] else { panic!("{:?}", launches(&restarted)) };
    assert_eq!(segments(status(&restarted)), [(0, 100_000, "0.9")]);
    assert_eq!(status(&restarted).earlier[0].last_checkpoint.as_ref().unwrap().items, 4_480);
}

#[test]
fn a_training_of_another_workload_does_not_take_over_what_the_old_gang_reports() {
    let mut world = under_way(json!({}));
    world.edit(|spec| spec["seeds"] = json!([7]));
    world.progress(|progress| {
        (progress.step, progress.items) = (90, 5_800);
        progress.last_checkpoint = Some(CheckpointRef { name: "00000080".to_owned(), step: 80, items: 5_120 });
    });
    world.run();
    assert_eq!(world.status.stage, Stage::Complete, "{:?}", world.status.failure);
    let [(Some(_), None)] = launches(&world)[..] else { panic!("{:?}", launches(&world)) };
}

#[test]
fn what_training_itself_reverts_continues_from_the_last_good_checkpoint() {
    for on_change in [json!(null), json!("Restart")] {
        let mut world = under_way(json!({"train": {"items": 100_000, "onChange": on_change}}));
        world.trainer = Box::new(|plan, _| match (plan.kind, plan.settings.precision) {
            (LaunchKind::Train, Some(_)) => {
                LaunchResult { failed_at_items: Some(4_900), ..ended(plan, Outcome::NonFinite) }
            }
            _ => done(plan, speed(&plan.settings, FACTORS) * noise(plan, 0.002)),
        });
        world.run();
        assert_eq!(world.status.stage, Stage::Complete, "{:?}", world.status.failure);
        let (directory, expected) = launches(&world).pop().unwrap();
        assert_eq!((directory, expected), (None, Some(4_480)));
        let training = status(&world);
        let parts: Vec<_> =
            training.segments.iter().map(|part| (part.from_items, part.to_items, part.phases.len())).collect();
        assert_eq!(parts, [(0, 4_480, 2), (4_480, 100_000, 1)]);
        assert!(training.segments[0].settings.contains_key("precision"));
        assert!(!training.segments[1].settings.contains_key("precision"));
    }
}

#[test]
fn another_build_of_the_trainer_is_another_segment() {
    let mut world = under_way(json!({}));
    world.end_alive(Ending::Lost("node lost".to_owned()));
    world.build = "sha256:bbbbbbbbbbbbbbbb".to_owned();
    world.run();
    let builds: Vec<_> = status(&world).segments.iter().map(|part| (part.to_items, part.trainer.as_str())).collect();
    assert_eq!(builds, [(4_480, "aaaaaaaaaaaa"), (100_000, "bbbbbbbbbbbb")]);
}

#[test]
fn the_record_is_bounded() {
    let mut world = under_way(json!({}));
    for number in 1..40_u64 {
        world.edit(|spec| spec["settings"]["learningRate"] = json!(format!("0.{number:02}1")));
        world.run_until(|world| {
            let runs = world.alive().iter().any(|attempt| attempt.plan.launches[0].kind == LaunchKind::Train);
            runs && world.status.training.as_ref().is_some_and(|training| {
                training
                    .segments
                    .last()
                    .is_some_and(|last| last.settings.get("learningRate") == Some(&format!("0.{number:02}1")))
            })
        });
        world.decide();
        let (step, items) = (80 + number, 5_000 + 64 * number);
        world.progress(|progress| {
            (progress.step, progress.items) = (step, items);
            progress.last_checkpoint = Some(CheckpointRef { name: format!("{step:08}"), step, items });
        });
        world.decide();
    }
    let segments = &status(&world).segments;
    assert_eq!((segments.len(), segments[0].from_items, segments[0].merged), (16, 0, true));
    assert!(segments.windows(2).all(|pair| pair[0].to_items == pair[1].from_items), "{segments:#?}");
}

#[test]
fn a_finished_job_of_an_earlier_version_is_not_trained_again() {
    let mut world = World::new(json!({"train": {"items": 1_600}}), factors(&[]));
    world.run();
    let training = world.status.training.as_mut().unwrap();
    (training.segments, training.wanted) = (Vec::new(), String::new());
    world.run();
    assert_eq!(trained(&world).len(), 1);
    assert_eq!(status(&world).segments.len(), 1, "it is known from now on what trained it");
}
