"""One job."""

from panels import (BAD, BUSY, GOOD, OUTCOMES, STAGES, STATES, UNCLEAR, bars, colours, column, dashboard, joined, lines, names,
                    now, query, stat, table, thresholds, timeline, variable)

JOB = 'namespace="$namespace", job="$job"'


def states():
    """The state of each phase as a number: Grafana shows it as a word."""
    ored = " or ".join(f'(pawl_phase_state{{{JOB}, state="{state}"}} * {number})' for number, state in enumerate(STATES, 1))
    return f"max by (phase) ({ored})"


def overview():
    goal = f'pawl_job_speedup_ratio{{{JOB}, bound="goal"}}'
    return [
        stat("Stage", "Where the job is.", [now(f"pawl_job_stage{{{JOB}}}", "{{stage}}")], text="name",
             overrides=colours(STAGES)),
        stat("Speedup", "Over the job's own baseline: the product of what the accepted phases showed, then what all of them "
             "showed together.", [now(f'pawl_job_speedup_ratio{{{JOB}, bound="estimate"}}')], unit="suffix:×", decimals=2),
        stat("Speedup asked for", "gates.overallSpeedup; nothing when the manifest has none.", [now(goal)], unit="suffix:×",
             decimals=2, no_value="no gate"),
        stat("Trained", "Share of the items that the manifest asks for.",
             [now(f"pawl_job_items{{{JOB}}} / pawl_job_items_goal{{{JOB}}}")], unit="percentunit", decimals=0, least=0, most=1),
        stat("Done", "When the training will be done, or was.",
             [now(f"(pawl_job_completion_timestamp_seconds{{{JOB}}} or pawl_job_eta_timestamp_seconds{{{JOB}}}) * 1000")],
             unit="dateTimeFromNow"),
        stat("Goodput", "Share of device time in training that went into steps that count: not into restarts, and not into steps "
             "that were trained again.", [now(f"pawl_goodput_ratio{{{JOB}}}")], unit="percentunit", decimals=1,
             steps=thresholds((None, BAD), (0.8, UNCLEAR), (0.95, GOOD))),
        stat("Device hours", "So far, measuring included (process hours on the CPU).",
             [now(f"sum(pawl_gpu_hours_total{{{JOB}}})")], unit="h", decimals=2),
        stat("Spent", "So far, when the manifest has a price.", [now(f"pawl_cost_total{{{JOB}}}", "{{currency}}")], decimals=2,
             no_value="no price", text="value_and_name"),
        stat("Saved", "What training with the baseline would have cost more.", [now(f"pawl_cost_saved{{{JOB}}}", "{{currency}}")],
             decimals=2, no_value="no price", text="value_and_name"),
        stat("Attempts", "Gangs that were started so far.", [now(f"pawl_job_attempts_total{{{JOB}}}")]),
        stat("Restarts", "Of the training, after infrastructure failures.",
             [now(f"pawl_job_restarts_total{{{JOB}}} or vector(0)")], steps=thresholds((None, GOOD), (1, UNCLEAR))),
        stat("Waiting for pods", "How long the gang has been waiting for all of its pods.",
             [now(f"(time() - pawl_job_pending_since_timestamp_seconds{{{JOB}}}) or vector(0)")], unit="s", decimals=0,
             steps=thresholds((None, GOOD), (300, UNCLEAR), (900, BAD))),
    ]


def phases():
    bound = lambda name: f'max by (phase) (pawl_phase_speedup_ratio{{{JOB}, bound="{name}"}})'
    each = lambda expr: query(expr, table=True)
    waterfall = {"phase": "Phase", "Value #B": "expected", "Value #C": "lower bound", "Value #D": "measured",
                 "Value #E": "upper bound", "Value #A": "#"}
    evidence = {"Value #A": "#", "phase": "Phase", "state": "State", "Value #C": "Speedup", "Value #D": "Lower", "Value #E": "Upper",
                "Value #F": "Needed", "Value #G": "Expected", "Value #H": "Pairs", "Value #I": "Rung", "Value #J": "Loss +",
                "Value #K": "Loss + at most", "Value #L": "Allowed", "Value #M": "Memory"}
    index = f"max by (phase) (pawl_phase_index{{{JOB}}})"
    loss = lambda name: f'max by (phase) (pawl_phase_quality_loss_delta{{{JOB}, bound="{name}"}})'
    ratio = (("unit", "suffix:×"), ("decimals", 2))
    return [
        bars("Speedup, phase by phase", "Each phase over what was accepted before it, in the order of the manifest: what was hoped "
             "for, what was measured, and its interval. A phase is kept when the lower bound clears its minimum.",
             [each(index), each(bound("expected")), each(bound("lower")), each(bound("estimate")), each(bound("upper"))],
             x="Phase", width=12, height=11, unit="suffix:×", decimals=2, least=0,
             transformations=joined("phase", waterfall, sort="#", hidden=("#",)),
             overrides=colours({"expected": "text", "lower bound": "semi-dark-blue", "measured": BUSY,
                                "upper bound": "super-light-blue"})),
        timeline("What became of each phase", "The state of every phase over time.", [query(states(), "{{phase}}")],
                 mappings=names({n: (state, colour) for n, (state, colour) in enumerate(STATES.items(), 1)}), width=12, height=11),
        table("Evidence", "The measurements behind each verdict. Loss is the increase of the validation loss over the baseline, "
              "for phases that change the mathematics.",
              [each(index), each(f"max by (phase, state) (pawl_phase_state{{{JOB}}})"), each(bound("estimate")), each(bound("lower")),
               each(bound("upper")), each(bound("minimum")), each(bound("expected")),
               each(f"max by (phase) (pawl_phase_pairs{{{JOB}}})"), each(f"max by (phase) (pawl_phase_rung{{{JOB}}})"),
               each(loss("estimate")), each(loss("upper")), each(loss("limit")),
               each(f'max by (phase) (pawl_phase_memory_bytes{{{JOB}, kind="measured"}})')],
              width=24, height=9, transformations=joined("phase", evidence, sort="#"),
              overrides=[column("State", ("mappings", [{"type": "value", "options": {
                             state: {"text": state, "color": colour, "index": place}
                             for place, (state, colour) in enumerate(STATES.items())}}]),
                                ("custom.cellOptions", {"type": "color-text"})),
                         *(column(name, *ratio) for name in ("Speedup", "Lower", "Upper", "Needed", "Expected")),
                         *(column(name, ("decimals", 4)) for name in ("Loss +", "Loss + at most", "Allowed")),
                         column("Memory", ("unit", "bytes"))]),
        bars("Memory, phase by phase", "The peak of its launches, and what the memory plan predicted before anything ran.",
             [each(index),
              each(f'max by (phase) (pawl_phase_memory_bytes{{{JOB}, kind="predicted"}})'),
              each(f'max by (phase) (pawl_phase_memory_bytes{{{JOB}, kind="measured"}})')],
             x="Phase", width=12, height=8, unit="bytes", least=0,
             transformations=joined("phase", {"phase": "Phase", "Value #B": "predicted", "Value #C": "measured", "Value #A": "#"},
                                    sort="#", hidden=("#",)),
             overrides=colours({"predicted": "text", "measured": BUSY})),
        lines("Speedup so far", "Over the baseline, as phases were accepted and reverted; and what the gate asks for.",
              [query(f"max by (bound) (pawl_job_speedup_ratio{{{JOB}}})", "{{bound}}")], width=12, unit="suffix:×", decimals=2,
              overrides=colours({"estimate": BUSY, "lower": "semi-dark-blue", "upper": "super-light-blue", "goal": GOOD})),
    ]


def training():
    rate = lambda name, by="": f"sum{by} (rate({name}{{{JOB}}}[$__rate_interval]))"
    steps = rate("pawl_train_step_seconds_sum")
    step = lambda share: (f"histogram_quantile({share}, sum by (le) (rate(pawl_train_step_seconds_bucket{{{JOB}}}"
                          "[$__rate_interval])))")
    return [
        lines("Training loss", "The newest, as rank 0 says it; every launch of every attempt.",
              [query(f"max by (attempt) (pawl_train_loss{{{JOB}}})", "{{attempt}}")]),
        lines("Validation", "The newest evaluation, each metric.",
              [query(f"max by (metric) (pawl_validation{{{JOB}}})", "{{metric}}")]),
        lines("Throughput", "Items per second of the whole gang: now, as the evidence promised, and of the baseline. Below the "
              "promise for long, the guard reverts a phase.",
              [query(f'max by (kind) (pawl_job_items_per_second{{{JOB}}})', "{{kind}}"),
               query(f"max(pawl_train_items_per_second{{{JOB}}})", "now")], unit="suffix: items/s",
              overrides=colours({"baseline": "text", "promised": GOOD, "measured": BUSY, "now": "super-light-blue"})),
        lines("Items", "Items trained, and asked for.",
              [query(f"max(pawl_job_items{{{JOB}}})", "trained"), query(f"max(pawl_job_items_goal{{{JOB}}})", "asked for")],
              overrides=colours({"asked for": GOOD, "trained": BUSY})),
        lines("Step time", "Seconds of an optimizer step of rank 0, data loading included.",
              [query(step(0.5), "p50"), query(step(0.9), "p90"), query(step(0.99), "p99")], unit="s"),
        lines("What steps wait for", "Share of step time that rank 0 waited for data, and for other ranks. More than a few percent "
              "of loader wait: more loader workers, or a nearer volume.",
              [query(f"{rate('pawl_loader_wait_seconds_total')} / {steps}", "data"),
               query(f"{rate('pawl_collective_seconds_total')} / {steps}", "collectives")], unit="percentunit", least=0),
        lines("Device memory", "Of rank 0 (host memory of tensors on the CPU): the plan, and the peak.",
              [query(f"max by (kind) (pawl_gpu_memory_bytes{{{JOB}}})", "{{kind}}")], unit="bytes", least=0,
              overrides=colours({"predicted": "text", "peak": BUSY})),
        lines("Device utilization", "Share of the device's time that training used, where the trainer can tell.",
              [query(f"max(pawl_train_utilization_ratio{{{JOB}}})", "utilization")], unit="percentunit", least=0, most=1),
        lines("Ranks", "Ranks that run, on all nodes of the gang.",
              [query(f"sum(pawl_agent_ranks{{{JOB}}})", "ranks")], decimals=0, least=0),
    ]


def safety():
    return [
        lines("Unsaved training", "Time since the newest complete checkpoint, and the time between checkpoints that the manifest "
              "asks for. Three times that is alerted on.",
              [query(f"time() - max(pawl_job_unsaved_since_timestamp_seconds{{{JOB}}})", "unsaved"),
               query(f"max(pawl_job_checkpoint_interval_seconds{{{JOB}}})", "interval")], unit="s", least=0,
              overrides=colours({"interval": GOOD, "unsaved": UNCLEAR})),
        lines("Checkpoints", "Time to write one, and those that could not be written, an hour.",
              [query(f"sum(rate(pawl_checkpoint_seconds_sum{{{JOB}}}[15m])) / sum(rate(pawl_checkpoint_seconds_count{{{JOB}}}[15m]) > 0)",
                     "mean time"),
               query(f"sum(rate(pawl_checkpoint_failures_total{{{JOB}}}[15m])) * 3600", "failures an hour")],
              unit="s", overrides=[column("failures an hour", ("unit", "short"), ("color", {"mode": "fixed", "fixedColor": BAD}),
                                          ("custom.axisPlacement", "right"))]),
        lines("Launches that ended", "Of the attempts that Prometheus saw: how each launch ended.",
              [query(f"sum by (kind, outcome) (pawl_launches_total{{{JOB}}})", "{{kind}} {{outcome}}")],
              stacked=True, overrides=colours(OUTCOMES)),
    ]


def cost():
    return [
        lines("Device hours by purpose", "What judging cost, and what training cost.",
              [query(f"sum by (purpose) (pawl_gpu_hours_total{{{JOB}}})", "{{purpose}}")], stacked=True, unit="h", decimals=2,
              width=8),
        lines("Money", "Spent so far, and saved against training with the baseline.",
              [query(f"sum(pawl_cost_total{{{JOB}}})", "spent"), query(f"sum(pawl_cost_saved{{{JOB}}})", "saved")], decimals=2,
              overrides=colours({"spent": UNCLEAR, "saved": GOOD}), no_value="no price"),
        lines("Goodput over time", "Share of device time in training that went into steps that count.",
              [query(f"max(pawl_goodput_ratio{{{JOB}}})", "goodput")], unit="percentunit", least=0, most=1),
    ]


def build():
    choose = lambda name, label, expr, description: variable(name, label, expr, multi=False, description=description)
    variables = [choose("namespace", "Namespace", "label_values(pawl_job_stage, namespace)", "Namespace of the job."),
                 choose("job", "Job", 'label_values(pawl_job_stage{namespace="$namespace"}, job)', "The TrainingJob.")]
    rows = [("Now", overview()), ("Phases", phases()), ("Training", training()), ("Checkpoints and launches", safety()),
            ("Cost", cost())]
    return dashboard("job", "Job", "One TrainingJob: every phase with its evidence, the training, what it costs.", variables, rows,
                     span="3h")
