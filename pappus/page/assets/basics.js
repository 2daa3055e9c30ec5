// Elements, numbers as text, and what a reader has chosen. Data is only ever set as text, never as HTML.

const SVG_NAMESPACE = 'http://www.w3.org/2000/svg';
const UNKNOWN = '–';

/** An HTML element; `on…` attributes are listeners, `style` holds custom properties, children may be text. */
function h(tag, attributes = {}, ...children) {
  return dressed(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
function s(tag, attributes = {}, ...children) {
  return dressed(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

function dressed(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'style')
      Object.entries(value).forEach(([property, one]) => node.style.setProperty(property, one));
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Sets text only where it differs, so that selections and screen readers are left alone. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function known(value) {
  return typeof value === 'number' && Number.isFinite(value);
}

/** `12.3K`, `1.21M`, `0.0123`: three digits. */
function figure(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1e15 || (size > 0 && size < 1e-4)) return value.toExponential(1).replace('e+', 'e');
  for (const [unit, letter] of [
    [1e12, 'T'],
    [1e9, 'G'],
    [1e6, 'M'],
    [1e3, 'K'],
  ]) {
    if (size >= 0.9995 * unit) return trimmed(value / unit) + letter;
  }
  return trimmed(value);
}

function trimmed(value) {
  const size = Math.abs(value);
  const digits = size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : size >= 0.01 ? 3 : 4;
  return String(Number(value.toFixed(digits)));
}

function whole(value) {
  return known(value) ? Math.round(value).toLocaleString('en') : UNKNOWN;
}

function percent(share) {
  if (!known(share)) return UNKNOWN;
  return `${share > 0 && share < 0.01 ? '<1' : Math.round(100 * share)} %`;
}

/** Memory in binary units, as the terminal has it. */
function memoryText(bytes) {
  if (!known(bytes)) return UNKNOWN;
  return bytes >= 2 ** 30 ? `${trimmed(bytes / 2 ** 30)} GiB` : `${whole(bytes / 2 ** 20)} MiB`;
}

function byteRate(bytes) {
  if (!known(bytes)) return '';
  for (const [unit, name] of [
    [1e9, 'GB/s'],
    [1e6, 'MB/s'],
    [1e3, 'kB/s'],
  ]) {
    if (bytes >= 0.9995 * unit) return `${trimmed(bytes / unit)} ${name}`;
  }
  return `${Math.round(bytes)} B/s`;
}

/** `48 s`, `3 min 12 s`, `2 h 5 min`, `3 d 4 h`. */
function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 0.9995) return seconds < 0.0005 ? '0 s' : `${trimmed(seconds)} s`;
  if (seconds < 10) return `${trimmed(Math.round(10 * seconds) / 10)} s`;
  const rounded = Math.round(seconds);
  for (const [unit, name, small, smaller] of [
    [86400, 'd', 3600, 'h'],
    [3600, 'h', 60, 'min'],
    [60, 'min', 1, 's'],
  ]) {
    if (rounded < unit) continue;
    const rest = Math.floor((rounded % unit) / small);
    return `${Math.floor(rounded / unit)} ${name}${rest ? ` ${rest} ${smaller}` : ''}`;
  }
  return `${rounded} s`;
}

function clockText(time) {
  return known(time) ? new Date(1000 * time).toLocaleTimeString('en-GB') : UNKNOWN;
}

function dateText(time) {
  if (!known(time)) return UNKNOWN;
  return new Date(1000 * time).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'short' });
}

/** A setting or a summary's entry as text. */
function valueText(value) {
  if (value === null || value === undefined) return 'none';
  if (value === '') return 'empty';
  if (typeof value === 'number') return String(value);
  return typeof value === 'string' ? value : JSON.stringify(value);
}

function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function plural(count, word, words = `${word}s`) {
  return `${whole(count)} ${count === 1 ? word : words}`;
}

function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

function quantile(sorted, share) {
  if (!sorted.length) return null;
  const place = share * (sorted.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
}

function sum(values) {
  return values.reduce((total, value) => total + (known(value) ? value : 0), 0);
}

/** What a reader chose, kept from visit to visit where the browser allows it. */
const choices = {
  get(name, otherwise) {
    try {
      const kept = localStorage.getItem(`pappus.${name}`);
      return kept === null ? otherwise : JSON.parse(kept);
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`pappus.${name}`, JSON.stringify(value));
    } catch {
      // a page on disk, or a private window: the choice lasts as long as the page
    }
  },
};

/** A button that is on or off; `changed` hears which. */
function toggle(label, on, changed, attributes = {}) {
  const button = h(
    'button',
    {
      type: 'button',
      class: 'toggle',
      'aria-pressed': String(on),
      ...attributes,
      onclick: () => {
        const next = button.getAttribute('aria-pressed') !== 'true';
        button.setAttribute('aria-pressed', String(next));
        changed(next);
      },
    },
    label,
  );
  return button;
}

/** One of several: `options` are [value, label]. */
function choice(name, options, chosen, changed) {
  const buttons = options.map(([value, label]) =>
    h('button', { type: 'button', role: 'radio', onclick: () => set(value) }, label),
  );
  const group = h(
    'span',
    {
      class: 'choice',
      role: 'radiogroup',
      'aria-label': name,
      onkeydown: (event) => {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        const next = (buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length;
        buttons[next].focus();
        set(options[next][0]);
      },
    },
    buttons,
  );
  function mark(value) {
    buttons.forEach((button, i) => {
      button.setAttribute('aria-checked', String(options[i][0] === value));
      button.tabIndex = options[i][0] === value ? 0 : -1;
    });
  }
  function set(value) {
    mark(value);
    changed(value);
  }
  mark(chosen);
  return group;
}

/** A part of the page with a heading; `tools` stand beside it. */
function section(id, title, tools, ...children) {
  const heading = h('h2', { id: `${id}-title` }, title);
  const head = h('div', { class: 'section-head' }, heading, tools.length ? h('div', { class: 'tools' }, tools) : null);
  return h('section', { id, 'aria-labelledby': `${id}-title` }, head, children);
}

function searchBox(label, heard) {
  return h('input', {
    type: 'search',
    class: 'search',
    placeholder: label,
    'aria-label': label,
    autocomplete: 'off',
    spellcheck: 'false',
    oninput: (event) => heard(event.target.value.trim().toLowerCase()),
  });
}

/** Whether every word of a search stands in a text. */
function matches(text, search) {
  const lower = text.toLowerCase();
  return search.split(/\s+/).every((word) => lower.includes(word));
}
