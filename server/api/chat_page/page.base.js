'use strict';
// A conversation is a tree: `nodes` by id, each with its parent, its children in order of creation, and `pick`, the child that is
// shown. Editing a message or generating an answer again adds a sibling, so nothing is lost. ROOT holds no message.
// Texts of models and files become text nodes, never HTML.
const ROOT = 'root', PREFIX = 'reprise.chat.', CHATS_MAX = 200, BYTES_MAX = 4 << 20, LOGPROBS_MAX = 4096;
const SVG = 'http://www.w3.org/2000/svg', SVG_NAMES = ['svg', 'g', 'rect', 'path', 'line', 'text', 'title'];
const state = {
  chats: new Map(), // id -> conversation, as stored
  chat: null,       // the conversation that is shown
  model: null,      // of /v1/models
  stream: null,     // the answer being received: {node, chat, abort}
  editing: null,    // id of the message that is being edited
  open: new Map(),  // node id -> which of its details are open: a set of names
};
const $ = (id) => document.getElementById(id);

function el(name, attributes, ...children) {
  const node = SVG_NAMES.includes(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith('on')) node[key] = value;
    else if (key.startsWith('--')) node.style.setProperty(key, value);
    else if (value === true) node.setAttribute(key, '');
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

const known = (value) => typeof value === 'number' && Number.isFinite(value);
const number = (value, digits = 0) => (known(value)
  ? value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits }) : '–');
const digitsOf = (value) => (value >= 100 ? 0 : value >= 10 ? 1 : 2);
const duration = (seconds) => (!known(seconds) ? '–' : seconds >= 1 ? number(seconds, digitsOf(seconds)) + ' s'
  : number(seconds * 1e3, digitsOf(seconds * 1e3)) + ' ms');
const percent = (share) => number(share * 100, share > 0 && share < 0.1 ? 1 : 0) + ' %';
const newId = () => Date.now().toString(36) + '-' + Math.random().toString(36).slice(2, 10);
const text = (value, most = 1 << 20) => (typeof value === 'string' ? value.slice(0, most) : '');

/* --- Settings: what is sent with every message of a conversation ------------------------------- */

// [name, label, kind, smallest, largest, step, explanation]; an empty field is not sent, so the model's default holds.
const SAMPLING = [
  ['temperature', 'Temperature', 'real', 0, 100, 0.1, '0 always takes the likeliest token'],
  ['top_p', 'Top p', 'real', 0.01, 1, 0.05, 'likeliest tokens with this total probability'],
  ['top_k', 'Top k', 'integer', 0, 1000000, 1, 'number of likeliest tokens; 0: all'],
  ['min_p', 'Min p', 'real', 0, 1, 0.05, 'least probability, relative to the likeliest token'],
  ['max_tokens', 'Max tokens', 'integer', 1, 16777216, 1, 'length of an answer'],
  ['seed', 'Seed', 'integer', 0, 9007199254740991, 1, 'the same seed gives the same answer'],
  ['presence_penalty', 'Presence penalty', 'real', -2, 2, 0.1, 'for tokens that occur in the answer'],
  ['frequency_penalty', 'Frequency penalty', 'real', -2, 2, 0.1, 'for each time that they occur'],
  ['repetition_penalty', 'Repetition penalty', 'real', 0.01, 100, 0.05, 'for tokens of prompt and answer; 1: off'],
];
const TEXTS = ['system', 'stop', 'schema', 'tools', 'extra', 'tool_choice', 'reasoning_effort', 'thinking', 'alternatives'];

/* --- Conversations ----------------------------------------------------------------------------- */

function newChat(settings) {
  const chat = { id: newId(), title: '', updated: Date.now(), settings: { ...(settings || {}) }, nodes: {} };
  chat.nodes[ROOT] = { id: ROOT, parent: null, children: [], pick: null };
  return chat;
}

function addNode(chat, parent, fields) {
  const node = { id: newId(), parent, children: [], pick: null, at: Date.now(), ...fields };
  chat.nodes[node.id] = node;
  chat.nodes[parent].children.push(node.id);
  chat.nodes[parent].pick = node.id;
  return node;
}

function pathOf(chat) {
  const path = [];
  for (let id = chat.nodes[ROOT].pick; id; id = chat.nodes[id].pick) path.push(chat.nodes[id]);
  return path;
}
const lastOf = (chat) => pathOf(chat).pop() || chat.nodes[ROOT];
const titleOf = (chat) => chat.title || 'New chat';

function removeNode(chat, id) {
  const node = chat.nodes[id], parent = chat.nodes[node.parent], at = parent.children.indexOf(id);
  parent.children.splice(at, 1);
  if (parent.pick === id) parent.pick = parent.children[Math.min(at, parent.children.length - 1)] || null;
  for (const stack = [id]; stack.length;) {
    const one = stack.pop();
    stack.push(...chat.nodes[one].children);
    delete chat.nodes[one];
  }
}

// A conversation from a file or from the storage: only known fields of the right type, and a tree. Null: not a conversation.
function readChat(raw) {
  if (!raw || typeof raw !== 'object' || !raw.nodes || typeof raw.nodes !== 'object' || !raw.nodes[ROOT]) return null;
  const chat = newChat();
  chat.id = /^[\w-]{1,64}$/.test(raw.id) ? raw.id : chat.id;
  chat.title = text(raw.title, 200);
  chat.updated = known(raw.updated) ? raw.updated : Date.now();
  const settings = raw.settings && typeof raw.settings === 'object' ? raw.settings : {};
  for (const [name] of SAMPLING) if (known(settings[name])) chat.settings[name] = settings[name];
  for (const name of TEXTS) if (settings[name]) chat.settings[name] = text(String(settings[name]));
  for (const stack = [[ROOT, raw.nodes[ROOT]]]; stack.length;) {
    const [id, from] = stack.pop(), node = chat.nodes[id];
    for (const child of Array.isArray(from.children) ? from.children : []) {
      const one = Object.hasOwn(raw.nodes, child) && raw.nodes[child];
      if (!one || Object.hasOwn(chat.nodes, child) || !/^[\w-]{1,64}$/.test(child)) continue;
      if (!['user', 'assistant', 'tool'].includes(one.role)) continue;
      chat.nodes[child] = { id: child, parent: id, children: [], pick: null, ...readMessage(one) };
      node.children.push(child);
      stack.push([child, one]);
    }
    node.pick = node.children.includes(from.pick) ? from.pick : node.children[node.children.length - 1] || null;
  }
  return chat;
}

function readMessage(one) {
  const node = { role: one.role, content: text(one.content), at: known(one.at) ? one.at : Date.now() };
  for (const name of ['reasoning', 'error', 'tool_call_id', 'name', 'finish']) if (one[name]) node[name] = text(one[name]);
  if (one.stopped) node.stopped = true;
  if (Array.isArray(one.calls))
    node.calls = one.calls.filter(Boolean).map((call) => ({ id: text(call.id), name: text(call.name), arguments: text(call.arguments) }));
  if (one.stats) node.stats = readStats(one.stats);
  if (Array.isArray(one.tokens)) node.tokens = one.tokens.slice(0, LOGPROBS_MAX).filter(isToken).map(readStoredToken);
  return node;
}

const isToken = (one) => one && typeof one.text === 'string' && known(one.logprob) && Array.isArray(one.bytes);
function readStoredToken(one) {
  const token = { text: text(one.text, 400), bytes: one.bytes.slice(0, 1000).map((byte) => byte & 255), logprob: one.logprob };
  if (Array.isArray(one.top)) token.top = one.top.slice(0, 20).filter(isToken).map(({ top, ...rest }) => readStoredToken(rest));
  if (known(one.allowed)) token.allowed = one.allowed;
  return token;
}

// The members of an object that are numbers, and have one of these names.
function numbersOf(from, ...names) {
  return Object.fromEntries(names.filter((name) => from && known(from[name])).map((name) => [name, from[name]]));
}
function readUsage(from) {
  return { ...numbersOf(from, 'prompt_tokens', 'completion_tokens', 'total_tokens'), prompt_tokens_details: numbersOf(from.prompt_tokens_details, 'cached_tokens'),
    completion_tokens_details: numbersOf(from.completion_tokens_details, 'reasoning_tokens') };
}
function readTiming(from) {
  const prompt = (Array.isArray(from.prompts) && from.prompts[0]) || {}, worst = (prompt.inter_token && prompt.inter_token.worst) || {};
  return { request_id: text(from.request_id, 200), ...numbersOf(from, 'receive_seconds', 'parse_seconds', 'tokenize_seconds', 'queue_seconds', 'prefill_seconds', 'decode_seconds',
    'device_seconds', 'energy_joules', 'cost'), ...numbersOf(prompt, 'steps'), worst: { ...numbersOf(worst, 'seconds'), cause: text(worst.cause, 100) },
    ...(from.worst && { worst: { ...numbersOf(from.worst, 'seconds'), cause: text(from.worst.cause, 100) } }), ...numbersOf(from, 'steps') };
}
function readStats(from) {
  const stats = { model: text(from.model, 300), ...numbersOf(from, 'first', 'last', 'total', 'thought', 'chunks') };
  if (from.request) stats.request = text(from.request, 200);
  if (from.usage) stats.usage = readUsage(from.usage);
  if (from.timing) stats.timing = readTiming(from.timing);
  return stats;
}

/* --- Storage: one entry for each conversation, so that several tabs do not overwrite each other -- */

let complained = false;
function store(chat) {
  chat.updated = Date.now();
  if (chat.nodes[ROOT].children.length === 0) return;
  state.chats.set(chat.id, chat);
  try {
    makeRoom(chat);
    localStorage.setItem(PREFIX + chat.id, JSON.stringify(chat));
  } catch (error) {
    if (complained) return;
    complained = true;
    toast('This browser keeps no more conversations: export or delete some.');
  }
}

// Token details go first, then whole conversations, the oldest first.
function makeRoom(chat) {
  const keys = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX) && key !== PREFIX + chat.id);
  let bytes = 2 * JSON.stringify(chat).length;
  for (const key of keys) bytes += 2 * localStorage.getItem(key).length;
  const old = keys.map((key) => state.chats.get(key.slice(PREFIX.length))).filter(Boolean).sort((a, b) => a.updated - b.updated);
  for (let left = keys.length + 1; old.length && (bytes > BYTES_MAX || left > CHATS_MAX); left--) {
    const one = old.shift();
    bytes -= 2 * localStorage.getItem(PREFIX + one.id).length;
    forget(one.id);
  }
  if (bytes > BYTES_MAX) for (const node of Object.values(chat.nodes)) delete node.tokens;
}

function forget(id) {
  state.chats.delete(id);
  localStorage.removeItem(PREFIX + id);
}

function loadChats() {
  state.chats.clear();
  for (const key of Object.keys(localStorage)) {
    if (!key.startsWith(PREFIX)) continue;
    try {
      const chat = readChat(JSON.parse(localStorage.getItem(key)));
      if (chat && PREFIX + chat.id === key) state.chats.set(chat.id, chat);
    } catch (error) {
      localStorage.removeItem(key); // not ours, or cut off
    }
  }
}

/* --- Small things ------------------------------------------------------------------------------ */

let toastTimer = 0;
function toast(message, action, act) {
  const button = action && el('button', { type: 'button', onclick: () => { $('toast').hidden = true; act(); } }, action);
  $('toast').replaceChildren(el('span', {}, message), ...(button ? [button] : []));
  $('toast').hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { $('toast').hidden = true; }, action ? 10000 : 4000);
}

async function copy(value, button) {
  try {
    await navigator.clipboard.writeText(value);
  } catch (error) { // without HTTPS there is no clipboard API
    const area = el('textarea', { class: 'offscreen', 'aria-hidden': 'true' });
    area.value = value;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  const label = button.textContent;
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = label; }, 1200);
  button.focus();
}

function download(name, value) {
  const url = URL.createObjectURL(new Blob([value], { type: 'application/json' }));
  el('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
