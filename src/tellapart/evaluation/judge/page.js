"use strict";
// What runs wrote reaches the page as text only (textContent), and nothing here knows which run wrote it.
const QUESTIONS = {
  which_image: {
    title: "Which image does the caption describe?",
    about: "You see a caption and two images. It was written for one of them. Choose that one.",
    first: "the first image",
    second: "the second image",
  },
  reads_better: {
    title: "Which caption reads better?",
    about: "You see an image and two captions of it. Choose the one that reads better: as a person would write it, without odd words, repetition or breaks.",
    first: "the first caption",
    second: "the second caption",
  },
};
const KEYS = { 1: 1, ArrowLeft: 1, 2: 2, ArrowRight: 2, 0: 0 };
const RETRY = 1000;
const part = (id) => document.getElementById(id);
let state = null;
let introduced = "";
let busy = false;
let shownAt = 0;

function wait(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

function trouble(text) {
  part("trouble").textContent = text;
  part("trouble").hidden = !text;
}

// Asks until there is an answer: the server may have been stopped and started again. Answers sent twice count once.
async function send(action, content) {
  for (;;) {
    try {
      const response = await fetch("/" + action, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(content),
        signal: AbortSignal.timeout(20000),
      });
      const value = await response.json();
      trouble(response.ok ? "" : value.error);
      return response.ok ? value : null;
    } catch {
      trouble("The server does not answer. Your answers so far are saved; leave this page open, it is tried again.");
      await wait(RETRY);
    }
  }
}

async function act(action, content) {
  if (busy) return;
  busy = true;
  const next = await send(action, content);
  if (next) await show(next);
  else if (!state) only("enter");
  busy = false;
}

function answer(pressed) {
  if (busy || !state || !state.item || part("ask").hidden) return;
  const seconds = (performance.now() - shownAt) / 1000;
  const taken = part("choices").children[pressed - 1];
  if (taken) taken.classList.add("taken");
  act("answer", { rater: state.rater, item: state.item.id, pressed, seconds });
}

function undo() {
  if (state && state.last !== null) act("undo", { rater: state.rater, number: state.last });
}

function only(id) {
  for (const name of ["enter", "intro", "ask", "done"]) part(name).hidden = name !== id;
}

async function show(next) {
  state = next;
  sessionStorage.setItem("name", state.name);
  part("who").textContent = state.name;
  part("count").textContent = `${state.done} of ${state.total} answered`;
  part("bar").max = state.total;
  part("bar").value = state.done;
  for (const id of ["count", "bar"]) part(id).hidden = false;
  part("undo").disabled = part("undo-last").disabled = state.last === null;
  if (!state.item) {
    only("done");
    part("done-title").focus();
  } else if (introduced !== state.item.question) introduce();
  else await ask();
}

function introduce() {
  const question = QUESTIONS[state.item.question];
  part("part").textContent = state.done ? `${state.done} of ${state.total} are answered. Next question:` : "Your question:";
  part("intro-title").textContent = question.title;
  part("intro-text").textContent = question.about;
  part("key-first").textContent = question.first;
  part("key-second").textContent = question.second;
  only("intro");
  part("go").focus();
}

async function go() {
  if (busy || part("intro").hidden) return;
  busy = true;
  introduced = state.item.question;
  await ask();
  busy = false;
}

function picture(name, alt) {
  const image = document.createElement("img");
  image.src = "/pictures/" + name;
  image.alt = alt;
  image.classList.toggle("small", name.endsWith(".png"));
  return image;
}

async function loaded(image) {
  for (;;) {
    try {
      return await image.decode();
    } catch {
      trouble("A picture does not come. Your answers so far are saved; leave this page open, it is tried again.");
      await wait(RETRY);
      image.src = image.getAttribute("src");
    }
  }
}

function words(tag, text) {
  const element = document.createElement(tag);
  element.dir = "auto";
  write(element, text);
  return element;
}

function write(element, text) {
  element.textContent = text || "(no words)";
  element.classList.toggle("empty", !text);
}

function choice(number, content) {
  const button = document.createElement("button");
  const key = document.createElement("kbd");
  key.textContent = number;
  button.type = "button";
  button.append(content, key);
  button.addEventListener("click", () => answer(number));
  return button;
}

async function ask() {
  const item = state.item;
  const images = item.question === "which_image";
  const pictures = item.pictures.map((name, i) => picture(name, images ? `Image ${i + 1}` : "The image"));
  const texts = item.captions.map((text) => words("span", text));
  for (const text of texts) text.classList.add("words");
  await Promise.all(pictures.map(loaded)); // nobody answers before seeing
  trouble("");
  part("question").textContent = QUESTIONS[item.question].title;
  part("caption").hidden = !images;
  if (images) write(part("caption"), item.captions[0]);
  part("shown").replaceChildren(...(images ? [] : pictures));
  part("choices").replaceChildren(...(images ? pictures : texts).map((content, i) => choice(i + 1, content)));
  part("choices").classList.toggle("texts", !images);
  part("choices").classList.toggle("wide", images && pictures.every((image) => image.naturalWidth > 1.2 * image.naturalHeight));
  only("ask");
  part("question").focus({ preventScroll: true });
  window.scrollTo(0, 0);
  part("ask").dataset.item = item.id;
  shownAt = performance.now();
}

function leave() {
  sessionStorage.removeItem("name");
  location.reload();
}

document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || !part("enter").hidden) return;
  if (event.key in KEYS && !part("ask").hidden) answer(KEYS[event.key]);
  else if (event.key.toLowerCase() === "u") undo();
  else if (event.key === "Enter" && !part("intro").hidden) go();
  else return;
  event.preventDefault();
});
part("go").addEventListener("click", go);
part("unsure").addEventListener("click", () => answer(0));
part("undo").addEventListener("click", undo);
part("undo-last").addEventListener("click", undo);
part("other").addEventListener("click", leave);
part("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  act("start", { name: part("name").value });
});

const before = sessionStorage.getItem("name");
if (before) act("start", { name: before });
else {
  only("enter");
  part("name").focus();
}
