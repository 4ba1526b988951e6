// Parts of the page that all panels share: elements, controls, values, colours, and plots on a canvas.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const SCALES = new WeakMap(); // sliders that show another number than their position, and how to get from one to the other

// A slider with its name and its value; `set` moves it without calling `changed`
function slider(name, label, { min, max, step = "any", value, shown = String, scale = null }, changed) {
  const input = element("input", { type: "range", min, max, step, value, "data-control": name });
  if (scale) SCALES.set(input, scale);
  const output = element("span", { class: "ex-shown", "aria-hidden": "true" });
  const tell = () => {
    output.textContent = shown(input.valueAsNumber);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => { tell(); changed(input.valueAsNumber); });
  tell();
  const set = (number, limits = {}) => {
    for (const [key, limit] of Object.entries(limits)) input[key] = limit;
    input.value = number;
    tell();
  };
  return { node: element("label", { class: "ex-control" }, element("span", {}, label), input, output), input, set };
}

function choice(name, label, options, changed) {
  const input = element("select", { "data-control": name, onchange: () => changed(input.value) });
  const set = (list, value) => {
    input.replaceChildren(...list.map(([key, text]) => element("option", { value: key }, text)));
    input.value = value ?? list[0][0];
  };
  set(options);
  return { node: element("label", { class: "ex-control" }, element("span", {}, label), input), input, set };
}

const button = (name, text, pressed) =>
  element("button", { type: "button", class: "ex-button", "data-control": name, onclick: pressed }, text);

// Named values: shown in few digits, all digits in data-value
function values(names) {
  const cells = {};
  const node = element("dl", { class: "ex-values" });
  for (const [name, label] of Object.entries(names)) {
    cells[name] = element("dd", { "data-name": name });
    node.append(element("div", {}, element("dt", {}, label), cells[name]));
  }
  const set = (name, number, text = short(number)) => {
    cells[name].textContent = text;
    cells[name].dataset.value = String(number);
  };
  return { node, set, cells };
}

// A picture, and on screens that are wide enough what belongs to it at its side, so that both are seen at once
const beside = (picture, side) => element("div", { class: "ex-beside" }, element("div", {}, ...picture), element("div", {}, ...side));

// The sentence below a panel: proved, measured or void
function verdict() {
  const badge = element("span", { class: "ex-badge" }), text = element("span", {});
  const node = element("p", { class: "ex-verdict", role: "status" }, badge, text);
  const set = (kind, sentence) => {
    if (node.dataset.kind === kind && text.textContent === sentence) return;
    node.dataset.kind = kind;
    badge.textContent = kind;
    text.textContent = sentence;
  };
  return { node, set };
}

const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const power = (n) => `10${[...String(n)].map((c) => SUPERSCRIPT[c]).join("")}`;

function short(number) {
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e-3 && size < 1e5) return String(Number(number.toPrecision(5))).replace("-", "−");
  const [digits, exponent] = number.toExponential(2).split("e");
  return `${digits.replace("-", "−")}·${power(Number(exponent))}`;
}

// A bound in three digits, rounded up: what is shown is at least what is proved, as in Python's certificates
function atMost(bound) {
  if (!Number.isFinite(bound) || bound === 0) return short(bound);
  const [, first, more, rest, exponent] = bound.toExponential(60).match(/^(\d)\.(\d\d)(\d+)e(.*)$/);
  const digits = Number(first + more) + (/[1-9]/.test(rest) ? 1 : 0);
  return short(Number(`${digits}e${Number(exponent) - 2}`));
}

// Two numbers on a logarithmic slider: its position is the logarithm of what it shows
const powersOf = (base) => ({ shownAs: (n) => base ** n, positionOf: (number) => Math.log(number) / Math.log(base) });

const fixed = (digits) => (number) => number.toFixed(digits).replace("-", "−");
const limited = (number, lo, hi) => Math.min(Math.max(number, lo), hi);

// ---- colours: those of the style sheet, read again when the theme changes

const NAMES = ["ink", "soft", "line", "ground", "blue", "orange", "green", "red", "low", "middle", "high"];
let COLOURS = {};

function readColours(root) {
  const style = getComputedStyle(root);
  COLOURS = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--ex-${name}`).trim()]));
  COLOURS.scale = ["low", "middle", "high"].map((name) => COLOURS[name].match(/\w\w/g).map((h) => parseInt(h, 16)));
}

// low, middle, high for 0, 1/2, 1
function scaled(share) {
  const at = limited(share, 0, 1) * 2, i = at < 1 ? 0 : 1, t = at - i;
  const mixed = COLOURS.scale[i].map((c, n) => Math.round(c + (COLOURS.scale[i + 1][n] - c) * t));
  return `rgb(${mixed.join(",")})`;
}

function watchTheme(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new MutationObserver(redraw).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
}

// ---- a canvas with bands of axes

const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

class Picture {
  constructor(height, label, attributes = {}) {
    this.height = height;
    this.canvas = element("canvas", { role: "img", "aria-label": label, class: "ex-canvas", ...attributes });
    this.canvas.style.height = `${height}px`;
    this.g = this.canvas.getContext("2d");
  }

  // Start a drawing: the size of the canvas in pixels of the screen, an empty ground
  begin() {
    const ratio = window.devicePixelRatio || 1, width = this.canvas.clientWidth || 300;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(this.height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
    }
    this.width = width;
    this.g.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.g.clearRect(0, 0, width, this.height);
    this.g.font = FONT;
    this.g.lineJoin = "round";
  }

  band(top, height, x, y, { left = 46, right = 12, logarithmic = false } = {}) {
    return new Band(this, { left, top, width: this.width - left - right, height }, x, y, logarithmic);
  }

  text(words, x, y, { colour = COLOURS.soft, align = "left", font = FONT, base = "alphabetic" } = {}) {
    Object.assign(this.g, { fillStyle: colour, textAlign: align, font, textBaseline: base });
    this.g.fillText(words, x, y);
  }

  // Drag with a pointer: `start(x, y)` returns what moves, or null; arrow keys go to `key(dx, dy)`. What moves `freely` moves up and
  // down too: a finger that starts on it does not scroll the page.
  onDrag(start, move, key = null, freely = false) {
    let held = null;
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      held = start(...at(event));
      if (held === null) return;
      this.canvas.setPointerCapture(event.pointerId);
      move(held, ...at(event));
    });
    if (freely) {
      const hold = (event) => { if (start(...at(event.touches[0])) !== null) event.preventDefault(); };
      this.canvas.addEventListener("touchstart", hold, { passive: false });
    }
    this.canvas.addEventListener("pointermove", (event) => { if (held !== null) move(held, ...at(event)); });
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => { held = null; });
    if (!key) return;
    this.canvas.tabIndex = 0;
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    this.canvas.addEventListener("keydown", (event) => {
      if (!(event.key in arrows)) return;
      event.preventDefault();
      key(...arrows[event.key].map((n) => n * (event.shiftKey ? 5 : 1)));
    });
  }
}

function niceTicks(lo, hi, most) {
  const rough = (hi - lo) / Math.max(most, 1), unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough);
  const ticks = [];
  for (let i = Math.ceil(lo / step - 1e-9); i * step <= hi + 1e-9 * step; i++) ticks.push(i * step);
  return ticks;
}

class Band {
  constructor(picture, box, [x0, x1], [y0, y1], logarithmic) {
    Object.assign(this, { picture, g: picture.g, ...box, x0, x1, y0, y1, logarithmic });
  }

  X(x) { return this.left + ((x - this.x0) / (this.x1 - this.x0)) * this.width; }
  toX(px) { return this.x0 + ((px - this.left) / this.width) * (this.x1 - this.x0); }
  toY(py) { return this.y1 - ((py - this.top) / this.height) * (this.y1 - this.y0); }

  Y(y) {
    const at = this.logarithmic ? Math.log10(Math.max(y, 1e-300)) : y;
    return this.top + ((this.y1 - limited(at, this.y0 - 1e3, this.y1 + 1e3)) / (this.y1 - this.y0)) * this.height;
  }

  axes({ title = "", xTicks = true, yTicks = 4, xTitle = "" } = {}) {
    const { g, picture } = this;
    g.lineWidth = 1;
    g.strokeStyle = COLOURS.line;
    g.beginPath();
    const marks = niceTicks(this.y0, this.y1, yTicks);
    const whole = marks.filter((y) => !this.logarithmic || Number.isInteger(Math.round(y * 1e6) / 1e6));
    for (const y of whole) {
      const at = Math.round(this.top + ((this.y1 - y) / (this.y1 - this.y0)) * this.height) + 0.5;
      g.moveTo(this.left, at);
      g.lineTo(this.left + this.width, at);
      const words = this.logarithmic ? power(Math.round(y)) : String(Number(y.toPrecision(6))).replace("-", "−");
      picture.text(words, this.left - 6, at, { align: "right", base: "middle" });
    }
    g.stroke();
    if (xTicks) {
      const bottom = this.top + this.height;
      for (const x of niceTicks(this.x0, this.x1, this.width / 60)) {
        picture.text(String(Number(x.toPrecision(6))).replace("-", "−"), this.X(x), bottom + 15, { align: "center" });
      }
      if (xTitle) picture.text(xTitle, this.left + this.width, bottom + 30, { align: "right" });
    }
    if (title) picture.text(title, this.left, this.top - 8, { colour: COLOURS.ink });
  }

  clipped(draw) {
    this.g.save();
    this.g.beginPath();
    this.g.rect(this.left, this.top - 2, this.width, this.height + 4);
    this.g.clip();
    draw();
    this.g.restore();
  }

  line(xs, ys, colour, width = 2, dash = []) {
    this.clipped(() => {
      Object.assign(this.g, { strokeStyle: colour, lineWidth: width });
      this.g.setLineDash(dash);
      this.g.beginPath();
      for (let i = 0; i < xs.length; i++) this.g.lineTo(this.X(xs[i]), this.Y(ys[i]));
      this.g.stroke();
    });
  }

  rule(y, colour, dash = [6, 4]) { this.line([this.x0, this.x1], [y, y], colour, 1.5, dash); }

  dot(x, y, colour, size = 4, ring = COLOURS.ground) {
    const { g } = this;
    g.beginPath();
    g.arc(this.X(x), this.Y(y), size, 0, 2 * Math.PI);
    Object.assign(g, { fillStyle: colour, strokeStyle: ring, lineWidth: 1.5 });
    g.fill();
    if (ring) g.stroke();
  }

  ring(x, y, colour, size) {
    const { g } = this;
    g.beginPath();
    g.arc(this.X(x), this.Y(y), size, 0, 2 * Math.PI);
    Object.assign(g, { strokeStyle: colour, lineWidth: 1.5 });
    g.stroke();
  }

  // The place in the band that is nearest to a point
  limits(x, y) {
    return [limited(x, this.x0, this.x1), limited(y, this.y0, this.y1)];
  }

  // A triangle at the edge of the band that points to the right and up, or with negative numbers to the left and down
  arrow(x, y, right, up, colour, size) {
    const { g } = this, turn = Math.atan2(-up, right);
    g.beginPath();
    for (const [along, across] of [[0, 0], [-1.6 * size, size], [-1.6 * size, -size]]) {
      g.lineTo(this.X(x) + along * Math.cos(turn) - across * Math.sin(turn), this.Y(y) + along * Math.sin(turn) + across * Math.cos(turn));
    }
    g.closePath();
    g.fillStyle = colour;
    g.fill();
  }

  stem(x, y, colour, width) {
    Object.assign(this.g, { strokeStyle: colour, lineWidth: width });
    this.g.beginPath();
    this.g.moveTo(this.X(x), this.Y(0));
    this.g.lineTo(this.X(x), this.Y(y));
    this.g.stroke();
  }
}

// A legend in HTML: [colour name, words, dashed]
const legend = (...entries) =>
  element("p", { class: "ex-legend" }, ...entries.map(([colour, words, kind = "solid"]) =>
    element("span", {}, element("i", { style: `border-color: var(--ex-${colour}); border-top-style: ${kind}` }), words)));
