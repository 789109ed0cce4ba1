// Requests: the body for a conversation, the stream of an answer, and the key of a server that has keys.

// From #key=..., which browsers do not send, or from the form.
function takeKeyFromUrl() {
  if (!location.hash.startsWith('#key=')) return;
  sessionStorage.setItem('key', decodeURIComponent(location.hash.slice(5)));
  history.replaceState(null, '', location.pathname);
}

async function call(route, options = {}) {
  const key = sessionStorage.getItem('key'), headers = { ...(options.headers || {}) };
  if (key) headers.Authorization = 'Bearer ' + key;
  const answer = await fetch(route, { cache: 'no-store', ...options, headers });
  if (answer.status === 401) showLogin();
  if (answer.ok) return answer;
  let message = `${route} answered ${answer.status}`;
  try {
    const body = await answer.json();
    if (body.error && body.error.message) message = (body.error.param ? body.error.param + ': ' : '') + body.error.message;
  } catch (error) { /* not JSON: the status says enough */ }
  throw Object.assign(new Error(message), { status: answer.status });
}

function showLogin() {
  if (!$('login').open) $('login').showModal();
  $('key').focus();
}

/* --- The body of a request --------------------------------------------------------------------- */

function parseField(name, value, isRight, what) {
  let parsed;
  try { parsed = JSON.parse(value); } catch (error) { throw Object.assign(new Error(`${what} is not JSON: ${error.message}`), { field: name }); }
  if (!isRight(parsed)) throw Object.assign(new Error(`${what} has the wrong form`), { field: name });
  return parsed;
}
const isObject = (value) => value !== null && typeof value === 'object' && !Array.isArray(value);

// Tools as OpenAI's list, one tool, or bare functions.
function toolsOf(value) {
  const parsed = parseField('tools', value, (one) => Array.isArray(one) || isObject(one), 'The tools field');
  return [parsed].flat().map((one) => (isObject(one) && !one.type && one.name ? { type: 'function', function: one } : one));
}
// A bare schema, or the object of response_format.
function formatOf(value) {
  const parsed = parseField('schema', value, (one) => isObject(one) || typeof one === 'boolean', 'The schema field');
  if (isObject(parsed) && isObject(parsed.json_schema)) return { type: 'json_schema', json_schema: parsed.json_schema };
  if (isObject(parsed) && isObject(parsed.schema)) return { type: 'json_schema', json_schema: { name: 'answer', ...parsed } };
  return { type: 'json_schema', json_schema: { name: 'answer', schema: parsed } };
}

function messageOf(node) {
  if (node.role === 'tool') return { role: 'tool', tool_call_id: node.tool_call_id, ...(node.name && { name: node.name }), content: node.content };
  const message = { role: node.role, content: node.content };
  if (node.reasoning) message.reasoning_content = node.reasoning;
  if (node.calls && node.calls.length) {
    message.content = node.content || null;
    message.tool_calls = node.calls.map((one) => ({ id: one.id, type: 'function', function: { name: one.name, arguments: one.arguments } }));
  }
  return message;
}

// Answers without text or calls are left out, and questions that follow each other become one: many templates require alternating turns.
function messagesOf(path) {
  const messages = [];
  for (const node of path) {
    const last = messages[messages.length - 1];
    if (node.role === 'assistant' && !node.content && !(node.calls && node.calls.length)) continue;
    if (last && last.role === 'user' && node.role === 'user') last.content += '\n\n' + node.content;
    else messages.push(messageOf(node));
  }
  return messages;
}

function bodyOf(chat, path, prefix) {
  const settings = chat.settings, body = { model: state.model.id, messages: messagesOf(path) };
  if (settings.system) body.messages.unshift({ role: 'system', content: settings.system });
  if (prefix) {
    body.messages.push({ role: 'assistant', content: prefix });
    Object.assign(body, { add_generation_prompt: false, continue_final_message: true });
  }
  for (const [name] of SAMPLING) if (known(settings[name])) body[name] = settings[name];
  if (settings.stop) body.stop = settings.stop.split('\n').filter(Boolean).map((one) => one.replaceAll('\\n', '\n').replaceAll('\\t', '\t'));
  // A grammar cannot begin in the middle of an answer.
  if (settings.schema && !prefix) body.response_format = formatOf(settings.schema);
  if (settings.tools) body.tools = toolsOf(settings.tools);
  if (settings.tools && settings.tool_choice) body.tool_choice = settings.tool_choice;
  if (settings.reasoning_effort) body.reasoning_effort = settings.reasoning_effort;
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === 'on' };
  if (settings.alternatives) Object.assign(body, { logprobs: true, top_logprobs: Number(settings.alternatives) });
  if (settings.extra) Object.assign(body, parseField('extra', settings.extra, isObject, 'The field of other parameters'));
  return Object.assign(body, { stream: true, stream_options: { include_usage: true }, include_timing: true });
}

/* --- The stream -------------------------------------------------------------------------------- */

// The data of each server-sent event, however the bytes are split.
async function* eventsOf(body) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    rest += done ? decoder.decode() : decoder.decode(value, { stream: true });
    let at;
    while ((at = rest.indexOf('\n')) >= 0) {
      const line = rest.slice(0, at).replace(/\r$/, '');
      rest = rest.slice(at + 1);
      if (line.startsWith('data:')) yield line.slice(5).trim();
    }
    if (done) return;
  }
}

const bytesOf = (entry) => (Array.isArray(entry.bytes) ? entry.bytes : [...new TextEncoder().encode(entry.token)]);
function readToken(entry) {
  const token = { text: text(entry.token, 400), bytes: bytesOf(entry), logprob: entry.logprob, top: [] };
  for (const one of entry.top_logprobs || []) token.top.push({ text: text(one.token, 400), bytes: bytesOf(one), logprob: one.logprob });
  for (const name of ['allowed', 'allowed_tokens']) if (known(entry[name])) token.allowed = entry[name];
  return token;
}

function addCall(node, delta) {
  node.calls = node.calls || [];
  const at = known(delta.index) ? delta.index : node.calls.length;
  if (at < 0 || at > 512) return;
  while (node.calls.length <= at) node.calls.push({ id: '', name: '', arguments: '' });
  const one = node.calls[at], called = delta.function || {};
  if (delta.id) one.id = text(delta.id);
  if (called.name) one.name += text(called.name);
  if (called.arguments) one.arguments += text(called.arguments);
}

function addChunk(node, chunk, stream) {
  const choice = chunk.choices && chunk.choices[0], now = performance.now();
  if (chunk.usage) node.stats.usage = readUsage(chunk.usage);
  if (chunk.timing) node.stats.timing = readTiming(chunk.timing);
  if (!choice) return;
  const delta = choice.delta || {}, reasoning = delta.reasoning_content || delta.reasoning;
  if (delta.content) node.content += delta.content;
  if (typeof reasoning === 'string') node.reasoning = (node.reasoning || '') + reasoning;
  for (const one of delta.tool_calls || []) addCall(node, one);
  if (delta.content || reasoning || delta.tool_calls) {
    if (!known(node.stats.first)) node.stats.first = (now - stream.began) / 1e3;
    if (reasoning) node.stats.thought = (now - stream.began) / 1e3 - node.stats.first;
    node.stats.last = (now - stream.began) / 1e3;
    node.stats.chunks = (node.stats.chunks || 0) + 1;
  }
  if (choice.logprobs && Array.isArray(choice.logprobs.content)) {
    node.tokens = node.tokens || [];
    for (const entry of choice.logprobs.content) if (node.tokens.length < LOGPROBS_MAX) node.tokens.push(readToken(entry));
  }
  if (choice.finish_reason) node.finish = choice.finish_reason;
}

async function readStream(answer, node, stream) {
  let ended = false;
  for await (const data of eventsOf(answer.body)) {
    if (data === '[DONE]') { ended = true; break; }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message || 'the server ended the answer');
    addChunk(node, chunk, stream);
    drawSoon();
  }
  if (!ended && !node.finish) throw new Error('the connection ended before the answer was complete');
}

// Generates an answer below the node `parent` of the chat. prefix: the beginning of the answer, which the model continues.
async function generate(chat, parent, prefix) {
  if (state.stream) return;
  const path = pathOf(chat), upTo = path.slice(0, path.findIndex((one) => one.id === parent) + 1);
  let body;
  try {
    body = bodyOf(chat, upTo, prefix && prefix.text);
  } catch (error) {
    showFieldError(error);
    return;
  }
  const node = addNode(chat, parent, { role: 'assistant', content: prefix ? prefix.text : '', stats: { model: state.model.id } });
  if (prefix && prefix.tokens) node.tokens = prefix.tokens;
  const stream = state.stream = { node, chat, abort: new AbortController(), began: performance.now() };
  draw();
  follow(true);
  try {
    const answer = await call('/v1/chat/completions', { method: 'POST', body: JSON.stringify(body), signal: stream.abort.signal,
      headers: { 'Content-Type': 'application/json', Accept: 'text/event-stream' } });
    node.stats.request = answer.headers.get('X-Request-Id') || '';
    await readStream(answer, node, stream);
  } catch (error) {
    if (error.name === 'AbortError') node.stopped = true;
    else node.error = error.message;
  }
  node.stats.total = (performance.now() - stream.began) / 1e3;
  node.at = Date.now();
  state.stream = null;
  store(chat);
  const near = isNearEnd();
  draw();
  follow(near);
  const result = views.has(node.id) && document.activeElement === $('input') && views.get(node.id).calls.querySelector('textarea');
  if (result) result.focus();
  announce(node);
}

function stopAnswer() {
  if (state.stream) state.stream.abort.abort();
}
