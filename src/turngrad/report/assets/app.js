"use strict";
/* Where the page is: `#/` is the overview, `#/0/step-0003` a page of episodes, `#/0/step-0003/5` one of them. */

const view = { page: null, episodes: [], at: 0, colour: kept.colour };
const overview = document.getElementById("overview");
const viewer = document.getElementById("viewer");
const title = document.title;

function addressed() {
  return pageOf(location.hash.replace(/^#\//, "").split("?")[0].split("/").slice(0, 2).join("/"));
}

async function route() {
  const [path, query] = location.hash.replace(/^#\//, "").split("?");
  const index = path.split("/")[2];
  const page = addressed();
  document.getElementById("token-info").hidden = true;
  overview.hidden = Boolean(page);
  viewer.hidden = !page;
  document.getElementById("top").hidden = Boolean(page);
  if (!page) {
    if (view.page && outdated()) return refresh(view.scrolled);
    if (view.page) scrollTo(0, view.scrolled || 0);
    view.page = null;
    document.title = title;
    return;
  }
  if (!view.page) view.scrolled = scrollY;
  const arrived = view.page !== page;
  view.page = page;
  view.episodes = page.kept ? await episodesOf(page) : [];
  if (view.page !== page) return;
  const task = new URLSearchParams(query || "").get("task");
  const found = view.episodes.findIndex((episode) => (task === null ? String(episode.index) === index : episode.task === task));
  view.at = Math.max(0, found);
  drawViewer();
  if (arrived) viewer.focus({ preventScroll: true });
  scrollTo(0, 0);
}

/** A run goes on while its page is read. An episode stays as it is, so only the overview loads itself again, and not under
 * a reader who marks text in it. */
function outdated() {
  return DATA.refresh && performance.now() >= 1000 * DATA.refresh;
}

function refresh(scroll) {
  removeEventListener("pagehide", keep);
  keep();
  if (scroll !== undefined) history.replaceState({ ...history.state, scroll }, "");
  location.reload();
}

function drawViewer() {
  const page = view.page;
  const place = DATA.pages.indexOf(page);
  const beside = (offset) => DATA.pages[place + offset];
  const go = (target) => () => { if (target) location.hash = `#/${target.key}`; };
  const episode = view.episodes[view.at];
  const kept = page.kept === page.total ? `${page.total} episodes` : `${page.kept} of ${page.total} episodes kept, extremes first`;
  const bar = el(
    "div",
    { class: "bar" },
    el("button", { type: "button", onclick: () => { location.hash = "#/"; } }, "Overview"),
    el("h2", {}, labelled(page.run, page.title), el("span", { class: "soft" }, ` ${kept}`)),
    paired("Step", [!beside(-1), go(beside(-1)), "Earlier step"], [!beside(1), go(beside(1)), "Later step"]),
    paired(
      "Episode",
      [view.at === 0, () => move(-1), "Previous episode"],
      [view.at >= view.episodes.length - 1, () => move(1), "Next episode"],
    ),
    el(
      "div",
      { role: "group", "aria-label": "Colour of tokens", class: "filters" },
      ...["mask", "logprob", "advantage"].map((kind) =>
        el("button", { type: "button", "data-colour-button": kind, "aria-pressed": String(kind === view.colour), onclick: () => colour(kind) }, kind)),
    ),
  );
  const hint = "Left and right: episodes. Shift with them: steps. M, L, A: colours. Escape: overview.";
  viewer.replaceChildren(bar, el("p", { class: "hint keys" }, hint));
  if (!episode) {
    viewer.append(el("p", { class: "note" }, page.total ? "The episodes of this step did not fit into the report; scripts/show.py prints them." : "No episodes."));
    return;
  }
  viewer.append(el("div", { class: "split" }, el("nav", { "aria-label": "Episodes" }, picker(), list()), el("div", { id: "shown" }, drawEpisode(episode))));
  colour(view.colour);
  viewer.querySelector(".list [aria-current]")?.scrollIntoView({ block: "nearest" });
  const told = `${page.title}, ${episode.task}, attempt ${episode.attempt}, reward ${number(episode.reward)}`;
  document.title = `${told} - ${title}`;
  say(told);
}

/** Two buttons around a word: back and on. */
function paired(word, ...sides) {
  const [back, on] = sides.map(([disabled, onclick, label], side) =>
    el("button", { type: "button", disabled, onclick, "aria-label": label, title: label }, side ? "\u203a" : "\u2039"));
  return el("div", { class: "paired", role: "group", "aria-label": word }, back, el("span", {}, word), on);
}

function hashOf(episode) {
  return `#/${view.page.key}/${episode.index}`;
}

function list() {
  const items = [];
  view.episodes.forEach((episode, at) => {
    if (!at || view.episodes[at - 1].task !== episode.task) items.push(el("li", { class: "task" }, episode.task));
    const mark = episode.excluded ? episode.excluded : episode.stop === "done" ? "" : episode.stop;
    items.push(el("li", {}, el("a", { href: hashOf(episode), "aria-current": at === view.at ? "true" : null },
      el("span", {}, `attempt ${episode.attempt}`), el("span", { class: "mark" }, mark), el("span", {}, number(episode.reward)))));
  });
  return el("ul", { class: "list" }, ...items);
}

function picker() {
  const options = view.episodes.map((episode, at) =>
    el("option", { value: at, selected: at === view.at }, `${episode.task}, attempt ${episode.attempt}, reward ${number(episode.reward)}`));
  return el("select", { class: "pick", "aria-label": "Episode", onchange: (event) => { location.hash = hashOf(view.episodes[event.target.value]); } }, ...options);
}

function move(offset) {
  const episode = view.episodes[view.at + offset];
  if (episode) location.hash = hashOf(episode);
}

function colour(kind) {
  view.colour = kept.colour = kind;
  viewer.dataset.colour = kind;
  viewer.querySelectorAll("[data-colour-button]").forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.colourButton === kind)));
  viewer.querySelectorAll(".legend").forEach((row) => { row.hidden = row.dataset.kind !== kind; });
}

function told(event) {
  const info = document.getElementById("token-info");
  const picked = event.target.closest?.(".tok[data-told]");
  if (event.type === "pointerover" && event.pointerType === "touch") return;
  viewer.querySelectorAll(".picked").forEach((node) => node.classList.remove("picked"));
  info.hidden = !picked;
  if (!picked) return;
  picked.classList.add("picked");
  info.textContent = `${JSON.stringify(picked.textContent)}  ${picked.dataset.told}`;
}

function pressed(event) {
  if (viewer.hidden || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input, .scroll")) return;
  // By the address, which a key changes before the view has followed.
  const place = DATA.pages.indexOf(addressed());
  const step = (offset) => { const page = DATA.pages[place + offset]; if (page) location.hash = `#/${page.key}`; };
  const actions = {
    ArrowLeft: () => (event.shiftKey ? step(-1) : move(-1)),
    ArrowRight: () => (event.shiftKey ? step(1) : move(1)),
    m: () => colour("mask"),
    l: () => colour("logprob"),
    a: () => colour("advantage"),
    Escape: () => { location.hash = "#/"; },
  };
  if (!actions[event.key]) return;
  event.preventDefault();
  actions[event.key]();
}

history.scrollRestoration = "manual";
drawTop();
drawGlance();
drawCharts();
drawSteps();
drawTasks();
addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", () => overview.focus());
addEventListener("keydown", pressed);
viewer.addEventListener("pointerover", told);
viewer.addEventListener("click", told);
addEventListener("pagehide", keep);
if (DATA.refresh) setInterval(() => { if (!document.hidden && !view.page && getSelection().isCollapsed) refresh(); }, 1000 * DATA.refresh);
route().then(() => scrollTo(0, kept.scroll));
