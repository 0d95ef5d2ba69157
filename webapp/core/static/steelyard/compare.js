// The comparison: limits that dim what fails, columns, sorting. All of it is kept in the address, so a link shows the
// same view. Nothing here computes a result: the numbers are the server's.
import { draw, drawAll, figureOf } from "./charts.js";

const remember = (changes) => {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  history.replaceState(history.state, "", url);
};
const recall = (name) => new URL(location.href).searchParams.get(name);

const sig = (value) => {
  if (value === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { minimumFractionDigits: Math.min(digits, 8), maximumFractionDigits: Math.min(digits, 8) });
};

// ------------------------------------------------------------------------------------------------ what must hold
class Limits {
  constructor(panel, data, table) {
    this.panel = panel;
    this.table = table;
    this.rows = data.rows;
    this.limits = data.limits;
    this.inputs = this.limits.map((limit) => panel.querySelector(`input[data-metric="${CSS.escape(limit.metric)}"]`));
    this.limits.forEach((limit, index) => {
      const input = this.inputs[index];
      const kept = recall(`limit.${limit.metric}`);
      if (kept !== null && kept !== "" && Number.isFinite(Number(kept))) input.value = String(this.position(limit, Number(kept)));
      input.addEventListener("input", () => {
        this.show();
        remember({ [`limit.${limit.metric}`]: Number(input.value) >= limit.steps ? null : this.value(limit, input).toPrecision(6) });
      });
    });
    panel.querySelector("[data-reset]").addEventListener("click", () => {
      this.limits.forEach((limit, index) => {
        this.inputs[index].value = String(limit.steps);
        remember({ [`limit.${limit.metric}`]: null });
      });
      this.show();
    });
    document.addEventListener("steelyard:drawn", () => this.shade());
    this.show();
  }

  value(limit, input) {
    const share = Number(input.value) / limit.steps;
    if (share === 1) return limit.worst;
    if (share === 0) return limit.best;
    if (limit.log) return limit.best * (limit.worst / limit.best) ** share;
    return limit.best + (limit.worst - limit.best) * share;
  }

  position(limit, value) {
    const share = limit.log ? Math.log(value / limit.best) / Math.log(limit.worst / limit.best) : (value - limit.best) / (limit.worst - limit.best);
    return Math.round(Math.min(1, Math.max(0, share)) * limit.steps);
  }

  passes(row) {
    return row.succeeded && this.limits.every((limit, index) => {
      const input = this.inputs[index];
      if (Number(input.value) >= limit.steps) return true; // fully open: no limit
      const value = row.values[limit.metric];
      if (value === null || value === undefined) return false;
      const edge = this.value(limit, input);
      const slack = 1e-9 * Math.abs(edge);
      return limit.at_most ? value <= edge + slack : value >= edge - slack;
    });
  }

  show() {
    this.limits.forEach((limit, index) => {
      const input = this.inputs[index];
      const open = Number(input.value) >= limit.steps;
      const text = open ? "no limit" : `${limit.at_most ? "\u2264" : "\u2265"} ${limit.unit === "$" ? "$" : ""}${sig(this.value(limit, input))}${limit.unit && limit.unit !== "$" ? `\u00a0${limit.unit}` : ""}`;
      input.closest(".slo").querySelector("output").textContent = text;
      input.setAttribute("aria-valuetext", text);
    });
    const passing = this.rows.filter((row) => this.passes(row));
    const good = new Set(passing.map((row) => row.name));
    for (const row of this.table.querySelectorAll("tbody tr[data-name]")) {
      const fails = !good.has(row.dataset.name);
      row.classList.toggle("dim", fails && row.dataset.status === "succeeded");
      const mark = row.querySelector("[data-fails]");
      if (mark) mark.hidden = !(fails && row.dataset.status === "succeeded");
    }
    this.panel.querySelector("[data-answer]").textContent = this.answer(passing);
    this.shade(good);
  }

  answer(passing) {
    const all = this.rows.filter((row) => row.succeeded).length;
    if (!passing.length) return `Nothing passes: none of ${all} holds all limits.`;
    const order = ["cost_per_1k_requests_usd", "cost_per_1m_tokens_usd", "latency_p50_ms"];
    const by = order.find((metric) => passing.some((row) => Number.isFinite(row.values[metric])));
    if (!by) return `${passing.length} of ${all} pass.`;
    const best = passing.filter((row) => Number.isFinite(row.values[by])).sort((a, b) => a.values[by] - b.values[by])[0];
    const what = by.startsWith("cost") ? `cheapest at $${sig(best.values[by])}` : `fastest at ${sig(best.values[by])} ms`;
    return `${passing.length} of ${all} pass; ${best.name} is the ${what}.`;
  }

  // Draws the limits of the chart's two metrics into it, and fades what fails.
  shade(good = new Set(this.rows.filter((row) => this.passes(row)).map((row) => row.name))) {
    const chart = document.querySelector("[data-chart=pareto]");
    const figure = chart && figureOf(chart);
    if (!figure || !window.Plotly) return;
    const shapes = [];
    const { x, y } = figure.layout.meta;
    this.limits.forEach((limit, index) => {
      if (Number(this.inputs[index].value) >= limit.steps) return;
      const at = this.value(limit, this.inputs[index]);
      const line = { type: "line", line: { color: "var(--soft)", width: 1, dash: "dash" }, layer: "below" };
      if (limit.metric === x) shapes.push({ ...line, xref: "x", yref: "paper", x0: at, x1: at, y0: 0, y1: 1 });
      if (limit.metric === y) shapes.push({ ...line, xref: "paper", yref: "y", x0: 0, x1: 1, y0: at, y1: at });
    });
    const data = figure.data.map((trace) => (trace.meta ? { ...trace, opacity: good.has(trace.meta.experiment) ? 1 : 0.3 } : trace));
    draw(chart, { ...figure, data, layout: { ...figure.layout, shapes } });
  }
}

// ------------------------------------------------------------------------------------------------ columns, sorting
function columns(card, table) {
  const boxes = [...card.querySelectorAll("input[data-column]")];
  const differences = card.querySelector("[data-differences]");
  const initial = new Map(boxes.map((box) => [box.dataset.column, box.defaultChecked]));
  const kept = recall("columns");
  if (kept !== null) {
    const chosen = new Set(kept.split(","));
    for (const box of boxes) box.checked = chosen.has(box.dataset.column);
  }
  if (differences) differences.checked = recall("differences") === "1";
  const cells = new Map();
  for (const cell of table.querySelectorAll("[data-metric]")) {
    if (!cells.has(cell.dataset.metric)) cells.set(cell.dataset.metric, []);
    cells.get(cell.dataset.metric).push(cell);
  }
  const wide = table.querySelectorAll("td.why");
  const show = () => {
    let visible = 0;
    for (const box of boxes) {
      const on = box.checked && !(differences?.checked && box.dataset.same === "yes");
      if (on) visible += 1;
      for (const cell of cells.get(box.dataset.column) ?? []) cell.hidden = !on;
    }
    for (const cell of wide) cell.colSpan = Math.max(1, visible);
  };
  const changed = () => {
    show();
    const standard = boxes.every((box) => box.checked === initial.get(box.dataset.column));
    remember({
      columns: standard ? null : boxes.filter((box) => box.checked).map((box) => box.dataset.column).join(","),
      differences: differences?.checked ? "1" : null,
    });
  };
  for (const box of [...boxes, ...(differences ? [differences] : [])]) box.addEventListener("change", changed);
  show();
}

function sorting(table) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const apply = (metric, direction) => {
    for (const head of table.tHead.querySelectorAll("th")) head.removeAttribute("aria-sort");
    if (!metric) return body.append(...original);
    const head = table.tHead.querySelector(`th[data-metric="${CSS.escape(metric)}"]`);
    if (!head) return;
    head.setAttribute("aria-sort", direction);
    const value = (row) => {
      const text = row.querySelector(`td[data-metric="${CSS.escape(metric)}"]`)?.dataset.value;
      return text === undefined || text === "" ? null : Number(text);
    };
    const sign = direction === "ascending" ? 1 : -1;
    body.append(...[...original].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null); // undefined last, whatever the direction
      return sign * (x - y);
    }));
  };
  const [metric, direction] = (recall("sort") ?? "").split(":");
  if (metric) apply(metric, direction === "descending" ? "descending" : "ascending");
  for (const button of table.tHead.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const first = head.dataset.higher === "yes" ? "descending" : "ascending";
      const second = first === "ascending" ? "descending" : "ascending";
      const next = { [first]: second, [second]: null }[head.getAttribute("aria-sort")] ?? (head.hasAttribute("aria-sort") ? null : first);
      apply(next && head.dataset.metric, next);
      remember({ sort: next ? `${head.dataset.metric}:${next}` : null });
    });
  }
}

// ------------------------------------------------------------------------------------------------ axes of the chart
function axes(root) {
  const form = root.querySelector("form[data-axes]");
  if (!form) return;
  form.querySelector("button").hidden = true;
  form.addEventListener("change", async () => {
    const chosen = Object.fromEntries(new FormData(form));
    const url = new URL(form.dataset.axes, location.href);
    for (const [name, value] of Object.entries(chosen)) url.searchParams.set(name, value);
    const answer = await fetch(url, { headers: { Accept: "application/json" } });
    if (!answer.ok) return form.submit();
    const { figure, summary, title, table } = await answer.json();
    const card = form.closest("section");
    card.querySelector("h2").textContent = title;
    card.querySelector("figcaption [data-summary]").textContent = summary;
    const fresh = document.createElement("template");
    fresh.innerHTML = table; // rendered and escaped by the server's own template
    card.querySelector("[data-table]").replaceChildren(fresh.content);
    remember(chosen);
    await draw(card.querySelector("[data-chart]"), figure);
    document.dispatchEvent(new CustomEvent("steelyard:drawn"));
  });
}

export function start(root = document) {
  const card = root.querySelector("#experiments");
  if (!card || card.dataset.started) return;
  card.dataset.started = "yes";
  const table = card.querySelector("table");
  columns(card, table);
  sorting(table);
  axes(root);
  const panel = root.querySelector("#limits");
  const data = root.querySelector("#limit-data");
  if (panel && data) new Limits(panel, JSON.parse(data.textContent), table);
  drawAll(root);
}

start();
document.addEventListener("htmx:afterSettle", () => start());
