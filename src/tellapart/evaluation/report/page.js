"use strict";
(function () {
  const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const merged = (base, own) => {
    const result = Object.assign({}, base);
    for (const key of Object.keys(own || {})) {
      const nested = own[key] && typeof own[key] === "object" && !Array.isArray(own[key]);
      result[key] = nested ? merged(base[key] || {}, own[key]) : own[key];
    }
    return result;
  };
  const layout = (own) => {
    const axis = {
      gridcolor: shade("--line"), linecolor: shade("--line"), zeroline: false, automargin: true, fixedrange: true,
      title: { font: { size: 11 }, standoff: 6 },
    };
    return merged({
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, hovermode: "closest",
      margin: { l: 40, r: 10, t: 10, b: 34 }, font: { color: shade("--muted"), size: 11, family: "inherit" },
      hoverlabel: { bgcolor: shade("--raised"), bordercolor: shade("--line"), font: { color: shade("--ink") } },
      xaxis: axis, yaxis: axis,
    }, own);
  };
  const draw = (source) => {
    const target = document.getElementById(source.dataset.figure);
    if (!target.offsetWidth) return;
    const spec = JSON.parse(source.textContent);
    Plotly.react(target, spec.data, layout(spec.layout), { displayModeBar: false, responsive: true });
  };
  const sources = Array.from(document.querySelectorAll("script[data-figure]"));
  const drawAll = () => sources.forEach(draw);
  document.querySelectorAll("details").forEach((part) => part.addEventListener("toggle", () => {
    if (part.open) part.querySelectorAll("script[data-figure]").forEach(draw);
  }));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const closed = target && target.closest("details:not([open])");
    if (closed) { closed.open = true; target.scrollIntoView(); }
  };
  document.querySelectorAll("th[data-sort]").forEach((head) => {
    const column = Number(head.dataset.sort), body = head.closest("table").tBodies[0];
    const given = Array.from(body.rows), button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    const value = (row) => {
      const text = row.cells[column + 1].dataset.value;
      return text === "" ? -Infinity : Number(text);
    };
    button.addEventListener("click", () => {
      const next = { none: "descending", descending: "ascending", ascending: "none" }[head.ariaSort || "none"];
      head.closest("tr").querySelectorAll("[aria-sort]").forEach((other) => other.removeAttribute("aria-sort"));
      if (next !== "none") head.setAttribute("aria-sort", next);
      const way = next === "descending" ? -1 : 1;
      const rows = next === "none" ? given : given.slice().sort((a, b) => way * (value(a) - value(b)) || 0);
      body.append(...rows);
    });
  });
  window.addEventListener("hashchange", reveal);
  drawAll();
  reveal();
})();
