// With which settings the run runs.

/** Settings: first what is not the system's own for that env, then all. */
function configSection(run) {
  const state = { search: '' };
  const [changed, all] = [h('tbody'), h('tbody')];
  const count = h('summary');
  const changedTable = h(
    'table',
    { class: 'config' },
    h('caption', {}, 'Differs from the preset'),
    headRow('setting', 'preset', 'this run'),
    changed,
  );
  const rest = h('details', {}, count, h('table', { class: 'config' }, headRow('setting', 'value'), all));
  const none = h('p', { class: 'empty' }, 'All settings are those of the preset.');
  const find = searchBox('find a setting', (words) => {
    state.search = words;
    update();
  });
  const command = h('code', { class: 'command' });
  const copy = h(
    'button',
    {
      type: 'button',
      class: 'toggle',
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(run.about.command);
          setText(copy, 'copied');
        } catch {
          getSelection().selectAllChildren(command);
        }
      },
    },
    'copy',
  );
  const commandLine = h('p', { class: 'command-line' }, command, copy);
  const node = section(
    'config',
    'Config',
    [find],
    commandLine,
    changedTable,
    none,
    rest,
    h('p', { class: 'note versions' }),
  );

  function update() {
    const config = run.config || { resolved: {}, differs: [] };
    commandLine.hidden = !run.about.command;
    setText(command, run.about.command || '');
    const differs = config.differs.filter(
      (one) => !state.search || matches(`${one.name} ${valueText(one.value)}`, state.search),
    );
    changedTable.hidden = !differs.length;
    none.hidden = config.differs.length > 0;
    changed.replaceChildren(...differs.map((one) => settingRow(one.name, one.preset, one.value)));
    const names = Object.keys(config.resolved);
    const fitting = names.filter(
      (name) => !state.search || matches(`${name} ${valueText(config.resolved[name])}`, state.search),
    );
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
  return h(
    'thead',
    {},
    h(
      'tr',
      {},
      names.map((name) => h('th', { scope: 'col' }, name)),
    ),
  );
}

function settingRow(name, ...values) {
  const cells = values.map((value) =>
    h('td', { class: value === null || value === '' ? 'nothing' : '' }, valueText(value)),
  );
  return h('tr', {}, h('th', { scope: 'row' }, broken(name)), cells);
}

/** A dotted name that may be broken behind its dots and underscores. */
function broken(name) {
  return name.split(/(?<=[._])/).flatMap((part, i) => (i ? [h('wbr'), part] : [part]));
}
