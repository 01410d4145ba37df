"""All jobs."""

from panels import (BAD, GOOD, OUTCOMES, STAGES, STATES, UNCLEAR, bars, column, colours, dashboard, gauge_bars, joined, lines,
                    now, query, stat, table, thresholds, variable)

JOBS = 'namespace=~"$namespace"'
OPEN = {"title": "Open the job", "url": "/d/pawl-job?${__url_time_range}&var-datasource=${datasource}"
        "&var-namespace=${__data.fields.Namespace}&var-job=${__data.fields.Job}"}


def rows():
    now_row = [
        stat("Jobs by stage", "How many jobs are in each stage now, in all namespaces.",
             [now("sum by (stage) (pawl_trainingjobs)", "{{stage}}")], width=12, overrides=colours(STAGES), text="value_and_name"),
        stat("Gangs waiting", "Gangs whose pods are not all running yet. Long waits are alerted on.",
             [now(f"count(pawl_job_pending_since_timestamp_seconds{{{JOBS}}}) or vector(0)")], width=3,
             steps=thresholds((None, GOOD), (1, UNCLEAR))),
        stat("Median speedup", "Of the jobs that have a verdict: half of them run at least this much faster than their baseline.",
             [now(f'quantile(0.5, pawl_job_speedup_ratio{{{JOBS}, bound="estimate"}})')], width=3, unit="suffix:×", decimals=2),
        stat("Goodput", "Share of device time in training that went into steps that count; the mean of all jobs that train.",
             [now(f"avg(pawl_goodput_ratio{{{JOBS}}})")], width=3, unit="percentunit", decimals=1),
        stat("Devices busy", "Devices (processes on the CPU) that gangs hold now, for whatever purpose.",
             [now(f"sum(rate(pawl_gpu_hours_total{{{JOBS}}}[5m])) * 3600")], width=3, decimals=1),
    ]
    jobs = {"namespace": "Namespace", "job": "Job", "stage": "Stage", "Value #B": "Speedup", "Value #C": "Goal",
            "Value #D": "Progress", "Value #E": "ETA", "Value #F": "Goodput", "Value #G": "Cost", "Value #H": "Attempts"}
    key = 'label_join({}, "key", "/", "namespace", "job")'
    each = lambda expr: query(key.format(expr), table=True)
    bare = lambda expr: query(f"max by (key) ({key.format(expr)})", table=True)
    table_row = [
        table("Jobs", "Every job that the cluster has. Speedup is over the job's own baseline; a click opens the job.",
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
        lines("Jobs over time", "Jobs in each stage, in all namespaces.", [query("sum by (stage) (pawl_trainingjobs)", "{{stage}}")],
              stacked=True, overrides=colours(STAGES)),
        lines("Devices by purpose", "Devices that were busy judging phases, and devices that trained: what the measuring costs.",
              [query(f"sum by (purpose) (rate(pawl_gpu_hours_total{{{JOBS}}}[$__rate_interval])) * 3600", "{{purpose}}")],
              stacked=True, decimals=1),
        lines("Attempts that ended", "Gangs that ran to their end, were stopped, or were lost to the infrastructure, an hour.",
              [query("sum by (outcome) (rate(pawl_attempts_total[$__rate_interval])) * 3600", "{{outcome}}")],
              stacked=True, overrides=colours(OUTCOMES)),
    ]
    verdict_row = [
        gauge_bars("Phases by state", "Phases of all jobs, by what became of them.",
                   [now(f"count by (state) (pawl_phase_state{{{JOBS}}})", "{{state}}")], overrides=colours(STATES)),
        lines("Rollbacks", "Phases reverted, by reason, an hour. Many at once for one reason are alerted on.",
              [query("sum by (reason) (rate(pawl_rollbacks_total[$__rate_interval])) * 3600", "{{reason}}")], stacked=True),
        lines("Duration of attempts", "From the decision to the end: the 50th and 90th percentile by purpose, over an hour.",
              [query("histogram_quantile(0.5, sum by (le, purpose) (rate(pawl_attempt_duration_seconds_bucket[1h])))", "{{purpose}} p50"),
               query("histogram_quantile(0.9, sum by (le, purpose) (rate(pawl_attempt_duration_seconds_bucket[1h])))", "{{purpose}} p90")],
              unit="s"),
    ]
    money_row = [
        bars("Most device hours", "The ten jobs that used the most device hours so far.",
             [query(f'topk(10, sum by (namespace, job) (pawl_gpu_hours_total{{{JOBS}}}))', table=True)],
             x="Job", unit="h", decimals=2,
             transformations=[{"id": "organize", "options": {
                 "excludeByName": {"Time": True, "namespace": True}, "includeByName": {}, "indexByName": {},
                 "renameByName": {"job": "Job", "Value": "Device hours"}}}]),
        lines("Money spent", "Of all jobs with a price, so far; what deleted jobs spent is not in it.",
              [query(f"sum by (currency) (pawl_cost_total{{{JOBS}}})", "{{currency}}")], decimals=2),
        lines("Money saved", "What training with the baselines would have cost more than it did.",
              [query(f"sum by (currency) (pawl_cost_saved{{{JOBS}}})", "{{currency}}")], decimals=2),
    ]
    attention_row = [
        table("Jobs that need a person", "Jobs that failed, miss a gate, or wait for a person. Empty is good.",
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
    return [("Now", now_row), ("Jobs", table_row), ("Attention", attention_row), ("Over time", time_row),
            ("Verdicts", verdict_row), ("Cost", money_row)]


def build():
    namespace = variable("namespace", "Namespace", "label_values(pawl_job_stage, namespace)", multi=True,
                         description="Namespaces of the jobs.")
    return dashboard("fleet", "Fleet", "All TrainingJobs: where they are, what was kept and reverted, what they cost.",
                     [namespace], rows(), span="6h")
