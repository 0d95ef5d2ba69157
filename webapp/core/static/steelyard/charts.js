// Draws the figures that the server made. Colours are written as var(--name); here they become the theme's own.
const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

function resolve(value) {
  if (typeof value === "string" && value.startsWith("var(--")) {
    if (value === "var(--font)") return getComputedStyle(document.body).fontFamily;
    probe.style.color = value;
    return getComputedStyle(probe).color;
  }
  if (Array.isArray(value)) return value.map(resolve);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, resolve(inner)]));
  }
  return value;
}

// On a phone only baseline and sweet spot carry their names, and long names of bars go over two lines.
function narrow(data, layout) {
  layout.margin = { ...layout.margin, l: 44, r: 8 };
  for (const trace of data) {
    if (trace.meta) {
      const x = layout.xaxis.range ?? [0, 1];
      const at = layout.xaxis.type === "log" ? Math.log10(trace.x[0]) : trace.x[0];
      const side = (at - x[0]) / (x[1] - x[0]) > 0.5 ? "left" : "right";
      if (!trace.meta.role) trace.mode = "markers";
      else trace.textposition = `${trace.meta.role === "baseline" ? "top" : "bottom"} ${side}`;
      trace.text = trace.text.map(folded);
    }
    if (trace.orientation === "h" && Array.isArray(trace.y)) trace.y = trace.y.map(folded);
  }
}

function folded(name) {
  if (typeof name !== "string" || name.length <= 14 || name.includes("&")) return name;
  const middle = name.length / 2;
  const places = [...name.matchAll(/[-\s_.]/g)].map((found) => found.index + 1);
  const at = places.sort((a, b) => Math.abs(a - middle) - Math.abs(b - middle))[0] ?? Math.round(middle);
  return `${name.slice(0, at)}<br>${name.slice(at)}`;
}

const drawn = new Map(); // element -> figure with symbolic colours

const config = {
  displaylogo: false,
  responsive: true,
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  toImageButtonOptions: { scale: 2 },
};

export async function draw(element, figure) {
  drawn.set(element, figure);
  const { data, layout } = resolve(figure);
  if (element.clientWidth < 560) narrow(data, layout);
  await window.Plotly.react(element, data, layout, { ...config, toImageButtonOptions: { ...config.toImageButtonOptions, filename: element.dataset.chart } });
  element.setAttribute("aria-busy", "false");
}

document.addEventListener("steelyard:theme", () => {
  for (const [element, figure] of drawn) {
    if (element.isConnected) draw(element, figure);
    else drawn.delete(element);
  }
});

let library;
function plotly() {
  library ??= new Promise((done, failed) => {
    if (window.Plotly) return done();
    const source = document.querySelector("meta[name=plotly]");
    const script = document.createElement("script");
    script.src = source.content;
    script.nonce = source.nonce;
    // The bundle adds style elements while it loads; they get this page's nonce, so that the policy needs no exception.
    const create = Document.prototype.createElement;
    document.createElement = function (name, ...rest) {
      const element = create.call(this, name, ...rest);
      if (String(name).toLowerCase() === "style") element.nonce = source.nonce;
      return element;
    };
    script.addEventListener("load", () => {
      delete document.createElement;
      done();
    });
    script.addEventListener("error", () => failed(new Error("the chart library did not load")));
    document.head.append(script);
  });
  return library;
}

export async function drawAll(root = document) {
  const source = root.querySelector("#figures");
  if (!source) return;
  const figures = JSON.parse(source.textContent);
  await plotly();
  for (const element of root.querySelectorAll("[data-chart]")) {
    const figure = figures[element.dataset.chart];
    if (figure) await draw(element, figure);
  }
  document.dispatchEvent(new CustomEvent("steelyard:drawn"));
}

export const figureOf = (element) => drawn.get(element);
