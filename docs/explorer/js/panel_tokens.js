// Panel 6: a token program. Type a sequence, look at each head's pattern, break a head.

function tokensPanel(root, models) {
  const state = { model: models[0], sequence: [], head: "0.0", broken: new Set() };
  const large = new Picture(340, "the attention pattern of the chosen head: a row for each query, a column for each key");
  const status = verdict(), about = element("p", { class: "ex-note" }), problem = element("p", { class: "ex-problem", role: "alert" });
  const table = element("div", { class: "ex-scroll" }), heads = element("div", { class: "ex-heads" }), keys = element("span", { class: "ex-keys" });
  const text = element("input", {
    type: "text", "data-control": "tokens-text", autocomplete: "off", autocapitalize: "off", spellcheck: "false", oninput: () => read(text.value),
  });
  const model = choice("tokens-program", "program", models.map((m) => [m.name, m.name]), (name) => {
    state.model = models.find((m) => m.name === name);
    restart();
  });
  const breaking = button("tokens-break", "Break this head", () => {
    if (!state.broken.delete(state.head)) state.broken.add(state.head);
    draw();
  });
  const repair = button("tokens-repair", "Repair all", () => { state.broken.clear(); draw(); });
  const shown = values({ output: "output", program: "program's output", wrong: "wrong positions" });
  let minis = [];

  function restart() {
    Object.assign(state, { head: "0.0", broken: new Set(), sequence: state.model.example.slice() });
    text.value = state.sequence.join("");
    problem.textContent = "";
    about.textContent = `Computes ${state.model.computes}. ${state.model.mechanism}`;
    keys.replaceChildren(
      ...state.model.vocabulary.map((token) => button(`key-${token}`, token, () => { text.value += token; read(text.value); })),
      button("key-delete", "⌫", () => { text.value = [...text.value].slice(0, -1).join(""); read(text.value); }),
    );
    listHeads();
    draw();
  }

  function listHeads() {
    minis = [];
    heads.replaceChildren(...state.model.layers.map((layer, l) => element("div", { class: "ex-layer" },
      element("span", { class: "ex-layer-name" }, `layer ${l}`),
      element("div", { class: "ex-layer-heads" }, ...layer.map((head, h) => {
        const canvas = element("canvas", { width: 96, height: 96, "aria-hidden": "true" });
        const made = element("button", { type: "button", class: "ex-head", "data-control": `head-${l}.${h}`, onclick: () => { state.head = `${l}.${h}`; draw(); } },
          canvas, element("span", {}, `${l}.${h} ${head.name}`));
        minis.push({ key: `${l}.${h}`, l, h, canvas, made });
        return made;
      })))));
  }

  // One character is one token
  function read(words) {
    const sequence = [...words].filter((c) => c.trim()), { vocabulary, length } = state.model;
    const unknown = sequence.find((token) => !vocabulary.includes(token));
    problem.textContent = "";
    if (unknown !== undefined) problem.textContent = `"${unknown}", letter ${sequence.indexOf(unknown) + 1}, is not a token of this program: use ${vocabulary.join(" ")}`;
    else if (sequence.length > length) problem.textContent = `${sequence.length} tokens: this program is proved for 1 to ${length}`;
    else if (sequence.length === 0) problem.textContent = "Type at least one token.";
    if (problem.textContent) return clear();
    state.sequence = sequence;
    draw();
  }

  // Nothing of the previous sequence may look like an answer to this one
  function clear() {
    table.replaceChildren();
    for (const name of ["output", "program"]) shown.set(name, "[]", "–");
    shown.set("wrong", NaN, "–");
    status.set("not run", `The network has not run. ${problem.textContent}`);
    setStale(true);
  }

  function setStale(isStale) {
    for (const node of [heads, large.canvas]) node.classList.toggle("ex-stale", isStale);
    breaking.disabled = isStale;
  }

  function draw() {
    if (problem.textContent) return clear();
    setStale(false);
    const ids = state.sequence.map((token) => state.model.vocabulary.indexOf(token));
    const right = runTokens(state.model, ids).outputs, found = runTokens(state.model, ids, state.broken);
    drawTable(found.outputs, right);
    for (const { key, l, h, canvas, made } of minis) {
      drawPattern(canvas.getContext("2d"), found.patterns[l][h], 0, 0, 96 / found.patterns[l][h].length);
      made.classList.toggle("ex-broken", state.broken.has(key));
      made.setAttribute("aria-pressed", String(key === state.head));
    }
    drawLarge(found);
    tell(found.outputs, right);
  }

  function drawTable(outputs, right) {
    const cells = (tag, list, mark = () => null) => list.map((value, i) => element(tag, { class: mark(i) }, value));
    table.replaceChildren(element("table", { class: "ex-tokens" },
      element("tr", {}, element("th", {}, "tokens"), ...cells("td", state.sequence)),
      element("tr", {}, element("th", {}, "output"), ...cells("td", outputs, (i) => (outputs[i] === right[i] ? "ex-right" : "ex-wrong"))),
    ));
  }

  function drawPattern(g, pattern, left, top, size) {
    pattern.forEach((weights, t) => weights.forEach((weight, u) => {
      g.fillStyle = COLOURS.ground;
      g.globalAlpha = 1;
      g.fillRect(left + u * size, top + t * size, size, size);
      g.globalAlpha = weight;
      g.fillStyle = COLOURS.blue;
      g.fillRect(left + u * size + 0.5, top + t * size + 0.5, size - 1, size - 1);
      g.globalAlpha = 1;
    }));
  }

  function drawLarge(found) {
    const [l, h] = state.head.split(".").map(Number), pattern = found.patterns[l][h], names = ["BOS", ...state.sequence];
    large.begin();
    const size = Math.min((large.width - 70) / names.length, 264 / names.length, 44), left = 56, top = 66, { g } = large;
    drawPattern(g, pattern, left, top, size);
    Object.assign(g, { strokeStyle: COLOURS.line, lineWidth: 1 });
    g.strokeRect(left, top, size * names.length, size * names.length);
    names.forEach((name, t) => {
      large.text(name, left - 8, top + (t + 0.5) * size, { align: "right", base: "middle", colour: COLOURS.ink });
      large.text(name === "BOS" && size < 28 ? "·" : name, left + (t + 0.5) * size, top - 8, { align: "center", colour: COLOURS.ink });
    });
    large.text(`head ${state.head}, ${state.model.layers[l][h].name}`, 4, 16, { colour: COLOURS.ink });
    large.text("a row for each query, a column for each key", 4, 34);
  }

  function tell(outputs, right) {
    const wrong = outputs.filter((value, i) => value !== right[i]).length;
    shown.set("output", JSON.stringify(outputs), outputs.join(" "));
    shown.set("program", JSON.stringify(right), right.join(" "));
    shown.set("wrong", wrong);
    breaking.textContent = state.broken.has(state.head) ? "Repair this head" : "Break this head";
    repair.disabled = state.broken.size === 0;
    if (state.broken.size) {
      const heads = state.broken.size === 1 ? "One head writes" : `${state.broken.size} heads write`;
      status.set("void", `${heads} nothing. ${wrong} of ${outputs.length} outputs are wrong for this sequence.`);
    } else {
      const { sequences, length } = state.model;
      status.set("proved", `The output equals the program's for every one of the ${sequences.toLocaleString("en")} sequences of 1 to ${length} tokens.`);
    }
  }

  // In the address: the broken heads, for instance broken=0.0,1.2; `restore` returns the settings that it could show
  const stored = () => ({ broken: [...state.broken].sort().join(",") });
  const restore = (given) => {
    const keys = (given.get("broken") ?? "").split(",").filter(Boolean), areKnown = keys.every((key) => minis.some((mini) => mini.key === key));
    state.broken = new Set(areKnown ? keys : []);
    if (state.broken.size) [state.head] = keys;
    draw();
    return areKnown ? ["broken"] : [];
  };

  root.append(
    element("div", { class: "ex-controls" }, model.node, element("label", { class: "ex-control" }, element("span", {}, "sequence"), text), keys),
    problem, table,
    element("div", { class: "ex-pair" }, large.canvas, element("div", {}, heads, element("div", { class: "ex-controls" }, breaking, repair), shown.node)),
    status.node, about,
  );
  restart();
  return { draw, state, stored, restore };
}
