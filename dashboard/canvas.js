// The block map: one cell per block, drawn pixel-exact on a canvas; hover names a block, a click picks it, the wheel
// zooms. Drawn from a picture of one pixel per cell, so a frame costs the same however far one looks out or in.
//
// Payload (little endian): u32 cells, u32 bytes of JSON, the JSON padded to a multiple of 4, then by cell:
//   u8 colour (index into meta.palette)
//   and with meta.detail: u8 letter (ASCII), u8 fill, u8 ref, u16 owner (index into meta.names, 65535 = none), u32 gen
//   then with meta.window, for the blocks of that part: u8 colour, letter, fill, ref, u32 gen
// A cell is a block; of the largest pools a tile of meta.tile [columns, rows] blocks, and meta.columns are given.
// The functions below keep no state but what hangs on the root element, so a re-render only redraws.

const GUTTER = 46; // CSS pixels left of the grid for the row labels
const NONE = 65535;
const LETTERS_FROM = 14; // CSS pixels of a cell from which its letter is drawn
const MOST_LETTERS = 6000; // cells drawn one by one
const DEEPEST = 44; // CSS pixels of a cell at the deepest zoom
const FREE = 70; // F

function reader(buffer, at) {
  return (type, n) => {
    const width = type.BYTES_PER_ELEMENT;
    const part = new type(buffer.slice(at, at + n * width));
    at += n * width;
    return part;
  };
}

function decode(bytes) {
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
  const [n, length] = new Uint32Array(buffer, 0, 2);
  const meta = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const take = reader(buffer, 8 + Math.ceil(length / 4) * 4);
  const cells = { n, meta, colour: take(Uint8Array, n) };
  if (meta.detail) {
    Object.assign(cells, {
      letter: take(Uint8Array, n), fill: take(Uint8Array, n), ref: take(Uint8Array, n), owner: take(Uint16Array, n),
      gen: take(Uint32Array, n),
    });
  }
  if (meta.window) {
    const { c0, c1, r0, r1 } = meta.window;
    const w = (c1 - c0) * (r1 - r0);
    cells.window = {
      colour: take(Uint8Array, w), letter: take(Uint8Array, w), fill: take(Uint8Array, w), ref: take(Uint8Array, w),
      gen: take(Uint32Array, w),
    };
  }
  return cells;
}

// What is known of one block, or null where only its tile's colour is.
function known(cells, grid, i) {
  if (cells.meta.detail) return { from: cells, at: i };
  const part = cells.meta.window;
  if (!part || part.columns !== grid.columns) return null;
  const c = i % grid.columns, r = Math.floor(i / grid.columns);
  if (c < part.c0 || c >= part.c1 || r < part.r0 || r >= part.r1) return null;
  return { from: cells.window, at: (r - part.r0) * (part.c1 - part.c0) + c - part.c0 };
}

// The largest cell with which the whole pool fits into width x height; columns are a multiple of 8, in small pools of 4.
function layout(n, width, height, most) {
  for (let size = most; size > 1; size -= 1) {
    const fit = Math.min(Math.floor(width / size), n);
    const columns = fit >= 32 ? fit - (fit % 8) : fit >= 8 ? fit - (fit % 4) : fit;
    if (columns < 8 && n > columns && size > 24 * (window.devicePixelRatio || 1)) continue;
    if (columns > 0 && Math.ceil(n / columns) * size <= height) return { size, columns };
  }
  return { size: 1, columns: Math.max(1, Math.min(width, n)) };
}

// On a high window the map is as high as there is room below what stands above it.
function heightOf(meta) {
  return Math.max(meta.height, window.innerHeight - 27 * rem());
}

function rem() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize) || 15;
}

function gridOf(meta, n, width, ratio) {
  const height = heightOf(meta) * ratio;
  if (meta.tile) {
    const rows = Math.ceil(meta.blocks / meta.columns);
    const size = Math.min(width / meta.columns, height / rows);
    return { size, columns: meta.columns, rows };
  }
  const most = Math.max(4.3 * rem() * ratio, heightOf(meta) > meta.height ? height / 6 : 0);
  const grid = layout(n, width, height, Math.floor(most));
  return { ...grid, rows: Math.ceil(n / grid.columns) };
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

function picture(cells, grid) {
  const { colour, n, meta } = cells;
  const across = meta.tile ? meta.columns / meta.tile[0] : grid.columns;
  const down = Math.ceil(n / across);
  const image = new ImageData(across, down);
  const pixels = new Uint32Array(image.data.buffer);
  const table = meta.palette.map((hex) => {
    const [r, g, b, a] = rgba(hex);
    return (a << 24) | (b << 16) | (g << 8) | r;
  });
  for (let i = 0; i < n; i += 1) pixels[i] = table[colour[i]];
  const small = new OffscreenCanvas(across, down);
  small.getContext("2d").putImageData(image, 0, 0);
  return small;
}

function visible(grid) {
  const { side, zoom } = grid;
  return {
    c0: Math.max(0, Math.floor(zoom.x / side)), c1: Math.min(grid.columns, Math.ceil((zoom.x + grid.width) / side)),
    r0: Math.max(0, Math.floor(zoom.y / side)), r1: Math.min(grid.rows, Math.ceil((zoom.y + grid.height) / side)),
  };
}

function drawPixels(ctx, root) {
  const { kvGrid: grid, kvCells: cells } = root;
  const { side, zoom } = grid;
  const [kx, ky] = cells.meta.tile || [1, 1];
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(root.kvPicture, zoom.x / side / kx, zoom.y / side / ky, grid.width / side / kx, grid.height / side / ky,
    0, 0, grid.width, grid.height);
  if (side < 4) return;
  const part = visible(grid); // gaps between cells: one row and one column of pixels taken out again
  for (let c = part.c0; c <= part.c1; c += 1) ctx.clearRect(Math.round(c * side - zoom.x) - 1, 0, 1, grid.height);
  for (let r = part.r0; r <= part.r1; r += 1) ctx.clearRect(0, Math.round(r * side - zoom.y) - 1, grid.width, 1);
}

function drawCell(ctx, meta, paint, x, y, i) {
  const { side, radius, ratio, ink, faint, showId } = paint;
  const { colour, letter, fill } = paint.of;
  const hex = meta.palette[colour];
  const held = letter !== FREE;
  const part = held ? Math.min(1, fill / meta.blockSize) : 1;
  ctx.save();
  ctx.beginPath();
  ctx.roundRect(x, y, side, side, radius);
  ctx.clip();
  ctx.fillStyle = part < 1 ? faint[colour] : hex;
  ctx.fillRect(x, y, side, side);
  if (part < 1) {
    const level = Math.round(side * part);
    ctx.fillStyle = hex;
    ctx.fillRect(x, y + side - level, side, level);
  }
  if (paint.hatched.has(letter)) hatch(ctx, x, y, side);
  ctx.restore();
  const solid = held && part > 0.55 && hex.length === 7; // on a pale colour the page shows through
  ctx.fillStyle = solid ? inkOn(hex) : ink;
  ctx.globalAlpha = held ? 1 : 0.45;
  ctx.font = `600 ${Math.round(side * (showId ? 0.38 : 0.52))}px ${paint.font}`;
  ctx.fillText(String.fromCharCode(letter), x + side / 2, y + side * (showId ? 0.58 : 0.54));
  if (showId) {
    ctx.fillStyle = solid && part > 0.88 ? inkOn(hex) : ink;
    ctx.globalAlpha = 0.72;
    ctx.textAlign = "left";
    ctx.font = `${Math.round(0.63 * rem() * ratio)}px ${paint.font}`;
    ctx.fillText(String(i), x + 4 * ratio, y + 9 * ratio);
    ctx.textAlign = "center";
  }
  ctx.globalAlpha = 1;
}

// Stripes over a cell: what is in it is of no use to anybody.
function hatch(ctx, x, y, side) {
  ctx.strokeStyle = "rgba(0,0,0,0.26)";
  ctx.lineWidth = Math.max(1, side * 0.035);
  ctx.beginPath();
  for (let d = -side; d < side; d += Math.max(4, side / 5)) {
    ctx.moveTo(x + d, y + side);
    ctx.lineTo(x + d + side, y);
  }
  ctx.stroke();
}

function drawCells(ctx, root, ratio) {
  const { kvGrid: grid, kvCells: cells } = root;
  const { meta } = cells;
  const { side: pitch, zoom } = grid;
  const side = pitch - Math.max(1, Math.round(pitch * 0.07));
  const paint = {
    side, ratio, radius: Math.min(6 * ratio, side * 0.18), ink: getComputedStyle(root).color,
    faint: meta.palette.map((hex) => withAlpha(hex, 0.3)), showId: pitch >= 40 * ratio, of: null,
    font: getComputedStyle(root).fontFamily, hatched: new Set(meta.hatched.map((one) => one.charCodeAt(0))),
  };
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  const part = visible(grid);
  for (let r = part.r0; r < part.r1; r += 1) {
    for (let c = part.c0; c < part.c1; c += 1) {
      const i = r * grid.columns + c;
      if (i >= meta.blocks) break;
      const found = known(cells, grid, i);
      if (!found || !found.from.letter[found.at]) continue;
      const { from, at } = found;
      paint.of = { colour: from.colour[at], letter: from.letter[at], fill: from.fill[at] };
      const x = c * pitch - zoom.x, y = r * pitch - zoom.y;
      ctx.clearRect(x, y, pitch, pitch);
      drawCell(ctx, meta, paint, x, y, i);
    }
  }
}

function drawMarks(ctx, root, ratio) {
  const { kvGrid: grid, kvCells: cells } = root;
  const { side: pitch, zoom } = grid;
  const letters = pitch >= LETTERS_FROM * ratio;
  const side = pitch >= 4 ? pitch - (letters ? Math.max(1, Math.round(pitch * 0.07)) : 1) : pitch;
  ctx.fillStyle = cells.meta.mark;
  ctx.strokeStyle = cells.meta.mark;
  ctx.lineWidth = Math.max(2, Math.round(2 * ratio));
  for (const i of cells.meta.marked) {
    const x = (i % grid.columns) * pitch - zoom.x, y = Math.floor(i / grid.columns) * pitch - zoom.y;
    if (letters) {
      const edge = side * 0.34;
      ctx.beginPath();
      ctx.moveTo(x + side, y);
      ctx.lineTo(x + side - edge, y);
      ctx.lineTo(x + side, y + edge);
      ctx.fill();
      ctx.beginPath(); // an edge, for a cell may have the mark's own colour
      ctx.moveTo(x + side - edge, y);
      ctx.lineTo(x + side, y + edge);
      ctx.save();
      ctx.strokeStyle = "#ffffff";
      ctx.lineWidth = Math.max(1, ratio * 1.2);
      ctx.stroke();
      ctx.restore();
    } else {
      const grown = Math.max(side, 5 * ratio);
      ctx.strokeRect(x - (grown - side) / 2 - 1, y - (grown - side) / 2 - 1, grown + 2, grown + 2);
    }
  }
}

function place(box, grid, i, ratio) {
  const side = grid.side / ratio;
  const x = ((i % grid.columns) * grid.side - grid.zoom.x) / ratio;
  const y = (Math.floor(i / grid.columns) * grid.side - grid.zoom.y) / ratio;
  box.hidden = i < 0 || x < -1 || y < -1 || x >= grid.width / ratio || y >= grid.height / ratio;
  if (box.hidden) return;
  box.style.left = `${GUTTER + x}px`;
  box.style.top = `${y}px`;
  box.style.width = box.style.height = `${Math.max(side - (grid.side >= 14 ? side * 0.07 : 0), 3)}px`;
}

function sentence(root, i) {
  const { kvGrid: grid, kvCells: cells } = root;
  const { meta } = cells;
  const found = known(cells, grid, i);
  const marked = meta.marked.includes(i) ? ["has a finding"] : [];
  if (!found) {
    const [kx, ky] = meta.tile || [1, 1];
    const where = meta.tile ? `among ${kx} × ${ky} blocks at ${i.toLocaleString("en-US")}` : `block ${i}`;
    const cell = meta.tile
      ? Math.floor(Math.floor(i / grid.columns) / ky) * (meta.columns / kx) + Math.floor((i % grid.columns) / kx)
      : i;
    const state = meta.shown[cells.colour[cell]] || "";
    return [where, meta.tile ? `most telling: ${state}` : state, "zoom in for more", ...marked];
  }
  const { from, at } = found;
  const state = meta.states[String.fromCharCode(from.letter[at])] || "";
  const lines = [from.gen[at] ? `b${i}#${from.gen[at]}` : `b${i}, never handed out`];
  lines.push(from.ref[at] ? `${state}, ref ${from.ref[at]}` : state);
  if (from.letter[at] !== FREE) lines.push(`${from.fill[at]} of ${meta.blockSize} slots filled`);
  if (from.owner && from.owner[at] !== NONE) lines.push(meta.names[from.owner[at]]);
  return [...lines, ...marked];
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

function drawLabels(root, ratio) {
  const { kvGrid: grid } = root;
  const side = grid.side / ratio;
  const every = Math.max(1, Math.ceil(18 / side));
  const { r0, r1 } = visible(grid);
  const found = [];
  for (let row = Math.ceil(r0 / every) * every; row < r1; row += every) {
    const top = row * side - grid.zoom.y / ratio;
    if (top < -side / 2 || top > grid.height / ratio - 6) continue;
    const label = document.createElement("span");
    label.textContent = (row * grid.columns).toLocaleString("en-US");
    label.style.top = `${top}px`;
    label.style.height = `${Math.max(Math.min(side, 80) * 0.93, 12)}px`;
    found.push(label);
  }
  root.querySelector(".labels").replaceChildren(...found);
}

function draw(root) {
  const cells = root.kvCells;
  const canvas = root.querySelector("canvas");
  const ratio = window.devicePixelRatio || 1;
  const width = Math.floor((root.clientWidth - GUTTER) * ratio);
  if (width < 8) return;
  const grid = gridOf(cells.meta, cells.n, width, ratio);
  const before = root.kvGrid;
  const kept = before && before.columns === grid.columns && before.size === grid.size;
  grid.width = Math.round(grid.columns * grid.size);
  grid.height = Math.round(grid.rows * grid.size);
  grid.zoom = kept ? before.zoom : { k: 1, x: 0, y: 0 };
  grid.side = grid.size * grid.zoom.k;
  root.kvGrid = grid;
  if (canvas.width !== grid.width || canvas.height !== grid.height) {
    canvas.width = grid.width;
    canvas.height = grid.height;
    canvas.style.width = `${canvas.width / ratio}px`;
    canvas.style.height = `${canvas.height / ratio}px`;
  }
  root.kvPicture = picture(cells, grid);
  drawLegend(root, cells.meta);
  canvas.setAttribute("aria-label", cells.meta.alt);
  paint(root);
  root.dataset.near = Boolean(cells.meta.detail || cells.window);
  root.dataset.seq = cells.meta.seq;
}

function paint(root) {
  const { kvGrid: grid, kvCells: cells } = root;
  const ratio = window.devicePixelRatio || 1;
  const ctx = root.querySelector("canvas").getContext("2d");
  ctx.clearRect(0, 0, grid.width, grid.height);
  const { c0, c1, r0, r1 } = visible(grid);
  const single = grid.side >= LETTERS_FROM * ratio && (c1 - c0) * (r1 - r0) <= MOST_LETTERS;
  if (!(single && cells.meta.detail)) drawPixels(ctx, root);
  if (single) drawCells(ctx, root, ratio);
  drawMarks(ctx, root, ratio);
  drawLabels(root, ratio);
  place(root.querySelector(".picked"), grid, cells.meta.selected, ratio);
  root.querySelector(".reset").hidden = grid.zoom.k === 1;
  root.dataset.zoom = grid.zoom.k;
}

function deepest(grid) {
  return Math.max(1, (DEEPEST * (window.devicePixelRatio || 1)) / grid.size);
}

// Zoom to k times the whole, keeping the block under (x, y) where it is.
function zoomTo(root, k, x, y) {
  const { kvGrid: grid } = root;
  const { zoom } = grid;
  const next = Math.min(Math.max(k, 1), deepest(grid));
  const fx = (zoom.x + x) / zoom.k, fy = (zoom.y + y) / zoom.k;
  moveTo(root, next, fx * next - x, fy * next - y);
}

function moveTo(root, k, x, y) {
  const { kvGrid: grid } = root;
  grid.zoom = {
    k, x: Math.min(Math.max(x, 0), grid.width * (k - 1)), y: Math.min(Math.max(y, 0), grid.height * (k - 1)),
  };
  grid.side = grid.size * k;
  paint(root);
  hover(root, -1);
  clearTimeout(root.kvAsking);
  root.kvAsking = setTimeout(() => ask(root), 120);
}

// Where single blocks are in sight of which only a colour was sent: ask for the rest.
function ask(root) {
  const { kvGrid: grid, kvCells: cells } = root;
  if (cells.meta.detail) return;
  const part = visible(grid);
  const count = (part.c1 - part.c0) * (part.r1 - part.r0);
  const near = grid.side >= 6 * (window.devicePixelRatio || 1) && count <= cells.meta.mostWindow;
  const wanted = near ? { ...part, columns: grid.columns } : null;
  if (JSON.stringify(wanted) !== JSON.stringify(root.kvAsked || null)) {
    root.kvAsked = wanted;
    root.kvWindow(wanted);
  }
}

function blockAt(root, event) {
  const { side, columns, zoom } = root.kvGrid;
  const ratio = window.devicePixelRatio || 1;
  const box = root.querySelector("canvas").getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) * ratio + zoom.x) / side);
  const row = Math.floor(((event.clientY - box.top) * ratio + zoom.y) / side);
  const i = row * columns + column;
  return column >= 0 && column < columns && row >= 0 && i < root.kvCells.meta.blocks ? i : -1;
}

function hover(root, i) {
  const { kvGrid: grid } = root;
  const ratio = window.devicePixelRatio || 1;
  const tip = root.querySelector(".tip");
  root.kvHover = i;
  place(root.querySelector(".hovered"), grid, i, ratio);
  tip.hidden = i < 0;
  if (i < 0) return;
  tip.replaceChildren(
    ...sentence(root, i).map((line) => Object.assign(document.createElement("div"), { textContent: line })),
  );
  const side = grid.side / ratio;
  const x = GUTTER + ((i % grid.columns) * grid.side - grid.zoom.x) / ratio;
  const y = (Math.floor(i / grid.columns) * grid.side - grid.zoom.y) / ratio;
  const flip = x + side + tip.offsetWidth + 12 > root.clientWidth;
  tip.style.left = `${flip ? Math.max(0, x - tip.offsetWidth - 8) : x + side + 8}px`;
  tip.style.top = `${Math.max(0, y - 4)}px`;
}

function pick(root, i) {
  if (i < 0) return;
  const single = !root.kvCells.meta.tile || known(root.kvCells, root.kvGrid, i);
  root.kvPick(single ? i : -i - 1); // of a tile: its most telling block, which the server knows
}

function listenToPointer(root, canvas) {
  const ratio = () => window.devicePixelRatio || 1;
  let from = null, moved = false;
  canvas.addEventListener("mousemove", (event) => {
    if (from && event.buttons === 0) from = null; // let go outside
    if (!from) return hover(root, blockAt(root, event));
    const dx = event.clientX - from.x, dy = event.clientY - from.y;
    moved = moved || Math.abs(dx) + Math.abs(dy) > 4;
    if (moved) moveTo(root, root.kvGrid.zoom.k, from.zoom.x - dx * ratio(), from.zoom.y - dy * ratio());
    return undefined;
  });
  canvas.addEventListener("mousedown", (event) => {
    moved = false;
    from = root.kvGrid.zoom.k > 1 ? { x: event.clientX, y: event.clientY, zoom: root.kvGrid.zoom } : null;
  });
  canvas.addEventListener("mouseup", () => (from = null));
  canvas.addEventListener("mouseleave", () => hover(root, -1));
  canvas.addEventListener("blur", () => hover(root, -1));
  canvas.addEventListener("click", (event) => moved || pick(root, blockAt(root, event)));
  canvas.addEventListener("dblclick", () => moveTo(root, 1, 0, 0));
  canvas.addEventListener("wheel", (event) => {
    const { zoom, size } = root.kvGrid;
    const helps = size < LETTERS_FROM * ratio() * 1.5;
    if (!(zoom.k > 1 || (event.deltaY < 0 && helps))) return; // the page scrolls
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    const x = (event.clientX - box.left) * ratio(), y = (event.clientY - box.top) * ratio();
    zoomTo(root, zoom.k * 2 ** (-event.deltaY / 200), x, y);
  }, { passive: false });
}

function listen(root) {
  const canvas = root.querySelector("canvas");
  listenToPointer(root, canvas);
  const middle = (factor) => zoomTo(root, root.kvGrid.zoom.k * factor, root.kvGrid.width / 2, root.kvGrid.height / 2);
  root.querySelector(".nearer").addEventListener("click", () => middle(2));
  root.querySelector(".farther").addEventListener("click", () => middle(0.5));
  root.querySelector(".reset").addEventListener("click", () => moveTo(root, 1, 0, 0));
  canvas.addEventListener("keydown", (event) => {
    const { columns } = root.kvGrid;
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    const factor = { "+": 2, "=": 2, "-": 0.5 }[event.key];
    const now = root.kvHover >= 0 ? root.kvHover : Math.max(root.kvCells.meta.selected, 0);
    if (step !== undefined) {
      const next = now + step;
      if (next >= 0 && next < root.kvCells.meta.blocks) hover(root, next);
    } else if (factor) middle(factor);
    else if (event.key === "0") moveTo(root, 1, 0, 0);
    else if (event.key === "Enter") pick(root, now);
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
  root.kvWindow = (part) => component.setStateValue("window", part);
  draw(root);
  if (fresh) {
    root.kvHover = -1;
    listen(root);
  } else if (root.kvHover >= 0) hover(root, root.kvHover < root.kvCells.meta.blocks ? root.kvHover : -1);
}
