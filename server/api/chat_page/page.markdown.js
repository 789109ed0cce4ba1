// Markdown to DOM nodes: the part of it that models write. Work is linear in the text up to small factors: nesting is limited,
// and a delimiter that is not closed is searched for once. Images become links, so nothing is loaded.
const DEPTH_MAX = 8, INLINE_DEPTH_MAX = 12, LINK_MAX = 2000;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/, HEADING = /^ {0,3}(#{1,6})\s+(.*)$/, RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+|$)/, QUOTE = /^ {0,3}> ?/, DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

const isTable = (lines, i) => lines[i].includes('|') && i + 1 < lines.length && lines[i + 1].includes('-') && lines[i + 1].includes('|') &&
  lines[i + 1].length < 2000 && DIVIDER.test(lines[i + 1]);
const startsBlock = (lines, i) => FENCE.test(lines[i]) || HEADING.test(lines[i]) || RULE.test(lines[i]) || QUOTE.test(lines[i]) ||
  ITEM.test(lines[i]) || isTable(lines, i);
const indentOf = (line) => line.length - line.trimStart().length;

// The end of the block that begins at line i, and its kind.
function blockAt(lines, i) {
  const fence = FENCE.exec(lines[i]);
  if (fence) {
    let end = i + 1;
    while (end < lines.length && !(lines[end].trim().startsWith(fence[1]) && !lines[end].trim().slice(fence[1].length).replaceAll(fence[1][0], '').trim())) end++;
    return ['code', Math.min(end + 1, lines.length)];
  }
  if (HEADING.test(lines[i])) return ['heading', i + 1];
  if (RULE.test(lines[i])) return ['rule', i + 1];
  let end = i + 1;
  if (QUOTE.test(lines[i])) {
    while (end < lines.length && QUOTE.test(lines[end])) end++;
    return ['quote', end];
  }
  if (isTable(lines, i)) {
    end++;
    while (end < lines.length && lines[end].includes('|')) end++;
    return ['table', end];
  }
  if (ITEM.test(lines[i])) {
    for (; end < lines.length; end++) {
      const blank = !lines[end].trim(), next = lines[end + 1];
      if (blank && !(next !== undefined && next.trim() && (indentOf(next) >= 2 || ITEM.test(next)))) break;
      if (!blank && indentOf(lines[end]) < 2 && !ITEM.test(lines[end]) && startsBlock(lines, end)) break;
      if (!blank && indentOf(lines[end]) < 2 && !ITEM.test(lines[end]) && !lines[end - 1].trim()) break;
    }
    return ['list', end];
  }
  while (end < lines.length && lines[end].trim() && !startsBlock(lines, end)) end++;
  return ['paragraph', end];
}

function splitBlocks(source) {
  const lines = source.replaceAll('\r\n', '\n').split('\n'), blocks = [];
  for (let i = 0; i < lines.length;) {
    if (!lines[i].trim()) { i++; continue; }
    const [kind, end] = blockAt(lines, i);
    blocks.push([kind, lines.slice(i, end)]);
    i = end;
  }
  return blocks;
}

function makeBlock(kind, lines, depth) {
  switch (kind) {
    case 'code': return makeCode(lines);
    case 'heading': {
      const [, marks, title] = HEADING.exec(lines[0]);
      return el('h' + Math.min(marks.length + 2, 6), {}, inline(title.replace(/\s+#+\s*$/, '')));
    }
    case 'rule': return el('hr');
    case 'quote': return el('blockquote', {}, blocksOf(lines.map((line) => line.replace(QUOTE, '')).join('\n'), depth + 1));
    case 'table': return makeTable(lines);
    case 'list': return makeList(lines, depth);
    default: return el('p', {}, inline(lines.map((line) => line.trim()).join('\n')));
  }
}
function blocksOf(source, depth) {
  if (depth > DEPTH_MAX) return [el('p', {}, source)];
  return splitBlocks(source).map(([kind, lines]) => makeBlock(kind, lines, depth));
}

function makeList(lines, depth) {
  const first = ITEM.exec(lines[0]), base = first[1].length, ordered = /\d/.test(first[2]);
  const list = el(ordered ? 'ol' : 'ul', ordered && first[2] !== '1.' ? { start: parseInt(first[2], 10) } : {});
  for (let i = 0; i < lines.length;) {
    const item = ITEM.exec(lines[i]), width = item ? item[0].length : 0, body = [lines[i].slice(width)];
    for (i++; i < lines.length; i++) {
      const next = ITEM.exec(lines[i]);
      if (next && next[1].length <= Math.max(base, Math.min(width - 1, base + 1))) break;
      body.push(lines[i].slice(Math.min(indentOf(lines[i]), width)));
    }
    const task = /^\[([ xX])\]\s/.exec(body[0]), children = blocksOf(task ? [body[0].slice(4), ...body.slice(1)].join('\n') : body.join('\n'), depth + 1);
    const inner = children[0] && children[0].tagName === 'P' && children.every((one) => one === children[0] || one.tagName !== 'P')
      ? [...children[0].childNodes, ...children.slice(1)] : children;
    list.append(el('li', task ? { class: 'task' } : {}, task ? (task[1] === ' ' ? '☐ ' : '☑ ') : '', inner));
  }
  return list;
}

function cellsOf(line) {
  const cells = [''];
  let code = false;
  const row = line.trim().replace(/^\|/, '').replace(/\|$/, '');
  for (let i = 0; i < row.length; i++) {
    if (row[i] === '\\' && row[i + 1] === '|') cells[cells.length - 1] += row[++i];
    else if (row[i] === '|' && !code) cells.push('');
    else {
      if (row[i] === '`') code = !code;
      cells[cells.length - 1] += row[i];
    }
  }
  return cells.map((cell) => cell.trim());
}
function makeTable(lines) {
  const head = cellsOf(lines[0]), sides = cellsOf(lines[1]).map((cell) => (cell.endsWith(':') ? (cell.startsWith(':') ? 'center' : 'right') : null));
  const row = (name, cells) => el('tr', {}, head.map((_, i) => el(name, { class: sides[i] && 'to-' + sides[i] }, inline(cells[i] || ''))));
  return el('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'table' },
    el('table', {}, el('thead', {}, row('th', head)), el('tbody', {}, lines.slice(2).map((line) => row('td', cellsOf(line))))));
}

/* --- Code: strings, comments, numbers and words of most languages ------------------------------ */

const WORDS = new Set(('abstract and as assert async await bool break case catch char class const continue def default defer del do double elif else enum ' +
  'except export extends extern false final finally float fn for from func function global go goto if impl import in int interface is lambda let long ' +
  'loop match mod mut new nil none None not null nullptr or package pass private protected pub public raise range return select self short signed sizeof ' +
  'static struct super switch template this throw trait true True False try type typedef typename union unsigned use using var virtual void where while ' +
  'with yield SELECT FROM WHERE INSERT UPDATE DELETE CREATE TABLE JOIN ON GROUP BY ORDER LIMIT AND OR NOT NULL echo fi then done local').split(' '));
const TOKENS = /"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`(?:[^`\\]|\\.)*`|\/\/[^\n]*|\/\*[^]*?\*\/|\b\d[\w.]*|[A-Za-z_]\w*/g;
const HASH = /"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|#[^\n]*|\b\d[\w.]*|[A-Za-z_]\w*/g;
const HASHED = ['python', 'py', 'sh', 'bash', 'shell', 'zsh', 'ruby', 'rb', 'yaml', 'yml', 'toml', 'r', 'perl', 'dockerfile', 'makefile', 'cmake'];

function highlight(code, language) {
  if (!language || language === 'text' || code.length > 20000) return [code];
  const parts = [];
  let end = 0;
  for (const match of code.matchAll(HASHED.includes(language) ? HASH : TOKENS)) {
    const one = match[0], kind = /^["'`]/.test(one) ? 's' : /^(#|\/\/|\/\*)/.test(one) ? 'c' : /^\d/.test(one) ? 'n' : WORDS.has(one) ? 'k' : '';
    if (!kind) continue;
    parts.push(code.slice(end, match.index), el('span', { class: 't-' + kind }, one));
    end = match.index + one.length;
  }
  parts.push(code.slice(end));
  return parts;
}

function makeCode(lines) {
  const [, marks, info] = FENCE.exec(lines[0]), last = lines[lines.length - 1].trim();
  const closed = lines.length > 1 && last.startsWith(marks) && !last.replaceAll(marks[0], '');
  const code = lines.slice(1, closed ? -1 : undefined).join('\n'), language = info.trim().split(/\s/)[0].toLowerCase().slice(0, 30);
  return codeBlock(code, language);
}
function codeBlock(code, language) {
  const button = el('button', { type: 'button', class: 'small', 'aria-label': 'Copy code', onclick: () => copy(code, button) }, 'Copy');
  return el('figure', { class: 'code' }, el('figcaption', {}, el('span', {}, language || 'text'), button),
    el('pre', { tabindex: 0, role: 'region', 'aria-label': (language || 'text') + ' code' }, el('code', {}, highlight(code, language))));
}

/* --- Inline ------------------------------------------------------------------------------------ */

function safeUrl(url) {
  try {
    const parsed = new URL(url);
    return ['http:', 'https:', 'mailto:'].includes(parsed.protocol) ? parsed.href : null;
  } catch (error) {
    return null; // relative addresses would point into this server
  }
}
const link = (url, children) => el('a', { href: url, target: '_blank', rel: 'noopener noreferrer nofollow', title: url }, children);

const isWord = (char) => char !== undefined && /[\p{L}\p{N}_]/u.test(char);
// The place of the closing mark, or -1. `missing` remembers marks that occur no more.
function closing(source, mark, from, missing) {
  if (missing.has(mark)) return -1;
  for (let at = from, tries = 0; tries < 20; tries++) {
    at = source.indexOf(mark, at);
    if (at < 0) { if (!tries) missing.add(mark); return -1; }
    const spaced = at === from || /\s/.test(source[at - 1]);
    const inside = mark[0] === '_' && isWord(source[at + mark.length]);
    const longer = mark.length === 1 && source[at + 1] === mark;
    if (!spaced && !inside && !longer && source[at - 1] !== '\\') return at;
    at += longer ? 2 : 1;
  }
  return -1;
}

const MARKS = [['***', null], ['**', 'strong'], ['__', 'strong'], ['~~', 'del'], ['*', 'em'], ['_', 'em']];
// [nodes, end] of the construct at position i, or null.
function inlineAt(source, i, depth, missing) {
  const char = source[i];
  if (char === '`') {
    let marks = '`';
    while (source[i + marks.length] === '`') marks += '`';
    const end = missing.has(marks) ? -1 : source.indexOf(marks, i + marks.length);
    if (end < 0) { missing.add(marks); return [marks, i + marks.length]; }
    return [el('code', {}, source.slice(i + marks.length, end).replace(/^ (.+) $/, '$1')), end + marks.length];
  }
  if (char === '[' || (char === '!' && source[i + 1] === '[')) {
    const from = i + (char === '!' ? 2 : 1), window = source.slice(from, from + LINK_MAX), middle = window.indexOf('](');
    if (middle < 0 || window.slice(0, middle).includes('\n\n')) return null;
    const rest = /^<?((?:[^\s<>()]|\([^\s<>()]*\))+)>?(?:\s+["'(][^\n]{0,200}?["')])?\)/.exec(window.slice(middle + 2)), url = rest && safeUrl(rest[1]);
    if (!rest) return null;
    const label = inline(window.slice(0, middle), depth + 1), end = from + middle + 2 + rest[0].length;
    return [url ? link(url, label.length ? label : [url]) : label, end];
  }
  if (char === '<' || char === 'h') {
    const match = /^<?(https?:\/\/[^\s<>"'`]{1,1900})>?/.exec(source.slice(i, i + LINK_MAX));
    if (!match || (char === 'h' && isWord(source[i - 1]))) return null;
    const tail = char === '<' ? '' : /[.,;:!?)\]*_]*$/.exec(match[1])[0], url = safeUrl(match[1].slice(0, match[1].length - tail.length));
    return url && [link(url, [match[1].slice(0, match[1].length - tail.length)]), i + match[0].length - tail.length];
  }
  for (const [mark, name] of MARKS) {
    if (!source.startsWith(mark, i)) continue;
    const from = i + mark.length;
    if (source[from] === undefined || /\s/.test(source[from]) || (mark[0] === '_' && isWord(source[i - 1]))) continue;
    const end = closing(source, mark, from, missing);
    if (end < 0) continue;
    const inner = inline(source.slice(from, end), depth + 1);
    return [name ? el(name, {}, inner) : el('strong', {}, el('em', {}, inner)), end + mark.length];
  }
  return null;
}

function inline(source, depth = 0) {
  if (depth > INLINE_DEPTH_MAX) return [source];
  const nodes = [], missing = new Set();
  let plain = '';
  const flush = () => { if (plain) nodes.push(plain); plain = ''; };
  for (let i = 0; i < source.length;) {
    const char = source[i];
    if (char === '\\' && /[!-/:-@[-`{-~]/.test(source[i + 1] || '')) { plain += source[i + 1]; i += 2; continue; }
    if (char === '\n') { flush(); nodes.push(el('br')); i++; continue; }
    const found = '`[!<h*_~'.includes(char) ? inlineAt(source, i, depth, missing) : null;
    if (!found) { plain += char; i++; continue; }
    flush();
    nodes.push(...[found[0]].flat());
    i = found[1];
  }
  flush();
  return nodes;
}

// Draws source into node; blocks that have not changed keep their elements, so a stream redraws only its end.
function drawMarkdown(node, source) {
  const blocks = splitBlocks(source), old = [...node.children];
  blocks.forEach(([kind, lines], i) => {
    const raw = kind + lines.join('\n');
    if (old[i] && old[i].raw === raw) return;
    const made = makeBlock(kind, lines, 0);
    made.raw = raw;
    if (old[i]) old[i].replaceWith(made);
    else node.append(made);
  });
  for (const one of old.slice(blocks.length)) one.remove();
}
