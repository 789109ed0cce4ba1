const PERIOD_MS = 1000;
const STATES = { reserved: 'var(--e)', free: 'var(--line)', held: 'var(--a)', cached: 'var(--c)', pending: 'var(--b)' };
const LISTS = { slowest: 'slowest=12', 'first token': 'slowest=12&sort=ttft', 'worst gap': 'slowest=12&sort=itl', 'longest queue': 'slowest=12&sort=queue',
  newest: 'recent=12', open: 'slowest=12&finish=open' };
// A verdict's color: the device is used well, something can be gained, nothing is wrong.
const TONES = { memory_bound: 'var(--good)', compute_bound: 'var(--good)', starved: 'var(--a)', unknown: 'var(--e)' };

function drawVerdict() {
  const diagnose = state.raw.diagnose, status = state.raw.status, failed = status.not_ready;
  if (!diagnose) return;
  const numbers = diagnose.numbers, verdict = words(diagnose.verdict);
  $('verdict').style.setProperty('--tone', failed ? 'var(--bad)' : TONES[diagnose.verdict] || 'var(--b)');
  $('h-verdict').textContent = failed ? 'not ready' : verdict;
  $('verdict-summary').textContent = failed || diagnose.summary[0].toUpperCase() + diagnose.summary.slice(1) + '.';
  $('verdict-limit').textContent = `Over ${number(numbers.window_seconds, 0)} s: ${number(numbers.steps, 0)} steps of ${number(numbers.tokens_per_step, 1)} tokens and ` +
    `${duration(numbers.step_seconds)}, ${duration(numbers.host_seconds_per_step)} of the host each` +
    (diagnose.device_limit !== 'unknown' && diagnose.device_limit !== diagnose.verdict ? `. The device itself is ${words(diagnose.device_limit)}.` : '.');
  $('verdict-list').replaceChildren(...diagnose.next.map((text) => el('li', {}, text)));
  const parts = [['busy', numbers.busy_share, 'var(--a)'], ...Object.entries(numbers.idle_share).map(([cause, part]) => ['idle: ' + words(cause), part, idleColor(cause)])]
    .filter(([, part]) => part >= 0.0005);
  $('time-bar').replaceChildren(...parts.map(([name, part, color]) => el('i', { style: `width:${part * 100}%;background:${color}`, title: `${name} ${number(part * 100, 1)} %` })));
  $('time-bar').setAttribute('aria-label', "the device's time");
  legend('legend-time', parts.map(([name, part, color]) => [color, name, number(part * 100, 1) + ' %']));
  const shown = (value, unit) => (unit === 'share' ? number(value * 100, 1) + ' %' : short(value));
  table('evidence', head('evidence', 'value', 'limit', ['for', 'text']), diagnose.evidence.map((one) => el('tr', {}, el('td', {}, (one.holds ? '✓ ' : '– ') + one.what),
    cell(shown(one.value, one.unit)), cell(`${one.compared} ${shown(one.threshold, one.unit)}`), cell(words(one.speaks_for), null, 'text'))));
  document.title = `${failed ? 'not ready' : verdict} · ${status.model}`;
}

function drawTiles() {
  const status = state.raw.status, last = state.samples[state.samples.length - 1], latency = state.raw.latency.series;
  const percentile = (series, name, title) => {
    const i = latency.findIndex((one) => one.name === series);
    return [title, ms(latency[i].windows['10s'][name]), `latency.series.${i}.windows.10s.${name}`];
  };
  const computed = last && last.tokens.prompt + last.tokens.generated + last.tokens.padded;
  const tiles = [
    percentile('time_to_first_token', 'p50', 'TTFT p50, ms'), percentile('time_to_first_token', 'p99', 'TTFT p99, ms'),
    percentile('inter_token_latency', 'p50', 'inter-token p50, ms'), percentile('inter_token_latency', 'p99', 'inter-token p99, ms'),
    ['generated tokens/s', number(last && last.tokens.generated / last.seconds, 0)], ['prompt tokens/s', number(last && last.tokens.prompt / last.seconds, 0)],
    ['running', number(status.requests.running, 0), 'status.requests.running'], ['waiting', number(status.requests.waiting, 0), 'status.requests.waiting'],
    ['device busy, %', last ? share(last.device_seconds.busy, deviceTime(last)) : '–'],
    ['KV pages held, %', share(status.pages.held, status.pages.total)],
    ['steps/s', number(last && (last.steps.decode + last.steps.mixed) / last.seconds, 0)],
    ['padding, %', last ? share(last.tokens.padded, computed) : '–'],
  ];
  if (status.power && known(status.power.watts)) tiles.push(['watts', number(status.power.watts, 0), 'status.power.watts']);
  $('tiles').replaceChildren(...tiles.map(([name, text, path]) => el('div', { class: 'tile' }, el('b', path ? { 'data-path': path } : {}, text), el('span', {}, name))));
  $('model').textContent = status.model;
  $('device').textContent = status.device;
  $('device').title = status.device;
  $('health').textContent = status.not_ready || 'ready';
  $('health').className = 'pill ' + (status.not_ready ? 'bad' : 'good');
  $('age').textContent = 'up ' + duration(status.uptime_seconds);
}

function drawLatency() {
  const columns = ['p50', 'p99', 'mean', 'p90', 'p95', 'max'];
  const row = (series, name, path) => {
    const window = series.windows[state.window], at = `${path}.windows.${state.window}.`;
    return el('tr', {}, el('td', { title: series.meaning || '' }, name), ...columns.map((column) => cell(ms(window[column]), at + column)),
      cell(number(window.count, 0), at + 'count'));
  };
  const rows = state.raw.latency.series.map((series, i) => row(series, words(series.name), `latency.series.${i}`));
  state.raw.latency.steps.forEach((series, i) => {
    if (series.windows[state.window].count)
      rows.push(row(series, `step, ${series.decode ? 'decode' : 'mixed'} ${series.tokens} (${series.logit_rows} sampled)`, `latency.steps.${i}`));
  });
  table('latency', head('', ...columns, 'count'), rows);
}

function drawProfile() {
  const profile = state.raw.profile;
  if (!profile) return;
  const all = profile.footer.self_ns, foot = profile.footer;
  const rows = profile.rows.map((row, i) => {
    const path = `profile.rows.${i}.`;
    return el('tr', {}, el('td', {}, row.name), cell(share(row.self_ns, all)), cell(ms(row.self_ns * 1e-9), path + 'self_ns'), cell(number(row.calls, 0), path + 'calls'),
      cell(number(row.avg_ns / 1e3, 2), path + 'avg_ns'), cell(number(row.p99_ns === null ? null : row.p99_ns / 1e3, 2), path + 'p99_ns'),
      cell(row.bound || '–'), cell(number(known(row.roof_share) ? row.roof_share * 100 : null, 1)), cell(row.layer || '', null, 'text'), cell(row.shape || '', null, 'text'));
  });
  table('profile', head(profile.group_by, '%', 'self, ms', 'calls', 'mean, µs', 'p99, µs', 'bound', '% of roof', ['layer', 'text'], ['shape', 'text']), rows);
  $('profile-note').textContent = `${number(foot.steps_stamped, 0)} steps with times of nodes, of ${number(foot.steps_seen, 0)}; one in ` +
    `${foot.stamped_one_in} of each bucket; not in a row: ${share(foot.unattributed_ns, foot.replay_ns)} %`;
}

function requestRow(request, path, longest) {
  const times = request.durations_seconds, worst = request.inter_token.worst, bar = el('div', { class: 'bar' });
  for (const [name, color] of PHASES)
    bar.append(el('i', { style: `width:${(100 * (times[name] || 0)) / longest}%;background:${color}`, title: `${name} ${ms(times[name])} ms` }));
  const button = el('button', { type: 'button', class: 'link id', title: request.id, 'data-key': 'request:' + request.id }, request.id);
  const row = el('tr', {}, el('td', {}, button), cell(ms(times.time_to_first_token), path + 'durations_seconds.time_to_first_token'),
    cell(ms(times.total), path + 'durations_seconds.total'), el('td', { class: 'text' }, bar), cell(ms(worst.seconds), path + 'inter_token.worst.seconds', 'extra'),
    cell(worst.cause ? words(worst.cause) : '–', null, 'text extra'), cell(number(request.tokens.prompt, 0), path + 'tokens.prompt', 'extra'),
    cell(number(request.tokens.cached, 0), path + 'tokens.cached', 'extra'), cell(number(request.tokens.output, 0), path + 'tokens.output', 'extra'),
    cell(ms(request.device.seconds), path + 'device.seconds', 'extra'), cell(request.finish_reason || request.state, null, 'text extra'));
  row.onclick = () => openRequest(request.id);
  return row;
}
function drawRequests() {
  const list = state.raw.requests.requests;
  const life = (request) => PHASES.reduce((sum, [name]) => sum + (request.durations_seconds[name] || 0), 0);
  const longest = Math.max(1e-9, ...list.map(life));
  table('requests', head('id', 'TTFT, ms', 'total, ms', ['life', 'text'], ['worst gap, ms', 'extra'], ['because of', 'text extra'], ['prompt', 'extra'],
    ['cached', 'extra'], ['answer', 'extra'], ['device, ms', 'extra'], ['end', 'text extra']), list.map((request, i) => requestRow(request, `requests.requests.${i}.`, longest)));
  legend('legend-requests', list.length ? PHASES.map(([name, color]) => [color, name]) : [['transparent', state.list === 'open' ? 'no request is open' : 'no request has ended']]);
}

function drawIdle() {
  const device = state.raw.status.device_seconds;
  const causes = Object.entries(device.idle);
  const all = device.busy + causes.reduce((sum, [, seconds]) => sum + seconds, 0);
  table('idle', head('device', '%', 's'), [el('tr', {}, el('td', {}, 'busy'), cell(share(device.busy, all)), cell(number(device.busy, 3), 'status.device_seconds.busy')),
    ...causes.map(([cause, seconds]) => el('tr', {}, el('td', {}, 'idle: ' + words(cause)), cell(share(seconds, all)),
      cell(number(seconds, 3), 'status.device_seconds.idle.' + cause)))]);
}

function drawMemory() {
  const memory = state.raw.memory;
  if (!memory) return;
  const kv = memory.kv, rows = [];
  for (const where of ['device', 'host'])
    memory[where].owners.forEach((owner, i) => rows.push(el('tr', {}, el('td', {}, owner.name + (where === 'host' ? ' (host)' : '')),
      cell(bytes(owner.bytes), `memory.${where}.owners.${i}.bytes`), cell(bytes(owner.peak_bytes), `memory.${where}.owners.${i}.peak_bytes`))));
  for (const name of ['free', 'held', 'cached', 'peak_held'])
    rows.push(el('tr', {}, el('td', {}, 'pages ' + words(name)), cell(number(kv[name], 0), 'memory.kv.' + name), cell('')));
  table('memory', head('owner', 'now', 'peak'), rows);
  const pages = kv.map.reduce((sum, run) => sum + run[1], 0), each = Math.max(1, Math.ceil(pages / 1600));
  const squares = [];
  let at = 0;
  for (const [first, count, name] of kv.map)
    for (; at < first + count; at += each) squares.push(el('i', { style: 'background:' + STATES[name], title: `page ${at}: ${name}` }));
  $('map').replaceChildren(...squares);
  legend('legend-map', Object.entries(STATES).map(([name, color]) => [color, name]).concat([['transparent', each + (each > 1 ? ' pages' : ' page') + ' a square']]));
}

function draw() {
  if (!state.raw.status) return;
  $('main').hidden = false;
  drawVerdict(); drawTiles(); drawCharts(); drawRequests(); drawSteps(); drawLatency(); drawProfile(); drawIdle(); drawMemory(); drawRequest();
  keepRaw();
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
  if (answer.status !== 401) $('login').hidden = true;
  else if ($('login').hidden) { $('login').hidden = false; $('key').focus(); }
  if (!answer.ok) throw Object.assign(new Error(`${route} answered ${answer.status}`), { status: answer.status });
  return answer.json();
}

function addHistory(answer) {
  if (answer.sequence < state.sequence) { state.samples = []; state.sequence = 0; return; } // another process: all of it next time
  state.sequence = answer.sequence;
  state.now = answer.now_seconds;
  state.samples = state.samples.concat(answer.samples).filter((sample) => state.now - sample.end_seconds <= PAST);
}

// Reports are built by workers, a few at a time: one of these a second, and all of them at first.
const REPORTS = [['diagnose', () => '/debug/diagnose?seconds=30'], ['profile', () => '/debug/profile?format=json&row_limit=20&group_by=' + state.group],
  ['memory', () => '/debug/memory?map=1']];
let turns = 0;
async function pollReport([name, route]) {
  try {
    state.raw[name] = await get(route());
  } catch (error) {
    if (error.status !== 429) throw error; // others are being built: what is shown stays
  }
}
async function poll() {
  const [status, history, latency, steps, requests] = await Promise.all([
    get('/debug/status'), get('/debug/history?since=' + state.sequence), get('/debug/latency?format=json'),
    get('/debug/steps?limit=' + SPANS[state.span]), get('/debug/requests?' + LISTS[state.list])]);
  Object.assign(state.raw, { status, history, latency, steps, requests });
  addHistory(history);
  if (turns++ === 0) for (const report of REPORTS) await pollReport(report);
  else await pollReport(REPORTS[turns % REPORTS.length]);
  const open = state.raw.request;
  if (state.request !== null && open && open.requests.some((one) => one.state !== 'finished' && one.state !== 'refused')) await loadRequest();
}

function showError(error) {
  $('error').hidden = false;
  $('error').textContent = 'The server did not answer: ' + error.message;
}
// One after the other: two at once would ask for the same samples, and add them twice.
let updated = Promise.resolve();
function update() { return (updated = updated.then(updateNow)); }
async function updateNow() {
  try {
    await poll();
    if (!selecting()) keepFocus(draw);
    $('error').hidden = true;
  } catch (error) {
    showError(error);
  }
}
async function turn() {
  if (!state.paused && !document.hidden) await update();
  setTimeout(turn, PERIOD_MS);
}
function pause() {
  state.paused = !state.paused;
  $('pause').textContent = state.paused ? 'Resume' : 'Pause';
  $('pause').setAttribute('aria-pressed', String(state.paused));
}

function start() {
  takeKeyFromUrl();
  document.body.append(el('script', { type: 'application/json', id: 'raw' }));
  $('login').onsubmit = (event) => {
    event.preventDefault();
    sessionStorage.setItem('key', $('key').value);
    update();
  };
  choices('windows', ['10s', '1m', '5m', 'total'], () => state.window, (name) => { state.window = name; draw(); });
  choices('groups', ['op', 'layer', 'node', 'bucket', 'phase'], () => state.group, (name) => {
    state.group = name;
    pollReport(REPORTS[1]).then(() => keepFocus(draw)).catch(showError);
  });
  choices('lists', Object.keys(LISTS), () => state.list, (name) => {
    state.list = name;
    get('/debug/requests?' + LISTS[name]).then((answer) => { state.raw.requests = answer; keepFocus(draw); }).catch(showError);
  });
  startCharts();
  startSteps();
  startRequest();
  $('pause').onclick = pause;
  addEventListener('resize', () => keepFocus(draw));
  addEventListener('keydown', (event) => {
    if (event.target instanceof HTMLInputElement || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'p' || event.key === 'P') pause();
    if (event.key === 'Escape' && state.cursor !== null) { state.cursor = null; drawCharts(); }
  });
  turn();
}
start();
