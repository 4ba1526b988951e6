// Panel 2: a function of two tokens as two layers of attention. A surface, and the weights of the anchors for one input.

const MESH = 33;
const METHOD_WORDS = { grid: "grid", lattice: "smooth lattice" };

function surfacePanel(root, functions) {
  const state = { f: functions[0], network: 0, x: [0.35, -0.4], turn: 35 };
  const surface = new Picture(330, "the network's first output as a surface over both inputs");
  const square = new Picture(330, "both inputs, and the anchors with their weights; arrow keys move the inputs");
  const shown = values({
    f: "f(x₁, x₂)", network: "network", error: "error here", bound: "proved bound", weight: "largest weight", gather: "weights of the first layer",
  });
  const status = verdict(), note = element("p", { class: "ex-note", "data-name": "outside" });
  const moved = () => { controls.x1.set(state.x[0]); controls.x2.set(state.x[1]); draw(); };
  const controls = {
    f: choice("surface-function", "function", functions.map((f) => [f.label, `${f.label}: ${f.formula}`]), (label) => {
      state.f = functions.find((f) => f.label === label);
      listNetworks();
    }),
    network: choice("surface-network", "network", [["", ""]], (key) => { state.network = state.f.networks.findIndex((n) => keyOf(n) === key); load(); }),
    x1: slider("surface-x1", "x₁", { min: -1, max: 1, value: 0, shown: fixed(2) }, (x) => { state.x[0] = x; draw(); }),
    x2: slider("surface-x2", "x₂", { min: -1, max: 1, value: 0, shown: fixed(2) }, (x) => { state.x[1] = x; draw(); }),
    turn: slider("surface-turn", "turn", { min: 0, max: 360, step: 1, value: 35, shown: (n) => `${n}°` }, (n) => {
      state.turn = n;
      draw();
    }),
  };

  const network = () => state.f.networks[state.network], keyOf = (n) => `${n.method}-${n.tokens - DATA_TOKENS}`;
  const meshes = new Map();
  let prepared = null, mesh = null;

  function listNetworks() {
    const words = (n) => `${METHOD_WORDS[n.method]}, ${n.tokens - DATA_TOKENS} anchors, ${n.bound === null ? `measured ${short(n.error)}` : `proved ≤ ${atMost(n.bound)}`}`;
    state.network = 0;
    controls.network.set(state.f.networks.map((n) => [keyOf(n), words(n)]));
    load();
  }

  function load() {
    prepared = prepareTwoTokens(network());
    const at = (i) => -1 + (2 * i) / (MESH - 1);
    mesh = meshes.get(network()) ?? Array.from({ length: MESH }, (_, i) => Array.from({ length: MESH }, (_, j) =>
      twoTokens(network(), [at(i), at(j)], prepared, 1).y[0]));
    meshes.set(network(), mesh);
    moved();
  }

  function draw() {
    const found = twoTokens(network(), state.x, prepared);
    drawSurface(found.y[0]);
    drawSquare(found.anchors[0]);
    tell(found);
  }

  function drawSurface(y) {
    surface.begin();
    const flat = mesh.flat(), lo = Math.min(...flat), hi = Math.max(...flat), angle = (state.turn * Math.PI) / 180;
    const size = Math.min(surface.width / 3.1, 125), [c, s] = [Math.cos(angle), Math.sin(angle)];
    const at = (u, v, z) => {
      const across = c * u - s * v, deep = s * u + c * v, high = ((z - lo) / (hi - lo) - 0.5) * 1.1;
      return [surface.width / 2 + across * size, 175 + deep * size * 0.5 - high * size * 0.9, deep];
    };
    const quads = [], step = 2 / (MESH - 1), { g } = surface;
    for (let i = 0; i + 1 < MESH; i++) {
      for (let j = 0; j + 1 < MESH; j++) {
        const [u, v] = [-1 + i * step, -1 + j * step];
        const corners = [at(u, v, mesh[i][j]), at(u + step, v, mesh[i + 1][j]),
          at(u + step, v + step, mesh[i + 1][j + 1]), at(u, v + step, mesh[i][j + 1])];
        quads.push({ corners, depth: corners[0][2], share: (mesh[i][j] - lo) / (hi - lo) });
      }
    }
    quads.sort((a, b) => a.depth - b.depth);
    g.lineWidth = 0.6;
    for (const { corners, share } of quads) {
      g.beginPath();
      for (const [x, z] of corners) g.lineTo(x, z);
      g.closePath();
      g.fillStyle = g.strokeStyle = scaled(share);
      g.fill();
      g.stroke();
    }
    const [x, z] = at(...state.x, y);
    g.beginPath();
    g.arc(x, z, 6, 0, 2 * Math.PI);
    Object.assign(g, { fillStyle: COLOURS.ink, strokeStyle: COLOURS.ground, lineWidth: 2 });
    g.fill();
    g.stroke();
    for (const [u, v, words] of [[1.22, 0, "x₁"], [0, 1.22, "x₂"]]) {
      const [tx, ty] = at(u, v, lo);
      surface.text(words, tx, ty, { colour: COLOURS.ink, align: "center" });
    }
    surface.text("network, first output", 4, 16, { colour: COLOURS.ink });
  }

  let plane = null;

  // The picture shows the square of inputs, and of the anchors around it those nearest to it
  function outsideWords(outside, reach) {
    if (reach === 1) return "Every anchor lies in the square of inputs.";
    const around = "Anchors of this network also lie around the square of inputs, which is drawn as a frame.";
    return outside ? `${around} ${outside} anchor${outside > 1 ? "s lie" : " lies"} outside the picture.` : around;
  }

  function drawSquare(weights) {
    square.begin();
    const size = Math.min(square.width - 58, 270), left = Math.max(46, (square.width - size) / 2), right = square.width - left - size;
    const reach = limited(Math.max(...network().anchors.flat().map(Math.abs)), 1, 2.2), { g } = square;
    plane = square.band(26, size, [-reach, reach], [-reach, reach], { left, right });
    plane.axes({ title: "inputs, anchors, weights", xTitle: "x₁" });
    square.text("x₂", left - 30, 20);
    g.strokeStyle = COLOURS.soft;
    g.strokeRect(plane.X(-1), plane.Y(1), plane.X(1) - plane.X(-1), plane.Y(-1) - plane.Y(1));
    const outside = network().anchors.filter((anchor) => anchor.some((u) => Math.abs(u) > reach)).length;
    note.textContent = outsideWords(outside, reach);
    plane.clipped(() => network().anchors.forEach(([u, v], k) => {
      const weight = weights[DATA_TOKENS + k];
      plane.dot(u, v, COLOURS.soft, 1.5, null);
      if (weight > 1e-4) plane.dot(u, v, COLOURS.blue, 2 + 13 * Math.sqrt(weight), COLOURS.ground);
    }));
    plane.line([state.x[0], state.x[0]], [-reach, reach], COLOURS.orange, 1);
    plane.line([-reach, reach], [state.x[1], state.x[1]], COLOURS.orange, 1);
    plane.dot(...state.x, COLOURS.orange, 5);
  }

  function tell(found) {
    const { status: kind, method, bound, error, points, lipschitz } = network(), y = SURFACES[state.f.label](...state.x);
    shown.set("f", y);
    shown.set("network", found.y[0]);
    shown.set("error", Math.abs(found.y[0] - y));
    shown.set("bound", bound ?? NaN, bound === null ? "none" : atMost(bound));
    shown.set("weight", Math.max(...found.anchors[0]));
    shown.set("gather", found.gather[0][0], [...found.gather[0]].map((w) => short(w)).join(" and "));
    if (kind === "proved") {
      const basis = method === "grid"
        ? `for every function with these values at the anchors and the Lipschitz constant ${short(lipschitz)}`
        : "proved from the operations of f";
      status.set("proved", `|network − f| ≤ ${atMost(bound)} on the whole square, ${basis}.`);
    } else {
      status.set("measured", `Largest error at ${points.toLocaleString("en")} random inputs: ${short(error)}. Other inputs may have larger errors.`);
    }
  }

  // The square is the control: its points are inputs
  const toInputs = (x, y) => { state.x = [limited(plane.toX(x), -1, 1), limited(plane.toY(y), -1, 1)]; moved(); };
  const isInside = (x, y) => Math.max(Math.abs(plane.toX(x)), Math.abs(plane.toY(y))) <= Math.max(plane.x1, 1.05);
  square.onDrag((x, y) => (isInside(x, y) ? true : null), (_, x, y) => toInputs(x, y), (dx, dy) => {
    state.x = [limited(state.x[0] + dx * 0.02, -1, 1), limited(state.x[1] + dy * 0.02, -1, 1)];
    moved();
  }, true);
  surface.onDrag((x) => ({ x, turn: state.turn }), (held, x) => {
    state.turn = (((held.turn - (x - held.x) * 0.6) % 360) + 360) % 360;
    controls.turn.set(state.turn);
    draw();
  });

  root.append(
    element("div", { class: "ex-controls" }, controls.f.node, controls.network.node, controls.x1.node, controls.x2.node, controls.turn.node),
    element("div", { class: "ex-pair" }, surface.canvas, square.canvas),
    note, shown.node, status.node,
  );
  listNetworks();
  return { draw, state };
}
