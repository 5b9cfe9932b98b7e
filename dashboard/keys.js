// J and K move an event, Shift+J and Shift+K a step, however fast they come: presses are added up and sent as totals,
// the next ones when the page has answered. What was sent twice, or never drawn, moves nothing and loses nothing.
// Value: { mount, event, step }: totals since the element was mounted, back less than 0.

const WAIT_MS = 40;
const DIRECTION = { KeyJ: -1, KeyK: 1 };

function busy() {
  return document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === "running";
}

function writes(target) {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input, textarea, select"));
}

function send(root) {
  const { told, total } = root.kvKeys;
  if (!root.isConnected || (told.event === total.event && told.step === total.step)) return;
  if (busy()) {
    clearTimeout(root.kvKeys.timer);
    root.kvKeys.timer = setTimeout(() => send(root), WAIT_MS);
    return;
  }
  root.kvKeys.told = { ...total };
  root.kvTell({ mount: root.kvKeys.mount, ...total });
}

function listen(root) {
  document.addEventListener("keydown", function press(event) {
    if (!root.isConnected) {
      document.removeEventListener("keydown", press);
      return;
    }
    const by = DIRECTION[event.code];
    const target = event.composedPath()[0];
    if (!by || event.ctrlKey || event.metaKey || event.altKey || writes(target)) return;
    root.kvKeys.total[event.shiftKey ? "step" : "event"] += by;
    event.preventDefault();
    send(root);
  });
}

export default function (component) {
  const root = component.parentElement.querySelector(".keys");
  root.kvTell = (value) => component.setStateValue("asked", value);
  if (root.kvKeys) return;
  const none = { event: 0, step: 0 };
  root.kvKeys = { mount: Math.floor(Math.random() * 2 ** 40), told: { ...none }, total: { ...none }, timer: 0 };
  listen(root);
}
