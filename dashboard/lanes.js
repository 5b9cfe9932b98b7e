// The chain of a finding in lanes: a column for each sequence or thread, time downwards, a card for each event. A click
// on a card goes to its event. Text of a trace is put into the page as text only.

function element(tag, name, text) {
  const made = document.createElement(tag);
  made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

function head(lane) {
  const made = element("div", "head");
  made.style.setProperty("--lane", lane.colour);
  made.append(element("b", "", lane.name), element("small", "", lane.by));
  return made;
}

function card(row, pick) {
  const made = element("button", row.guilty ? "card guilty" : row.missing ? "card missing" : "card");
  made.type = "button";
  if (row.role) made.append(element("small", "", row.role));
  made.append(element("span", "", row.text));
  if (row.missing) made.disabled = true;
  else {
    made.title = `To event ${row.seq.toLocaleString("en-US")}`;
    made.dataset.seq = row.seq;
    made.addEventListener("click", () => pick(row.seq));
  }
  return made;
}

function draw(root, data, pick) {
  const { lanes, rows } = data;
  const grid = element("div", "grid");
  grid.style.gridTemplateColumns = `auto repeat(${lanes.length}, minmax(0, 1fr))`;
  grid.setAttribute("role", "group");
  grid.setAttribute("aria-label", data.alt);
  grid.append(element("div", "corner"), ...lanes.map(head));
  for (const row of rows) {
    const where = element("div", row.guilty ? "where guilty" : "where");
    if (row.between) where.append(element("i", "", row.between));
    where.append(element("b", "", row.missing ? "" : row.seq.toLocaleString("en-US")), element("small", "", row.where));
    grid.append(where);
    lanes.forEach((lane, i) => {
      const cell = element("div", "cell");
      cell.style.setProperty("--lane", lane.colour);
      if (i === row.lane) cell.append(card(row, pick));
      grid.append(cell);
    });
  }
  root.replaceChildren(grid);
}

export default function (component) {
  const root = component.parentElement.querySelector(".lanes");
  const said = JSON.stringify(component.data);
  if (root.kvSaid === said) return;
  root.kvSaid = said;
  draw(root, component.data, (seq) => component.setTriggerValue("picked", seq));
}
