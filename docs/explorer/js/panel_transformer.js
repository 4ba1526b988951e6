// Panels 4 and 5: MiniLM. Which anchors the neurons of a block use for each token, and one neuron's head; a norm as two-key heads.

function transformerPanel(root, data) {
  const state = { sentence: data.sentences[0], block: 1, token: 1, neuron: 2 };
  const map = new Picture(300, "for each token and each position, how many neurons give their largest weight to an anchor there; arrow keys choose a token");
  const neuronPicture = new Picture(210, "the attention weights of one neuron over its anchors, and GELU");
  const shown = values({ s: "neuron's input s", gelu: "GELU(s)", head: "head(s)", error: "error", anchors: "anchors of its head", active: "neurons that use an anchor above 0", mean: "the same, mean over the tokens" });
  const status = verdict();
  const chosen = (n = state.neuron) => state.sentence.neurons[state.block][n];
  const controls = {
    sentence: choice("transformer-sentence", "sentence", data.sentences.map((s, i) => [String(i + 1), `${i + 1}: ${s.text}`]), (number) => {
      state.sentence = data.sentences[Number(number) - 1];
      state.token = Math.min(state.token, state.sentence.tokens.length - 1);
      controls.token.set(state.token + 1, { max: state.sentence.tokens.length });
      draw();
    }),
    block: slider("transformer-block", "block", { min: 1, max: data.blocks.length, step: 1, value: 2 }, (n) => { state.block = n - 1; draw(); }),
    token: slider("transformer-token", "token", {
      min: 1, max: data.sentences[0].tokens.length, step: 1, value: 2, shown: (n) => `${n}: ${state.sentence.tokens[n - 1] ?? ""}`,
    }, (n) => { state.token = n - 1; draw(); }),
    neuron: slider("transformer-neuron", "neuron", {
      min: 1, max: data.sentences[0].neurons[0].length, step: 1, value: 3, shown: (n) => `${n}: #${chosen(n - 1).neuron}`,
    }, (n) => { state.neuron = n - 1; draw(); }),
  };

  let rows = null;

  function draw() {
    controls.neuron.set(state.neuron + 1);
    drawMap();
    drawNeuron();
  }

  function drawMap() {
    const usage = state.sentence.usage[state.block], columns = usage[0].length;
    const height = Math.min(26, 236 / usage.length);
    map.height = 52 + height * usage.length;
    map.canvas.style.height = `${map.height}px`;
    map.begin();
    const { g } = map, left = 86, width = map.width - left - 8;
    const most = Math.max(...usage.flat());
    map.text("anchor with the largest weight", left, 16, { colour: COLOURS.ink });
    if (width > 420) map.text(`strongest colour: ${most} of 1,536 neurons`, left + width, 16, { align: "right" });
    usage.forEach((counts, t) => {
      const top = 26 + t * height;
      counts.forEach((count, c) => {
        g.fillStyle = count ? scaled(Math.log1p(count) / Math.log1p(most)) : COLOURS.ground;
        g.fillRect(left + (c * width) / columns + 0.5, top + 1, width / columns - 1, height - 2);
      });
      const bold = t === state.token;
      map.text(state.sentence.tokens[t], left - 8, top + height / 2, { align: "right", base: "middle", colour: bold ? COLOURS.ink : COLOURS.soft, font: bold ? `bold ${FONT}` : FONT });
      if (bold) {
        Object.assign(g, { strokeStyle: COLOURS.ink, lineWidth: 1.5 });
        g.strokeRect(left, top, width, height);
      }
    });
    const bottom = 26 + height * usage.length, at = (s) => left + ((s + data.reach) / data.width + 0.5) * (width / columns);
    for (const s of niceTicks(-data.reach, data.reach, width / 70)) map.text(String(s).replace("-", "−"), limited(at(s), left + 6, left + width - 6), bottom + 15, { align: "center" });
    rows = { top: 26, height, count: usage.length };
  }

  function drawNeuron() {
    const { group, input } = chosen(), s = input[state.token];
    const block = data.blocks[state.block], head = data.heads[block.groups[group].head], weights = headWeights(head, s);
    neuronPicture.begin();
    const span = [s - 3, s + 3], gelu = FUNCTIONS.gelu, xs = Array.from({ length: 121 }, (_, i) => span[0] + i / 20);
    const band = neuronPicture.band(26, 140, span, [0, Math.max(0.5, ...weights) * 1.1]);
    band.axes({ yTicks: 3, title: `weights of neuron ${chosen().neuron} over its anchors near s`, xTitle: "s" });
    band.line([s, s], [0, 2], COLOURS.orange, 1.5);
    band.clipped(() => head.anchors.forEach((anchor, k) => {
      if (anchor > span[0] && anchor < span[1]) {
        band.stem(anchor, weights[k], COLOURS.blue, 5);
        band.dot(anchor, 0, COLOURS.blue, 4);
      }
    }));
    const g = headValue(head, s, weights);
    shown.set("s", s);
    shown.set("gelu", gelu(s));
    shown.set("head", g);
    shown.set("error", Math.abs(g - gelu(s)));
    shown.set("anchors", head.slope.length);
    const usage = state.sentence.usage[state.block], active = usage.map(above), mean = total(active) / active.length;
    shown.set("active", active[state.token], `${active[state.token]} of ${total(usage[state.token])}`);
    shown.set("mean", mean, fixed(1)(mean));
    status.set("proved", `Block ${state.block + 1} is within ${atMost(block.approximation)} of the original in exact arithmetic, for every input of the model. For this sentence the executed outputs of the whole converted model are within ${atMost(state.sentence.bound)} of the original.`);
  }

  const toToken = (n) => {
    state.token = limited(n, 0, state.sentence.tokens.length - 1);
    controls.token.set(state.token + 1);
    draw();
  };
  map.onDrag(() => true, (_, x, y) => toToken(Math.floor((y - rows.top) / rows.height)), (dx, dy) => toToken(state.token - dy));

  root.append(
    element("div", { class: "ex-controls" }, controls.sentence.node, controls.block.node, controls.token.node, controls.neuron.node),
    map.canvas, beside([neuronPicture.canvas], [shown.node]), status.node,
  );
  draw();
  return { draw, state };
}

const total = (numbers) => numbers.reduce((a, b) => a + b, 0);

// How many neurons of a token give their largest weight to an anchor above 0; the middle column is at 0
const above = (counts) => total(counts.slice((counts.length + 1) / 2));

// A LayerNorm: each head has two keys, the token itself and a key of score 0. The weight of the first falls as |z|² grows.
function normPanel(root, norm, chosen) {
  const state = { log: -0.5 };
  const picture = new Picture(230, "the weights of all heads of a norm, by head");
  const shown = values({ square: "mean square of z", exact: "1/√(mean square + ε)", sum: "sum of the heads", relative: "relative error", heads: "heads" });
  const control = slider("norm-square", "mean square of z", {
    min: -6, max: 6, value: state.log, shown: (n) => short(10 ** n), scale: powersOf(10),
  }, (n) => { state.log = n; draw(); });
  const here = button("norm-token", "Use that of the token chosen in A transformer", () => {
    state.log = Math.log10(chosen.sentence.squares[chosen.token]);
    control.set(state.log);
    draw();
  });

  function draw() {
    const square = 10 ** state.log, weights = normWeights(norm, square), value = normValue(norm, square, weights);
    const parts = weights.map((w, j) => w * norm.value[j]), most = Math.max(...parts);
    picture.begin();
    const heads = picture.band(26, 70, [0, norm.slope.length], [0, 1]);
    heads.axes({ yTicks: 2, xTicks: false, title: "weight that head j gives to the token itself" });
    weights.forEach((w, j) => heads.stem(j + 0.5, w, COLOURS.blue, Math.max(heads.width / norm.slope.length - 1, 1)));
    const sums = picture.band(130, 62, [0, norm.slope.length], [0, most * 1.1]);
    sums.axes({ yTicks: 2, title: "what it adds to the sum", xTitle: "head j" });
    parts.forEach((part, j) => sums.stem(j + 0.5, part, COLOURS.orange, Math.max(sums.width / norm.slope.length - 1, 1)));
    shown.set("square", square);
    shown.set("exact", normExact(norm, square));
    shown.set("sum", value);
    shown.set("relative", Math.abs(value / normExact(norm, square) - 1));
    shown.set("heads", norm.slope.length);
  }

  root.append(
    element("div", { class: "ex-controls" }, control.node, here), picture.canvas, shown.node,
  );
  draw();
  return { draw, state };
}
