// The page of the explorer: draws what Python computes, and tells Python what people do.
// Everything that comes as text is set as text; pictures are SVG made (and escaped) by Python.

// For tests: milliseconds from a message to its picture, and whether every message is answered.
const times = (globalThis.hopfyLatencies = globalThis.hopfyLatencies || []);
globalThis.hopfyIdle = () => false;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// One message is under way at a time; newer ones of the same kind replace those that wait.
class Line {
  constructor(model) {
    this.model = model;
    this.waiting = [];
    this.number = 0;
    this.busy = false;
  }
  send(message) {
    const last = this.waiting[this.waiting.length - 1];
    if (last && last.type === message.type && last.name === message.name) {
      if (message.cells) message.cells = [...last.cells, ...message.cells];
      this.waiting[this.waiting.length - 1] = message;
    } else this.waiting.push(message);
    this.next();
  }
  next() {
    if (this.busy || !this.waiting.length) return;
    this.busy = true;
    this.number += 1;
    this.sent = performance.now();
    this.model.send_msg({ ...this.waiting.shift(), number: this.number });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.answered(this.number), 8000);
  }
  answered(number) {
    if (!this.busy || number < this.number) return;
    this.busy = false;
    clearTimeout(this.timer);
    times.push(performance.now() - this.sent);
    this.next();
  }
}

const shorten = (number) => String(Number(Number(number).toPrecision(3)));

function slider(spec, send) {
  const { low, high, log } = spec;
  const place = (value) => (log ? Math.log(value / low) / Math.log(high / low) : value);
  const value = (at) => (log ? low * (high / low) ** at : Number(at));
  const output = element("output", {}, shorten(spec.value));
  const input = element("input", {
    type: "range", min: log ? 0 : low, max: log ? 1 : high, step: log ? 0.002 : spec.step,
    "aria-label": spec.label, "data-name": spec.name,
    oninput: () => {
      const now = shorten(value(input.value));
      output.textContent = now;
      input.setAttribute("aria-valuetext", now);
      send(spec.name, now);
    },
  });
  const set = (text) => {
    if (shorten(value(input.value)) !== shorten(text)) input.value = place(Number(text));
    output.textContent = shorten(text);
    input.setAttribute("aria-valuetext", shorten(text));
  };
  input.value = place(Number(spec.value));
  return { node: element("label", { class: "control" }, element("span", {}, spec.label, output), input), set };
}

function choice(spec, send) {
  const options = spec.options.map((each) => element("option", { value: each }, each));
  const input = element(
    "select", { "aria-label": spec.label, "data-name": spec.name, onchange: () => send(spec.name, input.value) },
    ...options,
  );
  const set = (text) => { input.value = text; };
  set(spec.value);
  return { node: element("label", { class: "control" }, element("span", {}, spec.label), input), set };
}

function textBox(spec, send) {
  const area = spec.rows > 1;
  const input = element(area ? "textarea" : "input", {
    rows: area ? spec.rows : undefined, type: area ? undefined : "text", "aria-label": spec.label,
    "data-name": spec.name, spellcheck: "false", autocomplete: "off",
    oninput: () => send(spec.name, input.value.slice(0, 4 * spec.longest)),
  });
  const set = (text) => {
    if (input.getRootNode().activeElement !== input && input.value !== text) input.value = text;
  };
  input.value = spec.value;
  return { node: element("label", { class: "control wide" }, element("span", {}, spec.label), input), set };
}

function button(spec, send) {
  const node = element("button", { type: "button", "data-name": spec.name, onclick: () => send(spec.name) }, spec.label);
  return { node, set() {} };
}

// Numbers of a scale: low, high, start, stop.
const scaleOf = (target, axis) => target.dataset[axis]?.split(" ").map(Number);
const onScale = (scale, at) => {
  if (!scale) return null;
  const [low, high, start, stop] = scale;
  const value = low + ((at - start) / (stop - start)) * (high - low);
  return Math.min(Math.max(value, Math.min(low, high)), Math.max(low, high));
};

class Grips {
  constructor(stage, line) {
    this.stage = stage;
    this.line = line;
    this.held = null;
    stage.addEventListener("pointerdown", (event) => this.down(event));
    stage.addEventListener("pointermove", (event) => this.move(event));
    stage.addEventListener("pointerup", (event) => this.up(event));
    stage.addEventListener("pointercancel", () => { this.held = null; });
    stage.addEventListener("keydown", (event) => this.key(event));
  }
  handleAt(event) {
    const found = this.stage.getRootNode().elementFromPoint(event.clientX, event.clientY);
    return found?.closest?.("[data-handle]");
  }
  place(event) {
    const svg = this.stage.querySelector("svg");
    const box = svg.getBoundingClientRect();
    const factor = svg.viewBox.baseVal.width / box.width;
    return [(event.clientX - box.left) * factor, (event.clientY - box.top) * factor];
  }
  down(event) {
    const target = this.handleAt(event);
    if (!target || event.button) return;
    const { handle, kind, on } = target.dataset;
    if (kind === "press") {
      this.line.send({ type: "press", name: handle });
      return;
    }
    target.focus({ preventScroll: true });
    event.preventDefault();
    this.stage.setPointerCapture(event.pointerId);
    this.held = { handle, kind, x: scaleOf(target, "x"), y: scaleOf(target, "y"), ink: on === "1" ? "0" : "1" };
    if (kind === "paint") this.paint(target);
  }
  move(event) {
    if (!this.held) return;
    if (this.held.kind === "paint") this.paint(this.handleAt(event));
    else this.drag(event, false);
  }
  up(event) {
    if (this.held?.kind === "drag") this.drag(event, true);
    if (this.held?.kind === "paint") this.line.send({ type: "settle", name: "" });
    this.held = null;
  }
  drag(event, fine) {
    const [x, y] = this.place(event);
    const { handle } = this.held;
    this.line.send({ type: "move", name: handle, x: onScale(this.held.x, x), y: onScale(this.held.y, y), fine });
  }
  paint(target) {
    if (target?.dataset.kind !== "paint" || this.held.last === target.dataset.handle) return;
    this.held.last = target.dataset.handle;
    this.line.send({ type: "paint", name: "", cells: [[target.dataset.handle, this.held.ink]] });
  }
  key(event) {
    const target = event.target.closest?.("[data-handle]");
    if (!target) return;
    const { handle, kind, step, on, go } = target.dataset;
    const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      if (kind === "press") this.line.send({ type: "press", name: handle });
      if (kind === "paint") this.line.send({ type: "paint", name: "", cells: [[handle, on === "1" ? "0" : "1"]] });
    } else if (arrow && kind === "drag") {
      event.preventDefault();
      const box = target.getBBox();
      const by = Number(step) * (event.shiftKey ? 5 : 1);
      // Keys may come faster than pictures: count on from what was asked for last.
      const ahead = this.line.busy && this.keyed?.handle === handle;
      let x = ahead ? this.keyed.x : onScale(scaleOf(target, "x"), box.x + box.width / 2);
      let y = ahead ? this.keyed.y : onScale(scaleOf(target, "y"), box.y + box.height / 2);
      const [dx, dy] = x === null ? [0, arrow[0] + arrow[1]] : y === null ? [arrow[0] + arrow[1], 0] : arrow;
      x = x === null ? null : x + by * dx;
      y = y === null ? null : y + by * dy;
      this.keyed = { handle, x, y };
      this.line.send({ type: "move", name: handle, x, y, fine: true });
    } else if (arrow && go) {
      event.preventDefault();
      const next = target.dataset[{ ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" }[event.key]];
      this.stage.querySelector(`[data-handle="${CSS.escape(next ?? "")}"]`)?.focus();
    }
  }
}

function download(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// A dark page gives a dark picture: the colors in force are written into the file.
function alone(svg) {
  const copy = svg.cloneNode(true);
  const style = getComputedStyle(svg);
  for (const name of ["ink", "quiet", "line", "card", "paper", "yes", "no", "accent", "mark"])
    copy.style.setProperty(`--${name}`, style.getPropertyValue(`--${name}`));
  return new XMLSerializer().serializeToString(copy);
}

async function png(svg, name) {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([alone(svg)], { type: "image/svg+xml" }));
  await image.decode();
  const { width, height } = svg.viewBox.baseVal;
  const canvas = element("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  canvas.toBlob((blob) => download(name, blob), "image/png");
}

function toolbar(model, stage, latest) {
  const said = element("span", { role: "status", class: "said" });
  const tell = (text) => { said.textContent = text; setTimeout(() => { said.textContent = ""; }, 2500); };
  const copy = (text, what) => navigator.clipboard.writeText(text).then(() => tell(what), () => tell("The browser refused."));
  const picture = () => stage.querySelector("svg");
  const item = (name, label, act) => element("button", { type: "button", "data-name": name, onclick: act }, label);
  return element(
    "div", { class: "toolbar", role: "toolbar", "aria-label": "Export" },
    item("svg", "Picture (SVG)", () => download(`hopfy-${model.view}.svg`, new Blob([alone(picture())], { type: "image/svg+xml" }))),
    item("png", "Picture (PNG)", () => png(picture(), `hopfy-${model.view}.png`)),
    item("python", "Python file", () => download(`hopfy_${model.view}.py`, new Blob([latest().code], { type: "text/x-python" }))),
    item("copy-code", "Copy Python", () => copy(latest().code, "The code is in the clipboard.")),
    item("copy-link", "Copy link", () => copy(location.href, "The address is in the clipboard.")),
    said,
  );
}

const makers = { slider, choice, text: textBox, button };

export function render({ model }) {
  const line = new Line(model);
  const stage = element("div", { class: "picture" });
  const lines = element("ul", { class: "lines", "aria-live": "polite" });
  const notes = element("div", { class: "notes", role: "status" });
  const warm = element("div", { class: "warm", role: "status" });
  const code = element("pre", { tabindex: "0" });
  const controls = element("form", { class: "controls", "aria-label": "Settings", onsubmit: (event) => event.preventDefault() });
  const widgets = new Map();
  let shown = {}, timer = 0;
  globalThis.hopfyIdle = () => !line.busy && !line.waiting.length && !timer;
  new Grips(stage, line);

  const links = model.pages.map(([name, title]) =>
    element("a", { href: name, "aria-current": name === model.view ? "page" : undefined }, title));
  const change = (name, text) => line.send({ type: "change", name, text });
  const act = (name) => line.send({ type: "act", name });

  const show = () => {
    shown = model.shown;
    if (!shown.picture) return;
    const focus = stage.getRootNode().activeElement?.dataset?.handle;
    stage.innerHTML = shown.picture;
    if (focus) stage.querySelector(`[data-handle="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
    lines.replaceChildren(...shown.lines.map((each) => {
      const [, kind, text] = /^(yes:|no:)?(.*)$/s.exec(each);
      return element("li", { class: (kind ?? "").slice(0, -1) }, text);
    }));
    notes.replaceChildren(...shown.notes.map((each) => element("p", {}, each)));
    code.textContent = shown.code;
    for (const spec of shown.widgets) {
      if (!widgets.has(spec.name)) {
        const made = makers[spec.kind](spec, spec.kind === "button" ? act : change);
        widgets.set(spec.name, made);
        controls.append(made.node);
      } else widgets.get(spec.name).set(spec.value);
    }
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = 0;
      history.replaceState(null, "", shown.query ? `?${shown.query}` : location.pathname);
    }, 120);
    stage.dataset.ready = "yes";
    line.answered(shown.number);
  };
  const warmth = () => { warm.textContent = model.note; warm.hidden = !model.note; };
  model.on("shown", show);
  model.on("note", warmth);
  warmth();

  let width = 0;
  const resize = () => {
    const now = Math.round(stage.clientWidth);
    if (!now || Math.abs(now - width) < 2) return;
    line.send(width ? { type: "size", name: "", width: now }
                    : { type: "start", name: "", width: now, query: location.search });
    width = now;
  };
  const observer = new ResizeObserver(resize);
  model.on("after_render", () => {
    observer.observe(stage);
    resize();
    links.find((each) => each.hasAttribute("aria-current"))?.scrollIntoView({ block: "nearest", inline: "center" });
  });
  model.on("remove", () => observer.disconnect());

  return element(
    "div", { class: "page" },
    element("header", {},
      element("a", { class: "brand", href: "maps" }, "hopfy"),
      element("nav", { "aria-label": "Views" }, ...links)),
    element("div", { class: "head" }, element("h1", {}, model.heading), element("p", { class: "lead" }, model.lead)),
    warm, notes,
    element("div", { class: model.controls_first ? "body controls-first" : "body" }, element("div", { class: "main" }, stage, lines), controls),
    toolbar(model, stage, () => shown),
    element("details", { class: "code" }, element("summary", {}, "The Python code that computes this"), code),
    element("footer", {}, "Computed live by hopfy on this machine. Nothing is loaded from, or sent to, the network."),
  );
}
