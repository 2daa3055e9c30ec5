// The curves of one run: those that everybody looks at, and any other by a picker.

const MANY_LINES = 8; // more roles than these are shown as a mean and a band

/** The section of curves; `changed()` after new rows, `rebuilt()` when new names may have appeared. */
function curvesSection(run) {
  const grid = h('div', { class: 'grid' });
  const none = h('p', { class: 'empty' }, 'No curve yet: the first values come a second after the first steps.');
  const chosen = new Map();
  const standard = new Map();
  const picker = metricPicker(
    () => run,
    choices.get('metrics', []).filter((name) => hasCurve(run, name)),
    pick,
  );
  const node = section('curves', 'Curves', [...curveTools(), picker.node], none, grid);

  function pick(name, on) {
    if (on && !chosen.has(name)) {
      const close = () => {
        pick(name, false);
        picker.mark(name, false);
      };
      chosen.set(name, new Chart({ title: name, read: () => linesOf(run, [[name, name]]), close }));
      grid.append(chosen.get(name).node);
    } else if (!on && chosen.has(name)) {
      chosen.get(name).remove();
      chosen.delete(name);
    }
    choices.set('metrics', [...chosen.keys()]);
  }

  /** Cards of metrics that have appeared since; they keep their order. */
  function rebuilt() {
    const wanted = standardCharts(run);
    let before = null;
    for (const one of wanted) {
      if (!standard.has(one.title)) {
        const chart = new Chart(one);
        standard.set(one.title, chart);
        if (before) before.after(chart.node);
        else grid.prepend(chart.node);
      }
      before = standard.get(one.title).node;
    }
    none.hidden = standard.size > 0;
    picker.refresh();
  }

  rebuilt();
  picker.chosen.forEach((name) => pick(name, true));
  return { node, rebuilt, changed: () => redrawCharts() };
}

/** What applies to all curves: the x axis, and smoothing. */
function curveTools() {
  const axis = choice(
    'x axis',
    [
      ['step', 'steps'],
      ['time', 'time'],
    ],
    curveView.x,
    (value) => {
      curveView.x = value;
      choices.set('x', value);
      redrawCharts(true);
    },
  );
  const slider = h('input', {
    type: 'range',
    min: '0',
    max: '0.98',
    step: '0.02',
    value: String(curveView.smoothing),
    'aria-label': 'smoothing',
    oninput: (event) => {
      curveView.smoothing = Number(event.target.value);
      choices.set('smoothing', curveView.smoothing);
      redrawCharts(true);
    },
  });
  return [axis, h('label', { class: 'slider' }, 'smoothing ', slider)];
}

/** Metrics as lines: [name, label] pairs. */
function linesOf(run, names) {
  const columns = columnsOf(run);
  const xs = curveView.x === 'time' ? elapsed(run) : columns.step || [];
  return names
    .filter(([name]) => hasCurve(run, name))
    .map(([name, label]) => {
      const [x, y] = points(xs, columns[name]);
      return { label, x, y };
    });
}

/** The cards that a run begins with; those without data are left out. */
function standardCharts(run) {
  const has = (name) => hasCurve(run, name);
  const names = Object.keys(columnsOf(run));
  const losses = names.filter((name) => name.startsWith('losses/') && has(name));
  const busy = kindsOf(run)
    .map((kind) => [`${kind.name}/busy`, kind.name])
    .filter(([name]) => has(name));
  const memory = names.filter((name) => name.startsWith('memory/') && has(name));
  const one = (title, note, name, label) => has(name) && { title, note, read: () => linesOf(run, [[name, label]]) };
  return [
    (has('charts/episodic_return') || (run.evaluations || []).length > 0) && {
      title: 'Return',
      note: 'mean of the last 100 training episodes, and greedy evaluations with ± one standard deviation',
      wide: true,
      read: () => returnLines(run),
    },
    one('Steps per second', 'env steps trained on', 'charts/SPS', 'steps/s'),
    ...losses.map((name) => one(lossTitle(name), name, name, name.slice('losses/'.length).replaceAll('_', ' '))),
    busy.length && {
      title: 'Busy share of time',
      note: 'by kind of role',
      format: percent,
      read: () => linesOf(run, busy),
    },
    has('learner/policy_lag') && {
      title: 'Policy lag',
      note: 'updates between the weights that acted and those that learn',
      read: () =>
        linesOf(run, [
          ['learner/policy_lag', 'mean'],
          ['learner/policy_lag_max', 'maximum'],
        ]),
    },
    one('Queue depth', 'ready when the learner last took some', 'queue/depth', 'ready'),
    memory.length && { title: 'Memory, MiB', note: 'resident, per process', read: () => memoryLines(run) },
    one('Episode length', 'mean of the last 100 training episodes', 'charts/episodic_length', 'steps'),
  ].filter(Boolean);
}

function lossTitle(name) {
  return sentence(name.slice('losses/'.length).replaceAll('_', ' '));
}

/** Training returns as a line, evaluations as dots with a band of one standard deviation. */
function returnLines(run) {
  const lines = linesOf(run, [['charts/episodic_return', 'training']]);
  const found = (run.evaluations || []).filter((one) => known(one.step) && known(one.mean));
  if (!found.length) return lines;
  const [steps, seconds] = points(columnsOf(run).step || [], elapsed(run));
  const x = found.map((one) =>
    curveView.x === 'time' ? (interpolate(steps, seconds, one.step) ?? one.seconds) : one.step,
  );
  const order = x
    .map((_, i) => i)
    .filter((i) => known(x[i]))
    .sort((one, other) => x[one] - x[other]);
  const [xs, y] = points(
    order.map((i) => x[i]),
    order.map((i) => found[i].mean),
  );
  const around = (sign) =>
    points(
      order.map((i) => x[i]),
      order.map((i) => found[i].mean + sign * (found[i].std || 0)),
    )[1];
  return [...lines, { label: 'evaluation', x: xs, y, low: around(-1), high: around(1), dots: true, colour: 1 }];
}

/** A line for each process, or for each kind with many its mean between the least and the most. */
function memoryLines(run) {
  const names = Object.keys(columnsOf(run)).filter((name) => name.startsWith('memory/') && hasCurve(run, name));
  if (names.length <= MANY_LINES)
    return linesOf(
      run,
      names.map((name) => [name, name.slice('memory/'.length)]),
    );
  const kinds = Map.groupBy(names, (name) => name.slice('memory/'.length).replace(/-\d+$/, ''));
  return [...kinds].map(([kind, members]) =>
    spread(
      linesOf(
        run,
        members.map((name) => [name, kind]),
      ),
      `${kind} ×${members.length}`,
    ),
  );
}

/** Several lines as their mean, between the least and the most. */
function spread(lines, label) {
  if (lines.length === 1) return { ...lines[0], label };
  const [x, ...columns] = uPlot.join(lines.map((line) => [line.x, line.y]));
  const rows = x.map((_, i) => columns.map((column) => column[i]).filter(known));
  const each = (how) => rows.map((row) => (row.length ? how(row) : null));
  return {
    label,
    x,
    y: each((row) => sum(row) / row.length),
    low: each((row) => Math.min(...row)),
    high: each((row) => Math.max(...row)),
  };
}

/** A list of all metrics of what `source()` returns to choose from, with a search. */
function metricPicker(source, chosen, pick) {
  const list = h('div', { class: 'options', role: 'group', 'aria-label': 'metrics' });
  const boxes = new Map();
  let search = '';
  const find = searchBox('search metrics', (words) => {
    search = words;
    filter();
  });
  const count = h('span', { class: 'count' });
  const node = h(
    'details',
    { class: 'picker' },
    h('summary', {}, 'more metrics'),
    h('div', { class: 'popover' }, find, list, count),
  );
  node.addEventListener('toggle', () => node.open && find.focus());
  node.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return;
    node.open = false;
    node.querySelector('summary').focus();
  });
  document.addEventListener('click', (event) => {
    if (!node.contains(event.target)) node.open = false;
  });

  function refresh() {
    for (const name of Object.keys(columnsOf(source())).sort()) {
      if (boxes.has(name) || name === 'step' || name === 'time') continue;
      const box = h('input', { type: 'checkbox', onchange: () => pick(name, box.checked) });
      box.checked = chosen.includes(name);
      boxes.set(name, { box, row: h('label', {}, box, ` ${name}`) });
    }
    list.replaceChildren(...[...boxes.keys()].sort().map((name) => boxes.get(name).row));
    filter();
  }

  function filter() {
    let shown = 0;
    for (const [name, { row }] of boxes) {
      row.hidden = Boolean(search) && !matches(name, search);
      shown += row.hidden ? 0 : 1;
    }
    setText(count, `${shown} of ${boxes.size}`);
  }

  return {
    node,
    refresh,
    chosen,
    mark: (name, on) => {
      boxes.get(name).box.checked = on;
    },
  };
}
