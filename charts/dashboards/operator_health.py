"""The Operator dashboard: health of the operator itself."""

from panels import BAD, GOOD, UNCLEAR, column, dashboard, lines, now, panel, query, stat, thresholds, variable

OPERATOR = 'instance=~"$instance"'
# Restricts process_* metrics, which other targets export too, to the operator's processes.
OURS = f"and on (instance) pawl_leader{{{OPERATOR}}}"


def rows():
    rate = lambda name, by, more="": (f"sum by ({by}) (rate({name}{{{OPERATOR}{more}}}[$__rate_interval]))")
    quantile = lambda share, name, by="le", more="": (
        f"histogram_quantile({share}, sum by ({by}) (rate({name}_bucket{{{OPERATOR}{more}}}[$__rate_interval])))")
    health = [
        stat("Leaders", "Number of replicas that hold a lease: one per installation of the operator.",
             [now("sum(pawl_leader)")], width=3, steps=thresholds((None, BAD), (1, GOOD))),
        stat("Version", "Version of each replica.", [now(f"count by (version) (pawl_build_info{{{OPERATOR}}})", "{{version}}")], width=4,
             text="name"),
        stat("Jobs", "TrainingJobs managed by the leader.", [now("sum(pawl_trainingjobs)")], width=3),
        stat("Reconciles", "Reconciles per second.", [now(f"sum(rate(pawl_reconcile_duration_seconds_count{{{OPERATOR}}}[5m]))")], width=3,
             decimals=2),
        stat("Reconcile error ratio", "Fraction of reconciles that fail; each is retried. PawlReconcileErrors fires above 5 %.",
             [now(f"(sum(rate(pawl_reconcile_errors_total{{{OPERATOR}}}[5m])) or on() vector(0)) "
                  f"/ sum(rate(pawl_reconcile_duration_seconds_count{{{OPERATOR}}}[5m]))")],
             width=4, unit="percentunit", decimals=1, steps=thresholds((None, GOOD), (0.01, UNCLEAR), (0.05, BAD))),
        stat("API server writes", "Write requests per second: create, apply, patch, update, delete. Zero while nothing changes.",
             [now(f'sum(rate(pawl_api_requests_total{{{OPERATOR}, verb!~"get|list|watch"}}[5m])) or on() vector(0)')], width=4, decimals=2),
        stat("Memory", "Resident memory of the largest replica.", [now(f"max(process_resident_memory_bytes {OURS})")], width=3,
             unit="bytes", decimals=1),
    ]
    heat = {"calculate": False, "cellGap": 1, "color": {"mode": "scheme", "scheme": "Blues", "steps": 64, "exponent": 0.5,
                                                       "reverse": False, "fill": "dark-blue", "scale": "exponential"},
            "yAxis": {"unit": "s", "axisPlacement": "left"}, "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
            "legend": {"show": False}, "exemplars": {"color": "rgba(255,0,255,0.7)"}, "filterValues": {"le": 1e-9},
            "rowsFrame": {"layout": "auto"}, "showValue": "never"}
    work = [
        lines("Reconcile duration", "Duration of a reconcile, from the first read to the last write.",
              [query(quantile(share, "pawl_reconcile_duration_seconds"), f"p{share * 100:.0f}") for share in (0.5, 0.9, 0.99)],
              unit="s", width=8),
        panel("heatmap", "Reconcile duration distribution", "Number of reconciles by duration.",
              [query(f"sum by (le) (increase(pawl_reconcile_duration_seconds_bucket{{{OPERATOR}}}[$__rate_interval]))", "{{le}}")
               | {"format": "heatmap"}], unit="short", options=heat, width=8),
        lines("Reconcile errors by kind", "Reconcile errors per second.",
              [query(f"{rate('pawl_reconcile_errors_total', 'kind')} or on() vector(0)", "{{kind}}")], width=8),
    ]
    api = [
        lines("API server requests by verb", "Requests per second to the API server.",
              [query(rate("pawl_api_requests_total", "verb"), "{{verb}}")],
              stacked=True),
        lines("API server writes by resource", "Write requests per second.",
              [query(rate("pawl_api_requests_total", "resource, verb", ', verb!~"get|list|watch"'), "{{verb}} {{resource}}")],
              stacked=True),
        lines("API server errors by code", "Failed requests per second. 409 is a conflict with a concurrent write; fenced is a write that this "
              "replica skipped because it no longer holds the lease.",
              [query(rate("pawl_api_requests_total", "code, verb", ', code!~"2.."') + " or on() vector(0)", "{{code}} {{verb}}")],
              stacked=True),
        lines("API server latency", "99th percentile by verb, excluding watches.",
              [query(quantile(0.99, "pawl_api_request_duration_seconds", "le, verb"), "{{verb}}")], unit="s"),
        lines("Gang polls by outcome", "Progress requests to agents per second, by outcome. Timeouts indicate a NetworkPolicy or lost "
              "nodes.", [query(rate("pawl_live_requests_total", "outcome"), "{{outcome}}")], stacked=True,
              overrides=[column(name, ("color", {"mode": "fixed", "fixedColor": colour}))
                         for name, colour in (("ok", GOOD), ("timeout", BAD), ("unreachable", UNCLEAR))]),
        lines("Leader", "1 for the replica that holds the lease.",
              [query(f"max by (instance) (pawl_leader{{{OPERATOR}}})", "{{instance}}")], stacked=True, decimals=0),
    ]
    process = [
        lines("Resident memory", "Resident memory of each replica.",
              [query(f"max by (instance) (process_resident_memory_bytes {OURS})", "{{instance}}")], unit="bytes", least=0),
        lines("CPU usage", "CPU cores used by each replica.",
              [query(f"max by (instance) (rate(process_cpu_seconds_total[$__rate_interval]) {OURS})", "{{instance}}")], least=0),
        lines("Open file descriptors", "Open file descriptors of each replica.",
              [query(f"max by (instance) (process_open_fds {OURS})", "{{instance}}")], least=0, decimals=0),
    ]
    return [("Health", health), ("Reconciles", work), ("API server and gangs", api), ("Process", process)]


def build():
    instance = variable("instance", "Replica", "label_values(pawl_leader, instance)", multi=True, description="Replicas of the operator.")
    return dashboard("operator", "Operator", "Health of the Pawl operator: leadership, reconciles, API traffic, memory.", [instance],
                     rows(), span="3h")
