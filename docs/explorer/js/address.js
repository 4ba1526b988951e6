// Settings in the address: #one-head?function=sin&anchors=16 opens a panel as it was set up. A change of a control rewrites the
// address, so that a copied address shows the same again.

const SECTIONS = {
  "one-head": "head", "two-layers": "surface", "gradient-descent-in-context": "learner",
  "a-transformer": "transformer", "a-token-program": "tokens",
};

const panelOf = (section) => document.querySelector(`[data-panel="${SECTIONS[section]}"]`);

const OTHER_NAMES = { sequence: "text" }; // the words beside a control, where it has another name

// The controls whose state is a value, by the word after the panel's name
function settings(section) {
  const inputs = [...panelOf(section).querySelectorAll("select[data-control], input[data-control]")];
  return new Map(inputs.map((input) => [input.dataset.control.replace(`${SECTIONS[section]}-`, ""), input]));
}

// An option is named by its value, or by the beginning of its words
function put(input, value) {
  if (input.tagName === "SELECT") {
    const options = [...input.options];
    const found = options.find((o) => o.value === value) ?? options.find((o) => o.textContent.startsWith(value));
    if (!found) return;
    input.value = found.value;
  } else {
    input.value = value;
  }
  input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
}

let isReading = false;
let built = {}; // the panels by name

// The section of the address and its settings; nothing where it names none
function addressed() {
  const [section, query] = decodeURIComponent(location.hash.slice(1)).split("?");
  return query !== undefined && section in SECTIONS && panelOf(section) ? [section, new URLSearchParams(query)] : [];
}

function readAddress() {
  const [section, given] = addressed();
  if (!section) return;
  const panel = built[SECTIONS[section]];
  for (const [word, name] of Object.entries(OTHER_NAMES)) if (given.has(word) && !given.has(name)) given.set(name, given.get(word));
  // In the order of the page: the function decides which designs there are, the design which numbers of anchors
  isReading = true;
  for (const [name, input] of settings(section)) if (given.has(name)) put(input, given.get(name));
  panel.restore?.(given);
  isReading = false;
  showSection(section);
}

// At once: the theme scrolls smoothly, and what scrolls after it would stop it on its way
const showSection = (section) => (document.getElementById(section) ?? panelOf(section)).scrollIntoView({ behavior: "instant" });

// Again after the page has loaded: until then the theme scrolls too, and pictures above the panel may move it
function scrollWhenLoaded() {
  const [section] = addressed();
  if (section) setTimeout(() => showSection(section));
}

function writeAddress(section) {
  if (isReading) return;
  const short = (input) => (input.type === "range" ? String(Number(input.valueAsNumber.toPrecision(5))) : input.value);
  const given = new URLSearchParams([...settings(section)].map(([name, input]) => [name, short(input)]));
  for (const [name, value] of Object.entries(built[SECTIONS[section]].stored?.() ?? {})) if (value) given.set(name, value);
  history.replaceState(null, "", `#${section}?${given}`);
}

function watchAddress(panels) {
  built = panels;
  for (const section of Object.keys(SECTIONS)) {
    panelOf(section)?.addEventListener("change", () => writeAddress(section));
    panelOf(section)?.addEventListener("click", (event) => { if (event.target.closest("canvas, button")) writeAddress(section); });
  }
  window.addEventListener("hashchange", readAddress);
  readAddress();
  if (document.readyState !== "complete") window.addEventListener("load", scrollWhenLoaded);
}
