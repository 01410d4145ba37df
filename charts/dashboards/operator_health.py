"""The operator's own health."""

from panels import BAD, GOOD, UNCLEAR, column, dashboard, lines, now, panel, query, stat, thresholds, variable

OPERATOR = 'instance=~"$instance"'
# Series that every program has: of the operator's processes alone.
OURS = f"and on (instance) pawl_leader{{{OPERATOR}}}"


def rows():
    rate = lambda name, by, more="": (f"sum by ({by}) (rate({name}{{{OPERATOR}{more}}}[$__rate_interval]))")
    quantile = lambda share, name, by="le", more="": (
        f"histogram_quantile({share}, sum by ({by}) (rate({name}_bucket{{{OPERATOR}{more}}}[$__rate_interval])))")
    health = [
        stat("Leaders", "Replicas that act: one, or one for each installation that is bound to namespaces of its own.",
             [now("sum(pawl_leader)")], width=3, steps=thresholds((None, BAD), (1, GOOD))),
        stat("Version", "Of each replica.", [now(f"count by (version) (pawl_build_info{{{OPERATOR}}})", "{{version}}")], width=4,
             text="name"),
        stat("Jobs", "TrainingJobs that the leader looks after.", [now("sum(pawl_trainingjobs)")], width=3),
        stat("Reconciles", "A second.", [now(f"sum(rate(pawl_reconcile_duration_seconds_count{{{OPERATOR}}}[5m]))")], width=3,
             decimals=2),
        stat("Reconciles that fail", "Share of all; each is tried again. More than one in twenty is alerted on.",
             [now(f"(sum(rate(pawl_reconcile_errors_total{{{OPERATOR}}}[5m])) or vector(0)) "
                  f"/ sum(rate(pawl_reconcile_duration_seconds_count{{{OPERATOR}}}[5m]))")],
             width=4, unit="percentunit", decimals=1, steps=thresholds((None, GOOD), (0.01, UNCLEAR), (0.05, BAD))),
        stat("Writes to the API server", "A second: create, apply, patch, update, delete. None while nothing changes.",
             [now(f'sum(rate(pawl_api_requests_total{{{OPERATOR}, verb!~"get|list|watch"}}[5m])) or vector(0)')], width=4, decimals=2),
        stat("Memory", "Resident memory of the largest replica.", [now(f"max(process_resident_memory_bytes {OURS})")], width=3,
             unit="bytes", decimals=1),
    ]
    heat = {"calculate": False, "cellGap": 1, "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "exponent": 0.5,
                                                       "reverse": False, "fill": "dark-blue", "scale": "exponential"},
            "yAxis": {"unit": "s", "axisPlacement": "left"}, "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
            "legend": {"show": False}, "exemplars": {"color": "rgba(255,0,255,0.7)"}, "filterValues": {"le": 1e-9},
            "rowsFrame": {"layout": "auto"}, "showValue": "never"}
    work = [
        lines("Duration of reconciles", "From the first byte read to the last written.",
              [query(quantile(share, "pawl_reconcile_duration_seconds"), f"p{share * 100:.0f}") for share in (0.5, 0.9, 0.99)],
              unit="s", width=8),
        panel("heatmap", "Reconciles", "How many took how long.",
              [query(f"sum by (le) (increase(pawl_reconcile_duration_seconds_bucket{{{OPERATOR}}}[$__rate_interval]))", "{{le}}")
               | {"format": "heatmap"}], unit="short", options=heat, width=8),
        lines("Reconciles that fail, by kind", "A second.",
              [query(f"{rate('pawl_reconcile_errors_total', 'kind')} or vector(0)", "{{kind}}")], width=8),
    ]
    api = [
        lines("Requests by verb", "A second, to the API server.", [query(rate("pawl_api_requests_total", "verb"), "{{verb}}")],
              stacked=True),
        lines("Writes by resource", "A second.",
              [query(rate("pawl_api_requests_total", "resource, verb", ', verb!~"get|list|watch"'), "{{verb}} {{resource}}")],
              stacked=True),
        lines("Answers that are no success", "A second, by code. 409 is a write of someone else in between; fenced is a write that "
              "this replica rightly did not make, for it leads no more.",
              [query(rate("pawl_api_requests_total", "code, verb", ', code!~"2.."') + " or vector(0)", "{{code}} {{verb}}")],
              stacked=True),
        lines("Time to an answer", "99th percentile by verb; watches excluded.",
              [query(quantile(0.99, "pawl_api_request_duration_seconds", "le, verb"), "{{verb}}")], unit="s"),
        lines("Questions to gangs", "Live progress asked of agents, a second, by how it went. Timeouts: a NetworkPolicy, or nodes "
              "that are gone.", [query(rate("pawl_live_requests_total", "outcome"), "{{outcome}}")], stacked=True,
              overrides=[column(name, ("color", {"mode": "fixed", "fixedColor": colour}))
                         for name, colour in (("ok", GOOD), ("timeout", BAD), ("unreachable", UNCLEAR))]),
        lines("Leader", "1 for the replica that acts.", [query(f"max by (instance) (pawl_leader{{{OPERATOR}}})", "{{instance}}")],
              stacked=True, decimals=0),
    ]
    process = [
        lines("Resident memory", "Of each replica.", [query(f"max by (instance) (process_resident_memory_bytes {OURS})", "{{instance}}")],
              unit="bytes", least=0),
        lines("Processor", "Cores, of each replica.",
              [query(f"max by (instance) (rate(process_cpu_seconds_total[$__rate_interval]) {OURS})", "{{instance}}")], least=0),
        lines("Open files", "Of each replica.", [query(f"max by (instance) (process_open_fds {OURS})", "{{instance}}")], least=0,
              decimals=0),
    ]
    return [("Health", health), ("Reconciles", work), ("API server and gangs", api), ("Process", process)]


def build():
    instance = variable("instance", "Replica", "label_values(pawl_leader, instance)", multi=True, description="Replicas of the operator.")
    return dashboard("operator", "Operator", "Health of the Pawl operator: leadership, reconciles, API traffic, memory.", [instance],
                     rows(), span="3h")
