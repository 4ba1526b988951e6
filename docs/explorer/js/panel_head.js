// Panel 1: one head. Three plots over the same axis: function and head, weights of the anchors, error.

const POINTS = 721;
const DESIGN_WORDS = {
  nearest: "nearest (the paper's)", smooth: "smooth", graded: "graded (for kinks)", tuned: "tuned", gated: "gated",
};
const DESIGN_NOTES = {
  nearest: "equal distances, values of f, hard selection: almost all of the weight goes to the nearest anchor.",
  smooth: "equal distances, soft selection: neighbours share the weight, and the values are fitted to f.",
  graded: "the anchors crowd together at a kink of f, where the selection is also harder.",
  tuned: "keys and values are all optimised, so that few anchors suffice; some of them may lie far outside.",
  gated: "one key is the input itself: its value is a multiple of s, not a constant.",
};

function headPanel(root, functions) {
  const state = { f: functions[0], design: "smooth", size: "12", s: 1.2, k: 0, shifts: {}, sharpness: 1 };
  const picture = new Picture(470, "function and head, attention weights, error; arrow keys move s");
  const shown = values({
    s: "s", f: "f(s)", sum: "sum of the weights", head: "head(s) = Σ weight × value", error: "error here", largest: "largest error drawn", bound: "proved bound",
  });
  const status = verdict(), about = element("p", { class: "ex-note", "data-name": "design" });
  const controls = {
    f: choice("head-function", "function", functions.map((f) => [f.name, f.name]), (name) => {
      state.f = functions.find((f) => f.name === name);
      chooseDesign();
    }),
    design: choice("head-design", "design", [["", ""]], (design) => { state.design = design; chooseDesign(); }),
    size: choice("head-anchors", "anchors", [["", ""]], (size) => { state.size = size; explain(size); restore(); }),
    s: slider("head-s", "s", { min: -1, max: 1, value: 0, shown: fixed(2) }, (s) => { state.s = s; draw(); }),
    k: slider("head-anchor", "anchor", { min: 1, max: 2, step: 1, value: 1 }, (k) => { state.k = k - 1; aim(); draw(); }),
    shift: slider("head-shift", "move it by", { min: -1, max: 1, value: 0, shown: fixed(2) }, (shift) => {
      state.shifts[state.k] = shift;
      draw();
    }),
    sharp: slider("head-sharpness", "sharpness ×", { min: -2, max: 2, value: 0, shown: (n) => fixed(2)(2 ** n), scale: powersOf(2) }, (n) => {
      state.sharpness = 2 ** n;
      draw();
    }),
  };
  // An address may ask for a number of anchors that the design does not have
  controls.size.input.addEventListener("unavailable", (event) => {
    if (!/^\d+$/.test(event.detail)) return;
    event.preventDefault();
    state.size = event.detail;
    chooseDesign();
  });
  const restoreButton = button("head-restore", "Restore the head", () => restore());

  const original = () => state.f.designs[state.design][state.size];
  const isAltered = () => state.sharpness !== 1 || Object.values(state.shifts).some((shift) => shift !== 0);

  function chooseDesign() {
    const designs = Object.keys(state.f.designs);
    if (!designs.includes(state.design)) state.design = "smooth";
    controls.design.set(designs.map((design) => [design, DESIGN_WORDS[design]]), state.design);
    const sizes = Object.keys(state.f.designs[state.design]);
    const wanted = state.size;
    state.size = sizes.reduce((best, size) => (Math.abs(size - wanted) < Math.abs(best - wanted) ? size : best));
    controls.size.set(sizes.map((size) => [size, size]), state.size);
    explain(wanted);
    restore();
  }

  function explain(wanted) {
    about.textContent = `${state.design}: ${DESIGN_NOTES[state.design]}`;
    if (state.size !== wanted) about.textContent += ` This page has no such head with ${wanted} anchors, so it shows ${state.size}.`;
  }

  // The head as it was exported, for the function and the design chosen
  function restore() {
    const { lo, hi } = state.f, count = original().slope.length;
    Object.assign(state, { shifts: {}, sharpness: 1, s: limited(state.s, lo, hi) });
    const distances = original().anchors.map((anchor) => Math.abs(anchor - state.s));
    state.k = distances.indexOf(Math.min(...distances));
    controls.s.set(state.s, { min: lo, max: hi });
    controls.k.set(state.k + 1, { min: 1, max: count });
    controls.sharp.set(0);
    aim();
    draw();
  }

  const outside = element("p", { class: "ex-note", "data-name": "outside" });
  const inside = (anchor) => anchor >= state.f.lo && anchor <= state.f.hi;

  function aim() {
    const reach = (state.f.hi - state.f.lo) / 8;
    controls.shift.set(state.shifts[state.k] ?? 0, { min: -reach, max: reach });
  }

  let weightsBand = null, valuesBand = null;

  function draw() {
    const head = isAltered() ? alteredHead(original(), state.shifts, state.sharpness) : original();
    const f = FUNCTIONS[state.f.name], { lo, hi } = state.f;
    const xs = Array.from({ length: POINTS }, (_, i) => lo + ((hi - lo) * i) / (POINTS - 1));
    const exact = xs.map(f), made = xs.map((x) => headValue(head, x));
    const errors = made.map((y, i) => Math.abs(y - exact[i])), largest = Math.max(...errors);
    picture.begin();
    drawFunction(xs, exact, made, f, head);
    drawWeights(head);
    drawErrors(xs, errors, largest);
    tell(head, f, largest);
  }

  // Values that lie far from the function would flatten it: the picture reaches beyond it by at most half of its height
  function drawFunction(xs, exact, made, f, head) {
    const lo = Math.min(...exact), hi = Math.max(...exact), room = 0.12 * (hi - lo), most = 0.5 * (hi - lo);
    const stored = anchorValues(head, state.s), near = stored.filter((v, k) => inside(head.anchors[k]) && v > lo - most && v < hi + most);
    const bottom = Math.min(lo, ...near) - room, top = Math.max(hi, ...near) + room;
    const band = picture.band(26, 150, [xs[0], xs.at(-1)], [bottom, top]);
    band.axes({ xTicks: false, title: "function and head" });
    band.line([state.s, state.s], [bottom, top], COLOURS.soft, 1);
    band.line(xs, exact, COLOURS.orange, 5);
    band.line(xs, made, COLOURS.blue, 2);
    const drawn = stored.map((v, k) => inside(head.anchors[k]) && v >= bottom && v <= top);
    valuesBand = { band, places: stored.map((v, k) => band.limits(head.anchors[k], v)) };
    valuesBand.places.forEach(([x, y], k) => {
      const colour = state.shifts[k] ? COLOURS.red : COLOURS.blue;
      if (drawn[k]) band.ring(x, y, colour, k === state.k ? 6 : 4.5);
      else band.arrow(x, y, Math.sign(head.anchors[k] - x), Math.sign(stored[k] - y), colour, k === state.k ? 7 : 5);
    });
    band.dot(state.s, f(state.s), COLOURS.ink, 4.5);
    const missing = drawn.filter((one) => !one).length;
    outside.textContent = missing
      ? `Of the ${drawn.length} anchors (circles: position and value), ${missing} ${missing > 1 ? "lie" : "lies"} outside the upper picture: a triangle at its edge points there.`
      : "Each circle in the upper picture is an anchor: its position and its value.";
  }

  function drawWeights(head) {
    const band = picture.band(210, 90, [state.f.lo, state.f.hi], [0, 1]);
    const weights = headWeights(head, state.s);
    band.axes({ xTicks: false, yTicks: 2, title: "attention weights over the anchors, for this s" });
    band.line([state.s, state.s], [0, 1], COLOURS.soft, 1);
    const xs = Array.from({ length: 181 }, (_, i) => state.f.lo + ((state.f.hi - state.f.lo) * i) / 180);
    const chosen = xs.map((x) => headWeights(head, x)[state.k]);
    band.line(xs, chosen, COLOURS.soft, 1, [2, 3]);
    head.anchors.forEach((anchor, k) => {
      if (!inside(anchor)) return;
      band.stem(anchor, weights[k], COLOURS.blue, 5);
      const moved = Boolean(state.shifts[k]);
      band.dot(anchor, 0, moved ? COLOURS.red : k === state.k ? COLOURS.ink : COLOURS.blue, k === state.k ? 6.5 : 5);
    });
    const beyond = head.anchors.filter((anchor) => !inside(anchor)).length;
    if (beyond) {
      const words = `${beyond} more anchor${beyond > 1 ? "s lie" : " lies"} outside the interval`;
      picture.text(words, band.left + band.width, band.top + band.height + 17, { align: "right" });
    }
    weightsBand = { band, anchors: head.anchors };
  }

  function drawErrors(xs, errors, largest) {
    const { bound } = original();
    const top = Math.ceil(Math.log10(Math.max(bound, largest)) + 0.3), low = Math.max(Math.floor(Math.log10(bound)) - 4, -18);
    const band = picture.band(342, 88, [xs[0], xs.at(-1)], [Math.min(low, top - 3), top], { logarithmic: true });
    band.axes({ title: `error |head − f|${isAltered() ? ", and the bound of the original head" : ", below the proved bound"}`, xTitle: "s" });
    band.line([state.s, state.s], [10 ** low, 10 ** top], COLOURS.soft, 1);
    band.line(xs, errors, largest > bound ? COLOURS.red : COLOURS.blue, 1.5);
    if (!isAltered()) band.rule(bound, COLOURS.green);
    else band.rule(bound, COLOURS.soft, [2, 4]);
  }

  function tell(head, f, largest) {
    const weights = headWeights(head, state.s), g = headValue(head, state.s, weights), { bound } = original();
    shown.set("s", state.s);
    shown.set("f", f(state.s));
    shown.set("sum", weights.reduce((sum, weight) => sum + weight, 0));
    shown.set("head", g);
    shown.set("error", Math.abs(g - f(state.s)));
    shown.set("largest", largest);
    shown.set("bound", isAltered() ? NaN : bound, isAltered() ? "none" : atMost(bound));
    if (isAltered()) {
      const compared = largest > bound
        ? `The error is now ${short(largest / bound)} times the old bound.`
        : "The error is still below the old bound here, but nothing proves it.";
      status.set("void", `You changed the numbers that the proof is about. ${compared}`);
    } else {
      const { lo, hi } = state.f;
      status.set("proved", `|head − f| ≤ ${atMost(bound)} for every s in [${short(lo)}, ${short(hi)}], rounding included.`);
    }
  }

  // The anchor at a place of the picture: in the weights by its position alone, above by its circle or triangle, unless the black
  // dot of s is there
  function anchorAt(x, y) {
    const { band, anchors } = weightsBand, upper = valuesBand;
    const isWeights = y >= band.top - 10 && y <= band.top + band.height + 24;
    if (Math.hypot(upper.band.X(state.s) - x, upper.band.Y(FUNCTIONS[state.f.name](state.s)) - y) < 10) return null;
    const distances = anchors.map((anchor, k) => {
      if (!inside(anchor)) return Infinity;
      return isWeights ? Math.abs(band.X(anchor) - x) : 2 * Math.hypot(band.X(anchor) - x, upper.band.Y(upper.places[k][1]) - y);
    });
    const best = distances.indexOf(Math.min(...distances));
    return distances[best] < 16 ? best : null;
  }

  picture.onDrag(
    (x, y) => anchorAt(x, y) ?? "s",
    (held, x) => {
      const at = limited(weightsBand.band.toX(x), state.f.lo, state.f.hi);
      if (held === "s") {
        state.s = at;
        controls.s.set(at);
      } else {
        const reach = (state.f.hi - state.f.lo) / 8;
        state.k = held;
        state.shifts[held] = limited(at - original().anchors[held], -reach, reach);
        controls.k.set(held + 1);
        aim();
      }
      draw();
    },
    (dx) => {
      state.s = limited(state.s + (dx * (state.f.hi - state.f.lo)) / 200, state.f.lo, state.f.hi);
      controls.s.set(state.s);
      draw();
    },
  );

  root.append(
    element("div", { class: "ex-controls" }, controls.f.node, controls.design.node, controls.size.node, controls.s.node),
    beside(
      [legend(["orange", "f"], ["blue", "head"], ["green", "proved bound", "dashed"],
        ["soft", "weight of the chosen anchor, for every s", "dotted"]), picture.canvas],
      [shown.node, status.node, element("fieldset", { class: "ex-controls ex-break" }, element("legend", {}, "Break it"),
        controls.k.node, controls.shift.node, controls.sharp.node, restoreButton)],
    ), about, outside,
  );
  chooseDesign();
  return { draw, state };
}
