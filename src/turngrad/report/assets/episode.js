"use strict";
/* One episode as a conversation, token by token. */

const BREAKS = {
  history_rewrite: "the model's template rewrote earlier turns",
  length: "the output before it was cut by its token limit",
  contract_change: "the tool list changed at the head of the prompt",
  token_drift: "the renderer could not extend the exact tokens",
};
const BAD_CALLS = { unparsable: "could not be parsed", unknown_tool: "no such tool", invalid_arguments: "arguments do not fit the tool" };
const FOLD_TOKENS = 400;

/** The episodes of a page, parsed, in the order tasks and attempts have. */
const loaded = new Map();
async function episodesOf(page) {
  if (!loaded.has(page.key)) {
    const packed = Uint8Array.from(atob(page.data), (character) => character.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    const lines = (await new Response(stream).text()).split("\n").filter(Boolean);
    const episodes = lines.map((line) => JSON.parse(line));
    for (const episode of episodes) {
      const first = episode.turns[0];
      if (first && first.like !== undefined) first.context = episodes[first.like].turns[0].context;
    }
    episodes.sort((a, b) => a.task.localeCompare(b.task, undefined, { numeric: true }) || a.attempt - b.attempt);
    loaded.set(page.key, episodes);
  }
  return loaded.get(page.key);
}

function drawEpisode(episode) {
  const parts = [grade(episode), legend()];
  episode.turns.forEach((turn, index) => parts.push(...drawTurn(episode, turn, index)));
  if (!episode.turns.length) parts.push(el("p", { class: "hint" }, "No turn was recorded."));
  return el("article", { "aria-label": `${episode.task}, attempt ${episode.attempt}` }, ...parts);
}

function grade(episode) {
  const training = episode.advantage === null ? `did not train: ${episode.whyNot}` : `trained with advantage ${number(episode.advantage)}`;
  const rows = [
    episode.shaping ? ["shaping", number(episode.shaping)] : null,
    ["training", episode.advantage !== null && episode.whyNot ? `${training}; ${episode.whyNot}` : training],
    ["stopped", episode.stop],
    episode.excluded ? ["failure", episode.excluded] : null,
    episode.error ? ["error", episode.error] : null,
    ["sampled from", `${episode.snapshot}${episode.lag ? `, ${episode.lag} steps behind` : ""}`],
    ["took", `${number(episode.seconds, 1)} s, ${episode.turns.length} turns`],
    ...Object.entries(episode.info).filter(([, text]) => text !== "null"),
  ].filter(Boolean);
  return el(
    "section",
    { class: "grade", "aria-label": "Grade" },
    el("h3", {}, `${episode.task}, attempt ${episode.attempt}: reward ${episode.reward === null ? "none" : number(episode.reward)}`),
    el("dl", {}, ...rows.flatMap(([term, text]) => [el("dt", {}, term), el("dd", {}, el("pre", {}, String(text)))])),
  );
}

function legend() {
  const swatch = (className, style, text) => el("span", {}, el("span", { class: `tok ${className}`, ...style }, "token"), ` ${text}`);
  const kinds = {
    mask: [swatch("out trained", {}, "sampled, carries gradient"), swatch("out", {}, "sampled, carries none"), swatch("", {}, "context, masked")],
    logprob: [swatch("out", { "--v": 0 }, "sampled with probability 1"), swatch("out", { "--v": 0.5 }, "e^-2"), swatch("out", { "--v": 1 }, "e^-4 or less")],
    advantage: [swatch("out trained plus", { "--a": 1 }, "better than the group"), swatch("out trained minus", { "--a": 1 }, "worse"), swatch("", {}, "no gradient")],
  };
  return el("div", {}, ...Object.entries(kinds).map(([kind, swatches]) => el("div", { class: "legend", "data-kind": kind, "data-colour": kind }, ...swatches)));
}

function drawTurn(episode, turn, index) {
  const parts = [];
  if (turn.break) parts.push(el("p", { class: "break" }, `New segment before turn ${index + 1}: ${turn.break}, ${BREAKS[turn.break] || ""}.`));
  // What the template wrote to let the model speak stands before what it said.
  const last = turn.blocks[turn.blocks.length - 1];
  const opening = last && last[0] === "assistant" ? last[1] : 0;
  let place = 0;
  for (const [role, length] of opening ? turn.blocks.slice(0, -1) : turn.blocks) {
    const ids = turn.context.slice(place, place + length);
    place += length;
    const head = `${role}, ${length} tokens, masked`;
    const body = el("div", { class: "tokens" });
    const fill = () => body.childElementCount || body.append(...ids.map((id) => token(id)));
    if (length > FOLD_TOKENS) {
      const fold = el("details", { class: `message ${role}` }, el("summary", {}, head), body);
      fold.addEventListener("toggle", fill);
      parts.push(fold);
    } else {
      fill();
      parts.push(el("section", { class: `message ${role}`, "aria-label": head }, el("h3", {}, head), body));
    }
  }
  parts.push(drawAnswer(turn, index, turn.context.slice(place)), ...turn.calls.map(drawCall));
  return parts;
}

/** `opening` is the scaffold before the answer, which nobody sampled. */
function drawAnswer(turn, index, opening) {
  const sound = turn.logprobs.filter((value) => value !== null);
  const mean = sound.length ? `, mean logprob ${number(sound.reduce((sum, value) => sum + value, 0) / sound.length)}` : "";
  const trained = turn.untrainable ? `may not train: ${turn.untrainable}` : `${turn.trained} of ${turn.output.length} tokens trained`;
  const head = `assistant turn ${index + 1}, ${trained}${mean}, finished by ${turn.finish}, ${number(turn.seconds, 1)} s`;
  const tokens = opening.map((id) => token(id)).concat(turn.output.map((id, at) => token(id, turn.logprobs[at], at < turn.trained, turn.advantage)));
  return el("section", { class: "message assistant", "aria-label": head }, el("h3", {}, head), el("div", { class: "tokens" }, ...tokens));
}

/** One token; `logprob` is undefined for context. */
function token(place, logprob, trained, advantage) {
  const id = DATA.vocabulary[0][place];
  const text = DATA.vocabulary[1][place];
  const classes = ["tok"];
  const style = {};
  if (text === "") classes.push("part");
  else if (text.startsWith("\n")) classes.push("nl");
  if (/^<.*>$/.test(text)) classes.push("control");
  let told = `id ${id}, context: masked`;
  if (logprob !== undefined) {
    classes.push("out");
    style["--v"] = logprob === null ? 0 : Math.min(1, -logprob / 4);
    told = `id ${id}, logprob ${number(logprob)}${logprob === null ? "" : ` (probability ${number(Math.exp(logprob))})`}`;
    if (trained) {
      classes.push("trained", advantage > 0 ? "plus" : "minus");
      style["--a"] = Math.min(1, 0.35 + Math.abs(advantage) / 3);
      told += `, trained with advantage ${number(advantage)}`;
    } else told += ", no gradient";
  }
  return el("span", { class: classes.join(" "), "data-told": told, ...style }, text);
}

function drawCall(call) {
  const problem = call.bad ? `not executed: ${BAD_CALLS[call.bad] || call.bad}` : call.isError ? "error from the tool" : "";
  const told = problem ? el("span", { class: "bad" }, problem) : el("span", { class: "soft" }, `${call.seconds} s`);
  return el(
    "details",
    { class: "call" },
    // The tokens around it say the same; this is how it was parsed, and the result before it was cut.
    el("summary", {}, `call ${call.name ?? "(no name)"} `, told),
    el("pre", {}, call.arguments),
    el("pre", { class: "soft" }, call.result),
  );
}
