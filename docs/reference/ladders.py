"""Ladders measured on GPUs: the verdicts that tests/device/ladder recorded, beside the gates of the manifests."""

import json
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from .table import table

INTRODUCTION = """# Ladders on GPUs

Each section is one run of [`tests/device/ladder`](../cases.md): an example with its own gates, analysis, phases and seeds; only its
data are fewer and its training is shorter. `-whole` are those with all of their data, training and budget; `-again` those of which a
phase was judged again. With `--nothing`, a last phase changes nothing that matters, and must not be accepted.
The whole records, with each launch, are in `tests/device/ladders`; `--continue` resumes an interrupted one.

"""

STATES = {"Accepted": "accepted", "RolledBack": "rolled back", "Inconclusive": "inconclusive", "Measuring": "being measured",
          "Pending": "not begun", "Skipped": "skipped", "Unsupported": "unsupported"}


def page(repository):
    paths = sorted((repository / "tests/device/ladders").glob("*.json"))
    return INTRODUCTION + "\n".join(section(path.stem, **json.loads(path.read_text())) for path in paths)


def section(name, machines, job):
    spec, status = job["job"]["spec"], job["status"]
    if "search" in status:
        return f"## {name}\n\n{about(machines, spec, status)}\n\n{stages(spec, status)}"
    phases = [(f"`{phase['name']}`", phase) for phase in status["phases"]]
    if "bundle" in status:
        bundle = status["bundle"]
        is_current = not bundle.get("outdated") and bundle.get("revision", "") in ("", status.get("revision"))
        phases.append(("**all together**" if is_current else "**all together**, with earlier settings", bundle))
    rows = [[title, verdict(phase), speed(phase), quality(phase), memory(phase)] for title, phase in phases]
    text = f"## {name}\n\n{about(machines, spec, status)}\n\n"
    text += table(["Phase", "Verdict", "Speedup", "Quality", "Memory"], rows)
    if gates := judged(spec, status):
        text += f"\nGates:\n\n{table(['Gate', 'Asked', 'Measured'], gates)}"
    return text


def stages(spec, status):
    """The stages of a search: what was tried, and what its best trial was compared with."""
    rows = []
    for wanted in spec["search"]:
        stage = next((stage for stage in status["search"] if stage["name"] == wanted["name"]), {})
        states = [trial.partition(";")[0] for trial in stage.get("trials", [])]
        tried = f"{len(states)} of {wanted['trials']}, {states.count('S')} ended early"
        best = stage.get("best", {})
        values = ", ".join(f"{name} {value}" for name, value in best.get("parameters", {}).items())
        rows.append([f"`{wanted['name']}`", tried, f"{best['trial']}: {best['values'][0]} ({values})" if best else "",
                     stage.get("message", "not ended")])
    goals = ", ".join(f"{objective['goal'].lower()} `{objective['metric']}`" for objective in spec["search"][0]["objectives"])
    return f"Objective: {goals}.\n\n" + table(["Stage", "Trials", "Best trial", "Result"], rows)


def about(machines, spec, status):
    used = spec["trainer"].get("replicas", 1) * spec["trainer"]["gpusPerReplica"]
    had = ", then ".join(f"{len(machine['gpus'])} {' and '.join(dict.fromkeys(machine['gpus']))}" for machine in machines)
    spent = float(status["cost"]["gpuHours"])
    state = "" if status["stage"] == "Complete" else " **It was interrupted and has not ended.**"
    return f"{used} of {had}, {status['startTime'][:10]}, {spent:.2f} GPU hours.{state}"


def verdict(phase):
    state = STATES[phase["state"]]
    return f"{state}: `{phase['reason']}`" if "reason" in phase and phase["state"] != "Measuring" else state


def speed(phase):
    speedup = phase.get("speedup", {})
    if "lower" not in speedup or phase["state"] == "Measuring":
        return ""
    lower, upper = outward(speedup["lower"], ROUND_FLOOR), outward(speedup["upper"], ROUND_CEILING)
    return f"{float(speedup['estimate']):.3f} [{lower}, {upper}], {speedup['pairs']} pairs"


def outward(bound, rounding):
    """A bound with three decimals: an interval that is shown contains that which was measured."""
    return Decimal(bound).quantize(Decimal("0.001"), rounding)


def quality(phase):
    """The differences to the baseline, positive when worse."""
    found = phase.get("quality", {})
    parts = []
    if "lossDelta" in found:
        upper = f" (at most {float(found['lossDeltaUpper']):+.5f})" if "lossDeltaUpper" in found else ""
        parts.append(f"loss {float(found['lossDelta']):+.5f}{upper}")
    parts += [f"{name} {float(value):+.4f}" for name, value in found.get("metrics", {}).items()]
    return ", ".join(parts)


def memory(phase):
    return f"{phase['peakMemoryBytes'] / (1 << 30):.1f} GiB" if "peakMemoryBytes" in phase else ""


def judged(spec, status):
    """What the gates ask, and what was measured of all accepted phases together."""
    bundle, gates, rows = status.get("bundle", {}), spec.get("gates", {}), []
    measured = bundle.get("quality", {})
    if goal := gates.get("overallSpeedup"):
        rows.append(["`overallSpeedup`", f"≥ {goal}", speed(bundle) if bundle else ""])
    if allowed := gates.get("validationLossDelta"):
        rows.append(["`validationLossDelta`", f"≤ {allowed}", quality({"quality": {name: measured[name] for name in
                     ("lossDelta", "lossDeltaUpper") if name in measured}})])
    for gate in gates.get("validationMetrics", []):
        asked = ", ".join(f"{name} {gate[name]}" for name in ("min", "max", "maxRegression", "maxRelativeRegression",
                          "maxRelativeDifference") if name in gate)
        value = measured.get("metrics", {}).get(gate["name"])
        rows.append([f"`{gate['name']}`", asked, f"{float(value):+.4f} to the baseline" if value is not None else ""])
    if limit := gates.get("gpuMemory"):
        rows.append(["`gpuMemory`", f"≤ {limit}", memory(bundle)])
    if least := gates.get("minGpuUtilization"):
        value = bundle.get("utilization")
        rows.append(["`minGpuUtilization`", f"≥ {least}", f"{float(value):.3f}" if value is not None else ""])
    return rows
