"use strict";
/* Drawing plotly's figures in the page's own colours. */

function drawCharts() {
  const host = document.getElementById("charts");
  const plots = DATA.charts.map((chart) => {
    const plot = el("div", { class: "plot", role: "img", "aria-label": `${chart.title}. ${chart.summary}` });
    host.append(el("figure", { class: "chart", "data-key": chart.key }, el("h3", {}, chart.title), legendOf(chart, plot), plot, el("figcaption", {}, chart.caption)));
    return plot;
  });
  // Only now: a plot takes the width that the grid has when all its cells are there.
  plots.forEach((plot, index) => {
    drawChart(DATA.charts[index], plot);
    plot.on("plotly_click", (event) => {
      const point = event.points.find((each) => each.customdata);
      if (point) location.hash = `#/${point.customdata}`;
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    plots.forEach((plot, index) => drawChart(DATA.charts[index], plot));
  });
}

/** The names of a chart's lines; a press on one hides or shows it. */
function legendOf(chart, plot) {
  const hidden = (kept.hidden[chart.key] ??= {});
  const entries = chart.figure.data.flatMap((trace, index) => {
    if (trace.showlegend === false) return [];
    trace.visible = !hidden[trace.name];
    const mark = { "--c": trace.marker?.pattern || !trace.line ? trace.marker.color : trace.line.color };
    const kind = trace.type === "bar" ? (trace.marker.pattern?.shape ? "swatch hatched" : "swatch") : `swatch line ${trace.line.dash}`;
    return [el("button", { type: "button", "aria-pressed": String(trace.visible), onclick: (event) => {
      hidden[trace.name] = trace.visible;
      trace.visible = !trace.visible;
      event.currentTarget.setAttribute("aria-pressed", String(trace.visible));
      drawChart(chart, plot);
    } }, el("span", { class: kind, ...mark }), trace.name)];
  });
  return el("div", { class: "names", role: "group", "aria-label": `Lines of ${chart.title}` }, ...entries);
}

function drawChart(chart, plot) {
  const style = getComputedStyle(document.body);
  const colour = (name) => {
    const probe = el("span", {});
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const axis = { gridcolor: colour("--line"), linecolor: colour("--line"), zerolinecolor: colour("--line"), automargin: true };
  const base = chart.figure.layout;
  const layout = {
    ...base,
    // A finger that moves over a plot scrolls the page.
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    font: { color: colour("--text"), family: style.fontFamily, size: 12 },
    hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { color: colour("--text") } },
    xaxis: { ...base.xaxis, ...axis },
    yaxis: { ...base.yaxis, ...axis },
  };
  Plotly.react(plot, chart.figure.data, layout, { responsive: true, displaylogo: false, displayModeBar: false });
}
