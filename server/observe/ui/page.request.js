// The waterfall of one request: each phase on the same line of time, its tokens, and what they cost.
const PHASES = [['queue', 'var(--b)'], ['prefill', 'var(--c)'], ['decode', 'var(--a)']];
const ROW = 26;

function requestPhases(record) {
  const stamps = record.stamps_seconds, chunks = record.prefill_chunks;
  const all = [
    ['receive', stamps.first_byte, stamps.received, 'var(--e)'], ['parse', stamps.received, stamps.parsed, 'var(--e)'],
    ['tokenize', stamps.parsed, stamps.tokenized, 'var(--d)'], ['queue', stamps.queued, stamps.admitted, 'var(--b)'],
    ...chunks.map((chunk, i) => [chunks.length > 1 ? `chunk ${i + 1}` : 'prefill', chunk.begin_seconds, chunk.end_seconds, 'var(--c)',
      `${number(chunk.tokens, 0)} tokens from ${number(chunk.start, 0)}`]),
    ['first token', stamps.admitted, stamps.first_token, 'var(--f)'], ['tokens', stamps.first_token, stamps.last_token, 'var(--a)'],
    ['write', known(stamps.closed) ? stamps.closed : stamps.last_token, stamps.written, 'var(--e)'],
  ];
  return all.filter(([, begin, end]) => known(begin) && known(end));
}

function drawWaterfall(record) {
  const svg = $('waterfall'), width = svg.clientWidth || 600, phases = requestPhases(record);
  const left = 76, right = 70, stamps = record.stamps_seconds, first = state.zoom !== 'whole request' && known(stamps.first_token);
  const end = Math.max(1e-6, first ? stamps.first_token : Math.max(...phases.map((phase) => phase[2])));
  const height = (phases.length + 1) * ROW, x = (time) => left + ((width - left - right) * Math.min(time, end)) / end;
  svg.style.height = height + 'px';
  const nodes = [], tick = nice(end / Math.max(2, Math.floor((width - left - right) / 110)), TICKS);
  for (let time = 0; time <= end * 1.0001; time += tick) {
    nodes.push(el('line', { x1: x(time), x2: x(time), y1: 0, y2: height - ROW + 4 }));
    nodes.push(el('text', { x: x(time), y: height - 8, 'text-anchor': 'middle' }, time ? trim(duration(time)) : '0'));
  }
  phases.forEach(([name, begin, stop, color, more], i) => {
    const y = i * ROW;
    nodes.push(el('text', { x: 0, y: y + 17 }, name));
    nodes.push(el('text', { x: width, y: y + 17, 'text-anchor': 'end' }, duration(stop - begin)));
    if (begin > end) return;
    const light = name === 'tokens' || name === 'first token';
    const rect = el('rect', { x: x(begin).toFixed(1), y: y + 5, width: Math.max(x(stop) - x(begin), 2).toFixed(1), height: ROW - 10, rx: 2, fill: color, 'fill-opacity': light ? 0.22 : 1 });
    rect.append(el('title', {}, `${name}: ${duration(stop - begin)}, from ${duration(begin)} to ${duration(stop)}${more ? '; ' + more : ''}`));
    nodes.push(rect);
    if (name === 'first token')
      nodes.push(el('rect', { x: (x(stop) - 2).toFixed(1), y: y + 3, width: 3, height: ROW - 6, fill: color }));
    if (name === 'tokens')
      for (const token of tokensOf(record))
        if (token.at <= end)
          nodes.push(el('rect', { x: (x(token.at) - 0.6).toFixed(1), y: y + 5, width: 1.2, height: ROW - 10, fill: token.worst ? 'var(--bad)' : color }));
  });
  svg.setAttribute('aria-label', phases.map(([name, begin, stop]) => `${name} ${duration(stop - begin)}`).join(', '));
  svg.replaceChildren(...nodes);
}

// Tokens with a time, each with the gap before it.
function tokensOf(record) {
  const times = record.token_seconds || [], worst = record.inter_token.worst;
  return times.map((at, i) => ({ at, gap: i ? at - times[i - 1] : null, worst: i > 0 && Math.abs(at - times[i - 1] - worst.seconds) < 2e-6 }));
}
function drawGaps(record) {
  const svg = $('gaps'), width = svg.clientWidth || 600, left = 44, bottom = 74, tokens = tokensOf(record).filter((token) => known(token.gap));
  const most = nice(Math.max(1e-6, ...tokens.map((token) => token.gap)), TOPS), each = (width - left - 4) / Math.max(tokens.length, 1);
  const nodes = [0, 1].map((part) => el('line', { x1: left, x2: width - 4, y1: bottom - 66 * part, y2: bottom - 66 * part }));
  nodes.push(el('text', { x: left - 6, y: 14, 'text-anchor': 'end' }, trim(short(most * 1e3))), el('text', { x: left - 6, y: bottom + 3, 'text-anchor': 'end' }, '0'));
  if (tokens.length) {
    nodes.push(el('text', { x: left, y: 88 }, 'token 2'), el('text', { x: left + each * tokens.length, y: 88, 'text-anchor': tokens.length > 20 ? 'end' : 'start' }, number(tokens.length + 1, 0)));
  }
  tokens.forEach((token, i) => {
    const height = (66 * token.gap) / most;
    const rect = el('rect', { x: (left + i * Math.min(each, 24)).toFixed(1), y: (bottom - height).toFixed(1), width: Math.max(Math.min(each, 24) - (each > 3 ? 1 : 0), 0.8).toFixed(1), height: height.toFixed(1), fill: token.worst ? 'var(--bad)' : 'var(--a)' });
    rect.append(el('title', {}, `token ${i + 2}: ${duration(token.gap)}`));
    nodes.push(rect);
  });
  svg.setAttribute('aria-label', `gaps between ${tokens.length + 1} tokens`);
  svg.replaceChildren(...nodes);
}

function drawRequestTables(record, path) {
  const times = record.durations_seconds, gaps = record.inter_token.seconds_by_cause;
  table('request-times', head('time', 'ms'), ['time_to_first_token', 'time_per_output_token', 'queue', 'prefill', 'decode', 'client_stall', 'total']
    .map((name) => el('tr', {}, el('td', {}, words(name)), cell(ms(times[name]), `${path}durations_seconds.${name}`))));
  const rows = [['device time, ms', ms(record.device.seconds), 'device.seconds'], ['steps', number(record.device.steps, 0), 'device.steps'],
    ['prompt tokens', number(record.tokens.prompt, 0), 'tokens.prompt'], ['of them cached', number(record.tokens.cached, 0), 'tokens.cached'],
    ['answer tokens', number(record.tokens.output, 0), 'tokens.output'], ['KV pages, most', number(record.memory.pages_peak, 0), 'memory.pages_peak'],
    ...Object.entries(gaps).filter(([, seconds]) => seconds > 0).map(([cause, seconds]) => [`between tokens: ${words(cause)}, ms`, ms(seconds), null])];
  table('request-costs', head('cost', ''), rows.map(([name, text, where]) => el('tr', {}, el('td', {}, name), cell(text, where && path + where))));
}

function drawRequest() {
  const answer = state.raw.request;
  if (!answer || !$('request').open) return;
  state.record = Math.min(state.record, answer.requests.length - 1);
  const record = answer.requests[state.record], worst = record.inter_token.worst;
  $('h-request').textContent = record.id;
  $('request-note').textContent = `${record.finish_reason || record.state}${record.error ? ' (' + record.error + ')' : ''}, ${record.route || 'no route'}, ` +
    `${record.params.stream ? 'streamed' : 'whole'}, ${number(record.tokens.prompt, 0)} tokens in (${number(record.tokens.cached, 0)} cached), ` +
    `${number(record.tokens.output, 0)} out` + (worst.cause ? `; worst gap ${duration(worst.seconds)} before token ${worst.token + 1}, because of: ${words(worst.cause)}` : '');
  const names = answer.requests.map((one, i) => `${i + 1}: prompt ${one.prompt_index}, answer ${one.choice_index}`);
  choices('records', names.length > 1 ? names : [], () => names[state.record], (name) => { state.record = names.indexOf(name); drawRequest(); });
  choices('zooms', ['whole request', 'until the first token'], () => state.zoom, (name) => { state.zoom = name; drawRequest(); });
  drawWaterfall(record);
  legend('legend-waterfall', [['var(--b)', 'waits'], ['var(--c)', 'prompt on the device'], ['var(--a)', 'tokens'], ['var(--bad)', 'after the worst gap'], ['var(--e)', 'network and parsing']]);
  drawGaps(record);
  drawRequestTables(record, `request.requests.${state.record}.`);
  keepRaw();
}

async function loadRequest() {
  if (state.request === null) return;
  const id = state.request, answer = await get('/debug/requests/' + encodeURIComponent(id));
  if (id !== state.request) return;
  state.raw.request = answer;
  if (!$('request').open) $('request').showModal();
  keepFocus(drawRequest);
}
async function openRequest(id) {
  state.request = id;
  state.record = 0;
  delete state.raw.request;
  try {
    await loadRequest();
  } catch (error) {
    closeRequest();
    showError(error);
  }
}
function closeRequest() {
  state.request = null;
  delete state.raw.request;
  $('request-times').replaceChildren();
  $('request-costs').replaceChildren();
  keepRaw();
  if ($('request').open) $('request').close();
}
// A link cannot send the key: fetched, then saved from memory.
async function save(format) {
  const id = state.request, answer = await get(`/debug/requests/${encodeURIComponent(id)}?format=${format}`);
  const url = URL.createObjectURL(new Blob([JSON.stringify(answer)], { type: 'application/json' }));
  el('a', { href: url, download: `${id.replace(/[^\w.-]/g, '_')}.${format}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
function startRequest() {
  $('request').onclose = () => { // later than the end of the dialog: something else may have the focus by then
    const id = state.request;
    closeRequest();
    // The browser may not yet have taken the focus from what the dialog held.
    if (document.activeElement === document.body || $('request').contains(document.activeElement)) refocus('request:' + id);
  };
  for (const [format, name] of [['json', 'Save as JSON'], ['perfetto', 'Save for Perfetto'], ['otlp', 'Save as OTLP']]) {
    const button = el('button', { type: 'button', 'data-key': 'save:' + format }, name);
    button.onclick = () => save(format).catch(showError);
    $('saves').append(button);
  }
}
function refocus(key) {
  const node = [...document.querySelectorAll('[data-key]')].find((one) => one.dataset.key === key);
  if (node) node.focus({ preventScroll: true });
}
