// The pictures a reader can move. A chapter computes every number and leaves it in its page (hnlib.figures.interactive);
// they are drawn here, one computed frame after the other: only places on the screen are calculated.
"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";

  // ---- drawing ----

  function set(element, attributes) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  function add(parent, tag, attributes = {}, text = "") {
    const space = tag === "svg" || parent.namespaceURI === SVG ? SVG : "http://www.w3.org/1999/xhtml";
    const element = set(document.createElementNS(space, tag), attributes);
    if (text) element.textContent = text;
    return parent.appendChild(element);
  }

  // One drawing of width × height units; its description is for those who do not see it.
  function panel(parent, width, height, description) {
    return add(parent, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": description });
  }

  const row = (parent, name = "") => add(parent, "div", { class: `hn-panels ${name}` });

  function line(parent, x1, y1, x2, y2, attributes = {}) {
    return add(parent, "line", { x1, y1, x2, y2, stroke: "currentColor", ...attributes });
  }

  function text(parent, x, y, words, attributes = {}) {
    return add(parent, "text", { x, y, fill: "currentColor", "text-anchor": "middle", ...attributes }, words);
  }

  const circle = (parent, [cx, cy], r, attributes = {}) => add(parent, "circle", { cx, cy, r, ...attributes });
  const rect = (parent, x, y, width, height, attributes = {}) =>
    add(parent, "rect", { x, y, width, height, ...attributes });
  const path = (points, closed = false) => `M${points.map((p) => p.map((x) => x.toFixed(2)).join(",")).join("L")}`
    + (closed ? "Z" : "");
  const legend = (parent, x, y, colour, words) => {  // a mark in its colour, words in the colour of text
    rect(parent, x, y - 10, 11, 11, { fill: colour });
    text(parent, x + 17, y, words, { "text-anchor": "start" });
  };
  const turn = (degrees) => [Math.cos((degrees * Math.PI) / 180), Math.sin((degrees * Math.PI) / 180)];
  const percent = (x) => `${(100 * x).toFixed(0)} %`;
  const places = (n) => (x) => x.toFixed(n).replace("-", "−");

  let made = 0;
  const unique = (name) => `${name}-${made++}`;  // two pictures of a kind may share a page

  // ---- controls: the browser's own, so that keyboard, touch and screen reader work as everywhere ----

  function slider(parent, name, values, start, change) {
    const label = add(parent, "label", { class: "hn-slider" });
    add(label, "span", {}, name);
    const input = add(label, "input", { type: "range", min: 0, max: values.length - 1, step: 1, value: start });
    const shown = add(label, "span", { class: "hn-value", "aria-hidden": "true" });
    const update = () => {
      shown.textContent = values[input.value];
      input.setAttribute("aria-valuetext", values[input.value]);
      change(Number(input.value));
    };
    input.addEventListener("input", update);
    return { input, update };
  }

  function checkbox(parent, name, checked, change) {
    const label = add(parent, "label", { class: "hn-switch" });
    const input = add(label, "input", { type: "checkbox" });
    input.checked = checked;
    add(label, "span", {}, name);
    input.addEventListener("change", () => change(input.checked));
    return input;
  }

  function choice(parent, legend, names, change) {
    const field = add(parent, "fieldset"), group = unique("hn-choice");
    add(field, "legend", {}, legend);
    return names.map((name, i) => {
      const label = add(field, "label", { class: "hn-switch" });
      const input = add(label, "input", { type: "radio", name: group, value: i });
      input.checked = i === 0;
      add(label, "span", {}, name);
      input.addEventListener("change", () => change(i));
      return input;
    });
  }

  const controls = (parent) => add(parent, "div", { class: "hn-controls" });
  const reading = (parent) => add(parent, "output", { class: "hn-reading" });

  // A bar chart's column that can be set to a height in [0, 1] of the space from y0 up to y1.
  function column(parent, x, width, y0, y1, attributes = {}) {
    const bar = rect(parent, x, y0, width, 0, attributes);
    return (share) => set(bar, { y: y0 - share * (y0 - y1), height: Math.max(0, share * (y0 - y1)) });
  }

  // A caption with a number over a bar of a share in [0, 1].
  function amount(parent, name, fill) {
    const caption = add(parent, "div", { class: "hn-amount" });
    add(caption, "span", {}, name);
    const number = add(caption, "span");
    const bar = add(add(parent, "div", { class: "hn-bar" }), "div", { style: `background:${fill}` });
    return (words, share) => {
      number.textContent = words;
      bar.style.width = `${100 * share}%`;
    };
  }

  // A globe turned by some degrees and seen from a little above: how far right and up a point is, and how far away.
  const above = turn(22);
  function globe(degrees) {
    const [c, s] = turn(degrees);
    return ([x, y, z]) => {
      const away = s * x + c * y;
      return { right: c * x - s * y, up: above[0] * z + above[1] * away, depth: above[0] * away - above[1] * z };
    };
  }

  function equator(view, [cx, cy], radius) {
    return add(view, "ellipse", { cx, cy, rx: radius, ry: radius * above[1], fill: "none", stroke: "currentColor",
      opacity: 0.18 });
  }

  // An anchor and candidates of two kinds on a circle; returns what gives the dots their weights.
  function candidates(view, data, { y, radius, key }) {
    const own = data.colours.accent, other = data.colours.simclr;
    const place = (degrees, away = radius) => turn(-degrees).map((x, i) => [160, y][i] + away * x);
    circle(view, [160, y], radius, { fill: "none", stroke: "currentColor", opacity: 0.35 });
    const dots = data.angle.map((degrees, j) => {
      const hue = data.same[j] ? own : other;
      return circle(view, place(degrees), 1, { fill: hue, "fill-opacity": 0.6, stroke: hue });
    });
    const at = place(data.anchor);
    for (const way of [1, -1]) line(view, at[0] - 7, at[1] - 7 * way, at[0] + 7, at[1] + 7 * way, { "stroke-width": 2.5 });
    text(view, ...place(data.anchor, 72), "anchor", { dy: 5 });
    legend(view, 112, key, own, "its own class");
    legend(view, 112, key + 22, other, "other classes");
    return (weights) => dots.forEach((dot, j) => set(dot, { r: 2 + 30 * Math.sqrt(weights[j]) }));
  }

  const angles = Array.from({ length: 73 }, (_, k) => 5 * k);

  // Dragging a drawing moves the slider of the angles.
  function draggable(view, knob) {
    let from = null;
    view.classList.add("hn-drag");
    view.addEventListener("pointerdown", (event) => {
      from = event.clientX - 2 * knob.input.value;
      view.setPointerCapture(event.pointerId);
    });
    view.addEventListener("pointermove", (event) => {
      if (from === null) return;
      knob.input.value = (((Math.round((event.clientX - from) / 2)) % 72) + 72) % 72;
      knob.update();
    });
    for (const end of ["pointerup", "pointercancel"]) view.addEventListener(end, () => { from = null; });
  }

  // A button that moves a slider on to its end; for those who want no motion, in few and slow steps.
  function player(parent, knob, moves) {
    const button = add(parent, "button", { type: "button", class: "hn-play" }, "Play");
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const last = Number(knob.input.max);
    let timer = null;
    const stop = () => {
      clearInterval(timer);
      timer = null;
      button.textContent = "Play";
      moves(false);
    };
    function go() {
      knob.input.value = Math.min(last, Number(knob.input.value) + (calm ? 8 : 1));
      knob.update();
      if (Number(knob.input.value) === last) stop();
    }
    button.addEventListener("click", () => {
      if (timer !== null) return stop();
      timer = setInterval(go, calm ? 1200 : 150);
      button.textContent = "Pause";
      moves(true);
      if (Number(knob.input.value) < last) return go();
      knob.input.value = 0;  // from the start again
      knob.update();
    });
    knob.input.addEventListener("input", () => timer === null || stop());
  }

  // ---- 1. same-class mass under the tilt against the fixed class prior ----

  function classMass(box, data) {
    const own = data.colours.accent, other = data.colours.simclr;
    const top = controls(box), panels = row(box), words = reading(box);
    const ring = panel(panels, 320, 290, "Candidates on a circle; the area of a point is its weight.");
    const weigh = candidates(ring, data, { y: 145, radius: 100, key: 145 });

    const chart = panel(panels, 320, 290, "The share of the anchor's own class in the tilt, and the share taken off.");
    const y0 = 240, y1 = 20, level = y0 - data.prior * (y0 - y1);
    rect(chart, 50, y1, 80, y0 - y1, { fill: other, "fill-opacity": 0.45 });
    rect(chart, 190, y1, 80, y0 - y1, { fill: "none", stroke: "currentColor", opacity: 0.35 });
    const mass = column(chart, 50, 80, y0, y1, { fill: own });
    column(chart, 190, 80, y0, y1, { fill: own })(data.prior);
    line(chart, 30, level, 290, level, { "stroke-dasharray": "5 4", "stroke-width": 1.5 });
    const share = text(chart, 90, 0, "", { "font-weight": 600 });
    text(chart, 230, level - 8, percent(data.prior), { "font-weight": 600 });
    text(chart, 90, 260, "what the tilt gives");
    text(chart, 90, 278, "the class: π⁺(β)");
    text(chart, 230, 260, "what the loss");
    text(chart, 230, 278, "takes off: τ⁺");

    slider(top, "β", data.beta.map(places(2)), data.start, (k) => {
      weigh(data.weight[k]);
      mass(data.mass[k]);
      share.textContent = percent(data.mass[k]);
      // inside the column where there is no room above it
      set(share, { y: y0 - data.mass[k] * (y0 - y1) + (data.mass[k] > 0.85 ? 22 : -8) });
      words.textContent = `The tilt puts ${percent(data.mass[k])} of the weight on the anchor's own class; the loss `
        + `takes off ${percent(data.prior)}. Of what then counts as negative, `
        + `${percent(data.left[k])} is still same-class.`;
    }).update();
  }

  // ---- 2. four masks, four bars ----

  function masks(box, data) {
    const top = controls(box), panels = row(box), words = reading(box);
    const grey = data.colours.simclr, blue = data.colours.ot, red = data.colours.hcl;
    const hues = [red, red, data.colours["h-scl"], data.colours["h-scl"], data.colours.adnce, data.colours.adnce];
    const ring = panel(panels, 320, 290, "Three positive pairs at the corners of a triangle; arrows: worst negatives.");
    const defs = add(ring, "defs"), arrowhead = unique("hn-head");
    const head = add(defs, "marker", { id: arrowhead, viewBox: "0 0 8 8", refX: 6.5, refY: 4, markerWidth: 7,
      markerHeight: 7, orient: "auto-start-reverse", markerUnits: "userSpaceOnUse" });
    add(head, "path", { d: "M0,0L8,4L0,8Z", fill: "currentColor" });
    const centre = [160, 158], place = (degrees, radius = 92) => turn(-degrees).map((x, i) => centre[i] + radius * x);
    circle(ring, centre, 92, { fill: "none", stroke: "currentColor", opacity: 0.3 });
    const arrows = add(ring, "g", { fill: "none", stroke: "currentColor", "stroke-width": 1.6 });
    data.angle.forEach((degrees, i) => circle(ring, place(degrees), 7, { fill: hues[i] }));
    const chart = panel(panels, 320, 290, "The worst-case loss of collapse and of the triangle under four masks.");
    const y0 = 225, y1 = 30, scale = Math.max(...data.collapse, ...data.triangle) * 1.08;
    line(chart, 20, y0, 312, y0, { opacity: 0.5 });
    const groups = data.mask.map((name, k) => {
      const x = 26 + 73 * k, group = add(chart, "g");
      [["collapse", grey, 0], ["triangle", blue, 33]].forEach(([what, fill, shift]) => {
        const share = data[what][k] / scale;
        column(group, x + shift, 31, y0, y1, { fill })(share);
        text(chart, x + shift + 15.5, y0 - share * (y0 - y1) - 5, data[what][k].toFixed(2), { class: "hn-fine" });
      });
      return { group, name: text(chart, x + 32, y0 + 18, name) };
    });
    text(chart, 166, y0 + 36, "forbidden as a negative", { class: "hn-fine" });
    legend(chart, 70, y0 + 58, grey, "collapse");
    legend(chart, 180, y0 + 58, blue, "triangle");

    // From point a to point b; a point that plays itself gets a loop, its partner a small bow outside the circle.
    function arrow(i, j) {
      const a = data.angle[i], b = data.angle[j];
      if (i === j) {
        const away = Math.sign(data.angle[i ^ 1] - a) * -1;
        const [p, q] = [place(a + away * 1.5, 100), place(a + away * 4.5, 94)];
        const [u, v] = [place(a - away * 4, 138), place(a + away * 20, 132)];
        return `M${p}C${u} ${v} ${q}`;
      }
      const inside = Math.floor(i / 2) !== Math.floor(j / 2);
      if (!inside) {
        const side = i < j ? 118 : 66, off = i < j ? 101 : 83;
        return `M${place(a, off)}Q${place((a + b) / 2, side)} ${place(b, off)}`;
      }
      const [p, q] = [place(a), place(b)], [dx, dy] = [q[0] - p[0], q[1] - p[1]], length = Math.hypot(dx, dy);
      const along = ([x, y], way) => [x + (way * 10 * dx) / length, y + (way * 10 * dy) / length];
      const middle = [(p[0] + q[0]) / 2 - dy * 0.08, (p[1] + q[1]) / 2 + dx * 0.08];
      return `M${along(p, 1)}Q${middle} ${along(q, -1)}`;
    }

    const chosen = { self: false, positive: false };
    function update() {
      const k = Number(chosen.self) + 2 * Number(chosen.positive);
      groups.forEach(({ group, name }, i) => {
        set(group, { opacity: i === k ? 1 : 0.35 });
        set(name, { "font-weight": i === k ? 700 : 400 });
      });
      arrows.replaceChildren();
      for (const [i, j, mass] of data.worst[k]) {
        add(arrows, "path", { d: arrow(i, j), "marker-end": `url(#${arrowhead})`, opacity: 0.3 + 0.7 * mass });
      }
      const gap = data.collapse[k] - data.triangle[k];
      const shares = [0, 0, 0];  // on the anchor, on its positive, elsewhere
      for (const [i, j, mass] of data.worst[k]) shares[i === j ? 0 : (i ^ 1) === j ? 1 : 2] += mass / data.angle.length;
      const answers = ["the anchor itself", "its positive", "another pair"].filter((_, a) => shares[a] > 0.005);
      words.textContent = `The adversary answers with ${answers.join(" or ")}. Worst-case loss: `
        + `${data.collapse[k].toFixed(2)} for collapse, ${data.triangle[k].toFixed(2)} for the triangle. `
        + (gap > 1e-3 ? "Now the triangle is better." : "Collapse is as good as anything.");
    }
    for (const [name, words_] of [["self", "forbid the anchor itself"], ["positive", "forbid its positive"]]) {
      checkbox(top, words_, false, (on) => { chosen[name] = on; update(); });
    }
    update();
  }

  // ---- 3. three balls, three temperatures; one budget, one temperature ----

  function balls(box, data) {
    const top = controls(box), panels = row(box, "hn-three"), words = reading(box);
    const tilt = data.colours.hcl, ball = data.colours.adnce;
    const corner = [[60, 14], [8, 104], [112, 104]], middle = [60, 74];
    const spot = (law) => [0, 1].map((axis) => law.reduce((sum, p, j) => sum + p * corner[j][axis], 0));
    const xlogx = (p) => (p > 0 ? p * Math.log(3 * p) : 0);

    // The level line of the divergence from the uniform law: along each ray from the middle, by bisection.
    function level(radius) {
      return Array.from({ length: 90 }, (_, k) => {
        const [x, y] = turn(4 * k), way = [x, -x / 2 + (y * Math.sqrt(3)) / 2, -x / 2 - (y * Math.sqrt(3)) / 2];
        let low = 0, high = Math.min(...way.filter((d) => d < 0).map((d) => -1 / (3 * d)));
        const law = (r) => way.map((d) => Math.max(0, 1 / 3 + r * d));
        const far = (r) => law(r).reduce((sum, p) => sum + xlogx(p), 0) > radius;
        while (far(high) && high - low > 1e-6) {
          const half = (low + high) / 2;
          if (far(half)) high = half;
          else low = half;
        }
        return spot(law(high));
      });
    }

    const anchors = data.similarity.map((f, i) => {
      const item = add(panels, "div");
      const view = panel(item, 120, 118, `Laws on three negatives with similarities ${f.join(", ")}.`);
      add(view, "path", { d: path(corner, true), fill: "none", stroke: "currentColor", opacity: 0.5 });
      const area = add(view, "path", { fill: ball, "fill-opacity": 0.35, stroke: ball });
      const tilts = [middle, ...data.own.law.map((frame) => spot(frame[i])), corner[f.indexOf(Math.max(...f))]];
      add(view, "path", { d: path(tilts), fill: "none", stroke: tilt, "stroke-width": 1.2 });
      circle(view, middle, 1.8, { fill: "currentColor" });
      const worst = circle(view, middle, 3.6, { fill: tilt });
      corner.forEach(([x, y], j) => text(view, x, y + (j ? 13 : -4), places(2)(f[j]),
        { "text-anchor": ["middle", "start", "end"][j], dx: [0, -6, 6][j] }));
      const bars = [["radius", ball], ["temperature", tilt]].map(([name, fill]) => {
        const show = amount(item, name, fill);
        return (value, most) => show(value.toFixed(3), value / most);
      });
      return { area, worst, bars };
    });

    let k = data.start, shared = false;
    function update() {
      const kind = shared ? data.shared : data.own;
      anchors.forEach(({ area, worst, bars }, i) => {
        const [cx, cy] = spot(kind.law[k][i]);
        set(area, { d: path(level(kind.radius[k][i]), true) });
        set(worst, { cx, cy });
        bars[0](kind.radius[k][i], Math.max(...kind.radius[k]));
        bars[1](kind.temperature[k][i], Math.max(...kind.temperature[k]));
      });
      const list = (values) => values.map((x) => x.toFixed(3)).join(", ");
      words.textContent = shared
        ? `One budget, ${data.eta[k].toFixed(2)} on average: one temperature, ${kind.temperature[k][0].toFixed(3)}, `
          + `and the radii ${list(kind.radius[k])}.`
        : `One radius, ${data.eta[k].toFixed(2)}, for each anchor: the temperatures ${list(kind.temperature[k])}.`;
    }
    slider(top, "η", data.eta.map(places(2)), data.start, (i) => { k = i; update(); }).update();
    const names = ["one ball for each anchor", "one budget for all"];
    choice(top, "the adversary has", names, (i) => { shared = i === 1; update(); });
  }

  // ---- 4. from the tilt to transport ----

  function lambdaPath(box, data) {
    const top = controls(box), panels = row(box, "hn-one"), words = reading(box);
    const n = data.sums[0].length, side = 280, cell = side / n, x0 = 34, y0 = 8;
    const view = panel(panels, 320, 420, "A heat map of the weights, anchors by candidates, above its column sums.");
    const map = add(view, "g", { class: "hn-heat" });
    rect(view, x0, y0, side, side, { fill: "none", stroke: "currentColor", opacity: 0.4 });
    const cells = Array.from({ length: n * n }, (_, c) =>
      rect(map, x0 + (c % n) * cell, y0 + Math.floor(c / n) * cell, cell + 0.15, cell + 0.15, { "fill-opacity": 0 }));
    for (let b = 0; b < n; b += 2) {  // an anchor and its other view: never negatives
      const [x, y, end] = [x0 + b * cell, y0 + b * cell, 2 * cell];
      rect(view, x, y, end, end, { fill: "currentColor", opacity: 0.08 });
      for (const [above, below] of [[3, end - 3], [end - 3, 3]]) {
        line(view, x + 3, y + above, x + end - 3, y + below, { opacity: 0.45 });
      }
    }
    text(view, 0, 0, "anchors", { transform: `translate(22 ${y0 + side / 2}) rotate(-90)` });
    const floor = 398, ceiling = 308, most = data.top;
    const bars = Array.from({ length: n }, (_, j) => column(view, x0 + j * cell + 1, cell - 2, floor, ceiling));
    const drawn = view.querySelectorAll(":scope > rect:not([stroke]):not([opacity])");
    line(view, x0, floor, x0 + side, floor, { opacity: 0.5 });
    const fair = floor - (floor - ceiling) / most;
    line(view, x0, fair, x0 + side, fair, { "stroke-dasharray": "5 4" });
    text(view, x0 - 5, fair, "1", { dy: 4, "text-anchor": "end" });
    text(view, x0 - 5, floor, "0", { dy: 4, "text-anchor": "end" });
    text(view, x0 + side / 2, 414, "candidates (bars: column sums; ×: forbidden)", { class: "hn-fine" });

    slider(top, "λ", data.relaxation, 0, (k) => {
      const share = k / (data.relaxation.length - 1);
      const colour = `color-mix(in oklab, ${data.colours.ot} ${100 * share}%, ${data.colours.hcl})`;
      cells.forEach((square, c) => {  // who has gained since HCL turns blue, who has lost orange
        const [before, now] = [data.weight[0][c], data.weight[k][c]];
        const change = Math.min(1, Math.abs(now - before) / (0.25 * Math.max(before, now, 1)));
        const side = now > before ? data.colours.ot : data.colours.hcl;
        square.style.fill = `color-mix(in oklab, ${side} ${100 * change}%, currentColor)`;
        set(square, { "fill-opacity": Math.min(1, data.weight[k][c] / data.full) });
      });
      bars.forEach((bar, j) => bar(Math.min(1, data.sums[k][j] / most)));
      for (const bar of drawn) bar.style.fill = colour;
      const sums = data.sums[k];
      words.textContent = `λ = ${data.relaxation[k]}: the busiest candidate receives ${Math.max(...sums).toFixed(2)} `
        + `fair shares, the loneliest ${Math.min(...sums).toFixed(2)}.`;
    }).update();
  }

  // ---- 5. temperature and tilt are one dial ----

  function oneDial(box, data) {
    const own = data.colours.accent, other = data.colours.simclr;
    const top = controls(box), panels = row(box), words = reading(box);
    const ring = panel(panels, 320, 270, "Candidates on a circle; the area of a dot is its weight as a negative.");
    const weigh = candidates(ring, data, { y: 135, radius: 98, key: 130 });

    const chart = panel(panels, 320, 270, "One mark on three scales: sharpness, temperature, tilt; below, the share of the class.");
    const [first, last] = [data.gamma[0], data.gamma[data.gamma.length - 1]];
    const x = (gamma) => 30 + (260 * Math.log(gamma / first)) / Math.log(last / first);
    const scale = (y, name, ticks) => {
      text(chart, 20, y - 14, name, { "text-anchor": "start" });
      line(chart, x(first), y, x(last), y, { opacity: 0.5 });
      for (const [value, gamma] of ticks) {
        line(chart, x(gamma), y - 4, x(gamma), y + 4, { opacity: 0.5 });
        text(chart, x(gamma), y + 18, String(value), { class: "hn-fine" });
      }
    };
    scale(30, "sharpness γ", [1, 2, 4, 8, 16, 32, 64].map((g) => [g, g]));
    scale(96, "is SimCLR at temperature t", [1, 0.5, 0.2, 0.1, 0.05, 0.02].map((t) => [t, 1 / t]));
    scale(162, "is a tilt β at t = 0.5", [0, 1, 3, 7, 15, 31].map((b) => [b, 2 + 2 * b]));
    const marks = [30, 96, 162].map((y) => circle(chart, [x(first), y], 7, { fill: data.colours.ot }));
    rect(chart, 30, 222, 260, 14, { fill: other, "fill-opacity": 0.45 });
    const share = rect(chart, 30, 222, 0, 14, { fill: own });
    text(chart, 20, 212, "weight on the anchor's own class", { "text-anchor": "start" });
    line(chart, 30 + 260 * data.own[0], 216, 30 + 260 * data.own[0], 242, { "stroke-dasharray": "4 3" });
    text(chart, 30 + 260 * data.own[0], 256, "at γ = 1", { class: "hn-fine" });

    const measured = panel(panels, 320, 270, "Measured accuracy against sharpness; the mark moves with the dial.");
    measured.classList.add("hn-first");  // on a phone it stands below the slider
    const all = data.points.map(([, accuracy]) => accuracy), low = Math.min(...all, ...data.accuracy), high = Math.max(...all);
    const y = (accuracy) => 220 - (180 * (accuracy - low)) / (high - low);
    text(measured, 20, 16, "measured accuracy, %", { "text-anchor": "start" });
    for (const g of [1, 2, 4, 8, 16, 32, 64]) text(measured, x(g), 248, String(g), { class: "hn-fine" });
    for (const a of [low, high]) text(measured, 2, y(a) + 4, a.toFixed(1), { class: "hn-fine", "text-anchor": "start" });
    data.points.filter(([g]) => g <= last).forEach(([g, accuracy, tilted]) => circle(measured, [x(g), y(accuracy)], 4,
      { fill: tilted ? "currentColor" : "none", stroke: "currentColor", opacity: 0.6 }));
    add(measured, "path", { d: path(data.gamma.map((g, k) => [x(g), y(data.accuracy[k])])), fill: "none",
      stroke: "currentColor", opacity: 0.6 });
    text(measured, 300, 266, "γ; rings: without a tilt, dots: with one", { class: "hn-fine", "text-anchor": "end" });
    const here = circle(measured, [0, 0], 7, { fill: data.colours.ot });

    slider(top, "γ", data.gamma.map((g) => g.toFixed(g < 10 ? 1 : 0)), data.start, (k) => {
      const gamma = data.gamma[k];
      set(here, { cx: x(gamma), cy: y(data.accuracy[k]) });
      weigh(data.weight[k]);
      marks.forEach((mark, i) => set(mark, { cx: x(gamma), opacity: i === 2 && gamma < 1.99 ? 0.25 : 1 }));
      set(share, { width: 260 * data.own[k] });
      const tilt = gamma < 1.99 ? "no tilt at t = 0.5 is as mild" : `so does β = ${(gamma / 2 - 1).toFixed(1)} at t = 0.5`;
      words.textContent = `SimCLR at t = ${(1 / gamma).toFixed(2)} pushes these negatives with γ = ${gamma.toFixed(1)}; `
        + `${tilt}. ${percent(data.own[k])} of the weight lies on the anchor's own class. `
        + `Ten epochs on CIFAR-10: here the fitted curve is at ${data.accuracy[k].toFixed(1)} %.`;
    }).update();
  }

  // ---- 6. embeddings that move while they are trained, under three sharpnesses ----

  function motion(box, data) {
    const top = controls(box), panels = row(box, "hn-wrap"), key = add(box, "p", { class: "hn-key" }), words = reading(box);
    const centre = [110, 102], radius = 92, last = data.steps.length - 1, digits = [...data.hues.keys()];
    let space = data.spaces[0], step = last, angle = data.turn, moving = false;
    const trainings = data.gamma.map((gamma, i) => {
      const item = add(panels, "div");
      add(add(item, "div", { class: "hn-title" }, `γ = ${gamma}`), "span", {}, data.rule[i]);
      const view = panel(item, 220, 204, `Embeddings of ${data.labels.length} digits at γ = ${gamma}, coloured by class.`);
      circle(view, centre, radius, { fill: "none", stroke: "currentColor", opacity: 0.35 });
      const ring = equator(view, centre, radius);
      const dots = data.labels.map((c) => circle(view, centre, 4, { fill: data.hues[c] }));
      const bar = amount(item, "own class near by", data.colours.ot);
      const [alignment, uniformity] = ["alignment", "uniformity"].map((name) => {
        const caption = add(item, "div", { class: "hn-amount" });
        add(caption, "span", {}, name);
        return add(caption, "span");
      });
      return { view, ring, dots, bar, alignment, uniformity };
    });
    digits.forEach((c) => {
      add(key, "span", { class: "hn-swatch", style: `background:${data.hues[c]}` });
      add(key, "span", {}, `${c}`);
    });

    const onSphere = ([longitude, latitude = 0]) => {
      const [x, y] = turn(longitude), [level, z] = turn(latitude);
      return [level * x, level * y, z];
    };
    function draw() {
      const flat = space === "circle", seenFrom = globe(angle);
      trainings.forEach(({ view, ring, dots, bar, alignment, uniformity }, i) => {
        const frame = data.runs[space][i][step];
        set(ring, { display: flat ? "none" : "inline" });
        dots.forEach((dot, j) => {
          const place = frame.at.map((axis) => axis[j]);
          let [right, up] = turn(place[0] + angle), depth = 0;
          if (!flat) ({ right, up, depth } = seenFrom(onSphere(place)));
          set(dot, { cx: (centre[0] + radius * right).toFixed(1), cy: (centre[1] - radius * up).toFixed(1),
            r: (4 - depth).toFixed(1), "fill-opacity": (0.7 - 0.3 * depth).toFixed(2) });
        });
        bar(percent(frame.own), frame.own);
        alignment.textContent = frame.alignment.toFixed(3);
        uniformity.textContent = places(2)(frame.uniformity);
      });
      words.setAttribute("aria-live", moving ? "off" : "polite");  // a screen reader hears where it stops
      const own = data.gamma.map((gamma, i) => `${percent(data.runs[space][i][step].own)} at γ = ${gamma}`);
      words.textContent = `After ${data.steps[step]} steps on the ${space}, the share of its own class among an image's `
        + `${data.neighbours} nearest neighbours is ${own.join(", ")}.`;
    }

    const steps = slider(top, "step", data.steps.map(String), last, (k) => { step = k; draw(); });
    player(top, steps, (on) => {
      moving = on;
      box.classList.toggle("hn-moving", on);
      draw();
    });
    choice(top, "on the", data.spaces, (i) => { space = data.spaces[i]; draw(); });
    const knob = slider(top, "turn", angles.map((x) => `${x}°`), data.turn / 5, (k) => { angle = angles[k]; draw(); });
    trainings.forEach(({ view }) => draggable(view, knob));
    steps.update();
    knob.update();
  }

  // ---- 7. Sinkhorn's half-steps on a few points, with all numbers ----

  function halfSteps(box, data) {
    const top = controls(box), panels = row(box, "hn-one"), words = reading(box);
    const n = data.names.length, last = data.thousandths.length - 1, share = places(3);
    const x = (j) => 106 + 62 * j, y = (i) => 52 + 44 * i;
    const view = panel(panels, 320, 34 + 44 * (n + 1), "Weights, anchors by candidates, with the sum of each row and column.");
    const entry = (i, j) => text(view, x(j), y(i), "", { dy: 5 });
    data.names.forEach((name, i) => {
      text(view, 70, y(i), name, { dy: 5, "text-anchor": "end" });
      text(view, x(i), 18, name);
    });
    text(view, x(n), 18, "sum");
    text(view, 70, y(n), "sum", { dy: 5, "text-anchor": "end" });
    const cells = Array.from({ length: n * n }, (_, c) => {
      const [i, j] = [Math.floor(c / n), c % n];
      const square = rect(view, x(j) - 29, y(i) - 20, 58, 40, { fill: data.colours.ot });
      return [square, entry(i, j)];
    });
    const sums = [0, 1].map((side) => data.names.map((_, k) => (side ? entry(n, k) : entry(k, n))));

    const knob = slider(top, "half-step", data.thousandths.map((_, k) => String(k + 1)), 0, (k) => {
      const weight = data.thousandths[k].map((w) => w / 1000), total = [0, 1].map((side) => data.names.map((_, a) =>
        data.names.reduce((sum, _, b) => sum + weight[side ? b * n + a : a * n + b], 0)));
      cells.forEach(([square, number], c) => {
        set(square, { "fill-opacity": 0.4 * weight[c] });
        number.textContent = share(weight[c]);
      });
      sums.forEach((row, side) => row.forEach((number, a) => {
        number.textContent = share(total[side][a]);
        set(number, { "font-weight": Math.abs(total[side][a] - 1) > 0.0015 ? 700 : 400 });
      }));
      const [right, wrong, side] = k % 2 ? ["columns", "rows", 0] : ["rows", "columns", 1];
      words.textContent = `Half-step ${k + 1} sets the ${right} right${k ? "" : ": this is HCL"}. `
        + `The ${wrong} sum to ${total[side].map(share).join(", ")}.`;
      button.textContent = k < last ? "Next half-step" : "Start again";
    });
    const button = add(top, "button", { type: "button", class: "hn-play" });
    button.addEventListener("click", () => {
      knob.input.value = Number(knob.input.value) < last ? Number(knob.input.value) + 1 : 0;
      knob.update();
    });
    knob.update();
  }

  const kinds = { "class-mass": classMass, dial: oneDial, masks, balls, path: lambdaPath, motion,
    sinkhorn: halfSteps };
  window.hnPictures = { kinds, start, set, add, panel, row, line, text, circle, rect, legend, turn, slider, choice,
    controls, reading, unique };  // for typed.js

  function start() {
    for (const box of document.querySelectorAll(".hn-picture[hidden]")) {
      const draw = kinds[box.dataset.kind];
      if (!draw) continue;
      try {
        draw(box, JSON.parse(box.querySelector("script").textContent));
        box.hidden = false;
      } catch (error) {  // it stays hidden and its figure stands alone; the other pictures are drawn
        console.error(`the picture ${box.dataset.kind} cannot be drawn:`, error);
      }
    }
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
