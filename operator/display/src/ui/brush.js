// Selects trials on the axes of parallel coordinates: the lines and the rows of the others fade or disappear.
// Without this script, the figure and the table show all of them.
const SVG = "http://www.w3.org/2000/svg";
const STEP = 0.05; // share of an axis that a key moves
const REACH = 13; // half the width of the area of an axis that can be dragged, in units of the figure
const HELP = "Drag along an axis to select trials. With the keyboard: arrow keys move the upper end of a selection, " +
  "together with Shift the lower end, and Escape removes it.";

// Selections by card and axis, as shares of the axis from its lower end: they outlive replacements of the figure.
const selections = new Map();

// The points of a line of the figure.
function points(path) {
  return path.getAttribute("d").slice(1).split("L").map((point) => point.split(" ").map(Number));
}

function rectangle(className, x, width) {
  const rect = document.createElementNS(SVG, "rect");
  rect.setAttribute("class", className);
  rect.setAttribute("x", x);
  rect.setAttribute("width", width);
  return rect;
}

class Axis {
  constructor(line, figure) {
    this.figure = figure;
    this.name = line.dataset.axis;
    this.key = `${figure.card.id} ${this.name}`;
    this.x = Number(line.getAttribute("x1"));
    this.top = Number(line.getAttribute("y1"));
    this.bottom = Number(line.getAttribute("y2"));
    this.shown = rectangle("brush", this.x - 6, 12);
    this.area = rectangle("axisarea", this.x - REACH, 2 * REACH);
    this.area.setAttribute("y", this.top - 4);
    this.area.setAttribute("height", this.bottom - this.top + 8);
    this.area.setAttribute("tabindex", "0");
    this.area.setAttribute("role", "slider");
    this.area.setAttribute("aria-orientation", "vertical");
    this.area.setAttribute("aria-label", `${this.name}, ${figure.card.id}`);
    this.area.setAttribute("aria-describedby", figure.help);
    this.area.setAttribute("aria-valuemin", "0");
    this.area.setAttribute("aria-valuemax", "100");
    line.after(this.shown, this.area);
    this.area.addEventListener("pointerdown", (event) => this.drag(event));
    this.area.addEventListener("keydown", (event) => this.press(event));
  }

  get selection() {
    return selections.get(this.key);
  }

  // Share of the axis at a position of the figure.
  share(y) {
    return (this.bottom - y) / (this.bottom - this.top);
  }

  pointed(event) {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(this.figure.svg.getScreenCTM().inverse());
    return Math.min(1, Math.max(0, this.share(point.y)));
  }

  drag(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.area.focus({ preventScroll: true });
    this.area.setPointerCapture(event.pointerId);
    const from = this.pointed(event);
    const move = (moved) => {
      const to = this.pointed(moved);
      this.select(Math.min(from, to), Math.max(from, to));
    };
    // A click selects nothing, and removes the selection.
    this.select(0, 1);
    this.area.addEventListener("pointermove", move);
    const end = () => this.area.removeEventListener("pointermove", move);
    for (const type of ["pointerup", "pointercancel"]) this.area.addEventListener(type, end, { once: true });
  }

  press(event) {
    if (event.key === "Escape") return this.select(0, 1);
    const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    let { low, high } = this.selection ?? { low: 0, high: 1 };
    if (event.shiftKey) low = Math.min(high, Math.max(0, low + direction * STEP));
    else high = Math.max(low, Math.min(1, high + direction * STEP));
    this.select(low, high);
  }

  select(low, high) {
    if (low <= 0 && high >= 1) selections.delete(this.key);
    else selections.set(this.key, { low, high });
    this.figure.show();
  }

  // Whether a line passes through the selection. One that has no value of this axis passes below it, or not at all.
  admits(line) {
    if (!this.selection) return true;
    const here = line.find(([x]) => Math.abs(x - this.x) < 0.2);
    if (!here) return false;
    const share = this.share(here[1]);
    // Positions are rounded in the figure.
    return share >= this.selection.low - 1e-3 && share <= this.selection.high + 1e-3;
  }

  show() {
    const { low, high } = this.selection ?? { low: 0, high: 0 };
    const height = this.bottom - this.top;
    this.shown.setAttribute("y", this.bottom - high * height);
    this.shown.setAttribute("height", (high - low) * height);
    const percent = (share) => `${Math.round(share * 100)} %`;
    const words = this.selection ? `${percent(low)} to ${percent(high)} of the axis` : "all";
    this.area.setAttribute("aria-valuenow", String(Math.round((this.selection ? high : 1) * 100)));
    this.area.setAttribute("aria-valuetext", words);
  }
}

class Figure {
  constructor(svg, card) {
    this.svg = svg;
    this.card = card;
    this.help = `${card.id}-help`;
    this.lines = [...svg.querySelectorAll("path[data-trial]")].map((path) => ({ path, points: points(path) }));
    this.axes = [...svg.querySelectorAll("line[data-axis]")].map((line) => new Axis(line, this));
    // A picture has no parts that can be focused.
    svg.setAttribute("role", "group");
    const help = document.createElement("p");
    help.className = "muted";
    help.id = this.help;
    help.textContent = HELP;
    this.count = document.createElement("p");
    this.count.className = "selected";
    this.count.role = "status";
    svg.closest(".figure").before(help, this.count);
    this.show();
  }

  show() {
    const selected = new Set();
    for (const { path, points } of this.lines) {
      const admitted = this.axes.every((axis) => axis.admits(points));
      path.classList.toggle("faded", !admitted);
      if (admitted) selected.add(path.dataset.trial);
    }
    const all = this.axes.every((axis) => !axis.selection);
    for (const row of this.card.querySelectorAll("tr[data-trial]")) {
      row.hidden = !all && !selected.has(row.dataset.trial);
    }
    for (const axis of this.axes) axis.show();
    this.count.textContent = all ? "" : `${selected.size} of ${this.lines.length} trials selected`;
  }
}

function attach() {
  for (const card of document.querySelectorAll("article.card")) {
    const svg = card.querySelector("line[data-axis]")?.closest("svg");
    if (svg) new Figure(svg, card);
  }
}

document.addEventListener("replaced", attach);
attach();
