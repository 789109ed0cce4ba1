// Five minutes of the server, kept by the server: lines and stacked areas with one cursor.
const PAST = 300, LEFT = 44, RIGHT = 8, TOP = 10, BOTTOM = 112, HEIGHT = 132;
const HOST_CAUSES = ['plan', 'launch', 'result', 'emit', 'start'];
const perSecond = (count, sample) => count / sample.seconds;
const idle = (sample, ...causes) => causes.reduce((sum, cause) => sum + (sample.device_seconds.idle[cause] || 0), 0);
const deviceTime = (sample) => sample.device_seconds.busy + idle(sample, ...Object.keys(sample.device_seconds.idle));
const percent = (part, whole) => (whole > 0 ? (100 * part) / whole : null);
const pagesOf = (sample) => sample.pages.free + sample.pages.held + sample.pages.cached;
const milli = (series, name) => (sample) => (known(sample[series][name]) ? sample[series][name] * 1e3 : null);
const CHARTS = [
  { id: 'rate', series: [
    { name: 'generated', color: 'var(--a)', of: (s) => perSecond(s.tokens.generated, s) },
    { name: 'prompt', color: 'var(--b)', of: (s) => perSecond(s.tokens.prompt, s) }] },
  { id: 'ttft', series: [
    { name: 'p50', color: 'var(--a)', of: milli('time_to_first_token', 'p50') },
    { name: 'p99', color: 'var(--b)', of: milli('time_to_first_token', 'p99') }] },
  { id: 'itl', series: [
    { name: 'p50', color: 'var(--a)', of: milli('inter_token_latency', 'p50') },
    { name: 'p99', color: 'var(--b)', of: milli('inter_token_latency', 'p99') }] },
  { id: 'batch', whole: true, series: [
    { name: 'running', color: 'var(--a)', of: (s) => s.requests.running },
    { name: 'waiting', color: 'var(--b)', of: (s) => s.requests.waiting },
    { name: 'swapped out', color: 'var(--d)', of: (s) => s.requests.swapped }] },
  { id: 'device', stack: 100, series: [
    { name: 'busy', color: 'var(--a)', of: (s) => percent(s.device_seconds.busy, deviceTime(s)) },
    { name: 'host', color: 'var(--b)', of: (s) => percent(idle(s, ...HOST_CAUSES), deviceTime(s)) },
    { name: 'client', color: 'var(--d)', of: (s) => percent(idle(s, 'client'), deviceTime(s)) },
    { name: 'admission', color: 'var(--f)', of: (s) => percent(idle(s, 'admission', 'unknown'), deviceTime(s)) },
    { name: 'no work', color: 'var(--line)', of: (s) => percent(idle(s, 'no_work'), deviceTime(s)) }] },
  { id: 'pages', stack: 100, series: [
    { name: 'held', color: 'var(--a)', of: (s) => percent(s.pages.held, pagesOf(s)) },
    { name: 'cached', color: 'var(--c)', of: (s) => percent(s.pages.cached, pagesOf(s)) },
    { name: 'free', color: 'var(--line)', of: (s) => percent(s.pages.free, pagesOf(s)) }] },
];

// The past that is drawn: less than five minutes of a young server.
function pastShown() {
  const oldest = state.samples.length ? state.now - state.samples[0].end_seconds : 0;
  return [60, 120, PAST].find((seconds) => oldest <= seconds + 2) || PAST;
}
function sampleAt(seconds) {
  let best = null;
  for (const sample of state.samples)
    if (!best || Math.abs(sample.end_seconds - seconds) < Math.abs(best.end_seconds - seconds)) best = sample;
  return best;
}

function axes(nodes, width, most, past) {
  const y = (value) => BOTTOM - ((BOTTOM - TOP) * value) / most;
  for (const part of [0, 0.5, 1]) {
    nodes.push(el('line', { x1: LEFT, x2: width - RIGHT, y1: y(most * part), y2: y(most * part) }));
    nodes.push(el('text', { x: LEFT - 6, y: y(most * part) + 4, 'text-anchor': 'end' }, part ? trim(short(most * part)) : '0'));
  }
  const narrow = width < 420, each = past / (past === PAST ? 5 : 4) * (narrow ? 2 : 1);
  for (let ago = narrow && past === PAST ? 240 : past; ago >= 0; ago -= each) {
    const x = LEFT + ((width - LEFT - RIGHT) * (past - ago)) / past;
    const text = ago === 0 ? 'now' : past === PAST ? `−${ago / 60} min` : `−${ago} s`;
    nodes.push(el('text', { x, y: HEIGHT - 6, 'text-anchor': ago === past ? 'start' : ago === 0 ? 'end' : 'middle' }, text));
  }
}

// A path through the points that have a value; a hole where samples are missing, a dot where one is alone.
function linePath(points) {
  let path = '', before = null;
  points.forEach((point, i) => {
    if (!known(point.value)) return;
    const joined = before !== null && before === i - 1 && !point.late;
    path += joined ? `L${point.x} ${point.y}` : `M${point.x} ${point.y}h.01`;
    before = i;
  });
  return path || 'M0 0';
}

function drawChart(chart) {
  const svg = $('chart-' + chart.id), width = svg.clientWidth || 400, past = pastShown();
  // A second without a number for it, as the device's time within a long step, is no part of a stack.
  const samples = state.samples.filter((sample) => state.now - sample.end_seconds <= past && (!chart.stack || known(chart.series[0].of(sample))));
  const series = chart.series.filter((one, i) => i < 2 || samples.some((sample) => one.of(sample) > 0));
  let most = chart.stack || 0;
  if (!chart.stack) for (const one of series) for (const sample of samples) most = Math.max(most, one.of(sample) || 0);
  if (!chart.stack) most = Math.max(nice(most || 1, TOPS), chart.whole ? 2 : 0);
  const x = (sample) => (width - RIGHT - ((width - LEFT - RIGHT) * (state.now - sample.end_seconds)) / past).toFixed(1);
  const y = (value) => (BOTTOM - ((BOTTOM - TOP) * Math.min(value, most)) / most).toFixed(1);
  const nodes = [], areas = [], below = samples.map(() => 0);
  axes(nodes, width, most, past);
  for (const one of series) {
    const points = samples.map((sample) => ({ x: x(sample), value: one.of(sample), late: sample.seconds > 2 }));
    if (!chart.stack) {
      points.forEach((point) => { point.y = y(point.value || 0); });
      areas.push(el('path', { d: linePath(points), fill: 'none', stroke: one.color, 'stroke-width': 1.7, 'stroke-linecap': 'round', 'stroke-linejoin': 'round' }));
      continue;
    }
    const lower = points.map((point, i) => `${point.x} ${y(below[i])}`).reverse();
    const upper = points.map((point, i) => { below[i] += point.value || 0; return `${point.x} ${y(below[i])}`; });
    if (points.length < 2) continue;
    areas.push(el('path', { d: `M${upper.join('L')}L${lower.join('L')}Z`, fill: one.color, 'fill-opacity': 0.5 }),
      el('path', { d: `M${upper.join('L')}`, fill: 'none', stroke: one.color, 'stroke-width': 1.2 }));
  }
  const at = state.cursor === null ? null : sampleAt(state.cursor), shown = at || samples[samples.length - 1];
  const all = [...nodes, ...areas], text = (one) => (shown ? number(one.of(shown), chart.whole ? 0 : chart.stack ? 1 : digits(one.of(shown))) : '–');
  if (at) {
    all.push(el('line', { class: 'cursor', x1: x(at), x2: x(at), y1: TOP, y2: BOTTOM }));
    const right = Number(x(at)) > width / 2;
    all.push(el('text', { x: Number(x(at)) + (right ? -5 : 5), y: TOP + 9, 'text-anchor': right ? 'end' : 'start' }, `${number(state.now - at.end_seconds, 0)} s ago`));
  }
  svg.replaceChildren(...all);
  legend('legend-' + chart.id, series.map((one) => [one.color, one.name, text(one)]));
  svg.setAttribute('aria-label', $('h-' + chart.id).textContent + ', ' + (at ? `${number(state.now - at.end_seconds, 0)} s ago: ` : 'now: ') +
    series.map((one) => `${one.name} ${text(one)}`).join(', '));
}
function drawCharts() { CHARTS.forEach(drawChart); }

function moveCursor(by) {
  const index = state.cursor === null ? state.samples.length - 1 : state.samples.indexOf(sampleAt(state.cursor)) + by;
  const sample = state.samples[Math.max(0, Math.min(index, state.samples.length - 1))];
  state.cursor = sample ? sample.end_seconds : null;
  drawCharts();
}
function startCharts() {
  for (const chart of CHARTS) {
    const svg = $('chart-' + chart.id);
    svg.dataset.key = 'chart:' + chart.id;
    svg.onpointermove = (event) => {
      const box = svg.getBoundingClientRect(), past = pastShown();
      state.cursor = state.now - (past * (box.width - RIGHT - (event.clientX - box.left))) / (box.width - LEFT - RIGHT);
      drawCharts();
    };
    svg.onpointerleave = () => { state.cursor = null; drawCharts(); };
    svg.onblur = svg.onpointerleave;
    svg.onkeydown = (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -PAST, End: PAST }[event.key];
      if (!by) return;
      event.preventDefault();
      moveCursor(by);
    };
  }
}
