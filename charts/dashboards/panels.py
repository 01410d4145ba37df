"""Builders of Grafana dashboard JSON (the schema of Grafana 11 and 12)."""

SCHEMA_VERSION = 39
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

# Colours by meaning, the same in all dashboards.
GOOD, BAD, UNCLEAR, IDLE, BUSY = "green", "red", "orange", "text", "blue"
STAGES = {"Pending": IDLE, "Preflight": BUSY, "Optimizing": BUSY, "Searching": BUSY, "Training": "purple",
          "Complete": GOOD, "Failed": BAD, "Suspended": UNCLEAR}
STATES = {"Pending": IDLE, "Preflight": BUSY, "Measuring": BUSY, "Retrying": UNCLEAR, "RollingBack": UNCLEAR,
          "Accepted": GOOD, "RolledBack": BAD, "Unsupported": IDLE, "Skipped": IDLE, "Inconclusive": UNCLEAR, "Error": BAD}
OUTCOMES = {"Completed": GOOD, "Stopped": IDLE, "Lost": BAD, "Done": GOOD}


def query(expr, legend="", table=False):
    """A range query, or an instant query in table format."""
    target = {"datasource": SOURCE, "editorMode": "code", "expr": " ".join(expr.split()), "legendFormat": legend or "__auto"}
    return target | ({"format": "table", "instant": True, "range": False} if table else {"range": True})


def now(expr, legend=""):
    """An instant query."""
    return query(expr, legend) | {"instant": True, "range": False}


def colours(by_name):
    """Field overrides with a fixed colour for each series: {name: colour}."""
    return [{"matcher": {"id": "byName", "options": name},
             "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}]}
            for name, colour in by_name.items()]


def column(name, *properties):
    """A field override of a table column: (property, value)..."""
    return {"matcher": {"id": "byName", "options": name},
            "properties": [{"id": id, "value": value} for id, value in properties]}


def thresholds(*steps):
    """Absolute thresholds: (None, colour), (value, colour)..."""
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps]}


def panel(kind, title, description, queries, *, width=8, height=8, unit="short", options=None, custom=None, overrides=(),
          transformations=(), decimals=None, least=None, most=None, steps=None, mappings=(), links=(), no_value=None):
    """A panel. `description` explains what the panel shows and how to interpret it."""
    defaults = {"unit": unit, "custom": custom or {}, "mappings": list(mappings),
                "color": {"mode": "thresholds" if steps else "palette-classic"},
                "thresholds": steps or thresholds((None, GOOD)), "links": list(links)}
    for name, value in (("decimals", decimals), ("min", least), ("max", most), ("noValue", no_value)):
        if value is not None:
            defaults[name] = value
    targets = [target | {"refId": chr(ord("A") + place)} for place, target in enumerate(queries)]
    return {"type": kind, "title": title, "description": description, "datasource": SOURCE, "targets": targets,
            "fieldConfig": {"defaults": defaults, "overrides": list(overrides)}, "options": options or {},
            "transformations": list(transformations), "gridPos": {"w": width, "h": height}}


def stat(title, description, queries, **rest):
    """A stat panel: a single value."""
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "orientation": "auto",
               "textMode": rest.pop("text", "auto"), "colorMode": "value", "graphMode": rest.pop("graph", "none"),
               "justifyMode": "auto", "wideLayout": True}
    return panel("stat", title, description, queries, options=options, **({"width": 4, "height": 4} | rest))


def lines(title, description, queries, *, stacked=False, bars=False, legend=("lastNotNull",), **rest):
    """A time series panel."""
    custom = {"drawStyle": "bars" if bars else "line", "lineWidth": 1, "fillOpacity": 60 if bars else 25 if stacked else 8,
              "showPoints": "never", "spanNulls": False, "lineInterpolation": "linear",
              "stacking": {"mode": "normal" if stacked or bars else "none", "group": "A"}} | rest.pop("custom", {})
    options = {"legend": {"displayMode": "table" if legend else "list", "placement": "bottom", "showLegend": True,
                          "calcs": list(legend)},
               "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, description, queries, options=options, custom=custom, **rest)


def bars(title, description, queries, *, x, **rest):
    """A bar chart panel: one bar or group of bars for each row of a table."""
    options = {"orientation": "horizontal", "xField": x, "showValue": "auto", "stacking": "none", "groupWidth": 0.75,
               "barWidth": 0.9, "barRadius": 0.05, "fullHighlight": False, "xTickLabelRotation": 0, "xTickLabelSpacing": 0,
               "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
               "tooltip": {"mode": "multi", "sort": "none"}}
    custom = {"lineWidth": 1, "fillOpacity": 80, "axisPlacement": "auto"}
    return panel("barchart", title, description, queries, options=options, custom=custom, **rest)


def gauge_bars(title, description, queries, **rest):
    """A bar gauge panel: one bar with the latest value for each series."""
    options = {"displayMode": "basic", "orientation": "horizontal", "valueMode": "color", "showUnfilled": True,
               "minVizWidth": 8, "minVizHeight": 16, "namePlacement": "auto", "sizing": "auto",
               "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
               "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []}}
    return panel("bargauge", title, description, queries, options=options, **rest)


def table(title, description, queries, *, sort=None, **rest):
    """A table panel."""
    options = {"showHeader": True, "cellHeight": "sm",
               "sortBy": [{"displayName": sort, "desc": False}] if sort else []}
    custom = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": False}
    return panel("table", title, description, queries, options=options, custom=custom, **rest)


def timeline(title, description, queries, *, mappings, **rest):
    """A state timeline panel: one row for each series."""
    options = {"mergeValues": True, "showValue": "auto", "alignValue": "left", "rowHeight": 0.85,
               "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
               "tooltip": {"mode": "single", "sort": "none"}}
    custom = {"lineWidth": 0, "fillOpacity": 75}
    return panel("state-timeline", title, description, queries, options=options, custom=custom, mappings=mappings, **rest)


def names(values):
    """Value mappings from numbers to coloured text: {number: (text, colour)}."""
    shown = {str(number): {"text": word, "color": colour, "index": place}
             for place, (number, (word, colour)) in enumerate(values.items())}
    return [{"type": "value", "options": shown}]


def joined(key, columns, *, sort=None, hidden=()):
    """Joins table queries by a label, and keeps the given columns in this order: {field name: displayed name}."""
    steps = [{"id": "joinByField", "options": {"byField": key, "mode": "outer"}},
             {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
             {"id": "organize", "options": {"excludeByName": {}, "includeByName": {}, "renameByName": columns,
                                            "indexByName": {name: place for place, name in enumerate(columns)}}}]
    if sort:
        steps.append({"id": "sortBy", "options": {"fields": {}, "sort": [{"field": sort, "desc": False}]}})
    if hidden:
        steps.append({"id": "organize", "options": {"excludeByName": {name: True for name in hidden}, "includeByName": {},
                                                    "indexByName": {}, "renameByName": {}}})
    return steps


def variable(name, label, expr, *, multi, description):
    """A dashboard variable with the values of a label."""
    several = {"allValue": ".*", "current": {"text": "All", "value": "$__all"}} if multi else {}
    return {"type": "query", "name": name, "label": label, "description": description, "datasource": SOURCE,
            "query": {"query": expr, "refId": "StandardVariableQuery"}, "refresh": 2, "sort": 1, "multi": multi,
            "includeAll": multi, "hide": 0, "regex": "", "options": [], "skipUrlSync": False} | several


def source_variable():
    """The dashboard variable of the Prometheus data source."""
    return {"type": "datasource", "name": "datasource", "label": "Data source", "description": "The Prometheus data source.",
            "query": "prometheus", "refresh": 1, "regex": "", "multi": False, "includeAll": False, "hide": 0, "options": [],
            "skipUrlSync": False}


def placed(rows):
    """Lays out panels from left to right in 24 columns, row by row: [(title, [panel, ...]), ...]."""
    panels, top = [], 0
    for title, content in rows:
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
        top += 1
        left = height = 0
        for each in content:
            place = each["gridPos"]
            if left + place["w"] > 24:
                top, left, height = top + height, 0, 0
            panels.append(each | {"gridPos": {"x": left, "y": top, "w": place["w"], "h": place["h"]}})
            left, height = left + place["w"], max(height, place["h"])
        top += height
    return [each | {"id": number} for number, each in enumerate(panels, 1)]


def dashboard(name, title, description, variables, rows, *, span):
    """A dashboard. Its uid is derived from its name, so that links to it are stable; the data source is a variable."""
    link = {"type": "dashboards", "title": "Pawl", "tags": ["pawl"], "asDropdown": True, "includeVars": True,
            "keepTime": True, "icon": "external link", "targetBlank": False, "tooltip": "", "url": ""}
    annotations = {"list": [{"builtIn": 1, "datasource": {"type": "grafana", "uid": "-- Grafana --"}, "enable": True,
                             "hide": True, "iconColor": "rgba(0, 211, 255, 1)", "name": "Annotations & Alerts",
                             "type": "dashboard"}]}
    return {"uid": f"pawl-{name}", "title": f"Pawl / {title}", "description": description, "tags": ["pawl"],
            "schemaVersion": SCHEMA_VERSION, "version": 1, "editable": True, "graphTooltip": 1, "fiscalYearStartMonth": 0,
            "liveNow": False, "preload": False, "timezone": "browser", "weekStart": "", "refresh": "30s",
            "time": {"from": f"now-{span}", "to": "now"}, "timepicker": {}, "annotations": annotations, "links": [link],
            "templating": {"list": [source_variable(), *variables]}, "panels": placed(rows)}
