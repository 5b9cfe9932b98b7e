// A list of events: the current one in view, a click or Enter picks one.
// data: { current: seq | null, columns: [{ name, kind: "number" | "text", grow }], rows: [[seq, ...cells]] }

function cell(tag, text, column) {
  const made = document.createElement(tag);
  made.textContent = text === null ? "" : column.kind === "number" ? text.toLocaleString("en-US") : text;
  made.className = column.kind + (column.grow ? " grow" : "");
  return made;
}

function build(table, data, pick) {
  const head = document.createElement("tr");
  head.append(...data.columns.map((column) => cell("th", column.name, { ...column, kind: `${column.kind} head` })));
  const body = data.rows.map((row) => {
    const made = document.createElement("tr");
    made.append(...row.map((value, i) => cell("td", value, data.columns[i])));
    made.tabIndex = 0;
    made.dataset.seq = row[0];
    if (row[0] === data.current) made.className = "current";
    made.addEventListener("click", () => pick(row[0]));
    made.addEventListener("keydown", (event) => event.key === "Enter" && pick(row[0]));
    return made;
  });
  table.querySelector("thead").replaceChildren(head);
  table.querySelector("tbody").replaceChildren(...body);
}

export default function (component) {
  const box = component.parentElement.querySelector(".rows");
  build(box.querySelector("table"), component.data, (seq) => component.setTriggerValue("picked", seq));
  const { height, above } = component.data;
  box.style.maxHeight = above ? `min(${height}px, max(200px, calc(100vh - ${above}rem)))` : `${height}px`;
  const current = box.querySelector(".current");
  if (current) box.scrollTop = current.offsetTop - box.clientHeight / 2 + current.offsetHeight;
}
