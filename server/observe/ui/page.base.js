'use strict';
// The page draws what the routes under /debug answer, and nothing else: each number that it shows is one of theirs (data-path
// says which), or a ratio or difference of numbers of theirs. Texts of answers become text nodes or attributes, never HTML.
const SVG = 'http://www.w3.org/2000/svg', SVG_NAMES = ['svg', 'g', 'rect', 'path', 'line', 'text', 'title'];
const state = {
  window: '10s', group: 'op', list: 'slowest', span: '120 steps', paused: false, raw: {},
  samples: [], sequence: 0, now: 0, cursor: null, // the cursor of all charts: end of a sample, seconds of the server's clock
  held: null, chosen: null, range: null,          // steps: the answer that is looked at, the chosen step, the times zoomed to
  request: null, record: 0, zoom: 'whole request',
};
const $ = (id) => document.getElementById(id);

function el(name, attributes, ...children) {
  const node = SVG_NAMES.includes(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  for (const child of children) node.append(child);
  return node;
}

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
function number(value, digits) {
  if (!known(value)) return '–';
  return value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
// About three digits, as a reader of a table wants them.
const digits = (value) => (!known(value) || value >= 100 ? 0 : value >= 10 ? 1 : 2);
const short = (value) => number(value, digits(value));
const ms = (seconds) => (known(seconds) ? number(seconds * 1e3, seconds >= 1 ? 0 : seconds >= 0.1 ? 1 : 2) : '–');
const share = (part, whole) => (whole > 0 ? number((part / whole) * 100, 1) : '–');
function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; value >= 1024 && i < 4; i++) value /= 1024;
  return number(value, i ? 2 : 0) + ' ' + units[i];
}
function duration(seconds) {
  if (seconds < 1e-3) return number(seconds * 1e6, 0) + ' µs';
  if (seconds < 1) return short(seconds * 1e3) + ' ms';
  if (seconds < 120) return short(seconds) + ' s';
  return seconds < 7200 ? number(seconds / 60, 0) + ' min' : number(seconds / 3600, 1) + ' h';
}
// The answers that the page shows, for whoever compares them with its numbers.
function keepRaw() { $('raw').textContent = JSON.stringify(state.raw); }
function words(name) { return name.replaceAll('_', ' '); }
const trim = (text) => text.replace(/(\.\d*?)0+(?=\D|$)/, '$1').replace(/\.(?=\D|$)/, '');
// The smallest of `factors` times a power of ten that is not below value.
const TICKS = [1, 2, 5, 10], TOPS = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];
function nice(value, factors) {
  const power = 10 ** Math.floor(Math.log10(value));
  return factors.find((factor) => factor * power >= value * (1 - 1e-9)) * power;
}

// A cell whose text is a number of an answer: path is where it stands there.
function cell(text, path, kind) {
  return el('td', { ...(path ? { 'data-path': path } : {}), ...(kind ? { class: kind } : {}) }, text);
}
function head(...names) {
  return el('thead', {}, el('tr', {}, ...names.map((name) => (Array.isArray(name) ? el('th', { class: name[1] }, name[0]) : el('th', {}, name)))));
}
function table(id, header, rows) { $(id).replaceChildren(header, el('tbody', {}, ...rows)); }
function legend(id, entries) {
  $(id).replaceChildren(...entries.map(([color, text, value]) => el('span', {}, el('i', { style: 'background:' + color }), text,
    ...(value === undefined ? [] : [el('b', {}, value)]))));
}
function choices(id, names, current, pick) {
  $(id).replaceChildren(...names.map((name) => {
    const button = el('button', { type: 'button', 'aria-pressed': String(name === current()), 'data-key': id + ':' + name }, words(name));
    button.onclick = () => keepFocus(() => { pick(name); choices(id, names, current, pick); });
    return button;
  }));
}

// What is drawn anew would lose the keyboard's focus: elements that can have it are found again by data-key.
function keepFocus(action) {
  const key = document.activeElement && document.activeElement.dataset.key;
  action();
  if (!key || (document.activeElement && document.activeElement.dataset.key === key)) return;
  const again = [...document.querySelectorAll('[data-key]')].find((node) => node.dataset.key === key);
  if (again) again.focus({ preventScroll: true });
}
const selecting = () => { const chosen = getSelection(); return chosen && !chosen.isCollapsed; };
