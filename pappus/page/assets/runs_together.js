// Chosen runs together: their curves, how they differ, and when they reached a target.

const GRID_POINTS = 300; // on which runs are averaged
const NARROW_COLUMNS = 3; // of the table of differences: more need the whole width

/** What is drawn together: groups of runs that differ in their seed only, or each run on its own. */
function seriesOfRuns(runs, together) {
  if (!together) return runs.map((run) => ({ label: run.name, runs: [run] }));
  return [...Map.groupBy(runs, (run) => run.group || run.name)].map(([group, members]) => ({
    label: members.length > 1 ? `${group} (${seedsText(members)})` : members[0].name,
    runs: members,
  }));
}

/** `3 seeds`; of runs that repeat a seed, how many there are. */
function seedsText(runs) {
  const seeds = new Set(runs.map((run) => run.about.seed));
  return plural(runs.length, seeds.size === runs.length ? 'seed' : 'run');
}

/** Curves of the chosen runs, for each metric that was picked. */
function runCurves(runs, series, state, changed) {
  const grid = h('div', { class: 'grid' });
  const names = () => [...new Set(runs.flatMap((run) => Object.keys(columnsOf(run))))];
  const merged = () => ({ curves: { columns: Object.fromEntries(names().map((name) => [name, []])) } });
  const shown = new Map();
  const picker = metricPicker(merged, state.metrics, pick);
  const together = toggle(
    'mean of seeds',
    state.together,
    (on) => {
      state.together = on;
      changed();
    },
    { title: 'runs that differ in their seed only: mean and 95 % interval' },
  );
  const note = h('p', { class: 'note' });
  const node = section('curves', 'Curves', [together, ...curveTools(), picker.node], note, grid);

  function pick(name, on) {
    if (on && !shown.has(name)) {
      const close = () => {
        pick(name, false);
        picker.mark(name, false);
      };
      state.metrics = [...new Set([...state.metrics, name])];
      const title =
        { 'charts/episodic_return': 'Return', 'charts/SPS': 'Steps per second', 'eval/episodic_return': 'Evaluation' }[
          name
        ] || name;
      shown.set(
        name,
        new Chart({
          title,
          note: name,
          wide: name === 'charts/episodic_return',
          read: () => meanLines(series(), name),
          close,
        }),
      );
      grid.append(shown.get(name).node);
    } else if (!on && shown.has(name)) {
      shown.get(name).remove();
      shown.delete(name);
      state.metrics = state.metrics.filter((one) => one !== name);
    }
  }

  return {
    node,
    update() {
      picker.refresh();
      const there = new Set(names());
      state.metrics.filter((name) => there.has(name) && !shown.has(name)).forEach((name) => pick(name, true));
      const several = series().some((one) => one.runs.length > 1);
      setText(note, several ? 'Bands are 95 % intervals of the mean over seeds (Student’s t).' : '');
      note.hidden = !several;
      redrawCharts(true);
    },
  };
}

function runPoints(run, name) {
  const columns = columnsOf(run);
  const xs = curveView.x === 'time' ? elapsed(run) : columns.step || [];
  return points(xs, columns[name] || []);
}

/** A line for each group on one grid: the mean, with its interval, as far as all its runs reach. */
function meanLines(series, name) {
  const drawn = series.map((one) => ({
    ...one,
    all: one.runs.map((run) => runPoints(run, name)).filter(([x]) => x.length),
  }));
  const ends = drawn.flatMap((one) => one.all.map(([x]) => x[x.length - 1]));
  const end = Math.max(0, ...ends);
  const x = Array.from({ length: GRID_POINTS }, (_, i) => (end * i) / (GRID_POINTS - 1));
  return drawn.map((one, colour) => {
    const from = Math.max(...one.all.map(([xs]) => xs[0]));
    const until = Math.min(...one.all.map(([xs]) => xs[xs.length - 1]));
    const step = end / (GRID_POINTS - 1);
    const means = x.map((at) =>
      one.all.length && at >= from - step && at <= until + step / 2
        ? meanInterval(one.all.map(([xs, ys]) => interpolate(xs, ys, at)))
        : null,
    );
    const each = (side) => means.map((mean) => (mean ? mean[side] : null));
    const band = one.all.length > 1 ? { low: each('low'), high: each('high') } : {};
    return { label: one.label, x, y: each('mean'), colour, ...band };
  });
}

/** Whether there is nothing but groups without settings: those of the others have rows of their own. */
function onlyEmpty(values) {
  return [...values].every((value) => value === 'null' || value === '{}');
}

/** Settings in which the chosen runs differ, the seed and who looked at them aside. */
function differencesSection(series) {
  const table = h('table', { class: 'config' });
  const none = h('p', { class: 'empty' });
  const node = section('differences', 'Differences', [], h('div', { class: 'sideways' }, table), none);
  const aside = new Set(['seed', 'run_dir', 'directory', 'page', 'page_server']);

  function update() {
    const columns = series().map((one) => ({ label: one.label, config: one.runs[0].config || {} }));
    const values = (name) => new Set(columns.map((column) => JSON.stringify(column.config[name] ?? null)));
    const names = [...new Set(columns.flatMap((column) => Object.keys(column.config)))]
      .sort()
      .filter((name) => !aside.has(name.split('.')[0]) && values(name).size > 1 && !onlyEmpty(values(name)));
    node.classList.toggle('whole-row', columns.length > NARROW_COLUMNS);
    table.hidden = !names.length;
    none.hidden = names.length > 0;
    setText(
      none,
      columns.length < 2
        ? 'Choose at least two settings to see how they differ.'
        : 'These runs differ in nothing but their seeds.',
    );
    const heads = columns.map((column, i) => h('th', { scope: 'col' }, swatch(i), column.label));
    table.replaceChildren(
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'setting'), heads)),
      h(
        'tbody',
        {},
        names.map((name) => settingRow(name, ...columns.map((column) => column.config[name] ?? null))),
      ),
    );
  }

  return { node, update };
}

function swatch(index) {
  return h('i', { class: 'swatch', style: { '--colour': `var(--series-${(index % SERIES_COLOURS) + 1})` } });
}

/** When each run reached a return, and what that took. */
function targetSection(runs, series) {
  const best = Math.max(
    ...runs.map((run) => Math.max(...(columnsOf(run)['charts/episodic_return'] || []).filter(known), -Infinity)),
  );
  const suggested = known(best) ? Number((0.9 * best).toPrecision(2)) : 0;
  const input = h('input', {
    type: 'number',
    step: 'any',
    value: String(suggested),
    id: 'target-return',
    oninput: () => update(),
  });
  const body = h('tbody');
  const money = runs.some((run) => hasCurve(run, 'cost/money')) ? ['money'] : [];
  const node = section(
    'target',
    'Time to a target',
    [h('label', { for: 'target-return', class: 'slider' }, 'return ', input)],
    h('p', { class: 'note' }, 'When the training return first reached it: medians over the seeds that did.'),
    h('table', { class: 'numbers' }, headRow(...['runs', 'reached', 'steps', 'time', 'CPU time', ...money]), body),
  );

  function update() {
    const target = input.valueAsNumber;
    body.replaceChildren(
      ...series().map((one, i) => {
        const reached = one.runs.map((run) => reachedAt(run, target)).filter(Boolean);
        const middle = (field) =>
          quantile(
            reached
              .map((at) => at[field])
              .filter(known)
              .sort((a, b) => a - b),
            0.5,
          );
        const cells = [
          `${reached.length} of ${one.runs.length}`,
          figure(middle('step')),
          duration(middle('seconds')),
          duration(middle('cpu')),
          ...money.map((name) => figure(middle(name))),
        ];
        return h(
          'tr',
          {},
          h('th', { scope: 'row' }, swatch(i), one.label),
          cells.map((text) => h('td', { class: 'number' }, text)),
        );
      }),
    );
  }

  return { node, update };
}

/** Step, seconds, CPU seconds and money at which the return of a run was first so high; null if it never was. */
function reachedAt(run, target) {
  const columns = columnsOf(run);
  const found = (columns['charts/episodic_return'] || []).findIndex((value) => known(value) && value >= target);
  if (found < 0 || !known(target)) return null;
  const at = (name) => (columns[name] || [])[found] ?? null;
  return {
    step: at('step'),
    seconds: elapsed(run)[found],
    cpu: at('cost/cpu_seconds'),
    money: at('cost/money'),
  };
}
