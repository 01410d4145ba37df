"""The Fleet dashboard: all TrainingJobs."""

from panels import (BAD, GOOD, OUTCOMES, STAGES, STATES, UNCLEAR, bars, column, colours, dashboard, gauge_bars, joined, lines,
                    now, query, stat, table, thresholds, variable)

JOBS = 'namespace=~"$namespace"'
OPEN = {"title": "Open the job", "url": "/d/pawl-job?${__url_time_range}&var-datasource=${datasource}"
        "&var-namespace=${__data.fields.Namespace}&var-job=${__data.fields.Job}"}


def rows():
    now_row = [
        stat("Jobs by stage", "Current number of jobs in each stage, in all namespaces.",
             [now("sum by (stage) (pawl_trainingjobs)", "{{stage}}")], width=12, overrides=colours(STAGES), text="value_and_name"),
        stat("Pending gangs", "Gangs whose pods are not all running yet. PawlGangPending fires on long pending times.",
             [now(f"count(pawl_job_pending_since_timestamp_seconds{{{JOBS}}}) or on() vector(0)")], width=3,
             steps=thresholds((None, GOOD), (1, UNCLEAR))),
        stat("Median speedup", "Median speedup over the job's own baseline, for all jobs with a verdict.",
             [now(f'quantile(0.5, pawl_job_speedup_ratio{{{JOBS}, bound="estimate"}})')], width=3, unit="suffix:×", decimals=2),
        stat("Goodput", "Fraction of training GPU time spent on productive steps, excluding restarts and repeated steps. Mean "
             "over all training jobs.",
             [now(f"avg(pawl_goodput_ratio{{{JOBS}}})")], width=3, unit="percentunit", decimals=1),
        stat("GPUs in use", "GPUs (or CPU processes) that gangs currently use, for measurements and training.",
             [now(f"sum(rate(pawl_gpu_hours_total{{{JOBS}}}[5m])) * 3600")], width=3, decimals=1),
    ]
    jobs = {"namespace": "Namespace", "job": "Job", "stage": "Stage", "Value #B": "Speedup", "Value #C": "Goal",
            "Value #D": "Progress", "Value #E": "ETA", "Value #F": "Goodput", "Value #G": "Cost", "Value #H": "Attempts"}
    key = 'label_join({}, "key", "/", "namespace", "job")'
    each = lambda expr: query(key.format(expr), table=True)
    bare = lambda expr: query(f"max by (key) ({key.format(expr)})", table=True)
    table_row = [
        table("Jobs", "All TrainingJobs in the cluster. Speedup is relative to the job's own baseline. Click a job to open its dashboard.",
              [each(f"max by (namespace, job, stage) (pawl_job_stage{{{JOBS}}})"),
               bare(f'pawl_job_speedup_ratio{{{JOBS}, bound="estimate"}}'),
               bare(f'pawl_job_speedup_ratio{{{JOBS}, bound="goal"}}'),
               bare(f"pawl_job_items{{{JOBS}}} / pawl_job_items_goal{{{JOBS}}}"),
               bare(f"pawl_job_eta_timestamp_seconds{{{JOBS}}} * 1000"),
               bare(f"pawl_goodput_ratio{{{JOBS}}}"),
               bare(f"sum without (currency) (pawl_cost_total{{{JOBS}}})"),
               bare(f"pawl_job_attempts_total{{{JOBS}}}")],
              width=24, height=10, transformations=joined("key", jobs), sort="Namespace",
              overrides=[column("Job", ("links", [OPEN])),
                         column("Speedup", ("unit", "suffix:×"), ("decimals", 2)),
                         column("Goal", ("unit", "suffix:×"), ("decimals", 2)),
                         column("Progress", ("unit", "percentunit"), ("min", 0), ("max", 1),
                                ("custom.cellOptions", {"type": "gauge", "mode": "basic"})),
                         column("ETA", ("unit", "dateTimeFromNow")),
                         column("Goodput", ("unit", "percentunit"), ("decimals", 1)),
                         column("Cost", ("decimals", 2))]),
    ]
    time_row = [
        lines("Jobs by stage over time", "Number of jobs in each stage, in all namespaces.",
              [query("sum by (stage) (pawl_trainingjobs)", "{{stage}}")],
              stacked=True, overrides=colours(STAGES)),
        lines("GPUs by purpose", "GPUs used for measuring phases and for training: shows the overhead of measurement.",
              [query(f"sum by (purpose) (rate(pawl_gpu_hours_total{{{JOBS}}}[$__rate_interval])) * 3600", "{{purpose}}")],
              stacked=True, decimals=1),
        lines("Finished attempts by outcome", "Attempts per hour that completed, were stopped, or were lost to infrastructure failures.",
              [query("sum by (outcome) (rate(pawl_attempts_total[$__rate_interval])) * 3600", "{{outcome}}")],
              stacked=True, overrides=colours(OUTCOMES)),
    ]
    verdict_row = [
        gauge_bars("Phases by state", "Number of phases in each state, over all jobs.",
                   [now(f"count by (state) (pawl_phase_state{{{JOBS}}})", "{{state}}")], overrides=colours(STATES)),
        lines("Rollbacks", "Rolled-back phases per hour, by reason. PawlRollbackStorm fires on a high rate for one reason.",
              [query("sum by (reason) (rate(pawl_rollbacks_total[$__rate_interval])) * 3600", "{{reason}}")], stacked=True),
        lines("Attempt duration", "Time from the start decision to the end of an attempt: median and 90th percentile by purpose, "
              "over one hour.",
              [query("histogram_quantile(0.5, sum by (le, purpose) (rate(pawl_attempt_duration_seconds_bucket[1h])))", "{{purpose}} p50"),
               query("histogram_quantile(0.9, sum by (le, purpose) (rate(pawl_attempt_duration_seconds_bucket[1h])))", "{{purpose}} p90")],
              unit="s"),
    ]
    money_row = [
        bars("Top 10 jobs by GPU hours", "The ten jobs with the most GPU hours so far.",
             [query(f'topk(10, sum by (namespace, job) (pawl_gpu_hours_total{{{JOBS}}}))', table=True)],
             x="Job", unit="h", decimals=2,
             transformations=[{"id": "organize", "options": {
                 "excludeByName": {"Time": True, "namespace": True}, "includeByName": {}, "indexByName": {},
                 "renameByName": {"job": "Job", "Value": "GPU hours"}}}]),
        lines("Cost", "Total cost of all existing jobs with a configured price. Deleted jobs are not included.",
              [query(f"sum by (currency) (pawl_cost_total{{{JOBS}}})", "{{currency}}")], decimals=2),
        lines("Cost savings", "Estimated cost of training with the baseline settings, minus the actual cost.",
              [query(f"sum by (currency) (pawl_cost_saved{{{JOBS}}})", "{{currency}}")], decimals=2),
    ]
    attention_row = [
        table("Jobs that need attention", "Jobs that failed, do not meet a gate, or are suspended. Empty if there are none.",
              [query(f'max by (namespace, job, condition, reason) (pawl_job_condition{{{JOBS}, condition=~"Failed|Degraded|Suspended"}})',
                     table=True)],
              width=24, height=7, no_value="none", sort="Namespace",
              transformations=[{"id": "organize", "options": {
                  "excludeByName": {"Time": True, "Value": True}, "includeByName": {},
                  "indexByName": {"namespace": 0, "job": 1, "condition": 2, "reason": 3},
                  "renameByName": {"namespace": "Namespace", "job": "Job", "condition": "Condition", "reason": "Reason"}}}],
              overrides=[column("Job", ("links", [OPEN])),
                         column("Condition", ("mappings", [{"type": "value", "options": {
                             "Failed": {"color": BAD, "index": 0, "text": "Failed"},
                             "Degraded": {"color": UNCLEAR, "index": 1, "text": "Degraded"}}}]),
                                ("custom.cellOptions", {"type": "color-text"}))]),
    ]
    return [("Current state", now_row), ("Jobs", table_row), ("Attention", attention_row), ("Over time", time_row),
            ("Verdicts", verdict_row), ("Cost", money_row)]


def build():
    namespace = variable("namespace", "Namespace", "label_values(pawl_job_stage, namespace)", multi=True,
                         description="Namespaces of the jobs.")
    return dashboard("fleet", "Fleet", "All TrainingJobs: stage, accepted and rolled-back phases, cost.",
                     [namespace], rows(), span="6h")
