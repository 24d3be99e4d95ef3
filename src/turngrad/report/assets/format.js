"use strict";
/* Making elements and numbers. Whatever comes from a run reaches the page through `textContent` alone. */

const DATA = JSON.parse(document.getElementById("data").textContent);

/** What a page that loads itself again keeps: where the reader was, and what was hidden, chosen and coloured. */
const kept = { scroll: 0, wanted: {}, hidden: {}, colour: "mask", ...(history.state || {}) };

function keep() {
  history.replaceState({ ...kept, scroll: scrollY }, "");
}

/** An element with attributes and children; a string child is text. */
function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("--")) node.style.setProperty(key, value);
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "-";
  return value.toFixed(digits);
}

function percent(value) {
  return value === null || value === undefined ? "-" : `${(100 * value).toFixed(1)} %`;
}

/** Terms and descriptions. */
function facts(className, pairs) {
  return el("dl", { class: className }, ...pairs.map(([term, text]) => el("div", {}, el("dt", {}, term), el("dd", {}, String(text)))));
}

function say(text) {
  document.getElementById("live").textContent = text;
}

function pageOf(key) {
  return DATA.pages.find((page) => page.key === key);
}

/** The name of run `number` before a title, where there are two. */
function labelled(run, text) {
  return DATA.runs[run].label ? `${DATA.runs[run].label}: ${text}` : text;
}
