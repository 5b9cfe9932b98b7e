// Measures over time on one canvas: the pool by state as a stack, and narrower curves below it, on one time axis.
// Hover reads every curve at that time; a click picks the event.
//
// Payload (little endian): u32 points, u32 bytes of JSON, the JSON padded to a multiple of 4, then f32 arrays of that
// many points: seconds since meta.begin (NaN: a run ended, another began), the layers of the stack, the curves. The
// event numbers are f64 and come last (at a multiple of 8).

const RIGHT = 10;
let LEFT = 52, AXIS = 22, BETWEEN = 26;

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

function step(range, wanted) {
  const raw = range / Math.max(wanted, 1);
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || power;
}

function said(value, unit) {
  if (Number.isNaN(value)) return "–";
  if (unit === "%") return `${(100 * value).toFixed(1)} %`;
  if (unit === "×") return `${value.toFixed(2)} ×`;
  return `${Math.round(value).toLocaleString("en-US")} ${unit}`;
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
  [LEFT, AXIS, BETWEEN] = [52 * k, 22 * k, 26 * k].map(Math.round);
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
  ctx.fillText(panel.title, LEFT, panel.top - 8);
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
    });
  }
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

function drawGaps(ctx, root, data, view) {
  const found = runs(data.x);
  for (let k = 1; k < found.length; k += 1) {
    const from = view.px(data.x[found[k - 1][1] - 1]), to = Math.max(view.px(data.x[found[k][0]]), from + 3);
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
    ctx.fillText("restart", (from + to) / 2, BETWEEN + 10);
  }
}

function drawTimes(ctx, root, data, view) {
  ctx.font = `${0.73 * rem()}px ${font(root)}`;
  ctx.textBaseline = "top";
  ctx.textAlign = "center";
  ctx.fillStyle = ink(root, 0.65);
  const every = step(view.x1 - view.x0, (view.right - LEFT) / 110);
  for (let v = Math.ceil(view.x0 / every) * every; v <= view.x1; v += every) {
    const x = view.px(v);
    if (x > LEFT + 16 && x < view.right - 16) ctx.fillText(clock(v), x, view.height - AXIS + 7);
    else if (v === 0) ctx.fillText("0", x, view.height - AXIS + 7);
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
  const known = runs(data.x);
  const x0 = known.length ? data.x[known[0][0]] : 0;
  const x1 = Math.max(known.length ? data.x[known[known.length - 1][1] - 1] : 1, x0 + 1e-9);
  const right = width - RIGHT;
  const view = { x0, x1, right, height, px: (x) => LEFT + ((x - x0) / (x1 - x0)) * (right - LEFT) };
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
  const lines = [`${clock(data.x[i])}, event ${data.seq[i].toLocaleString("en-US")}`];
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
