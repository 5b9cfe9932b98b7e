// Measures on one canvas: the pool by state as a stack, and narrower curves below it, on one axis of time, events or
// steps (meta.axis). Hover reads every curve at that place; a click picks the event.
//
// Payload (little endian): u32 points, u32 bytes of JSON, the JSON padded to a multiple of 4, then f32 arrays of that
// many points: places on the axis from its beginning (NaN: a gap, which meta.gaps names in turn; meta.bases are the
// numbers that the stretches between gaps begin with, null by time), the layers of the stack, the curves. The event
// numbers are f64 and come last (at a multiple of 8); NaN in a run whose events are gone.

const RIGHT = 10;
const CUT_FROM = 0.08; // a gap that is longer than this share of all runs together is cut
let LEFT = 52, AXIS = 22, BETWEEN = 26, CUT = 84;

function decode(bytes) {
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  const [n, length] = new Uint32Array(buffer, 0, 2);
  const meta = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  let at = 8 + Math.ceil(length / 4) * 4;
  const take = () => {
    const part = new Float32Array(buffer, at, n);
    at += 4 * n;
    return part;
  };
  const x = take();
  const layers = meta.layers.map(take);
  const curves = meta.curves.map(take);
  at += -at & 7;
  return { n, meta, x, layers, curves, seq: new Float64Array(buffer, at, n) };
}

function ink(root, alpha) {
  const [r, g, b] = getComputedStyle(root).color.match(/[\d.]+/g);
  return `rgba(${r},${g},${b},${alpha})`;
}

function font(root) {
  return getComputedStyle(root).fontFamily;
}

function clock(seconds) {
  if (seconds < 0.001) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (seconds < 120) return `${seconds.toPrecision(3)} s`;
  const s = Math.round(seconds);
  const two = (v) => String(v).padStart(2, "0");
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)} min` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)} h`;
}

// A number of the axis, as it is written.
function place(data, v) {
  return data.meta.axis === "time" ? clock(v) : Math.round(v).toLocaleString("en-US");
}

function step(range, wanted) {
  const raw = range / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || power;
}

function said(value, unit) {
  if (Number.isNaN(value)) return "–";
  if (unit === "%") return `${(100 * value).toFixed(1)} %`;
  if (unit === "×") return `${value.toFixed(2)} ×`;
  const count = Math.round(value);
  return `${count.toLocaleString("en-US")} ${count === 1 ? unit.replace(/s$/, "") : unit}`;
}

function tick(value, unit) {
  if (unit === "%") return `${Math.round(100 * value)} %`;
  if (unit === "×") return `${+value.toFixed(2)} ×`;
  return value >= 10000 ? `${+(value / 1000).toFixed(1)}k` : value.toLocaleString("en-US");
}

function rem() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize) || 15;
}

// Room for the words grows with them: they are larger on a wall.
function measure() {
  const k = rem() / 15;
  [LEFT, AXIS, BETWEEN, CUT] = [52 * k, 22 * k, 26 * k, 84 * k].map(Math.round);
}

// Panels from top to bottom: where each lies and what it measures.
function panels(data, height) {
  const { meta } = data;
  const low = meta.curves.length;
  const small = Math.min(66 * (rem() / 15), Math.floor((height - AXIS) * 0.14));
  const big = height - AXIS - low * (small + BETWEEN) - BETWEEN;
  const found = [{ top: BETWEEN, height: big, max: meta.blocks || 1, unit: "blocks", title: "The pool by state (blocks)" }];
  meta.curves.forEach((curve, i) => {
    let max = 0;
    for (const v of data.curves[i]) if (v > max) max = v;
    const floor = curve.unit === "×" ? 1 : 0;
    const top = BETWEEN + big + BETWEEN + i * (small + BETWEEN);
    const round = step(Math.max(max - floor, 1e-9), 2);
    max = curve.unit === "%" ? Math.min(Math.max(Math.ceil(max / 0.25) * 0.25, 0.25), 1)
      : Math.max(floor + Math.ceil((max - floor) / round) * round, floor + (curve.unit === "×" ? 0.5 : 1));
    found.push({ top, height: small, min: floor, max, unit: curve.unit, title: curve.title, curve, values: data.curves[i] });
  });
  return found;
}

function frame(ctx, root, view, panel) {
  ctx.fillStyle = ink(root, 0.85);
  ctx.font = `600 ${0.8 * rem()}px ${font(root)}`;
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.fillText(panel.title, LEFT, panel.top - 11);
  ctx.font = `${0.73 * rem()}px ${font(root)}`;
  ctx.textAlign = "right";
  ctx.textBaseline = "middle";
  const min = panel.min || 0;
  const every = step(panel.max - min, panel.height > 120 ? 4 : 2);
  for (let v = min; v <= panel.max * 1.0001; v += every) {
    const y = panel.top + panel.height - ((v - min) / (panel.max - min)) * panel.height;
    ctx.fillStyle = ink(root, 0.65);
    ctx.fillText(tick(v, panel.unit), LEFT - 7, y);
    ctx.fillStyle = ink(root, 0.1);
    ctx.fillRect(LEFT, Math.round(y), view.right - LEFT, 1);
  }
}

// Runs of points without a gap, as [first, end).
function runs(x) {
  const found = [];
  let lo = -1;
  for (let i = 0; i <= x.length; i += 1) {
    const gap = i === x.length || Number.isNaN(x[i]);
    if (!gap && lo < 0) lo = i;
    if (gap && lo >= 0) {
      found.push([lo, i]);
      lo = -1;
    }
  }
  return found;
}

function drawStack(ctx, data, view, panel) {
  const scale = panel.height / panel.max, bottom = panel.top + panel.height;
  for (const [lo, hi] of runs(data.x)) {
    const base = new Float32Array(hi - lo);
    data.layers.forEach((layer, k) => {
      ctx.fillStyle = data.meta.layers[k].colour;
      ctx.beginPath();
      ctx.moveTo(view.px(data.x[lo]), bottom - base[0] * scale);
      for (let i = lo; i < hi; i += 1) {
        const y = bottom - (base[i - lo] + layer[i]) * scale;
        ctx.lineTo(view.px(data.x[i]), i > lo ? bottom - (base[i - 1 - lo] + 0) * scale : y);
        ctx.lineTo(view.px(data.x[i]), y);
        base[i - lo] += layer[i];
      }
      ctx.lineTo(view.px(data.x[hi - 1]), bottom - (base[hi - 1 - lo] - layer[hi - 1]) * scale);
      for (let i = hi - 1; i > lo; i -= 1) {
        const y = bottom - (base[i - 1 - lo] - layer[i - 1]) * scale;
        ctx.lineTo(view.px(data.x[i]), y);
        ctx.lineTo(view.px(data.x[i - 1]), y);
      }
      ctx.closePath();
      ctx.fill();
      if (data.meta.layers[k].hatched) hatch(ctx, view, panel);
    });
  }
}

// Stripes over the area of the current path, as Plotly's pictures have them.
function hatch(ctx, view, panel) {
  ctx.save();
  ctx.clip();
  ctx.strokeStyle = "rgba(0,0,0,0.4)";
  ctx.lineWidth = 1.2;
  ctx.beginPath();
  for (let x = LEFT - panel.height; x < view.right; x += 8) {
    ctx.moveTo(x, panel.top + panel.height);
    ctx.lineTo(x + panel.height, panel.top);
  }
  ctx.stroke();
  ctx.restore();
}

function drawCurve(ctx, data, view, panel) {
  const min = panel.min || 0;
  const y = (v) => panel.top + panel.height - (Math.max(v - min, 0) / (panel.max - min)) * panel.height;
  ctx.strokeStyle = panel.curve.colour;
  ctx.fillStyle = `${panel.curve.colour}2e`;
  ctx.lineWidth = 1.6;
  for (const [lo, hi] of runs(data.x.map((v, i) => v + 0 * panel.values[i]))) {
    ctx.beginPath();
    for (let i = lo; i < hi; i += 1) {
      if (i > lo) ctx.lineTo(view.px(data.x[i]), y(panel.values[i - 1]));
      ctx[i > lo ? "lineTo" : "moveTo"](view.px(data.x[i]), y(panel.values[i]));
    }
    ctx.stroke();
    ctx.lineTo(view.px(data.x[hi - 1]), panel.top + panel.height);
    ctx.lineTo(view.px(data.x[lo]), panel.top + panel.height);
    ctx.fill();
  }
}

// Seconds to pixels. A gap between two runs that would squeeze them is cut to a width of its own: pieces of the axis
// from left to right, runs and gaps in turn, each to its own scale.
function scale(x, { gaps: why, bases }, left, right) {
  const known = runs(x);
  const spans = known.map(([lo, hi]) => [x[lo], x[hi - 1]]);
  const lived = spans.reduce((sum, [a, b]) => sum + b - a, 0);
  const gaps = spans.slice(1).map(([a], k) => Math.max(a - spans[k][1], 0));
  const cut = gaps.map((gap) => gap > CUT_FROM * lived);
  const many = cut.filter(Boolean).length;
  const cutWidth = Math.min(CUT, (0.4 * (right - left)) / Math.max(many, 1));
  const drawn = lived + gaps.reduce((sum, gap, k) => sum + (cut[k] ? 0 : gap), 0);
  const each = (right - left - many * cutWidth) / Math.max(drawn, 1e-9);
  const pieces = [];
  let p = left;
  spans.forEach(([a, b], k) => {
    if (k) {
      const width = cut[k - 1] ? cutWidth : gaps[k - 1] * each;
      pieces.push({ a: spans[k - 1][1], b: a, p, q: p + width, gap: true, cut: cut[k - 1], why: why[k - 1] });
      p += width;
    }
    pieces.push({ a, b, p, q: p + (b - a) * each, shift: bases ? bases[k] - a : 0 });
    p += (b - a) * each;
  });
  const px = (v) => {
    const piece = pieces.find((one) => v <= one.b) || pieces[pieces.length - 1];
    if (!piece) return left;
    return piece.p + Math.max((v - piece.a) / Math.max(piece.b - piece.a, 1e-9), 0) * (piece.q - piece.p);
  };
  return { px, pieces, drawn };
}

function drawGaps(ctx, root, data, view) {
  for (const gap of view.pieces.filter((piece) => piece.gap)) {
    const from = gap.p, to = Math.max(gap.q, from + 3);
    const high = view.height - AXIS - BETWEEN;
    ctx.save();
    ctx.beginPath();
    ctx.rect(from, BETWEEN, to - from, high);
    ctx.clip();
    ctx.strokeStyle = ink(root, 0.16); // hatched: unlike free blocks, which are an even grey
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (let x = from - high; x < to; x += 9) {
      ctx.moveTo(x, BETWEEN + high);
      ctx.lineTo(x + high, BETWEEN);
    }
    ctx.stroke();
    ctx.restore();
    ctx.fillStyle = ink(root, 0.7);
    ctx.font = `${0.73 * rem()}px ${font(root)}`;
    ctx.textAlign = "center";
    ctx.fillText(gap.why, (from + to) / 2, BETWEEN + 10);
    if (gap.cut) {
      const middle = (from + to) / 2, foot = BETWEEN + high;
      ctx.fillText(`after ${place(data, gap.b - gap.a)}`, middle, BETWEEN + 10 + 0.95 * rem());
      ctx.strokeStyle = ink(root, 0.7); // the axis is broken here
      ctx.beginPath();
      for (const x of [middle - 3, middle + 3]) {
        ctx.moveTo(x - 3, foot + 5);
        ctx.lineTo(x + 3, foot - 5);
      }
      ctx.stroke();
    }
  }
}

function drawTimes(ctx, root, data, view) {
  ctx.font = `${0.73 * rem()}px ${font(root)}`;
  ctx.textBaseline = "top";
  ctx.textAlign = "center";
  ctx.fillStyle = ink(root, 0.65);
  const { axis } = data.meta;
  const every = Math.max(step(view.drawn, (view.right - LEFT) / 110), axis === "time" ? 0 : 1);
  let before = -Infinity;
  for (const { a, b, p, q, shift = 0 } of view.pieces.filter((piece) => !piece.cut)) {
    for (let v = Math.ceil((a + shift) / every) * every - shift; v <= b; v += every) {
      const x = p + ((v - a) / Math.max(b - a, 1e-9)) * (q - p);
      if (x < before + 4 * rem()) continue;
      const name = axis === "time" ? "" : `${axis} `;
      if (x > LEFT + 16 && x < view.right - 16) ctx.fillText(name + place(data, v + shift), x, view.height - AXIS + 7);
      else if (v + shift === 0) ctx.fillText("0", x, view.height - AXIS + 7);
      before = x;
    }
  }
}

function drawMarks(ctx, data, view) {
  for (const mark of data.meta.marks) {
    const x = view.px(mark.x);
    ctx.fillStyle = mark.colour;
    ctx.beginPath();
    ctx.moveTo(x, BETWEEN);
    ctx.lineTo(x - 5, BETWEEN - 8);
    ctx.lineTo(x + 5, BETWEEN - 8);
    ctx.fill();
    ctx.globalAlpha = 0.5;
    ctx.fillRect(x - 0.5, BETWEEN, 1, view.height - AXIS - BETWEEN);
    ctx.globalAlpha = 1;
  }
}

function draw(root) {
  const data = root.kvData;
  const canvas = root.querySelector("canvas");
  const ratio = window.devicePixelRatio || 1;
  measure();
  const width = root.clientWidth, height = Math.max(data.meta.height, window.innerHeight - 25 * rem());
  if (width < 80) return;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  const right = width - RIGHT;
  const view = { right, height, ...scale(data.x, data.meta, LEFT, right) };
  root.kvView = view;
  const [stack, ...low] = panels(data, height);
  drawStack(ctx, data, view, stack);
  frame(ctx, root, view, stack);
  for (const panel of low) {
    frame(ctx, root, view, panel);
    drawCurve(ctx, data, view, panel);
  }
  drawGaps(ctx, root, data, view);
  drawMarks(ctx, data, view);
  drawTimes(ctx, root, data, view);
  if (data.meta.cursor !== null) {
    ctx.fillStyle = ink(root, 0.9);
    ctx.fillRect(Math.round(view.px(data.meta.cursor)) - 1, BETWEEN - 6, 2, height - AXIS - BETWEEN + 6);
  }
  if (root.kvHover >= 0 && root.kvHover < data.n) {
    ctx.fillStyle = ink(root, 0.45);
    ctx.fillRect(Math.round(view.px(data.x[root.kvHover])), BETWEEN, 1, height - AXIS - BETWEEN);
  }
  canvas.setAttribute("aria-label", data.meta.alt);
  root.dataset.points = data.n;
  root.dataset.cuts = view.pieces.filter((piece) => piece.cut).length;
  root.dataset.seq = data.n ? data.seq[data.n - 1] : -1;
}

// The last point at or before a place on the screen; -1 outside.
function pointAt(root, event) {
  const { kvData: data, kvView: view } = root;
  const at = event.clientX - root.querySelector("canvas").getBoundingClientRect().left;
  if (!view || at < LEFT - 4 || at > view.right + 4) return -1;
  let best = -1;
  for (let i = 0; i < data.n; i += 1) if (view.px(data.x[i]) <= at + 1) best = i;
  return best;
}

function hover(root, i) {
  root.kvHover = i;
  draw(root);
  const tip = root.querySelector(".tip");
  tip.hidden = i < 0;
  if (i < 0) return;
  const { kvData: data } = root;
  const { axis } = data.meta, gone = Number.isNaN(data.seq[i]);
  const { shift } = root.kvView.pieces.find((piece) => !piece.gap && data.x[i] <= piece.b && data.x[i] >= piece.a);
  const told = place(data, data.x[i] + shift);
  const at = { time: `${told}, `, step: `step ${told}, `, event: gone ? `event ${told}, ` : "" }[axis];
  const lines = [at + (gone ? "of a run that is over: it cannot be opened" : `event ${data.seq[i].toLocaleString("en-US")}`)];
  data.meta.layers.forEach((layer, k) => data.layers[k][i] > 0 && lines.push(`${said(data.layers[k][i], "blocks")} ${layer.title}`));
  data.meta.curves.forEach((curve, k) => lines.push(`${curve.title}: ${said(data.curves[k][i], curve.unit)}`));
  tip.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
  const x = root.kvView.px(data.x[i]);
  const flip = x + tip.offsetWidth + 18 > root.clientWidth;
  tip.style.left = `${flip ? Math.max(0, x - tip.offsetWidth - 12) : x + 12}px`;
  tip.style.top = "34px";
}

function listen(root) {
  const canvas = root.querySelector("canvas");
  canvas.addEventListener("mousemove", (event) => hover(root, pointAt(root, event)));
  canvas.addEventListener("mouseleave", () => hover(root, -1));
  canvas.addEventListener("click", (event) => {
    const i = pointAt(root, event);
    if (i >= 0 && !Number.isNaN(root.kvData.seq[i])) root.kvPick(root.kvData.seq[i]);
  });
  new ResizeObserver(() => root.kvData && draw(root)).observe(root);
}

export default function (component) {
  const root = component.parentElement.querySelector(".curves");
  const fresh = !root.kvData;
  root.kvData = decode(component.data);
  root.kvPick = (seq) => component.setTriggerValue("picked", seq);
  if (fresh) {
    root.kvHover = -1;
    listen(root);
  }
  draw(root);
}
