"use strict";
(function () {
  const form = document.getElementById("choices");
  if (!form) return;
  const PAGE = 12;
  const runs = JSON.parse(document.getElementById("gallery-values").textContent).runs;
  const cards = Array.from(document.querySelectorAll("[data-card]"));
  const holder = document.getElementById("cards"), more = document.getElementById("more");
  const count = document.getElementById("count");
  const said = cards.map((card) => Array.from(card.querySelectorAll(".caption"), (part) => part.textContent.toLowerCase()));
  const of = (name) => document.getElementById("choice-" + name);
  const value = (name) => (of(name) ? of(name).value : "");
  let limit = PAGE;

  const scoresOf = (run) => (of("score") ? runs[run].scores[Number(value("score"))] : null);
  const compare = {
    worst: (own) => own.level,
    best: (own) => own.level.map((level) => (level === null ? null : -level)),
    loss: (own, first) => own.level.map((level, i) => (level === null || first.level[i] === null ? null : level - first.level[i])),
    gain: (own, first) => compare.loss(own, first).map((change) => (change === null ? null : -change)),
    change: (own, first) => compare.loss(own, first).map((change) => (change === null ? null : -Math.abs(change))),
  };
  const ranks = (run) => {
    const order = value("order");
    if (order === "rewritten") return runs[run].rewritten.map((share) => -share);
    const own = scoresOf(run);
    return own && compare[order] ? compare[order](own, scoresOf(0)) : cards.map(() => 0);
  };
  const inside = (own, i) => {
    const from = value("from"), to = value("to");
    if (from === "" && to === "") return true;
    const score = own.value[i];
    return score !== null && (from === "" || score >= Number(from)) && (to === "" || score <= Number(to));
  };
  const faulty = (run, i) => {
    const fault = value("fault"), found = runs[run].faults[i];
    return fault === "" || (fault === "none" ? !found.length : found.includes(Number(fault)));
  };
  const show = () => {
    const run = of("run") ? Number(value("run")) : 0;
    const rank = ranks(run), own = scoresOf(run), words = value("words").trim().toLowerCase();
    const kept = cards.map((_, i) => i).filter((i) =>
      faulty(run, i) && (!own || inside(own, i)) && (!words || said[i].some((text) => text.includes(words))));
    const last = (i) => (rank[i] === null ? Infinity : rank[i]);
    kept.sort((a, b) => (last(a) === last(b) ? a - b : last(a) - last(b)));
    cards.forEach((card) => { card.hidden = true; });
    kept.forEach((i, place) => { cards[i].hidden = place >= limit; holder.append(cards[i]); });
    const shown = Math.min(limit, kept.length);
    more.hidden = shown === kept.length;
    more.textContent = "Show " + Math.min(PAGE, kept.length - shown) + " more";
    count.textContent = kept.length ? shown + " of " + kept.length + " images" : "No image is like that.";
  };
  const renew = () => {
    const first = of("run") && value("run") === "0";
    for (const option of of("order").options) {
      option.disabled = first && ["change", "loss", "gain", "rewritten"].includes(option.value);
      if (option.disabled && option.selected) of("order").value = of("score") ? "worst" : "any";
    }
    limit = PAGE;
    show();
  };
  form.addEventListener("input", renew);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(renew));
  more.addEventListener("click", () => {
    const before = limit;
    limit += PAGE;
    show();
    const next = holder.querySelectorAll("[data-card]:not([hidden])")[before];
    if (next) { next.tabIndex = -1; next.focus({ preventScroll: true }); }
  });
  window.addEventListener("beforeprint", () => { limit = cards.length; show(); });
  form.hidden = false;
  renew();
})();
