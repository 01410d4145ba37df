"""Simulated error rates: the rows that tests/verdicts/run records."""

import json

from .table import table

INTRODUCTION = """# Simulated error rates

Each row drives the code that decides, with launches whose speeds and losses are drawn from a model.
[The statistics](../concepts/statistics.md) explains the rules. `tests/verdicts/run` measures the rows and prints them as it
goes; `cargo test -p pawl-decision` measures all of them with a fifth of the samples (a third of those of the cost), and fails if a bound does not hold or
a row differs from this page by more than chance. A bound of an error rate holds up to two standard errors.

Cells are the found share, its standard error, and the bound (≤ or ≥). A cell without a bound shows what the rule cannot do.

"""

GROUPS = {
    "speed": ("Speed of a phase", """The sequential test of pairs: 20 models of what moves the speed of launches, each
exactly at the threshold, where either verdict is false, without any effect, and with effects of 5 and 10 %; then loads at
the phase that favours one arm most, analyses with other looks, and effects in normal noise."""),
    "power": ("Power", """One phase through `decide`. The clean case is normal noise of 1 %; a bound of 89.8 % is nine tenths of
what is accepted there. Two states of the machine, 20 % apart and changing at random, hide effects of 5 and 10 % from seven
pairs: most of such phases end inconclusive. So do 16 % of those that are 5 % faster in noise with two degrees of freedom."""),
    "ladders": ("Ladders without effect", """Ten phases that change nothing, through `decide`, at `minSpeedup: "1.02"`. α is
that of a phase, and a ladder of ten has ten times the chance; but what was accepted is measured once more, by pairs that did
not select it, and must be faster than the baseline in them."""),
    "steady": ("Steady state", """One phase through `decide`, with launches measured step by step as the trainers do: the window
is replaced while it is not steady, up to four times."""),
    "equivalence": ("Equal losses", """Phases with `numerics: Equivalent`: the comparison by itself, with modelled and with
recorded noise, and jobs through `decide`. What neither passes nor is `LossDiverged` is judged by the gates on quality. A
curve that is 2 % worse hardly ever passes. It is called `LossDiverged` in 90 % only where the two curves differ little, or
with more seeds: with three, Student's t has two degrees of freedom, and 1 % of error costs 7 standard errors."""),
    "quality": ("Quality", """The gate on a phase with `numerics: Changed`. Regressions and noise are in units of what the gate
allows. The rows of a job go through `decide`; those before are the gate by itself."""),
    "guard": ("Guard", """Throughput windows of a training: the detector by itself, and jobs through `decide`, whose training is
promised the lower bound of what was measured. That bound is why a job takes longer: within the number of windows that the
detector needs by itself, a job finds about three of four slow-downs, and within twice as many nearly all."""),
    "cost": ("Cost of judging", """The examples' own manifests through `decide`, on three machines, with phases that are as fast
as their `expectedSpeedup` (5 % where they have none), every second of them only, 3 % each, or no faster. Losses are equal, so
that quality launches end as early as their looks allow. Launches take the time of their items, and time ends the windows of slow
steps; the speeds of the baselines are those measured on an H100 or H200, but for slm-8b-1gpu, whose windows are not ended by time
here. Starts and compilations are not counted. The oracle knows which phases help and measures nothing. Percentages without an error
are exact. A negative saving is a loss: these trainings, at the length of their examples, are mostly too short for their ladders;
that of ups-1gpu is long enough, and its manifest has the default.
The other columns are with `analysis.budgetPercent: Unlimited`. With the [default](../concepts/phases.md), 10, the mean loss is about
a tenth at most; single samples lose more where all accepted phases together need more launches than were kept free. `pawl validate`
prints before a job how many launches its ladder needs."""),
}


def cell(row):
    """`3.94 ± 0.10 %, ≤ 5 %`."""
    unit = " %" if row["unit"] == "percent" else ""
    text = f"{row['value']:.2f} ± {row['error']:.2f}{unit}"
    for kind, sign in [("atMost", "≤"), ("atLeast", "≥")]:
        if row["holds"] != "shown" and kind in row["holds"]:
            text += f", {sign} {row['holds'][kind]:g}{unit}"
    return text


def section(rows):
    """A table with a column for each thing that was counted."""
    counted = list(dict.fromkeys(row["counted"] for row in rows))
    cases = {}
    for row in rows:
        cases.setdefault((row["case"], row["samples"]), {})[row["counted"]] = cell(row)
    # Rows of a case with other samples, such as a mean, are another case.
    lines = [[case, *[cells.get(what, "") for what in counted], f"{samples:,}"] for (case, samples), cells in cases.items()]
    return table(["Case", *counted, "Samples"], lines)


def page(repository):
    recorded = json.loads((repository / "operator/decision/simulated.json").read_text())
    text = INTRODUCTION
    for group, (title, about) in GROUPS.items():
        text += f"## {title}\n\n{about}\n\n{section(recorded[group])}\n"
    return text
