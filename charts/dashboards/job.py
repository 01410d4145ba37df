"""The Job dashboard: one TrainingJob."""

from panels import (BAD, BUSY, GOOD, OUTCOMES, STAGES, STATES, UNCLEAR, bars, colours, column, dashboard, gauge_bars, joined, lines, names,
                    now, query, stat, table, thresholds, timeline, variable)

JOB = 'namespace="$namespace", job="$job"'


def states():
    """A query for the state of each phase as a number, which value mappings show as text."""
    ored = " or ".join(f'(pawl_phase_state{{{JOB}, state="{state}"}} * {number})' for number, state in enumerate(STATES, 1))
    return f"max by (phase) ({ored})"


def overview():
    goal = f'pawl_job_speedup_ratio{{{JOB}, bound="goal"}}'
    return [
        stat("Stage", "Current stage of the job.", [now(f"pawl_job_stage{{{JOB}}}", "{{stage}}")], text="name",
             overrides=colours(STAGES)),
        stat("Speedup", "Over the job's own baseline: the product of the accepted phases' speedups, then the measured speedup of all "
             "accepted phases together.", [now(f'pawl_job_speedup_ratio{{{JOB}, bound="estimate"}}')], unit="suffix:×", decimals=2),
        stat("Target speedup", "gates.overallSpeedup of the manifest, if set.", [now(goal)], unit="suffix:×",
             decimals=2, no_value="no gate"),
        stat("Training progress", "Processed items as a fraction of the target in the manifest.",
             [now(f"pawl_job_items{{{JOB}}} / pawl_job_items_goal{{{JOB}}}")], unit="percentunit", decimals=0, least=0, most=1),
        stat("ETA", "Estimated or actual completion time of the training.",
             [now(f"(pawl_job_completion_timestamp_seconds{{{JOB}}} or pawl_job_eta_timestamp_seconds{{{JOB}}}) * 1000")],
             unit="dateTimeFromNow"),
        stat("Goodput", "Fraction of training GPU time spent on productive steps, excluding restarts and repeated steps.",
             [now(f"pawl_goodput_ratio{{{JOB}}}")], unit="percentunit", decimals=1,
             steps=thresholds((None, BAD), (0.8, UNCLEAR), (0.95, GOOD))),
        stat("GPU hours", "GPU hours so far, including measurements (process hours on the CPU).",
             [now(f"sum(pawl_gpu_hours_total{{{JOB}}})")], unit="h", decimals=2),
        stat("Cost", "Cost so far, if the manifest sets a price.", [now(f"pawl_cost_total{{{JOB}}}", "{{currency}}")], decimals=2,
             no_value="no price", text="value_and_name"),
        stat("Cost savings", "Estimated cost of training with the baseline settings, minus the actual cost.",
             [now(f"pawl_cost_saved{{{JOB}}}", "{{currency}}")], decimals=2, no_value="no price", text="value_and_name"),
        stat("Attempts", "Number of gangs started so far.", [now(f"pawl_job_attempts_total{{{JOB}}}")]),
        stat("Restarts", "Restarts of the training after infrastructure failures.",
             [now(f"pawl_job_restarts_total{{{JOB}}} or on() vector(0)")], steps=thresholds((None, GOOD), (1, UNCLEAR))),
        stat("Pending time", "Time for which the gang has had pods that are not running.",
             [now(f"(time() - pawl_job_pending_since_timestamp_seconds{{{JOB}}}) or on() vector(0)")], unit="s", decimals=0,
             steps=thresholds((None, GOOD), (300, UNCLEAR), (900, BAD))),
    ]


def phases():
    bound = lambda name: f'max by (phase) (pawl_phase_speedup_ratio{{{JOB}, bound="{name}"}})'
    each = lambda expr: query(expr, table=True)
    waterfall = {"phase": "Phase", "Value #B": "expected", "Value #C": "lower bound", "Value #D": "measured",
                 "Value #E": "upper bound", "Value #A": "#"}
    evidence = {"Value #A": "#", "phase": "Phase", "state": "State", "Value #C": "Speedup", "Value #D": "Lower", "Value #E": "Upper",
                "Value #F": "Minimum", "Value #G": "Expected", "Value #H": "Pairs", "Value #I": "Fallbacks used", "Value #J": "Loss increase",
                "Value #K": "Loss increase, upper", "Value #L": "Loss limit", "Value #M": "Memory"}
    index = f"max by (phase) (pawl_phase_index{{{JOB}}})"
    loss = lambda name: f'max by (phase) (pawl_phase_quality_loss_delta{{{JOB}, bound="{name}"}})'
    ratio = (("unit", "suffix:×"), ("decimals", 2))
    return [
        bars("Speedup by phase", "Speedup of each phase over the previously accepted settings, in manifest order: expected, measured, and "
             "confidence bounds. A phase is accepted if the lower bound is at least its minSpeedup.",
             [each(index), each(bound("expected")), each(bound("lower")), each(bound("estimate")), each(bound("upper"))],
             x="Phase", width=12, height=11, unit="suffix:×", decimals=2, least=0,
             transformations=joined("phase", waterfall, sort="#", hidden=("#",)),
             overrides=colours({"expected": "text", "lower bound": "semi-dark-blue", "measured": BUSY,
                                "upper bound": "super-light-blue"})),
        timeline("Phase states", "The state of each phase over time.", [query(states(), "{{phase}}")],
                 mappings=names({n: (state, colour) for n, (state, colour) in enumerate(STATES.items(), 1)}), width=12, height=11),
        table("Evidence", "The measurements behind each verdict. Loss increase is the increase of the validation loss over the "
              "baseline, for phases with numerics: Changed.",
              [each(index), each(f"max by (phase, state) (pawl_phase_state{{{JOB}}})"), each(bound("estimate")), each(bound("lower")),
               each(bound("upper")), each(bound("minimum")), each(bound("expected")),
               each(f"max by (phase) (pawl_phase_pairs{{{JOB}}})"), each(f"max by (phase) (pawl_phase_fallback{{{JOB}}})"),
               each(loss("estimate")), each(loss("upper")), each(loss("limit")),
               each(f'max by (phase) (pawl_phase_memory_bytes{{{JOB}, kind="measured"}})')],
              width=24, height=9, transformations=joined("phase", evidence, sort="#"),
              overrides=[column("State", ("mappings", [{"type": "value", "options": {
                             state: {"text": state, "color": colour, "index": place}
                             for place, (state, colour) in enumerate(STATES.items())}}]),
                                ("custom.cellOptions", {"type": "color-text"})),
                         *(column(name, *ratio) for name in ("Speedup", "Lower", "Upper", "Minimum", "Expected")),
                         *(column(name, ("decimals", 4)) for name in ("Loss increase", "Loss increase, upper", "Loss limit")),
                         column("Memory", ("unit", "bytes"))]),
        bars("Peak memory by phase", "Measured peak memory of the launches, and the peak predicted by the memory plan.",
             [each(index),
              each(f'max by (phase) (pawl_phase_memory_bytes{{{JOB}, kind="predicted"}})'),
              each(f'max by (phase) (pawl_phase_memory_bytes{{{JOB}, kind="measured"}})')],
             x="Phase", width=12, height=8, unit="bytes", least=0,
             transformations=joined("phase", {"phase": "Phase", "Value #B": "predicted", "Value #C": "measured", "Value #A": "#"},
                                    sort="#", hidden=("#",)),
             overrides=colours({"predicted": "text", "measured": BUSY})),
        lines("Overall speedup", "Speedup over the baseline as phases are accepted and rolled back, and the goal of the gate.",
              [query(f"max by (bound) (pawl_job_speedup_ratio{{{JOB}}})", "{{bound}}")], width=12, unit="suffix:×", decimals=2,
              overrides=colours({"estimate": BUSY, "lower": "semi-dark-blue", "upper": "super-light-blue", "goal": GOOD})),
    ]


def search():
    ended = f'sum by (search) (pawl_search_trials{{{JOB}, state!~"Running|Paused"}})'
    return [
        gauge_bars("Search progress", "Trials that have ended, as a fraction of the number in the manifest, by stage of the search. A stage "
                   "may end earlier: by its budget, its patience, or when the space has no further point.",
                   [now(f"{ended} / max by (search) (pawl_search_trials_goal{{{JOB}}})", "{{search}}")], unit="percentunit", decimals=0,
                   least=0, most=1),
        lines("Trials by state", "Trials of each stage of the search by state. Infeasible: out of memory, a loss that is not finite, or "
              "settings that the trainer does not support. Paused: waits with a checkpoint for its promotion.",
              [query(f"sum by (search, state) (pawl_search_trials{{{JOB}}})", "{{search}} {{state}}")], stacked=True, decimals=0, least=0),
        lines("Best objective", "Objectives of the best complete trial so far; at the end of a stage those of the winner, whose value is the "
              "mean over its seeds if it was repeated.",
              [query(f"max by (search, metric) (pawl_search_objective{{{JOB}}})", "{{search}} {{metric}}")]),
    ]


def training():
    rate = lambda name, by="": f"sum{by} (rate({name}{{{JOB}}}[$__rate_interval]))"
    steps = rate("pawl_train_step_seconds_sum")
    step = lambda share: (f"histogram_quantile({share}, sum by (le) (rate(pawl_train_step_seconds_bucket{{{JOB}}}"
                          "[$__rate_interval])))")
    return [
        lines("Training loss", "Latest loss reported by rank 0, by attempt.",
              [query(f"max by (attempt) (pawl_train_loss{{{JOB}}})", "{{attempt}}")]),
        lines("Validation metrics", "Latest evaluation, by metric.",
              [query(f"max by (metric) (pawl_validation{{{JOB}}})", "{{metric}}")]),
        lines("Throughput", "Items per second of the whole gang: current, expected from the measurements, and baseline. If throughput stays "
              "below the expected value, the guard rolls back a phase.",
              [query(f'max by (kind) (pawl_job_items_per_second{{{JOB}}})', "{{kind}}"),
               query(f"max(pawl_train_items_per_second{{{JOB}}})", "current")], unit="suffix: items/s",
              overrides=colours({"baseline": "text", "promised": GOOD, "measured": BUSY, "current": "super-light-blue"})),
        lines("Items", "Processed items, and the target number of items.",
              [query(f"max(pawl_job_items{{{JOB}}})", "processed"), query(f"max(pawl_job_items_goal{{{JOB}}})", "target")],
              overrides=colours({"target": GOOD, "processed": BUSY})),
        lines("Step time", "Duration of an optimizer step on rank 0, including data loading.",
              [query(step(0.5), "p50"), query(step(0.9), "p90"), query(step(0.99), "p99")], unit="s"),
        lines("Step wait time", "Fraction of step time that rank 0 waits for data and for collectives. If it waits more than a few percent "
              "for data, increase loaderWorkers or use a faster volume.",
              [query(f"{rate('pawl_loader_wait_seconds_total')} / {steps}", "data"),
               query(f"{rate('pawl_collective_seconds_total')} / {steps}", "collectives")], unit="percentunit", least=0),
        lines("GPU memory", "Predicted and peak memory of rank 0 (host memory of tensors on the CPU).",
              [query(f"max by (kind) (pawl_gpu_memory_bytes{{{JOB}}})", "{{kind}}")], unit="bytes", least=0,
              overrides=colours({"predicted": "text", "peak": BUSY})),
        lines("GPU utilization", "Fraction of time that the GPU is busy with training, if the trainer reports it.",
              [query(f"max(pawl_train_utilization_ratio{{{JOB}}})", "utilization")], unit="percentunit", least=0, most=1),
        lines("Busy time by rank", "Fraction of time in which each rank does not wait for the others. A rank that is busier than the others "
              "slows down the gang: PawlStraggler names it.",
              [query(f"max by (rank) (rate(pawl_train_busy_seconds_total{{{JOB}}}[$__rate_interval]))", "rank {{rank}}")],
              unit="percentunit", least=0),
        lines("GPU clock", "Clock of the multiprocessors of each rank's GPU.",
              [query(f"max by (rank, gpu) (pawl_gpu_sm_clock_hertz{{{JOB}}})", "rank {{rank}} {{gpu}}")], unit="hertz", least=0),
        lines("GPU temperature", "Temperature of each rank's GPU.",
              [query(f"max by (rank, gpu) (pawl_gpu_temperature_celsius{{{JOB}}})", "rank {{rank}} {{gpu}}")], unit="celsius"),
        lines("GPU power", "Power draw of each rank's GPU.",
              [query(f"max by (rank, gpu) (pawl_gpu_power_watts{{{JOB}}})", "rank {{rank}} {{gpu}}")], unit="watt", least=0),
        lines("GPU throttling and errors", "GPUs whose clock the driver lowers, by reason, and the newest Xid error of a GPU. SwPowerCap is normal "
              "for long matrix products.",
              [query(f"sum by (reason) (pawl_gpu_throttled{{{JOB}}})", "{{reason}}"),
               query(f"max by (rank, gpu) (pawl_gpu_xid{{{JOB}}}) or on() vector(0)", "Xid: rank {{rank}} {{gpu}}")],
              decimals=0, least=0),
        lines("Ranks", "Number of running ranks on all nodes of the gang.",
              [query(f"sum(pawl_agent_ranks{{{JOB}}})", "ranks")], decimals=0, least=0),
        lines("Gradient norm", "Norm of the gradient before clipping, and skipped updates per hour. An update is skipped when the gradient "
              "is not finite, or the loss scale of half precision too large.",
              [query(f"max(pawl_train_gradient_norm{{{JOB}}})", "gradient norm"),
               query(f"sum(rate(pawl_train_skipped_updates_total{{{JOB}}}[15m])) * 3600", "skipped per hour")],
              overrides=[column("skipped per hour", ("color", {"mode": "fixed", "fixedColor": BAD}),
                                ("custom.axisPlacement", "right"))]),
        lines("Learning rate", "Learning rate of the newest optimizer step.",
              [query(f"max(pawl_train_learning_rate{{{JOB}}})", "learning rate")], least=0),
        lines("Numbers out of the range of 8-bit floats", "With precision fp8: shares of the numbers rounded to 8-bit floats that were clipped "
              "(overflow), and that were not zero and became zero (underflow), in one micro-step at each evaluation.",
              [query(f"max(pawl_train_float8_overflow_ratio{{{JOB}}})", "overflow"),
               query(f"max(pawl_train_float8_underflow_ratio{{{JOB}}})", "underflow")], unit="percentunit", least=0),
        lines("Planned memory by kind", "Planned memory of rank 0: weights, gradients that are summed over micro-steps, state of the "
              "optimizer, data sets on the device, and everything else (activations). The sum is the predicted peak.",
              [query(f"max by (kind) (pawl_train_memory_bytes{{{JOB}}})", "{{kind}}")], unit="bytes", least=0, stacked=True),
        lines("Epoch and compile time", "Duration of the newest complete epoch with its evaluations and checkpoints, and the time to "
              "compile the programs.",
              [query(f"max(pawl_train_epoch_seconds{{{JOB}}})", "epoch"),
               query(f"max(pawl_train_compile_seconds{{{JOB}}})", "compile")], unit="s", least=0),
    ]


def safety():
    return [
        lines("Checkpoint age", "Time since the newest complete checkpoint, and the configured checkpoint interval. PawlCheckpointOverdue "
              "fires if the age exceeds three intervals plus 5 minutes.",
              [query(f"time() - max(pawl_job_unsaved_since_timestamp_seconds{{{JOB}}})", "age"),
               query(f"max(pawl_job_checkpoint_interval_seconds{{{JOB}}})", "interval")], unit="s", least=0,
              overrides=colours({"interval": GOOD, "age": UNCLEAR})),
        lines("Checkpoints", "Mean time to write a checkpoint, and failed checkpoints per hour.",
              [query(f"sum(rate(pawl_checkpoint_seconds_sum{{{JOB}}}[15m])) / sum(rate(pawl_checkpoint_seconds_count{{{JOB}}}[15m]) > 0)",
                     "mean write time"),
               query(f"sum(rate(pawl_checkpoint_failures_total{{{JOB}}}[15m])) * 3600", "failures per hour")],
              unit="s", overrides=[column("failures per hour", ("unit", "short"), ("color", {"mode": "fixed", "fixedColor": BAD}),
                                          ("custom.axisPlacement", "right"))]),
        lines("Finished launches by outcome", "Outcome of each launch, for the attempts that Prometheus scraped.",
              [query(f"sum by (kind, outcome) (pawl_launches_total{{{JOB}}})", "{{kind}} {{outcome}}")],
              stacked=True, overrides=colours(OUTCOMES)),
    ]


def cost():
    return [
        lines("GPU hours by purpose", "GPU hours spent on measurements and on training.",
              [query(f"sum by (purpose) (pawl_gpu_hours_total{{{JOB}}})", "{{purpose}}")], stacked=True, unit="h", decimals=2,
              width=8),
        lines("Cost and savings", "Cost so far, and estimated savings compared with training with the baseline.",
              [query(f"sum(pawl_cost_total{{{JOB}}})", "cost"), query(f"sum(pawl_cost_saved{{{JOB}}})", "savings")], decimals=2,
              overrides=colours({"cost": UNCLEAR, "savings": GOOD}), no_value="no price"),
        lines("Goodput over time", "Fraction of training GPU time spent on productive steps.",
              [query(f"max(pawl_goodput_ratio{{{JOB}}})", "goodput")], unit="percentunit", least=0, most=1),
    ]


def build():
    choose = lambda name, label, expr, description: variable(name, label, expr, multi=False, description=description)
    variables = [choose("namespace", "Namespace", "label_values(pawl_job_stage, namespace)", "Namespace of the job."),
                 choose("job", "Job", 'label_values(pawl_job_stage{namespace="$namespace"}, job)', "The TrainingJob.")]
    rows = [("Current state", overview()), ("Phases", phases()), ("Search", search()), ("Training", training()), ("Checkpoints and launches", safety()),
            ("Cost", cost())]
    return dashboard("job", "Job", "One TrainingJob: measurements of each phase, training, cost.", variables, rows,
                     span="3h")
