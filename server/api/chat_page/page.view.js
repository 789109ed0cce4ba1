// Messages: their elements are kept by node, and a redraw changes what has changed.
const views = new Map(); // node id -> {root, body, thought}
const shown = (id, what) => (state.open.get(id) || new Set()).has(what);
function toggle(id, what) {
  const set = state.open.get(id) || new Set();
  if (!set.delete(what)) set.add(what);
  state.open.set(id, set);
  draw();
}

const button = (label, key, act, attributes) => el('button', { type: 'button', class: 'small', 'data-key': key, onclick: act, ...(attributes || {}) }, label);

// Redraws, and gives the focus back to the element with the same key.
function keepFocus(redraw) {
  const key = document.activeElement && document.activeElement.dataset.key;
  redraw();
  if (!key || (document.activeElement && document.activeElement.dataset.key === key)) return;
  const again = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (again) again.focus({ preventScroll: true });
}

function draw() {
  keepFocus(() => {
    const path = state.chat ? pathOf(state.chat) : [], messages = path.filter((node) => node.role !== 'tool');
    const wanted = messages.map((node) => {
      if (!views.has(node.id)) views.set(node.id, makeView(node));
      drawMessage(node, path);
      return views.get(node.id).root;
    });
    for (const [id, view] of views) if (!wanted.includes(view.root)) { view.root.remove(); views.delete(id); }
    wanted.forEach((root, i) => { if ($('messages').children[i] !== root) $('messages').insertBefore(root, $('messages').children[i] || null); });
    $('empty').hidden = messages.length > 0;
    drawChrome(path);
  });
}

let soon = 0;
function drawSoon() {
  if (soon) return;
  soon = setTimeout(() => {
    soon = 0;
    if (!state.stream || !views.has(state.stream.node.id)) return;
    const near = isNearEnd();
    keepFocus(() => drawMessage(state.stream.node, pathOf(state.stream.chat)));
    if (near) follow(true);
  }, 50);
}

const isNearEnd = () => $('scroller').scrollHeight - $('scroller').scrollTop - $('scroller').clientHeight < 80;
function follow(force) {
  if (force) $('scroller').scrollTop = $('scroller').scrollHeight;
  $('down').hidden = isNearEnd();
}

function makeView(node) {
  const view = { body: el('div', { class: node.role === 'user' ? 'plain' : 'md' }), thought: el('div', { class: 'md' }) };
  view.summary = el('summary', { 'data-key': 'think:' + node.id });
  view.think = el('details', { class: 'think', hidden: true }, view.summary, view.thought);
  view.calls = el('div', { class: 'calls' });
  view.rest = el('div', { class: 'rest' });
  view.root = el('article', { class: 'message ' + node.role, 'data-node': node.id, tabindex: -1,
    'aria-label': node.role === 'user' ? 'You' : 'Answer' }, view.think, view.body, view.calls, view.rest);
  return view;
}

function drawMessage(node, path) {
  const view = views.get(node.id), streaming = state.stream && state.stream.node === node;
  view.root.classList.toggle('streaming', Boolean(streaming));
  view.root.setAttribute('aria-busy', String(Boolean(streaming)));
  if (state.editing === node.id) drawEditor(node, view);
  else {
    if (view.editor) { view.editor.remove(); view.editor = null; }
    view.body.hidden = view.rest.hidden = false;
    drawThought(node, view, streaming);
    drawBody(node, view, streaming);
    drawCalls(node, view, path, streaming);
    drawRest(node, view, path, streaming);
  }
}

function drawThought(node, view, streaming) {
  view.think.hidden = !node.reasoning;
  if (!node.reasoning) return;
  const seconds = node.stats && node.stats.thought;
  view.summary.textContent = streaming && !node.content ? 'Thinking…' : known(seconds) && seconds >= 0.05 ? `Thought for ${duration(seconds)}` : 'Thoughts';
  drawMarkdown(view.thought, node.reasoning);
}

function drawBody(node, view, streaming) {
  if (node.role === 'user') { view.body.textContent = node.content; return; }
  const mode = !streaming && node.tokens && shown(node.id, 'tokens') ? 'tokens' : shown(node.id, 'source') ? 'source' : 'md';
  if (view.mode !== mode) { view.body.replaceChildren(); view.body.className = mode; view.mode = mode; view.drawn = null; }
  if (mode === 'md') drawMarkdown(view.body, node.content);
  else if (view.drawn !== node.content) {
    view.drawn = node.content;
    if (mode === 'source') view.body.replaceChildren(codeBlock(node.content, 'markdown'));
    else drawTokens(node, view.body);
  }
  view.body.classList.toggle('waiting', Boolean(streaming && !node.content && !node.reasoning && !(node.calls && node.calls.length)));
}

function drawEditor(node, view) {
  view.think.hidden = true;
  view.body.hidden = view.rest.hidden = true;
  if (view.editor) return;
  const area = el('textarea', { class: 'edit', 'aria-label': 'Edit the message', 'data-key': 'edit:' + node.id });
  area.value = node.content;
  const finish = (value) => { state.editing = null; if (value !== null) saveEdit(node, value); draw(); $('input').focus(); };
  area.onkeydown = (event) => {
    if (event.key === 'Escape') { event.stopPropagation(); finish(null); }
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey || (node.role === 'user' && !event.shiftKey)) && !event.isComposing) { event.preventDefault(); finish(area.value); }
  };
  area.oninput = () => grow(area);
  view.editor = el('div', {}, area, el('div', { class: 'actions' },
    button(node.role === 'user' ? 'Send' : 'Save', 'save', () => finish(area.value)), button('Cancel', 'cancel', () => finish(null))));
  view.root.append(view.editor);
  grow(area);
  area.focus();
}

// An edit is a new branch; one of a question is answered.
function saveEdit(node, value) {
  const chat = state.chat;
  if (value === node.content || !value.trim() || state.stream) return;
  const made = addNode(chat, node.parent, { role: node.role, content: value, ...(node.role === 'assistant' && { finish: 'edited', stopped: true }) });
  store(chat);
  if (node.role === 'user') generate(chat, made.id);
}

/* --- Calls of tools ---------------------------------------------------------------------------- */

function prettyJson(value) {
  try { return JSON.stringify(JSON.parse(value), null, 2); } catch (error) { return value; }
}
const idOf = (one, i) => one.id || 'call_' + i;

function drawCalls(node, view, path, streaming) {
  const calls = node.calls || [];
  if (!calls.length) { view.calls.replaceChildren(); view.cards = null; return; }
  const at = path.indexOf(node), results = new Map();
  for (let i = at + 1; i < path.length && path[i].role === 'tool'; i++) results.set(path[i].tool_call_id, path[i]);
  const mark = JSON.stringify([calls, [...results.values()].map((one) => [one.id, one.content]), streaming]);
  if (view.cards === mark) return;
  view.cards = mark;
  const areas = [];
  const cards = calls.map((one, i) => {
    const result = results.get(idOf(one, i)), card = el('div', { class: 'call' }, el('p', { class: 'name' }, 'calls ', el('b', {}, one.name || '…')),
      codeBlock(prettyJson(one.arguments || '{}'), 'json'));
    if (result) card.append(el('details', {}, el('summary', { 'data-key': 'result:' + result.id }, 'Result'), el('pre', { class: 'plain' }, result.content)));
    else if (!streaming) {
      const area = el('textarea', { rows: 2, class: 'code', placeholder: 'What the function returns', 'aria-label': `Result of ${one.name}`, 'data-key': `call:${node.id}:${i}` });
      area.oninput = () => grow(area);
      area.onkeydown = (event) => {
        if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        if (i + 1 < areas.length) areas[i + 1].focus(); else sendResults(node, areas);
      };
      areas.push(area);
      card.append(area);
    }
    return card;
  });
  if (areas.length) cards.push(el('div', { class: 'actions' }, button(areas.length > 1 ? 'Send the results' : 'Send the result', 'results:' + node.id, () => sendResults(node, areas), { class: 'primary' })));
  view.calls.replaceChildren(...cards);
}

function sendResults(node, areas) {
  if (state.stream) return;
  const empty = areas.find((area) => !area.value.trim());
  if (empty) { empty.focus(); toast('Each call needs a result.'); return; }
  let parent = node.id;
  node.calls.forEach((one, i) => {
    one.id = idOf(one, i);
    parent = addNode(state.chat, parent, { role: 'tool', tool_call_id: one.id, name: one.name, content: areas[i].value }).id;
  });
  store(state.chat);
  generate(state.chat, parent);
  $('input').focus();
}

/* --- Under a message: branches, actions, numbers ------------------------------------------------ */

function branches(node) {
  const all = state.chat.nodes[node.parent].children, at = all.indexOf(node.id);
  if (all.length < 2) return [];
  const go = (step) => { state.chat.nodes[node.parent].pick = all[(at + step + all.length) % all.length]; store(state.chat); draw(); focusBranch(node.parent, step); };
  const off = Boolean(state.stream);
  return [el('span', { class: 'branches' }, button('‹', 'before:' + node.parent, () => go(-1), { 'aria-label': 'Previous version', disabled: off }),
    el('span', {}, `${at + 1} / ${all.length}`), button('›', 'after:' + node.parent, () => go(1), { 'aria-label': 'Next version', disabled: off }))];
}
function focusBranch(parent, step) {
  const again = document.querySelector(`[data-key="${step < 0 ? 'before' : 'after'}:${CSS.escape(parent)}"]`);
  if (again) again.focus();
}

function regenerate(node) {
  if (!state.stream) generate(state.chat, node.parent);
}
function continueAnswer(node) {
  generate(state.chat, node.parent, { text: node.content, tokens: node.tokens && joined(node.tokens) === node.content ? [...node.tokens] : undefined });
}
function deleteMessage(node) {
  const chat = state.chat, before = JSON.stringify(chat.nodes);
  removeNode(chat, node.id);
  store(chat);
  draw();
  toast('Message deleted, with what followed it.', 'Undo', () => { chat.nodes = JSON.parse(before); store(chat); draw(); });
}

function drawRest(node, view, path, streaming) {
  if (streaming) { view.rest.replaceChildren(); return; }
  const id = node.id, off = Boolean(state.stream), pressed = (what) => ({ 'aria-pressed': String(shown(id, what)), disabled: off });
  const actions = [...branches(node)], copied = button('Copy', 'copy:' + id, () => copy(node.content, copied));
  if (node.content) actions.push(copied);
  if (node.role === 'assistant') {
    if (!node.error) actions.push(button('Again', 'again:' + id, () => regenerate(node), { title: 'Generate another answer', disabled: off }));
    if ((node.stopped || node.finish === 'length') && node.content && node === path[path.length - 1] && !node.error)
      actions.push(button('Continue', 'continue:' + id, () => continueAnswer(node), { disabled: off }));
  }
  if (node.content) actions.push(button('Edit', 'edit-open:' + id, () => { state.editing = id; draw(); }, { disabled: off }));
  if (node.role === 'assistant') {
    if (node.content) actions.push(button('Source', 'source:' + id, () => toggle(id, 'source'), pressed('source')));
    if (node.tokens) actions.push(button('Tokens', 'tokens:' + id, () => toggle(id, 'tokens'), pressed('tokens')));
    if (node.stats && node.stats.timing) actions.push(button('Timeline', 'timeline:' + id, () => toggle(id, 'timeline'), pressed('timeline')));
  }
  actions.push(button('Delete', 'delete:' + id, () => deleteMessage(node), { disabled: off }));
  view.rest.replaceChildren(...[
    node.error && el('p', { class: 'error', role: 'alert' }, node.error, ' ', button('Try again', 'retry:' + id, () => regenerate(node), { disabled: off })),
    el('div', { class: 'actions' }, actions), node.role === 'assistant' && statsLine(node),
    node.role === 'assistant' && shown(id, 'timeline') && node.stats && node.stats.timing && timeline(node)].filter(Boolean));
}

// [value, what, explanation] of an answer.
function statsOf(node) {
  const stats = node.stats || {}, usage = stats.usage, parts = [];
  if (usage && known(usage.completion_tokens)) {
    parts.push([number(usage.completion_tokens), 'tokens', 'tokens of the answer']);
    const seconds = stats.timing && known(stats.timing.decode_seconds) ? stats.timing.decode_seconds : stats.last - stats.first;
    const rate = (usage.completion_tokens - 1) / seconds;
    if (usage.completion_tokens > 1 && seconds > 0) parts.push([number(rate, rate < 100 ? 1 : 0), 'tokens/s', 'after the first token']);
  }
  if (known(stats.first)) parts.push([duration(stats.first), 'to the first token', 'from sending the request, as this page saw it']);
  if (usage && known(usage.prompt_tokens) && usage.prompt_tokens > 0) {
    const cached = usage.prompt_tokens_details && usage.prompt_tokens_details.cached_tokens;
    parts.push([number(usage.prompt_tokens), 'prompt tokens', 'the conversation, as the model reads it']);
    if (known(cached)) parts.push([percent(cached / usage.prompt_tokens), 'cached', `${number(cached)} of ${number(usage.prompt_tokens)} prompt tokens were found in the prefix cache`]);
  }
  const thought = usage && usage.completion_tokens_details && usage.completion_tokens_details.reasoning_tokens;
  if (known(thought) && thought > 0) parts.push([number(thought), 'of reasoning', 'tokens of the answer that are reasoning']);
  if (node.stopped) parts.push(['', node.finish === 'edited' ? 'edited' : 'stopped', 'by you']);
  else if (node.finish && node.finish !== 'stop') parts.push(['', node.finish === 'length' ? 'cut off at the length limit' : node.finish.replaceAll('_', ' '), 'why the answer ended']);
  return parts;
}
function statsLine(node) {
  const parts = statsOf(node);
  return parts.length ? el('p', { class: 'stats' }, parts.map(([value, what, title]) => el('span', { title }, value && el('b', {}, value), value ? ' ' : '', what))) : null;
}

function announce(node) {
  $('said').textContent = node.error ? 'The answer failed: ' + node.error : node.stopped ? 'The answer was stopped.'
    : node.calls && node.calls.length ? 'The model calls ' + node.calls.map((one) => one.name).join(', ') : 'The answer is complete.';
}
