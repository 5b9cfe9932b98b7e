// Saves what the page shows as one file that asks nobody for anything: HTML, or a PNG drawn from the same copy.
//
// The copy is the page's main part as it stands: canvases become pictures, the elements of our own (which live in
// shadow roots) become plain ones with their styles nested under a class, fonts of the text are written into it.
// What only works in a running page is left out: icons, buttons, tool bars, scripts.

const LEFT_OUT = "script, iframe, link, template, [data-testid=stElementToolbar], [data-testid=stSkeleton],"
  + " [data-testid=stButton], [data-testid=stButtonGroup], [data-testid=stElementToolbarButton], .stButton,"
  + " .stButtonGroup, .st-key-speed, .modebar-container, .zoom, .tip, [hidden], .st-key-timebar [data-testid=stHorizontalBlock]";
const VARIABLES = ["text-color", "background-color", "secondary-background-color", "border-color", "primary-color",
  "font"];
const HEADING = 44; // px

function rulesOf(root) {
  const found = [];
  for (const sheet of [...root.styleSheets, ...root.adoptedStyleSheets]) {
    try {
      found.push(...sheet.cssRules);
    } catch {
      continue; // a sheet of another origin: none of ours
    }
  }
  return found;
}

function picture(canvas) {
  const made = document.createElement("img");
  const box = canvas.getBoundingClientRect();
  try {
    made.src = canvas.toDataURL();
  } catch {
    return made;
  }
  made.alt = canvas.getAttribute("aria-label") || "";
  made.style.cssText = `display:block;width:${box.width}px;height:${box.height}px`;
  return made;
}

function variables(look) {
  const known = VARIABLES.map((name) => [name, look.getPropertyValue(`--st-${name}`)]).filter(([, value]) => value);
  return known.map(([name, value]) => `--st-${name}:${value}`).join(";");
}

function copied(node, styles) {
  if (node.nodeType === Node.TEXT_NODE) return node.cloneNode();
  if (node.nodeType !== Node.ELEMENT_NODE || node.matches(LEFT_OUT)) return null;
  if (getComputedStyle(node).fontFamily.includes("Material")) return null; // an icon, which is a letter of its font
  if (node.tagName === "CANVAS") return picture(node);
  if (node.tagName === "STYLE" && node.getRootNode() !== document) return null; // among `rulesOf` its root
  const made = node.cloneNode(false);
  if (node instanceof HTMLInputElement) made.setAttribute("value", node.value);
  let children = node.childNodes;
  if (node.shadowRoot) {
    const name = `kept-${styles.length}`;
    styles.push(`.${name} { ${rulesOf(node.shadowRoot).map((rule) => rule.cssText).join("\n")} }`);
    made.classList.add(name);
    made.style.cssText += `;${variables(getComputedStyle(node))}`;
    children = node.shadowRoot.childNodes;
  }
  for (const child of children) {
    const part = copied(child, styles);
    if (part) made.append(part);
  }
  if (!made.childNodes.length && node.childElementCount && node.textContent.trim()) return null; // the frame of an icon
  if (node.matches("[class*=st-key-tall_]")) made.style.height = `${node.clientHeight}px`; // not of the reader's window
  if (node.scrollTop) made.style.overflow = "hidden";
  return made;
}

async function dataUrl(url) {
  const blob = await (await fetch(url)).blob();
  return new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(blob);
  });
}

// The font that the text is in, with its file in it; no other.
async function fontRule(rules, wanted) {
  for (const rule of rules) {
    if (!(rule instanceof CSSFontFaceRule) || rule.style.fontStyle === "italic") continue;
    const family = rule.style.getPropertyValue("font-family").replaceAll('"', "");
    const source = /url\("?([^")]+)"?\)/.exec(rule.style.getPropertyValue("src"));
    if (!wanted.includes(family) || !source) continue;
    const file = await dataUrl(new URL(source[1], rule.parentStyleSheet.href || location.href));
    return `@font-face { font-family: "${family}"; font-weight: 200 900; src: url("${file}"); }`;
  }
  return "";
}

// What the page is, above it: the sidebar, which says so, is not copied.
function heading(data) {
  const made = document.createElement("h1");
  const title = document.querySelector(".kv-here")?.textContent;
  made.textContent = [title, data, "KVScope"].filter(Boolean).join(" · ");
  made.style.cssText = `box-sizing:border-box;height:${HEADING}px;margin:0;padding:14px 2.2rem 0;font-size:20px;`
    + "font-weight:650;line-height:26px;white-space:nowrap;overflow:hidden;text-overflow:ellipsis";
  return made;
}

async function copyOfPage(data) {
  const main = document.querySelector("[data-testid=stMain]");
  const look = getComputedStyle(main);
  const rules = rulesOf(document);
  const styles = [];
  const body = copied(main, styles);
  body.style.cssText = "position:static;overflow:visible;height:auto;width:auto;display:block";
  const page = document.createElement("div");
  const { colorScheme: scheme, fontSize: size } = getComputedStyle(document.documentElement);
  const background = getComputedStyle(document.querySelector("[data-testid=stApp]")).backgroundColor;
  page.style.cssText = `${variables(look)};color:${look.color};font:${look.font};color-scheme:${scheme};`
    + `background:${background};width:${main.clientWidth}px;margin:0 auto;min-height:${main.scrollHeight + HEADING}px`;
  const sheet = document.createElement("style");
  const plain = rules.filter((rule) => !(rule instanceof CSSFontFaceRule)).map((rule) => rule.cssText);
  const own = `html, body { margin: 0; background: ${background}; } html { font-size: ${size} !important; }`
    + ` .kv-pill { height: auto !important; top: 0 !important; }`; // the buttons that it stands beside are left out
  sheet.textContent = [await fontRule(rules, look.fontFamily), ...plain, ...styles, own].join("\n");
  page.append(sheet, heading(data), body);
  return { page, size, width: main.clientWidth, height: main.scrollHeight + HEADING };
}

function asHtml({ page }, title) {
  const head = document.createElement("title");
  head.textContent = title;
  const text = `<!doctype html>\n<html lang="en"><head><meta charset="utf-8">${head.outerHTML}</head>`
    + `<body>${page.outerHTML}</body></html>\n`;
  return new Blob([text], { type: "text/html" });
}

async function asPng({ page, size, width, height }) {
  const inside = new XMLSerializer().serializeToString(page);
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" style="font-size:${size}">`
    + `<foreignObject width="100%" height="100%">${inside}</foreignObject></svg>`;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  const ratio = Math.max(1, window.devicePixelRatio || 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  ctx.drawImage(image, 0, 0);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function nameOf(data) {
  const page = location.pathname.split("/").filter(Boolean).pop() || "overview";
  const seq = new URLSearchParams(location.search).get("seq");
  return ["kvscope", data, page, ...(seq ? [seq] : [])].join("-").replace(/[^\w.-]+/g, "_");
}

export default function (component) {
  const root = component.parentElement.querySelector(".keep");
  const said = root.querySelector("span");
  for (const button of root.querySelectorAll("button")) {
    button.onclick = async () => {
      const kind = button.dataset.kind;
      try {
        const name = nameOf(component.data);
        const copy = await copyOfPage(component.data);
        const blob = kind === "png" ? await asPng(copy) : asHtml(copy, name);
        const link = document.createElement("a");
        link.href = URL.createObjectURL(blob);
        link.download = `${name}.${kind}`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60000);
        said.textContent = "";
      } catch (error) {
        said.textContent = `not saved: ${error.message || error}`;
      }
    };
  }
}
