'use strict';
// The page draws what the routes under /debug answer, and nothing else: each number that it shows is one of theirs (data-path
// says which), or a difference of two answers divided by the time between them.
const PERIOD_MS = 1000, HISTORY = 300, STEPS = 120;
const COLORS = ['var(--a)', 'var(--b)', 'var(--c)', 'var(--d)', 'var(--e)'];
const STATES = { reserved: 'var(--e)', free: 'var(--line)', held: 'var(--a)', cached: 'var(--c)', pending: 'var(--b)' };
const state = { window: '10s', group: 'op', paused: false, before: null, history: [], raw: {} };
const $ = (id) => document.getElementById(id);

function el(name, attributes, ...children) {
  const svg = ['svg', 'rect', 'path', 'line', 'text', 'title'].includes(name);
  const node = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  for (const child of children) node.append(child);
  return node;
}

function number(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  return value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
const ms = (seconds) => (seconds === null || seconds === undefined ? '–' : number(seconds * 1e3, 2));
const share = (part, whole) => (whole > 0 ? number((part / whole) * 100, 1) : '–');
function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; value >= 1024 && i < 4; i++) value /= 1024;
  return number(value, i ? 2 : 0) + ' ' + units[i];
}
function words(name) { return name.replaceAll('_', ' '); }

// A cell whose text is a number of an answer: path is where it stands there.
function cell(text, path) { return path ? el('td', { 'data-path': path }, text) : el('td', {}, text); }
function head(...names) { return el('tr', {}, ...names.map((name) => el('th', {}, name))); }
function legend(id, entries) {
  $(id).replaceChildren(...entries.map(([color, text]) => el('span', {}, el('i', { style: 'background:' + color }), text)));
}
function choices(id, names, current, pick) {
  $(id).replaceChildren(...names.map((name) => {
    const button = el('button', { type: 'button', 'aria-pressed': String(name === current()) }, words(name));
    button.onclick = () => { pick(name); choices(id, names, current, pick); draw(); };
    return button;
  }));
}

function lines(id, series, digits) {
  const svg = $(id), width = svg.clientWidth || 400, height = 120, left = 46, bottom = 100, top = 8;
  const points = state.history;
  let most = 0;
  for (const one of series) for (const point of points) most = Math.max(most, one.of(point) || 0);
  most = most || 1;
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  const x = (i) => left + ((width - left - 6) * (i + HISTORY - points.length)) / (HISTORY - 1);
  const y = (value) => bottom - ((bottom - top) * value) / most;
  const nodes = [0, 0.5, 1].map((part) => el('line', { x1: left, x2: width - 6, y1: y(most * part), y2: y(most * part) }));
  nodes.push(el('text', { x: left - 4, y: y(most) + 4, 'text-anchor': 'end' }, number(most, digits)));
  nodes.push(el('text', { x: left - 4, y: y(0) + 4, 'text-anchor': 'end' }, '0'));
  nodes.push(el('text', { x: left, y: height - 4 }, number((HISTORY * PERIOD_MS) / 60000, 0) + ' min ago'));
  nodes.push(el('text', { x: width - 6, y: height - 4, 'text-anchor': 'end' }, 'now'));
  series.forEach((one, k) => {
    let path = '', pen = 'M';
    points.forEach((point, i) => {
      const value = one.of(point);
      if (value === null || value === undefined) { pen = 'M'; return; }
      path += `${pen}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = 'L';
    });
    nodes.push(el('path', { d: path || 'M0 0', fill: 'none', stroke: COLORS[k], 'stroke-width': 1.6 }));
  });
  svg.replaceChildren(...nodes);
  legend('legend-' + id.slice(6), series.map((one, k) => [COLORS[k], one.name]));
}

function latencyOf(name, window) {
  const series = state.raw.latency && state.raw.latency.series.find((one) => one.name === name);
  return series ? series.windows[window] : null;
}

// What happened between two answers of /debug/status.
function rates(now, before) {
  const seconds = now.now_seconds - before.now_seconds;
  const busy = now.device_seconds.busy - before.device_seconds.busy;
  let idle = 0;
  for (const cause of Object.keys(now.device_seconds.idle))
    idle += now.device_seconds.idle[cause] - before.device_seconds.idle[cause];
  const tokens = now.tokens, last = before.tokens;
  const computed = tokens.prompt - last.prompt + tokens.generated - last.generated;
  const padded = tokens.padded - last.padded;
  return {
    generated: (tokens.generated - last.generated) / seconds, prompt: (tokens.prompt - last.prompt) / seconds,
    steps: (now.steps.decode + now.steps.mixed - before.steps.decode - before.steps.mixed) / seconds,
    busy: busy + idle > 0 ? busy / (busy + idle) : null, padding: computed + padded > 0 ? padded / (computed + padded) : null,
  };
}

function drawTiles() {
  const status = state.raw.status, rate = state.history.length ? state.history[state.history.length - 1].rate : null;
  const tiles = [
    ['generated tokens/s', number(rate && rate.generated, 0)], ['prompt tokens/s', number(rate && rate.prompt, 0)],
    ['running', number(status.requests.running, 0), 'status.requests.running'],
    ['waiting', number(status.requests.waiting, 0), 'status.requests.waiting'],
    ['swapped out', number(status.requests.swapped, 0), 'status.requests.swapped'],
    ['KV pages held, %', share(status.pages.held, status.pages.total)],
    ['steps/s', number(rate && rate.steps, 0)],
    ['device busy, %', rate && rate.busy !== null ? number(rate.busy * 100, 1) : '–'],
    ['padding, %', rate && rate.padding !== null ? number(rate.padding * 100, 1) : '–'],
  ];
  $('tiles').replaceChildren(...tiles.map(([name, text, path]) => el('div', { class: 'tile' },
    el('b', path ? { 'data-path': path } : {}, text), el('span', {}, name))));
  $('model').textContent = status.model;
  $('device').textContent = status.device;
  $('health').textContent = status.not_ready || 'ready';
  $('health').className = 'pill ' + (status.not_ready ? 'bad' : 'good');
  $('age').textContent = 'up ' + number(status.uptime_seconds, 0) + ' s';
}

function drawLatency() {
  const columns = ['mean', 'p50', 'p90', 'p95', 'p99', 'max'];
  const row = (series, name, path) => {
    const window = series.windows[state.window], at = `${path}.windows.${state.window}.`;
    return el('tr', {}, el('td', { title: series.meaning || '' }, name), cell(number(window.count, 0), at + 'count'),
      ...columns.map((column) => cell(ms(window[column]), at + column)));
  };
  const rows = state.raw.latency.series.map((series, i) => row(series, words(series.name), `latency.series.${i}`));
  state.raw.latency.steps.forEach((series, i) => rows.push(row(series,
    `step, ${series.decode ? 'decode' : 'mixed'} ${series.tokens} (${series.logit_rows} sampled)`, `latency.steps.${i}`)));
  $('latency').replaceChildren(head('milliseconds', 'count', ...columns), ...rows);
}

function drawSteps() {
  const steps = state.raw.steps.steps.slice(-STEPS), svg = $('steps'), width = svg.clientWidth || 800;
  svg.setAttribute('viewBox', `0 0 ${width} 92`);
  if (!steps.length) { svg.replaceChildren(); $('steps-note').textContent = 'no step in the last minute'; return; }
  const begin = Math.min(...steps.map((step) => step.plan)), end = Math.max(...steps.map((step) => step.read));
  const x = (time) => 60 + ((width - 66) * (time - begin)) / (end - begin || 1);
  const nodes = [el('text', { x: 0, y: 22 }, 'host'), el('text', { x: 0, y: 58 }, 'device')];
  const bar = (from, to, y, height, color, text) => {
    const rect = el('rect', { x: x(from).toFixed(2), y, width: Math.max(x(to) - x(from), 0.5).toFixed(2), height, fill: color });
    rect.append(el('title', {}, text));
    nodes.push(rect);
  };
  for (const step of steps) {
    const what = `step ${step.step}: ${step.rows} rows, ${step.tokens} tokens, ${step.padded_tokens} padded`;
    bar(step.plan, step.planned, 10, 16, COLORS[3], what + ', planned in ' + ms(step.planned - step.plan) + ' ms');
    bar(step.launch, step.launched, 10, 16, COLORS[1], what + ', launched in ' + ms(step.launched - step.launch) + ' ms');
    bar(step.begin, step.end, 42, 24, step.decode_only ? COLORS[0] : COLORS[2], what + ', ' + ms(step.end - step.begin) + ' ms');
  }
  nodes.push(el('text', { x: 60, y: 86 }, ms(begin) + ' ms'), el('text', { x: width - 6, y: 86, 'text-anchor': 'end' }, ms(end) + ' ms'));
  svg.replaceChildren(...nodes);
  $('steps-note').textContent = `the newest ${steps.length}; times are before now`;
  legend('legend-steps', [[COLORS[3], 'plan'], [COLORS[1], 'launch'], [COLORS[0], 'decode on the device'], [COLORS[2], 'with prompts']]);
}

function drawProfile() {
  const profile = state.raw.profile, all = profile.footer.self_ns;
  const rows = profile.rows.map((row, i) => {
    const path = `profile.rows.${i}.`;
    return el('tr', {}, el('td', {}, row.name), el('td', { class: 'text' }, row.layer || ''), el('td', { class: 'text' }, row.shape || ''),
      cell(number(row.calls, 0), path + 'calls'), cell(ms(row.self_ns * 1e-9), path + 'self_ns'), cell(share(row.self_ns, all)),
      cell(number(row.avg_ns / 1e3, 2), path + 'avg_ns'), cell(number(row.p99_ns === null ? null : row.p99_ns / 1e3, 2), path + 'p99_ns'),
      cell(row.bound || '–'), cell(number(row.roof_share === null || row.roof_share === undefined ? null : row.roof_share * 100, 1)));
  });
  $('profile').replaceChildren(head(profile.group_by, 'layer', 'shape', 'calls', 'self, ms', '%', 'mean, us', 'p99, us', 'bound', '% of roof'), ...rows);
  const foot = profile.footer;
  $('profile-note').textContent = `${number(foot.steps_stamped, 0)} steps with times of nodes, of ${number(foot.steps_seen, 0)}; one in ` +
    `${foot.stamped_one_in} of each bucket; not in a row: ${share(foot.unattributed_ns, foot.replay_ns)} %`;
}

const PHASES = [['queue', 'var(--b)'], ['prefill', 'var(--c)'], ['decode', 'var(--a)']];
function requestRow(request, path, longest) {
  const times = request.durations_seconds, worst = request.inter_token.worst, bar = el('div', { class: 'bar' });
  for (const [name, color] of PHASES)
    bar.append(el('i', { style: `width:${(100 * (times[name] || 0)) / longest}%;background:${color}`,
      title: `${name} ${ms(times[name])} ms` }));
  return el('tr', {}, el('td', { class: 'text' }, el('a', { href: '/debug/requests/' + encodeURIComponent(request.id) }, request.id)),
    el('td', {}, request.finish_reason || request.state), cell(number(request.tokens.prompt, 0), path + 'tokens.prompt'),
    cell(number(request.tokens.cached, 0), path + 'tokens.cached'), cell(number(request.tokens.output, 0), path + 'tokens.output'),
    cell(ms(times.time_to_first_token), path + 'durations_seconds.time_to_first_token'),
    cell(ms(times.total), path + 'durations_seconds.total'),
    cell(ms(worst ? worst.seconds : null), worst ? path + 'inter_token.worst.seconds' : null),
    el('td', { class: 'text' }, worst ? words(worst.cause) : '–'),
    cell(ms(request.device.seconds), path + 'device.seconds'), el('td', { class: 'text' }, bar));
}
function drawRequests() {
  const list = state.raw.requests.requests;
  const life = (request) => PHASES.reduce((sum, [name]) => sum + (request.durations_seconds[name] || 0), 0);
  const longest = Math.max(1e-9, ...list.map(life));
  const rows = list.map((request, i) => requestRow(request, `requests.requests.${i}.`, longest));
  $('requests').replaceChildren(head('id', 'finish', 'prompt', 'cached', 'answer', 'TTFT, ms', 'total, ms', 'worst gap, ms', 'because of',
    'device, ms', 'life'), ...rows);
  legend('legend-requests', PHASES.map(([name, color]) => [color, name]));
}

function drawIdle() {
  const device = state.raw.status.device_seconds;
  const causes = Object.entries(device.idle);
  const all = device.busy + causes.reduce((sum, [, seconds]) => sum + seconds, 0);
  $('idle').replaceChildren(head('device', 's', '%'),
    el('tr', {}, el('td', {}, 'busy'), cell(number(device.busy, 3), 'status.device_seconds.busy'), cell(share(device.busy, all))),
    ...causes.map(([cause, seconds]) => el('tr', {}, el('td', {}, 'idle: ' + words(cause)),
      cell(number(seconds, 3), 'status.device_seconds.idle.' + cause), cell(share(seconds, all)))));
}

function drawMemory() {
  const memory = state.raw.memory, kv = memory.kv;
  const rows = [];
  for (const where of ['device', 'host'])
    memory[where].owners.forEach((owner, i) => rows.push(el('tr', {}, el('td', {}, owner.name + (where === 'host' ? ' (host)' : '')),
      cell(bytes(owner.bytes), `memory.${where}.owners.${i}.bytes`), cell(bytes(owner.peak_bytes), `memory.${where}.owners.${i}.peak_bytes`))));
  for (const name of ['free', 'held', 'cached', 'peak_held'])
    rows.push(el('tr', {}, el('td', {}, 'pages ' + words(name)), cell(number(kv[name], 0), 'memory.kv.' + name), cell('')));
  $('memory').replaceChildren(head('owner', 'now', 'peak'), ...rows);
  const pages = kv.map.reduce((sum, run) => sum + run[1], 0), each = Math.max(1, Math.ceil(pages / 1600));
  const squares = [];
  let at = 0;
  for (const [first, count, name] of kv.map)
    for (; at < first + count; at += each) squares.push(el('i', { style: 'background:' + STATES[name], title: `page ${at}: ${name}` }));
  $('map').replaceChildren(...squares);
  legend('legend-map', Object.entries(STATES).map(([name, color]) => [color, name]).concat([['transparent', each + (each > 1 ? ' pages' : ' page') + ' a square']]));
}

function draw() {
  const raw = state.raw;
  if (!raw.status) return;
  drawTiles(); drawLatency(); drawSteps(); drawProfile(); drawRequests(); drawIdle(); drawMemory();
  lines('chart-rate', [{ name: 'generated', of: (p) => p.rate && p.rate.generated }, { name: 'prompt', of: (p) => p.rate && p.rate.prompt }], 0);
  lines('chart-tail', [{ name: 'p50 of 10 s', of: (p) => p.p50 }, { name: 'p99 of 10 s', of: (p) => p.p99 }], 2);
  lines('chart-batch', [{ name: 'running', of: (p) => p.running }, { name: 'waiting', of: (p) => p.waiting }], 0);
  lines('chart-pages', [{ name: 'held', of: (p) => p.held }, { name: 'cached', of: (p) => p.cached }], 1);
  $('raw').textContent = JSON.stringify(raw);
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
  document.body.dataset.dark = String(matchMedia('(prefers-color-scheme: dark)').matches);
  document.body.dataset.back = getComputedStyle(document.body).backgroundColor;
  document.body.dataset.overflow = String(document.documentElement.scrollWidth > document.documentElement.clientWidth);
}

/* The key of a server that has keys: from #key=..., which browsers do not send, or from the form. */
function takeKeyFromUrl() {
  if (!location.hash.startsWith('#key=')) return;
  sessionStorage.setItem('key', decodeURIComponent(location.hash.slice(5)));
  history.replaceState(null, '', location.pathname);
}

async function get(route) {
  const key = sessionStorage.getItem('key');
  const answer = await fetch(route, { cache: 'no-store', headers: key ? { Authorization: 'Bearer ' + key } : {} });
  $('login').hidden = answer.status !== 401;
  if (!answer.ok) throw new Error(`${route} answered ${answer.status}`);
  return answer.json();
}

async function poll() {
  const [status, latency, steps, profile, requests, memory] = await Promise.all([
    get('/debug/status'), get('/debug/latency?format=json'), get('/debug/steps?limit=' + STEPS),
    get('/debug/profile?format=json&row_limit=20&group_by=' + state.group), get('/debug/requests?slowest=20'), get('/debug/memory?map=1')]);
  state.raw = { status, latency, steps, profile, requests, memory };
  const itl = latencyOf('inter_token_latency', '10s') || {};
  const scaled = (value) => (value === null || value === undefined ? null : value * 1e3);
  state.history.push({
    rate: state.before ? rates(status, state.before) : null, p50: scaled(itl.p50), p99: scaled(itl.p99),
    running: status.requests.running, waiting: status.requests.waiting,
    held: (100 * status.pages.held) / (status.pages.total || 1), cached: (100 * status.pages.cached) / (status.pages.total || 1),
  });
  if (state.history.length > HISTORY) state.history.shift();
  state.before = status;
}

async function turn() {
  if (!state.paused) {
    try {
      await poll();
      draw();
      $('error').hidden = true;
    } catch (error) {
      $('error').hidden = false;
      $('error').textContent = 'The server did not answer: ' + error.message;
    }
  }
  setTimeout(turn, PERIOD_MS);
}

takeKeyFromUrl();
$('login').onsubmit = (event) => {
  event.preventDefault();
  sessionStorage.setItem('key', $('key').value);
};
document.body.append(el('script', { type: 'application/json', id: 'raw' }));
choices('windows', ['10s', '1m', '5m', 'total'], () => state.window, (name) => { state.window = name; });
choices('groups', ['op', 'layer', 'node', 'bucket', 'phase'], () => state.group, (name) => { state.group = name; });
$('pause').onclick = () => {
  state.paused = !state.paused;
  $('pause').textContent = state.paused ? 'Resume' : 'Pause';
};
turn();
