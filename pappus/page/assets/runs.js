// A folder of runs: choose several, and see their curves, how they differ, and when they reached a target.

const CHOSEN_AT_FIRST = 24;

const RUN_COLUMNS = [
  { name: 'run', by: (run) => run.name },
  { name: 'system', by: (run) => run.about.system, class: 'wide-only' },
  { name: 'env', by: (run) => run.about.env, class: 'wide-only' },
  {
    name: 'seed',
    by: (run) => run.about.seed,
    class: 'number wide-only',
    show: (run) => valueText(run.about.seed ?? ''),
  },
  { name: 'steps', by: (run) => runSteps(run), class: 'number', show: (run) => figure(runSteps(run)) },
  { name: 'return', by: (run) => runReturn(run), class: 'number', show: (run) => figure(runReturn(run)) },
  { name: 'evaluation', by: (run) => runEvaluation(run), class: 'number', show: (run) => figure(runEvaluation(run)) },
  {
    name: 'steps/s',
    by: (run) => summaryOf(run).steps_per_second,
    class: 'number wide-only',
    show: (run) => figure(summaryOf(run).steps_per_second),
  },
  {
    name: 'time',
    by: (run) => runSeconds(run),
    class: 'number wide-only',
    show: (run) => duration(runSeconds(run)),
  },
  { name: 'end', by: (run) => endOfRun(run), class: 'wide-only', show: (run) => endOfRun(run) },
];

function summaryOf(run) {
  return run.summary || {};
}

function runSteps(run) {
  return summaryOf(run).steps ?? lastKnown(columnsOf(run).step);
}

function runReturn(run) {
  return summaryOf(run).episodic_return ?? lastKnown(columnsOf(run)['charts/episodic_return']);
}

function runEvaluation(run) {
  return summaryOf(run).eval_return ?? lastKnown(columnsOf(run)['eval/episodic_return']);
}

/** All that it took, its start included, as on the axis of time. */
function runSeconds(run) {
  return summaryOf(run).wall_seconds ?? lastKnown(elapsed(run));
}

function endOfRun(run) {
  if (run.about.live) return 'under way';
  return summaryOf(run).exit_reason || run.about.exit_reason || 'no summary';
}

/** Where the page of a run is: at this server, or beside this file. */
function runAddress(run) {
  const path = run.name.split('/').map(encodeURIComponent).join('/');
  return location.protocol === 'file:' ? `${path}/page.html` : `run/${path}/`;
}

/** The whole page of a folder; `renew()` takes what has become of its runs. */
function runsPage(runs) {
  const state = {
    chosen: new Set(runs.slice(0, CHOSEN_AT_FIRST).map((run) => run.name)),
    together: true,
    metrics: ['charts/episodic_return', 'charts/SPS'],
  };
  const chosen = () => runs.filter((run) => state.chosen.has(run.name));
  const series = () => seriesOfRuns(chosen(), state.together);
  const table = runsTable(runs, state.chosen, changed);
  const curves = runCurves(runs, series, state, changed);
  const differences = differencesSection(series);
  const target = targetSection(runs, series);
  const [title, facts] = [h('h1'), h('p', { class: 'about' })];
  const head = h('div', { class: 'head', id: 'head' }, h('div', { class: 'title-line' }, title), facts);

  function changed() {
    setText(title, plural(runs.length, 'run'));
    setText(facts, runsFacts(runs));
    table.update();
    curves.update();
    differences.update();
    target.update();
  }

  function renew(fresh) {
    const before = new Set(runs.map((run) => run.name));
    fresh
      .filter((run) => !before.has(run.name))
      .slice(0, CHOSEN_AT_FIRST)
      .forEach((run) => state.chosen.add(run.name));
    runs.splice(0, runs.length, ...fresh);
    changed();
  }

  changed();
  return { renew, nodes: [head, table.node, curves.node, h('div', { class: 'pair' }, differences.node, target.node)] };
}

function runsFacts(runs) {
  const unique = (field) => [...new Set(runs.map((run) => run.about[field]).filter(Boolean))];
  const few = (values, word) => (values.length > 3 ? `${values.length} ${word}s` : values.join(', '));
  return [
    few(unique('system'), 'system'),
    few(unique('env'), 'env'),
    plural(new Set(runs.map((run) => run.group)).size, 'setting'),
  ]
    .filter(Boolean)
    .join(' · ');
}

/** The table to choose from. */
function runsTable(runs, chosen, changed) {
  const state = { by: 0, down: false, search: '' };
  const body = h('tbody');
  const all = h('input', {
    type: 'checkbox',
    'aria-label': 'choose all that are shown',
    onchange: () => {
      shown().forEach((run) => (all.checked ? chosen.add(run.name) : chosen.delete(run.name)));
      changed();
    },
  });
  const heads = RUN_COLUMNS.map((column, i) =>
    h(
      'th',
      { scope: 'col', class: column.class },
      h(
        'button',
        {
          type: 'button',
          onclick: () => {
            state.down = state.by === i ? !state.down : i > 3;
            state.by = i;
            update();
          },
        },
        column.name,
      ),
    ),
  );
  const find = searchBox('find runs', (words) => {
    state.search = words;
    update();
  });
  const count = h('span', { class: 'count' });
  const table = h(
    'table',
    { class: 'runs' },
    h('thead', {}, h('tr', {}, h('th', { scope: 'col', class: 'check' }, all), heads)),
    body,
  );
  const node = section('runs', 'Runs', [count, find], h('div', { class: 'tall' }, table));
  const rows = new Map();

  function shown() {
    const { by } = RUN_COLUMNS[state.by];
    const fitting = runs.filter(
      (run) =>
        !state.search || matches(`${run.name} ${run.about.system} ${run.about.env} ${endOfRun(run)}`, state.search),
    );
    const present = (run) => by(run) ?? null;
    return fitting.sort((one, other) => {
      if (present(one) === null || present(other) === null)
        return (present(one) === null ? 1 : 0) - (present(other) === null ? 1 : 0);
      return (
        (state.down ? -1 : 1) *
        compared(
          state.by ? [present(one)] : [one.group, one.about.seed ?? 0, one.name],
          state.by ? [present(other)] : [other.group, other.about.seed ?? 0, other.name],
        )
      );
    });
  }

  function update() {
    const fitting = shown();
    for (const run of runs) {
      if (!rows.has(run.name) || rows.get(run.name).run !== run) rows.set(run.name, runRow(run, chosen, changed));
    }
    heads.forEach((head, i) => {
      if (i === state.by) head.setAttribute('aria-sort', state.down ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
    body.replaceChildren(...fitting.map((run) => rows.get(run.name).node));
    if (!fitting.length)
      body.append(
        h(
          'tr',
          {},
          h(
            'td',
            { class: 'empty', colspan: String(RUN_COLUMNS.length + 1) },
            runs.length ? 'no run fits' : 'no runs here yet',
          ),
        ),
      );
    rows.forEach((row, name) => {
      row.box.checked = chosen.has(name);
    });
    const on = fitting.filter((run) => chosen.has(run.name)).length;
    all.checked = on > 0 && on === fitting.length;
    all.indeterminate = on > 0 && on < fitting.length;
    setText(count, `${chosen.size} of ${runs.length} chosen`);
  }

  return { node, update };
}

function runRow(run, chosen, changed) {
  const box = h('input', {
    type: 'checkbox',
    'aria-label': `choose ${run.name}`,
    onchange: () => {
      if (box.checked) chosen.add(run.name);
      else chosen.delete(run.name);
      changed();
    },
  });
  const cells = RUN_COLUMNS.slice(1).map((column) =>
    h('td', { class: column.class }, column.show ? column.show(run) : column.by(run) || ''),
  );
  const link = h('th', { scope: 'row' }, h('a', { href: runAddress(run) }, broken(run.name)));
  return { run, box, node: h('tr', {}, h('td', { class: 'check' }, box), link, cells) };
}
