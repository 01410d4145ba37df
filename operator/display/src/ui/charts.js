// Draws charts by uPlot in place of the pictures of loss curves. Without this script, the pictures remain.
const HEIGHT = 260;
// Variables of the style sheet that are not called as the class of a line.
const VARIABLES = { valid: "good" };
// The style sheet has these dashes too, those of the report and of `ui.css`: change both.
const DASHED = new Set(["b", "c6", "c7", "c8", "c9", "c10", "c11"]);

// What the buttons of a view show: how many times as many items, shifted by a share of what is shown.
const VIEWS = [
  ["Zoom in", 0.5, 0], ["Zoom out", 2, 0], ["Earlier", 1, -0.5], ["Later", 1, 0.5], ["Show all", Infinity, 0],
];

const root = document.querySelector("[data-curves]");
// The charts by the identifiers of the pictures that they replace: they outlive replacements of the live part.
const charts = new Map();

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${VARIABLES[name] ?? name}`).trim();
}

const compact = (digits) => new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: digits });
const SHORT = compact(3);

function short(value, digits = 3, format = SHORT) {
  return value === 0 || Math.abs(value) >= 0.001 ? format.format(value) : value.toExponential(digits - 1);
}

// Labels of an axis whose values are `increment` apart, which may be much less than they are: neighbours differ.
function labels(values, increment) {
  const order = (value) => Math.floor(Math.log10(value));
  const largest = Math.max(...values.map((value) => Math.abs(value ?? 0)));
  // An increment has two digits, such as 2.5.
  const needed = increment > 0 && largest > 0 ? order(largest) - order(increment) + 2 : 3;
  const digits = Math.min(Math.max(needed, 3), 15);
  const format = compact(digits);
  return values.map((value) => (value === null ? "" : short(value, digits, format)));
}

class Chart {
  constructor(title) {
    this.title = title;
    this.logarithmic = false;
    this.zoom = null; // { min, max } in items; null: all of them
    this.hidden = new Set(); // indices of lines
    this.element = document.createElement("div");
    this.element.className = "chart";
    this.element.role = "group";
    this.element.ariaLabel = title;
    this.host = document.createElement("div");
    this.range = document.createElement("p");
    this.range.className = "muted range";
    const tools = document.createElement("div");
    tools.className = "tools";
    this.scale = this.button("Logarithmic", () => {
      this.logarithmic = !this.logarithmic;
      this.draw();
    });
    tools.append(this.scale);
    for (const [name, factor, shift] of VIEWS) tools.append(this.button(name, () => this.move(factor, shift)));
    this.element.append(tools, this.host, this.range);
    new ResizeObserver(() => this.fit()).observe(this.host);
  }

  button(name, act) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    button.ariaLabel = `${name}: ${this.title}`;
    button.addEventListener("click", act);
    return button;
  }

  // Shows a description as the server gives it.
  update(description) {
    const text = JSON.stringify(description);
    if (text === this.text) return;
    this.text = text;
    this.unit = description.unit;
    this.series = description.series.filter((line) => line.items.length > 0);
    const items = this.series.flatMap((line) => line.items);
    this.first = items.reduce((a, b) => Math.min(a, b), Infinity);
    this.last = items.reduce((a, b) => Math.max(a, b), -Infinity);
    const positive = this.series.every((line) => line.values.every((value) => value === null || value > 0));
    this.logarithmic &&= positive;
    this.scale.disabled = !positive;
    if (this.plot && this.drawn === this.lines()) this.refill();
    else this.draw();
  }

  // All but the points that a plot is made of.
  lines() {
    const lines = this.series.map(({ name, class: kind, dots, items }) => [name, kind, dots, items.length === 1]);
    return JSON.stringify([this.unit, this.logarithmic, lines]);
  }

  data() {
    return uPlot.join(this.series.map((line) => [line.items, line.values]));
  }

  // Gives the same lines other points: the cursor and the selection remain.
  refill() {
    const zoom = this.zoom;
    this.plot.setData(this.data(), !zoom);
    if (zoom) this.plot.setScale("x", zoom);
  }

  draw() {
    if (this.series.length === 0) return;
    this.drawn = this.lines();
    const zoom = this.zoom;
    const focused = [...this.host.querySelectorAll("th")].indexOf(document.activeElement);
    this.plot?.destroy();
    this.scale.ariaPressed = String(this.logarithmic);
    this.plot = new uPlot(this.options(), this.data(), this.host);
    if (zoom) this.plot.setScale("x", zoom);
    this.host.querySelectorAll(".u-series").forEach((row, index) => this.makeToggle(row.querySelector("th"), index));
    this.host.querySelectorAll("th")[focused]?.focus({ preventScroll: true });
  }

  options() {
    const axis = (more) => ({
      stroke: () => colour("soft"),
      grid: { stroke: () => colour("grid"), width: 1 },
      ticks: { stroke: () => colour("grid"), width: 1 },
      values: (_plot, splits, _axis, _space, increment) => labels(splits, increment),
      ...more,
    });
    const value = (_, number) => (number === null || number === undefined ? "" : short(number));
    const line = (series, index) => ({
      label: series.name,
      show: !this.hidden.has(index + 1),
      stroke: () => colour(series.class),
      width: 1.6,
      dash: DASHED.has(series.class) ? [7, 4] : undefined,
      points: { show: series.dots || series.items.length === 1, size: 6, fill: () => colour(series.class) },
      value,
    });
    return {
      width: Math.max(this.host.clientWidth, 1),
      height: HEIGHT,
      scales: { x: { time: false }, y: { distr: this.logarithmic ? 3 : 1 } },
      axes: [axis({ label: `items seen (${this.unit})` }), axis({ size: 60 })],
      series: [{ label: "items", value }, ...this.series.map(line)],
      legend: { markers: { dash: (_, index) => (DASHED.has(this.series[index - 1]?.class) ? "dashed" : "solid") } },
      cursor: { drag: { x: true, y: false } },
      hooks: {
        setScale: [(plot, key) => key === "x" && this.zoomed(plot.scales.x)],
        setSeries: [(_, index, { show }) => show !== undefined && this.toggled(index, show)],
      },
    };
  }

  // The name of a line in the legend shows and hides it, by the keyboard too.
  makeToggle(name, index) {
    if (index === 0) return;
    name.tabIndex = 0;
    name.ariaLabel = `${this.series[index - 1].name}: ${this.title}`;
    name.role = "button";
    name.ariaPressed = String(!this.hidden.has(index));
    name.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.plot.setSeries(index, { show: this.hidden.has(index) });
    });
  }

  toggled(index, show) {
    if (show) this.hidden.delete(index);
    else this.hidden.add(index);
    const name = this.host.querySelectorAll(".u-series")[index].querySelector("th");
    name.ariaPressed = String(show);
  }

  zoomed({ min, max }) {
    const all = min <= this.first && max >= this.last;
    this.zoom = all ? null : { min, max };
    this.range.textContent = `items ${short(min)} to ${short(max)}${all ? ": drag in the chart to zoom" : ""}`;
  }

  // Shows `factor` times as many items, shifted by a share of what is shown.
  move(factor, shift) {
    const { min, max } = this.plot.scales.x;
    const wide = Math.min((max - min) * factor, this.last - this.first);
    const middle = (min + max) / 2 + shift * (max - min);
    const from = Math.max(this.first, Math.min(middle - wide / 2, this.last - wide));
    this.plot.setScale("x", { min: from, max: from + wide });
  }

  fit() {
    const width = this.host.clientWidth;
    if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }
}

// Puts the charts that are known where their pictures are.
function place() {
  for (const picture of root.querySelectorAll("[data-chart]")) {
    const chart = charts.get(picture.dataset.chart);
    if (chart && !picture.contains(chart.element)) picture.replaceChildren(chart.element);
  }
}

async function load() {
  const answer = await fetch(root.dataset.curves).catch(() => null);
  // Of a server that does not answer, the page says so, and the charts remain as they are.
  if (!answer?.ok) return;
  const pictures = new Set([...root.querySelectorAll("[data-chart]")].map((picture) => picture.dataset.chart));
  // It may end in the middle.
  const found = await answer.json().catch(() => null);
  if (!found) return;
  const shown = found.charts.filter((chart) => pictures.has(chart.id));
  for (const { id, title } of shown) if (!charts.has(id)) charts.set(id, new Chart(title));
  place();
  for (const description of shown) charts.get(description.id).update(description);
}

let wanted = false;
let loading = false;

// Loads the newest curves; what is wanted while they are loaded is loaded afterwards.
async function refresh() {
  wanted = true;
  if (loading) return;
  loading = true;
  try {
    while (wanted) {
      wanted = false;
      await load();
    }
  } finally {
    loading = false;
  }
}

if (root) {
  document.addEventListener("replaced", () => {
    place();
    refresh();
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => charts.forEach((chart) => chart.draw()));
  refresh();
}
