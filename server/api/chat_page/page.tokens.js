// The tokens of an answer with their probabilities, what else could have come, and the timeline of its request.
const decoded = (bytes) => new TextDecoder().decode(new Uint8Array(bytes));
const joined = (tokens) => decoded(tokens.flatMap((token) => token.bytes || []));
const visible = (value) => value.replaceAll('\n', '↵').replaceAll('\t', '⇥').replace(/^ | $/g, '·') || '∅';
const chance = (logprob) => Math.exp(logprob);
const chanceText = (logprob) => (chance(logprob) >= 0.0005 ? number(chance(logprob) * 100, 1) + ' %' : '< 0.05 %');

function drawTokens(node, body) {
  const group = el('div', { class: 'token-list', role: 'group', 'aria-label': 'tokens; arrow keys move, Enter shows alternatives' });
  node.tokens.forEach((token, i) => {
    const one = el('span', { class: 'token', role: 'button', tabindex: i ? -1 : 0, 'aria-haspopup': 'dialog', 'data-token': i,
      'aria-label': `${visible(token.text)}, ${chanceText(token.logprob)}`, '--doubt': `${Math.round((1 - chance(token.logprob)) * 60)}%` }, token.text.replaceAll('\n', '↵\n') || '∅');
    one.onclick = () => showAlternatives(node, i, one);
    group.append(one);
  });
  group.onkeydown = (event) => {
    const at = event.target.closest('.token');
    if (!at) return;
    const step = { ArrowRight: at.nextElementSibling, ArrowLeft: at.previousElementSibling, Home: group.firstElementChild, End: group.lastElementChild }[event.key];
    if (step) { event.preventDefault(); at.tabIndex = -1; step.tabIndex = 0; step.focus(); }
    if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); at.click(); }
  };
  const sum = node.tokens.reduce((all, token) => all + token.logprob, 0), allowed = node.tokens.filter((token) => known(token.allowed));
  const notes = [`perplexity ${number(Math.exp(-sum / Math.max(node.tokens.length, 1)), 2)}`];
  if (allowed.length) notes.push(`the grammar left one choice for ${number(allowed.filter((token) => token.allowed === 1).length)} of ${number(allowed.length)} tokens`);
  body.replaceChildren(group, el('p', { class: 'muted legend' }, el('i', { class: 'scale' }), 'likely to unlikely; ', notes.join('; '), '. Choose a token to see what else could have come.'));
}

function showAlternatives(node, i, anchor) {
  const token = node.tokens[i], box = $('alternatives'), all = token.top.some((one) => one.text === token.text) ? token.top : [...token.top, token];
  const can = node.content.startsWith(joined(node.tokens.slice(0, i + 1)));
  const rows = all.map((one) => {
    const chosen = one.text === token.text;
    return el('button', { type: 'button', class: 'alternative' + (chosen ? ' chosen' : ''), disabled: !can || Boolean(state.stream),
      title: chosen ? 'the answer goes on with this token' : 'continue the answer with this token instead',
      onclick: () => { hideAlternatives(); if (!chosen) branchAt(node, i, one); else anchor.focus(); } },
    el('code', {}, visible(one.text)), el('span', { class: 'meter' }, el('i', { '--part': `${chance(one.logprob) * 100}%` })), el('span', { class: 'value' }, chanceText(one.logprob)));
  });
  const rank = token.top.filter((one) => one.logprob > token.logprob).length;
  box.replaceChildren(el('p', { class: 'muted' }, `Token ${number(i + 1)} of ${number(node.tokens.length)}`, rank ? `, not among the first ${number(rank)} choices` : '',
    known(token.allowed) ? `; the grammar allowed ${token.allowed === 1 ? 'only this token' : number(token.allowed) + ' tokens'}` : ''), ...rows,
    el('p', { class: 'muted' }, can ? `Choose another to continue the answer from there${state.chat.settings.schema ? ', without the schema' : ''}.` : 'The answer cannot be continued here.'));
  box.hidden = false;
  box.anchor = anchor;
  placeAlternatives();
  for (const one of document.querySelectorAll('.token.at')) one.classList.remove('at');
  anchor.classList.add('at');
  const first = box.querySelector('button:not([disabled])');
  if (first) first.focus(); else { box.tabIndex = -1; box.focus(); }
}
// Below the token, or above it where there is more room; while the messages scroll it moves along.
function placeAlternatives() {
  const box = $('alternatives');
  if (box.hidden) return;
  const at = box.anchor.getBoundingClientRect(), width = box.offsetWidth, height = box.offsetHeight, view = $('scroller').getBoundingClientRect();
  if (!box.anchor.isConnected || at.bottom < view.top || at.top > view.bottom) { box.hidden = true; return; }
  const below = at.bottom + 6 + height < innerHeight;
  box.style.left = Math.max(8, Math.min(at.left, innerWidth - width - 8)) + 'px';
  box.style.top = Math.max(8, below ? at.bottom + 6 : at.top - height - 6) + 'px';
}
function hideAlternatives() {
  const box = $('alternatives');
  if (box.hidden) return false;
  box.hidden = true;
  for (const one of document.querySelectorAll('.token.at')) one.classList.remove('at');
  if (box.anchor && box.anchor.isConnected) box.anchor.focus();
  return true;
}
// A new answer: what came before token i, then the alternative, then what the model makes of it.
function branchAt(node, i, alternative) {
  const tokens = [...node.tokens.slice(0, i), { ...alternative, top: node.tokens[i].top }], bytes = tokens.flatMap((token) => token.bytes);
  state.open.set(node.id, new Set());
  generate(state.chat, node.parent, { text: decoded(bytes), tokens });
}

/* --- The timeline of a request ----------------------------------------------------------------- */

const ROW = 24;
// Phases one after the other, from the answer's `timing`; with the request's record the moments are known.
function phasesOf(timing, record) {
  if (record) {
    const at = record.stamps_seconds, chunks = record.prefill_chunks || [];
    return [['receive', at.first_byte, at.received, 'e'], ['tokenize', at.received, at.tokenized, 'd'], ['queue', at.queued, at.admitted, 'b'],
      ...chunks.map((chunk, i) => [chunks.length > 1 ? `prefill ${i + 1}` : 'prefill', chunk.begin_seconds, chunk.end_seconds, 'c', chunk.tokens]),
      ['tokens', at.first_token, at.last_token, 'a']].filter(([, begin, end]) => known(begin) && known(end));
  }
  let time = 0;
  const row = (name, seconds, color) => { const begin = time; time += seconds || 0; return [name, begin, time, color]; };
  return [row('receive', timing.receive_seconds, 'e'), row('tokenize', (timing.parse_seconds || 0) + (timing.tokenize_seconds || 0), 'd'), row('queue', timing.queue_seconds, 'b'),
    row('prefill', timing.prefill_seconds, 'c'), row('tokens', timing.decode_seconds, 'a')];
}

function timelineSvg(phases, record) {
  const width = Math.max(280, Math.min(760, $('messages').clientWidth - 32)), left = 70, right = 72, height = phases.length * ROW;
  const end = Math.max(1e-6, ...phases.map((phase) => phase[2])), x = (time) => left + ((width - left - right) * time) / end;
  const svg = el('svg', { viewBox: `0 0 ${width} ${height}`, class: 'timeline', role: 'img',
    'aria-label': phases.map(([name, begin, stop]) => `${name} ${duration(stop - begin)}`).join(', ') });
  phases.forEach(([name, begin, stop, color, tokens], i) => {
    const y = i * ROW, rect = el('rect', { x: x(begin).toFixed(1), y: y + 4, width: Math.max(x(stop) - x(begin), 2).toFixed(1), height: ROW - 8, rx: 2,
      class: 'f-' + color, 'fill-opacity': name === 'tokens' && record ? 0.25 : 1 });
    rect.append(el('title', {}, `${name}: from ${duration(begin)} to ${duration(stop)}${known(tokens) ? `, ${number(tokens)} tokens` : ''}`));
    svg.append(el('line', { x1: left, x2: width - right, y1: y + ROW / 2, y2: y + ROW / 2 }), rect, el('text', { x: 0, y: y + 16 }, name), el('text', { x: width, y: y + 16, 'text-anchor': 'end' }, duration(stop - begin)));
    if (name !== 'tokens' || !record) return;
    const worst = record.inter_token && record.inter_token.worst, times = record.token_seconds || [];
    times.forEach((time, k) => svg.append(el('rect', { x: (x(time) - 0.6).toFixed(1), y: y + 4, width: 1.2, height: ROW - 8,
      class: k && worst && Math.abs(time - times[k - 1] - worst.seconds) < 2e-6 ? 'f-bad' : 'f-a' })));
  });
  return svg;
}

const records = new Map(); // request id -> its record, or null where /debug/requests is not served
async function loadRecord(id) {
  if (records.has(id) || !id) return;
  records.set(id, null);
  if (records.size > 50) records.delete(records.keys().next().value);
  try {
    const answer = await (await call('/debug/requests/' + encodeURIComponent(id))).json();
    records.set(id, answer.requests ? answer.requests[0] : answer);
    draw();
  } catch (error) { /* not an operator's listener, or the record is gone: the timing remains */ }
}

function timeline(node) {
  const timing = node.stats.timing, id = timing.request_id || node.stats.request, record = records.get(id);
  if (Date.now() - node.at < 3600e3) loadRecord(id); // the server keeps a number of records, the newest
  const worst = timing.worst, notes = [];
  if (known(timing.device_seconds)) notes.push(`device time ${duration(timing.device_seconds)}`);
  if (worst && known(worst.seconds)) notes.push(`longest wait for a token ${duration(worst.seconds)}${worst.cause ? ` (${worst.cause.replaceAll('_', ' ')})` : ''}`);
  if (known(timing.steps)) notes.push(`${number(timing.steps)} steps`);
  if (known(timing.energy_joules)) notes.push(`${number(timing.energy_joules, 1)} J`);
  if (known(timing.cost)) notes.push(`cost ${timing.cost.toPrecision(2)}`);
  return el('div', { class: 'timing' }, timelineSvg(phasesOf(timing, record), record),
    el('p', { class: 'muted' }, notes.join('; '), '. Request ', el('code', {}, String(id))));
}
