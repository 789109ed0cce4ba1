// The newest steps on a line of time: the host above, the device below with the reason of each idle time.
const SPANS = { '30 steps': 30, '120 steps': 120, '500 steps': 500 };
const STEP_LEFT = 52, STEP_RIGHT = 8;
const IDLE_COLORS = { no_work: 'var(--line)', client: 'var(--d)', admission: 'var(--f)', unknown: 'var(--e)' };
const idleColor = (cause) => IDLE_COLORS[cause] || 'var(--b)';
const stepsShown = () => state.held || state.raw.steps;

function largestIdle(step) {
  return Object.entries(step.idle).reduce((best, entry) => (!best || entry[1] > best[1] ? entry : best), null);
}
function stepText(step) {
  const idleTime = Object.entries(step.idle).filter(([, seconds]) => seconds >= 1e-6)
    .map(([cause, seconds]) => `${words(cause)} ${duration(seconds)}`).join(', ');
  return `Step ${number(step.step, 0)}: ${duration(step.end - step.begin)} on the device, ${step.decode_only ? 'decode' : 'with prompts'}; ` +
    `${step.rows} rows, ${step.tokens} tokens (${step.prompt_tokens} of prompts, ${step.padded_tokens} padded), ${number(step.kv_tokens, 0)} keys read; ` +
    `planned in ${duration(step.planned - step.plan)}, launched in ${duration(step.launched - step.launch)}, read ${duration(step.read - step.end)} after its end` +
    (idleTime ? `; idle before it: ${idleTime}.` : '; no idle time before it.');
}
function stepsScale(steps, width) {
  const all = [Math.min(...steps.map((step) => Math.min(step.plan, step.begin))), Math.max(...steps.map((step) => step.read))];
  const [begin, end] = state.range || all;
  const scale = (width - STEP_LEFT - STEP_RIGHT) / (end - begin || 1);
  return { begin, end, x: (time) => STEP_LEFT + (time - begin) * scale, time: (x) => begin + (x - STEP_LEFT) / scale };
}

function drawSteps() {
  const answer = stepsShown(), svg = $('steps'), width = svg.clientWidth || 800;
  const steps = answer.steps.slice(-SPANS[state.span]);
  svg.setAttribute('aria-label', `the newest ${steps.length} steps: host above, device below`);
  legend('legend-steps', [['var(--d)', 'plan'], ['var(--f)', 'launch'], ['var(--a)', 'decode on the device'], ['var(--c)', 'with prompts'],
    ['var(--b)', 'idle for the host'], ['var(--line)', 'no work']]);
  if (!steps.length) { svg.replaceChildren(); $('steps-note').textContent = 'No step in the last minute.'; return; }
  const scale = stepsScale(steps, width), inside = [], nodes = [];
  const bar = (from, to, y, height, color, more) => {
    if (to < scale.begin || from > scale.end) return;
    const left = Math.max(scale.x(from), STEP_LEFT), right = Math.min(scale.x(to), width - STEP_RIGHT);
    inside.push(el('rect', { x: left.toFixed(2), y, width: Math.max(right - left - 0.5, 0.6).toFixed(2), height, fill: color, ...more }));
  };
  const tick = nice((scale.end - scale.begin) / Math.max(2, Math.floor(width / 110)), TICKS);
  for (let time = Math.ceil(scale.begin / tick) * tick; time <= scale.end; time += tick) {
    nodes.push(el('line', { x1: scale.x(time), x2: scale.x(time), y1: 4, y2: 104 }));
    nodes.push(el('text', { x: scale.x(time), y: 120, 'text-anchor': 'middle' }, time > -1e-9 ? 'now' : `−${trim(duration(-time))}`));
  }
  nodes.push(el('text', { x: 0, y: 26 }, 'host'), el('text', { x: 0, y: 70 }, 'device'));
  for (const step of steps) {
    const waited = largestIdle(step), gap = Object.values(step.idle).reduce((sum, seconds) => sum + seconds, 0);
    bar(step.plan, step.planned, 12, 20, 'var(--d)');
    bar(step.launch, step.launched, 12, 20, 'var(--f)');
    if (waited) bar(step.begin - gap, step.begin, 62, 8, idleColor(waited[0]));
    bar(step.begin, step.end, 50, 32, step.decode_only ? 'var(--a)' : 'var(--c)');
    if (step.step === state.chosen)
      bar(step.begin, step.end, 47, 38, 'none', { stroke: 'var(--text)', 'stroke-width': 2 });
  }
  svg.replaceChildren(...nodes, ...inside);
  const chosen = steps.find((step) => step.step === state.chosen);
  const busy = steps.reduce((sum, step) => sum + step.end - step.begin, 0);
  $('steps-note').replaceChildren(chosen ? stepText(chosen)
    : `${number(steps.length, 0)} steps, ${duration(busy / steps.length)} each on the device${state.held ? ', held' : ''}. Choose one for what it did.`,
    ...(state.held ? [' ', releaseButton()] : []));
}
function releaseButton() {
  const button = el('button', { type: 'button', class: 'link', 'data-key': 'steps:live' }, 'Back to now');
  button.onclick = releaseSteps;
  return button;
}
function releaseSteps() { state.held = state.chosen = state.range = null; drawSteps(); }
function holdSteps() { state.held = state.held || state.raw.steps; }

function chooseStep(at, by) {
  const steps = stepsShown().steps.slice(-SPANS[state.span]);
  if (!steps.length) return;
  holdSteps();
  if (by === undefined) {
    const off = (step) => Math.max(step.begin - at, at - step.end, 0);
    state.chosen = steps.reduce((best, step) => (off(step) < off(best) ? step : best)).step;
  } else {
    const index = steps.findIndex((step) => step.step === state.chosen);
    state.chosen = steps[index < 0 ? steps.length - 1 : Math.max(0, Math.min(index + by, steps.length - 1))].step;
  }
  const chosen = steps.find((step) => step.step === state.chosen), range = state.range;
  if (range && (chosen.begin < range[0] || chosen.end > range[1])) {
    const middle = (chosen.begin + chosen.end) / 2, half = (range[1] - range[0]) / 2;
    state.range = [middle - half, middle + half];
  }
  drawSteps();
}
function startSteps() {
  const svg = $('steps');
  let down = null;
  const timeOf = (event) => stepsScale(stepsShown().steps.slice(-SPANS[state.span]), svg.clientWidth).time(event.clientX - svg.getBoundingClientRect().left);
  svg.dataset.key = 'steps';
  svg.onpointerdown = (event) => { down = stepsShown() && stepsShown().steps.length ? { x: event.clientX, time: timeOf(event) } : null; };
  svg.onpointerup = (event) => {
    if (!down) return;
    if (Math.abs(event.clientX - down.x) > 6) {
      const to = timeOf(event);
      holdSteps();
      state.range = [Math.min(down.time, to), Math.max(down.time, to)];
      drawSteps();
    } else {
      chooseStep(timeOf(event));
    }
    down = null;
  };
  svg.ondblclick = releaseSteps;
  svg.onkeydown = (event) => {
    if (event.key === 'Escape') releaseSteps();
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e6, End: 1e6 }[event.key];
    if (!by || !stepsShown()) return;
    event.preventDefault();
    chooseStep(0, by);
  };
  choices('spans', Object.keys(SPANS), () => state.span, (name) => { state.span = name; releaseSteps(); });
}
