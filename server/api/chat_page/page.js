// What is around the messages: the list of conversations, the settings, the message field, keys.
const WIDE = matchMedia('(min-width: 1100px)'), MIDDLE = matchMedia('(min-width: 800px)');

function grow(area) {
  area.style.height = 'auto';
  area.style.height = Math.min(area.scrollHeight + 2, innerHeight * 0.4) + 'px';
}

/* --- Conversations ----------------------------------------------------------------------------- */

function openChat(chat) {
  state.chat = chat;
  state.editing = null;
  sessionStorage.setItem('chat', chat.id);
  fillSettings();
  draw();
  $('scroller').scrollTop = $('scroller').scrollHeight;
  follow(false);
}
function startChat() {
  openChat(newChat(state.chat ? state.chat.settings : {}));
  if (!MIDDLE.matches) showSide(false);
  $('input').focus();
}

function matches(chat, words) {
  return !words || titleOf(chat).toLowerCase().includes(words) || Object.values(chat.nodes).some((node) => node.content && node.content.toLowerCase().includes(words));
}
function dayOf(time) {
  const days = Math.floor((new Date().setHours(24, 0, 0, 0) - time) / 864e5);
  return days < 1 ? 'Today' : days < 2 ? 'Yesterday' : days < 8 ? 'Past week' : days < 31 ? 'Past month' : 'Earlier';
}
function drawChats() {
  const words = $('search').value.trim().toLowerCase(), rows = [];
  let day = '';
  for (const chat of [...state.chats.values()].filter((one) => matches(one, words)).sort((a, b) => b.updated - a.updated)) {
    if (dayOf(chat.updated) !== day) rows.push(el('li', { class: 'day muted' }, day = dayOf(chat.updated)));
    const current = state.chat && chat.id === state.chat.id;
    rows.push(el('li', { class: current ? 'current' : '' },
      el('button', { type: 'button', class: 'chat', 'data-key': 'chat:' + chat.id, 'aria-current': current ? 'true' : null, title: titleOf(chat),
        onclick: () => { openChat(chat); if (!MIDDLE.matches) showSide(false); } }, titleOf(chat)),
      el('button', { type: 'button', class: 'icon', 'aria-label': 'Rename ' + titleOf(chat), 'data-key': 'rename:' + chat.id, onclick: () => rename(chat) }, '✎'),
      el('button', { type: 'button', class: 'icon', 'aria-label': 'Delete ' + titleOf(chat), 'data-key': 'remove:' + chat.id, onclick: () => removeChat(chat) }, '✕')));
  }
  $('chats').replaceChildren(...(rows.length ? rows : [el('li', { class: 'muted day' }, words ? 'No conversation contains this.' : 'Conversations are kept in this browser.')]));
}
function rename(chat) {
  const title = prompt('Title of the conversation', titleOf(chat));
  if (title === null) return;
  chat.title = title.trim().slice(0, 200);
  store(chat);
  draw();
}
function removeChat(chat) {
  if (state.stream && state.stream.chat === chat) stopAnswer();
  forget(chat.id);
  if (state.chat === chat) startChat(); else draw();
  toast('Conversation deleted.', 'Undo', () => { store(chat); openChat(chat); });
}

function exportChats() {
  download('reprise-chats.json', JSON.stringify({ format: 'reprise-chats', version: 1, chats: [...state.chats.values()] }, null, 1));
}
function importChats(source) {
  let raw;
  try { raw = JSON.parse(source); } catch (error) { toast('The file is not JSON.'); return; }
  const chats = (Array.isArray(raw && raw.chats) ? raw.chats : [raw]).slice(0, CHATS_MAX).map(readChat).filter((chat) => chat && chat.nodes[ROOT].children.length);
  for (const chat of chats) {
    const updated = chat.updated;
    if (state.chats.has(chat.id)) chat.id = newId();
    store(chat);
    chat.updated = updated;
  }
  toast(chats.length ? `${number(chats.length)} conversation${chats.length > 1 ? 's' : ''} imported.` : 'The file contains no conversation.');
  if (chats.length) openChat(chats[0]);
}

/* --- Settings ---------------------------------------------------------------------------------- */

function makeSampling() {
  for (const [name, label, kind, least, most, step, hint] of SAMPLING) {
    const input = el('input', { id: 's-' + name, type: 'number', min: least, max: most, step: kind === 'integer' ? 1 : 'any', placeholder: 'default', inputmode: kind === 'integer' ? 'numeric' : 'decimal' });
    input.onkeydown = (event) => { // arrow keys by a useful step
      if (kind !== 'real' || !['ArrowUp', 'ArrowDown'].includes(event.key)) return;
      event.preventDefault();
      const value = (input.value === '' ? (least > 0 ? most : 0) : Number(input.value)) + (event.key === 'ArrowUp' ? step : -step);
      input.value = String(Number(Math.min(most, Math.max(least, value)).toFixed(3)));
      input.oninput();
    };
    input.oninput = () => setSetting(name, input.value === '' || !input.validity.valid ? null : Number(input.value), input);
    $('sampling').append(el('label', { title: hint }, label, input));
  }
  for (const name of TEXTS) {
    const field = $('s-' + name), apply = () => { setSetting(name, field.value, field); if (field.tagName === 'TEXTAREA') grow(field); };
    field.oninput = apply;
    if (field.tagName === 'SELECT') field.onchange = apply;
  }
}

function setSetting(name, value, field) {
  const settings = state.chat.settings;
  if (value === null || value === '') delete settings[name]; else settings[name] = value;
  field.setAttribute('aria-invalid', String(field.type === 'number' && !field.validity.valid));
  if (['schema', 'tools', 'extra'].includes(name)) checkJson(name);
  store(state.chat);
  drawChanged();
}
// Says beside the field what is wrong with its JSON.
function checkJson(name) {
  const field = $('s-' + name), value = state.chat.settings[name];
  let message = '';
  try {
    if (value && name === 'schema') formatOf(value);
    if (value && name === 'tools') toolsOf(value);
    if (value && name === 'extra') parseField('extra', value, isObject, 'The field of other parameters');
  } catch (error) { message = error.message; }
  let note = document.getElementById('e-' + name);
  if (!note) field.after(note = el('p', { id: 'e-' + name, class: 'error' }));
  note.textContent = message;
  note.hidden = !message;
  field.setAttribute('aria-invalid', String(Boolean(message)));
  field.setAttribute('aria-describedby', 'e-' + name);
}
function showFieldError(error) {
  toast(error.message);
  if (!error.field) return;
  showPanel(true);
  checkJson(error.field);
  $('s-' + error.field).focus();
}

function fillSettings() {
  for (const name of [...SAMPLING.map(([one]) => one), ...TEXTS]) {
    const value = state.chat.settings[name];
    $('s-' + name).value = value === undefined ? '' : value;
    if ($('s-' + name).tagName === 'TEXTAREA' && !$('panel').hidden) grow($('s-' + name));
  }
  for (const name of ['schema', 'tools', 'extra']) checkJson(name);
  drawChanged();
}
function drawChanged() {
  const count = Object.keys(state.chat.settings).length;
  $('changed').textContent = count ? String(count) : '';
  $('changed').hidden = !count;
  $('panel-open').setAttribute('aria-label', count ? `Settings, ${count} changed` : 'Settings');
}

/* --- The two sides ----------------------------------------------------------------------------- */

const prefs = () => { try { return JSON.parse(localStorage.getItem('reprise.page')) || {}; } catch (error) { return {}; } };
const setPref = (name, value) => { try { localStorage.setItem('reprise.page', JSON.stringify({ ...prefs(), [name]: value })); } catch (error) { /* full, or not allowed */ } };

function drawSides() {
  const side = !$('side').hidden, panel = !$('panel').hidden, over = (side && !MIDDLE.matches) || (panel && !WIDE.matches);
  document.body.classList.toggle('with-side', side);
  document.body.classList.toggle('with-panel', panel);
  $('side-open').setAttribute('aria-expanded', String(side));
  $('panel-open').setAttribute('aria-expanded', String(panel));
  $('shade').hidden = !over;
  $('center').inert = over;
  $('side').inert = over && panel && !WIDE.matches;
  placeAlternatives();
}
function showSide(on) {
  $('side').hidden = !on;
  if (on && !MIDDLE.matches) $('panel').hidden = true;
  if (MIDDLE.matches) setPref('side', on);
  drawSides();
  if (on && !MIDDLE.matches) $('new').focus();
}
function showPanel(on) {
  $('panel').hidden = !on;
  if (on && !MIDDLE.matches) $('side').hidden = true;
  if (WIDE.matches) setPref('panel', on);
  drawSides();
  if (on) { fillSettings(); $('s-system').focus(); } else $('panel-open').focus();
}
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $('theme').value = theme;
}

/* --- The message field ------------------------------------------------------------------------- */

function drawChrome(path) {
  const chat = state.chat, streaming = Boolean(state.stream);
  $('title').textContent = titleOf(chat);
  document.title = (chat.title ? chat.title + ' · ' : '') + (state.model ? state.model.id : 'reprise') + ' chat';
  $('model').textContent = state.model ? state.model.id : '';
  $('send').textContent = streaming ? 'Stop' : 'Send';
  $('send').setAttribute('aria-label', streaming ? 'Stop the answer' : 'Send');
  $('send').classList.toggle('stop', streaming);
  const last = [...path].reverse().find((node) => node.stats && node.stats.usage), most = state.model && state.model.max_model_len;
  const used = last && last.stats.usage.total_tokens;
  $('context').textContent = known(used) && known(most) ? `${number(used)} of ${number(most)} tokens of context` : '';
  $('context').className = known(used) && used > 0.9 * most ? 'error' : '';
  $('empty-note').textContent = state.model ? `${state.model.id} answers on this server${known(most) ? `, with a context of ${number(most)} tokens` : ''}. What you write goes to this server alone.` : '';
  drawChats();
  follow(false);
}

function send() {
  if (state.stream) { stopAnswer(); return; }
  const value = $('input').value;
  if (!value.trim() || !state.chat) return;
  if (!state.model) { loadModel(); return; }
  const chat = state.chat, node = addNode(chat, lastOf(chat).id, { role: 'user', content: value });
  if (!chat.title) chat.title = value.trim().replace(/\s+/g, ' ').slice(0, 80);
  $('input').value = '';
  sessionStorage.removeItem('draft');
  grow($('input'));
  store(chat);
  generate(chat, node.id);
}

async function loadModel() {
  try {
    const answer = await (await call('/v1/models')).json();
    state.model = answer.data[0];
    if ($('login').open) $('login').close();
    draw();
    $('input').focus();
  } catch (error) {
    if (error.status !== 401) toast('The server did not answer: ' + error.message, 'Try again', loadModel);
  }
}

/* --- Keys -------------------------------------------------------------------------------------- */

const KEYS = [['Enter', 'send the message'], ['Shift Enter', 'a new line'], ['Esc', 'stop the answer; close what is open'], ['↑ in an empty field', 'edit the last message'],
  ['Alt N', 'new conversation'], ['Alt H', 'list of conversations'], ['Alt S', 'settings'], ['Alt R', 'another answer'], ['Alt ↑ ↓', 'from message to message'],
  ['/', 'to the message field'], ['← → Enter', 'tokens: move, show alternatives'], ['?', 'this list']];

function moveMessage(step) {
  const all = [...document.querySelectorAll('article.message')], at = all.findIndex((one) => one.contains(document.activeElement));
  const next = all[at < 0 ? (step < 0 ? all.length - 1 : 0) : at + step];
  if (next) { next.focus(); next.scrollIntoView({ block: 'nearest' }); } else if (step > 0) $('input').focus();
}
function editLast() {
  const mine = pathOf(state.chat).filter((node) => node.role === 'user').pop();
  if (mine && !state.stream) { state.editing = mine.id; draw(); }
}
function onEscape() {
  if (hideAlternatives()) return;
  if (!WIDE.matches && !$('panel').hidden) showPanel(false);
  else if (!MIDDLE.matches && !$('side').hidden) { showSide(false); $('side-open').focus(); } else if (state.stream) stopAnswer();
  else if ($('panel').contains(document.activeElement)) showPanel(false);
}
function onKey(event) {
  if (document.querySelector('dialog[open]') || event.isComposing) return;
  const writing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === 'Escape') { event.preventDefault(); onEscape(); return; }
  if (!$('alternatives').hidden && ['ArrowDown', 'ArrowUp'].includes(event.key)) {
    const all = [...$('alternatives').querySelectorAll('button:not([disabled])')], next = all[all.indexOf(document.activeElement) + (event.key === 'ArrowDown' ? 1 : -1)];
    event.preventDefault();
    if (next) next.focus();
    return;
  }
  if (event.altKey && !event.ctrlKey && !event.metaKey) {
    const act = { KeyN: startChat, KeyH: () => showSide($('side').hidden), KeyS: () => showPanel($('panel').hidden), ArrowUp: () => moveMessage(-1), ArrowDown: () => moveMessage(1),
      KeyR: () => { const last = lastOf(state.chat); if (last.role === 'assistant') regenerate(last); } }[event.code];
    if (act) { event.preventDefault(); act(); }
    return;
  }
  if (writing || event.ctrlKey || event.metaKey) return;
  if (event.key === '/') { event.preventDefault(); $('input').focus(); }
  if (event.key === '?') { event.preventDefault(); $('help').showModal(); }
}

function wireComposer() {
  $('composer').onsubmit = (event) => { event.preventDefault(); send(); };
  $('input').oninput = () => { grow($('input')); sessionStorage.setItem('draft', $('input').value); };
  $('input').onkeydown = (event) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.altKey && !event.isComposing) { event.preventDefault(); if (!state.stream) send(); }
    if (event.key === 'ArrowUp' && !event.altKey && $('input').value === '') { event.preventDefault(); editLast(); }
  };
  $('input').value = sessionStorage.getItem('draft') || '';
  $('scroller').onscroll = () => { follow(false); placeAlternatives(); };
  $('down').onclick = () => { follow(true); $('input').focus(); };
}
function wireSides() {
  $('side-open').onclick = () => showSide($('side').hidden);
  $('side-close').onclick = () => { showSide(false); $('side-open').focus(); };
  $('panel-open').onclick = () => showPanel($('panel').hidden);
  $('panel-close').onclick = () => showPanel(false);
  $('shade').onclick = onEscape;
  $('new').onclick = startChat;
  $('search').oninput = drawChats;
  $('export').onclick = exportChats;
  $('import').onclick = () => $('file').click();
  $('file').onchange = async () => { if ($('file').files[0]) importChats(await $('file').files[0].text()); $('file').value = ''; };
  $('delete-all').onclick = () => {
    if (!state.chats.size || !confirm(`Delete all ${state.chats.size} conversations of this browser?`)) return;
    for (const id of [...state.chats.keys()]) forget(id);
    startChat();
  };
  $('reset').onclick = () => { state.chat.settings = {}; store(state.chat); fillSettings(); };
  $('theme').onchange = () => { setTheme($('theme').value); setPref('theme', $('theme').value); };
  $('help-open').onclick = () => $('help').showModal();
  $('keys').append(...KEYS.flatMap(([keys, what]) => [el('dt', {}, el('kbd', {}, keys)), el('dd', {}, what)]));
}

function start() {
  takeKeyFromUrl();
  makeSampling();
  wireComposer();
  wireSides();
  $('login').onsubmit = () => { sessionStorage.setItem('key', $('key').value); $('key').value = ''; loadModel(); };
  $('login').oncancel = (event) => event.preventDefault();
  setTheme(prefs().theme || '');
  $('side').hidden = !MIDDLE.matches || prefs().side === false;
  $('panel').hidden = !WIDE.matches || !prefs().panel;
  for (const query of [WIDE, MIDDLE]) query.onchange = () => {
    if (!WIDE.matches) $('panel').hidden = true;
    $('side').hidden = !MIDDLE.matches || prefs().side === false;
    drawSides();
  };
  drawSides();
  loadChats();
  openChat(state.chats.get(sessionStorage.getItem('chat')) || newChat({}));
  grow($('input'));
  addEventListener('keydown', onKey);
  addEventListener('click', (event) => { if (!event.target.closest('#alternatives, .token')) hideAlternatives(); });
  addEventListener('resize', () => { hideAlternatives(); if (!state.stream) draw(); }); // timelines have the width of the messages
  addEventListener('storage', (event) => { // another tab
    if (!event.key || !event.key.startsWith(PREFIX)) return;
    const shownChat = state.chat;
    loadChats();
    if (shownChat && state.chats.has(shownChat.id)) {
      if (state.stream || state.editing) state.chats.set(shownChat.id, shownChat); else state.chat = state.chats.get(shownChat.id);
    }
    draw();
  });
  // Until the end of an answer it is stored only here.
  addEventListener('pagehide', () => { if (state.stream) { state.stream.node.stopped = true; store(state.stream.chat); } });
  loadModel();
  $('input').focus();
}
start();
