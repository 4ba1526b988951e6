// The networks, as pure functions of exported numbers. Nothing here touches the page; tests compare it with Python.

function softmax(scores) {
  let largest = -Infinity;
  for (const z of scores) if (z > largest) largest = z;
  const weights = new Float64Array(scores.length);
  let sum = 0;
  for (let k = 0; k < scores.length; k++) sum += weights[k] = Math.exp(scores[k] - largest);
  for (let k = 0; k < scores.length; k++) weights[k] /= sum;
  return weights;
}

// a·b + c rounded once (but for rare ties), as torch's addcmul does: product and sum with their exact rounding errors
function fused(a, b, c) {
  const split = (x) => { const t = 134217729 * x, high = t - (t - x); return [high, x - high]; };
  const [a1, a0] = split(a), [b1, b0] = split(b), p = a * b;
  const lost = a0 * b0 - (p - a1 * b1 - a0 * b1 - a1 * b0);
  const sum = p + c, part = sum - p;
  return sum + (p - (sum - part) + (c - part) + lost);
}

// ---- univariate functions

// erf x = 2/√π e^(-x²) Σ 2ⁿ x^(2n+1)/(2n+1)!!, all terms of one sign
function erfSeries(x) {
  let term = x, sum = x;
  for (let n = 1; n < 200 && Math.abs(term) > 1e-18 * Math.abs(sum); n++) sum += term *= (2 * x * x) / (2 * n + 1);
  return (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * sum;
}

// erfc x for x >= 2.5, by its continued fraction from the inside out
function erfcFraction(x) {
  let below = x;
  for (let n = 80; n >= 1; n--) below = x + n / 2 / below;
  return Math.exp(-x * x) / (Math.sqrt(Math.PI) * below);
}

function erfc(x) {
  if (x >= 2.5) return erfcFraction(x);
  return x <= -2.5 ? 2 - erfcFraction(-x) : 1 - erfSeries(x);
}

const FUNCTIONS = {
  gelu: (s) => 0.5 * s * erfc(-s / Math.SQRT2),
  relu: (s) => Math.max(s, 0),
  silu: (s) => s / (1 + Math.exp(-s)),
  sigmoid: (s) => 1 / (1 + Math.exp(-s)),
  tanh: Math.tanh,
  sin: Math.sin,
  "clip(-1,1)": (s) => Math.min(Math.max(s, -1), 1),
};

// ---- one head: g(s) = output Σ_k softmax_k(slope_k x + offset_k) (gain_k s + value_k), x = query₀ s + query₁

function headWeights(head, s) {
  const x = fused(head.query[0], s, head.query[1]), scores = new Float64Array(head.slope.length);
  for (let k = 0; k < scores.length; k++) scores[k] = fused(head.slope[k], x, head.offset[k]);
  return softmax(scores);
}

function headValue(head, s, weights = headWeights(head, s)) {
  let sum = 0;
  for (let k = 0; k < weights.length; k++) {
    sum += weights[k] * (head.gain ? head.gain[k] * s + head.value[k] : head.value[k]);
  }
  return head.output * sum;
}

// What each anchor contributes to the mean: its value, or for the key of a gated head its multiple of s
const anchorValues = (head, s) => head.value.map((value, k) => head.output * (head.gain ? head.gain[k] * s + value : value));

// The head with other keys: anchor k moved by shifts[k] on the axis of s, all scores multiplied by `sharpness`.
// Keys are tangents z = slope x + offset of a convex curve; an anchor moves along that curve, with its curvature there.
function alteredHead(head, shifts, sharpness) {
  const slope = head.slope.slice(), offset = head.offset.slice(), anchors = head.anchors.slice();
  const [a, b] = head.query, last = slope.length - 1;
  for (const [key, shift] of Object.entries(shifts)) {
    const k = Number(key);
    if (!shift) continue;
    const i = Math.max(k - 1, 0), j = Math.min(k + 1, last);
    const at = (n) => a * head.anchors[n] + b;
    const curvature = (head.slope[j] - head.slope[i]) / (at(j) - at(i));
    const d = a * shift;
    slope[k] = head.slope[k] + curvature * d;
    offset[k] = head.offset[k] - curvature * d * at(k) - (curvature * d * d) / 2;
    anchors[k] += shift;
  }
  return {
    ...head, anchors,
    slope: slope.map((z) => z * sharpness),
    offset: offset.map((z) => z * sharpness),
  };
}

// ---- the literal form: maps and self-attention over tokens, as matrices

function literalMap(step, x) {
  const [n, d] = step.in, [m, e] = step.out;
  const groups = x.length / (n * d), out = new Float64Array(groups * m * e);
  for (let g = 0; g < groups; g++) {
    const from = g * n * d, to = g * m * e;
    if (Array.isArray(step.core[0])) {
      step.rows.forEach((row, r) => {
        let sum = 0;
        step.columns.forEach((column, c) => { sum += step.core[r][c] * x[from + column]; });
        out[to + row] = sum;
      });
    } else {
      step.rows.forEach((row, r) => { out[to + row] = step.core[r] * x[from + step.columns[r]]; });
    }
    step.biasAt.forEach((at, i) => { out[to + at] += step.bias[i]; });
  }
  return out;
}

// x (tokens × width) times a matrix (width × columns), for the tokens from `first` to `end`
function product(x, matrix, first, end) {
  const width = matrix.length, columns = matrix[0].length, out = new Float64Array((end - first) * columns);
  for (let t = first; t < end; t++) {
    for (let i = 0; i < width; i++) {
      const number = x[t * width + i];
      if (number !== 0) for (let j = 0; j < columns; j++) out[(t - first) * columns + j] += number * matrix[i][j];
    }
  }
  return out;
}

// Σ softmax(X W_Q (X W_K)ᵀ) X W_V W_O for the first `queries` tokens. `fixed` holds keys and values that were computed before.
function literalAttention(step, x, queries, fixed = null) {
  const width = step.W_Q.length, tokens = x.length / width, r = step.W_Q[0].length, m = step.W_V[0].length;
  const q = product(x, step.W_Q, 0, queries);
  let k, v;
  if (fixed) {
    ({ k, v } = fixed);
    k.set(product(x, step.W_K, 0, fixed.data));
    v.set(product(x, step.W_V, 0, fixed.data));
  } else {
    k = product(x, step.W_K, 0, tokens);
    v = product(x, step.W_V, 0, tokens);
  }
  const pattern = [], mixed = new Float64Array(queries * m);
  for (let t = 0; t < queries; t++) {
    const scores = new Float64Array(tokens);
    for (let u = 0; u < tokens; u++) {
      let sum = 0;
      for (let i = 0; i < r; i++) sum += q[t * r + i] * k[u * r + i];
      scores[u] = sum;
    }
    const weights = softmax(scores);
    for (let u = 0; u < tokens; u++) {
      if (weights[u] !== 0) for (let i = 0; i < m; i++) mixed[t * m + i] += weights[u] * v[u * m + i];
    }
    pattern.push(weights);
  }
  return { out: product(mixed, step.W_O, 0, queries), pattern };
}

const DATA_TOKENS = 2;

// The network of two tokens x = [x₁, x₂]: outputs, and the patterns of both layers for the data tokens. The anchors of the second
// layer do not depend on x; `prepared` keeps their rows, keys and values. The last map reads the data tokens alone. With
// queries = 1 only the first output is right.
function twoTokens(network, x, prepared = prepareTwoTokens(network), queries = DATA_TOKENS) {
  const [first, gather, , anchors, keep] = network.steps;
  const gathered = literalAttention(gather, literalMap(first, Float64Array.from(x)), DATA_TOKENS);
  const { beside, sequence, fixed, read } = prepared;
  sequence.set(literalMap(beside, gathered.out));
  const { out, pattern } = literalAttention(anchors, sequence, queries, fixed);
  read.set(out);
  return { y: literalMap({ ...keep, in: [DATA_TOKENS, keep.in[1]] }, read), gather: gathered.pattern, anchors: pattern };
}

function prepareTwoTokens(network) {
  const [, , step, anchors] = network.steps;
  const [m, e] = step.out, inputs = step.in[0] * step.in[1];
  const sequence = literalMap(step, new Float64Array(inputs));
  const fixed = { data: DATA_TOKENS, k: product(sequence, anchors.W_K, 0, m), v: product(sequence, anchors.W_V, 0, m) };
  const end = DATA_TOKENS * e, own = step.biasAt.map((at, i) => [at, step.bias[i]]).filter(([at]) => at < end);
  const beside = { ...step, out: [DATA_TOKENS, e], biasAt: own.map(([at]) => at), bias: own.map(([, b]) => b) };
  const read = new Float64Array(DATA_TOKENS * anchors.W_O[0].length);
  return { beside, sequence, fixed, read };
}

const SURFACES = {
  difference: (x, y) => Math.sin(2 * (y - x)) / 2,
  "smaller first": Math.min,
  product: (x, y) => x * y,
};

// ---- gradient descent in context: layers A, B and C

function readingValue(reading, s) {
  let sum = 0;
  reading.query.forEach((scale, h) => {
    const w = softmax([scale * s, 0]);
    sum += reading.output[h] * (w[0] * reading.value[h][0] + w[1] * reading.value[h][1]);
  });
  return sum;
}

const dot = (a, b) => a.reduce((sum, number, i) => sum + number * b[i], 0);

// One step from w on rows x (with a column of ones) and targets y: what each layer computes
function learnerStep(learner, w, x, y) {
  const n = x.length, { e, stepSize } = learner;
  const s = x.map((row) => dot(row, w));
  const u = s.map((number) => readingValue(learner.reading, number));
  const g = u.map((number) => (learner.activation ? headValue(learner.activation, number) : number));
  const r = g.map((number, i) => number - y[i]);
  const twins = [...r, ...r.map((number) => -number)];
  const sums = [1, 2].map((factor) => {
    const p = softmax(twins.map((number) => factor * e * number));
    const difference = r.map((_, i) => p[i] - p[n + i]);
    return { difference, sum: w.map((_, j) => difference.reduce((sum, d, i) => sum + d * x[i][j], 0)) };
  });
  const next = w.map((number, j) => {
    const one = number + ((-4 * stepSize) / (3 * e)) * sums[0].sum[j];
    return one + (stepSize / (6 * e)) * sums[1].sum[j];
  });
  return { s, u, g, r, weights: sums[0].difference, next };
}

function learnerTrajectory(learner, x, y) {
  let w = new Array(learner.features).fill(0);
  const steps = [{ w, layers: null }];
  for (let t = 0; t < learner.steps; t++) {
    const layers = learnerStep(learner, w, x, y);
    w = layers.next;
    steps.push({ w, layers });
  }
  return steps;
}

// Exact gradient descent: w ← w - η (1/n) Σ (ψ(w·x_i) - y_i) x_i
function exactTrajectory(learner, x, y) {
  const psi = learner.loss === "logistic" ? FUNCTIONS.sigmoid : (s) => s;
  let w = new Array(learner.features).fill(0);
  const steps = [w];
  for (let t = 0; t < learner.steps; t++) {
    const r = x.map((row, i) => psi(dot(row, w)) - y[i]);
    w = w.map((number, j) => number - learner.stepSize * (r.reduce((sum, ri, i) => sum + ri * x[i][j], 0) / x.length));
    steps.push(w);
  }
  return steps;
}

// ---- a norm: 1/√(|z|²/d + ε) ≈ Σ_j value_j softmax(intercept_j - slope_j |z|², 0)₀

function normWeights(norm, square) {
  return norm.slope.map((slope, j) => softmax([norm.intercept[j] - slope * square * norm.dim, 0])[0]);
}

const normValue = (norm, square, weights = normWeights(norm, square)) => dot(norm.value, weights);
const normExact = (norm, square) => 1 / Math.sqrt(square + norm.offset);

// ---- token programs: x + Σ_h softmax(xQ_h (xK_h)ᵀ) xV_h O_h over BOS and the tokens

// x (rows × shape[0]) times a matrix of which the numbers that are not 0 are listed
function sparseProduct(x, rows, matrix) {
  const [d, columns] = matrix.shape, out = new Float64Array(rows * columns), { at } = matrix;
  for (let t = 0; t < rows; t++) {
    for (let n = 0; n < at.length; n += 3) out[t * columns + at[n + 1]] += x[t * d + at[n]] * at[n + 2];
  }
  return out;
}

function sparseRow(matrix, row, into, first) {
  for (let n = 0; n < matrix.at.length; n += 3) {
    if (matrix.at[n] === row) into[first + matrix.at[n + 1]] += matrix.at[n + 2];
  }
}

function tokenPattern(model, head, x, rows) {
  const q = sparseProduct(x, rows, head.query), k = sparseProduct(x, rows, head.key), r = head.query.shape[1];
  const pattern = [];
  for (let t = 0; t < rows; t++) {
    const scores = new Float64Array(rows).fill(-Infinity);
    for (let u = 0; u < (model.causal ? t + 1 : rows); u++) {
      scores[u] = 0;
      for (let i = 0; i < r; i++) scores[u] += q[t * r + i] * k[u * r + i];
    }
    pattern.push(softmax(scores));
  }
  return pattern;
}

// ids of tokens → patterns of all heads, logits and outputs; heads in `broken` ("layer.head") write nothing
function runTokens(model, ids, broken = new Set()) {
  const rows = ids.length + 1, d = model.coordinates.length;
  const x = new Float64Array(rows * d);
  [model.vocabulary.length, ...ids].forEach((id, t) => {
    sparseRow(model.tokens, id, x, t * d);
    sparseRow(model.positions, t, x, t * d);
  });
  const patterns = model.layers.map((heads, layer) => {
    const written = new Float64Array(rows * d);
    const found = heads.map((head, h) => {
      const pattern = tokenPattern(model, head, x, rows);
      if (!broken.has(`${layer}.${h}`)) {
        const v = sparseProduct(x, rows, head.value), m = head.value.shape[1], mixed = new Float64Array(rows * m);
        pattern.forEach((weights, t) => weights.forEach((weight, u) => {
          if (weight !== 0) for (let i = 0; i < m; i++) mixed[t * m + i] += weight * v[u * m + i];
        }));
        sparseProduct(mixed, rows, head.output).forEach((number, i) => { written[i] += number; });
      }
      return pattern;
    });
    written.forEach((number, i) => { x[i] += number; });
    return found;
  });
  const all = sparseProduct(x, rows, model.unembedding), count = model.outputs.length;
  const logits = ids.map((_, t) => all.slice((t + 1) * count, (t + 2) * count));
  return { patterns, logits, outputs: logits.map((row) => model.outputs[row.indexOf(Math.max(...row))]) };
}
