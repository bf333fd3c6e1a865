"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const picture = document.getElementById("picture"), panel = document.getElementById("panel");
  const examples = document.getElementById("examples");
  const choice = (id) => document.getElementById(id).value;
  const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const escaped = (text) => String(text).replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
  const buttons = Array.from(document.querySelectorAll("#buttons button"));
  let shown = null, pinned = false;

  // Captions and labels only ever become text nodes: nothing in them is read as HTML.
  const make = (tag, properties, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children.filter((child) => child !== null));
    return element;
  };
  const printed = (key, value) => {
    const column = data.columns[key];
    return value === undefined || value === null ? "-" : (value * column.scale).toFixed(column.digits);
  };
  const spread = (key, mean) => !mean ? "-" : printed(key, mean[0]) + (mean[1] === null ? "" : ` ± ${printed(key, mean[1])}`);

  // Of a start model, which is no point of a curve, "curve" is the place among the start models, and "point" is -1.
  const pointOf = (at) => at.point < 0 ? data.starts[at.curve].point : data.curves[at.curve].points[at.point];
  const startOf = (at) => at.point < 0 || pointOf(at).begins.start === null ? null : data.starts[pointOf(at).begins.start].point;
  const checkpointOf = (at) => at.point < 0 ? "start" : choice("checkpoint");
  const title = (at) => at.point < 0 ? data.starts[at.curve].label : `${data.curves[at.curve].label}: ${pointOf(at).label}`;

  function marks() {
    const x = choice("across"), y = choice("up"), name = choice("checkpoint"), traces = [];
    const scaled = (key, value) => value * data.columns[key].scale;
    const trace = (found, style) => Object.assign({ type: "scatter", x: found.map((f) => f[0]), y: found.map((f) => f[1]),
      customdata: found.map((f) => f[2]), hovertemplate: found.map((f) => hover(f[2], f[3])) }, style);
    const hover = (at, seed) => `${escaped(title(at))}${seed === null ? "" : `, seed ${seed}`}<br>` +
      `${escaped(data.columns[x].label)} %{x:.${data.columns[x].digits}f}<br>${escaped(data.columns[y].label)} %{y:.${data.columns[y].digits}f}<extra></extra>`;
    data.curves.forEach((curve, number) => {
      const band = (curve.bands[name] || {})[`${x} ${y}`] || [];
      if (band.length) {
        const there = band.map((b) => scaled(x, b[0])), back = there.slice().reverse();
        traces.push({ type: "scatter", mode: "none", fill: "toself", fillcolor: curve.colour + "26", hoverinfo: "skip",
          x: there.concat(back), y: band.map((b) => scaled(y, b[1])).concat(band.map((b) => scaled(y, b[2])).reverse()) });
      }
      const small = [], large = [];
      curve.points.forEach((point, place) => {
        point.trainings.forEach((training, order) => {
          const held = (training.checkpoints[name] || { metrics: {} }).metrics;
          if (x in held && y in held) small.push([scaled(x, held[x]), scaled(y, held[y]), { curve: number, point: place, order }, training.seed]);
        });
        const means = point.means[name] || {};
        if (x in means && y in means) large.push([scaled(x, means[x][0]), scaled(y, means[y][0]), { curve: number, point: place, order: 0 }, null]);
      });
      traces.push(trace(small, { mode: "markers", marker: { color: curve.colour, size: 6, opacity: 0.5 } }));
      traces.push(trace(large, { mode: curve.knob ? "lines+markers" : "markers", line: { color: curve.colour, width: 2 },
        marker: { color: curve.colour, symbol: curve.marker, size: 11 } }));
    });
    data.starts.forEach((start, number) => {
      const means = start.point.means.start;
      if (x in means && y in means) {
        const spot = [scaled(x, means[x][0]), scaled(y, means[y][0]), { curve: number, point: -1, order: 0 }, null];
        traces.push(trace([spot], { mode: "markers", marker: { color: shade("--ink"), symbol: "cross-thin-open", size: 13, line: { width: 2 } } }));
      }
    });
    return traces.concat(ring(x, y, scaled));
  }

  function ring(x, y, scaled) {
    const means = shown ? (pointOf(shown).means[checkpointOf(shown)] || {}) : {};
    if (!(x in means) || !(y in means)) return [];
    return [{ type: "scatter", mode: "markers", hoverinfo: "skip", x: [scaled(x, means[x][0])], y: [scaled(y, means[y][0])],
      marker: { symbol: "circle-open", size: 22, color: shade("--ink"), line: { width: 2 } } }];
  }

  function draw() {
    const axis = (key) => ({ title: { text: escaped(data.columns[key].label) + ({ 1: " ↑", "-1": " ↓" }[data.columns[key].better] || ""), font: { size: 12 }, standoff: 8 },
      gridcolor: shade("--line"), linecolor: shade("--line"), zeroline: false, automargin: true, fixedrange: true });
    if (!choice("across") || !choice("up")) return;
    const layout = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
      margin: { l: 44, r: 12, t: 10, b: 40 }, font: { color: shade("--muted"), size: 11, family: "inherit" },
      hoverlabel: { bgcolor: shade("--raised"), bordercolor: shade("--line"), font: { color: shade("--ink") } },
      xaxis: axis(choice("across")), yaxis: axis(choice("up")) };
    Plotly.react(picture, marks(), layout, { displayModeBar: false, responsive: true });
  }

  function metricTable(at, training) {
    const name = checkpointOf(at), point = pointOf(at), means = point.means[name] || {}, start = startOf(at);
    const own = training ? (training.checkpoints[name] || { metrics: {} }).metrics : {}, trained = at.point >= 0;
    const number = (...children) => make("td", { className: "number" }, ...children);
    const line = (key) => make("tr", {}, make("th", { scope: "row", textContent: data.columns[key].label, title: data.columns[key].about }),
      number(make("span", { className: "value", textContent: spread(key, means[key]) }), trained ? change(key, (point.changes[name] || {})[key]) : null),
      trained ? number(start ? spread(key, start.means.start[key]) : "-") : null,
      number(printed(key, own[key])));
    const heads = ["metric", "this point", trained ? "start model" : null, training ? `seed ${training.seed}` : "seed"].filter((heading) => heading !== null);
    const table = (keys, about) => make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: about }, make("table", {},
      make("thead", {}, make("tr", {}, ...heads.map(
        (heading, place) => make("th", { scope: "col", textContent: heading, className: place ? "number" : "" })))),
      make("tbody", {}, ...keys.map(line))));
    const measured = Object.keys(data.columns).filter((key) => key in means), first = measured.filter((key) => data.main.includes(key));
    const others = measured.filter((key) => !first.includes(key));
    return [table(first, "Main metrics"), others.length ? make("details", {}, make("summary", { textContent: `${others.length} more metrics` }), table(others, "More metrics")) : null];
  }

  // Better or worse only where the interval over seeds excludes zero, as an arrow for readers who do not see the colour.
  function change(key, found) {
    if (!found) return null;
    const [mean, half] = found, clear = half !== null && Math.abs(mean) > half && data.columns[key].better;
    const good = mean * data.columns[key].better > 0, text = printed(key, Math.abs(mean));
    return make("span", { className: "difference" + (clear ? good ? " good" : " bad" : ""),
      title: half === null ? "one seed" : `± ${printed(key, half)} (${data.confidence} t-interval over seeds)`,
      textContent: (clear ? good ? "▲ " : "▼ " : "") + (mean < 0 ? "−" : "+") + text });
  }

  function example(image, place, at, training) {
    const name = checkpointOf(at), start = startOf(at), order = pointOf(at).trainings.indexOf(training);
    const caption = (label, text) => make("div", {}, make("dt", { textContent: label }),
      text ? make("dd", { dir: "auto", textContent: text }) : make("dd", {}, make("em", { textContent: text === "" ? "(empty)" : "(none)" })));
    const same = at.point < 0 ? training : start && start.trainings[pointOf(at).begins.trainings[order]];  // none if not measured
    const held = training && training.checkpoints[name];
    const lines = same ? [caption("start model", same.checkpoints.start.captions[place])] : [];
    if (at.point >= 0 && held) lines.push(caption(`this point, seed ${training.seed}`, held.captions[place]));
    const references = image.references.length ? make("details", {}, make("summary", { textContent: `${image.references.length} references` }),
      make("ul", { className: "references" }, ...image.references.map((text) => make("li", { dir: "auto", textContent: text })))) : null;
    const shownImage = image.source ? make("img", { src: image.source, alt: `Image ${image.id}`, className: image.pixelated ? "pixelated" : "" }) : null;
    return make("div", { className: "example" }, shownImage,
      make("div", { className: "said" }, make("h3", { className: "note", textContent: image.id }), make("dl", {}, ...lines), references));
  }

  function show(at) {
    shown = at;
    const point = pointOf(at), training = point.trainings[Math.min(at.order || 0, point.trainings.length - 1)], name = checkpointOf(at);
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(Number(button.dataset.curve) === at.curve && Number(button.dataset.point) === at.point)));
    const seeds = at.point < 0 || point.trainings.length < 2 ? [] : point.trainings.map((other, order) => make("button", {
      type: "button", textContent: `seed ${other.seed}`, ariaPressed: String(other === training),
      onclick: () => {
        pinned = true;
        show({ curve: at.curve, point: at.point, order });
        panel.querySelectorAll(".seeds button")[order].focus();  // the panel was made anew, the keyboard stays where it was
      } }));
    const held = training && training.checkpoints[name], curve = data.curves[at.curve];
    const about = at.point < 0 ? "before any training" : !held ? "was not measured" : `${data.checkpoints[name]}, step ${held.step}; method ${curve.method}, ${curve.recipe}`;
    const failed = Object.entries(point.failed).map(([seed, why]) => make("p", { className: "note", textContent: `Seed ${seed} failed: ${why}` }));
    panel.replaceChildren(make("h2", { textContent: title(at) }), make("p", { className: "note", textContent: about }), ...failed,
      make("div", { className: "seeds" }, ...seeds), ...metricTable(at, training).filter(Boolean));
    if (examples) {
      examples.replaceChildren(...(held ? data.images.map((image, place) => example(image, place, at, training)) : []));
      document.getElementById("whose").textContent = `Shown: ${title(at)}.`;
    }
    draw();
  }

  const same = (a, b) => a && b && a.curve === b.curve && a.point === b.point && (a.order || 0) === (b.order || 0);
  function keep(at) {
    pinned = !(pinned && same(at, shown));
    show(at);
  }

  buttons.forEach((button, place) => {
    const at = { curve: Number(button.dataset.curve), point: Number(button.dataset.point), order: 0 };
    button.addEventListener("focus", () => { if (!same(at, shown)) { pinned = true; show(at); } });
    button.addEventListener("click", () => { pinned = true; show(at); });
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      buttons[(place + step + buttons.length) % buttons.length].focus();
    });
  });
  ["up", "across", "checkpoint"].forEach((id) => document.getElementById(id).addEventListener("change", () => shown ? show(shown) : draw()));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
  if (picture.on) {
    const aimed = (event) => (event.points.find((point) => point.customdata) || {}).customdata;
    picture.on("plotly_click", (event) => { const at = aimed(event); if (at) keep(at); });
    picture.on("plotly_hover", (event) => { const at = aimed(event); if (at && !pinned && !same(at, shown)) show(at); });
  }
  const first = buttons.find((button) => button.dataset.point !== "-1") || buttons[0];
  if (data.best) show({ curve: data.best[0], point: data.best[1], order: 0 });
  else if (first) show({ curve: Number(first.dataset.curve), point: Number(first.dataset.point), order: 0 });
})();
