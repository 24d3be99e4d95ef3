"use strict";
/* The head of the page, the table of steps and the table of tasks. */

function drawTop() {
  const top = document.getElementById("top");
  for (const run of DATA.runs) {
    const name = run.label ? `${run.label}: ${run.name}` : run.name;
    top.append(el("h1", {}, name), facts("facts", [["state", run.state], ...run.facts]));
    for (const note of run.notes) top.append(el("p", { class: "note" }, note));
  }
  top.append(el("p", { class: "hint" }, `Written ${DATA.written}${DATA.refresh ? `; loads itself again every ${DATA.refresh} s` : ""}.`));
}

function scrollable(label, table) {
  return el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": label }, table);
}

/** The figures that say how a run went, and with two runs how the second differs from the first. */
function drawGlance() {
  const host = document.getElementById("glance");
  const tiles = (figures) =>
    el("dl", { class: "tiles" }, ...figures.map((figure) =>
      el("div", {}, el("dt", {}, figure.title), el("dd", { class: "value" }, figure.value), el("dd", { class: figure.tone || "soft" }, figure.note))));
  DATA.summaries.forEach((figures, run) => {
    if (DATA.runs[run].label) host.append(el("h3", {}, `${DATA.runs[run].label}: ${DATA.runs[run].name}`));
    host.append(figures.length ? tiles(figures) : el("p", { class: "hint" }, "Nothing has been played yet."));
  });
  if (DATA.between.length) host.append(el("h3", {}, "A against B, last evaluations"), tiles(DATA.between));
}

/** A head that starts with `<` stands on the left, as its column does. */
function table(caption, heads, rows) {
  return el(
    "table",
    {},
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col", class: head.startsWith("<") ? "left" : null }, head.replace("<", ""))))),
    el("tbody", {}, ...rows),
  );
}

function drawSteps() {
  const heads = ["<step", "<", "reward", "spread or 95 %", "solved", "groups trained", "valid", "turns", "calls", "malformed", "tool errors", "sampled tokens", "seconds", "<"];
  DATA.runs.forEach((run) => {
    const rows = run.rows.map((row) => {
      const page = pageOf(row.key);
      const link = page ? el("a", { href: `#/${row.key}` }, String(row.step)) : String(row.step);
      const evaluation = row.kind !== "step";
      const ends = row.reward_ci95;
      const cells = [
        number(row.reward),
        evaluation ? (ends ? `${number(ends[0], 2)} to ${number(ends[1], 2)}` : "-") : number(row.reward_std_within_group),
        percent(evaluation ? row.pass_at_1 : row.solved),
        evaluation ? "" : `${row.kept_groups} of ${row.groups}`,
        evaluation ? String(row.samples) : `${row.valid_rollouts} of ${row.rollouts}`,
        number(row.turns_per_episode, 1),
        number(row.tool_calls_per_episode, 1),
        percent(row.bad_call_rate),
        evaluation ? "" : percent(row.tool_error_rate),
        evaluation ? "" : String(row.sampled_tokens),
        number(row.seconds, 1),
      ];
      const remarks = [row.updated === false ? `no update: ${row.why}` : "", row.lastError ? `last failure: ${row.lastError}` : ""];
      return el(
        "tr",
        { class: evaluation ? "evaluation" : null },
        el("th", { scope: "row" }, link),
        el("td", { class: "left" }, evaluation ? row.kind : "training"),
        ...cells.map((cell) => el("td", {}, cell)),
        el("td", { class: remarks.some(Boolean) ? "left long" : "left" }, remarks.filter(Boolean).join("; ")),
      );
    });
    const name = `Steps${run.label ? ` of run ${run.label}` : ""}`;
    if (run.label) document.getElementById("steps").append(el("h3", {}, `${run.label}: ${run.name}`));
    document.getElementById("steps").append(scrollable(name, table(name, heads, rows)));
  });
}

const VERDICTS = ["rises", "falls", "no clear trend", "never moves", "always right", "one visit", "lost"];

function drawTasks() {
  const host = document.getElementById("tasks");
  DATA.tasks.forEach((lines, run) => {
    const counts = VERDICTS.map((verdict) => [verdict, lines.filter((line) => line.verdict === verdict).length]).filter(([, n]) => n);
    const body = el("div", {});
    let wanted = kept.wanted[run] ?? null;
    const draw = () => {
      const rows = lines
        .filter((line) => wanted === null || line.verdict === wanted)
        .map((line) => {
          const cells = line.visits.map(([key, mean]) => {
            const title = `${pageOf(key).title}: ${mean === null ? "no sound attempt" : number(mean)}`;
            return el("a", { href: `#/${key}?task=${encodeURIComponent(line.task)}`, class: mean === null ? "none" : null, "--v": mean ?? 0, title, "aria-label": title });
          });
          const means = line.visits.map(([, mean]) => mean).filter((mean) => mean !== null);
          return el(
            "tr",
            {},
            el("th", { scope: "row", class: "left" }, line.task),
            el("td", { class: "left" }, line.kind),
            el("td", { class: "left" }, line.verdict),
            el("td", {}, number(means[0])),
            el("td", {}, number(means[means.length - 1])),
            el("td", {}, String(line.attempts)),
            el("td", {}, String(line.lost)),
            el("td", {}, el("div", { class: "visits" }, ...cells)),
          );
        });
      const heads = ["<task", "<in", "<verdict", "first", "last", "attempts", "lost", "<reward, visit by visit"];
      body.replaceChildren(scrollable("Tasks", table("Tasks", heads, rows)));
    };
    const buttons = [[null, lines.length], ...counts].map(([verdict, n]) =>
      el("button", { type: "button", "aria-pressed": String(verdict === wanted), onclick: (event) => {
        wanted = kept.wanted[run] = verdict;
        for (const button of event.target.parentNode.children) button.setAttribute("aria-pressed", String(button === event.target));
        draw();
      } }, `${verdict ?? "all"} ${n}`));
    if (DATA.runs[run].label) host.append(el("h3", {}, `${DATA.runs[run].label}: ${DATA.runs[run].name}`));
    host.append(el("div", { class: "filters", role: "group", "aria-label": "Which tasks" }, ...buttons), body);
    draw();
  });
}
