// A loss that a reader types, on the dial; and two calculators. A page shows one with `hnbook.figures.interactive`:
//   interactive("typed", "Type …", batches=…)  draws f(s) or w(s) on recorded batches (`figures.coordinates` packs them);
//   interactive("batch", "Your batch, …")      what theorems say of Q, t, β, α, τ⁺ and a lead;
//   interactive("value", "Your loss is …")     what the value of a loss could be, for a batch size and a temperature.
// Nothing that is typed is run: `parse` knows numbers, four operations, powers and the functions listed in it.
"use strict";

const typed = (() => {
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));
  const softplus = (x) => (x > 30 ? x : Math.log1p(Math.exp(x)));

  // ---- expressions: numbers with their derivatives in s, [value, slope] ----

  const FUNCTIONS = {
    exp: [Math.exp, Math.exp],
    log: [Math.log, (x) => 1 / x],
    sqrt: [Math.sqrt, (x) => 0.5 / Math.sqrt(x)],
    abs: [Math.abs, Math.sign],
    tanh: [Math.tanh, (x) => 1 - Math.tanh(x) ** 2],
    artanh: [Math.atanh, (x) => 1 / (1 - x * x)],
    sigmoid: [sigmoid, (x) => sigmoid(x) * sigmoid(-x)],
    softplus: [softplus, sigmoid],
    relu: [(x) => Math.max(0, x), (x) => Number(x > 0)],
    step: [(x) => (Number.isNaN(x) ? x : Number(x > 0)), () => 0],
  };
  const OPERATIONS = {
    "+": ([a, da], [b, db]) => [a + b, da + db],
    "-": ([a, da], [b, db]) => [a - b, da - db],
    "*": ([a, da], [b, db]) => [a * b, da * b + a * db],
    "/": ([a, da], [b, db]) => [a / b, (da - (a / b) * db) / b],
    "^": ([a, da], [b, db]) => [a ** b, (da ? da * b * a ** (b - 1) : 0) + (db ? db * a ** b * Math.log(a) : 0)],
    min: (a, b) => (a[0] <= b[0] || Number.isNaN(a[0]) ? a : b),  // undefined if either is
    max: (a, b) => (a[0] >= b[0] || Number.isNaN(a[0]) ? a : b),
  };
  const CONSTANTS = { pi: Math.PI, e: Math.E };
  const KNOWN = `s, t, Q, pi, e, ${Object.keys(FUNCTIONS).join(", ")}, min or max`;

  // Return a function of { s, t, Q } that gives [value, slope in s]. SyntaxError: one sentence with place and remedy.
  function parse(text) {
    const tokens = [], token = /\s*(?:(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)|([a-z]\w*)|(\*\*|\S))/giy;
    for (let found; (found = token.exec(text));) {
      const at = token.lastIndex - (found[1] ?? found[2] ?? found[3]).length + 1;
      const sign = { "**": "^", "−": "-", "–": "-", "·": "*", "×": "*" }[found[3]] ?? found[3];
      tokens.push({ at, number: found[1], name: found[2], sign });
    }
    tokens.push({ at: text.length + 1, sign: "" });
    let next = 0;
    const fail = (words) => { throw new SyntaxError(`${words}.`); };
    const shown = ({ number, name, sign }) => `“${number ?? name ?? sign}”`;
    const take = (...signs) => (signs.includes(tokens[next].sign) ? tokens[next++].sign : null);
    const close = ({ at }) => take(")") ?? fail(tokens[next].sign === ","
      ? `The comma at character ${tokens[next].at} is not between arguments; write decimals with a point`
      : `The parenthesis at character ${at} is not closed before character ${tokens[next].at}; add “)” or an operator`);

    function chain(part, ...signs) {  // a + b − c, from the left
      let left = part();
      for (let sign; (sign = take(...signs));) {
        const [a, b, operation] = [left, part(), OPERATIONS[sign]];
        left = (x) => operation(a(x), b(x));
      }
      return left;
    }
    const sum = () => chain(product, "+", "-");
    const product = () => chain(factor, "*", "/");
    function factor() {
      if (take("+")) return factor();
      if (take("-")) {
        const a = factor();
        return (x) => OPERATIONS["-"]([0, 0], a(x));
      }
      const a = atom();
      if (!take("^")) return a;
      const b = factor();
      return (x) => OPERATIONS["^"](a(x), b(x));
    }
    function atom() {
      const here = tokens[next];
      if (here.number || here.name) {
        next++;
        return here.name ? named(here) : () => [Number(here.number), 0];
      }
      if (take("(")) {
        const inside = sum();
        close(here);
        return inside;
      }
      if (here.sign === "") return fail(`Something is missing at character ${here.at}, the end; add a number, s or t`);
      return fail(`${shown(here)} at character ${here.at} cannot stand there; put a number, s, t or a function before it`);
    }
    function named(here) {
      const { name, at } = here, opened = tokens[next];
      if (Object.hasOwn(CONSTANTS, name)) return () => [CONSTANTS[name], 0];
      if (["s", "t", "Q"].includes(name)) return (x) => [x[name], Number(name === "s")];
      const pair = name === "min" || name === "max";
      if (!pair && !Object.hasOwn(FUNCTIONS, name)) fail(`${shown(here)} at character ${at} is unknown; use ${KNOWN}`);
      if (!take("(")) fail(`${name} at character ${at} has no argument; write ${name}(${pair ? "s, 0" : "s"})`);
      const a = sum();
      if (!pair) {
        close(opened);
        const [value, slope] = FUNCTIONS[name];
        return (x) => {
          const [v, d] = a(x);
          return [value(v), d && d * slope(v)];
        };
      }
      if (!take(",")) fail(`${name} at character ${at} takes two arguments; write ${name}(s, 0)`);
      const b = sum();
      close(opened);
      return (x) => OPERATIONS[name](a(x), b(x));
    }

    const whole = sum(), left = tokens[next];
    if (left.sign === ",") fail(`The comma at character ${left.at} is outside a function; write decimals with a point`);
    if (left.sign === ")") fail(`“)” at character ${left.at} closes nothing; delete it`);
    if (left.sign !== "") fail(`${shown(left)} at character ${left.at} follows without an operator; put + − * / or ^ before it`);
    return whole;
  }

  // ---- a batch: n points in the coordinates of their span; a and its other view are n/2 apart ----

  function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), packed = new Int16Array(bytes.buffer);
    const n = (Math.sqrt(8 * packed.length + 1) - 1) / 2;
    const z = Array.from({ length: n }, (_, a) => {
      const row = new Float64Array(n);
      row.set(packed.subarray((a * (a + 1)) / 2, ((a + 1) * (a + 2)) / 2));
      const norm = Math.hypot(...row);
      return row.map((x) => x / norm);
    });
    const s = z.map((row, a) => Float64Array.from(z, (other, b) => {
      let sum = 0;
      for (let i = Math.min(a, b); i >= 0; i--) sum += row[i] * other[i];
      return sum;
    }));
    return { n, z, s, partner: z.map((_, a) => (a + n / 2) % n) };
  }

  // Derivatives of the loss by the similarities, anchors × candidates. With `kind` "f" the formula is the logit f(s); with
  // "w" the logit is s/t and the formula a weight of each negative, divided by the anchor's mean and held fixed. An anchor
  // pulls (1 − p)^power times as much as its log-ratio does: 1 is InfoNCE, 0 DCL.
  function derivatives({ s, partner }, { kind, formula, t, power }) {
    const Q = s.length - 2;
    function evaluate(x) {
      const [value, slope] = formula({ s: x, t, Q }), place = `at s = ${x.toFixed(3).replace("-", "−")}, which this batch has`;
      if (kind === "w" && value < 0) throw new RangeError(`w(s) is negative ${place}; a weight must be 0 or more.`);
      if (!Number.isFinite(value)) throw new RangeError(`${kind}(s) is not a finite number ${place}; change it there.`);
      if (kind === "w") return [x / t + Math.log(value), 1 / t, value];
      if (!Number.isFinite(slope)) throw new RangeError(`f(s) has no finite slope ${place}; change it there.`);
      return [value, slope, 1];
    }
    return s.map((row, a) => {
      const own = kind === "f" ? evaluate(row[partner[a]]) : [row[partner[a]] / t, 1 / t];
      const others = [...row.keys()].filter((j) => j !== a && j !== partner[a]);
      const logits = others.map((j) => evaluate(row[j])), most = Math.max(...logits.map(([logit]) => logit));
      if (most === -Infinity) throw new RangeError(`w(s) is 0 for all negatives of an anchor of this batch; give some a weight.`);
      const shares = logits.map(([logit]) => Math.exp(logit - most)), sum = shares.reduce((x, y) => x + y);
      const mean = logits.reduce((x, [, , weight]) => x + weight, 0) / Q;
      const loud = sigmoid(most + Math.log(sum / mean) - own[0]) ** power;
      const found = new Float64Array(row.length);
      found[partner[a]] = -loud * own[1];
      others.forEach((j, i) => { found[j] = loud * logits[i][1] * (shares[i] / sum); });
      return found;
    });
  }

  // ---- the estimator of hnlib/profile.py, for a loss of two views ----

  const [EXACT, BENT] = [1e-3, 0.05];  // misfits
  const [CLOSE, FAR] = [5, 45];  // degrees
  const OWN = 1.25;  // factor between 1/γ and the temperature of the family, up to which they are one number

  const table = (n, cell) => Array.from({ length: n }, (_, a) => Float64Array.from({ length: n }, (_, b) => cell(a, b)));

  function profile({ n, z, s, partner }, derivative) {
    const forces = table(n, (a, b) => (derivative[a][b] + derivative[b][a]) / n);
    const negatives = [];  // each pair once
    for (let a = 0; a < n; a++) for (let b = a + 1; b < n; b++) if (b !== partner[a]) negatives.push([a, b]);
    const nearest = search({ n, z, s, partner }, forces), t = nearest[1].temperature;
    const pushed = negatives.filter(([a, b]) => forces[a][b] > 0);
    const fits = nearest.slice(0, 2).map((near) => sharpness(n, s, forces, pushed, 1 / near.temperature));
    const fit = fits[0].misfit <= fits[1].misfit ? fits[0] : fits[1];  // far from any, one may not converge
    const lead = s.map((row, a) => {
      const others = row.filter((_, j) => j !== a && j !== partner[a]), most = Math.max(...others);
      return row[partner[a]] - most - t * Math.log(others.reduce((sum, x) => sum + Math.exp((x - most) / t), 0));
    });
    const pairs = s.slice(n / 2).map((_, a) => [a, partner[a]]);
    const pull = pairs.map(([a, b]) => -forces[a][b]), push = negatives.map(([a, b]) => forces[a][b]);
    const total = (list) => list.reduce((x, y) => x + y, 0);
    return { forces, ...fit, nearest,
      balance: total(push) / total(pull),
      silent: push.filter((x) => x === 0).length / push.length,
      attracted: push.filter((x) => x < 0).length / push.length,
      lead: pairs.map(([a, b]) => (lead[a] + lead[b]) / 2),
      loudness: pull.map((x) => x * t * pairs.length) };
  }

  // The nearest (temperature), (temperature, loudness) and (temperature, loudness, balance): `_nearest` and `_closest`.
  function search({ n, z, s, partner }, forces) {
    const moved = forces.map((row, a) => {  // the gradient at a
      const sum = new Float64Array(n);
      let radial = 0;
      row.forEach((force, b) => {
        if (a !== b) radial += force * s[a][b];
        for (let i = 0; a !== b && i <= b; i++) sum[i] += force * z[b][i];
      });
      return sum.map((x, i) => x - radial * z[a][i]);
    });
    function dot(x, y) {
      let sum = 0;
      for (let i = 0; i < n; i++) sum += x[i] * y[i];
      return sum;
    }
    const norm = Math.sqrt(moved.reduce((sum, row) => sum + dot(row, row), 0));
    if (!(norm > 0)) throw new RangeError("This loss has no gradient on this batch; let it change with s.");
    const along = table(n, (a, b) => dot(moved[a], z[b]) / norm);
    const members = new Map();  // the three families share some
    function products(t, power) {  // of the pull and the push of a member with each other and with the gradient
      const key = `${t} ${power}`;
      if (members.has(key)) return members.get(key);
      const loud = new Float64Array(n), share = table(n, () => 0), at = new Float64Array(n);
      s.forEach((row, a) => {
        let most = -Infinity, sum = 0;
        for (let j = 0; j < n; j++) if (j !== a && j !== partner[a]) most = Math.max(most, row[j]);
        for (let j = 0; j < n; j++) if (j !== a && j !== partner[a]) sum += share[a][j] = Math.exp((row[j] - most) / t);
        loud[a] = sigmoid(Math.log(sum) + (most - row[partner[a]]) / t) ** power;
        for (let j = 0; j < n; j++) share[a][j] *= loud[a] / sum;
      });
      const found = { pull: 0, push: 0, pulled: 0, pushed: 0, both: 0 };
      for (let a = 0; a < n; a++) {
        const own = partner[a], pull = -(loud[a] + loud[own]);
        let radial = 0;
        at.fill(0);
        for (let b = 0; b < n; b++) {
          const force = share[a][b] + share[b][a], row = z[b];
          radial += force * s[a][b];
          found.pushed += force * along[a][b];
          for (let i = 0; i <= b; i++) at[i] += force * row[i];
        }
        found.push += dot(at, at) - radial ** 2;
        found.pull += pull ** 2 * (1 - s[a][own] ** 2);
        found.pulled += pull * along[a][own];
        found.both += pull * (dot(at, z[own]) - radial * s[a][own]);
      }
      members.set(key, found);
      return found;
    }
    function member(temperature, loudness, balanced) {
      const { pull, push, pulled, pushed, both } = products(temperature, loudness);
      let balance = balanced ? (pushed * pull - pulled * both) / (pulled * push - pushed * both) : 1;
      balance = Math.min(Math.max(Number.isNaN(balance) ? 1 : balance, 1e-3), 1e3);
      const size = Math.max(Math.sqrt(pull + 2 * balance * both + balance ** 2 * push), 1e-150);
      const cosine = Math.min(Math.max((pulled + balance * pushed) / size, -1), 1);
      return { angle: (Math.acos(cosine) * 180) / Math.PI, temperature, loudness, balance };
    }
    function family(powers, balanced) {
      let temperatures = Array.from({ length: 51 }, (_, i) => 10 ** (-4 + 0.1 * i)), best = null;
      for (let step = 0; step < 11; step++) {
        for (const t of temperatures) for (const power of powers) {
          const found = member(t, power, balanced);
          if (best === null || found.angle < best.angle) best = found;
        }
        const around = [-1, -0.5, 0, 0.5, 1].map((x) => x * 0.6 ** step), { temperature, loudness } = best;
        temperatures = around.map((x) => temperature * 10 ** (0.1 * x));
        if (powers.length > 1) powers = around.map((x) => Math.min(Math.max(loudness + x, 0), 4));
      }
      return best;
    }
    const free = [0, 1, 2, 3, 4];
    return [family([1], false), family(free, false), family(free, true)];
  }

  // Fit log F = γs + log(u_a + u_b) to the pushed pairs, by Levenberg and Marquardt: `_sharpness`.
  function sharpness(n, s, forces, pairs, start) {
    const x = pairs.map(([a, b]) => s[a][b]), y = pairs.map(([a, b]) => Math.log(forces[a][b]));
    const ends = new Set(pairs.flat()), none = { sharpness: null, misfit: null, r2: null, local: [] };
    if (x.length < Math.max(8, ends.size + 4) || Math.max(...x) - Math.min(...x) < 1e-6) return none;
    const sum = (list) => list.reduce((a, b) => a + b, 0), mean = sum(y) / y.length;
    const scatter = sum(y.map((v) => (v - mean) ** 2));
    if (scatter < 1e-12 * y.length) return { ...none, sharpness: 0, misfit: 0 };
    const bound = new Float64Array(n + 1).fill(Infinity);  // u_a is below u_a + u_b
    pairs.forEach((pair, i) => pair.forEach((a) => { bound[a] = Math.min(bound[a], y[i] - start * x[i]); }));
    let found = bound.map((v) => Math.exp(Math.min(Math.max(v, -690), 690))), error = [], normal, slope, scale;
    found[n] = start;
    let step = new Float64Array(n + 1), best = Infinity, damping = 1e-3;
    while (damping < 1e6) {
      const tried = found.map((v, a) => v + step[a]);
      const off = pairs.map(([a, b], i) => tried[n] * x[i] + Math.log(tried[a] + tried[b]) - y[i]);
      const left = sum(off.map((v) => v ** 2));
      if (left < best) {  // not where a logarithm is NaN
        const converged = left > (1 - 1e-7) * best || left < 1e-20 * x.length;
        [found, error, best, damping] = [tried, off, left, Math.max(damping / 10, 1e-14)];
        if (converged) break;
        normal = table(n + 1, () => 0);
        slope = new Float64Array(n + 1);
        pairs.forEach(([a, b], i) => {
          const one = 1 / (found[a] + found[b]), row = [[a, one], [b, one], [n, x[i]]];
          for (const [p, v] of row) {
            slope[p] += v * off[i];
            for (const [q, w] of row) normal[p][q] += v * w;
          }
        });
        scale = normal.map((row, a) => Math.max(Math.sqrt(row[a]), 1e-300));
      } else damping *= 10;
      const damped = table(n + 1, (a, b) => normal[a][b] / scale[a] / scale[b] + damping * Number(a === b));
      step = solve(damped, slope.map((v, a) => -v / scale[a])).map((v, a) => v / scale[a]);
    }
    const misfit = Math.sqrt(best / x.length);
    if (misfit > EXACT && x.length < 3 * ends.size) return none;  // only an exact fit tells of itself that it is one
    const order = x.map((_, i) => i).sort((i, j) => x[i] - x[j]), third = Math.ceil(x.length / 3);
    const local = [0, 1, 2].map((k) => {
      const part = order.slice(k * third, (k + 1) * third), middle = sum(part.map((i) => x[i])) / part.length;
      const tilt = sum(part.map((i) => (x[i] - middle) * error[i])) / sum(part.map((i) => (x[i] - middle) ** 2));
      return [middle, found[n] - tilt];
    });
    return { sharpness: found[n], misfit, r2: 1 - best / scatter, local };
  }

  // Solve a symmetric positive definite system by elimination; both arguments are used up.
  function solve(matrix, x) {
    const n = x.length;
    for (let k = 0; k < n; k++) for (let i = k + 1; i < n; i++) {
      const factor = matrix[i][k] / matrix[k][k];
      for (let j = k; j < n; j++) matrix[i][j] -= factor * matrix[k][j];
      x[i] -= factor * x[k];
    }
    for (let i = n - 1; i >= 0; i--) {
      for (let j = i + 1; j < n; j++) x[i] -= matrix[i][j] * x[j];
      x[i] /= matrix[i][i];
    }
    return x;
  }

  // ---- the sentence, as `Profile` says it ----

  const digits = (x, n) => String(Number(x.toPrecision(n))).replace("Infinity", "∞");

  function verdict({ sharpness: gamma, misfit, r2, balance, silent, attracted, nearest }) {
    if (gamma === null) return silent + attracted === 1 ? "no negative is pushed" : "too few pairs are pushed to tell";
    const extras = ["", " with a loudness of its own", " with a loudness and a balance of its own"];
    const weak = Math.abs(balance) < Math.sin((CLOSE * Math.PI) / 180);  // so weak a push turns no gradient
    const near = weak ? -1 : nearest.findIndex(({ angle }) => angle < CLOSE);
    const exact = misfit <= EXACT, heard = silent > 0 ? "the negatives that are not silent" : "";
    if (exact && r2 === null) return `a constant push${heard ? ` on ${heard}` : ", sharp nowhere"}`;
    const its = ({ angle, temperature: t }) => angle < CLOSE && 1 / OWN <= t * gamma && t * gamma <= OWN;
    const own = weak ? -1 : nearest.findIndex(its);
    if (exact && own >= 0) return `a temperature${extras[own]}, on these embeddings`;
    if (near >= 0 && !exact) {
      return `not one temperature, though near t = ${digits(nearest[near].temperature, 3)}${extras[near]} on these embeddings`;
    }
    if (nearest[0].angle > FAR) return "far from SimCLR at every t";
    if (misfit > BENT) return "no temperature";
    const choice = heard ? `in its choice among ${heard}` : "in its choice of negatives";
    return `${exact ? "" : "nearly "}a temperature ${choice}, but not in how hard it pushes; sweep γ, not t`;
  }

  function sentence(found) {
    if (verdict(found) === "no negative is pushed") return verdict(found);
    const { sharpness: gamma, misfit, local, balance, silent, attracted, nearest: [one, two, three] } = found;
    const parts = [gamma === null ? "γ unknown" : `γ = ${gamma.toFixed(2)}`], slopes = local.map(([, slope]) => slope);
    if (gamma !== null && misfit > EXACT) {
      parts[0] += ` (${digits(Math.min(...slopes), 3)} to ${digits(Math.max(...slopes), 3)} by similarity)`;
    }
    const at = ({ temperature: t }) => ` at t = ${digits(t, 3)}`, elsewhere = (x) => (at(x) === at(one) ? "" : at(x));
    const edge = one.temperature > 1e-4 && one.temperature < 10 ? "" : ", the grid's edge";
    parts.push(`${one.angle.toFixed(1)}° from SimCLR${at(one)}${edge}`);
    if (one.angle < 0.1 || Math.abs(two.loudness - 1) < 0.15) parts.push("as loud as InfoNCE");
    else if (two.angle < one.angle - 0.1) {
      parts.push(`${two.angle.toFixed(1)}° with loudness (1 − p)^${digits(two.loudness, 2)}${elsewhere(two)}`);
    }
    if (Math.abs(balance - 1) > 0.01) parts.push(`push/pull ${digits(balance, 2)} (${three.angle.toFixed(1)}° with it${elsewhere(three)})`);
    if (silent > 0) parts.push(`${digits(100 * silent, 3)} % of the negatives silent`);
    if (attracted > 0) parts.push(`${digits(100 * attracted, 3)} % of the negatives attracted`);
    return `${parts.join(", ")}: ${verdict(found)}`.replace(/-(?=\d)/g, "−");
  }

  const LOUDNESS = "theory/sharpness.html", LEVEL = `${LOUDNESS}#prop-loudness-level`;  // from a page in notebooks/

  // ---- closed forms: L1, L6, P2, P6 and D1, for negatives that are all `lead` less similar than the positive `own` ----

  function batch({ Q, t, beta, alpha, tau, own, lead }) {
    const kappa = (Q * tau) / (1 - tau), level = Math.exp(alpha * (own - lead) - lead / t);
    const above = (Q * (level - tau)) / (1 - tau), least = Q * Math.exp(-(1 + own) / t);
    const silent = tau > 0 && above <= least, R = silent ? least : above;
    const ahead = (times) => (t * (Math.log(times) + alpha * own)) / (1 + alpha * t);  // lead at which Q·level is Q/times
    return { sharpness: (1 + beta) / t + alpha, silent, loss: Math.log1p(R),
      loudness: silent ? 1 / (1 + 1 / R) : 1 + (kappa - 1) / (1 + R),
      quietest: 1 / (1 + Math.exp(2 / t + alpha) / Q), floor: Math.log1p(Q * Math.exp(-2 / t - alpha)),
      batchFloor: Math.log1p(Q * Math.exp(-(1 + 1 / Q) / t)), collapse: Math.log1p((Q * (Math.exp(alpha) - tau)) / (1 - tau)),
      won: ahead(Q / 0.01), margin: tau > 0 ? ahead(1 / tau) : null };
  }

  // What a loss of B pairs at temperature t is in states that have a name: value, formula, state, theorem.
  function meanings({ B, t, base, mined }) {
    const equal = "all similarities equal", stuck = "stuck.html#prop-stuck-values", m = B * (1 + mined) - 1;
    return [
      [Math.log(m + 1), mined ? "log B(1 + h)" : "log B", `pairs, ${equal}`, stuck],
      [Math.log(2 * B - 1), "log(2B − 1)", `two views (SimCLR), ${equal}`, stuck],
      [(t / base) * Math.log(2 * B - 1), "(t/T) log(2B − 1)", `SupContrast, ${equal}`, stuck],
      [Math.log(m), mined ? "log(B(1 + h) − 1)" : "log(B − 1)", `pairs without the positive below (DCL), ${equal}`, `${LOUDNESS}#thm-loudness`],
      [Math.log(2 * B - 2), "log(2B − 2)", `two views without the positive below (DCL), ${equal}`, `${LOUDNESS}#thm-loudness`],
      [2 * Math.log(m + 1), mined ? "2 log B(1 + h)" : "2 log B", `both directions added, not averaged, ${equal}`, stuck],
      [B * Math.log(m + 1), mined ? "B log B(1 + h)" : "B log B", `pairs summed, not averaged, ${equal}`, stuck],
      [2 * B * Math.log(2 * B - 1), "2B log(2B − 1)", `two views summed, not averaged, ${equal}`, stuck],
      [(m + 1) * Math.LN2, mined ? "B(1 + h) log 2" : "B log 2", "SigLIP per query, all logits zero", stuck],
      [Math.log(m + 1) + m * Math.log1p(1 / m), "log(m + 1) + m log(1 + 1/m)", `SigLIP per query, ${equal}, bias learned`, stuck],
      [Math.LN2, "log 2", "one negative (BPR), or SigLIP averaged over all pairs, all logits zero", stuck],
      [Math.log1p(m * Math.exp(-2 / t)), "log(1 + m exp(−2/t))", "the least for one query, m negatives at −1", LEVEL],
      [Math.log1p(m * Math.exp(-(1 + 1 / m) / t)), "log(1 + m exp(−(1 + 1/m)/t))", "the least mean of a batch of pairs", LEVEL],
      [0, "zero", "no negative is left, as with one pair or where a mask hides all, or every answer has won", LEVEL],
    ];
  }

  // ---- pages: pictures.js draws, and finds the boxes ----

  const hn = globalThis.hnPictures;
  if (!hn) return { parse, unpack, derivatives, profile, sentence, batch, meanings };
  const { set, add, panel, row, line, text, circle, rect, turn, slider, choice, controls, reading, unique } = hn;
  const power = (_, sign, digits) => `\u00a0×\u00a010${sign && "⁻"}${[...digits].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]).join("")}`;
  const shown = (x) => (Number.isFinite(x) && x !== 0 && (Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3)
    ? x.toExponential(2).replace(/e\+?(-?)(\d+)/, power) : digits(x, 4)).replace("-", "−");

  function field(parent, name, attributes, change) {
    const label = add(parent, "label", { class: "hn-field" });
    add(label, "span", {}, name);
    const input = add(label, "input", attributes);
    input.addEventListener("input", change);
    return input;
  }
  const number = (parent, name, value, change) =>
    field(parent, name, { type: "number", step: "any", inputmode: "decimal", value }, change);
  // The number of a field; RangeError, one sentence: it is none, or out of its range.
  function within(input, name, low, high) {
    const x = input.valueAsNumber, fits = x >= low && x <= high;
    set(input, { "aria-invalid": !fits });
    if (!fits) throw new RangeError(`${name} must be a number from ${shown(low)} to ${shown(high)}.`);
    return x;
  }

  const PRESETS = [
    ["InfoNCE", 0, "s/t", 0.1],
    ["tilt", 1, "exp(s/t)", 0.2],
    ["artanh", 0, "2*artanh(s)", 0.1],
    ["WEINCE", 0, "0.5*s/t - 0.5*log(1 - s)", 0.5],
    ["like SigLIP", 1, "sigmoid(log(Q) - s/t)", 0.1],
    ["hinge", 0, "relu(s - 0.2)/t", 0.1],
    ["power law", 0, "8*log(1.1 + s)", 0.1],
    ["two temperatures", 0, "log(exp(s/0.5) + exp(s/0.05)/1000)", 0.1],
  ];

  function typedLoss(box, data) {
    const names = Object.keys(data.batches), batches = names.map((name) => unpack(data.batches[name]));
    const hues = data.colours, top = controls(box), kinds = ["f", "w"];
    let kind = 0, timer = null, found = null, anchor = 0;
    const later = () => { clearTimeout(timer); timer = setTimeout(update, 300); };
    const radios = choice(top, "Type", ["f(s), the logit", "w(s), a weight at temperature t"], (i) => { kind = i; later(); });
    const formula = field(controls(box), "f(s) =", { type: "text", value: "s/t", maxlength: 200, spellcheck: "false",
      autocapitalize: "off", autocomplete: "off", class: "hn-formula", "aria-describedby": unique("hn-said") }, later);
    const options = controls(box);
    const t = number(options, "temperature t", 0.1, later), power = number(options, "loudness (1 − p)ᵏ, k", 1, later);
    const select = add(add(options, "label", { class: "hn-field" }, "batch "), "select");
    names.forEach((name, i) => add(select, "option", { value: i }, name));
    select.value = Math.min(1, names.length - 1);  // the middle of a training
    select.addEventListener("input", update);
    const presets = add(box, "div", { class: "hn-presets", role: "group", "aria-label": "Examples" });
    PRESETS.forEach(([name, i, words, temperature]) => {
      add(presets, "button", { type: "button", class: "hn-play" }, name).addEventListener("click", () => {
        radios[i].checked = true;
        [kind, formula.value, t.value, power.value] = [i, words, temperature, 1];
        update();
      });
    });
    const said = set(reading(box), { id: formula.getAttribute("aria-describedby") }), panels = row(box);

    const pushes = panel(panels, 320, 250, "The push on a negative over its similarity, on a logarithmic scale; dashed, the nearest temperature.");
    const dial = panel(panels, 320, 250, "Sharpness, nearest temperature, loudness and balance as marks on four scales.");
    const ring = panel(panels, 320, 250, "One anchor and its negatives on a circle; the area of a dot is its share of the push.");
    const louds = panel(panels, 320, 250, "Loudness of each pair over the lead of its positive; dashed, InfoNCE.");
    slider(controls(box), "anchor on the circle", batches[0].s.map((_, a) => String(a + 1)), 0, (a) => {
      anchor = a;
      if (found) drawRing();
    }).update();

    function axes(view, title, below, [x0, x1], ticks) {  // returns where an x is
      view.replaceChildren();
      const x = (value) => 40 + (268 * (value - x0)) / (x1 - x0);
      text(view, 8, 16, title, { "text-anchor": "start" });
      text(view, 308, 246, below, { "text-anchor": "end", class: "hn-fine" });
      line(view, 40, 210, 308, 210, { opacity: 0.5 });
      for (const tick of ticks) text(view, x(tick), 227, String(tick).replace("-", "−"), { class: "hn-fine" });
      return x;
    }
    const DASHED = { "stroke-dasharray": "5 4", "stroke-width": 1.5, opacity: 0.7 };
    function curve(view, points, attributes) {  // with gaps where there is no number
      const known = (i) => Number.isFinite(points[i]?.[1]);
      const d = points.map(([x, y], i) => (known(i) ? `${known(i - 1) ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}` : "")).join("");
      add(view, "path", { d, fill: "none", stroke: "currentColor", ...attributes });
    }

    function drawPush({ s, partner }, { kind, formula, t }) {
      const list = s.flatMap((r, a) => [...r].filter((_, b) => b > a && b !== partner[a])), Q = s.length - 2;
      const [low, high] = [Math.min(...list), Math.max(...list)], bins = new Array(40).fill(0);
      const x = axes(pushes, "push on a negative", "similarity s", [low, high], [-0.5, 0, 0.5].filter((v) => v > low && v < high));
      for (const v of list) bins[Math.floor((39.999 * (v - low)) / (high - low))]++;
      bins.forEach((count, i) => {
        const height = (40 * count) / Math.max(...bins);
        rect(pushes, 40 + 6.7 * i, 210 - height, 6, height, { fill: "currentColor", opacity: 0.18 });
      });
      const grid = Array.from({ length: 161 }, (_, i) => low + ((high - low) * i) / 160);
      const logs = grid.map((v) => {
        const [value, slope] = formula({ s: v, t, Q });
        return (kind === "w" ? v / t + Math.log(value) : value + Math.log(slope)) / Math.LN10;
      });
      const pushed = logs.filter(Number.isFinite), most = Math.max(...pushed), top = grid[logs.indexOf(most)];
      if (!pushed.length) return;
      const depth = Math.min(Math.max(most - Math.min(...pushed), 2), 12);  // decades
      const y = (decades) => (decades > -depth - 0.01 && decades < 0.3 ? 30 - (145 * decades) / depth : NaN);
      for (const d of [0, Math.floor(depth / 2), Math.floor(depth)]) {
        text(pushes, 36, y(-d) + 4, d ? `1e−${d}` : "1", { class: "hn-fine", "text-anchor": "end" });
      }
      curve(pushes, grid.map((v) => [x(v), y((v - top) / found.nearest[0].temperature / Math.LN10)]), DASHED);
      curve(pushes, grid.map((v, i) => [x(v), y(logs[i] - most)]), { stroke: hues.hcl, "stroke-width": 2.5 });
    }

    function drawDial() {
      dial.replaceChildren();
      const [one, two, three] = found.nearest, slopes = found.local.map(([, slope]) => slope);
      const scale = (i, name, angle, place, ticks, value) => {
        const y = 36 + 60 * i, x = (v) => Math.min(Math.max(24 + 272 * place(v), 18), 302);
        text(dial, 18, y - 14, name, { "text-anchor": "start" });
        text(dial, 302, y - 14, angle, { "text-anchor": "end" });
        line(dial, 24, y, 296, y, { opacity: 0.5 });
        for (const tick of ticks) {
          line(dial, x(tick), y - 4, x(tick), y + 4, { opacity: 0.5 });
          text(dial, x(tick), y + 20, String(tick), { class: "hn-fine" });
        }
        if (value !== null) circle(dial, [x(value), y], 7, { fill: hues.ot });
        return { x, y };
      };
      const log = (low, high) => (v) => Math.log(Math.max(v, 1e-9) / low) / Math.log(high / low);
      const gamma = found.sharpness, sharp = log(0.1, 100), angle = (near) => `${near.angle.toFixed(1)}°`;
      const { x, y } = scale(0, gamma === null ? "sharpness γ unknown" : `sharpness γ = ${shown(gamma)}`, "", sharp,
        [0.1, 0.3, 1, 3, 10, 30, 100], gamma);
      if (slopes.length) line(dial, x(Math.min(...slopes)), y, x(Math.max(...slopes)), y, { stroke: hues.ot, "stroke-width": 4, opacity: 0.6 });
      scale(1, `nearest t = ${digits(one.temperature, 3)}`, angle(one), (v) => sharp(1 / v), [10, 3, 1, 0.3, 0.1, 0.03, 0.01], one.temperature);
      scale(2, `with loudness (1 − p)^${digits(two.loudness, 2)}`, angle(two), (v) => v / 4, [0, 1, 2, 3, 4], two.loudness);
      scale(3, `with balance; push/pull = ${digits(found.balance, 3)}`, angle(three), log(0.01, 100), [0.01, 0.1, 1, 10, 100], found.balance);
    }

    function drawRing() {
      const { s, partner } = found.points;
      ring.replaceChildren();
      const place = (degrees, away = 96) => turn(degrees - 90).map((v, i) => [160, 125][i] + away * v);
      const at = (j) => place((j % 2 ? 1 : -1) * (Math.acos(s[anchor][j]) * 180) / Math.PI);
      circle(ring, [160, 125], 96, { fill: "none", stroke: "currentColor", opacity: 0.35 });
      const push = found.derivative[anchor].map((x, j) => (j === partner[anchor] ? 0 : Math.max(x, 0))), sum = push.reduce((a, b) => a + b, 0);
      push.forEach((x, j) => j !== anchor && j !== partner[anchor] && circle(ring, at(j), 2 + 26 * Math.sqrt(sum > 0 ? x / sum : 0),
        { fill: hues.simclr, "fill-opacity": 0.5, stroke: hues.simclr }));
      circle(ring, at(partner[anchor]), 5, { fill: hues.accent });
      const [x, y] = place(0);
      for (const way of [1, -1]) line(ring, x - 7, y - 7 * way, x + 7, y + 7 * way, { "stroke-width": 2.5 });
      text(ring, 160, 55, "anchor");
      hn.legend(ring, 112, 122, hues.accent, "its positive");
      hn.legend(ring, 112, 144, hues.simclr, "negatives");
    }

    function drawLoudness() {
      const { lead, loudness, nearest } = found, [low, high] = [Math.min(...lead), Math.max(...lead)], pad = 0.05 * (high - low) + 1e-3;
      const most = Math.max(1, ...loudness), t1 = nearest[1].temperature, y = (v) => 200 - (170 * v) / most;
      const x = axes(louds, "loudness of a pair", "lead of the positive", [low - pad, high + pad], [low, (low + high) / 2, high].map((v) => Number(v.toFixed(2))));
      for (const v of [0, most]) text(louds, 36, y(v) + 4, digits(v, 2), { class: "hn-fine", "text-anchor": "end" });
      const grid = Array.from({ length: 81 }, (_, i) => low - pad + ((high - low + 2 * pad) * i) / 80);
      curve(louds, grid.map((v) => [x(v), y(sigmoid(-v / t1))]), DASHED);
      lead.forEach((v, i) => circle(louds, [x(v), y(Math.max(loudness[i], 0))], 3.5, { fill: hues.hcl }));
    }

    function update() {
      clearTimeout(timer);
      formula.previousSibling.textContent = `${kinds[kind]}(s) =`;
      set(formula, { "aria-invalid": false });
      panels.classList.add("hn-stale");
      try {
        const rule = { kind: kinds[kind], t: within(t, "t", 0.005, 10), power: within(power, "k", 0, 4), formula: parse(formula.value) };
        const points = batches[select.value], derivative = derivatives(points, rule);
        found = { ...profile(points, derivative), derivative, points };
        drawPush(points, rule);
        [drawDial, drawRing, drawLoudness].forEach((draw) => draw());
        panels.classList.remove("hn-stale");
        said.textContent = `${sentence(found)}.`.replaceAll("1 − p", "1\u00a0−\u00a0p");
      } catch (error) {
        if (!(error instanceof SyntaxError || error instanceof RangeError)) throw error;
        if (![t, power].some((input) => input.ariaInvalid === "true")) set(formula, { "aria-invalid": true });
        said.textContent = error.message;
      }
    }
    update();
  }

  // Fields over a table of numbers with a link each, and a sentence. `compute` returns rows [words, link, number, marked].
  function calculator(box, fields, compute) {
    const top = controls(box), said = reading(box);
    const inputs = fields.map(([key, name, value]) => number(top, name, value, update));
    const body = add(add(box, "table", { class: "table" }), "tbody");
    function update() {
      try {
        const values = fields.map(([key, name, , low, high], i) => [key, within(inputs[i], name, low, high)]);
        const { rows, words } = compute(Object.fromEntries(values));
        body.replaceChildren();
        for (const [name, href, value, marked] of rows) {
          const tr = add(body, "tr", marked ? { class: "hn-marked" } : {});
          add(add(tr, "td"), "a", { href }, name);
          add(tr, "td", {}, typeof value === "number" ? shown(value) : value);
        }
        said.textContent = words;
      } catch (error) {
        if (!(error instanceof RangeError)) throw error;
        said.textContent = error.message;
      }
    }
    update();
  }

  function batchNumbers(box) {
    const pairs = "experiments/pairs.html";
    calculator(box, [
      ["Q", "negatives Q", 510, 1, 1e9], ["t", "temperature t", 0.1, 0.005, 10], ["beta", "tilt β", 0, 0, 1000],
      ["alpha", "hardness_strength α", 0, 0, 100], ["tau", "class prior τ⁺", 0, 0, 0.99],
      ["own", "similarity of the positive", 0.8, -1, 1], ["lead", "its lead over each negative", 0.3, -2, 2],
    ], (x) => {
      const { sharpness, loudness, quietest, silent, loss, floor, batchFloor, collapse, won, margin } = batch(x);
      const plain = x.alpha === 0 && x.tau === 0, other = x.own - x.lead;
      if (Math.abs(other) > 1) throw new RangeError(`No negative has the similarity ${shown(other)}; change the lead.`);
      return { rows: [
        ["sharpness γ = (1 + β)/t + α", "theory/sharpness.html#thm-dial-fixes", sharpness],
        ["loudness of this anchor", `${LOUDNESS}#thm-loudness`, loudness],
        ["no anchor is quieter than", `${LOUDNESS}#thm-loudness`, quietest],
        ["loss of this anchor", `${LOUDNESS}#thm-loudness`, loss],
        ["least loss of an anchor", LEVEL, floor],
        ["least mean of a batch of Q + 1 pairs", LEVEL, plain ? batchFloor : "only for α = τ⁺ = 0"],
        ["loss at collapse, all similarities 1", LEVEL, collapse],
        ["lead that brings the loss to 0.01", LEVEL, x.tau === 0 ? won : "only for τ⁺ = 0"],
        ["lead that silences the negatives", `${pairs}#thm-pairs-margin`, margin ?? "none, as τ⁺ = 0"],
        ["each negative counts as many, exp(αs)", `${pairs}#thm-pairs-tilt`, Math.exp(x.alpha * other)],
      ], words: `The negatives are shared out as by SimCLR at t = ${shown(1 / sharpness)}. `
        + (silent ? "Debiasing has silenced them: the positive alone pulls." : `This anchor pulls with ${shown(loudness)} of full loudness.`) };
    });
  }

  function lossValue(box) {
    calculator(box, [
      ["value", "loss", 6.92, 0, 1e9], ["B", "pairs in a batch, B", 64, 2, 1e8], ["mined", "mined negatives for each query, h", 0, 0, 1000],
      ["t", "temperature t", 0.1, 0.005, 10], ["base", "base temperature T (SupContrast)", 0.07, 0.005, 10],
    ], (x) => {
      const far = ([value]) => Math.abs(x.value - value) / Math.max(value, 1e-300), close = (state) => far(state) < 0.002;
      const count = (log) => (log < 11 ? Math.exp(log).toFixed(1) : shown(Math.exp(log)));
      const states = meanings(x), [best] = [...states].sort((p, q) => far(p) - far(q));
      return {
        rows: states.map((state) => [`${state[1]}: ${state[2]}`, state[3], state[0], close(state)]),
        words: (close(best) ? `Yours is at ${best[1]} = ${shown(best[0])}: ${best[2]}. `
          : `Yours is none of these. `)
          + `A cross-entropy of ${shown(x.value)} is that of ${count(x.value)} equal candidates, in SupContrast of `
          + `${count((x.value * x.base) / x.t)}; a whole number tells.` };
    });
  }

  Object.assign(hn.kinds, { typed: typedLoss, batch: batchNumbers, value: lossValue });
  if (document.readyState !== "loading") hn.start();
  return { parse, unpack, derivatives, profile, sentence, batch, meanings };
})();
