// Panel 3: gradient descent in context. The examples can be dragged; layers A, B and C of any step can be looked at.

const LAYERS = {
  A: "A, reading: every example attends to the weight token and obtains u = w·x.",
  B: "B, the activation: every example attends to the anchors of ψ and obtains its residual r = ψ(u) − y.",
  C: "C, gathering: the weight token attends to two copies of every example, one with the score e·r and one with −e·r. The difference of their weights is nearly proportional to r. Now w moves.",
};

function learnerPanel(root, learners) {
  const state = { learner: learners[0], examples: [], t: 5, layer: "C", point: 0 };
  const plot = new Picture(360, "examples, and the fitted line or boundary; arrow keys move the chosen example");
  const bars = new Picture(360, "what the chosen layer computes for each example");
  const shown = values({
    w: "w, by attention", exact: "w, exact", distance: "distance", bound: "proved bound", loss: "mean loss",
  });
  const status = verdict(), note = element("p", { class: "ex-note" });
  const controls = {
    learner: choice("learner-task", "task", learners.map((l) => [l.label, l.label]), (label) => {
      state.learner = learners.find((l) => l.label === label);
      reset();
    }),
    t: slider("learner-step", "step", { min: 0, max: 40, step: 1, value: 5 }, (t) => { state.t = t; draw(); }),
    layer: choice("learner-layer", "layer", Object.keys(LAYERS).map((l) => [l, l]), (l) => { state.layer = l; draw(); }),
    point: slider("learner-point", "example", { min: 1, max: 12, step: 1, value: 1 }, (n) => { state.point = n - 1; draw(); }),
  };
  const next = button("learner-next", "Next layer", () => {
    const names = Object.keys(LAYERS), at = state.t === 0 ? 2 : names.indexOf(state.layer);
    if (isLast()) return;
    if (at === 2) state.t += 1;
    state.layer = names[(at + 1) % 3];
    controls.layer.input.value = state.layer;
    controls.t.set(state.t);
    draw();
  });
  const flip = button("learner-flip", "Flip its label", () => {
    const example = state.examples[state.point];
    example[2] = 1 - example[2];
    draw();
  });
  const again = button("learner-reset", "Reset the examples", () => reset());

  const isLast = () => state.t >= state.learner.steps && state.layer === "C";
  // Layers A and B of step t read the w of step t − 1; layer C writes that of step t
  const reached = () => (state.t === 0 || state.layer === "C" ? state.t : state.t - 1);

  function reset() {
    state.examples = state.learner.examples.map((example) => example.slice());
    flip.hidden = !state.learner.plane;
    draw();
  }

  // Rows with a column of ones, and targets
  function context() {
    const { plane } = state.learner;
    return {
      x: state.examples.map((e) => (plane ? [e[0], e[1], 1] : [e[0], 1])),
      y: state.examples.map((e) => (plane ? e[2] : e[1])),
    };
  }

  function draw() {
    const { x, y } = context(), steps = learnerTrajectory(state.learner, x, y);
    const exact = exactTrajectory(state.learner, x, y);
    const { layers } = steps[state.t];
    drawExamples(steps, exact, layers);
    bars.begin();
    if (layers) drawLayer(layers);
    else bars.text("no layer has run yet", 4, 16, { colour: COLOURS.ink });
    note.textContent = caption(layers);
    controls.layer.input.disabled = !layers;
    next.disabled = isLast();
    tell(steps, exact, x, y);
  }

  let band = null;

  function drawExamples(steps, exact, layers) {
    plot.begin();
    band = plot.band(26, 300, [-1.05, 1.05], [-1.05, 1.05]);
    const { plane } = state.learner;
    band.axes({ title: plane ? "examples of two classes" : "examples", xTitle: plane ? "x₁" : "x" });
    plot.text(plane ? "x₂" : "y", 12, 20);
    for (let t = 0; t < reached(); t++) fitted(steps[t].w, COLOURS.line, 1);
    if (!plane && layers && state.layer === "B") {
      state.examples.forEach(([x, y], i) => band.line([x, x], [y, layers.g[i]], COLOURS.red, 1.5));
    }
    fitted(exact[reached()], COLOURS.orange, 6);
    fitted(steps[reached()].w, COLOURS.blue, 2);
    state.examples.forEach((e, i) => {
      const colour = plane ? (e[2] ? COLOURS.green : COLOURS.red) : COLOURS.ink;
      band.dot(e[0], e[1], colour, i === state.point ? 7.5 : 5, i === state.point ? COLOURS.ink : COLOURS.ground);
      if (plane) plot.text(String(e[2]), band.X(e[0]) + 9, band.Y(e[1]) - 6, { colour });
    });
  }

  // The line y = w₀x + w₁, or the boundary w₀x₁ + w₁x₂ + w₂ = 0
  function fitted(w, colour, width) {
    if (!state.learner.plane) {
      band.line([-1.05, 1.05], [-1.05, 1.05].map((x) => w[0] * x + w[1]), colour, width);
    } else if (w[0] !== 0 || w[1] !== 0) {
      const size = w[0] * w[0] + w[1] * w[1], foot = [(-w[0] * w[2]) / size, (-w[1] * w[2]) / size];
      const along = [-w[1] / Math.sqrt(size), w[0] / Math.sqrt(size)];
      band.line([foot[0] - 4 * along[0], foot[0] + 4 * along[0]], [foot[1] - 4 * along[1], foot[1] + 4 * along[1]], colour, width);
    }
  }

  function drawLayer(layers) {
    const rows = { A: layers.u, B: layers.r, C: layers.weights }[state.layer];
    const most = Math.max(...rows.map(Math.abs)) || 1;
    const titles = { A: "u = w·x", B: "r = ψ(u) − y", C: "weight of one copy minus that of the other" };
    const labels = bars.width < 340 ? 22 : 78, panel = bars.band(26, 300, [-1.15 * most, 1.15 * most], [0, rows.length], { left: labels });
    bars.text(`layer ${state.layer}: ${titles[state.layer]}`, 4, 16, { colour: COLOURS.ink });
    const height = panel.height / rows.length;
    rows.forEach((number, i) => {
      const at = panel.top + i * height, zero = panel.X(0), end = panel.X(number);
      bars.g.fillStyle = i === state.point ? COLOURS.orange : COLOURS.blue;
      bars.g.fillRect(Math.min(zero, end), at + 3, Math.max(Math.abs(end - zero), 1), height - 6);
      bars.text(labels > 30 ? `example ${i + 1}` : String(i + 1), labels - 6, at + height / 2, { align: "right", base: "middle" });
    });
    panel.line([0, 0], [0, rows.length], COLOURS.soft, 1);
    const mark = niceTicks(0, most, 2).at(-1);
    for (const x of [-mark, 0, mark]) bars.text(short(x).replace(".00·", "·"), panel.X(x), 342, { align: "center" });
  }

  function caption(layers) {
    const { learner, layer, t } = state;
    if (!layers) return "Before the first step: no layer has run, and w = 0.";
    let words = `Step ${t} of ${learner.steps}, layer ${LAYERS[layer]}`;
    if (layer === "A" && t === 1) words += " All u are 0, because w = 0.";
    if (layer === "B" && !learner.activation) words += " For least squares ψ is the identity, so this layer has no head.";
    return isLast() ? `${words} This was the last layer.` : words;
  }

  function tell(steps, exact, x, y) {
    const { w } = steps[reached()], { learner } = state, reference = exact[reached()];
    const distance = Math.hypot(...w.map((number, j) => number - reference[j]));
    const names = learner.plane ? ["w₁", "w₂", "intercept"] : ["slope", "intercept"];
    const list = (numbers) => numbers.map((n, j) => `${names[j]} ${fixed(3)(n)}`).join(", ");
    shown.set("w", JSON.stringify(w), list(w));
    shown.set("exact", JSON.stringify(reference), list(reference));
    shown.set("distance", distance);
    const largest = Math.max(...steps.flatMap((s) => s.w.map(Math.abs)));
    const reach = Math.max(...steps.slice(1).flatMap((s) => s.layers.s.map(Math.abs)));
    const covered = largest <= learner.radius.w && reach <= learner.radius.u;
    shown.set("bound", covered ? learner.bound : NaN, covered ? atMost(learner.bound) : "none");
    shown.set("loss", meanLoss(learner, w, x, y));
    if (covered) {
      status.set("proved", `After ${learner.steps} steps the Euclidean distance |w − exact w| ≤ ${atMost(learner.bound)} for any 12 examples within the radius (|x|, |y| ≤ 1, every entry of |w| ≤ ${learner.radius.w}, |w·x| ≤ ${learner.radius.u}).`);
    } else {
      status.set("void", `An entry of |w|, or |w·x|, leaves the radius (${learner.radius.w} and ${learner.radius.u}) for which the bound is proved.`);
    }
  }

  const moveTo = (x, y) => {
    const example = state.examples[state.point];
    [example[0], example[1]] = [limited(x, -1, 1), limited(y, -1, 1)];
    draw();
  };
  plot.onDrag(
    (x, y) => {
      const distances = state.examples.map((e) => Math.hypot(band.X(e[0]) - x, band.Y(e[1]) - y));
      const best = distances.indexOf(Math.min(...distances));
      if (distances[best] > 28) return null;
      state.point = best;
      controls.point.set(best + 1);
      return true;
    },
    (_, x, y) => moveTo(band.toX(x), band.toY(y)),
    (dx, dy) => moveTo(state.examples[state.point][0] + 0.02 * dx, state.examples[state.point][1] + 0.02 * dy),
    true,
  );

  root.append(
    element("div", { class: "ex-controls" }, controls.learner.node, controls.t.node, controls.layer.node, next, controls.point.node, flip, again),
    legend(["blue", "by attention"], ["orange", "exact gradient descent"], ["line", "earlier steps"]),
    element("div", { class: "ex-pair" }, plot.canvas, bars.canvas), note, shown.node, status.node,
  );
  controls.layer.input.value = state.layer;
  reset();
  return { draw, state };
}

function meanLoss(learner, w, x, y) {
  const losses = x.map((row, i) => {
    const s = dot(row, w);
    if (learner.loss !== "logistic") return (s - y[i]) ** 2 / 2;
    return Math.max(s, 0) + Math.log1p(Math.exp(-Math.abs(s))) - y[i] * s;
  });
  return losses.reduce((a, b) => a + b, 0) / losses.length;
}
