// J and K move an event, Shift+J and Shift+K a step, however fast they come: presses are added up and sent as totals,
// the next ones when the page has been drawn with those before: what a browser sends while it is behind says of every
// other element what it was drawn with some time ago.
// Data: { session, event, step }: the totals that the page was drawn with. Value: the same as they are now, less than
// 0 is back.
//
// One listener and one count for the window: the element may be mounted anew while keys are pressed.

const AGAIN_MS = 5000; // an answer that has not come by then does not come
const DIRECTION = { KeyJ: -1, KeyK: 1 };

function writes(target) {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input, textarea, select"));
}

function same(a, b) {
  return a.event === b.event && a.step === b.step;
}

function send(keys) {
  clearTimeout(keys.timer);
  if (!keys.root.isConnected || same(keys.total, keys.told)) return;
  const waits = keys.sent + AGAIN_MS - performance.now();
  if (!same(keys.told, keys.drawn) && waits > 0) {
    keys.timer = setTimeout(() => send(keys), waits);
    return;
  }
  keys.told = { ...keys.total };
  keys.sent = performance.now();
  keys.tell({ session: keys.session, ...keys.total });
}

function counted() {
  const keys = { timer: 0 };
  document.addEventListener("keydown", (event) => {
    const by = DIRECTION[event.code];
    if (!by || !keys.root.isConnected || event.ctrlKey || event.metaKey || event.altKey) return;
    if (writes(event.composedPath()[0])) return;
    keys.total[event.shiftKey ? "step" : "event"] += by;
    event.preventDefault();
    send(keys);
  });
  return keys;
}

export default function (component) {
  const keys = (window.kvKeys ||= counted());
  const { session, event, step } = component.data;
  if (keys.session !== session) Object.assign(keys, { session, total: { event, step }, told: { event, step }, sent: 0 });
  keys.root = component.parentElement.querySelector(".keys");
  keys.tell = (value) => component.setStateValue("asked", value);
  keys.drawn = { event, step };
  requestAnimationFrame(() => requestAnimationFrame(() => send(keys))); // the others have been drawn too by then
}
