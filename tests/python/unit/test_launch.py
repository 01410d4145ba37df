"""A process of a launch, from its plan to its exit code and report."""

import json
import signal
import sys

import pytest
from conftest import Launch, wait_until

LOOP = """
import pawl_launch, time
run = pawl_launch.init(batch_per_gpu=4)
size = run.batch_size
DATA = list(range(100))
class Loader:
    dataset = DATA
    batch_size = size
    def __iter__(self):
        return iter([DATA[i:i + size] for i in range(0, 100, size)])
resumed = run.get_checkpoint()
if resumed:
    print("resumed", (resumed / "state").read_text())
def loss():
    return 1.0 / (1 + run.step_count)
def evaluate():
    return {"loss": loss(), "accuracy": 0.5}
for batch in run.steps(Loader(), evaluate=evaluate):
    BODY
    run.step(items=len(batch), loss=loss())
    if run.should_checkpoint:
        with run.checkpoint() as directory:
            (directory / "state").write_text(str(run.step_count))
"""


def loop(body: str = "pass") -> str:
    return LOOP.replace("BODY", body)


def test_measure(launch: Launch) -> None:
    code, report = launch.run(loop("time.sleep(0.02)"))
    assert (code, report["outcome"], report["steps"], report["items"]) == (0, "Done", 7, 28)
    assert 100 < report["itemsPerSecond"] < 200, "4 items in 20 ms"
    assert report["stepSeconds"]["median"] >= 0.02 and report["peakMemoryBytes"] > 1 << 20
    assert report["itemsPerEpoch"] == 100 and len(report["losses"]) == 7
    assert "validation" not in report and "failure" not in report
    assert report["provenance"]["libraries"]["python"].startswith("3.")
    progress = launch.progress()
    assert (progress["launch"], progress["step"], progress["totalSteps"]) == ("launch", 7, 7)


def test_a_measurement_is_extended_until_it_is_steady(launch: Launch) -> None:
    launch.plan["budget"]["windowSteps"] = 20
    # A queue of batches, which is empty after 16 steps.
    code, report = launch.run(loop("time.sleep(0.01 if run.step_count < 16 else 0.05)"))
    assert (code, report["outcome"], report["steps"], len(report["losses"])) == (0, "Done", 42, 22)
    assert 60 < report["itemsPerSecond"] < 80 and "steady" not in report
    code, report = launch.run(loop("time.sleep(0.004 * (1 + run.step_count))"))
    assert (code, report["steps"], report["steady"]) == (0, 2 + 5 * 20, False)


@pytest.mark.parametrize("steady", [True, False])
def test_a_measurement_of_slow_steps_ends_by_time(launch: Launch, steady: bool) -> None:
    launch.plan["budget"] = {
        "warmupSteps": 20,
        "windowSteps": 50,
        "windowLimit": {"seconds": 0.4, "warmupSteps": 5, "windowSteps": 13},
    }
    code, report = launch.run(loop("time.sleep(0.05)" if steady else "time.sleep(0.01 * (1 + run.step_count))"))
    assert (code, report["outcome"]) == (0, "Done")
    if steady:
        assert 5 + 13 <= report["steps"] <= 10 + 15 and report["plannedItems"] == 4 * 70
        assert 60 < report["itemsPerSecond"] < 80 and "steady" not in report
        assert len(report["losses"]) == report["steps"]
    else:
        assert report["steps"] >= 5 + 5 * 13 and report["steady"] is False


def test_progress_names_the_phase_and_the_time_to_stop(launch: Launch) -> None:
    launch.train(items=40)
    code, report = launch.run(
        """
        import json, os, pawl_launch, time
        run = pawl_launch.init(batch_per_gpu=4)
        size, _ = run.batch_size, run.get_checkpoint()
        def tell():
            progress = json.load(open(os.environ["PAWL_PROGRESS"]))
            return [progress["phase"], progress["heartbeat"], progress["step"], "stopSeconds" in progress]
        told = []
        def evaluate():
            told.append(tell())
            time.sleep(0.4)
            run.heartbeat()
            told.append(tell())
            return {"loss": 1.0}
        for item in run.steps([size] * 5, evaluate=evaluate):
            if run.step_count == 0: told.append(tell())
            run.step(items=item)
            if run.should_checkpoint:
                with run.checkpoint() as directory:
                    told.append(tell())
                    time.sleep(0.2)
                    (directory / "state").write_text("x")
                told.append(tell())
        json.dump(told, open("told.json", "w"))
        """
    )
    assert (code, report["steps"]) == (0, 10)
    assert json.loads((launch.directory / "told.json").read_text()) == [
        ["Validating", 0, 0, False],
        ["Validating", 1, 0, False],
        ["Training", 1, 0, False],
        ["Validating", 1, 10, False],
        ["Validating", 2, 10, False],
        ["Saving", 2, 10, False],
        ["Training", 2, 10, True],
    ]
    assert 0.4 < report["stopSeconds"] < 20, "twice the longest checkpoint, and a step"


def test_the_loss_of_a_launch_does_not_depend_on_its_speed(launch: Launch) -> None:
    """Frameworks read the mean loss at the edges of windows, and these depend on the time."""
    launch.plan["budget"]["windowSteps"] = 38
    script = """
        import pawl_launch, time
        run = pawl_launch.init(batch_per_gpu=4)
        size, losses = run.batch_size, []
        for step, _ in enumerate(run.steps([size] * 40)):
            time.sleep(SECONDS)
            losses.append(1.0 / (1 + step))
            run.step(items=size)
            if run.window_ended:
                run.record_loss(sum(losses) / len(losses))
                losses = []
        """
    found = []
    for seconds in ("0", "0.15"):
        code, report = launch.run(script.replace("SECONDS", seconds))
        points = report["losses"]
        assert (code, len(points), points[-1]["items"]) == (0, 40, 160)
        found.append(sum(point["loss"] for point in points[30:]) / 10)
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_the_wait_for_data_is_measured(launch: Launch) -> None:
    slow = loop().replace("return iter([", "return (time.sleep(0.02) or x for x in [")
    assert launch.run(slow)[1]["loaderWaitShare"] > 0.8
    assert launch.run(loop("time.sleep(0.02)"))[1]["loaderWaitShare"] < 0.2


def test_preflight_checks_settings_and_runs_no_step(launch: Launch) -> None:
    launch.plan |= {"kind": "Preflight", "budget": {}}
    code, report = launch.run(loop("raise SystemError"))
    assert (code, report["outcome"], report["itemsPerEpoch"]) == (0, "Done", 100)
    launch.plan["settings"]["compile"] = "Graph"
    code, report = launch.run(loop())
    assert (code, report["outcome"]) == (20, "Unsupported")
    assert "settings.compile: not used by this script" in report["message"]


def test_preflight_proves_the_storage(launch: Launch) -> None:
    launch.train(items=40)
    launch.plan |= {"kind": "Preflight", "budget": {}}
    assert launch.run(loop("raise SystemError"))[0] == 0
    assert list((launch.directory / "checkpoints").iterdir()) == [], "nothing is left"
    (launch.directory / "checkpoints").rmdir()
    (launch.directory / "checkpoints").write_text("a file")
    code, report = launch.run(loop("raise SystemError"))
    assert (code, report["outcome"]) == (23, "CheckpointUnreadable")
    assert f"checkpoint storage {launch.directory}/checkpoints: File exists" in report["message"]


def test_training_evaluates_keeps_the_best_and_its_last_checkpoint(launch: Launch) -> None:
    launch.train(items=240)
    launch.plan["budget"]["evalEveryItems"] = 80
    code, report = launch.run(loop())
    assert (code, report["items"], report["validation"]["items"]) == (0, 240, 240)
    assert report["firstValidation"] == {"items": 0, "metrics": {"loss": 1.0, "accuracy": 0.5}}
    assert report["lastCheckpoint"]["items"] == 240
    best = report["bestCheckpoint"]
    assert best["checkpoint"]["items"] == 240 and best["metric"] == "loss"
    assert len(list((launch.directory / "checkpoints").glob("0*"))) == 2


def test_early_stopping(launch: Launch) -> None:
    launch.train(items=100_000)
    launch.plan["budget"] |= {"evalEveryItems": 8, "earlyStopping": {"patience": 3, "minDelta": 0.5}}
    code, report = launch.run(loop())
    # The first evaluation after training began is the best one; three more are no improvement by 0.5.
    assert (code, report["items"], report["lastCheckpoint"]["items"]) == (0, 32, 32)


def test_early_stopping_by_an_evaluation_after_the_step_is_saved(launch: Launch) -> None:
    launch.train(items=100_000)
    launch.plan["budget"] |= {"evalEveryItems": 8, "earlyStopping": {"patience": 3, "minDelta": 0.5}}
    # As frameworks do, which evaluate by themselves. No value is a new best.
    script = (
        loop()
        .replace(", evaluate=evaluate", "")
        .replace("for batch in", "run.start(items_per_epoch=100)\nrun.report({'loss': 0.5})\nfor batch in")
        .replace("    if run.should", "    if run.should_evaluate:\n        run.report({'loss': 0.5})\n    if run.should")
    )
    code, report = launch.run(script)
    assert (code, report["items"], report["lastCheckpoint"]["items"]) == (0, 32, 32)


def test_epochs_are_counted_by_the_loader(launch: Launch) -> None:
    launch.plan |= {"kind": "Quality", "budget": {"epochs": 2}}
    code, report = launch.run(loop())
    assert (code, report["items"], report["validation"]["items"]) == (0, 200, 200)


@pytest.mark.parametrize(
    ("body", "outcome", "code", "text"),
    [
        ("if run.step_count == 3: run.step(items=4, loss=float('nan'))", "NonFinite", 12, "the training loss is nan at step 4"),
        ("raise MemoryError", "HostOutOfMemory", 11, "MemoryError"),
        ("raise type('OutOfMemoryError', (RuntimeError,), {})('CUDA out of memory')", "OutOfMemory", 10, "CUDA out of memory"),
        ("run.unsupported('compile: needs a GPU')", "Unsupported", 20, "compile: needs a GPU"),
        ("import nothing_of_this_name", "Unsupported", 20, "nothing_of_this_name"),
        ("if run.step_count == 2: break", "Unsupported", 20, "the script ended after step 2 of 7"),
        ("raise KeyError('x')", "Failed", 1, "KeyError"),
    ],
)
def test_ends(launch: Launch, body: str, outcome: str, code: int, text: str) -> None:
    ended, report = launch.run(loop(body))
    assert (ended, report["outcome"]) == (code, outcome)
    assert text in report["message"] and report["failure"]["rank"] == 0


@pytest.mark.parametrize("error", ["raise FileNotFoundError('best.ckpt')", "raise MemoryError"])
def test_what_fails_after_the_last_step_is_not_part_of_the_launch(launch: Launch, error: str) -> None:
    launch.train(items=200)
    code, report = launch.run(loop() + f"\n{error}\n")
    assert (code, report["outcome"], report["items"]) == (0, "Done", 200)
    assert "all steps were done; after them, the script ended with " in report["message"]
    # Its last checkpoint is missing.
    launch.train(items=208)
    code, report = launch.run(loop().replace("run.should_checkpoint", "run.should_checkpoint and not run.is_done") + f"\n{error}\n")
    assert code != 0 and report["outcome"] != "Done"


def test_weights_are_not_saved_after_a_loss_that_is_nan_on_the_device(launch: Launch) -> None:
    launch.train(items=200, everySeconds=0.0)
    # A tensor on a device is read at the end of a window, which is later than the checkpoint.
    on_device = """
class Loss(float):
    device = type("Device", (), {"type": "cuda"})
"""
    nan = loop().replace("loss=loss()", "loss=Loss('nan' if run.step_count == 6 else 1.0)")
    code, report = launch.run(on_device + nan)
    assert (code, report["outcome"]) == (12, "NonFinite") and "the training loss is nan at step 7" in report["message"]
    assert report["lastCheckpoint"]["step"] == 6
    names = sorted(path.name for path in (launch.directory / "checkpoints").glob("0*"))
    assert names[-1] == report["lastCheckpoint"]["name"]


def test_a_spike_ends_the_launch(launch: Launch) -> None:
    launch.plan["budget"]["windowSteps"] = 60
    spike = loop().replace("loss=loss()", "loss=1.0 if run.step_count < 40 else 90.0")
    code, report = launch.run(spike)
    assert (code, report["outcome"]) == (13, "LossSpike") and "at step 43" in report["message"]


def test_sigterm_writes_a_checkpoint_and_the_next_launch_resumes_from_it(launch: Launch) -> None:
    launch.train(items=100_000)
    process = launch.start(loop("time.sleep(0.01)"))
    wait_until(lambda: launch.progress().get("step", 0) > 5)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    report = launch.report()
    assert (process.returncode, report["outcome"]) == (30, "Stopped"), err
    stopped = report["lastCheckpoint"]
    assert stopped["step"] == report["steps"] > 5

    launch.plan["budget"]["items"] = stopped["items"] + 40
    launch.plan["checkpoint"]["expected"] = stopped
    process = launch.start(loop())
    out, err = process.communicate(timeout=60)
    report = launch.report()
    assert f"resumed {stopped['step']}\n" in out, err
    assert (process.returncode, report["items"], report["steps"]) == (0, stopped["items"] + 40, stopped["step"] + 10)
    assert report["firstValidation"]["items"] == 0, "the evaluation before the first step is part of the checkpoint"


def test_a_resumed_training_is_judged_by_the_losses_before_the_interruption(launch: Launch) -> None:
    late = loop().replace(
        "loss=loss()", "loss=0.004 if run.step_count > 150 else max(1e-4, 2.3 * 0.9 ** max(0, run.step_count - 24))"
    )
    launch.train(items=480)
    assert launch.run(late)[0] == 0
    launch.train(items=640)
    code, report = launch.run(late)
    assert (code, report["outcome"], report["steps"]) == (0, "Done", 160), report["message"]


def test_a_divergence_names_the_last_healthy_loss(launch: Launch) -> None:
    launch.train(items=4000)
    for diverged, last in [("float('nan')", 50), ("90.0", 50)]:
        # As a framework that logs every 10 steps: a checkpoint may be between two reports.
        script = loop().replace("run.step(items=len(batch), loss=loss())", f"""run.step(items=len(batch))
    if run.step_count % 10 == 0 or run.step_count < 40:
        run.record_loss({diverged} if run.step_count > 50 else 1.0)""")
        code, report = launch.run(script)
        assert code in (12, 13) and (report["failure"]["step"], report["failure"]["items"]) == (last, 4 * last), report


WITHOUT_SAVING = loop("time.sleep(0.01)").replace("run.should_checkpoint", "False")


def test_a_training_that_does_not_save_is_not_done(launch: Launch) -> None:
    launch.train(items=40)
    code, report = launch.run(WITHOUT_SAVING)
    assert (code, report["outcome"], report["steps"]) == (20, "Unsupported", 10)
    assert "no checkpoint was written after step 10" in report["message"]
    launch.plan |= {"kind": "Quality"}
    assert launch.run(WITHOUT_SAVING)[0] == 0, "only a training keeps checkpoints"


def test_a_training_that_does_not_save_is_not_stopped_after_a_checkpoint(launch: Launch) -> None:
    launch.train(items=100_000)
    process = launch.start(WITHOUT_SAVING)
    wait_until(lambda: launch.progress().get("step", 0) > 5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    report = launch.report()
    assert (process.returncode, report["outcome"]) == (20, "Unsupported")
    assert f"no checkpoint was written after step {report['steps']}" in report["message"]


def test_sigterm_before_the_first_step_ends_at_once(launch: Launch) -> None:
    # A signal just before the system call of a sleep is handled after it: many short ones.
    wait = "import pawl_launch, time\npawl_launch.init()\nprint('ready', flush=True)\nfor _ in range(600): time.sleep(0.1)"
    process = launch.start(wait)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert (process.returncode, launch.report()["outcome"]) == (30, "Stopped")


def test_a_missing_checkpoint_is_not_a_new_start(launch: Launch) -> None:
    launch.train(items=80, expected={"name": "0-job-1", "step": 1, "items": 4})
    code, report = launch.run(loop())
    assert (code, report["outcome"]) == (23, "CheckpointUnreadable") and "0-job-1" in report["message"]


def test_nothing_is_deleted_where_the_checkpoint_to_go_back_to_is_missing(launch: Launch) -> None:
    launch.train(items=80)
    assert launch.run(loop())[0] == 0
    there = sorted(path.name for path in (launch.directory / "checkpoints").iterdir())
    launch.plan["checkpoint"] |= {"expected": {"name": "0-job-1", "step": 1, "items": 4}, "resumeNotAfterItems": 4}
    code, report = launch.run(loop())
    assert (code, report["outcome"]) == (23, "CheckpointUnreadable")
    assert sorted(path.name for path in (launch.directory / "checkpoints").iterdir()) == there


def test_what_was_saved_after_the_last_healthy_loss_is_gone_before_the_launch_ends(launch: Launch) -> None:
    launch.train(items=200, everySeconds=0.0)
    launch.plan["checkpoint"]["keep"] = 9
    # Three losses in a row are a spike: the first two are saved.
    code, report = launch.run(loop().replace("loss=loss()", "loss=1.0 + run.step_count % 3 / 100 if run.step_count < 40 else 1e6"))
    assert (code, report["outcome"]) == (13, "LossSpike"), report["message"]
    healthy = report["failure"]["items"]
    names = sorted(path.name for path in (launch.directory / "checkpoints").glob("0*"))
    assert names and int(names[-1].partition("-")[0]) == healthy < report["items"], (healthy, names)
    assert report.get("lastCheckpoint") is None, "it was removed"
    # Nobody has read the report: no limit is known.
    code, report = launch.run(loop())
    assert (code, report["outcome"]) == (0, "Done"), report["message"]


def test_a_script_that_ignores_its_checkpoint_is_refused(launch: Launch) -> None:
    launch.train(items=80)
    assert launch.run(loop())[0] == 0
    code, report = launch.run(loop().replace("run.get_checkpoint()", "None"))
    assert (code, report["outcome"]) == (20, "Unsupported") and "does not resume" in report["message"]


def test_damaged_checkpoints_are_left_out_and_another_jobs_can_be_the_start(launch: Launch) -> None:
    launch.train(items=200)
    launch.plan["checkpoint"]["everySeconds"] = 0.0
    assert launch.run(loop())[1]["lastCheckpoint"]["items"] == 200
    launch.plan["checkpoint"]["resumeNotAfterItems"] = 196
    launch.plan["budget"]["items"] = 196
    code, report = launch.run(loop())
    assert (code, report["lastCheckpoint"]["items"]) == (0, 196)

    (launch.directory / "checkpoints").rename(launch.directory / "other")
    launch.plan["checkpoint"] |= {"resumeFrom": {"storage": f"file://{launch.directory}/other", "weightsOnly": True}}
    del launch.plan["checkpoint"]["resumeNotAfterItems"]
    launch.plan["budget"]["items"] = 40
    process = launch.start(loop())
    out, _ = process.communicate(timeout=60)
    assert "resumed 49\n" in out and launch.report()["items"] == 40, "only the weights: the position starts anew"


def test_accelerate_does_not_resume_the_optimizer_where_only_weights_are_wanted(launch: Launch) -> None:
    launch.train(items=40)
    assert launch.run(loop())[0] == 0
    (launch.directory / "checkpoints").rename(launch.directory / "other")
    launch.plan["checkpoint"] |= {"resumeFrom": {"storage": f"{launch.directory}/other", "weightsOnly": True}}
    resume = """
class Accelerator:
    def load_state(self, path):
        print("loaded", path)
from pawl_launch import accelerate
accelerate.resume(Accelerator())
for batch in"""
    code, report = launch.run(loop().replace("for batch in", resume))
    assert (code, report["outcome"]) == (20, "Unsupported") and "train.resumeFrom.weightsOnly" in report["message"]


def test_missing_validation_is_an_error(launch: Launch) -> None:
    launch.plan |= {"kind": "Quality", "budget": {"items": 40}}
    code, report = launch.run(loop().replace(", evaluate=evaluate", ""))
    assert (code, report["outcome"]) == (20, "Unsupported") and "no validation was reported" in report["message"]


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("{'accuracy': 0.5, 'f1': 0.5}", "no metric 'loss', only accuracy, f1: return the validation loss as {'loss': value}"),
        ("{}", "no metrics: return"),
        ("None", "returned None, not a dictionary: return"),
    ],
)
def test_an_evaluation_without_a_loss_names_what_it_returned(launch: Launch, returned: str, text: str) -> None:
    launch.plan |= {"kind": "Quality", "budget": {"items": 40}}
    code, report = launch.run(loop().replace("{\"loss\": loss(), \"accuracy\": 0.5}", returned))
    assert (code, report["outcome"]) == (21, "InvalidPlan") and f"run.steps(evaluate=...): {text}" in report["message"]


def test_a_setting_that_is_not_read_is_explained_by_how_this_script_would_read_it(launch: Launch) -> None:
    launch.plan |= {"kind": "Preflight", "budget": {}}
    launch.plan["settings"] |= {"compile": "Graph", "ropeCache": "Cached", "workload": {"hidden": 8}}
    own = "read run.settings.rope_cache before the first step, and read run.settings.workload['hidden'] before the first step, or remove"
    [plain, torch] = [launch.run(start + loop())[1]["message"] for start in ("", "import sys; sys.modules['torch'] = sys\n")]
    assert "read run.settings.compile before the first step" in plain and own in plain
    assert "model = pawl_launch.pytorch.prepare(run, model, device)" in torch and own in torch


def test_invalid_plans(launch: Launch) -> None:
    launch.plan["contract"] = 2
    process = launch.start(loop())
    _, err = process.communicate(timeout=60)
    assert process.returncode == 21 and "contract 2: this package supports contract 1" in err
    launch.plan |= {"contract": 1, "settings": {"batchPerGpu": 3, "globalBatch": 8}}
    code, report = launch.run(loop().replace("run.batch_size", "run.batch_size // run.accumulation_steps"))
    assert code == 21 and "settings.globalBatch: 8 is not a multiple of" in report["message"]


def test_several_ranks_need_a_process_group(launch: Launch) -> None:
    process = launch.start(loop(), rank=1, world_size=2)
    process.communicate(timeout=60)
    assert process.returncode == 20 and "init_process_group" in launch.report(1)["message"]


def test_by_hand_the_script_runs_to_the_end_of_its_epochs(tmp_path_factory: pytest.TempPathFactory) -> None:
    import subprocess

    from conftest import environment

    script = tmp_path_factory.mktemp("hand") / "script.py"
    script.write_text(loop() + "print('steps', run.step_count, run.items)\nrun.finish()\n")
    env = {name: value for name, value in environment().items() if not name.startswith("PAWL_")}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "validation: loss 0.0384615, accuracy 0.5\nsteps 25 100\n" and done.stderr == ""


def test_trackers_report_the_training_only(launch: Launch) -> None:
    script = """
        import pawl_launch
        from pawl_launch import accelerate
        run = pawl_launch.init()
        print(run.kind, run.tracks, accelerate.arguments(log_with="wandb")["log_with"])
        """
    assert tracked(launch, script) == "Measure False None"
    launch.plan |= {"kind": "Quality", "budget": {"items": 40}}
    assert tracked(launch, script) == "Quality False None"
    assert tracked(launch.train(items=40), script) == "Train True wandb"


def tracked(launch: Launch, script: str) -> str:
    """The first line that a script prints."""
    return launch.start(script).communicate(timeout=60)[0].splitlines()[0]
