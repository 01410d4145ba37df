use super::*;
use proptest::prelude::*;
use rstest::rstest;

/// Lines half a second apart.
fn timed<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Vec<Line> {
    texts.into_iter().enumerate().map(|(index, text)| (index as f64 / 2.0, text.as_ref().to_owned())).collect()
}

fn read(findings: &Findings, text: &str) -> Option<Reading> {
    Patterns::new(&findings.monitor).unwrap().read(text)
}

/// `{s}` is the step, `{e}` the epoch from 1, `{l}` the loss.
fn filled(form: &str, step: u64) -> String {
    let loss = format!("{:.4}", 2.5 / (step + 1) as f64);
    let (epoch, within) = (step / 40 + 1, step % 40);
    form.replace("{s}", &step.to_string())
        .replace("{s4}", &format!("{step:4}"))
        .replace("{w}", &format!("{within:3}"))
        .replace("{e}", &epoch.to_string())
        .replace("{l}", &loss)
}

/// Lines as public scripts print them: each is found, with the step (or the items) and the loss of the last line.
#[rstest]
#[case::plain("step {s}: loss {l}")]
#[case::gpt("iter {s}: loss {l}, time 12.31ms, mfu 3.10%")]
#[case::logger("2026-01-02 10:11:12,345 INFO train.py:88 step {s} | loss {l} | lr 3.0e-04 | 812.1 ms/step")]
#[case::key_value("step={s} loss={l} lr=0.001")]
#[case::json(r#"{"epoch": 1, "step": {s}, "loss": {l}, "lr": 0.001}"#)]
#[case::loss_first("loss: {l}  [step {s}]")]
#[case::course("Epoch [{e}/5], Step [{w}/600], Loss: {l}")]
#[case::mnist("Train Epoch: {e} [{w}/600 (1%)]\tLoss: {l}")]
#[case::word_language_model(
    "| epoch   {e} |   {w}/ 2928 batches | lr 5.00 | ms/batch 17.94 | loss  {l} | ppl  2057.44"
)]
#[case::imagenet("Epoch: [{e}][ {w}/391]\tTime  0.100 ( 0.120)\tData  0.000 ( 0.001)\tLoss {l} (2.3000)\tAcc@1   0.00")]
#[case::timm("Train: {e} [ {w}/1251 (  4%)]  Loss: {l} (6.93)  Time: 0.421s,  608.51/s  LR: 1.000e-05")]
#[case::cifar_tutorial("[{e}, {w}] loss: {l}")]
#[case::bar(" 12%|#2        | {s}/1000 [00:01<00:10,  8.00it/s, loss={l}]")]
#[case::bar_of_an_epoch("Epoch {e}/3:  12%|█▏        | {w}/40 [00:01<00:10,  8.00it/s, loss={l}, lr=0.001]")]
#[case::bar_with_the_loss_in_front("loss {l}:  12%|█▏        | {s}/1000 [00:01<00:10,  8.00it/s]")]
#[case::bar_without_a_total("{s}it [00:01,  8.00it/s, loss={l}]")]
#[case::lightning("Epoch {e}:  25%|██▌       | {w}/40 [00:01<00:03,  9.50it/s, v_num=0, train_loss={l}]")]
#[case::keras("{s}/1000 [====>.........] - ETA: 3s - loss: {l} - accuracy: 0.41")]
#[case::batch("Epoch {e} | Batch {w} | Loss {l} | 0.12 s/batch")]
#[case::tensor("Iteration {s}, loss tensor({l}, grad_fn=<NllLossBackward0>)")]
#[case::number_first("{s4}: {s} tokens, train_loss {l}")]
#[case::several_losses("iter {s} box_loss 0.9 cls_loss 0.7 loss {l} lr 0.1")]
#[case::end_of_a_sentence("Step {s}. Loss is {l}.")]
fn a_usual_form_is_found(#[case] form: &str) {
    let steps = (0..100).step_by(10);
    let found = find(&timed(steps.clone().map(|step| filled(form, step))), None);
    let found = found.unwrap_or_else(|unseen| panic!("{form}: {unseen:?}"));
    for step in steps {
        let Some(Reading::Training { step: Some(read), loss: Some(loss), .. }) = read(&found, &filled(form, step))
        else {
            panic!("{form}: {:?}", found.monitor)
        };
        let expected = if form.contains("{w}") { step % 40 } else { step };
        assert_eq!((read, loss), (expected, format!("{:.4}", 2.5 / (step + 1) as f64).parse().unwrap()), "{form}");
    }
    assert_eq!(found.pace.every, 10, "{form}");
    assert!((found.pace.step - 0.05).abs() < 1e-9, "{form}: {:?}", found.pace);
    // The words of the form are in its pattern: a bar of something else does not match.
    for foreign in ["Loading weights: 100%|####| 28/28 [00:01<00:00, 20.00it/s]", "100/2000 files", "tokenizing 12/30"]
    {
        assert_eq!(read(&found, foreign), None, "{form}: {:?}", found.monitor);
    }
}

#[rstest]
#[case::plain("validation: loss {l}, accuracy 0.61")]
#[case::gpt("step {s}: train loss 2.1, val loss {l}")]
#[case::trainer_like("eval_loss {l}")]
#[case::mnist("Test set: Average loss: {l}, Accuracy: 9812/10000 (98%)")]
#[case::word_language_model("| end of epoch   1 | time:  1.21s | valid loss  {l} | valid ppl   300.1")]
#[case::key("{'val_loss': {l}, 'val_accuracy': 0.5}")]
#[case::words("Validation Loss = {l}")]
fn a_validation_is_found_and_is_no_training(#[case] form: &str) {
    let lines = (1..=30).flat_map(|step| {
        let evaluated = (step % 10 == 0).then(|| filled(form, step));
        std::iter::once(filled("iter {s}: loss {l}, time 3ms", step)).chain(evaluated)
    });
    let found = find(&timed(lines), None).unwrap_or_else(|unseen| panic!("{form}: {unseen:?}"));
    assert_eq!(found.validated, [10, 20, 30], "{:?}", found.monitor);
    let Some(Reading::Validation { metrics, .. }) = read(&found, &filled(form, 9)) else { panic!("{form}") };
    assert_eq!(metrics["loss"], 0.25, "{form}");
}

#[test]
fn bars_of_other_things_and_evaluations_are_no_training() {
    let bars = (1..=28).map(|n| format!("Loading weights: {n:3}%|##   | {n}/28 [00:00<00:01, 20.0it/s]"));
    let training = (1..=9).map(|n| format!("Training:  1%|#    | {n}/900 [00:01<01:40,  8.0it/s, loss=2.3]"));
    let evaluation = (1..=30).map(|n| format!("Evaluating:  1%|#    | {n}/30 [00:01<00:04,  8.0it/s, loss=2.1]"));
    let lines = timed(bars.chain(training).chain(evaluation));
    let found = find(&lines, None).unwrap();
    assert_eq!(found.pace.steps, 9, "{:?}", found.monitor);
    assert!(
        lines.iter().filter(|(_, text)| read(&found, text).is_some()).all(|(_, text)| text.starts_with("Training"))
    );
}

/// Without a description, a bar of the evaluation cannot be told from that of the training.
#[test]
fn the_bar_of_an_evaluation_has_another_description_or_the_pattern_is_not_accepted() {
    let described = (1..=9).map(|n| format!("Epoch 1:  1%|#    | {n}/9 [00:01<01:40,  8.0it/s, loss=2.3]"));
    let other = (1..=9).map(|n| format!("Sanity check:  1%|#    | {n}/9 [00:01<01:40,  8.0it/s]"));
    let found = find(&timed(other.chain(described)), None).unwrap();
    assert_eq!(found.pace.steps, 9);
    assert_eq!(read(&found, "Sanity check:  1%|#    | 3/9 [00:01<01:40,  8.0it/s]"), None);
}

/// `tqdm` shows a new count every tenth of a second, and `set_postfix` draws the bar again after each step.
#[test]
fn a_bar_that_is_drawn_again_at_the_same_step_takes_no_time_from_the_next_one() {
    let bar = |n| format!("Epoch 0:  1%|#    | {n}/900 [00:00<00:10, 80.0it/s, loss=2.{n}]");
    let lines: Vec<Line> = (0..90).map(|step| (f64::from(step) / 80.0, bar(step / 8 * 8))).collect();
    let pace = find(&lines, None).unwrap().pace;
    assert!((pace.step - 1.0 / 80.0).abs() < 1e-9 && pace.every == 8, "{pace:?}");
    assert!((pace.silence - 1.0 / 80.0).abs() < 1e-9, "{pace:?}");
}

#[test]
fn items_are_told_from_steps_by_the_batch() {
    let items = timed((0..6).map(|n| format!("Train Epoch: 1 [{}/60000 ({n}%)]\tLoss: 2.3", n * 640)));
    let found = find(&items, Some(64)).unwrap();
    let read = read(&found, "Train Epoch: 2 [1280/60000 (2%)]\tLoss: 0.3");
    let expected = Reading::Training { step: None, items: Some(1280), epoch: Some(2), loss: Some(0.3) };
    assert_eq!((read, found.pace.every, found.pace.steps), (Some(expected), 10, 50));
    let steps = timed((0..6).map(|n| format!("Train: 0 [{:4}/1251 ({n}%)]  Loss: 6.9", n * 50)));
    assert_eq!(find(&steps, Some(128)).unwrap().pace.every, 50);
}

#[test]
fn epochs_are_counted_together() {
    let line = |epoch, step| format!("Epoch {epoch} step {step}/4 loss 1.5");
    let lines = (0..3)
        .flat_map(|epoch| (1..=4).map(move |step| line(epoch, step)).chain([format!("epoch {epoch}: val loss 1.4")]));
    let found = find(&timed(lines), None).unwrap();
    assert!(found.pace.restarts);
    assert_eq!((found.pace.steps, found.validated), (12, vec![4, 8, 12]));
}

#[test]
fn a_line_with_both_losses_is_one_of_training() {
    let lines = timed((0..5).map(|n| format!("step {}: train loss 2.3, val loss 2.4", n * 100)));
    let found = find(&lines, None).unwrap();
    assert_eq!((found.monitor.validation, found.notes.len()), (None, 1));
}

#[test]
fn the_trainer_of_hugging_face_reports_by_its_callback() {
    let lines = timed([
        "  5%|5         | 5/100 [00:01<00:20,  4.60it/s]",
        "{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}",
        " 10%|#         | 10/100 [00:02<00:20,  4.60it/s]",
        "{'eval_loss': 2.1, 'eval_runtime': 1.2, 'epoch': 0.2}",
    ]);
    let found = find(&lines, None).unwrap();
    assert_eq!(found.monitor.source, pawl_contract::script::MonitorSource::Kubeflow);
    assert_eq!((found.pace.steps, found.validated.len()), (10, 1));
}

#[test]
fn what_is_not_found_is_shown() {
    assert_eq!(find(&[], None), Err(Unseen::Nothing));
    let epochs = timed((1..9).map(|n| format!("Epoch {n}: train loss 0.5 acc 0.7")));
    let Err(Unseen::NoSteps(newest)) = find(&epochs, None) else { panic!() };
    assert_eq!((newest.len(), newest[4].as_str()), (5, "Epoch 8: train loss 0.5 acc 0.7"));
    let few = timed(["step 1: loss 2", "step 2: loss 1"]);
    assert_eq!(find(&few, None), Err(Unseen::Few { line: "step 2: loss 1".to_owned(), count: 2 }));
    let constant = timed(["step 1: loss 2"; 9]);
    assert!(matches!(find(&constant, None), Err(Unseen::Few { count: 9, .. })));
    let diverged = timed((1..9).map(|n| format!("step {n}: loss nan")));
    assert!(matches!(find(&diverged, None), Err(Unseen::Few { .. })));
}

proptest! {
    /// Whatever the words, the first step and the distance of lines: a proposal reads its lines, and nothing else.
    #[test]
    fn a_proposal_reads_its_own_lines_and_no_others(
        word in "(step|Iter|batch|global_step)", mark in "[:=#]?", gap in " {0,3}", loss in "(loss|Train loss|nll_loss)",
        first in 0_u64..1000, every in 1_u64..500, noise in prop::collection::vec("[ -~]{0,40}", 0..20),
    ) {
        let noise: Vec<String> = noise.into_iter().filter(|text| Form::of(text).is_none()).collect();
        let own = |n: u64| format!("{word} {mark}{gap}{} {loss}={:.3}", first + n * every, 9.0 / (n + 1) as f64);
        let lines = timed(noise.iter().cloned().chain((0..8).map(own)).chain(noise.iter().cloned()));
        let found = find(&lines, None).unwrap();
        prop_assert_eq!(found.pace.every, every);
        for n in 0..20 {
            let is_own = matches!(read(&found, &own(n)), Some(Reading::Training { step: Some(step), loss: Some(_), .. })
                if step == first + n * every);
            prop_assert!(is_own, "{:?}", found.monitor);
        }
        let is_training = |text: &String| matches!(read(&found, text), Some(Reading::Training { .. }));
        prop_assert!(!noise.iter().any(is_training));
    }

    /// No output makes it fail.
    #[test]
    fn any_output_has_an_answer(texts in prop::collection::vec("(step|loss|epoch|val|[0-9]{1,3}|[\\[\\]/=:|% {}.'é█-]){0,24}", 0..40)) {
        if let Ok(found) = find(&timed(texts), Some(8)) {
            prop_assert!(found.pace.every >= 1 && found.pace.step.is_finite());
        }
    }
}
