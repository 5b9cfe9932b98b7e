// The block map: one cell per block, drawn pixel-exact on a canvas; hover names a block, a click picks it.
//
// Payload (little endian): u32 cells, u32 bytes of JSON, the JSON padded to a multiple of 4, then by cell:
//   u8 colour (index into meta.palette), u8 letter (ASCII)
//   and with meta.detail: u8 fill, u8 ref, u16 owner (index into meta.names, 65535 = none), u32 gen
// The functions below keep no state but what hangs on the root element, so a re-render only redraws.

const GUTTER = 46; // CSS pixels left of the grid for the row labels
const NONE = 65535;

function decode(bytes) {
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  const [n, length] = new Uint32Array(buffer, 0, 2);
  const meta = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  let at = 8 + Math.ceil(length / 4) * 4;
  const take = (type, width) => {
    const part = new type(buffer.slice(at, at + n * width));
    at += n * width;
    return part;
  };
  const cells = { n, meta, colour: take(Uint8Array, 1), letter: take(Uint8Array, 1) };
  if (meta.detail) {
    cells.fill = take(Uint8Array, 1);
    cells.ref = take(Uint8Array, 1);
    cells.owner = take(Uint16Array, 2);
    cells.gen = take(Uint32Array, 4);
  }
  return cells;
}

// The largest cell with which the whole pool fits into width x height; columns are a multiple of 8 where possible.
function layout(n, width, height, most) {
  for (let size = most; size > 1; size -= 1) {
    const fit = Math.min(Math.floor(width / size), n);
    const columns = fit >= 8 ? fit - (fit % 8) : fit;
    if (columns < 8 && n > columns && size > 24 * (window.devicePixelRatio || 1)) continue;
    if (columns > 0 && Math.ceil(n / columns) * size <= height) return { size, columns };
  }
  return { size: 1, columns: Math.max(1, Math.min(width, n)) };
}

function rgba(hex) {
  const part = (i) => parseInt(hex.slice(i, i + 2), 16);
  return [part(1), part(3), part(5), hex.length > 7 ? part(7) : 255];
}

function inkOn(hex) {
  const [r, g, b] = rgba(hex).map((c) => (c <= 10 ? c / 3294 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.22 ? "#000000" : "#ffffff";
}

function withAlpha(hex, alpha) {
  const [r, g, b, a] = rgba(hex);
  return `rgba(${r},${g},${b},${(a / 255) * alpha})`;
}

function drawPixels(ctx, cells, grid) {
  const { colour, n, meta } = cells;
  const { size, columns, rows } = grid;
  const image = ctx.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const table = meta.palette.map((hex) => {
    const [r, g, b, a] = rgba(hex);
    return (a << 24) | (b << 16) | (g << 8) | r;
  });
  for (let i = 0; i < n; i += 1) pixels[i] = table[colour[i]];
  const small = new OffscreenCanvas(columns, rows);
  small.getContext("2d").putImageData(image, 0, 0);
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(small, 0, 0, columns * size, rows * size);
  if (size >= 4) {
    // gaps between cells: one row and one column of pixels taken out again
    for (let c = 1; c <= columns; c += 1) ctx.clearRect(c * size - 1, 0, 1, rows * size);
    for (let r = 1; r <= rows; r += 1) ctx.clearRect(0, r * size - 1, columns * size, 1);
  }
}

function drawCells(ctx, cells, grid, ratio, ink) {
  const { colour, letter, n, meta } = cells;
  const { size, columns } = grid;
  const gap = Math.max(1, Math.round(size * 0.07));
  const side = size - gap;
  const radius = Math.min(6 * ratio, side * 0.18);
  const faint = meta.palette.map((hex) => withAlpha(hex, 0.3));
  const showId = size >= 42 * ratio;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  for (let i = 0; i < n; i += 1) {
    const x = (i % columns) * size, y = Math.floor(i / columns) * size;
    const hex = meta.palette[colour[i]];
    const held = letter[i] !== 70; // F
    const part = cells.fill && held ? Math.min(1, cells.fill[i] / meta.blockSize) : 1;
    ctx.save();
    ctx.beginPath();
    ctx.roundRect(x, y, side, side, radius);
    ctx.clip();
    ctx.fillStyle = part < 1 ? faint[colour[i]] : hex;
    ctx.fillRect(x, y, side, side);
    if (part < 1) {
      const level = Math.round(side * part);
      ctx.fillStyle = hex;
      ctx.fillRect(x, y + side - level, side, level);
    }
    ctx.restore();
    const solid = held && part > 0.55;
    ctx.fillStyle = solid ? inkOn(hex) : ink;
    ctx.globalAlpha = held ? 1 : 0.45;
    const middle = y + side * (showId ? 0.58 : 0.54);
    ctx.font = `600 ${Math.round(side * (showId ? 0.38 : 0.52))}px system-ui, sans-serif`;
    ctx.fillText(String.fromCharCode(letter[i]), x + side / 2, middle);
    if (showId) {
      ctx.fillStyle = held && part > 0.88 ? inkOn(hex) : ink;
      ctx.globalAlpha = 0.72;
      ctx.textAlign = "left";
      ctx.font = `${Math.round(9.5 * ratio)}px system-ui, sans-serif`;
      ctx.fillText(String(i * meta.span), x + 4 * ratio, y + 9 * ratio);
      ctx.textAlign = "center";
    }
    ctx.globalAlpha = 1;
  }
}

function drawMarks(ctx, cells, grid, ratio) {
  const { size, columns } = grid;
  const side = size >= 4 ? size - 1 : size;
  ctx.fillStyle = cells.meta.mark;
  ctx.strokeStyle = cells.meta.mark;
  ctx.lineWidth = Math.max(2, Math.round(2 * ratio));
  for (const i of cells.meta.marked) {
    const x = (i % columns) * size, y = Math.floor(i / columns) * size;
    if (size >= 14 * ratio) {
      const edge = side * 0.34;
      ctx.beginPath();
      ctx.moveTo(x + side, y);
      ctx.lineTo(x + side - edge, y);
      ctx.lineTo(x + side, y + edge);
      ctx.fill();
    } else {
      ctx.strokeRect(x - 1, y - 1, side + 2, side + 2);
    }
  }
}

function place(box, grid, i, ratio) {
  const side = grid.size / ratio;
  box.hidden = i < 0;
  if (i < 0) return;
  box.style.left = `${GUTTER + (i % grid.columns) * side}px`;
  box.style.top = `${Math.floor(i / grid.columns) * side}px`;
  box.style.width = box.style.height = `${Math.max(side - (grid.size >= 14 ? side * 0.07 : 0), 3)}px`;
}

function sentence(cells, i) {
  const { meta } = cells;
  const name = meta.span > 1 ? `blocks ${i * meta.span}..${Math.min((i + 1) * meta.span, meta.blocks) - 1}` : `block ${i}`;
  const state = meta.states[String.fromCharCode(cells.letter[i])] || "";
  if (!cells.gen) return [name, state];
  const life = cells.gen[i] ? `b${i}#${cells.gen[i]}` : `b${i}, never handed out`;
  const lines = [life, cells.ref[i] ? `${state}, ref ${cells.ref[i]}` : state];
  if (cells.letter[i] !== 70) lines.push(`${cells.fill[i]} of ${meta.blockSize} slots filled`);
  if (cells.owner[i] !== NONE) lines.push(meta.names[cells.owner[i]]);
  if (meta.marked.includes(i)) lines.push("has a finding");
  return lines;
}

function drawLegend(root, meta) {
  const legend = root.querySelector(".legend");
  legend.replaceChildren(
    ...meta.legend.map((item) => {
      const entry = document.createElement("span");
      const chip = document.createElement("i");
      chip.style.background = item.colour;
      chip.style.color = item.letter === "F" ? "inherit" : inkOn(item.colour);
      chip.textContent = item.letter || "";
      const count = document.createElement("b");
      count.textContent = item.count === null ? "" : item.count.toLocaleString("en-US");
      if (item.count === 0) entry.className = "none";
      entry.append(chip, item.label, count);
      return entry;
    }),
  );
}

function drawLabels(root, cells, grid, ratio) {
  const labels = root.querySelector(".labels");
  const side = grid.size / ratio;
  const every = Math.max(1, Math.ceil(18 / side));
  const found = [];
  for (let row = 0; row < grid.rows; row += every) {
    const label = document.createElement("span");
    label.textContent = (row * grid.columns * cells.meta.span).toLocaleString("en-US");
    label.style.top = `${row * side}px`;
    label.style.height = `${Math.max(side * 0.93, 12)}px`;
    found.push(label);
  }
  labels.replaceChildren(...found);
}

function draw(root) {
  const cells = root.kvCells;
  const canvas = root.querySelector("canvas");
  const ratio = window.devicePixelRatio || 1;
  const width = Math.floor((root.clientWidth - GUTTER) * ratio);
  if (width < 8) return;
  const { meta, n } = cells;
  const grid = layout(n, width, meta.height * ratio, Math.floor(64 * ratio));
  grid.rows = Math.ceil(n / grid.columns);
  canvas.width = grid.columns * grid.size;
  canvas.height = grid.rows * grid.size;
  canvas.style.width = `${canvas.width / ratio}px`;
  canvas.style.height = `${canvas.height / ratio}px`;
  const ctx = canvas.getContext("2d");
  if (grid.size >= 14 * ratio && n <= 8192) drawCells(ctx, cells, grid, ratio, getComputedStyle(root).color);
  else drawPixels(ctx, cells, grid);
  drawMarks(ctx, cells, grid, ratio);
  drawLabels(root, cells, grid, ratio);
  drawLegend(root, meta);
  canvas.setAttribute("aria-label", meta.alt);
  root.kvGrid = grid;
  root.dataset.seq = meta.seq;
  place(root.querySelector(".picked"), grid, meta.selected, ratio);
}

function cellAt(root, event) {
  const { size, columns } = root.kvGrid;
  const ratio = window.devicePixelRatio || 1;
  const box = root.querySelector("canvas").getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) * ratio) / size);
  const row = Math.floor(((event.clientY - box.top) * ratio) / size);
  const i = row * columns + column;
  return column >= 0 && column < columns && row >= 0 && i < root.kvCells.n ? i : -1;
}

function hover(root, i) {
  const ratio = window.devicePixelRatio || 1;
  const tip = root.querySelector(".tip");
  root.kvHover = i;
  place(root.querySelector(".hovered"), root.kvGrid, i, ratio);
  tip.hidden = i < 0;
  if (i < 0) return;
  tip.replaceChildren(
    ...sentence(root.kvCells, i).map((line) => Object.assign(document.createElement("div"), { textContent: line })),
  );
  const side = root.kvGrid.size / ratio;
  const x = GUTTER + (i % root.kvGrid.columns) * side, y = Math.floor(i / root.kvGrid.columns) * side;
  const flip = x + side + tip.offsetWidth + 12 > root.clientWidth;
  tip.style.left = `${flip ? Math.max(0, x - tip.offsetWidth - 8) : x + side + 8}px`;
  tip.style.top = `${Math.max(0, y - 4)}px`;
}

function listen(root) {
  const canvas = root.querySelector("canvas");
  const pick = (i) => {
    if (i >= 0) root.kvPick(i);
  };
  canvas.addEventListener("mousemove", (event) => hover(root, cellAt(root, event)));
  canvas.addEventListener("mouseleave", () => hover(root, -1));
  canvas.addEventListener("blur", () => hover(root, -1));
  canvas.addEventListener("click", (event) => pick(cellAt(root, event)));
  canvas.addEventListener("keydown", (event) => {
    const { columns } = root.kvGrid;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    const now = root.kvHover >= 0 ? root.kvHover : Math.max(root.kvCells.meta.selected, 0);
    if (step !== undefined) {
      const next = now + step;
      if (next >= 0 && next < root.kvCells.n) hover(root, next);
    } else if (event.key === "Enter") pick(now);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  new ResizeObserver(() => root.kvCells && draw(root)).observe(root);
}

export default function (component) {
  const root = component.parentElement.querySelector(".map");
  const fresh = !root.kvCells;
  root.kvCells = decode(component.data);
  root.kvPick = (i) => component.setTriggerValue("picked", i);
  draw(root);
  if (fresh) {
    root.kvHover = -1;
    listen(root);
  } else if (root.kvHover >= 0) hover(root, root.kvHover < root.kvCells.n ? root.kvHover : -1);
}
