// Settings in the address: #one-head?function=sin&anchors=16 opens a panel as it was set up. A change of a control rewrites the
// address, so that a copied address shows the same again. A setting has the words beside its control as its name, and the value
// that the control shows.

const SECTIONS = {
  "one-head": "head", "two-layers": "surface", "gradient-descent-in-context": "learner",
  "a-transformer": "transformer", "a-norm": "norm", "a-token-program": "tokens",
};
const OTHER_NAMES = { text: "sequence", shift: "move-it-by", point: "example" }; // also understood
const AFTER = 250; // milliseconds without another input, after which the address is written: browsers limit how often it may change

const panelOf = (section) => document.querySelector(`[data-panel="${SECTIONS[section]}"]`);

// "move it by" → move-it-by, "x₁" → x1, "sharpness ×" → sharpness
const nameOf = (input) =>
  input.closest("label").firstElementChild.textContent.normalize("NFKC").replace(/[^\w ]/g, "").trim().replaceAll(" ", "-");

// The controls whose state is a value, by their names
const settings = (section) =>
  new Map([...panelOf(section).querySelectorAll("select[data-control], input[data-control]")].map((input) => [nameOf(input), input]));

function valueOf(input) {
  if (input.type !== "range") return input.value;
  const { shownAs } = SCALES.get(input) ?? {}, number = input.valueAsNumber;
  return String(Number((shownAs ? shownAs(number) : number).toPrecision(5)));
}

// Set a control, and return whether it can show this value. An option is named by its value, or by the beginning of its words.
function put(input, value) {
  if (input.tagName === "SELECT") {
    const options = [...input.options];
    const found = value && (options.find((o) => o.value === value) ?? options.find((o) => o.textContent.startsWith(value)));
    if (!found) return !input.dispatchEvent(new CustomEvent("unavailable", { detail: value, cancelable: true }));
    input.value = found.value;
  } else if (input.type === "range") {
    const number = value.trim() === "" ? NaN : Number(value), { positionOf } = SCALES.get(input) ?? {};
    const at = positionOf ? positionOf(number) : number, room = 1e-4 * (input.max - input.min);
    if (!(at >= input.min - room && at <= Number(input.max) + room)) return false;
    input.value = at;
  } else {
    input.value = value;
  }
  input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
  return true;
}

let isReading = false;
let built = {}; // the panels by name
let waiting = null;

// What follows the #; some programs write ? and & of a copied address as %3F and %26
function fragment() {
  const raw = location.hash.slice(1);
  if (raw.includes("?")) return raw;
  try {
    return decodeURIComponent(raw);
  } catch {
    return raw;
  }
}

// The section of the address and its settings; nothing where it names none
function addressed() {
  const [section, query] = fragment().split("?");
  return query !== undefined && section in SECTIONS && panelOf(section) ? [section, new URLSearchParams(query)] : [];
}

function readAddress() {
  const [section, given] = addressed();
  if (!section) return;
  for (const [other, name] of Object.entries(OTHER_NAMES)) {
    if (given.has(other) && !given.has(name)) given.set(name, given.get(other));
    given.delete(other);
  }
  isReading = true;
  const ignored = applySettings(section, given);
  isReading = false;
  if (ignored.length) writeAddress(section);
  notes.get(section).textContent = ignored.length ? `ignored: ${ignored.join(", ")}` : "";
  showSection(section);
}

// Set what the address gives, and return what no control can show. In the order of the page: the function decides which designs
// there are, the design which numbers of anchors.
function applySettings(section, given) {
  const inputs = settings(section), ignored = [];
  for (const [name, input] of inputs) if (given.has(name) && !put(input, given.get(name))) ignored.push(`${name}=${given.get(name)}`);
  const { restore } = built[SECTIONS[section]], others = new Map([...given].filter(([name]) => !inputs.has(name)));
  const known = restore ? restore(others) : [];
  for (const [name, value] of others) if (!known.includes(name)) ignored.push(`${name}=${value}`);
  return ignored;
}

// At once: the theme scrolls smoothly, and what scrolls after it would stop it on its way
const showSection = (section) => panelOf(section).scrollIntoView({ behavior: "instant" });

// Again after the page has loaded: until then the theme scrolls too, and pictures above the panel may move it
function scrollWhenLoaded() {
  const [section] = addressed();
  if (section) setTimeout(() => showSection(section));
}

function writeAddress(section) {
  if (isReading) return;
  clearTimeout(waiting);
  notes.get(section).textContent = "";
  const given = new URLSearchParams([...settings(section)].map(([name, input]) => [name, valueOf(input)]));
  for (const [name, value] of Object.entries(built[SECTIONS[section]].stored?.() ?? {})) if (value) given.set(name, value);
  history.replaceState(null, "", `#${section}?${given}`);
}

function writeSoon(section) {
  if (isReading) return;
  clearTimeout(waiting);
  waiting = setTimeout(() => writeAddress(section), AFTER);
}

const notes = new Map(); // a line at the head of each panel

function watchPanel(section) {
  const panel = panelOf(section), note = element("p", { class: "ex-ignored", role: "status", "data-name": "ignored" });
  notes.set(section, note);
  panel.prepend(note);
  panel.addEventListener("change", () => writeAddress(section));
  panel.addEventListener("input", () => writeSoon(section));
  panel.addEventListener("keydown", (event) => { if (event.target.closest("canvas")) writeSoon(section); });
  panel.addEventListener("click", (event) => { if (event.target.closest("canvas, button")) writeAddress(section); });
}

function watchAddress(panels) {
  built = panels;
  for (const section of Object.keys(SECTIONS)) if (panelOf(section)) watchPanel(section);
  window.addEventListener("hashchange", readAddress);
  readAddress();
  if (document.readyState !== "complete") window.addEventListener("load", scrollWhenLoaded);
}
