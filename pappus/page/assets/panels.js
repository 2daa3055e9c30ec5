// Policy lag, events, config, cost and the last evaluation's video.

const EVENTS_SHOWN = 60;
const BINS = 24; // of the histogram of policy lag

/** What an event is about, the first that fits. */
const EVENT_KINDS = [
  ['back', /\b(came back|comes back|restart|restarted|resumed|recovered|again)\b/i],
  ['fault', /\b(died|dies|crash|crashed|killed|hung|hangs|lost|failed|error|refused|cannot|not finite|no space)\b/i],
  ['member', /\b(joined|joins|left|leaves|connected|disconnected)\b/i],
  ['evaluation', /\b(evaluat\w*|greedy)\b/i],
];

const EVENT_CHOICES = [['all', 'all'], ['fault', 'faults'], ['back', 'came back'], ['member', 'joined or left'], ['evaluation', 'evaluations']];

function eventKind(text) {
  const found = EVENT_KINDS.find(([, pattern]) => pattern.test(text));
  return found ? found[0] : 'other';
}

/** The newest events first, by kind and by search. */
function eventsSection(run) {
  const state = { kind: 'all', search: '', all: false };
  const list = h('ol', { class: 'events' });
  const more = h('button', { type: 'button', class: 'toggle', onclick: () => { state.all = true; update(); } });
  const kinds = choice('kind of events', EVENT_CHOICES, 'all', (kind) => {
    state.kind = kind;
    update();
  });
  const find = searchBox('find events', (words) => { state.search = words; update(); });
  const node = section('events', 'Events', [kinds, find], list, more);

  function update() {
    const fitting = (run.events || []).filter((event) => (state.kind === 'all' || eventKind(event.text) === state.kind)
      && (!state.search || matches(`${event.role} ${event.text}`, state.search)));
    const shown = state.all ? fitting : fitting.slice(-EVENTS_SHOWN);
    list.replaceChildren(...shown.toReversed().map(eventRow));
    if (!fitting.length) list.append(h('li', { class: 'empty' }, (run.events || []).length ? 'no event fits' : 'nothing has happened yet: no restart, nobody joined or left'));
    more.hidden = shown.length === fitting.length;
    setText(more, `show all ${whole(fitting.length)}`);
  }

  update();
  return { node, update };
}

function eventRow(event) {
  const [first, ...rest] = event.text.split('\n');
  const text = rest.length ? h('details', {}, h('summary', {}, first), h('pre', {}, rest.join('\n'))) : h('span', {}, first);
  const when = known(event.time) ? new Date(1000 * event.time).toISOString() : null;
  return h('li', { class: eventKind(event.text) }, h('time', { datetime: when }, clockText(event.time)), h('b', {}, event.role || 'run'), text);
}

/** How old the weights were that acted. */
function lagSection(run) {
  const chart = h('div', { class: 'histogram', role: 'img' });
  const said = h('p', { class: 'note' });
  const node = section('lag', 'Policy lag', [], h('p', { class: 'note' }, 'Updates between the weights that acted and the weights that learn from it.'), chart, said);

  function update() {
    const lag = run.now && run.now.lag;
    const bins = lag ? binned(lag.histogram || []) : [];
    node.hidden = !lag;
    if (!lag) return;
    const most = Math.max(1, ...bins.map((bin) => bin.count));
    const total = sum(bins.map((bin) => bin.count));
    chart.hidden = !total;
    chart.replaceChildren(...bins.map((bin) => h('span', { class: 'bin', title: `${bin.label}: ${percent(bin.count / total)}` },
      h('i', { style: { height: `${(100 * bin.count) / most}%` } }), h('span', {}, bin.label))));
    const text = `mean ${figure(lag.mean)}, at most ${figure(lag.max)}`;
    setText(said, text);
    chart.setAttribute('aria-label', `${text}; ${bins.map((bin) => `${bin.label}: ${percent(bin.count / (total || 1))}`).join(', ')}`);
  }

  update();
  return { node, update };
}

/** Counts by version; with more versions than bins, several to a bin. */
function binned(pairs) {
  if (!pairs.length) return [];
  const [least, most] = [Math.min(...pairs.map(([at]) => at)), Math.max(...pairs.map(([at]) => at))];
  const size = Math.max(1, Math.ceil((most - least + 1) / BINS));
  const bins = Array.from({ length: Math.floor((most - least) / size) + 1 }, (_, i) => {
    const from = least + i * size;
    return { count: 0, label: size === 1 ? String(from) : `${from}–${from + size - 1}` };
  });
  for (const [at, count] of pairs) bins[Math.floor((at - least) / size)].count += count;
  return bins;
}

/** Settings: first what is not the system's own for that env, then all. */
function configSection(run) {
  const state = { search: '' };
  const [changed, all] = [h('tbody'), h('tbody')];
  const count = h('summary');
  const changedTable = h('table', { class: 'config' }, h('caption', {}, 'Differs from the preset'), headRow('setting', 'preset', 'this run'), changed);
  const rest = h('details', {}, count, h('table', { class: 'config' }, headRow('setting', 'value'), all));
  const none = h('p', { class: 'empty' }, 'All settings are those of the preset.');
  const find = searchBox('find a setting', (words) => { state.search = words; update(); });
  const command = h('code', { class: 'command' });
  const copy = h('button', { type: 'button', class: 'toggle', onclick: async () => {
    try {
      await navigator.clipboard.writeText(run.about.command);
      setText(copy, 'copied');
    } catch {
      getSelection().selectAllChildren(command);
    }
  } }, 'copy');
  const commandLine = h('p', { class: 'command-line' }, command, copy);
  const node = section('config', 'Config', [find], commandLine, changedTable, none, rest, h('p', { class: 'note versions' }));

  function update() {
    const config = run.config || { resolved: {}, differs: [] };
    commandLine.hidden = !run.about.command;
    setText(command, run.about.command || '');
    const differs = config.differs.filter((one) => !state.search || matches(`${one.name} ${valueText(one.value)}`, state.search));
    changedTable.hidden = !differs.length;
    none.hidden = config.differs.length > 0;
    changed.replaceChildren(...differs.map((one) => settingRow(one.name, one.preset, one.value)));
    const names = Object.keys(config.resolved);
    const fitting = names.filter((name) => !state.search || matches(`${name} ${valueText(config.resolved[name])}`, state.search));
    setText(count, state.search ? `${fitting.length} of ${names.length} settings` : `all ${names.length} settings`);
    all.replaceChildren(...fitting.sort().map((name) => settingRow(name, config.resolved[name])));
    if (state.search) rest.open = true;
    const versions = Object.entries(run.about.versions || {}).map(([name, version]) => `${name} ${version}`);
    const commit = run.about.git_hash ? [`commit ${String(run.about.git_hash).slice(0, 12)}`] : [];
    setText(node.lastChild, [...versions, ...commit].join(' · '));
  }

  update();
  return { node, update };
}

function headRow(...names) {
  return h('thead', {}, h('tr', {}, names.map((name) => h('th', { scope: 'col' }, name))));
}

function settingRow(name, ...values) {
  const cells = values.map((value) => h('td', { class: value === null || value === '' ? 'nothing' : '' }, valueText(value)));
  return h('tr', {}, h('th', { scope: 'row' }, broken(name)), cells);
}

/** A dotted name that may be broken behind its dots and underscores. */
function broken(name) {
  return name.split(/(?<=[._])/).flatMap((part, i) => (i ? [h('wbr'), part] : [part]));
}

/** What the run has cost so far. */
function costSection(run) {
  const list = h('dl', { class: 'cost' });
  const node = section('cost', 'Cost', [], list);

  function update() {
    const cost = Object.entries((run.now && run.now.cost) || {});
    node.hidden = !cost.length;
    list.replaceChildren(...cost.map(([label, text]) => h('div', {}, h('dt', {}, label), h('dd', {}, String(text)))));
  }

  update();
  return { node, update };
}

/** The video of the last evaluation, if there is one beside the page. */
function videoSection(run) {
  const player = h('video', { controls: true, muted: true, loop: true, playsinline: true, preload: 'metadata' });
  const node = section('video', 'Last evaluation', [], player);
  let shown = null;

  function update() {
    const near = run.video && !/^[a-z][a-z0-9+.-]*:|^\/\//i.test(run.video) ? run.video : null;
    node.hidden = !near;
    if (near && near !== shown) player.src = near;
    shown = near;
  }

  update();
  return { node, update };
}

/** Greedy evaluations as numbers. */
function evaluationsSection(run) {
  const body = h('tbody');
  const node = section('evaluations', 'Evaluations', [], h('div', { class: 'tall' },
    h('table', { class: 'numbers' }, headRow('step', 'mean return', '± std', 'episodes', 'after'), body)));

  function update() {
    const found = (run.evaluations || []).toReversed();
    node.hidden = !found.length;
    body.replaceChildren(...found.map((one) => h('tr', {}, [whole(one.step), figure(one.mean), figure(one.std), whole(one.episodes), duration(one.seconds)]
      .map((text) => h('td', { class: 'number' }, text)))));
  }

  update();
  return { node, update };
}
