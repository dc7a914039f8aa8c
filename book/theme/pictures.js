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
    names.forEach((name, i) => {
      const label = add(field, "label", { class: "hn-switch" });
      const input = add(label, "input", { type: "radio", name: group, value: i });
      input.checked = i === 0;
      add(label, "span", {}, name);
      input.addEventListener("change", () => change(i));
    });
  }

  const controls = (parent) => add(parent, "div", { class: "hn-controls" });
  const reading = (parent) => add(parent, "output", { class: "hn-reading" });

  // A bar chart's column that can be set to a height in [0, 1] of the space from y0 up to y1.
  function column(parent, x, width, y0, y1, attributes = {}) {
    const bar = rect(parent, x, y0, width, 0, attributes);
    return (share) => set(bar, { y: y0 - share * (y0 - y1), height: Math.max(0, share * (y0 - y1)) });
  }

  // ---- 1. same-class mass under the tilt against the fixed class prior ----

  function classMass(box, data) {
    const own = data.colours.hcl, other = data.colours["h-scl"];
    const top = controls(box), panels = row(box), words = reading(box);
    const ring = panel(panels, 320, 290, "Candidates on a circle; the area of a point is its weight.");
    const place = (degrees, radius = 100) => turn(-degrees).map((x, i) => [160, 145][i] + radius * x);
    circle(ring, [160, 145], 100, { fill: "none", stroke: "currentColor", opacity: 0.35 });
    const points = data.angle.map((degrees, j) => circle(ring, place(degrees), 1, {
      fill: data.same[j] ? own : other, "fill-opacity": 0.6, stroke: data.same[j] ? own : other }));
    const at = place(data.anchor);
    for (const way of [1, -1]) line(ring, at[0] - 7, at[1] - 7 * way, at[0] + 7, at[1] + 7 * way, { "stroke-width": 2.5 });
    text(ring, ...place(data.anchor, 72), "anchor", { dy: 5 });
    legend(ring, 112, 145, own, "its own class");
    legend(ring, 112, 167, other, "other classes");

    const chart = panel(panels, 320, 290, "The share of the anchor's own class in the tilt, and the share taken off.");
    const y0 = 240, y1 = 20, level = y0 - data.prior * (y0 - y1);
    rect(chart, 50, y1, 80, y0 - y1, { fill: other, "fill-opacity": 0.45 });
    rect(chart, 190, y1, 80, y0 - y1, { fill: "none", stroke: "currentColor", opacity: 0.35 });
    const mass = column(chart, 50, 80, y0, y1, { fill: own });
    column(chart, 190, 80, y0, y1, { fill: data.colours.simclr })(data.prior);
    line(chart, 30, level, 290, level, { "stroke-dasharray": "5 4", "stroke-width": 1.5 });
    const share = text(chart, 90, 0, "", { "font-weight": 600 });
    text(chart, 230, level - 8, percent(data.prior), { "font-weight": 600 });
    text(chart, 90, 260, "what the tilt gives");
    text(chart, 90, 278, "the class: π⁺(β)");
    text(chart, 230, 260, "what the loss");
    text(chart, 230, 278, "takes off: τ⁺");

    slider(top, "β", data.beta.map(places(2)), data.start, (k) => {
      points.forEach((point, j) => set(point, { r: 2 + 30 * Math.sqrt(data.weight[k][j]) }));
      mass(data.mass[k]);
      share.textContent = percent(data.mass[k]);
      // inside the column where there is no room above it
      set(share, { y: y0 - data.mass[k] * (y0 - y1) + (data.mass[k] > 0.85 ? 22 : -8) });
      words.textContent = `The tilt puts ${percent(data.mass[k])} of the weight on the anchor's own class; the loss `
        + `takes off ${percent(data.prior)}. Of what then counts as negative, `
        + `${percent(data.left[k])} is still same-class.`;
    }).update();
  }

  // ---- 2. five classes on a sphere, four on a circle ----

  function packing(box, data) {
    const first = controls(box), solids = row(box), said = reading(box);
    const colour = [data.colours.ot, data.colours["h-scl"]], tilt = turn(22);
    const views = data.solids.map((solid) => panel(solids, 320, 300, `${solid.name}: ${solid.summary}`));

    function look(degrees) {
      const [c, s] = turn(degrees);
      views.forEach((view, k) => {
        view.replaceChildren();
        const { points, near, edges, name, summary } = data.solids[k];
        const seen = points.map(([x, y, z]) => {
          const right = c * x - s * y, away = s * x + c * y;
          const up = tilt[0] * z + tilt[1] * away;
          return { at: [160 + 100 * right, 128 - 100 * up], depth: tilt[0] * away - tilt[1] * z };
        });
        circle(view, [160, 128], 100, { fill: "none", stroke: "currentColor", opacity: 0.35 });
        add(view, "ellipse", { cx: 160, cy: 128, rx: 100, ry: 100 * tilt[1], fill: "none", stroke: "currentColor",
          opacity: 0.18 });
        for (const [i, j, nearest] of edges) {
          const behind = seen[i].depth + seen[j].depth > 0.3;
          line(view, ...seen[i].at, ...seen[j].at, nearest
            ? { stroke: colour[k], "stroke-width": 3, opacity: behind ? 0.45 : 1 }
            : { opacity: behind ? 0.2 : 0.4 });
        }
        seen.map((p, i) => ({ ...p, i })).sort((p, q) => q.depth - p.depth).forEach(({ at, depth, i }) => {
          circle(view, at, 7 - 2 * depth, { fill: colour[k], opacity: 0.75 - 0.25 * depth });
          const away = Math.hypot(at[0] - 160, at[1] - 128) || 1;
          text(view, 160 + (at[0] - 160) * (1 + 19 / away), 128 + (at[1] - 128) * (1 + 19 / away),
            near[i].toFixed(near[i] % 1 ? 2 : 0), { dy: 4, class: "hn-halo" });
        });
        text(view, 160, 268, name, { "font-weight": 600 });
        text(view, 160, 288, summary);
      });
    }

    const angles = Array.from({ length: 73 }, (_, k) => 5 * k);
    const knob = slider(first, "turn", angles.map((x) => `${x}°`), 5, (k) => look(angles[k]));
    knob.update();
    said.textContent = data.remark;
    for (const view of views) {  // dragging a solid moves the slider
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

    const hue = [data.colours.ot, data.colours.ot, data.colours.hcl, data.colours.hcl];
    const second = controls(box), plane = row(box), words = reading(box);
    const ring = panel(plane, 320, 266, "Two frequent and two rare classes on a circle; area is share.");
    const place = (degrees, radius = 92) => turn(-degrees).map((x, i) => [160, 130][i] + radius * x);
    circle(ring, [160, 130], 92, { fill: "none", stroke: "currentColor", opacity: 0.35 });
    const hull = add(ring, "path", { fill: "none", stroke: "currentColor", opacity: 0.5 });
    const dots = [0, 1, 2, 3].map((i) => circle(ring, [160, 130], 5, {
      fill: hue[i], "fill-opacity": 0.7, stroke: hue[i] }));
    const labels = dots.map(() => text(ring, 0, 0, "", { dy: 5 }));
    legend(ring, 122, 126, hue[0], "frequent");
    legend(ring, 122, 148, hue[3], "rare");
    const chart = panel(plane, 320, 266, "The mean squared distance to the nearest other class.");
    const y0 = 215, y1 = 15;
    const bars = [["square", 70], ["triangle", 180]].map(([name, x]) => {
      text(chart, x + 35, 235, name);
      return { bar: column(chart, x, 70, y0, y1, { fill: "currentColor" }), value: text(chart, x + 35, 0, "") };
    });
    text(chart, 160, 256, "mean of the squared distances", { class: "hn-fine" });
    line(chart, 40, y0, 280, y0, { opacity: 0.5 });
    slider(second, "w", data.weight.map(places(2)), data.start, (k) => {
      const value = [data.square[k], data.merged[k]], winner = value[1] > value[0] ? 1 : 0;
      const layout = data.layouts[winner], w = data.weight[k];
      dots.forEach((dot, i) => {
        const [cx, cy] = place(layout[i]);
        set(dot, { cx, cy, r: 34 * Math.sqrt(i < 2 ? w / 2 : (1 - w) / 2) });
        const [x, y] = place(layout[i], 125);
        labels[i].textContent = data.near[winner][i].toFixed(0);
        set(labels[i], { x, y });
      });
      set(hull, { d: path([...layout].sort((a, b) => a - b).map((a) => place(a)), true) });
      bars.forEach(({ bar, value: label }, i) => {
        bar(value[i] / 3);
        set(chart.querySelectorAll("rect")[i], { "fill-opacity": i === winner ? 0.65 : 0.2 });
        label.textContent = value[i].toFixed(2);
        set(label, { y: y0 - (value[i] / 3) * (y0 - y1) - 6, "font-weight": i === winner ? 600 : 400 });
      });
      words.textContent = `The two frequent classes hold ${percent(w)} of the data. `
        + (winner ? "Triangle: the two rare classes share one point, at distance 0 from each other."
          : "Square: the four classes stay apart.");
    }).update();
  }

  // ---- 3. four masks, four bars ----

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

  // ---- 4. three balls, three temperatures; one budget, one temperature ----

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
        const caption = add(item, "div", { class: "hn-amount" });
        add(caption, "span", {}, name);
        const number = add(caption, "span");
        const bar = add(add(item, "div", { class: "hn-bar" }), "div", { style: `background:${fill}` });
        return (value, most) => {
          number.textContent = value.toFixed(3);
          bar.style.width = `${(100 * value) / most}%`;
        };
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

  // ---- 5. from the tilt to transport ----

  function lambdaPath(box, data) {
    const top = controls(box), panels = row(box, "hn-one"), words = reading(box);
    const n = data.sums[0].length, side = 280, cell = side / n, x0 = 34, y0 = 8;
    const view = panel(panels, 320, 420, "A heat map of the weights, anchors by candidates, above its column sums.");
    const map = add(view, "g", { class: "hn-heat" });
    rect(view, x0, y0, side, side, { fill: "none", stroke: "currentColor", opacity: 0.4 });
    const cells = Array.from({ length: n * n }, (_, c) =>
      rect(map, x0 + (c % n) * cell, y0 + Math.floor(c / n) * cell, cell + 0.15, cell + 0.15, { "fill-opacity": 0 }));
    for (let b = 0; b < n; b += 2) {  // an anchor and its other view: never negatives
      rect(view, x0 + b * cell, y0 + b * cell, 2 * cell, 2 * cell, { fill: "currentColor", opacity: 0.12 });
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
    text(view, x0 + side / 2, 414, "candidates (bars: column sums; grey: forbidden)", { class: "hn-fine" });

    slider(top, "λ", data.relaxation, 0, (k) => {
      const share = k / (data.relaxation.length - 1);
      const colour = `color-mix(in oklab, ${data.colours.ot} ${100 * share}%, ${data.colours.hcl})`;
      map.style.fill = `color-mix(in oklab, ${colour} 80%, currentColor)`;
      cells.forEach((square, c) => set(square, { "fill-opacity": Math.min(1, data.weight[k][c] / data.full) }));
      bars.forEach((bar, j) => bar(Math.min(1, data.sums[k][j] / most)));
      for (const bar of drawn) bar.style.fill = colour;
      const sums = data.sums[k];
      words.textContent = `λ = ${data.relaxation[k]}: the busiest candidate receives ${Math.max(...sums).toFixed(2)} `
        + `fair shares, the loneliest ${Math.min(...sums).toFixed(2)}.`;
    }).update();
  }

  const kinds = { "class-mass": classMass, packing, masks, balls, path: lambdaPath };

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
